"""A broker for the tests of what is read of a running cluster."""

from rmqcore.testing import rocketmq_broker, rocketmq_topic  # noqa: F401 - fixtures
