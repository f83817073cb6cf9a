"""Where two logs begin to differ, and what differs behind it, record by record.

The log says everything that the other files of a store are derived from: a master and a slave, or
a store before and after, agree when their logs do.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from rmqcore._codec import decode_record
from rmqcore.config import StoreConfig, load_config
from rmqcore.doctor.sizes import lenient_config
from rmqcore.files.log_walker import find_good_record, good_record_at
from rmqcore.files.mapped_file import MappedFile, OpenFiles
from rmqcore.files.store_dir import StoreDir
from rmqcore.native.format._message_ext import MessageExt
from rmqcore.scan.plan import LogPlan
from rmqcore.scan.runner import Runner, run
from rmqcore.scan.split import Split

DIFFERENCES_MAX = 100
_BLOCK = 1 << 20
#: One process compares this many bytes of both logs at a time.
_SPLIT_SIZE = 256 << 20


@dataclass(frozen=True, slots=True)
class Difference:
    """One physical offset at which the logs have not the same record.

    Attributes:
        phy_offset: where it is.
        kind: "only in A", "only in B", or "differs".
        a, b: what is there, in words; empty where no whole record is.
        fields: names of the attributes that differ.
    """

    phy_offset: int
    kind: str
    a: str = ""
    b: str = ""
    fields: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The difference as plain values, for JSON."""
        return {
            "phy_offset": self.phy_offset,
            "kind": self.kind,
            "a": self.a,
            "b": self.b,
            "fields": list(self.fields),
        }


