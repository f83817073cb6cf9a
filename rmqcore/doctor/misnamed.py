"""Log files that have each other's names, as a copy by hand may leave them.

All of their records are whole, and none lies where it says. To cover them would give up all.
"""

from __future__ import annotations

from pathlib import Path

from rmqcore._codec import check_record, decode_record
from rmqcore.errors import CorruptRecordError
from rmqcore.files.mapped_file_queue import offset_to_file_name
from rmqcore.native.format._next_record import RECORD_HEAD_SIZE, head_says


def misnamed(files: list[tuple[int, Path, int]]) -> list[tuple[Path, str]]:
    """(log file, the name that its first record says) of those that have another.

    A second copy of a file that lies in its place is not among them.

    Args:
        files: (physical offset, path, bytes) of each log file.
    """
    said = {start: place_said_by(path, size) for start, path, size in files}
    found = []
    for start, path, _ in files:
        place = said[start]
        if place is not None and place != start and said.get(place) != place:
            found.append((path, offset_to_file_name(place)))
    return found


def place_said_by(path: Path, size: int) -> int | None:
    """Where a file's first record says that it lies; None when it is not whole."""
    with path.open("rb") as stream:
        head = stream.read(RECORD_HEAD_SIZE)
        length, _ = head_says(head)
        if not RECORD_HEAD_SIZE < length <= size:
            return None
        record = head + stream.read(length - len(head))
    try:
        return decode_record(record).phy_offset if check_record(record) > 0 else None
    except CorruptRecordError:
        return None
