"""Delay levels of a whole store: parked, delivered, and delivered still after a crash."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from patience import rounds, until

import rmqcore
from rmqcore.errors import MessageIllegalError
from rmqcore.services.delay_schedule import SCHEDULE_TOPIC
from rmqcore.store.message_store import DefaultMessageStore
from rmqcore.world import World, wall_clock_ms

pytestmark = pytest.mark.engine

SMALL = {
    "mapped_file_size_commit_log": 1 << 20,
    "max_hash_slot_num": 100,
    "max_index_num": 4000,
    "allocate_ahead": 0,
    "warm_mapped_file_enable": False,
    "message_delay_level": "1h 2h 3h",
}
HOUR_MS = 3_600_000


@pytest.fixture
def clock(monkeypatch):
    """The clock of each store that is opened: `now_ms` is what a test has set, else the time."""

    class Clock:
        now_ms = None

        def __call__(self):
            return wall_clock_ms() if self.now_ms is None else self.now_ms

    clock = Clock()
    monkeypatch.setitem(DefaultMessageStore.__init__.__kwdefaults__, "world", World(clock))
    return clock


def delivered(store, topic: str = "TopicA", queue_id: int = 0) -> list[bytes]:
    offset = store.min_queue_offset(topic, queue_id)
    found = store.get_message(topic, queue_id, offset, max_messages=10_000)
    return [message.body for message in found.messages]


def test_a_store_that_will_not_deliver_refuses_delay(tmp_path):
    with rmqcore.open_store(tmp_path, **SMALL) as store:
        with pytest.raises(MessageIllegalError, match="deliver_delayed=True"):
            store.put("TopicA", b"x", delay_level=1)
        with pytest.raises(MessageIllegalError, match="deliver_delayed=True"):
            store.put_message(rmqcore.Message("TopicA", b"x", delay_level=1))
        assert store.queues() == []


def test_messages_arrive_in_order_and_on_time_with_all_that_they_had(tmp_path, clock):
    with rmqcore.open_store(tmp_path, **SMALL, deliver_delayed=True) as store:
        receipts = [
            store.put("TopicA", b"%d" % number, delay_level=1, tags="t", keys=f"k{number}", flag=7)
            for number in range(50)
        ]
        late = store.put("TopicA", b"late", delay_level=2, queue_id=1)
        assert store.max_queue_offset(SCHEDULE_TOPIC, 0) == 50
        clock.now_ms = receipts[0].store_timestamp_ms + HOUR_MS - 1
        rounds(store.parts.upkeep.delayed)
        assert delivered(store) == []
        clock.now_ms = receipts[-1].store_timestamp_ms + HOUR_MS
        until(lambda: len(delivered(store)) == 50, "all that is due is delivered")
        assert delivered(store) == [b"%d" % number for number in range(50)]
        message = store.get_message("TopicA", 0, 3, max_messages=1, tags="t").messages[0]
        assert (message.tags, message.keys, message.flag) == ("t", ("k3",), 7)
        assert "DELAY" not in message.properties
        assert any(hit.topic == "TopicA" for hit in store.query_message("TopicA", "k3").messages)
        clock.now_ms = late.store_timestamp_ms + 2 * HOUR_MS - 1
        rounds(store.parts.upkeep.delayed)
        assert delivered(store, queue_id=1) == []
        clock.now_ms += 1
        until(lambda: delivered(store, queue_id=1) == [b"late"], "the last one is delivered")
        assert store.stats()["scheduleMessageOffset_1"] == "50,50"


def test_a_level_above_the_last_waits_as_long_as_the_last(tmp_path):
    with rmqcore.open_store(tmp_path, **SMALL, deliver_delayed=True) as store:
        store.put("TopicA", b"x", delay_level=18)
        assert store.max_queue_offset(SCHEDULE_TOPIC, 2) == 1


def test_what_was_parked_is_delivered_after_the_store_was_closed(tmp_path, clock):
    with rmqcore.open_store(tmp_path, **SMALL, deliver_delayed=True) as store:
        first = store.put("TopicA", b"first", delay_level=1)
        clock.now_ms = first.store_timestamp_ms + HOUR_MS
        until(lambda: delivered(store) == [b"first"], "the first one is delivered")
        clock.now_ms = None
        second = store.put("TopicA", b"second", delay_level=1)
    assert '"offsetTable":{\n\t\t1:1\n\t}' in (tmp_path / "config/delayOffset.json").read_text()
    clock.now_ms = second.store_timestamp_ms + HOUR_MS
    with rmqcore.open_store(tmp_path, **SMALL) as store:
        for service in store.parts.upkeep.services:
            rounds(service)
        assert delivered(store) == [b"first"]
    with rmqcore.open_store(tmp_path, **SMALL, deliver_delayed=True) as store:
        until(lambda: delivered(store) == [b"first", b"second"], "the second one is delivered")
        rounds(store.parts.upkeep.delayed, 3)
        assert delivered(store) == [b"first", b"second"]


@pytest.mark.process
def test_a_killed_process_repeats_and_loses_nothing(tmp_path: Path, clock):
    writer = textwrap.dedent(
        f"""
        import os, signal, time
        import rmqcore
        store = rmqcore.open_store({str(tmp_path)!r}, deliver_delayed=True, **{SMALL!r})
        now = store.parts.upkeep.delayed._clock
        for number in range(200):
            store.put("TopicA", b"%d" % number, delay_level=1)
        store.parts.upkeep.delayed._clock = lambda: now() + {HOUR_MS}
        while store.max_queue_offset("TopicA", 0) < 200:
            time.sleep(0.002)
        store.parts.upkeep.delayed._clock = now
        for number in range(200, 300):
            store.put("TopicA", b"%d" % number, delay_level=1)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    child = subprocess.run([sys.executable, "-c", writer], check=False, timeout=60)
    assert child.returncode == -9
    clock.now_ms = wall_clock_ms() + HOUR_MS
    with rmqcore.open_store(tmp_path, **SMALL, deliver_delayed=True) as store:
        assert store.max_queue_offset(SCHEDULE_TOPIC, 0) == 300
        until(lambda: delivered(store)[-1] == b"299", "all is delivered")
        bodies = delivered(store)
    first_of_each = list(dict.fromkeys(bodies))
    assert first_of_each == [b"%d" % number for number in range(300)]


