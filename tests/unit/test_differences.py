"""Differences from RocketMQ that no other file holds: docs/differences.md names these tests."""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time

import pyarrow as pa
import pytest
from patience import until

from rmqcore import (
    CorruptRecordError,
    CorruptStoreError,
    Durability,
    GetMessageStatus,
    Message,
    MessageIllegalError,
    PutMessageStatus,
    StoreNotWritableError,
    open_store,
)
from rmqcore.config import StoreConfig
from rmqcore.files.mapped_file import MappedFile
from rmqcore.files.store_checkpoint import StoreCheckpoint
from rmqcore.services import reput

pytestmark = pytest.mark.engine

SIZES = {
    "mapped_file_size_commit_log": 4096,
    "mapped_file_size_consume_queue": 200,
    "max_hash_slot_num": 16,
    "max_index_num": 64,
}


def fill(path, count=60, **settings):
    """A store of several log files; returns the receipts."""
    with open_store(path, **(SIZES | settings)) as store:
        return [store.put("T", b"body %d" % n * 5, keys=f"K{n}", tags="tag") for n in range(count)]


def bodies(path, **settings):
    with open_store(path, **(SIZES | settings)) as store:
        return [message.body for message in store.messages("T", 0)]


def flip(path, receipt, at=100):
    """Flip one bit of a stored record."""
    start = receipt.phy_offset // 4096 * 4096
    file = path / "commitlog" / f"{start:020d}"
    data = bytearray(file.read_bytes())
    data[receipt.phy_offset - start + at] ^= 0x10
    file.write_bytes(data)


# ---- writing


def test_what_is_put_has_the_crc_that_reads_demand(tmp_path):
    demands = {**SIZES, "force_verify_prop_crc": True}
    with open_store(tmp_path / "store", **demands) as store:
        store.put("T", b"one", properties={"a": "b"})
        store.put_messages([Message("T", b"two"), Message("T", b"three")])
        store.put_columns(pa.table({"topic": ["T"], "body": ["four"]}))
        assert len(store.get_message("T", 0, 0)) == 4
    # a writer that did not end in order lets all of it be compared
    (tmp_path / "store" / "abort").touch()
    found = bodies(tmp_path / "store", force_verify_prop_crc=True, on_corruption="truncate")
    assert found == [b"one", b"two", b"three", b"four"]


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_a_failed_flush_is_final(tmp_path, monkeypatch, flush):
    store = open_store(tmp_path / "s", flush_disk_type=flush, **SIZES)
    store.put("T", b"safe")

    def refuse(self):
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(self.path))

    monkeypatch.setattr(MappedFile, "flush", refuse)
    if flush == "SYNC_FLUSH":
        receipt = store.put_message(message_of(b"lost"))
        assert receipt.status is PutMessageStatus.UNKNOWN_ERROR
        assert receipt.durability is not Durability.DISK
    else:
        store.put("T", b"lost")
        with pytest.raises(OSError, match="Input/output"):
            store.flush()
    monkeypatch.undo()
    assert "Input/output" in store.why_not_writable()
    with pytest.raises(StoreNotWritableError):
        store.put("T", b"refused")
    with pytest.raises(OSError, match="Input/output"):
        store.close()
    assert (tmp_path / "s" / "abort").exists()
    assert bodies(tmp_path / "s")[0] == b"safe"


def message_of(body):
    from rmqcore import Message

    return Message("T", body)


