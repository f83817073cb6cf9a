"""Clients of a master and its slave wait for answers."""

from client.conftest import patient  # noqa: F401 - a fixture