def test_a_transaction_that_is_not_decided_is_not_parked(tmp_path, clock):
    with rmqcore.open_store(tmp_path, **SMALL, deliver_delayed=True) as store:
        store.put("TopicA", b"half", delay_level=1, sys_flag=0x4)
        committed = store.put("TopicA", b"committed", delay_level=1, sys_flag=0x8)
        assert store.max_queue_offset(SCHEDULE_TOPIC, 0) == 1
        clock.now_ms = committed.store_timestamp_ms + HOUR_MS
        until(lambda: delivered(store) == [b"committed"], "what was committed is delivered")


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("what", ["damaged", "no such queue"])
def test_one_bad_parked_message_stops_nothing(tmp_path, clock, what, times):
    settings = {
        "message_delay_level": "1h",
        "deliver_delayed": True,
        "mapped_file_size_commit_log": 65536,
        "max_hash_slot_num": 100,
        "max_index_num": 400,
        "warm_mapped_file_enable": False,
    }
    with rmqcore.open_store(tmp_path / "s", **settings) as store:
        if what == "damaged":
            damaged = store.put("T", b"R" * 100, delay_level=1)
        else:
            place = {"REAL_TOPIC": "T", "REAL_QID": "99999999999"}
            store.put("SCHEDULE_TOPIC_XXXX", b"x", properties=place)
        good = store.put("T", b"good", delay_level=1)
        for _ in range(100):
            store.put("Other", b"x" * 1000)
    if what == "damaged":
        with (tmp_path / "s" / "commitlog" / f"{0:020d}").open("r+b") as file:
            file.seek(damaged.phy_offset + 120)
            file.write(b"!")
    clock.now_ms = good.store_timestamp_ms + HOUR_MS
    for _ in range(times):
        with rmqcore.open_store(tmp_path / "s", **settings) as store:
            until(lambda: store.max_queue_offset("T", 0) == 1, "the good one is delivered")
            assert [message.body for message in store.messages("T", 0)] == [b"good"]
            assert store.why_not_writable() is None
            assert store.put("Other", b"y").ok
