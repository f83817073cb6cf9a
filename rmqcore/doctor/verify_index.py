"""Index files: their header and chains, every entry against the log, every key of the log found.

Entries are in log order, so entries and keys are compared as two sequences.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rmqcore._index import HEADER_SIZE, index_file_size, read_header
from rmqcore.doctor.findings import VERIFY_AGAIN, Severity, VerifyReport
from rmqcore.errors import Naming
from rmqcore.files.index_file import IndexHeader
from rmqcore.files.zeros import read_up_to
from rmqcore.native.derive._chains import ChainCheck
from rmqcore.native.derive._dispatch import DispatchBatch
from rmqcore.rebuild.index_files import index_rule
from rmqcore.scan.log_walk import LogWalk
from rmqcore.scan.plan import LogPlan

ENTRIES = np.dtype([("hash", ">i4"), ("offset", ">i8"), ("diff", ">i4"), ("previous", ">i4")])
_REBUILD = "rebuild the index: rmqcore rebuild index STORE"
_ENTRIES_AT_ONCE = 1 << 16


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    header: IndexHeader
    count: int


def check_index(
    log: LogPlan, report: VerifyReport, progress: Callable[[str, int, int], None] | None
) -> None:
    """Check the index of a store.

    Args:
        log: of the store.
        report: gets what is found.
        progress: called with (what, bytes done, bytes in all); None for nobody.
    """
    files = list(_usable_files(log, report))
    if not files and not log.config.message_index_enable:
        return
    entries = _Entries(log, report, files)
    comparison = _Comparison(log, report, entries)
    batch = DispatchBatch(index_tags=index_rule(log))
    splits = log.splits()
    done, total = 0, sum(split.size for split in splits)
    for split in splits:
        for _ in LogWalk(split, on_damage=lambda damage: None).run(batch.scan):
            comparison.compare(batch)
            batch.clear()
        done += split.size
        if progress is not None:
            progress("index", done, total)
    comparison.finish()


def _usable_files(log: LogPlan, report: VerifyReport) -> Iterator[_File]:
    """Files whose length and header make sense."""
    slots, entries = log.config.max_hash_slot_num, log.config.max_index_num
    size = index_file_size(slots, entries)
    root = log.directory.index
    for path in sorted(root.iterdir()) if root.is_dir() else ():
        if not (path.name.isascii() and path.name.isdigit() and path.is_file()):
            continue
        length = path.stat().st_size
        if length != size:
            what = f"the file has {length} bytes, its geometry needs {size}"
            report.add(Severity.ERROR, "index", path, -1, what, _REBUILD)
            continue
        with path.open("rb", buffering=0) as stream, Naming(path):
            header = IndexHeader(*read_header(read_up_to(stream.fileno(), 0, HEADER_SIZE)))
        if header.index_count > entries:
            what = (
                f"the header counts {header.index_count} entries; there is room for {entries - 1}"
            )
            report.add(Severity.ERROR, "index", path, -1, what, _REBUILD)
            continue
        yield _File(path, header, header.index_count - 1)


class _Entries:
    """The entries of all files as one sequence; each file's chains are checked on the way."""

    def __init__(self, log: LogPlan, report: VerifyReport, files: list[_File]) -> None:
        self._slots = log.config.max_hash_slot_num
        self._capacity = log.config.max_index_num - 1
        self._report = report
        self._files = files
        self._source = self._read()
        self._hashes = np.empty(0, np.int32)
        self._offsets = np.empty(0, np.int64)
        self.path = log.directory.index
        self.end = -1

    def up_to(self, phy_offset: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """(hashes, physical offsets) of the next entries at or before a physical offset."""
        while not len(self._offsets) or self._offsets[-1] <= phy_offset:
            more = next(self._source, None)
            if more is None:
                break
            self._hashes = np.concatenate((self._hashes, more[0]))
            self._offsets = np.concatenate((self._offsets, more[1]))
        count = int(self._offsets.searchsorted(phy_offset, "right"))
        taken = self._hashes[:count], self._offsets[:count]
        self._hashes, self._offsets = self._hashes[count:], self._offsets[count:]
        return taken

    def _read(self) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int64]]]:
        before = -1
        for number, file in enumerate(self._files):
            self.path = file.path
            if file.count < self._capacity and number < len(self._files) - 1:
                what = f"the file is not full ({file.count} entries), but another one follows"
                self._report.add(Severity.ERROR, "index", file.path, -1, what, _REBUILD)
            for offsets, hashes in self._read_file(file):
                keep = self._in_order(file.path, offsets, before)
                if keep.any():
                    self.end = before = int(offsets[keep][-1])
                    yield hashes[keep], offsets[keep]

    def _read_file(self, file: _File) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int32]]]:
        check = ChainCheck(self._slots)
        base = HEADER_SIZE + 4 * self._slots + ENTRIES.itemsize
        first_offset = last_offset = -1
        with file.path.open("rb", buffering=0) as stream, Naming(file.path):
            fd, at = stream.fileno(), 0
            while at < file.count:
                count = min(_ENTRIES_AT_ONCE, file.count - at)
                data = read_up_to(fd, base + at * ENTRIES.itemsize, count * ENTRIES.itemsize)
                units = np.frombuffer(data[: len(data) // 20 * 20], ENTRIES)
                check.entries(data, at + 1)
                offsets = units["offset"].astype(np.int64)
                if len(offsets):
                    first_offset = int(offsets[0]) if at == 0 else first_offset
                    last_offset = int(offsets[-1])
                    yield offsets, units["hash"].astype(np.int32)
                if len(units) < count:
                    break
                at += count
            for slot in range(0, self._slots, _ENTRIES_AT_ONCE):
                size = min(_ENTRIES_AT_ONCE, self._slots - slot)
                check.slots(read_up_to(fd, HEADER_SIZE + 4 * slot, 4 * size), slot)
        self._judge(file, check, first_offset, last_offset)

    def _judge(self, file: _File, check: ChainCheck, first: int, last: int) -> None:
        """What the chains and the header say."""
        self._report.index_entries += file.count
        if self._report.live:
            return
        if check.wrong_count:
            places = [f"entry {number}" for number in check.wrong_entries]
            places += [f"slot {number}" for number in check.wrong_slots]
            what = f"{check.wrong_count} broken chain links: {', '.join(places[:8])}"
            self._report.add(Severity.ERROR, "index", file.path, -1, what, _REBUILD)
        header = file.header
        if file.count and (header.begin_phy_offset, header.end_phy_offset) != (first, last):
            what = (
                f"the header says records {header.begin_phy_offset} to {header.end_phy_offset}, "
                f"the entries {first} to {last}"
            )
            self._report.add(Severity.ERROR, "index", file.path, -1, what, _REBUILD)
        if header.hash_slot_count != check.used_slots:
            what = f"the header counts {header.hash_slot_count} used slots of {check.used_slots}"
            self._report.add(Severity.WARNING, "index", file.path, -1, what, _REBUILD)

    def _in_order(self, path: Path, offsets: NDArray[np.int64], before: int) -> NDArray[np.bool_]:
        """Which entries are in log order; the others are reported."""
        keep = np.ones(len(offsets), bool)
        if not len(offsets) or (offsets[0] >= before and (np.diff(offsets) >= 0).all()):
            return keep
        ceiling = np.append(np.minimum.accumulate(offsets[::-1])[::-1][1:], np.iinfo(np.int64).max)
        floor = np.maximum.accumulate(np.concatenate(([before], offsets[:-1])))
        high, low = offsets > ceiling, offsets < floor
        # one entry that lies too high makes many look too low, and the other way round
        keep = ~high if 0 < high.sum() <= low.sum() else ~low
        wrong = np.flatnonzero(~keep)
        what = f"{len(wrong)} entries are out of the log's order"
        self._report.add(Severity.ERROR, "index", path, int(offsets[wrong[0]]), what, _REBUILD)
        return keep


@dataclass(slots=True)
class _Keys:
    """How many keys, and between which physical offsets their records lie."""

    count: int = 0
    first: int = -1
    last: int = -1

    def add(self, keys: list[tuple[int, int]]) -> None:
        """Add (physical offset, hash) of keys, in log order."""
        if keys:
            self.first = keys[0][0] if not self.count else self.first
            self.last = keys[-1][0]
            self.count += len(keys)


class _Comparison:
    """Compares the keys of the log with the entries of the index."""

    def __init__(self, log: LogPlan, report: VerifyReport, entries: _Entries) -> None:
        self._log = log
        self._report = report
        self._entries = entries
        self._missing = _Keys()
        self._late = _Keys()
        entries.up_to(log.start - 1)

    def compare(self, batch: DispatchBatch) -> None:
        count = batch.key_count
        if not count:
            return
        keys, offsets = batch.key_hashes[:count], batch.key_offsets[:count]
        have, at = self._entries.up_to(int(offsets[-1]))
        if np.array_equal(have, keys) and np.array_equal(at, offsets):
            return
        wanted = Counter(zip(offsets.tolist(), keys.tolist(), strict=True))
        found = Counter(zip(at.tolist(), have.tolist(), strict=True))
        lost = sorted((wanted - found).elements())
        # RocketMQ may index one record twice; what is found twice is found once
        stray = sorted(set(found) - set(wanted))
        # beside a writer, keys behind its last entry are not filed yet
        filed = bisect_left(lost, (self._entries.end,)) if self._report.live else len(lost)
        self._missing.add(lost[:filed])
        self._late.add(lost[filed:])
        if stray:
            what = f"{len(stray)} entries of keys that no record has"
            self._report.add(
                Severity.ERROR, "index", self._entries.path, stray[0][0], what, _REBUILD
            )

    def finish(self) -> None:
        """Report what is left over on either side."""
        _, rest = self._entries.up_to(np.iinfo(np.int64).max)
        if len(rest) and not self._report.live:
            what = f"{len(rest)} entries point behind the end of the log"
            self._report.add(
                Severity.ERROR, "index", self._entries.path, int(rest[0]), what, _REBUILD
            )
        self._report_keys(self._late, Severity.NOTE, "are not filed yet", VERIFY_AGAIN)
        how = f"open the store for writing, which derives what is missing, or {_REBUILD}"
        self._report_keys(self._missing, Severity.ERROR, "cannot be found", how)

    def _report_keys(self, keys: _Keys, severity: Severity, state: str, how: str) -> None:
        if keys.count:
            what = f"{keys.count} keys of records from {keys.first} to {keys.last} {state}"
            self._report.add(severity, "index", self._log.directory.index, keys.first, what, how)
