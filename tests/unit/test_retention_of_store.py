"""Retention of a whole store: log, consume queues and index go together, and nothing else goes."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from held_time import HeldTime
from patience import rounds, until

import rmqcore
from rmqcore.errors import DiskFullError, StoreNotWritableError
from rmqcore.files.mapped_file import MappedFile
from rmqcore.services.retention import DiskUsage
from rmqcore.services.running_flags import RunningFlag
from rmqcore.status import GetMessageStatus, PutMessageStatus
from rmqcore.store.message_store import DefaultMessageStore
from rmqcore.store.parts import upkeep
from rmqcore.world import World

pytestmark = pytest.mark.engine

FILE_SIZE = 65_536
SMALL = {
    "mapped_file_size_commit_log": FILE_SIZE,
    "mapped_file_size_consume_queue": 2000,
    "max_hash_slot_num": 100,
    "max_index_num": 400,
    "allocate_ahead": 0,
    "warm_mapped_file_enable": False,
    "delete_commit_log_files_interval_ms": 0,
}
#: Long enough that only the test itself runs a round, when the service has had its first.
NEVER_MS = 3_600_000


def fill(store, count: int = 2000) -> None:
    for number in range(count):
        store.put("TopicA", b"x" * 300, keys=f"k{number}")


@contextmanager
def by_hand(path, **settings):
    """A store whose retention has had its first round, and has the next when the test says so."""
    with rmqcore.open_store(
        path, **SMALL, **settings, clean_resource_interval_ms=NEVER_MS
    ) as store:
        rounds(store.parts.upkeep.retention)
        yield store


def log_files(path: Path) -> list[Path]:
    return sorted(file for file in (path / "commitlog").iterdir())


@pytest.fixture
def disk(monkeypatch):
    usage = {"now": DiskUsage(1, 99)}
    monkeypatch.setattr(upkeep, "disk_usage", lambda path: usage["now"])
    return usage


def test_without_a_configuration_nothing_goes(tmp_path, disk):
    disk["now"] = DiskUsage(99, 1)
    with rmqcore.open_store(tmp_path, **SMALL, clean_resource_interval_ms=1) as store:
        fill(store)
        files = log_files(tmp_path)
        for file in files:
            os.utime(file, (0, 0))
        for service in store.parts.upkeep.services:
            rounds(service, 2)
        assert log_files(tmp_path) == files
        assert store.why_will_be_deleted(files[0]) is None
        with pytest.raises(rmqcore.ConfigError, match="retention"):
            store.delete_expired_files()
        assert log_files(tmp_path) == files
        assert store.why_not_writable() is None


def test_a_quota_holds_while_messages_come(tmp_path, disk):
    settings = SMALL | {"retention_bytes": 4 * FILE_SIZE, "clean_resource_interval_ms": 1}
    with rmqcore.open_store(tmp_path, **settings) as store:
        fill(store, 5000)
        until(lambda: len(log_files(tmp_path)) <= 4, "the oldest files go")
        assert store.max_queue_offset("TopicA", 0) == 5000
        store.delete_expired_files()
        first = store.min_queue_offset("TopicA", 0)
        assert first > 3000
        found = store.get_message("TopicA", 0, first, max_messages=5000)
        assert [message.queue_offset for message in found.messages] == list(range(first, 5000))
        assert found.messages[0].phy_offset >= store.min_phy_offset
        assert store.get_message("TopicA", 0, 0).status == GetMessageStatus.OFFSET_TOO_SMALL
        assert store.query_message("TopicA", "k0").messages == []
        assert len(store.query_message("TopicA", "k4999").messages) == 1
        assert store.why_not_writable() is None
    queue_files = list((tmp_path / "consumequeue" / "TopicA" / "0").iterdir())
    assert len(queue_files) <= (5000 - first) // 100 + 2
    with rmqcore.open_store(tmp_path) as store:
        assert store.min_queue_offset("TopicA", 0) == first
        assert store.max_queue_offset("TopicA", 0) == 5000


def test_by_age_and_why(tmp_path, disk):
    with by_hand(tmp_path, file_reserved_time_hours=2) as store:
        fill(store)
        files = log_files(tmp_path)
        for file in files[:3]:
            os.utime(file, (0, time.time() - 3 * 3600))
        for file in files[:3]:
            for name in (file, file.name):
                assert "file_reserved_time_hours=2" in store.why_will_be_deleted(name)
        assert store.why_will_be_deleted(files[3]) is None
        assert store.why_will_be_deleted(files[-1]) is None
        store.delete_expired_files()
        assert log_files(tmp_path) == files[3:]
        assert store.min_phy_offset == 3 * FILE_SIZE
        assert store.message_at(0) is None


def test_a_clock_that_was_put_forward_makes_no_file_old_before_it_has_lasted(tmp_path, disk):
    held, hour_s, ahead_ms = HeldTime(), 3600, 0

    def delete():
        store.delete_expired_files()
        return len(log_files(tmp_path))

    world = World(lambda: held.clock_ms() + ahead_ms, held.monotonic_s, held.sleep)
    config = rmqcore.StoreConfig(**SMALL, file_reserved_time_hours=2, delete_file_batch_max=99)
    with DefaultMessageStore(tmp_path, config, world=world, runner=held.services) as store:
        fill(store)
        files = log_files(tmp_path)
        for file in files:
            os.utime(file, (0, held.clock_ms() / 1000))
        ahead_ms = 10 * 365 * 24 * hour_s * 1000
        assert delete() == len(files)
        assert store.why_will_be_deleted(files[0]) is None
        held.now_s += hour_s
        assert delete() == len(files)
        # put right, and wrong once more
        ahead_ms = 0
        assert delete() == len(files)
        ahead_ms = 24 * hour_s * 1000
        assert delete() == len(files)
        held.now_s += 0.9 * hour_s
        assert delete() == len(files)
        # old by the time that has passed, whatever the clock says
        held.now_s += 0.1 * hour_s
        assert delete() == 1


def test_a_clock_that_stays_as_it_was_put_is_believed(tmp_path, disk):
    held, ahead_ms = HeldTime(), 0
    world = World(lambda: held.clock_ms() + ahead_ms, held.monotonic_s, held.sleep)
    config = rmqcore.StoreConfig(**SMALL, file_reserved_time_hours=2, delete_file_batch_max=99)
    with DefaultMessageStore(tmp_path, config, world=world, runner=held.services) as store:
        fill(store)
        ahead_ms = 24 * 3_600_000
        for file in log_files(tmp_path):
            os.utime(file, (0, world.clock_ms() / 1000))
        store.delete_expired_files()
        held.now_s += 2 * 3600
        store.delete_expired_files()
        assert len(log_files(tmp_path)) == 1


def test_a_clock_that_is_put_right_behind_its_files_is_believed(tmp_path, disk):
    """As at a machine that has none of its own: it begins with 1970, and asks the network later."""
    held, behind_ms = HeldTime(), 0
    world = World(lambda: held.clock_ms() - behind_ms, held.monotonic_s, held.sleep)
    config = rmqcore.StoreConfig(**SMALL, file_reserved_time_hours=2, delete_file_batch_max=99)
    settings = {"world": world, "runner": held.services}
    with DefaultMessageStore(tmp_path, config, **settings) as store:
        fill(store)
    files = log_files(tmp_path)
    for file in files:
        os.utime(file, (0, held.clock_ms() / 1000))
    held.now_s += 7200
    os.utime(files[-1], (0, held.clock_ms() / 1000))
    behind_ms = held.clock_ms()
    with DefaultMessageStore(tmp_path, config, **settings) as store:
        store.delete_expired_files()
        assert len(log_files(tmp_path)) == len(files)
        behind_ms = 0
        store.delete_expired_files()
        assert len(log_files(tmp_path)) == 1


def test_time_in_which_the_machine_was_suspended_counts(tmp_path, disk):
    held, asleep_s = HeldTime(), 0
    world = World(
        lambda: held.clock_ms() + 1000 * asleep_s,
        held.monotonic_s,
        held.sleep,
        asleep_s=lambda: asleep_s,
    )
    config = rmqcore.StoreConfig(**SMALL, file_reserved_time_hours=2, delete_file_batch_max=99)
    with DefaultMessageStore(tmp_path, config, world=world, runner=held.services) as store:
        fill(store)
        for file in log_files(tmp_path):
            os.utime(file, (0, held.clock_ms() / 1000))
        asleep_s = 7200
        store.delete_expired_files()
        assert len(log_files(tmp_path)) == 1


def test_a_message_that_is_being_read_survives_its_file(tmp_path, disk):
    with by_hand(tmp_path, retention_bytes=FILE_SIZE) as store:
        fill(store)
        message = store.message_at(0)
        store.delete_expired_files()
        assert not (tmp_path / "commitlog" / f"{0:020}").exists()
        assert message.body == b"x" * 300
        assert message.check_crc()


def test_a_nearly_full_disk_refuses_puts_and_lets_them_resume(tmp_path, disk):
    settings = SMALL | {"disk_max_used_space_ratio": 75, "clean_resource_interval_ms": 1}
    with rmqcore.open_store(tmp_path, **settings) as store:
        store.put("TopicA", b"a")
        disk["now"] = DiskUsage(95, 5)
        until(lambda: store.why_not_writable() is not None, "puts are refused")
        assert "95 % of the disk is in use" in store.why_not_writable()
        with pytest.raises(StoreNotWritableError, match="95 % of the disk") as caught:
            store.put("TopicA", b"b")
        assert isinstance(caught.value, DiskFullError)
        store.flags.raise_flag(RunningFlag.NOT_WRITEABLE)
        with pytest.raises(StoreNotWritableError) as caught:
            store.put("TopicA", b"b")
        assert not isinstance(caught.value, DiskFullError)
        store.flags.clear_flag(RunningFlag.NOT_WRITEABLE)
        receipt = store.put_message(rmqcore.Message("TopicA", b"b"))
        assert receipt.status == PutMessageStatus.SERVICE_NOT_AVAILABLE
        assert store.get_message("TopicA", 0, 0).messages[0].body == b"a"
        disk["now"] = DiskUsage(50, 50)
        until(lambda: store.why_not_writable() is None, "puts resume")
        store.put("TopicA", b"c")
        assert store.max_queue_offset("TopicA", 0) == 2


def test_parked_messages_are_not_deleted_by_quota(tmp_path, disk):
    with by_hand(tmp_path, retention_bytes=FILE_SIZE, deliver_delayed=True) as store:
        store.put("TopicB", b"later", delay_level=18)
        fill(store)
        store.delete_expired_files()
        assert store.min_phy_offset == 0
        assert store.message_at(0).body == b"later"


@pytest.mark.parametrize("at", [0, 2])
@pytest.mark.parametrize("removed", [False, True])
def test_an_interrupted_deletion_leaves_no_gap(tmp_path, disk, monkeypatch, at, removed):
    calls, destroy = [], MappedFile.destroy

    def interrupted(file):
        calls.append(file)
        if len(calls) != at + 1:
            return destroy(file)
        if removed:
            destroy(file)
        raise KeyboardInterrupt

    settings = {"retention_bytes": 3 * FILE_SIZE, "delete_file_batch_max": 100}
    with by_hand(tmp_path, **settings) as store:
        fill(store)
        monkeypatch.setattr(MappedFile, "destroy", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.delete_expired_files()
        assert log_files(tmp_path) == [file.path for file in store.log.queue.files]
        fill(store)
        store.delete_expired_files()
        assert log_files(tmp_path) == [file.path for file in store.log.queue.files]
        first = store.min_phy_offset
        assert next(store.messages()).phy_offset == first
    with rmqcore.open_store(tmp_path) as store:
        assert store.recovery_report.findings == []
        assert store.min_phy_offset == first