def test_sync_flush_does_not_spin(tmp_path):
    with open_store(tmp_path / "s", flush_disk_type="SYNC_FLUSH", **SIZES) as store:
        dispatcher, group_commit = (
            store.parts.log_services.reput,
            store.parts.log_services.group_commit,
        )
        for service in (dispatcher, group_commit):
            assert store.parts.upkeep.runner.stop(service)
        store.put("T", b"x", durability="page_cache")
        dispatcher.awake()
        # what is not flushed may not be dispatched, and a flush would wake the dispatcher
        assert dispatcher.run(0.0) == reput._IDLE_INTERVAL_S
        assert (dispatcher.behind, store.parts.log_services.flusher.pending) == (
            dispatcher._log.max_offset,
        ) * 2
        assert not dispatcher.woken
        group_commit.awake()
        # a round that flushes, and nothing that would begin another
        assert group_commit.run(0.0) == 3600.0
        assert store.parts.log_services.flusher.pending == 0
        assert not group_commit.woken
        assert dispatcher.woken
        assert store.get_message("T", 0, 0).status is GetMessageStatus.FOUND


@pytest.mark.measure
def test_sync_flush_takes_no_processor_time(tmp_path, figure):
    with open_store(tmp_path / "s", flush_disk_type="SYNC_FLUSH", **SIZES) as store:
        store.put("T", b"x", durability="page_cache")
        began = time.process_time()
        time.sleep(0.5)
        figure("of half a second", time.process_time() - began, "s", at_most=0.1)
        assert store.get_message("T", 0, 0).status is GetMessageStatus.FOUND


# ---- dispatch, reading


def test_an_unknown_queue_is_a_status_and_makes_nothing(tmp_path):
    with open_store(tmp_path / "s", **SIZES) as store:
        result = store.get_message("never", 3, 7)
        assert result.status is GetMessageStatus.NO_MATCHED_LOGIC_QUEUE
        assert (store.min_queue_offset("never", 3), store.max_queue_offset("never", 3)) == (0, 0)
        assert store.queues() == []
        assert list((tmp_path / "s" / "consumequeue").iterdir()) == []


def test_dispatch_stops_at_a_damaged_record(tmp_path):
    with open_store(tmp_path / "s", **SIZES) as store:
        store.parts.upkeep.runner.stop(store.parts.log_services.reput)
        store.put("T", b"good")
        bad = store.put("T", b"bad")
        store.put("T", b"behind")
        view = memoryview(store.log.queue.last.region)
        view[bad.phy_offset + 4 : bad.phy_offset + 8] = bytes(4)
        with pytest.raises(CorruptRecordError) as caught:
            store.get_message("T", 0, 0)
        assert caught.value.phy_offset == bad.phy_offset
        view[bad.phy_offset + 4 : bad.phy_offset + 8] = b"\xda\xa3\x20\xa7"
        view.release()
        with pytest.raises(CorruptRecordError):
            store.max_queue_offset("T", 0)
        store.parts.upkeep.stop()
        store.parts.handle.closed = True
        store.parts.let_go(clean=False)
    assert bodies(tmp_path / "s") == [b"good", b"bad", b"behind"]


def test_a_query_has_pages(tmp_path):
    with open_store(tmp_path / "s", **SIZES) as store:
        put = [store.put("T", b"%d" % n, keys="same").phy_offset for n in range(150)]
        found, page = [], None
        while True:
            result = store.query_message("T", "same", max_messages=40, page=page)
            found = [message.phy_offset for message in result.messages] + found
            page = result.next_page
            if page is None:
                break
        assert found == put


@pytest.mark.parametrize("release", ["4.9.7", "5.5.0"])
def test_an_index_keeps_its_rule(golden_store, release):
    """Messages put into RocketMQ's store are filed by the rule that wrote its index."""
    golden = golden_store(release, "basic")
    with open_store(golden.path, config=golden.conf) as store:
        for number in range(3):
            store.put("TopicA", b"x", tags="OnlyTag", keys=f"New{number}")
        store.max_queue_offset("TopicA", 0)
        hits = store.index.query("TopicA", "T#OnlyTag", 64, 0, 2**62).phy_offsets
    assert len(hits) == (3 if release == "5.5.0" else 0)


def test_offset_0_is_gone_with_its_file(tmp_path):
    fill(tmp_path / "s")
    with open_store(tmp_path / "s", **SIZES) as store:
        store.log.queue.remove_first(1)
        assert store.min_phy_offset == 4096
        assert store.message_at(0) is None


