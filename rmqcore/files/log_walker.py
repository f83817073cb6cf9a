"""The walk over one log file, and the search for good records where it is broken.

One walk for all who follow the log: `FileWalk` feeds a kernel piece by piece and tells after each
call where it stands and why. It never decides what damage means, the caller does::

    walk = FileWalk(view_of(file), batch.scan, start, stop, file_end=file_end)
    for step in walk:
        ...                             # take what the kernel has made
        if not step.is_good:            # no good record begins at step.phy_offset
            walk.go_on(following)       # or the walk is over
    # step.status is OK, all up to `stop`, or BLANK: the log goes on in the next file

`find_good_record` finds where to go on. A record is good when it is whole, names its own physical
offset and has a right CRC: nothing else looks like that by chance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from rmqcore.errors import is_bad_sector
from rmqcore.files.commit_log import View
from rmqcore.files.zeros import PAGE_SIZE
from rmqcore.native.format._message_ext import status_text
from rmqcore.native.format._next_record import (
    RECORD_HEAD_SIZE,
    ScanStatus,
    find_head,
    next_record,
)

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from rmqcore.files.log_file import LogFile
    from rmqcore.files.mapped_file import MappedFile
    from rmqcore.files.mapped_file_queue import MappedFileQueue

#: bytes read at once; a larger record is read whole all the same
PIECE_SIZE = 512 << 10
_GROWTH = 16
_STATUS = {int(status): status for status in ScanStatus}
_READ_SIZE = 1 << 20


class Kernel(Protocol):
    """A native function that works on records: `DispatchBatch.scan`, `ColumnDecoder.decode`."""

    def __call__(
        self, buffer: ReadableBuffer, at: int, stop: int, /, *, base_offset: int
    ) -> tuple[int, int]:
        """Work on the records between two positions: (where it stopped, why)."""
        ...


#: readable bytes of one log file from a physical offset on, this many or what there is
LogView = Callable[[int, int], View]


class LogStep(NamedTuple):
    """Where a walk stands after a call of the kernel.

    Attributes:
        status: OK: it goes on, or has come to its end. CAPACITY: the kernel's arrays are full, it
            goes on when they have been taken. BLANK: the end-of-file record. EMPTY, or negative:
            no good record begins here, and the walk is over.
        phy_offset: behind the last record that the kernel took.
    """

    status: ScanStatus
    phy_offset: int

    @property
    def is_good(self) -> bool:
        """False when there is no good record where one should be."""
        return self.status >= 0 and self.status is not ScanStatus.EMPTY

    @property
    def reason(self) -> str:
        """What lies here, as a reason in an error."""
        return status_text(self.status)


def walk_file(
    view: LogView,
    kernel: Kernel,
    start: int,
    stop: int,
    *,
    file_end: int,
    piece_size: int = PIECE_SIZE,
    first_piece_size: int | None = None,
) -> Iterator[LogStep]:
    """Feed a stretch of one log file to a kernel.

    Args:
        view: gives the bytes: `view_of` a file, or `CommitLog.view`.
        kernel: takes whole records.
        start: physical offset of the first record.
        stop: physical offset where the walk ends; a record that ends behind it is TRUNCATED.
        file_end: physical offset where the file ends.
        piece_size: bytes that are asked for at once.
        first_piece_size: bytes that are asked for at first; they grow from there.

    Yields:
        a step after each call of the kernel. What the kernel has made is to be taken then, before
        the buffer changes. The last one says why the walk is over.
    """
    at, size = start, first_piece_size or piece_size
    wanted = size
    while at < stop:
        piece = view(at, min(wanted, stop - at))
        end = min(piece.end, stop - piece.base_offset)
        while True:
            reached, code = kernel(
                piece.buffer, at - piece.base_offset, end, base_offset=piece.base_offset
            )
            at, status = piece.base_offset + reached, _STATUS[code]
            if status is not ScanStatus.CAPACITY:
                break
            yield LogStep(status, at)
        wanted = size = min(_GROWTH * size, piece_size)
        if status is ScanStatus.BLANK or status is ScanStatus.TRUNCATED:
            status, needed, _ = next_record(
                piece.buffer, reached, end, base_offset=piece.base_offset, file_end=file_end
            )
            if status is ScanStatus.PARTIAL:
                # cut off by the end of what was read, or of what may be walked
                status = ScanStatus.OK if needed <= stop - at else ScanStatus.TRUNCATED
                wanted = max(size, needed)
        yield LogStep(status, at)
        if status is not ScanStatus.OK:
            return


class FileWalk:
    """The steps over one log file, behind damage, too, where whoever meets it says so.

    Args:
        view, kernel, start, stop, file_end, piece_size: see `walk_file`.
    """

    def __init__(
        self,
        view: LogView,
        kernel: Kernel,
        start: int,
        stop: int,
        *,
        file_end: int,
        piece_size: int = PIECE_SIZE,
    ) -> None:
        self._at = start
        self._stop = stop
        self._walked_from = partial(
            walk_file, view, kernel, stop=stop, file_end=file_end, piece_size=piece_size
        )

    def go_on(self, phy_offset: int) -> None:
        """Go on at a physical offset behind the step that was handed out last."""
        self._at = phy_offset

    def __iter__(self) -> Iterator[LogStep]:
        while self._at < self._stop:
            at, self._at = self._at, self._stop
            yield from self._walked_from(at)


def view_of(file: LogFile) -> LogView:
    """The bytes of a log file: mapped whole where the file is ours, else read piece by piece.

    What was read of another process's file is good until the next piece. In front of a place that
    the disk refuses to give a piece is shorter; where even that was not enough, it is refused.
    """
    if file.writable:
        mine = cast("MappedFile", file)
        return lambda _offset, _size: View(mine.region, mine.file_from_offset, mine.size, mine.path)
    return _Pieces(file)


class _Pieces:
    """Reads pieces of a file into a buffer that is used again."""

    def __init__(self, file: LogFile) -> None:
        self._file = file
        self._buffer = bytearray()
        #: where the piece begins that is shorter than was asked for; -1 for none
        self._short_at = -1

    def __call__(self, offset: int, size: int) -> View:
        if len(self._buffer) < size:
            self._buffer = bytearray(size)
        piece = memoryview(self._buffer)[:size]
        at = offset - self._file.file_from_offset
        try:
            self._file.read_into(at, piece)
        except OSError as error:
            if not is_bad_sector(error) or offset == self._short_at:
                raise
            self._short_at = offset
            size = next(_refused_pages(self._file, at, piece), size)
            if not size:
                raise
        return View(piece[:size], offset, size, self._file.path)


def _refused_pages(file: LogFile, at: int, piece: memoryview) -> Iterator[int]:
    """Fill a piece page by page: the first byte of each that the disk refuses, which is zeros."""
    for page in range(-(at % PAGE_SIZE), len(piece), PAGE_SIZE):
        start, stop = max(0, page), min(page + PAGE_SIZE, len(piece))
        try:
            file.read_into(at + start, piece[start:stop])
        except OSError as error:
            if not is_bad_sector(error):
                raise
            piece[start:stop] = bytes(stop - start)
            yield start


# ---- good records


class GoodRecord(NamedTuple):
    """Where a record was found, and when it was stored."""

    phy_offset: int
    end_offset: int
    store_timestamp_ms: int

    @property
    def size(self) -> int:
        """Bytes that it takes."""
        return self.end_offset - self.phy_offset


def good_record_at(file: LogFile, at: int, stop: int | None = None) -> GoodRecord | None:
    """The record at byte ``at`` of a log file, or None.

    Args:
        file: the file.
        at: position in the file.
        stop: position that the record must not go beyond; None for the file's end.

    Raises:
        CorruptStoreError: the file has become shorter than it was.
    """
    stop = file.size if stop is None else stop
    if not 0 <= at <= stop - RECORD_HEAD_SIZE:
        return None
    offset, end = file.file_from_offset + at, file.file_from_offset + stop
    head = file.read(at, RECORD_HEAD_SIZE)
    status, size, _ = next_record(head, 0, len(head), base_offset=offset, file_end=end)
    if status is not ScanStatus.PARTIAL:
        return None
    record = file.read(at, size)
    status, size, stored = next_record(
        record, 0, size, base_offset=offset, file_end=end, verify_crc=True
    )
    return GoodRecord(offset, offset + size, stored) if status is ScanStatus.OK else None


def first_record(file: LogFile) -> GoodRecord | None:
    """The record that a log file begins with, or None."""
    return good_record_at(file, 0)


def find_good_record(
    files: Sequence[LogFile],
    at: int = 0,
    stop: int | None = None,
    *,
    past_bad_sectors: bool = False,
) -> GoodRecord | None:
    """The first good record from byte ``at`` of the first file on.

    Args:
        files: log files in order.
        at: position in the first one.
        stop: position in each that records must not go beyond; None for the file's end.
        past_bad_sectors: a record that the disk refuses to give is none. Only for who reads:
            whoever cuts or covers what is no record would lose it.
    """
    for file in files:
        for position in record_heads(file, at, past_bad_sectors=past_bad_sectors):
            try:
                record = good_record_at(file, position, stop)
            except OSError as error:
                if not (past_bad_sectors and is_bad_sector(error)):
                    raise
                continue
            if record is not None:
                return record
        at = 0
    return None


def record_heads(file: LogFile, at: int, *, past_bad_sectors: bool = False) -> Iterator[int]:
    """Positions from ``at`` on where a record's magic code and its own offset stand, in order.

    Stretches that were never written, which is what most of a log's last file is, are not read.

    Args:
        file: of the log.
        at: position in the file.
        past_bad_sectors: no record begins where the disk refuses to give what is there.

    Raises:
        CorruptStoreError: the file has become shorter than it was.
    """
    for begin, stop in file.data_stretches(at):
        # a record whose size begins with zeros may begin before the first byte that is not 0
        for first in range(max(at, begin - RECORD_HEAD_SIZE), stop, _READ_SIZE):
            # the buffer ends with zeros
            data = bytearray(min(_READ_SIZE, stop - first) + RECORD_HEAD_SIZE)
            with memoryview(data) as view:
                try:
                    file.read_into(first, view[: stop - first])
                except OSError as error:
                    if not (past_bad_sectors and is_bad_sector(error)):
                        raise
                    for _ in _refused_pages(file, first, view[: stop - first]):
                        pass
            base_offset = file.file_from_offset + first
            found = find_head(data, 0, len(data), base_offset=base_offset)
            while 0 <= found < _READ_SIZE:
                yield first + found
                found = find_head(data, found + 1, len(data), base_offset=base_offset)


def walk_good_records(
    queue: MappedFileQueue, kernel: Kernel, start: int, end: int
) -> Iterator[LogStep]:
    """Feed the good records between two physical offsets to a kernel, whatever lies between them.

    Args:
        queue: the log's files.
        kernel: takes whole records.
        start: physical offset of a record.
        end: physical offset behind the last one.

    Yields:
        a step after each call of the kernel; as `walk_file`.

    Raises:
        CorruptStoreError: a file has become shorter than it was.
    """
    while start < end:
        file = queue.find(start)
        if file is None:
            return
        yield from walk_good_records_of(file, kernel, start, end)
        start = file.file_from_offset + file.size


def walk_good_records_of(
    file: MappedFile, kernel: Kernel, start: int, end: int
) -> Iterator[LogStep]:
    """As `walk_good_records`, in one file.

    Args:
        file: of the log.
        kernel: takes whole records.
        start: physical offset of a record in the file.
        end: physical offset behind the last one, in the file or behind it.
    """
    file_end = file.file_from_offset + file.size
    walk = FileWalk(view_of(file), kernel, start, min(end, file_end), file_end=file_end)
    for step in walk:
        yield step
        if not step.is_good:
            position = step.phy_offset - file.file_from_offset
            following = find_good_record([file], position + 1)
            if following is not None:
                walk.go_on(following.phy_offset)
