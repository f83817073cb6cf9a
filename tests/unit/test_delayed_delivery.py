"""Delay levels of a whole store: parked, delivered, and delivered still after a crash."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import rmqcore
from rmqcore.errors import MessageIllegalError
from rmqcore.services.delay_schedule import SCHEDULE_TOPIC

pytestmark = pytest.mark.engine

SMALL = {
    "mapped_file_size_commit_log": 1 << 20,
    "max_hash_slot_num": 100,
    "max_index_num": 4000,
    "allocate_ahead": 0,
    "warm_mapped_file_enable": False,
    "message_delay_level": "1s 2s 1h",
}


def delivered(store, topic: str = "TopicA", queue_id: int = 0) -> list[bytes]:
    offset = store.min_queue_offset(topic, queue_id)
    found = store.get_message(topic, queue_id, offset, max_messages=10_000)
    return [message.body for message in found.messages]


def wait_for(condition) -> None:
    end = time.monotonic() + 20
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    assert condition()


def test_a_store_that_will_not_deliver_refuses_delay(tmp_path):
    with rmqcore.open_store(tmp_path, **SMALL) as store:
        with pytest.raises(MessageIllegalError, match="deliver_delayed=True"):
            store.put("TopicA", b"x", delay_level=1)
        with pytest.raises(MessageIllegalError, match="deliver_delayed=True"):
            store.put_message(rmqcore.Message("TopicA", b"x", delay_level=1))
        assert store.queues() == []


def test_messages_arrive_in_order_and_on_time_with_all_that_they_had(tmp_path):
    with rmqcore.open_store(tmp_path, **SMALL, deliver_delayed=True) as store:
        begun = time.time()
        for number in range(50):
            store.put("TopicA", b"%d" % number, delay_level=1, tags="t", keys=f"k{number}", flag=7)
        store.put("TopicA", b"late", delay_level=2, queue_id=1)
        assert store.max_queue_offset("TopicA", 0) == 0
        assert store.max_queue_offset(SCHEDULE_TOPIC, 0) == 50
        wait_for(lambda: len(delivered(store)) == 50)
        assert time.time() - begun >= 1
        assert delivered(store) == [b"%d" % number for number in range(50)]
        message = store.get_message("TopicA", 0, 3, max_messages=1, tags="t").messages[0]
        assert (message.tags, message.keys, message.flag) == ("t", ("k3",), 7)
        assert "DELAY" not in message.properties
        assert any(hit.topic == "TopicA" for hit in store.query_message("TopicA", "k3").messages)
        wait_for(lambda: delivered(store, queue_id=1) == [b"late"])
        assert time.time() - begun >= 2
        assert store.stats()["scheduleMessageOffset_1"] == "50,50"


def test_a_level_above_the_last_waits_as_long_as_the_last(tmp_path):
    with rmqcore.open_store(tmp_path, **SMALL, deliver_delayed=True) as store:
        store.put("TopicA", b"x", delay_level=18)
        assert store.max_queue_offset(SCHEDULE_TOPIC, 2) == 1


def test_what_was_parked_is_delivered_after_the_store_was_closed(tmp_path):
    with rmqcore.open_store(tmp_path, **SMALL, deliver_delayed=True) as store:
        store.put("TopicA", b"first", delay_level=1)
        wait_for(lambda: delivered(store) == [b"first"])
        store.put("TopicA", b"second", delay_level=1)
    assert '"offsetTable":{\n\t\t1:1\n\t}' in (tmp_path / "config/delayOffset.json").read_text()
    with rmqcore.open_store(tmp_path, **SMALL) as store:
        time.sleep(1.2)
        assert delivered(store) == [b"first"]
    with rmqcore.open_store(tmp_path, **SMALL, deliver_delayed=True) as store:
        wait_for(lambda: delivered(store) == [b"first", b"second"])
        time.sleep(0.3)
        assert delivered(store) == [b"first", b"second"]


@pytest.mark.process
def test_a_killed_process_repeats_and_loses_nothing(tmp_path: Path):
    writer = textwrap.dedent(
        f"""
        import os, signal, sys, time
        import rmqcore
        store = rmqcore.open_store({str(tmp_path)!r}, deliver_delayed=True, **{SMALL!r})
        for number in range(200):
            store.put("TopicA", b"%d" % number, delay_level=1)
        while store.max_queue_offset("TopicA", 0) < 200:
            time.sleep(0.01)
        for number in range(200, 300):
            store.put("TopicA", b"%d" % number, delay_level=1)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    child = subprocess.run([sys.executable, "-c", writer], check=False, timeout=60)
    assert child.returncode == -9
    with rmqcore.open_store(tmp_path, **SMALL, deliver_delayed=True) as store:
        assert store.max_queue_offset(SCHEDULE_TOPIC, 0) == 300
        wait_for(lambda: delivered(store)[-1] == b"299")
        bodies = delivered(store)
    first_of_each = list(dict.fromkeys(bodies))
    assert first_of_each == [b"%d" % number for number in range(300)]


def test_a_transaction_that_is_not_decided_is_not_parked(tmp_path):
    with rmqcore.open_store(tmp_path, **SMALL, deliver_delayed=True) as store:
        store.put("TopicA", b"half", delay_level=1, sys_flag=0x4)
        store.put("TopicA", b"committed", delay_level=1, sys_flag=0x8)
        assert store.max_queue_offset(SCHEDULE_TOPIC, 0) == 1
        wait_for(lambda: delivered(store) == [b"committed"])


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("what", ["damaged", "no such queue"])
def test_one_bad_parked_message_stops_nothing(tmp_path, what, times):
    settings = {
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
        store.put("T", b"good", delay_level=1)
        for _ in range(100):
            store.put("Other", b"x" * 1000)
    if what == "damaged":
        with (tmp_path / "s" / "commitlog" / f"{0:020d}").open("r+b") as file:
            file.seek(damaged.phy_offset + 120)
            file.write(b"!")
    for _ in range(times):
        with rmqcore.open_store(tmp_path / "s", **settings) as store:
            wait_for(lambda: store.max_queue_offset("T", 0) == 1)
            assert [message.body for message in store.messages("T", 0)] == [b"good"]
            assert store.why_not_writable() is None
            assert store.put("Other", b"y").ok
