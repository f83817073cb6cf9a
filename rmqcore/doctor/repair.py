"""Repairs a store step by step, with a journal by which `undo` takes all of it back."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rmqcore.config import StoreConfig, load_config
from rmqcore.doctor.batch_numbers import FLAG_AT, FLAG_SIZE, NUMBER_AT, NUMBER_SIZE
from rmqcore.doctor.covering_records import CoveringRecords
from rmqcore.doctor.findings import Severity
from rmqcore.doctor.journal import Journal, put_back_lock
from rmqcore.doctor.kept_files import copy_bytes, give_to
from rmqcore.doctor.offset_tables import set_back
from rmqcore.doctor.plan import (
    DoctorProgress,
    Planner,
    RepairPlan,
    stamp_of,
)
from rmqcore.doctor.small_files import other_generation
from rmqcore.doctor.step import Step, StepKind
from rmqcore.doctor.verify import verify
from rmqcore.errors import CorruptStoreError, StoreError
from rmqcore.files.consumer_offset_table import ConsumerOffsetTable
from rmqcore.files.readers_of_lost import READERS_OF_LOST_NAME, begin_groups_anew
from rmqcore.files.store_checkpoint import StoreCheckpoint
from rmqcore.files.store_dir import StoreDir, make_directory, room_at
from rmqcore.rebuild.consume_queues import derive_consume_queues
from rmqcore.rebuild.index_files import derive_index, open_index
from rmqcore.scan.plan import LogPlan
from rmqcore.scan.runner import Runner
from rmqcore.scan.unit_files import UnitFiles
from rmqcore.world import wall_clock_ms


@dataclass(slots=True)
class RepairReport:
    """What a repair did.

    Attributes:
        plan: what was planned, and done.
        resumed: it went on with a repair that was interrupted.
        journal: directory of what was there before; None when nothing was to be done.
        left: findings of the verification afterwards that are not notes.
    """

    plan: RepairPlan
    resumed: bool = False
    journal: Path | None = None
    left: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """True when the store is in order now."""
        return not self.left

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values, for JSON."""
        return {
            "plan": self.plan.to_dict(),
            "resumed": self.resumed,
            "journal": None if self.journal is None else str(self.journal),
            "left": self.left,
            "clean": self.clean,
        }


def repair(
    store_path: str | os.PathLike[str],
    *,
    config: StoreConfig | str | Path | None = None,
    plan: RepairPlan | None = None,
    jobs: int | Runner = 1,
    progress: DoctorProgress | None = None,
) -> RepairReport:
    """Repair a store that no process has open; what was there before is kept for `undo`.

    A repair that was interrupted is gone on with, whatever ``plan`` is.

    Args:
        store_path: the store's directory; its lock is taken.
        config: settings of the store, as for `open_store`.
        plan: from `plan`, of the store as it is; None makes one.
        jobs: processes, or what else runs a function over splits.
        progress: called with (phase, done, total).

    Returns:
        a report; ``clean`` when a verification finds nothing but notes afterwards.

    Raises:
        StoreLockedError: the store is open for writing.
        StoreError: the store has changed since the plan was made, or since the repair was
            interrupted; or an undo was interrupted.
        DiskFullError: no room. Run it again when there is, or `undo`.
    """
    loaded = load_config(config)
    directory = StoreDir(store_path, loaded.store_path_commit_log)
    directory.require()
    lock_before = directory.lock_file.read_bytes() if directory.lock_file.exists() else None
    directory.lock()
    try:
        if lock_before is None:
            give_to(directory.path, directory.lock_file)
        with room_at(directory.path):
            report = _repair(directory, loaded, plan, lock_before, jobs, progress)
    finally:
        directory.unlock()
        if Journal.latest(directory) is None:
            put_back_lock(directory, lock_before)
    after = verify(directory.path, config=loaded, jobs=jobs, progress=progress)
    report.left = report.plan.left + [
        str(finding) for finding in after.findings if finding.severity is not Severity.NOTE
    ]
    return report


