"""Consume queues of a cold store, derived from its log alone.

What is there stays untouched until the new files are complete and on disk; then the two directories
change places in one step. Killed at any moment, the store has the old files or the new ones, and
running again works.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

from rmqcore._codec import decode_record
from rmqcore.config import StoreConfig
from rmqcore.errors import CorruptRecordError, CorruptStoreError
from rmqcore.files.batch_consume_queue import BatchConsumeQueue
from rmqcore.files.consume_queue import HOLE_UNITS_MAX, LIGHT_QUEUE_PREFIX, ConsumeQueue
from rmqcore.files.deleted_topics import DeletedTopics, first_record
from rmqcore.files.mapped_file import OpenFiles
from rmqcore.files.readers_of_lost import begin_groups_anew
from rmqcore.files.store_dir import StoreDir, make_directory, queue_id_of, subdirectories
from rmqcore.files.unit_file import UNIT_HEAD
from rmqcore.native.derive._dispatch import DispatchBatch
from rmqcore.native.format._numbers import FILLER_SIZE, UNIT_SIZE
from rmqcore.rebuild.cold_store import (
    RebuildReport,
    cold,
    fresh_beside,
    light_queues,
    passing_over,
    swap_in,
)
from rmqcore.rebuild.digest import tree_digest, tree_digests
from rmqcore.rebuild.queue_writer import QueueKey, QueuesWritten, QueueWriter
from rmqcore.scan.log_walk import Damage, LogWalk
from rmqcore.scan.plan import SPLIT_SIZE, LogPlan
from rmqcore.scan.runner import Runner, run
from rmqcore.scan.split import Split
from rmqcore.scan.unit_files import BATCH_UNITS, UNITS, UnitFiles
from rmqcore.world import wall_clock_ms

_COPY_UNITS = 1 << 16
_MORE = "rmqcore doctor plan STORE says whether their headers are damaged"


def rebuild(
    split: Split,
    root: Path,
    *,
    file_size: int,
    delays_ms: tuple[int, ...],
    multi_dispatch: bool = False,
    batch_queues: frozenset[QueueKey] = frozenset(),
    skip_damage: bool = False,
    deleted: DeletedTopics | None = None,
) -> tuple[QueuesWritten, list[Damage]]:
    """Write the consume-queue units of one split into files below ``root``.

    Splits may be worked on in any order and at the same time; `rebuild_consume_queues` then
    closes the gaps between them.

    Args:
        split: from `plan`.
        root: a fresh directory that takes the place of ``consumequeue``.
        file_size: bytes of a consume-queue file.
        delays_ms: delay of level 1, 2, ...
        multi_dispatch: fan out to light queues (LMQ).
        batch_queues: queues that are stored as batches.
        skip_damage: pass over damaged records instead of raising.
        deleted: topics that were deleted; their records are passed over.

    Returns:
        what was written, and the damage passed over.
    """
    return _rebuild_splits(
        [split],
        root,
        file_size,
        delays_ms,
        multi_dispatch,
        batch_queues,
        skip_damage,
        deleted,
        alone=False,
    )


def _rebuild_splits(
    splits: list[Split],
    root: Path,
    file_size: int,
    delays_ms: tuple[int, ...],
    multi_dispatch: bool,
    batch_queues: frozenset[QueueKey],
    skip_damage: bool,
    deleted: DeletedTopics | None,
    progress: Callable[[int, int], None] | None = None,
    *,
    alone: bool = True,
    no_begins: frozenset[int] = frozenset(),
) -> tuple[QueuesWritten, list[Damage]]:
    damaged: list[Damage] = []
    on_damage = passing_over(damaged, skip_damage=skip_damage)
    batch = DispatchBatch(delays_ms=delays_ms, multi_dispatch=multi_dispatch, keys=False)
    before = UnitFiles(StoreDir(splits[0].store), file_size) if alone and splits else None
    writer = QueueWriter(
        root, file_size, batch_queues, deleted, alone=alone, before=before, no_begins=no_begins
    )
    # a message that is damaged is passed over whole: also one whose body alone is
    scan = partial(batch.scan, verify_crc=True) if skip_damage else batch.scan
    done, total = 0, sum(split.size for split in splits)
    try:
        for split in splits:
            walk = LogWalk(split, on_damage=on_damage)
            for _ in walk.run(scan):
                writer.write(batch)
                batch.clear()
            done += split.size
            if progress is not None:
                progress(done, total)
        writer.drop_emptied()
    finally:
        batch.clear()
        writer.close()
        if before is not None:
            before.close()
    wrong = writer.misjudged() if alone else ()
    if not wrong:
        return writer.written, damaged
    shutil.rmtree(root)
    make_directory(root)
    return _rebuild_splits(
        splits,
        root,
        file_size,
        delays_ms,
        multi_dispatch,
        batch_queues,
        skip_damage,
        deleted,
        progress,
        no_begins=no_begins.union(wrong),
    )


def rebuild_consume_queues(
    store_path: str | os.PathLike[str],
    *,
    config: StoreConfig | str | Path | None = None,
    jobs: int | Runner = 1,
    split_size: int = SPLIT_SIZE,
    skip_damage: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> RebuildReport:
    """Derive every consume queue of a cold store from its log.

    A queue keeps its offsets: units of messages that the log no longer has are taken over from the
    old files, also those of a queue all of whose messages have expired.

    Args:
        store_path: the store's directory; its lock is taken.
        config: settings of the store, as for `open_store`.
        jobs: processes, or what else runs a function over splits.
        split_size: bytes of log that one process works on at a time.
        skip_damage: pass over damaged records; their messages are lost, and fillers stand in their
            places.
        progress: called with (bytes of log done, bytes in all).

    Raises:
        StoreLockedError: the store is open for writing.
        CorruptRecordError: the log is damaged, or a record names a queue offset that is too far
            from the one before to be true; nothing was changed.
        DiskFullError: no room; nothing was changed.
    """
    with (
        cold(store_path, config) as log,
        fresh_beside(log.directory.consume_queue) as fresh,
        fresh_beside(log.directory.batch_consume_queue) as fresh_batches,
    ):
        directory = log.directory
        report = derive_consume_queues(
            log, fresh, fresh_batches, jobs, split_size, skip_damage, progress
        )
        digests = tree_digests(
            directory.consume_queue, directory.batch_consume_queue, fresh, fresh_batches
        )
        report.digest_before, report.digest_after = _joined(digests[:2]), _joined(digests[2:])
        if report.begun_anew:
            # the next opening finds no queue of the topic before
            begin_groups_anew(directory.config, report.begun_anew, wall_clock_ms)
        swap_in(fresh, directory.consume_queue)
        if any(fresh_batches.iterdir()) or directory.batch_consume_queue.is_dir():
            swap_in(fresh_batches, directory.batch_consume_queue)
        else:
            fresh_batches.rmdir()
        return report


def derive_consume_queues(
    log: LogPlan,
    fresh: Path,
    fresh_batches: Path,
    jobs: int | Runner = 1,
    split_size: int = SPLIT_SIZE,
    skip_damage: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> RebuildReport:
    """Derive every consume queue of a store into two empty directories; the old ones stay.

    Args:
        log: of a store that no process writes to.
        fresh: takes the place of ``consumequeue``.
        fresh_batches: takes the place of ``batchconsumequeue``.
        jobs: as for `rebuild_consume_queues`, and so are the others.
        split_size: bytes of log that one process works on at a time.
        skip_damage: pass over damaged records.
        progress: called with (bytes of log done, bytes in all).

    Returns:
        a report without digests; what it raises is what `rebuild_consume_queues` raises.
    """
    return _QueuesRebuild(log, fresh, fresh_batches, jobs, split_size, skip_damage, progress).run()


class _QueuesRebuild:
    """One run of `derive_consume_queues`."""

    def __init__(
        self,
        log: LogPlan,
        fresh: Path,
        fresh_batches: Path,
        jobs: int | Runner,
        split_size: int,
        skip_damage: bool,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self._log = log
        self._jobs = jobs
        self._progress = progress
        self._split_size = split_size
        self._skip_damage = skip_damage
        self._directory = log.directory
        self._fresh = fresh
        self._fresh_batches = fresh_batches
        self._begun_anew = set[QueueKey]()
        self._deleted = DeletedTopics(log.directory).load()
        self._work = partial(
            rebuild,
            root=self._fresh,
            file_size=log.config.mapped_file_size_consume_queue,
            delays_ms=log.config.delay_levels_ms,
            multi_dispatch=light_queues(log),
            batch_queues=frozenset(queue_keys(log.directory.batch_consume_queue)),
            skip_damage=skip_damage,
            deleted=self._deleted,
        )
        self.report = RebuildReport("consume queues")

    def run(self) -> RebuildReport:
        runs, batches = self._write_units()
        self._finish(runs, batches)
        self.report.begun_anew = sorted(
            key for key in {*runs, *batches} if self._begins_anew(key, batches.get(key))
        )
        self.report.notes += [
            f"{topic}/{queue_id} is of a topic that was made again: groups begin with it"
            for topic, queue_id in self.report.begun_anew
        ]
        self.report.files = sum(
            1
            for root in (self._fresh, self._fresh_batches)
            for path in root.rglob("*")
            if path.is_file()
        )
        return self.report

    def _write_units(
        self,
    ) -> tuple[dict[QueueKey, list[tuple[int, int]]], dict[QueueKey, bytearray]]:
        splits = self._log.splits(self._split_size)
        if self._jobs != 1:
            parts = list(run(self._work, splits, jobs=self._jobs, progress=self._progress))
            runs = _merged(written for written, _ in parts)
            if runs is not None:
                return runs, self._noted(parts)
            # two records claim one place in a queue: only the log's own order tells whose it is
            shutil.rmtree(self._fresh)
            make_directory(self._fresh)
        part = _rebuild_splits(splits, **self._work.keywords, progress=self._progress)
        return dict(part[0].runs), self._noted([part])

    def _noted(self, parts: list[tuple[QueuesWritten, list[Damage]]]) -> dict[QueueKey, bytearray]:
        batches: dict[QueueKey, bytearray] = {}
        for written, damaged in parts:
            self._begun_anew |= written.begun_anew
            self.report.records += written.records
            self.report.damaged += [(damage.phy_offset, damage.reason) for damage in damaged]
            for key, units in written.batches.items():
                batches.setdefault(key, bytearray()).extend(units)
            if written.too_far and not self._skip_damage:
                phy_offset, reason = written.too_far[0]
                split = self._log.split(phy_offset, phy_offset)
                raise CorruptRecordError(split.path_at(split.first_file), phy_offset, reason)
            self.report.damaged += written.too_far
        for name, what in (
            ("skipped", "claim queue offsets that earlier records have"),
            ("jumped", "are not where their queue offsets say, and are in no queue"),
            ("unaddressable", "name a place that no queue has, and are in none"),
        ):
            if count := sum(getattr(written, name) for written, _ in parts):
                self.report.notes.append(f"{count} records {what}; {_MORE}")
        return batches

    # ---- what the single splits cannot know

    def _finish(
        self,
        runs: dict[QueueKey, list[tuple[int, int]]],
        batches: dict[QueueKey, bytearray],
    ) -> None:
        writer = QueueWriter(
            self._fresh, self._log.config.mapped_file_size_consume_queue, frozenset()
        )
        try:
            for key, stretches in runs.items():
                self._begin(writer, key, stretches[0][0])
                for before, after in pairwise(stretches):
                    writer.queue(key).fill(before[1], after[0])
            for key in queue_keys(self._directory.consume_queue):
                if key not in runs:
                    self._keep_expired(writer, key)
        finally:
            writer.close()
        for key in sorted(batches.keys() | set(queue_keys(self._directory.batch_consume_queue))):
            self._write_batches(key, bytes(batches.get(key, b"")))

    def _begin(self, writer: QueueWriter, key: QueueKey, first: int) -> None:
        """What lies before the first message of a queue: expired units, else fillers."""
        size = self._log.config.mapped_file_size_consume_queue // UNIT_SIZE
        old = self._expired(key)
        start, stop = first - first % size, first
        if old is not None and old.first_unit_offset < old.min_offset <= first:
            self._copy(writer, key, old, old.first_unit_offset, old.min_offset)
            start = old.min_offset
        if start < stop:
            writer.queue(key).fill(start, stop)

    def _expired(self, key: QueueKey) -> ConsumeQueue | None:
        """The old queue; its units below ``min_offset`` are of messages that the log had once."""
        if not self._log.start:
            return None
        path = self._directory.consume_queue / key[0] / str(key[1])
        queue = ConsumeQueue(
            path,
            *key,
            self._log.config.mapped_file_size_consume_queue,
            OpenFiles(),
            writable=False,
        )
        try:
            queue.load()
        except CorruptStoreError as error:
            self.report.notes.append(f"nothing was taken over from {path}: {error.reason}")
            return None
        queue.correct_min_offset(self._log.start)
        return queue

    def _copy(
        self, writer: QueueWriter, key: QueueKey, old: ConsumeQueue, start: int, stop: int
    ) -> None:
        """Take units of expired messages over; a filler stands for one that cannot be such."""
        while start < stop:
            raw = old.read_units(start, min(_COPY_UNITS, stop - start))
            if not raw:
                return
            units = np.frombuffer(raw, UNITS).copy()
            sizes, offsets = units["size"].astype(np.int64), units["phy_offset"].astype(np.int64)
            expired = (sizes > 0) & (offsets >= 0) & (sizes <= self._log.start - offsets)
            units[~expired] = (0, FILLER_SIZE, 0)
            writer.queue(key).write(start, memoryview(units.tobytes()))
            start += len(units)

    def _keep_expired(self, writer: QueueWriter, key: QueueKey) -> None:
        """A queue of which the log has nothing any more goes on at its old offsets."""
        old = self._expired(key)
        if old is None or old.min_offset <= old.first_unit_offset:
            self.report.notes.append(f"the log has no message of {key[0]}/{key[1]}; it is gone")
            return
        self._copy(writer, key, old, old.first_unit_offset, old.min_offset)
        self.report.notes.append(
            f"every message of {key[0]}/{key[1]} has expired; it goes on at {old.min_offset}"
        )

    def _begins_anew(self, key: QueueKey, batches: bytearray | None) -> bool:
        """Whether what groups have consumed of a queue may be of the topic before.

        As recovery has it: the files end in front of the record that has number 0 now, or a slave
        has none.
        """
        if batches is None:
            begins = first_record(self._fresh / key[0] / str(key[1]))
        else:
            phy_offset, _ = UNIT_HEAD.unpack_from(batches)
            begins = phy_offset if np.frombuffer(batches, BATCH_UNITS)["base"][0] == 0 else None
        if begins is None:
            return False
        known = self._known_of(key)
        if not known:
            return self._deleted.is_slaves and key in self._begun_anew
        return all(first != begins and end <= begins for first, end in known)

    def _known_of(self, key: QueueKey) -> list[tuple[int, int]]:
        """Where the first and behind the last message lies that old files have of a queue."""
        config, directory = self._log.config, self._directory
        found: list[tuple[int, int]] = []
        for kind, root, size in (
            (ConsumeQueue, directory.consume_queue, config.mapped_file_size_consume_queue),
            (
                BatchConsumeQueue,
                directory.batch_consume_queue,
                config.mapper_file_size_batch_consume_queue,
            ),
        ):
            queue = kind(root / key[0] / str(key[1]), *key, size, OpenFiles(), writable=False)
            with suppress(CorruptStoreError):
                queue.load()
                unit = queue.unit_at(queue.min_offset)
                # the log may have lost the first one's message, and so its word whose it is
                last = queue.unit_at(queue.max_offset - 1)
                units = [one for one in (unit, last) if one is not None]
                if unit is not None and all(self._may_be_of(key, one[0]) for one in units):
                    found.append((unit[0], queue.end_phy_offset))
            queue.close()
        return found

    def _may_be_of(self, key: QueueKey, phy_offset: int) -> bool:
        """False for a record of another queue: what leads to it is another's directory, or file."""
        record = self._log.record_at(phy_offset) if phy_offset >= self._log.start else None
        if record is None or key[0].startswith(LIGHT_QUEUE_PREFIX):
            return True
        message = decode_record(record)
        return (message.topic, message.queue_id) == key

    def _write_batches(self, key: QueueKey, units: bytes) -> None:
        size = self._log.config.mapper_file_size_batch_consume_queue
        queue = BatchConsumeQueue(
            self._fresh_batches / key[0] / str(key[1]), *key, size, OpenFiles()
        )
        queue.load()
        queue.append_batches(units)
        queue.flush()
        queue.close()


def _merged(
    parts: Iterator[QueuesWritten],
) -> dict[QueueKey, list[tuple[int, int]]] | None:
    """The stretches of each queue in log order; None when only the log's order tells them."""
    runs: dict[QueueKey, list[tuple[int, int]]] = {}
    for written in parts:
        if written.begun_anew or written.skipped:
            # units of such a queue that other processes have written are gone, or one of them has
            # written a unit that is out of order
            return None
        for key, stretches in written.runs.items():
            known = runs.setdefault(key, [])
            if known and not 0 <= stretches[0][0] - known[-1][1] <= HOLE_UNITS_MAX:
                return None
            known.extend(stretches)
    return runs


def queue_keys(root: Path) -> list[QueueKey]:
    """(topic, queue id) of each queue directory below ``root``."""
    return sorted(
        (topic, queue_id)
        for topic in subdirectories(root)
        for name in subdirectories(root / topic)
        if (queue_id := queue_id_of(name)) is not None
    )


def _joined(digests: list[str]) -> str:
    """The digest of the plain queues, and that of the batch queues where there are any."""
    plain, batches = digests
    return plain if batches == tree_digest(Path(os.devnull)) else f"{plain}-{batches}"