def test_as_many_messages_as_asked_for(tmp_path):
    fill(tmp_path / "s", 60)
    with open_store(tmp_path / "s", **SIZES) as store:
        assert len(store.get_message("T", 0, 0, max_messages=60)) == 60
        assert len(store.get_message("T", 0, 0, max_messages=7)) == 7


def test_times_come_from_records_not_files(tmp_path):
    with open_store(tmp_path / "s", **SIZES) as store:
        for number in range(30):
            store.parts.files.tail.fixed_time_ms = 1_700_000_000_000 + 1000 * number
            store.put("T", b"x" * 200)
    shutil.copytree(tmp_path / "s", tmp_path / "copy", copy_function=shutil.copyfile)
    with open_store(tmp_path / "copy", mode="r") as store:
        assert store.queue_offset_by_time("T", 0, 1_700_000_010_500) == 11
        assert store.queue_offset_by_time("T", 0, 1_700_000_010_500, boundary="upper") == 10


# ---- recovery


def test_damage_is_named_and_changes_nothing(tmp_path):
    receipts = fill(tmp_path / "s")
    damaged = receipts[-3]
    flip(tmp_path / "s", damaged)
    before = {p: p.read_bytes() for p in (tmp_path / "s" / "commitlog").iterdir()}
    with pytest.raises(CorruptRecordError) as caught:
        open_store(tmp_path / "s", **SIZES)
    assert caught.value.phy_offset == damaged.phy_offset
    assert {p: p.read_bytes() for p in (tmp_path / "s" / "commitlog").iterdir()} == before
    with open_store(tmp_path / "s", mode="r") as store:
        assert store.message_at(receipts[-1].phy_offset).body == b"body 59" * 5


@pytest.mark.parametrize(("policy", "left"), [("skip", 60), ("truncate", 57)])
def test_on_corruption_says_what_else_to_do(tmp_path, policy, left):
    receipts = fill(tmp_path / "s")
    flip(tmp_path / "s", receipts[-3])
    with open_store(tmp_path / "s", on_corruption=policy, **SIZES) as store:
        assert store.max_queue_offset("T", 0) == left
        assert store.put("T", b"goes on").queue_offset == left
        if policy == "skip":
            assert store.recovery_report.damaged[0][0] == receipts[-3].phy_offset
            assert store.message_at(receipts[-1].phy_offset).body == b"body 59" * 5


def test_a_torn_tail_is_cut_after_a_crash(tmp_path):
    receipts = fill(tmp_path / "s")
    flip(tmp_path / "s", receipts[-1])
    (tmp_path / "s" / "abort").write_text("1")
    StoreCheckpoint(tmp_path / "s" / "checkpoint").flush()
    # as after a power cut: a kill does not tear
    for mark in (tmp_path / "s" / "config").glob("storeMark.json*"):
        mark.unlink()
    with open_store(tmp_path / "s", **SIZES) as store:
        assert store.max_queue_offset("T", 0) == 59
        assert store.recovery_report.ending == "torn"
        assert store.max_phy_offset == receipts[-1].phy_offset


def test_a_log_that_lost_its_end_is_told_by_the_queues(tmp_path):
    receipts = fill(tmp_path / "s")
    last = receipts[-1].phy_offset // 4096 * 4096
    file = tmp_path / "s" / "commitlog" / f"{last:020d}"
    file.write_bytes(bytes(4096))
    with pytest.raises(CorruptStoreError, match="consume queues know records"):
        open_store(tmp_path / "s", **SIZES)


