"""A broker for the tests of what is read of a running cluster."""

from client.conftest import patient  # noqa: F401 - a fixture: waits for answers

from rmqcore.testing import rocketmq_broker, rocketmq_topic  # noqa: F401 - fixtures