@dataclass(slots=True)
class DiffReport:
    """How two logs differ.

    Attributes:
        a, b: directories of the stores.
        a_bounds, b_bounds: physical offsets of the published logs.
        compared: bytes that both have, and that are the same up to the first difference.
        first: the first physical offset at which they differ, -1 for none in what both have.
        differences: behind it, record by record, at most this many as were asked for.
        more: True when there are more of them.
    """

    a: Path
    b: Path
    a_bounds: tuple[int, int] = (0, 0)
    b_bounds: tuple[int, int] = (0, 0)
    compared: int = 0
    first: int = -1
    differences: list[Difference] = field(default_factory=list)
    more: bool = False

    @property
    def same(self) -> bool:
        """True when both logs begin and end at the same places, and are equal."""
        return self.first < 0 and self.a_bounds == self.b_bounds

    @property
    def only_a(self) -> list[tuple[int, int]]:
        """Physical offsets between which only A has a log: in front of B's, and behind it."""
        return _outside(self.a_bounds, self.b_bounds)

    @property
    def only_b(self) -> list[tuple[int, int]]:
        """The same of B."""
        return _outside(self.b_bounds, self.a_bounds)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values, for JSON."""
        return {
            "a": str(self.a),
            "b": str(self.b),
            "a_bounds": list(self.a_bounds),
            "b_bounds": list(self.b_bounds),
            "only_a": [list(one) for one in self.only_a],
            "only_b": [list(one) for one in self.only_b],
            "compared": self.compared,
            "same": self.same,
            "first": self.first,
            "differences": [one.to_dict() for one in self.differences],
            "more": self.more,
        }


def diff(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    *,
    config: StoreConfig | str | Path | None = None,
    differences_max: int = DIFFERENCES_MAX,
    jobs: int | Runner = 1,
    progress: Callable[[str, int, int], None] | None = None,
) -> DiffReport:
    """Compare the logs of two stores, byte by byte, and where they differ record by record.

    Args:
        a: the directory of one store; only read, also beside a writer.
        b: the directory of the other.
        config: settings of both, as for `open_store`.
        differences_max: at most this many records are named.
        jobs: processes that compare, or what else runs a function over splits.
        progress: called with ("diff", bytes done, bytes in all).

    Raises:
        StoreNotFoundError: no store is there.
    """
    stores, logs = [], []
    for path in (a, b):
        loaded = load_config(config)
        directory = StoreDir(path, loaded.store_path_commit_log)
        directory.require()
        plan = LogPlan(directory, lenient_config(loaded, directory), strict=False)
        stores.append(directory)
        logs.append(_Log(plan.files, plan.file_size, plan.start, plan.end))
    found = _Diff(stores[0], stores[1], logs[0], logs[1], differences_max)
    return found.run(jobs, progress)


def _outside(mine: tuple[int, int], theirs: tuple[int, int]) -> list[tuple[int, int]]:
    """The stretches of one log in front of another and behind it."""
    if theirs[0] == theirs[1]:
        theirs = mine[1], mine[1]
    parts = (mine[0], min(mine[1], theirs[0])), (max(mine[0], theirs[1]), mine[1])
    return [(start, stop) for start, stop in parts if start < stop]


class _Log(NamedTuple):
    """Where a log lies; small, and good to be sent to another process.

    Attributes:
        files: (physical offset, path, bytes) of each file.
        file_size: bytes that every file should have.
        start, end: physical offsets between which it is published.
    """

    files: list[tuple[int, Path, int]]
    file_size: int
    start: int
    end: int


class _LogRange:
    """The bytes and the records of a log between two physical offsets."""

    def __init__(self, log: _Log, start: int, end: int) -> None:
        self._log = log
        self._start, self._end = start, end
        opened = OpenFiles()
        self._files = [
            MappedFile(path, min(size, log.file_size), first, opened, writable=False)
            for first, path, size in log.files
            if first < end and first + log.file_size > start
        ]

    def _file_at(self, phy_offset: int) -> MappedFile | None:
        for file in self._files:
            if file.file_from_offset <= phy_offset < file.file_from_offset + file.size:
                return file
        return None

    def file_end(self, phy_offset: int) -> int:
        """Where the file that should hold an offset ends."""
        size = self._log.file_size
        return phy_offset - (phy_offset - self._log.start) % size + size

    def data_from(self, phy_offset: int) -> int:
        """Where what is no hole begins in the file that should hold an offset, else its end."""
        file = self._file_at(phy_offset)
        if file is None or (at := file.data_from(phy_offset - file.file_from_offset)) >= file.size:
            return self.file_end(phy_offset)
        return file.file_from_offset + at

    def bytes_at(self, phy_offset: int, size: int) -> bytes:
        """So many bytes of one file; zeros where there is none."""
        file = self._file_at(phy_offset)
        if file is None:
            return bytes(size)
        at = phy_offset - file.file_from_offset
        return file.read_bytes(at, min(size, file.size - at)).ljust(size, b"\0")

    def record_around(self, phy_offset: int) -> int:
        """Where the whole record that holds an offset begins; the offset itself without one."""
        file = self._file_at(phy_offset)
        at, found = 0, phy_offset
        while file is not None and at <= phy_offset - file.file_from_offset:
            record = find_good_record([file], at)
            if record is None or record.phy_offset > phy_offset:
                break
            found = record.phy_offset if record.end_offset > phy_offset else phy_offset
            at = record.end_offset - file.file_from_offset
        return found

    def records(self) -> Iterator[tuple[int, bytes]]:
        """(physical offset, bytes) of every whole record."""
        for file in self._files:
            at = max(0, self._start - file.file_from_offset)
            while at < file.size and file.file_from_offset + at < self._end:
                record = good_record_at(file, at) or find_good_record([file], at)
                if record is None or record.phy_offset >= self._end:
                    break
                at = record.phy_offset - file.file_from_offset
                yield record.phy_offset, file.read_bytes(at, record.size)
                at += record.size


def _count_alike(split: Split, *, a: _Log, b: _Log) -> int:
    """How many bytes of a split are the same in both logs, up to the first that is not."""
    mine, theirs = _LogRange(a, split.start, split.end), _LogRange(b, split.start, split.end)
    at = split.start
    while at < split.end:
        at = max(at, min(mine.data_from(at), theirs.data_from(at), split.end))
        stop = min(at + _BLOCK, split.end, mine.file_end(at), theirs.file_end(at))
        here, there = mine.bytes_at(at, stop - at), theirs.bytes_at(at, stop - at)
        if here != there:
            at += next(n for n in range(len(here)) if here[n] != there[n])
            break
        at = stop
    return at - split.start


class _Diff:
    """One comparison."""

    def __init__(
        self, a_store: StoreDir, b_store: StoreDir, a: _Log, b: _Log, differences_max: int
    ) -> None:
        self._stores = a_store, b_store
        self._a, self._b = a, b
        self._max = differences_max
        self._report = DiffReport(a_store.path, b_store.path, (a.start, a.end), (b.start, b.end))

    def run(
        self, jobs: int | Runner, progress: Callable[[str, int, int], None] | None
    ) -> DiffReport:
        report = self._report
        low, high = max(self._a.start, self._b.start), min(self._a.end, self._b.end)
        report.compared = self._compare_bytes(low, high, jobs, progress)
        if report.compared < high - low:
            report.first = min(
                _LogRange(log, log.start, log.end).record_around(low + report.compared)
                for log in (self._a, self._b)
            )
            self._compare_records(report.first)
        elif self._a.end != self._b.end:
            self._compare_records(max(low, high))
        return report

    def _compare_bytes(
        self,
        low: int,
        high: int,
        jobs: int | Runner,
        progress: Callable[[str, int, int], None] | None,
    ) -> int:
        """How many bytes of what both have are the same, up to the first that is not."""
        store = self._stores[0]
        splits = [
            Split(
                str(store.path),
                str(store.commit_log),
                start,
                min(start + _SPLIT_SIZE, high),
                self._a.start,
                self._a.file_size,
            )
            for start in range(low, high, _SPLIT_SIZE)
        ]
        tell = None if progress is None else partial(progress, "diff")
        work = partial(_count_alike, a=self._a, b=self._b)
        same = 0
        for split, alike in zip(splits, run(work, splits, jobs=jobs, progress=tell), strict=False):
            same += alike
            if alike < split.size:
                break
        return same

    def _compare_records(self, start: int) -> None:
        """Name the records from an offset on that are not the same on both sides."""
        mine, theirs = (_LogRange(log, start, log.end).records() for log in (self._a, self._b))
        one, other = next(mine, None), next(theirs, None)
        while one is not None or other is not None:
            if len(self._report.differences) >= self._max:
                self._report.more = True
                return
            if other is None or (one is not None and one[0] < other[0]):
                self._add(one, None)
                one = next(mine, None)
            elif one is None or other[0] < one[0]:
                self._add(None, other)
                other = next(theirs, None)
            else:
                if one[1] != other[1]:
                    self._add(one, other)
                one, other = next(mine, None), next(theirs, None)

    def _add(self, one: tuple[int, bytes] | None, other: tuple[int, bytes] | None) -> None:
        a = None if one is None else decode_record(one[1])
        b = None if other is None else decode_record(other[1])
        phy_offset = one[0] if one is not None else other[0] if other is not None else -1
        kind = "differs" if a and b else "only in A" if a else "only in B"
        fields = _differing(a, b) if a and b else ()
        self._report.differences.append(Difference(phy_offset, kind, _words(a), _words(b), fields))


def _differing(a: MessageExt, b: MessageExt) -> tuple[str, ...]:
    mine, theirs = a.to_dict(), b.to_dict()
    return tuple(name for name in mine if mine[name] != theirs.get(name))


def _words(message: MessageExt | None) -> str:
    if message is None:
        return ""
    place = f"{message.topic}/{message.queue_id} offset {message.queue_offset}"
    return f"{place}, {message.store_size} bytes"
