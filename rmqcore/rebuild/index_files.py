"""The index of a cold store, derived from its log alone.

Every file but the last is full, so where each begins follows from counting the keys of each split.
Then every file is written by itself, by the worker of the split in which it begins: that one reads
on behind its split until the file is full.

What is there stays untouched until the new files are complete and on disk; then the two directories
change places in one step.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rmqcore._codec import decode_record
from rmqcore._index import HEADER_SIZE, read_header
from rmqcore.chance import token_hex
from rmqcore.config import StoreConfig
from rmqcore.derived.index_service import IndexService
from rmqcore.errors import CorruptIndexError
from rmqcore.files.index_file import IndexFile, IndexHeader, file_name_at, name_behind
from rmqcore.files.mapped_file import OpenFiles
from rmqcore.native.derive._dispatch import DispatchBatch
from rmqcore.native.format._message_ext import MessageExt
from rmqcore.rebuild.cold_store import RebuildReport, cold, fresh_beside, passing_over, swap_in
from rmqcore.rebuild.digest import tree_digest
from rmqcore.recovery.index_tags import index_has_tags
from rmqcore.scan.log_walk import Damage, LogWalk
from rmqcore.scan.plan import SPLIT_SIZE, LogPlan
from rmqcore.scan.runner import Runner, run
from rmqcore.scan.split import Split


@dataclass(frozen=True, slots=True)
class SplitKeys:
    """What the index gets from one split.

    Attributes:
        records: records walked.
        keys: entries.
        last_timestamp_ms, last_phy_offset: of the record of the last entry, 0 without any.
        damaged: damage passed over.
    """

    records: int
    keys: int
    last_timestamp_ms: int
    last_phy_offset: int
    damaged: list[Damage]


@dataclass(frozen=True, slots=True)
class FilePlace:
    """Where the entries of a split belong.

    Attributes:
        number: number of its first entry, from 0 on over all files.
        before: the end of the entry before that; None for none.
        stop_file: the first file that belongs to a later split; None where none does.
    """

    number: int
    before: IndexHeader | None
    stop_file: int | None


def rebuild_index(
    store_path: str | os.PathLike[str],
    *,
    config: StoreConfig | str | Path | None = None,
    jobs: int | Runner = 1,
    split_size: int = SPLIT_SIZE,
    skip_damage: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> RebuildReport:
    """Derive every index file of a cold store from its log.

    Keeps the rule that wrote the existing index: RocketMQ 5.4 and later also index a message's
    tags. Files keep their names, which are the times of their creation; the digests do not count
    names. Entries of messages that the log no longer has are left out.

    Args:
        store_path: the store's directory; its lock is taken.
        config: settings of the store, as for `open_store`.
        jobs: processes, or what else runs a function over splits; more than one walk the log twice.
        split_size: bytes of log that one process works on at a time.
        skip_damage: pass over damaged records; their keys are lost.
        progress: called with (bytes of log done, bytes in all).

    Raises:
        StoreLockedError: the store is open for writing.
        CorruptRecordError: the log is damaged; nothing was changed.
        DiskFullError: no room; nothing was changed.
    """
    with cold(store_path, config) as log:
        directory = log.directory.index
        before = tree_digest(directory, names=False)
        with fresh_beside(directory) as fresh:
            report = derive_index(log, fresh, jobs, split_size, skip_damage, progress)
            report.digest_before, report.digest_after = before, tree_digest(fresh, names=False)
            swap_in(fresh, directory)
        return report


def index_rule(log: LogPlan) -> bool:
    """True when the index has, or is to have, an entry for a message's tags."""
    old = open_index(log, log.directory.index)
    old.load()
    try:
        return index_has_tags(old, lambda offset: _message_at(log, offset))
    except CorruptIndexError:
        return True
    finally:
        old.close()


def open_index(log: LogPlan, directory: Path) -> IndexService:
    """The index files in a directory, with the geometry of the store, for reading.

    Args:
        log: of the store, whose settings say the geometry.
        directory: of the files; they are not loaded yet.
    """
    return IndexService(
        directory,
        log.config.max_hash_slot_num,
        log.config.max_index_num,
        OpenFiles(),
        clock_ms=None,
    )


