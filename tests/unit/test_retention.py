"""Retention: which log files go, why, and what the disk has to do with it."""

from __future__ import annotations

import errno
import functools
import os
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from held_time import HeldTime

import rmqcore.world
from rmqcore.config import StoreConfig
from rmqcore.files import mapped_file_queue
from rmqcore.files.mapped_file import OpenFiles
from rmqcore.files.mapped_file_queue import MappedFileQueue
from rmqcore.services.retention import (
    MANUAL_DELETE_ROUNDS,
    CleanCommitLogService,
    CleanConsumeQueueService,
    CommitLogFiles,
    DiskUsage,
    LogFileInfo,
    RetentionService,
    disk_usage,
    local_hour,
)
from rmqcore.services.running_flags import RunningFlag, RunningFlags

pytestmark = pytest.mark.logic

HOUR_MS = 3_600_000
NOW = 1_700_000_000_000
SIZE = 100


class World:
    """A log of files of 100 bytes on a disk of 1000, oldest first, one hour apart."""

    def __init__(self, ages_hours, *, hour=12, used=300, keep_from=None, **settings):
        self.files = [
            LogFileInfo(
                name=f"{index * SIZE:020}",
                file_from_offset=index * SIZE,
                size=SIZE,
                modified_ms=NOW - int(age * HOUR_MS),
            )
            for index, age in enumerate(ages_hours)
        ]
        self.held: set[str] = set()
        self.denied: set[str] = set()
        self.hour = hour
        self.used = used
        self.keep_from = keep_from
        self.asked = 0
        self.slept: list[float] = []
        self.flags = RunningFlags()
        self.service = CleanCommitLogService(
            StoreConfig(**settings),
            self,
            self.flags,
            usage=lambda: DiskUsage(self.used, 1000 - self.used),
            keep_from=self._ask,
            hour=lambda now_ms: self.hour,
            world=rmqcore.world.World(clock_ms=lambda: NOW, sleep=self.slept.append),
        )

    def _ask(self):
        self.asked += 1
        return self.keep_from

    def log_files(self):
        return self.files

    def delete_log_file(self, file):
        assert file == self.files[0]
        assert len(self.files) > 1
        if file.name in self.denied:
            raise PermissionError(13, "denied", file.name)
        if file.name in self.held:
            return False
        self.files = self.files[1:]
        self.used -= file.size
        return True

    def run(self):
        return [int(gone.file.name) // SIZE for gone in self.service.run_once(NOW).deleted]


class TestAge:
    def test_expired_files_go_in_the_hour(self):
        assert World([80, 73, 72, 71.9, 1], hour=4).run() == [0, 1, 2]

    def test_outside_the_hour_they_stay(self):
        assert World([80, 73, 1]).run() == []

    @pytest.mark.parametrize(("hour", "count"), [(4, 1), (16, 1), (5, 0)])
    def test_every_hour_of_delete_when_counts(self, hour, count):
        assert len(World([80, 1], hour=hour, delete_when="04;16").run()) == count

    def test_the_first_young_file_ends_it(self):
        assert World([80, 1, 80, 80, 1], hour=4).run() == [0]

    def test_the_last_file_stays_whatever_its_age(self):
        world = World([99, 98], hour=4)
        assert world.run() == [0]
        assert world.run() == []
        assert len(world.files) == 1

    def test_no_files_are_no_error(self):
        assert World([], hour=4).run() == []

    def test_a_request_counts_for_twenty_rounds(self):
        world = World([80] * 30 + [1], delete_file_batch_max=1)
        world.service.request_deletion()
        deleted = [world.run() for _ in range(MANUAL_DELETE_ROUNDS + 3)]
        assert deleted == [[index] for index in range(20)] + [[]] * 3

    def test_a_round_deletes_a_batch_and_spares_the_disk(self):
        world = World([80] * 15, hour=4, delete_file_batch_max=10)
        assert world.run() == list(range(10))
        assert world.slept == [0.1] * 9
        assert world.run() == list(range(10, 14))


class TestDisk:
    def test_above_the_maximum_expired_files_go_at_any_hour(self):
        assert World([80, 80, 1, 1], used=751).run() == [0, 1]
        assert World([80, 80, 1, 1], used=750).run() == []

    def test_young_files_go_only_as_far_as_needed(self):
        assert World([3, 2, 1, 0.5], used=990).run() == [0, 1]
        assert World([3, 2, 1, 0.5], used=851).run() == [0]
        assert World([3, 2, 1, 0.5], used=850).run() == []

    def test_young_files_stay_when_told_so(self):
        world = World([3, 2, 1], used=990, clean_file_forcibly_enable=False)
        assert world.run() == []
        assert not world.flags.writeable

    def test_ratios_are_clamped_as_in_rocketmq(self):
        assert World([3, 1], used=310, disk_space_clean_forcibly_ratio=5).run() == [0]
        assert World([3, 1], used=300, disk_space_clean_forcibly_ratio=5).run() == []
        world = World([1], used=920, disk_space_warning_level_ratio=100)
        world.run()
        assert RunningFlag.DISK_FULL in world.flags

    def test_puts_are_refused_above_the_warning_and_resume_below(self):
        world = World([1], used=901)
        world.run()
        assert not world.flags.writeable
        assert world.flags.why_not_writable() == (
            "91 % of the disk is in use, more than disk_space_warning_level_ratio=90; "
            "puts resume at 88 %"
        )
        for used, writeable in ((890, False), (881, False), (880, True), (900, True), (901, False)):
            world.used = used
            world.run()
            assert world.flags.writeable is writeable, used

    def test_deleting_lets_puts_resume_in_the_same_round(self):
        world = World([3, 2, 1], used=990)
        world.run()
        assert world.used == 790
        assert world.flags.writeable

    def test_other_flags_are_left_alone(self):
        world = World([1], used=100)
        world.flags.raise_flag(RunningFlag.NOT_WRITEABLE)
        world.run()
        assert not world.flags.writeable

    def test_percents_are_rounded_up(self):
        assert DiskUsage(751, 249).percent == 76
        assert DiskUsage(750, 250).percent == 75
        assert DiskUsage(0, 0).percent == 0
        assert DiskUsage(30, 70).without(10) == DiskUsage(20, 80)

    def test_the_real_disk_answers(self, monkeypatch, tmp_path: Path):
        with monkeypatch.context() as patched:
            # others write to it meanwhile
            patched.setattr(os, "statvfs", functools.cache(os.statvfs))
            usage, shown = disk_usage(tmp_path), shutil.disk_usage(tmp_path)
        assert (usage.used, usage.usable) == (shown.used, shown.free)
        assert 0 <= usage.percent <= 100
        with pytest.raises(FileNotFoundError):
            disk_usage(tmp_path / "none")
        assert 0 <= local_hour(NOW) <= 23


class TestQuota:
    def test_the_oldest_go_until_the_rest_fits(self):
        assert World([5, 4, 3, 2, 1], retention_bytes=250).run() == [0, 1, 2]
        assert World([5, 4, 3, 2, 1], retention_bytes=500).run() == []

    def test_the_last_file_stays_above_any_quota(self):
        world = World([5, 4, 3], retention_bytes=1)
        world.run()
        assert len(world.files) == 1


class TestProtection:
    def test_what_is_still_to_be_read_is_asked_once_where_something_would_go(self):
        for world in (World([80] * 3, keep_from=0), World([3, 2, 1], keep_from=0, used=860)):
            world.run()
            assert world.asked == 0
        world = World([80] * 5, hour=4, keep_from=250)
        assert world.run() == [0, 1]
        assert world.asked == 1

    def test_what_is_still_to_be_read_stays(self):
        assert World([80] * 5, hour=4, keep_from=250).run() == [0, 1]
        assert World([80] * 5, hour=4, keep_from=200).run() == [0, 1]
        assert World([80] * 5, hour=4, keep_from=199, retention_bytes=1).run() == [0]

    def test_a_nearly_full_disk_takes_it_unless_told_otherwise(self):
        assert World([3, 2, 1], keep_from=0, used=860).run() == [0]
        assert World([3, 2, 1], keep_from=0, used=860, clean_file_forcibly_enable=False).run() == []


class TestObstacles:
    def test_a_held_file_ends_the_round_and_is_tried_again(self):
        world = World([80, 80, 1], hour=4)
        world.held.add(world.files[1].name)
        report = world.service.run_once(NOW)
        assert [gone.file.file_from_offset for gone in report.deleted] == [0]
        assert report.failed is not None
        assert report.failed.file.file_from_offset == 100
        assert report.error is None
        world.held.clear()
        assert world.run() == [1]

    def test_a_file_begun_to_be_deleted_goes_at_any_hour(self):
        world = World([1, 1], keep_from=0)
        first = world.files[0]
        world.files[0] = LogFileInfo(
            name=first.name, file_from_offset=0, size=SIZE, modified_ms=NOW, available=False
        )
        assert world.run() == [0]

    def test_a_refusal_of_the_system_is_reported(self):
        world = World([80, 80, 1], hour=4)
        world.denied.add(world.files[0].name)
        report = world.service.run_once(NOW)
        assert isinstance(report.error, PermissionError)
        assert report.deleted == ()


class TestQuestions:
    def test_a_plan_touches_nothing(self):
        world = World([80, 73, 1], hour=4, used=990)
        plan = world.service.plan()
        assert [int(planned.file.name) for planned in plan] == [0, 100]
        assert len(world.files) == 3
        assert world.flags.writeable

    def test_a_plan_is_not_cut_at_the_batch(self):
        assert len(World([80] * 15, hour=4).service.plan()) == 14

    def test_a_plan_for_another_time(self):
        world = World([80, 1])
        world.hour = 4
        assert len(world.service.plan(NOW + HOUR_MS)) == 1
        assert len(world.service.plan(NOW - 9 * HOUR_MS)) == 0

    @pytest.mark.parametrize(
        ("settings", "sentence"),
        [
            ({"hour": 4}, "it was last written 80.0 hours ago, at least "
             "file_reserved_time_hours=72, and delete_when=04 is now"),
            ({"used": 760}, "disk_max_used_space_ratio=75"),
            ({"used": 900}, "90 % of the disk is in use, more than disk_space_clean_forcibly"),
            ({"retention_bytes": 150}, "the log has 200 bytes, more than retention_bytes=150"),
            ({}, "it goes at 04 o'clock"),
        ],
    )  # fmt: skip
    def test_each_reason_has_its_sentence(self, settings, sentence):
        world = World([80, 1], **settings)
        for file in (
            world.files[0],
            world.files[0].name,
            Path("/s/commitlog") / world.files[0].name,
        ):
            assert sentence in str(world.service.why_will_be_deleted(file))

    def test_files_that_are_not_due_have_none(self):
        world = World([80, 1, 1])
        assert world.service.why_will_be_deleted(world.files[1]) is None
        assert world.service.why_will_be_deleted(world.files[2]) is None
        assert world.service.why_will_be_deleted("checkpoint") is None
        assert World([1, 80, 1]).service.why_will_be_deleted(f"{100:020}") is None
        assert World([80, 1], keep_from=99).service.why_will_be_deleted(f"{0:020}") is None
        assert World([80, 1], keep_from=100).service.why_will_be_deleted(f"{0:020}")


class TestDerivedFiles:
    class Derived:
        def __init__(self, count):
            self.count = count
            self.calls = []
            self.fail = False

        def delete_before(self, min_phy_offset):
            if self.fail:
                raise OSError("busy")
            self.calls.append(min_phy_offset)
            return self.count

    def test_they_follow_the_log(self):
        queues, index, offsets = self.Derived(2), self.Derived(1), [0]
        service = CleanConsumeQueueService(lambda: offsets[-1], queues, index)
        assert service.run_once() == 0
        offsets.append(200)
        assert service.run_once() == 3
        assert service.run_once() == 0
        offsets.append(300)
        assert service.run_once() == 3
        assert queues.calls == index.calls == [200, 300]

    def test_a_failed_round_is_repeated(self):
        queues, index = self.Derived(2), self.Derived(1)
        index.fail = True
        service = CleanConsumeQueueService(lambda: 200, queues, index)
        with pytest.raises(OSError, match="busy"):
            service.run_once()
        index.fail = False
        assert service.run_once() == 3


class TestLogFiles:
    @pytest.fixture
    def queue(self, tmp_path: Path):
        queue = MappedFileQueue(tmp_path / "commitlog", 4096, OpenFiles())
        for number in range(3):
            file = queue.append_file(number * 4096)
            file.write(0, bytes([number + 1]) * 4096)
            os.utime(file.path, (0, NOW / 1000 - (3 - number) * 3600))
        yield queue
        queue.close()

    def test_files_are_described(self, queue):
        assert CommitLogFiles(queue, lambda: 3 * 4096).log_files() == [
            LogFileInfo(
                name=f"{number * 4096:020}",
                file_from_offset=number * 4096,
                size=4096,
                modified_ms=NOW - (3 - number) * HOUR_MS,
            )
            for number in range(3)
        ]

    def test_the_oldest_is_deleted_and_stays_readable_for_its_readers(self, queue):
        log = CommitLogFiles(queue, lambda: 3 * 4096)
        oldest, second, _ = log.log_files()
        path, reader = queue.files[0].path, queue.files[0].read(0, 4096)
        assert not log.delete_log_file(second)
        assert log.delete_log_file(oldest)
        assert not path.exists()
        assert bytes(reader) == b"\x01" * 4096
        assert queue.min_offset == 4096

    def test_who_found_a_file_before_its_deletion_reads_on_and_then_it_is_gone(self, tmp_path):
        queue = MappedFileQueue(tmp_path, 4096, OpenFiles(descriptors_max=1, mappings_max=1))
        for number in range(4):
            queue.append_file(number * 4096).write(0, bytes([number + 1]) * 4096)
        found = queue.files[0]
        queue.remove_first(1)
        assert not found.path.exists()
        for file in queue.files:
            file.read_bytes(0, 1)
        assert found.read_bytes(0, 2) == b"\x01\x01"
        assert bytes(found.read(4095, 1)) == b"\x01"
        found.sync()
        descriptor = found.handle.fd
        assert str(found.path) in str(Path(f"/proc/self/fd/{descriptor}").readlink())
        del found
        assert not any(
            str(tmp_path / f"{0:020}") in str(link.readlink())
            for link in Path("/proc/self/fd").iterdir()
            if link.is_symlink()
        )
        queue.close()

    def test_what_the_store_has_still_to_read_is_not_deleted(self, queue):
        for needed_from, deleted in ((0, False), (4095, False), (4096, True)):
            log = CommitLogFiles(queue, lambda needed_from=needed_from: needed_from)
            assert log.delete_log_file(log.log_files()[0]) is deleted

    def test_a_file_that_cannot_be_removed_stays_in_the_log(self, queue, monkeypatch):
        log = CommitLogFiles(queue, lambda: 3 * 4096)
        denied = queue.files[0].path

        def unlink(path, missing_ok=False):
            raise PermissionError(13, "denied", str(path))

        monkeypatch.setattr(Path, "unlink", unlink)
        with pytest.raises(PermissionError):
            log.delete_log_file(log.log_files()[0])
        monkeypatch.undo()
        assert queue.files[0].path == denied
        assert bytes(queue.files[0].read(0, 1)) == b"\x01"
        assert log.delete_log_file(log.log_files()[0])
        assert queue.min_offset == 4096

    @pytest.mark.engine
    def test_a_file_that_is_appended_meanwhile_is_not_lost(self, tmp_path):
        queue = MappedFileQueue(tmp_path, 4096, OpenFiles())
        queue.append_file(0)
        done = threading.Event()

        def delete() -> None:
            while not done.is_set():
                queue.remove_first(1)

        cleaner = threading.Thread(target=delete)
        cleaner.start()
        for number in range(1, 300):
            queue.append_file(number * 4096)
            assert queue.last.file_from_offset == number * 4096
            assert queue.find(number * 4096) is queue.last
        done.set()
        cleaner.join()
        queue.close()

    def test_by_age_from_end_to_end(self, queue):
        service = CleanCommitLogService(
            StoreConfig(file_reserved_time_hours=2, delete_when="04"),
            CommitLogFiles(queue, lambda: 3 * 4096),
            RunningFlags(),
            usage=lambda: DiskUsage(1, 99),
            hour=lambda now_ms: 4,
            world=rmqcore.world.World(clock_ms=lambda: NOW, sleep=lambda seconds: None),
        )
        assert len(service.run_once(NOW).deleted) == 2
        assert [path.name for path in queue.directory.iterdir()] == [f"{8192:020}"]


class TestThread:
    class Derived:
        def __init__(self):
            self.rounds = 0

        def delete_before(self, min_phy_offset):
            self.rounds += 1
            raise OSError(errno.EBUSY, "busy")

    def test_a_full_batch_is_followed_by_the_next_at_once(self):
        world, held, errors = World([80] * 35 + [1], hour=4), HeldTime(), []
        service = RetentionService(
            world.service, CleanConsumeQueueService(lambda: 0), clock=lambda: NOW, interval_s=3600
        )
        held.services.start(service, errors.append)
        held.services.until_idle()
        assert len(world.files) == 1
        assert errors == []
        assert held.services.due_in_s == 3600

    def test_a_refusal_of_the_system_does_not_end_it(self):
        world, derived, held, errors = World([80, 1], hour=4), self.Derived(), HeldTime(), []
        service = RetentionService(
            world.service,
            CleanConsumeQueueService(lambda: 100, derived),
            clock=lambda: NOW,
            interval_s=10,
        )
        held.services.start(service, errors.append)
        held.services.advance(10)
        assert derived.rounds == 11
        assert errors == []
        assert len(world.files) == 1

    def test_what_cannot_be_deleted_keeps_nothing_else(self):
        """A queue whose file could not be removed kept those of all later ones, and the index's."""
        world, held, errors = World([80, 1], hour=4), HeldTime(), []
        refusing, gone = self.Derived(), []
        taking = SimpleNamespace(delete_before=lambda offset: gone.append(offset) or 1)

        def usage():
            raise OSError(errno.EIO, "nobody knows how full the disk is")

        world.service._usage = usage
        service = RetentionService(
            world.service,
            CleanConsumeQueueService(lambda: 100, refusing, taking),
            clock=lambda: NOW,
            interval_s=10,
        )
        held.services.start(service, errors.append)
        held.services.until_idle()
        assert (refusing.rounds, gone, errors) == (1, [100], [])


def test_no_power_cut_takes_a_file_behind_one_that_stays(tmp_path, monkeypatch):
    queue, seen = MappedFileQueue(tmp_path, 4096, OpenFiles()), []
    for number in range(5):
        queue.append_file(number * 4096)

    def synced(directory):
        seen.append(len(list(directory.iterdir())))

    monkeypatch.setattr(mapped_file_queue, "sync_directory", synced)
    queue.remove_first(3)
    assert seen == [4, 3, 2]
