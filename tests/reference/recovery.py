"""Walk a log and tell how it ends: clean, torn, or damaged. From docs/format/commit-log.md."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from .records import (
    MAGIC_V1,
    MAGIC_V2,
    Record,
    RecordRejected,
    decode_record,
    is_blank,
)


class Ending(Enum):
    """How a log ends."""

    CLEAN = "clean"
    TORN = "torn"
    DAMAGED = "damaged"


@dataclass(frozen=True, slots=True)
class LogWalk:
    """What a walk over a log found.

    Attributes:
        records: all good records from the start, in order.
        end: log position behind the last good one; where the next record would go.
        ending: what lies at `end`.
        reason: why the record at `end` was refused; empty for a clean ending.
    """

    records: list[Record]
    end: int
    ending: Ending
    reason: str = ""


def walk_log(files: Mapping[int, bytes], *, verify_record: bool = False) -> LogWalk:
    """Read records from the first file on, up to the first one that is refused.

    Args:
        files: the log's files by the position of their first byte; of one length, without gaps.
        verify_record: every record must end in its CRC property.
    """
    records: list[Record] = []
    end = min(files, default=0)
    for start in sorted(files):
        data = files[start]
        at = 0
        while not is_blank(data, at, len(data)):
            try:
                record = own_record(data, at, start, verify_record=verify_record)
            except RecordRejected as rejected:
                ending = how_it_ends(files, start, at)
                reason = "" if ending is Ending.CLEAN else rejected.reason
                return LogWalk(records, start + at, ending, reason)
            records.append(record)
            at += record.store_size
            end = start + at
    return LogWalk(records, end, Ending.CLEAN)


def own_record(data: bytes, at: int, start: int, *, verify_record: bool = False) -> Record:
    """Decode the record at a file's byte `at`; it has to name that very position."""
    record = decode_record(data, at, verify_record=verify_record)
    if record.phy_offset != start + at:
        raise RecordRejected(at, f"says it lies at {record.phy_offset}, lies at {start + at}")
    return record


def how_it_ends(files: Mapping[int, bytes], start: int, at: int) -> Ending:
    """Judge a refused record by what lies behind it.

    Nothing but zeros to the end of the log: the log was reserved, not written. A good record
    further on: this one was whole once. Otherwise the last write was cut short.
    """
    rest = {start: files[start][at:]} | {s: data for s, data in files.items() if s > start}
    if not any(any(data) for data in rest.values()):
        return Ending.CLEAN
    for later, data in files.items():
        if later >= start and holds_record(data, later, at if later == start else 0):
            return Ending.DAMAGED
    return Ending.TORN


def holds_record(data: bytes, start: int, at: int) -> bool:
    """Look for a good record that names its own position, at any byte."""
    for magic in (MAGIC_V1, MAGIC_V2):
        found = data.find(struct.pack(">I", magic), at + 4)
        while found >= 0:
            try:
                own_record(data, found - 4, start)
            except RecordRejected:
                found = data.find(struct.pack(">I", magic), found + 1)
            else:
                return True
    return False