def _message_at(log: LogPlan, phy_offset: int) -> MessageExt | None:
    record = log.record_at(phy_offset)
    return None if record is None else decode_record(record)


def derive_index(
    log: LogPlan,
    fresh: Path,
    jobs: int | Runner = 1,
    split_size: int = SPLIT_SIZE,
    skip_damage: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> RebuildReport:
    """Derive every index file of a store into an empty directory; the old one stays.

    Args:
        log: of a store that no process writes to.
        fresh: takes the place of ``index``.
        jobs: as for `rebuild_index`, and so are the others.
        split_size: bytes of log that one process works on at a time.
        skip_damage: pass over damaged records.
        progress: called with (bytes of log done, bytes in all).

    Returns:
        a report without digests; what it raises is what `rebuild_index` raises.
    """
    report = RebuildReport("index")
    splits, rule = log.splits(split_size), index_rule(log)
    write = partial(
        write_files,
        root=fresh,
        hash_slot_num=log.config.max_hash_slot_num,
        max_index_num=log.config.max_index_num,
        index_tags=rule,
        skip_damage=skip_damage,
    )
    if jobs == 1:
        walked = [write(splits, FilePlace(0, None, None), progress=progress)]
    else:
        count = partial(_count_keys, index_tags=rule, skip_damage=skip_damage)
        found = list(run(count, splits, jobs=jobs, progress=_share(progress, 0)))
        places = _places(splits, found, log.config.max_index_num - 1)
        work = partial(_write_from, write=write, splits=splits, places=places)
        for _ in run(work, splits, jobs=jobs, progress=_share(progress, 1)):
            pass
        walked = [(keys.records, keys.damaged) for keys in found]
    report.records = sum(records for records, _ in walked)
    report.damaged = [(d.phy_offset, d.reason) for _, damaged in walked for d in damaged]
    report.files = _rename_as_before(fresh, log.directory.index)
    if log.start:
        report.notes.append("entries of messages that the log no longer has were left out")
    return report


def _share(
    progress: Callable[[int, int], None] | None, walk: int
) -> Callable[[int, int], None] | None:
    """What the first or the second of two walks has to call."""
    if progress is None:
        return None
    return lambda done, total: progress(walk * total + done, 2 * total)


def _count_keys(split: Split, *, index_tags: bool, skip_damage: bool) -> SplitKeys:
    """How many entries the records of a split have in the index, and where the last one ends.

    Args:
        split: of the log.
        index_tags: tags have entries, too.
        skip_damage: pass over what is damaged, and list it.

    Raises:
        CorruptRecordError: a record is damaged, and nothing is passed over.
    """
    damaged: list[Damage] = []
    on_damage = passing_over(damaged, skip_damage=skip_damage)
    batch = DispatchBatch(index_tags=index_tags)
    records = keys = time_ms = offset = 0
    try:
        for _ in LogWalk(split, on_damage=on_damage).run(batch.scan):
            records += batch.record_count
            keys += batch.key_count
            if batch.key_count:
                last = batch.key_count - 1
                time_ms, offset = int(batch.key_timestamps[last]), int(batch.key_offsets[last])
            batch.clear()
    finally:
        batch.clear()
    return SplitKeys(records, keys, time_ms, offset, damaged)


def _places(splits: list[Split], found: list[SplitKeys], entries: int) -> dict[int, FilePlace]:
    """For each split, by where it begins, what `write_files` needs to know."""
    places, number, before = {}, 0, None
    for split, keys in zip(splits, found, strict=True):
        stop_file = -(-(number + keys.keys) // entries)
        places[split.start] = FilePlace(number, before, stop_file)
        number += keys.keys
        if keys.keys:
            before = _end(keys.last_timestamp_ms, keys.last_phy_offset)
    return places


def _end(timestamp_ms: int, phy_offset: int) -> IndexHeader:
    return IndexHeader(0, timestamp_ms, 0, phy_offset, 0, 0)


def _write_from(
    split: Split, *, write: Callable[..., object], splits: list[Split], places: dict[int, FilePlace]
) -> None:
    """Write the files that begin in a split."""
    at = bisect_left([other.start for other in splits], split.start)
    write(splits[at:], places[split.start])


def write_files(
    splits: list[Split],
    place: FilePlace,
    *,
    root: Path,
    hash_slot_num: int,
    max_index_num: int,
    index_tags: bool,
    skip_damage: bool,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[int, list[Damage]]:
    """Write the index files that begin in the first of some splits, named by their numbers.

    A file is written under a name of its own, and gets its number's when it is complete; so the
    same work may be done twice at the same time.

    Args:
        splits: the first one, and those behind it.
        place: of the first one.
        root: a fresh directory that takes the place of ``index``.
        hash_slot_num: slots of every file.
        max_index_num: entries of every file, and one.
        index_tags: whether tags are keys, too.
        skip_damage: pass over damaged records instead of raising.
        progress: called with (bytes of log done, bytes in all) after each split.

    Returns:
        records walked, and the damage passed over.

    Raises:
        CorruptRecordError: a damaged record.
        DiskFullError: no room.
    """
    writer = _FileWriter(root, hash_slot_num, max_index_num, place)
    damaged: list[Damage] = []
    on_damage = passing_over(damaged, skip_damage=skip_damage)
    batch = DispatchBatch(index_tags=index_tags)
    records, done, total = 0, 0, sum(split.size for split in splits)
    try:
        for split in splits:
            walk = LogWalk(split, on_damage=on_damage)
            for _ in walk.run(batch.scan) if writer.wants_more else ():
                records += batch.record_count
                writer.insert(batch)
                batch.clear()
                if not writer.wants_more:
                    break
            done += split.size
            if progress is not None:
                progress(done, total)
    finally:
        batch.clear()
        writer.close()
    return records, damaged


class _FileWriter:
    """Puts entries into one file after the other."""

    def __init__(
        self, root: Path, hash_slot_num: int, max_index_num: int, place: FilePlace
    ) -> None:
        entries = max_index_num - 1
        self._root = root
        self._geometry = (hash_slot_num, max_index_num)
        self._file_number = -(-place.number // entries)
        self._stop_file = place.stop_file
        #: how many of the first entries belong into an earlier file
        self._skip = self._file_number * entries - place.number
        self._file: IndexFile | None = None
        self._before = place.before

    @property
    def wants_more(self) -> bool:
        """False when every file that is to be written is full."""
        return self._stop_file is None or self._file_number < self._stop_file

    def insert(self, batch: DispatchBatch) -> None:
        """Insert the keys of one stretch of the log."""
        count = batch.key_count
        at = min(self._skip, count)
        self._skip -= at
        if at:
            self._before = _end(int(batch.key_timestamps[at - 1]), int(batch.key_offsets[at - 1]))
        while at < count and self.wants_more:
            file = self._file or self._create()
            at += file.put_keys(
                batch.key_hashes, batch.key_offsets, batch.key_timestamps, at, count
            )
            if file.full:
                self._finish(file)

    def _create(self) -> IndexFile:
        path = self._root / f".{self._file_number}-{token_hex(16)}"
        file = IndexFile(path, *self._geometry, OpenFiles())
        file.create(self._before)
        self._file = file
        return file

    def _finish(self, file: IndexFile) -> None:
        self._before = file.header
        self._file = None
        file.flush()
        file.close()
        file.path.rename(self._root / f"{self._file_number:020d}")
        self._file_number += 1

    def close(self) -> None:
        """Finish the last file, which is not full."""
        if self._file is not None:
            self._finish(self._file)


def _rename_as_before(fresh: Path, old: Path) -> int:
    """Give the new files the names of the old ones, in order; how many files there are.

    A file more than there were is named by the time of its first entry.
    """
    names = (
        sorted(path.name for path in old.iterdir() if path.name.isdigit()) if old.is_dir() else []
    )
    moved = []
    for path in sorted(fresh.iterdir()):
        if path.name.isdigit():
            moved.append(path.rename(path.with_name(f".{path.name}")))
        else:
            # left by a worker that was killed, and whose work was done again
            path.unlink()
    last = ""
    for number, path in enumerate(moved):
        name = names[number] if number < len(names) else file_name_at(_begin_ms(path))
        if name <= last:
            name = name_behind(last)
        path.rename(path.with_name(name))
        last = name
    return len(moved)


def _begin_ms(path: Path) -> int:
    with path.open("rb") as stream:
        return IndexHeader(*read_header(stream.read(HEADER_SIZE))).begin_timestamp_ms
