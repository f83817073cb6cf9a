"""Where two logs begin to differ, and what differs behind it, record by record.

The log says everything that the other files of a store are derived from: a master and a slave, or
a store before and after, agree when their logs do.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rmqcore._codec import decode_record
from rmqcore.config import StoreConfig, load_config
from rmqcore.doctor.sizes import lenient_config
from rmqcore.files.log_walker import find_good_record, good_record_at
from rmqcore.files.mapped_file import MappedFile, OpenFiles
from rmqcore.files.store_dir import StoreDir
from rmqcore.native.format._message import MessageExt
from rmqcore.scan.plan import LogPlan

DIFFERENCES_MAX = 100
_BLOCK = 1 << 20


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
        compared: bytes that both have, and that were compared.
        first: the first physical offset at which they differ, -1 for none in what both have.
        differences: behind it, record by record, at most so many as were asked for.
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
        """True when both logs end at the same place, and are equal in what both have."""
        return self.first < 0 and self.a_bounds[1] == self.b_bounds[1]

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values, for JSON."""
        return {
            "a": str(self.a),
            "b": str(self.b),
            "a_bounds": list(self.a_bounds),
            "b_bounds": list(self.b_bounds),
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
    progress: Callable[[str, int, int], None] | None = None,
) -> DiffReport:
    """Compare the logs of two stores, byte by byte, and where they differ record by record.

    Args:
        a: the directory of one store; only read, also beside a writer.
        b: the directory of the other.
        config: settings of both, as for `open_store`.
        differences_max: at most so many records are named.
        progress: called with ("diff", bytes done, bytes in all).

    Raises:
        StoreNotFoundError: no store is there.
    """
    logs = []
    for path in (a, b):
        loaded = load_config(config)
        directory = StoreDir(path, loaded.store_path_commit_log)
        directory.require()
        logs.append(_Log(LogPlan(directory, lenient_config(loaded, directory), strict=False)))
    return _Diff(logs[0], logs[1], differences_max, progress).run()


class _Log:
    """The bytes and the records of one log."""

    def __init__(self, plan: LogPlan) -> None:
        self.plan = plan
        self.start, self.end = plan.start, plan.end
        opened = OpenFiles()
        self._files = [
            MappedFile(path, min(size, plan.file_size), start, opened, writable=False)
            for start, path, size in plan.files
        ]

    def _file_at(self, phy_offset: int) -> MappedFile | None:
        for file in self._files:
            if file.file_from_offset <= phy_offset < file.file_from_offset + file.size:
                return file
        return None

    def file_end(self, phy_offset: int) -> int:
        """Where the file that should hold an offset ends."""
        size = self.plan.file_size
        return phy_offset - (phy_offset - self.start) % size + size

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

    def records(self, start: int) -> Iterator[tuple[int, bytes]]:
        """(physical offset, bytes) of every whole record from an offset on."""
        for file in self._files:
            at = max(0, start - file.file_from_offset)
            while at < file.size and file.file_from_offset + at < self.end:
                record = good_record_at(file, at) or find_good_record([file], at)
                if record is None or record.phy_offset >= self.end:
                    break
                at = record.phy_offset - file.file_from_offset
                yield record.phy_offset, file.read_bytes(at, record.size)
                at += record.size


class _Diff:
    """One comparison."""

    def __init__(
        self,
        a: _Log,
        b: _Log,
        differences_max: int,
        progress: Callable[[str, int, int], None] | None,
    ) -> None:
        self._a, self._b = a, b
        self._max = differences_max
        self._progress = progress
        self._report = DiffReport(
            a.plan.directory.path,
            b.plan.directory.path,
            (a.start, a.end),
            (b.start, b.end),
        )

    def run(self) -> DiffReport:
        report = self._report
        low, high = max(self._a.start, self._b.start), min(self._a.end, self._b.end)
        differs = self._first_difference(low, high)
        if differs is not None:
            report.first = min(self._a.record_around(differs), self._b.record_around(differs))
            self._compare_records(report.first)
        elif self._a.end != self._b.end:
            self._compare_records(max(low, high))
        return report

    def _first_difference(self, low: int, high: int) -> int | None:
        """The first byte at which they differ, in what both have."""
        at = low
        while at < high:
            stop = min(at + _BLOCK, high, self._a.file_end(at), self._b.file_end(at))
            mine, theirs = self._a.bytes_at(at, stop - at), self._b.bytes_at(at, stop - at)
            if mine != theirs:
                return at + next(n for n in range(len(mine)) if mine[n] != theirs[n])
            self._report.compared += stop - at
            at = stop
            if self._progress is not None:
                self._progress("diff", at - low, high - low)
        return None

    def _compare_records(self, start: int) -> None:
        """Name the records from an offset on that are not the same on both sides."""
        mine, theirs = self._a.records(start), self._b.records(start)
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
