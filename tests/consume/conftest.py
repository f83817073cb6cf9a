"""A store whose time the test sets, and a group on it."""

import math

import pytest
from asleep import when_asleep  # noqa: F401 - a fixture

import rmqcore
from rmqcore.store.consume import lease_table
from rmqcore.store.message_store import DefaultMessageStore
from rmqcore.world import World, monotonic_s

SMALL = {
    "mapped_file_size_commit_log": 1 << 16,
    "mapped_file_size_consume_queue": 2000,
    "max_hash_slot_num": 16,
    "max_index_num": 64,
    "allocate_ahead": 0,
    "warm_mapped_file_enable": False,
}
TOPIC = {"T": "*"}


class Clock:
    """Unix time in milliseconds, as the test sets it."""

    def __init__(self):
        self.now_ms = 1_700_000_000_000
        self._passed_s = 0.0

    def __call__(self):
        return self.now_ms

    def pass_ms(self, ms):
        """Go on; a slot of due times is 16 ms."""
        self.now_ms += ms + 16
        self._passed_s += ms / 1000

    def monotonic_s(self):
        """Seconds that pass by themselves, and those that the test lets pass."""
        return self.real_s() + self._passed_s

    def real_s(self):
        """Seconds that pass by themselves."""
        return monotonic_s()


def stands_still(monkeypatch):
    """A clock that stands still while time passes was not put back by that."""
    monkeypatch.setattr(lease_table, "_STEP_MS", math.inf)


@pytest.fixture
def clock(monkeypatch):
    stands_still(monkeypatch)
    return Clock()


@pytest.fixture
def opened(store_path, clock):
    """`opened()`: the store, opened once more; all are closed with the test."""
    stores = []

    def once_more(**settings):
        config = rmqcore.StoreConfig(**SMALL, **settings)
        stores.append(DefaultMessageStore(store_path, config, world=World(clock, clock.real_s)))
        return stores[-1]

    yield once_more
    for store in stores:
        store.close()


@pytest.fixture
def store(opened):
    return opened()


def put(store, count, topic="T", **fields):
    """Put messages `0`, `1`, … and return their bodies."""
    bodies = [b"%d" % number for number in range(count)]
    for body in bodies:
        store.put(topic, body, **fields)
    return bodies


def bodies(messages):
    return [message.body for message in messages]


def places(messages):
    return [message.place for message in messages]
