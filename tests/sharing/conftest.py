"""What the tests of this folder share."""

from asleep import when_asleep  # noqa: F401 - a fixture
