"""Clients of tests beside Java have patience."""

from client.conftest import patient  # noqa: F401 - a fixture
