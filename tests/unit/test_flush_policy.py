"""When a put returns and what it has reached: one answer for each combination of settings."""

import asyncio

import pytest
from patience import until

from rmqcore import ConfigError, Message, open_store
from rmqcore._codec import encode_batch
from rmqcore.config import StoreConfig
from rmqcore.services.flush_policy import FlushPolicy
from rmqcore.status import Durability

pytestmark = pytest.mark.engine

SIZES = {
    "mapped_file_size_commit_log": 65536,
    "max_hash_slot_num": 100,
    "max_index_num": 400,
    "warm_mapped_file_enable": False,
}
PUTS = {
    "put": lambda store, how: store.put("T", b"x", durability=how),
    "put_message": lambda store, how: store.put_message(Message("T", b"x"), durability=how),
    "put_messages": lambda store, how: store.put_messages([Message("T", b"x")], durability=how),
    "encoded": lambda store, how: store.put_messages(
        encode_batch([Message("T", b"x")]), topic="T", durability=how
    ),
}


@pytest.mark.logic
@pytest.mark.parametrize(
    ("settings", "waits", "reaches", "folios"),
    [
        ({}, False, Durability.PAGE_CACHE, True),
        ({"flush_disk_type": "SYNC_FLUSH"}, True, Durability.PAGE_CACHE, False),
        ({"transient_store_pool_enable": True}, False, Durability.MEMORY, True),
    ],
)
def test_the_settings_decide_once_what_a_put_reaches(settings, waits, reaches, folios):
    policy = FlushPolicy.of(StoreConfig(**settings))
    assert policy.waits_for_disk is waits
    assert policy.put_reaches is reaches
    assert policy.large_folios is folios
    assert policy.through_pool is (reaches is Durability.MEMORY)
    assert (policy.warm_up_sync_size > 0) is waits
    assert policy.put_waits(None, wait_store_msg_ok=True) is waits
    assert policy.put_waits(None, wait_store_msg_ok=False) is False
    assert policy.put_waits("disk", wait_store_msg_ok=False) is True
    assert policy.put_waits("page_cache", wait_store_msg_ok=True) is False


@pytest.mark.parametrize("call", PUTS)
@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_a_refused_durability_stores_nothing(tmp_path, call, flush):
    with open_store(tmp_path / "s", flush_disk_type=flush, **SIZES) as store:
        with pytest.raises(ConfigError, match="durability"):
            PUTS[call](store, "replicated")
        assert store.max_phy_offset == 0


@pytest.mark.parametrize("call", ["put_async", "put_message_async", "put_messages_async"])
def test_a_refused_durability_stores_nothing_for_a_coroutine(tmp_path, call):
    async def run(store):
        what = {
            "put_async": ("T", b"x"),
            "put_message_async": (Message("T", b"x"),),
            "put_messages_async": ([Message("T", b"x")],),
        }
        with pytest.raises(ConfigError, match="durability"):
            await getattr(store, call)(*what[call], durability="tape")

    with open_store(tmp_path / "s", **SIZES) as store:
        asyncio.run(run(store))
        assert store.max_phy_offset == 0


@pytest.fixture
def waiting(tmp_path):
    """A store whose puts wait for the disk, and whose flush service is asleep for minutes."""
    settings = SIZES | {"flush_interval_commit_log_ms": 600_000}
    with open_store(tmp_path / "s", flush_disk_type="SYNC_FLUSH", **settings) as store:
        yield store


@pytest.mark.parametrize("call", PUTS)
def test_a_put_that_does_not_wait_is_flushed_soon_all_the_same(waiting, call):
    assert PUTS[call](waiting, "page_cache").durability is Durability.PAGE_CACHE
    until(
        lambda: waiting.parts.files.writer.flushed_offset == waiting.parts.files.tail.max_offset,
        "a flush",
    )


def test_a_read_waits_for_what_did_not_wait_and_for_nothing_else(waiting, monkeypatch):
    assert waiting.parts.upkeep.runner.stop(waiting.parts.log_services.group_commit)
    unwaited = Message("T", b"a", wait_store_msg_ok=False)
    waiting.put_message(unwaited)
    assert [message.body for message in waiting.messages("T", 0)] == [b"a"]

    def refuse(*_):
        raise AssertionError("a read waits for the disk")

    monkeypatch.setattr(waiting.parts.log_services.group_commit, "wait", refuse)
    # as a put of another thread that is waiting for its flush
    waiting.parts.files.tail.put_message(Message("T", b"b"))
    assert [message.body for message in waiting.messages("T", 0)] == [b"a"]


class ClosedMeanwhile:
    """An event loop that is open when one looks, and closed when one calls."""

    def is_closed(self):
        return False

    def call_soon_threadsafe(self, *_):
        raise RuntimeError("Event loop is closed")


class Together:
    """Coroutines that wait for a flush."""

    def __init__(self, offset):
        self.offset = offset
        self.told = []

    def complete(self, failure):
        self.told.append(failure)


class Open(ClosedMeanwhile):
    """An event loop that calls at once."""

    def call_soon_threadsafe(self, call, *arguments):
        call(*arguments)


def test_a_loop_that_is_closed_meanwhile_ends_nothing(waiting):
    waiting.put("T", b"x")
    service, others = waiting.parts.log_services.group_commit, Together(1)
    assert waiting.parts.upkeep.runner.stop(service)
    service._coroutines = {ClosedMeanwhile(): Together(1), Open(): others}
    service.run(0.0)
    assert others.told == [None]
    assert waiting.put("T", b"y").durability is Durability.DISK