def _repair(
    directory: StoreDir,
    config: StoreConfig,
    plan: RepairPlan | None,
    lock_before: bytes | None,
    jobs: int | Runner,
    progress: DoctorProgress | None,
) -> RepairReport:
    journal = Journal.latest(directory)
    if journal is not None and journal.undoing:
        raise StoreError("an undo was interrupted: go on with it, by rmqcore doctor undo STORE")
    resumed = journal is not None and not journal.finished
    if journal is None or not resumed:
        plan = plan or Planner(directory, config, live=False).run(jobs, progress)
        if plan.stamp != stamp_of(directory):
            raise StoreError("the store is not as it was when the plan was made; make another one")
        plan.check_places(directory)
        if not plan.steps:
            return RepairReport(plan)
        journal = Journal.begin(directory, plan.to_dict(), lock_before)
    else:
        journal.refuse_changed()
    plan = RepairPlan.from_dict(journal.plan)
    _Repair(directory, config, plan, journal, jobs, progress).run()
    return RepairReport(plan, resumed, journal.root)


class _Repair:
    """One repair, from where it was."""

    def __init__(
        self,
        directory: StoreDir,
        config: StoreConfig,
        plan: RepairPlan,
        journal: Journal,
        jobs: int | Runner,
        progress: DoctorProgress | None,
    ) -> None:
        self._directory = directory
        self._config = config.with_settings(dict(plan.sizes))
        self._plan = plan
        self._journal = journal
        self._jobs = jobs
        self._progress = progress
        self._file_size = self._config.mapped_file_size_commit_log

    def run(self) -> None:
        work: dict[StepKind, Callable[[Step], None]] = {
            StepKind.RESTORE_CONFIG: self._restore_config,
            StepKind.DROP_CONFIG: self._set_aside,
            StepKind.COVER: self._cover,
            StepKind.RENUMBER: partial(self._write_field, NUMBER_AT, NUMBER_SIZE),
            StepKind.RESET_FLAG: partial(self._write_field, FLAG_AT, FLAG_SIZE),
            StepKind.RESIZE: self._resize,
            StepKind.CUT_TAIL: self._cut_tail,
            StepKind.REMOVE_FILE: self._set_aside,
            StepKind.REBUILD_QUEUES: self._rebuild_queues,
            StepKind.REBUILD_INDEX: self._rebuild_index,
            StepKind.SET_OFFSETS: self._set_offsets,
            StepKind.CHECKPOINT: self._write_checkpoint,
            StepKind.CLEAR_ABORT: self._set_aside,
        }
        steps = self._plan.steps
        for number, step in enumerate(steps):
            if not self._journal.step_is_done(number):
                self._journal.go_to(number)
                work[step.kind](step)
                self._journal.note_step(number)
            if self._progress is not None:
                self._progress("repair", number + 1, len(steps))
        self._journal.finish()

    def _path(self, step: Step) -> Path:
        return self._directory.path / step.path

    def _set_aside(self, step: Step) -> None:
        self._journal.set_aside(self._path(step))

    # ---- the log

    def _cover(self, step: Step) -> None:
        file_start = int(step.path.name)
        lost = [one for one in self._plan.lost if step.start <= one.phy_offset < step.stop]
        config = self._config
        cover = CoveringRecords(
            step.start,
            step.stop,
            file_start=file_start,
            file_end=file_start + self._file_size,
            timestamp_ms=step.timestamp_ms,
            lost=lost,
            append_crc=config.appends_prop_crc,
        )
        pieces = ((at - file_start, data) for at, data in cover.pieces())
        start, stop = step.start - file_start, step.stop - file_start
        path = self._path(step)
        size = path.stat().st_size if path.exists() else 0
        self._journal.patch(path, start, stop, max(size, self._file_size), pieces)

    def _write_field(self, field_at: int, size: int, step: Step) -> None:
        path = self._path(step)
        at = step.start - int(step.path.name) + field_at
        pieces = [(at, step.number.to_bytes(size, "big"))]
        self._journal.patch(path, at, at + size, path.stat().st_size, pieces)

    def _resize(self, step: Step) -> None:
        path = self._path(step)
        if step.stop - step.start > 2 * self._file_size:
            # what lies behind its end is moved, not copied
            self._journal.place(self._journal.prepare(partial(self._copy_front, path)), path)
            return
        size = min(self._file_size, path.stat().st_size)
        self._journal.patch(path, size, self._file_size, self._file_size, ())

    def _copy_front(self, path: Path, fresh: Path) -> None:
        copy_bytes(path, 0, self._file_size, fresh)
        time_ns = path.stat().st_mtime_ns
        os.utime(fresh, ns=(time_ns, time_ns))

    def _cut_tail(self, step: Step) -> None:
        start = step.start - int(step.path.name)
        self._journal.patch(self._path(step), start, self._file_size, self._file_size, ())

    # ---- what is derived

    def _log(self) -> LogPlan:
        return LogPlan(self._directory, self._config)

    def _rebuild_queues(self, step: Step) -> None:
        directory = self._directory

        def make(fresh: Path) -> None:
            make_directory(fresh / "consumequeue")
            make_directory(fresh / "batchconsumequeue")
            report = derive_consume_queues(
                self._log(),
                fresh / "consumequeue",
                fresh / "batchconsumequeue",
                self._jobs,
                progress=self._report_progress("queues"),
            )
            if report.begun_anew:
                self._begin_groups_anew(report.begun_anew, fresh / "config")

        both = self._journal.prepare(make)
        anew = both / "config"
        for table in sorted(anew.iterdir()) if anew.is_dir() else ():
            # copies: what is done is counted when an interrupted repair goes on
            copied = self._journal.prepare(partial(_copy, table))
            self._journal.place(copied, directory.config / table.name)
        self._journal.place(both / "consumequeue", directory.consume_queue)
        batches = both / "batchconsumequeue"
        if directory.batch_consume_queue.is_dir() or (batches.is_dir() and any(batches.iterdir())):
            self._journal.place(batches, directory.batch_consume_queue)

    def _begin_groups_anew(self, queues: list[tuple[str, int]], fresh: Path) -> None:
        """Make the tables by which groups begin with queues whose topics were made again."""
        make_directory(fresh)
        for name in (READERS_OF_LOST_NAME, ConsumerOffsetTable.file_name):
            for table in self._directory.config.glob(f"{name}*"):
                if table.name in (name, f"{name}.bak"):
                    _copy(table, fresh / table.name)
        begin_groups_anew(fresh, queues, wall_clock_ms)

    def _rebuild_index(self, step: Step) -> None:
        def make(fresh: Path) -> None:
            make_directory(fresh)
            derive_index(self._log(), fresh, self._jobs, progress=self._report_progress("index"))

        self._journal.place(self._journal.prepare(make), self._directory.index)

    def _report_progress(self, phase: str) -> Callable[[int, int], None] | None:
        return None if self._progress is None else partial(self._progress, phase)

    # ---- the small files

    def _restore_config(self, step: Step) -> None:
        path = self._path(step)
        other = other_generation(path)
        self._journal.place(self._journal.prepare(lambda fresh: _copy(other, fresh)), path)

    def _set_offsets(self, step: Step) -> None:
        path = self._path(step)

        def make(fresh: Path) -> None:
            files = UnitFiles(self._directory, self._config.mapped_file_size_consume_queue)
            try:
                data = set_back(path, files.queue_end)
            finally:
                files.close()
            fresh.write_bytes(path.read_bytes() if data is None else data)

        self._journal.place(self._journal.prepare(make), self._path(step))

    def _write_checkpoint(self, step: Step) -> None:
        def make(fresh: Path) -> None:
            old, new = StoreCheckpoint(self._directory.checkpoint), StoreCheckpoint(fresh)
            try:
                old.load()
            except CorruptStoreError:
                old.reset()
            last = self._plan.last_timestamp_ms
            new.physic_msg_timestamp_ms = new.logics_msg_timestamp_ms = last
            new.index_msg_timestamp_ms = min(last, self._index_end_ms())
            new.master_flushed_offset = min(old.master_flushed_offset, self._plan.log_end)
            new.confirm_phy_offset = min(old.confirm_phy_offset, self._plan.log_end)
            new.flush()

        self._journal.place(self._journal.prepare(make), self._path(step))

    def _index_end_ms(self) -> int:
        """Store time of the last record in the index, 0 without one."""
        index = open_index(self._log(), self._directory.index)
        index.load()
        try:
            return index.files[-1].header.end_timestamp_ms if index.files else 0
        finally:
            index.close()


def _copy(source: Path, target: Path) -> None:
    target.write_bytes(source.read_bytes())
