"""Log files that have each other's names, as a copy by hand may leave them.

All of their records are whole, and none lies where it says. To cover them would give up all.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

from rmqcore._codec import check_record, decode_record
from rmqcore.errors import CorruptRecordError, Naming
from rmqcore.files.mapped_file_queue import offset_to_file_name
from rmqcore.native.format._next_record import RECORD_HEAD_SIZE, head_says
from rmqcore.rebuild.digest import next_data

#: The magic codes of records, and how many bytes of a record are in front of one.
_MAGICS = (b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xab")
_BEFORE_MAGIC = 4
_BLOCK = 1 << 20
#: A file that has no whole record among this many places that look like one has none.
_TRIED_MAX = 10_000


def wrongly_named(files: list[tuple[int, Path, int]]) -> list[tuple[Path, str]]:
    """(log file, the name that its records say) of each file that has another name.

    A second copy of a file that lies in its place is not among them.

    Args:
        files: (physical offset, path, bytes) of each log file.
    """
    said = {start: place_said_by(path, start) for start, path, _ in files}
    found = []
    for start, path, _ in files:
        place = said[start]
        if place is not None and place != start and said.get(place) != place:
            found.append((path, offset_to_file_name(place)))
    return found


def place_said_by(path: Path, name: int) -> int | None:
    """Where a log file begins by its whole records; None when it has none.

    Args:
        path: the file.
        name: where it begins by its name. Its first record is believed, but where the next one
            says so, else any one that says so.
    """
    with path.open("rb", buffering=0) as stream:
        other = None
        for at in _heads(stream, 0):
            said = _said_at(stream, at)
            begin = None if said is None else said[0]
            if begin == name:
                return begin
            if at == 0 and said is not None:
                # the CRC of a record does not cover where it says to lie
                behind = _said_at(stream, said[1])
                return name if behind is not None and behind[0] == name else begin
            # a body may hold another log's record
            other = begin if other is None else other
        return other


def in_place(files: list[tuple[int, Path, int]]) -> list[tuple[int, Path, int]]:
    """Those log files whose records say that they lie where their names say; all when none does."""
    return [file for file in files if place_said_by(file[1], file[0]) == file[0]] or files


def goes_on_behind(path: Path, name: int, size: int) -> bool:
    """True when whole records that lie where they say follow the first ``size`` bytes of a file.

    Args:
        path: of the file.
        name: its name as a number, the physical offset of its first byte.
        size: bytes at its beginning that are not looked at.
    """
    with path.open("rb", buffering=0) as stream, Naming(path):
        all_said = (_said_at(stream, at) for at in _heads(stream, size))
        return any(said is not None and said[0] == name for said in all_said)


def _heads(stream: FileIO, first: int) -> Iterator[int]:
    """Positions where a record may begin: the first, then those of magic codes behind it."""
    yield first
    at, tried, fd = first + _BEFORE_MAGIC + 1, 0, stream.fileno()
    while tried < _TRIED_MAX and (at := next_data(fd, at)) >= 0:
        block = os.pread(fd, _BLOCK, at)
        if len(block) < _BEFORE_MAGIC:
            return
        place = 0
        while tried < _TRIED_MAX:
            found = [one for magic in _MAGICS if (one := block.find(magic, place)) >= 0]
            if not found:
                break
            yield at + min(found) - _BEFORE_MAGIC
            place, tried = min(found) + 1, tried + 1
        # a magic code may lie across two blocks
        at += len(block) - _BEFORE_MAGIC + 1


def _said_at(stream: FileIO, at: int) -> tuple[int, int] | None:
    """(where the file begins, its size) by the record at a position; None when it is not whole."""
    head = os.pread(stream.fileno(), RECORD_HEAD_SIZE, at)
    if len(head) < RECORD_HEAD_SIZE or head[_BEFORE_MAGIC : 2 * _BEFORE_MAGIC] not in _MAGICS:
        return None
    length, _ = head_says(head)
    if not RECORD_HEAD_SIZE < length <= os.fstat(stream.fileno()).st_size - at:
        return None
    record = os.pread(stream.fileno(), length, at)
    try:
        if check_record(record) <= 0:
            return None
    except CorruptRecordError:
        return None
    begin = decode_record(record).phy_offset - at
    return (begin, length) if begin >= 0 else None
