"""Which tests are collected: those of another program only where `make peers` runs."""

import os
from functools import partial

import pytest
from asleep import when_asleep  # noqa: F401 - a fixture
from consume.conftest import Clock

from rmqcore.store.message_store import DefaultMessageStore
from rmqcore.store.sharing import shared_store
from rmqcore.world import World

#: they import what they adapt, and its suite
collect_ignore_glob = (
    [] if "RMQCORE_SUITES" in os.environ else ["test_*_suite.py", "test_*_live.py"]
)


@pytest.fixture
def clock(monkeypatch):
    """The time of stores that this process opens and owns from now on, as the test sets it."""
    clock = Clock()
    store = partial(DefaultMessageStore, world=World(clock))
    monkeypatch.setattr(shared_store, "DefaultMessageStore", store)
    return clock