def test_checkpoint_times_follow_the_flush(tmp_path, monkeypatch):
    with open_store(tmp_path / "s", **SIZES) as store:
        store.parts.upkeep.runner.stop(store.parts.log_services.flush_queues)
        store.put("T", b"x")
        store.max_queue_offset("T", 0)
        seen = []
        flush = store.consume_queues.flush

        def watch():
            seen.append(store.parts.files.checkpoint.logics_msg_timestamp_ms)
            return flush()

        monkeypatch.setattr(store.consume_queues, "flush", watch)
        store.parts.log_services.flush_queues.flush()
        after = StoreCheckpoint(tmp_path / "s" / "checkpoint")
        after.load()
        assert (
            seen[0]
            < after.logics_msg_timestamp_ms
            == store.parts.files.tail.last_store_timestamp_ms
        )


def test_a_file_of_another_length_is_named(tmp_path):
    fill(tmp_path / "s")
    first = tmp_path / "s" / "commitlog" / f"{0:020d}"
    first.write_bytes(first.read_bytes() + b"more")
    with pytest.raises(CorruptStoreError, match=r"4100 bytes, files here have 4096"):
        open_store(tmp_path / "s", **SIZES)


def test_an_empty_last_file_is_removed(tmp_path):
    receipts = fill(tmp_path / "s")
    behind = receipts[-1].phy_offset // 4096 * 4096 + 4096
    (tmp_path / "s" / "commitlog" / f"{behind:020d}").touch()
    (tmp_path / "s" / "abort").write_text("1")
    assert len(bodies(tmp_path / "s")) == 60


@pytest.mark.parametrize("clean", [True, False])
def test_derived_files_are_held_against_the_log_in_both_endings(tmp_path, clean):
    fill(tmp_path / "s")
    shutil.rmtree(tmp_path / "s" / "consumequeue" / "T")
    if not clean:
        (tmp_path / "s" / "abort").write_text("1")
    assert len(bodies(tmp_path / "s")) == 60


# ---- files


@pytest.mark.usefixtures("embedded_as_released")
def test_a_new_store_is_small(tmp_path):
    assert StoreConfig.embedded().mapped_file_size_commit_log == 64 << 20
    assert StoreConfig().mapped_file_size_commit_log == 1 << 30
    with open_store(tmp_path / "s") as store:
        store.put("T", b"x", keys="K")
        store.max_queue_offset("T", 0)
        sizes = {p.stat().st_size for p in (tmp_path / "s" / "index").iterdir()}
        assert sizes == {8_400_040}
        assert (tmp_path / "s" / "commitlog" / f"{0:020d}").stat().st_size == 64 << 20


def test_consume_queues_are_reserved_in_steps(tmp_path):
    for _ in range(2):
        with open_store(tmp_path / "s") as store:
            for number in range(50):
                store.put(f"T{number}", b"x")
        files = list((tmp_path / "s" / "consumequeue").glob("*/0/*"))
        assert len(files) == 50
        assert {file.stat().st_size for file in files} == {6_000_000}
        assert max(file.stat().st_blocks * 512 for file in files) <= 2 * 65536


def test_threads_share_a_flush(tmp_path):
    """Every sync put waits for the disk, and one flush serves many."""
    with open_store(tmp_path / "s", flush_disk_type="SYNC_FLUSH") as store:
        flushes = []
        flush = store.parts.log_services.flusher.flush
        receipts = []

        def first_waits_for_all():
            flushes.append(1)
            if len(flushes) == 1:
                until(lambda: store.parts.files.tail.counts[0] == 16, "each thread has put")
            return flush()

        def work():
            receipts.extend(store.put("T", b"x") for _ in range(20))

        store.parts.log_services.flusher.flush = first_waits_for_all
        threads = [threading.Thread(target=work) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(receipts) == 320
        assert {receipt.durability for receipt in receipts} == {Durability.DISK}
        # the first one served 16
        assert len(flushes) <= len(receipts) - 15


def test_a_delay_level_needs_a_store_that_delivers(tmp_path):
    with open_store(tmp_path / "s", **SIZES) as store, pytest.raises(MessageIllegalError):
        store.put("T", b"x", delay_level=1)
