"""``config/timercheck``: how far timer messages are delivered.

The first 56 bytes are RocketMQ's; a broker of RocketMQ that opens the store goes on from them.
Behind them stands what rmqcore knows beyond that. When the two contradict each other RocketMQ has
written last, and is believed. Byte for byte: docs/format/timercheck.md.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from rmqcore.errors import CorruptConfigFileError
from rmqcore.files.store_dir import NOT_A_FILE
from rmqcore.files.zeros import read_small
from rmqcore.world import sync_directory, sync_fd

NAME: Final = "timercheck"
#: The topic whose records wait until their time has come.
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
_SIZE: Final = 4096
#: lastReadTimeMs, lastTimerLogFlushPos, lastTimerQueueOffset, masterTimerQueueOffset, DataVersion
_JAVA: Final = struct.Struct(">7q")
_OWN_AT: Final = 64
_OWN: Final = struct.Struct(">8s4qI")
_MAGIC: Final = b"RMQCTIME"
_AHEAD_MAGIC: Final = b"RMQCAHEA"
_AHEAD: Final = struct.Struct(">3q")
_FIRST: Final = struct.Struct(">q")
#: The file has room for so many more pairs; without one messages come once more.
AHEAD_MAX: Final = 8
_INT64_MAX: Final = 2**63 - 1
_SLOT_MS: Final = 1000
#: RocketMQ's read time is the next slot's at most; by so much may a clock have been put back.
_PUT_BACK_MS_MAX: Final = 60_000


@dataclass(frozen=True, slots=True)
class TimerProgress:
    """Which records of ``rmq_sys_wheel_timer`` are delivered.

    Those below ``read_offset`` that come before (``due_ms``, ``due_offset``) in the order of
    delivery are, and those that ``ahead`` names; all others are not.

    Attributes:
        first_pending: queue offset of the first record that is not delivered.
        read_offset: queue offset of the first record that was not read.
        due_ms: when the next record is due, Unix time.
        due_offset: its queue offset, among those that are due at the same time.
        ahead: what was delivered beyond that before the clock was put back, as (offset, due, due
            offset): the records below the offset that come before the pair; the latest last.
    """

    first_pending: int
    read_offset: int
    due_ms: int
    due_offset: int
    ahead: tuple[tuple[int, int, int], ...] = ()

    def has_delivered(self, due_ms: int, offset: int) -> bool:
        """Tell whether a record is delivered.

        Args:
            due_ms: when it is due, Unix time.
            offset: its queue offset.
        """
        pairs = ((self.read_offset, self.due_ms, self.due_offset), *self.ahead)
        return any(offset < end and (due_ms, offset) < (ms, at) for end, ms, at in pairs)

    def before(self, due_ms: int, offset: int) -> TimerProgress:
        """The same, but that nothing is delivered from a record on, in the order of delivery.

        Args:
            due_ms: when the record is due, Unix time.
            offset: its queue offset.
        """
        first = due_ms, offset
        ahead = tuple((below, *min((ms, at), first)) for below, ms, at in self.ahead)
        due_ms, due_offset = min((self.due_ms, self.due_offset), first)
        return replace(self, due_ms=due_ms, due_offset=due_offset, ahead=ahead)

    def up_to(self, end: int) -> TimerProgress:
        """The same of a queue that ends at an offset: what is put there next is not delivered."""
        first, read = min(self.first_pending, end), min(self.read_offset, end)
        ahead = tuple((min(below, end), ms, at) for below, ms, at in self.ahead)
        return replace(self, first_pending=first, read_offset=read, ahead=ahead)


class TimerCheck:
    """The file.

    Threads: one caller at a time.
    Durability: disk when `store` returns; a power cut leaves the former file or the new one.
    Source: RocketMQ store/timer/TimerCheckpoint.java.
    """

    def __init__(self, directory: Path, check_there: Callable[[], object] = bool) -> None:
        """Name the file in a store's ``config`` folder; nothing is opened.

        Args:
            directory: the folder.
            check_there: raises when it is another store's.
        """
        self.path = directory / NAME
        self._check_there = check_there

    def expect_file(self) -> None:
        """Refuse what is no file in its place.

        Raises:
            CorruptConfigFileError: there is such.
        """
        if self.path.exists() and not self.path.is_file():
            raise CorruptConfigFileError(self.path, -1, NOT_A_FILE)

    def load(self, now_ms: int | None = None) -> TimerProgress | None:
        """Read it; None when it is missing, or cannot be one.

        Args:
            now_ms: Unix time: who says to have delivered what is due later has rotted; None: it is
                taken as it is.

        Raises:
            OSError: it cannot be read.
        """
        raw = self._read()
        return None if raw is None else _progress(raw, now_ms)

    def answer_body(self, now_ms: int) -> bytes:
        """What request 60 is answered with, as a broker of RocketMQ that has a wheel says it.

        Behind that stands the first message that is not delivered, which RocketMQ does not read.

        Delivered is what lies below the queue offset in seconds before the read time. That is never
        more than `load` says, and less by one second at most. The read time is not in the future:
        whoever goes on from there would deliver at once what is put for a time before it.

        Args:
            now_ms: Unix time.

        Raises:
            OSError: the file cannot be read.
        """
        raw = self._read()
        progress = None if raw is None else _progress(raw, now_ms)
        if raw is None or progress is None:
            return bytes(_JAVA.size)
        read_time_ms = (progress.due_ms - 1) // _SLOT_MS * _SLOT_MS
        if progress.first_pending == progress.read_offset:
            read_time_ms += _SLOT_MS
        read_time_ms = min(read_time_ms, now_ms // _SLOT_MS * _SLOT_MS)
        version = _JAVA.unpack_from(raw)[4:]
        read = progress.read_offset
        told = _JAVA.pack(read_time_ms, 0, read, read, *version)
        return told + _FIRST.pack(progress.first_pending)

    def _read(self) -> bytes | None:
        """The file's bytes; None when it is missing, or too short to be one."""
        try:
            raw = read_small(self.path)
        except FileNotFoundError:
            return None
        except IsADirectoryError as error:
            raise CorruptConfigFileError(self.path, -1, NOT_A_FILE) from error
        return raw if len(raw) >= _JAVA.size else None

    def store(self, progress: TimerProgress, now_ms: int) -> None:
        """Replace it.

        Args:
            progress: what it says.
            now_ms: Unix time, which is its version.

        Raises:
            OSError: it cannot be written; the former one is still in place.
        """
        first = progress.first_pending
        raw = bytearray(_SIZE)
        _JAVA.pack_into(raw, 0, 0, 0, first, first, 0, now_ms, 1)
        _put_own(raw, progress)
        temporary = self.path.with_name(NAME + ".tmp")
        self._check_there()
        # this directory only: a store that was removed must not come into being again
        self.path.parent.mkdir(exist_ok=True)
        with temporary.open("wb") as file:
            file.write(raw)
            file.flush()
            sync_fd(file.fileno())
        temporary.replace(self.path)
        sync_directory(self.path.parent)

    def keep_up_to(self, end: int, now_ms: int) -> TimerProgress | None:
        """Let nothing count as delivered that lies behind the queue's end; before a put there.

        What is put behind it would count as delivered.

        Args:
            end: queue offset behind the last record of `TIMER_TOPIC`.
            now_ms: Unix time.

        Returns:
            what the file says from now on; None when it says nothing.

        Raises:
            OSError: it cannot be read or written.
        """
        known = self.load(now_ms)
        reached = None if known is None else known.up_to(end)
        if reached is not None and reached != known:
            self.store(reached, now_ms)
        return reached

    def set_back(self, end: int) -> bytes | None:
        """What the file has to hold when the queue of timer messages ends at an offset.

        What is put behind that end would count as delivered.

        Args:
            end: queue offset behind the last record of `TIMER_TOPIC`.

        Returns:
            the file's bytes; None when it names nothing behind the end, or is missing.

        Raises:
            OSError: it cannot be read.
        """
        raw = self._read()
        if raw is None:
            return None
        head, offsets, rest = (values := _JAVA.unpack_from(raw))[:2], values[2:4], values[4:]
        own, mended = _own(raw), bytearray(raw)
        _JAVA.pack_into(mended, 0, *head, *(min(offset, end) for offset in offsets), *rest)
        if own is not None:
            _put_own(mended, own.up_to(end))
        return None if mended == raw else bytes(mended)

    def forget_wheel(self, root: Path) -> None:
        """Remove RocketMQ's wheel and its log, which this file's content makes superfluous.

        They name records that are delivered here without them; a broker of RocketMQ rebuilds both
        from ``rmq_sys_wheel_timer``.

        Args:
            root: the store's directory.
        """
        (root / "timerwheel").unlink(missing_ok=True)
        for file in sorted((root / "timerlog").glob("[0-9]*")):
            file.unlink(missing_ok=True)


def progress_told(body: bytes) -> tuple[TimerProgress, bool]:
    """What a master says in its answer to request 60, RocketMQ's or ours.

    Returns:
        that, and whether it says which is the first message that is not delivered; one of RocketMQ
        does not, and it is 0.

    Raises:
        ValueError: it is no such answer.
    """
    progress = _progress(body[: _JAVA.size]) if len(body) >= _JAVA.size else None
    if progress is None:
        raise ValueError(f"{len(body)} bytes that are no progress of a timer")
    if len(body) < _JAVA.size + _FIRST.size:
        return progress, False
    (first,) = _FIRST.unpack_from(body, _JAVA.size)
    if not 0 <= first <= progress.read_offset:
        raise ValueError(f"{first} of {progress.read_offset} messages cannot be the first to come")
    return replace(progress, first_pending=first), True


def _progress(raw: bytes, now_ms: int | None = None) -> TimerProgress | None:
    """What the file's bytes say, at a Unix time; None when they say nonsense."""
    read_time_ms, log_position, queue_offset, master_offset, *version = _JAVA.unpack_from(raw)
    own = _own(raw)
    # a broker of RocketMQ has a read time as soon as it has run: where there is none, a byte has
    # rotted; where it has put nothing into its wheel, it has delivered nothing
    is_ours = (read_time_ms, log_position, version[0], version[2]) == (0, 0, 0, 1)
    if own is not None and (is_ours or queue_offset == master_offset == own.first_pending):
        return own
    if min(read_time_ms, queue_offset, master_offset) < 0 or read_time_ms == _INT64_MAX:
        return None
    if now_ms is not None and read_time_ms > now_ms + _PUT_BACK_MS_MAX:
        return None
    first = min(queue_offset, master_offset)
    if is_ours:
        return TimerProgress(first, first, 1, 0)
    # RocketMQ has delivered every slot before its read time, of what it had put into the wheel
    return TimerProgress(0, first, read_time_ms + 1, 0)


def _put_own(raw: bytearray, progress: TimerProgress) -> None:
    fields = (progress.first_pending, progress.read_offset)
    numbers = struct.pack(">4q", *fields, progress.due_ms, progress.due_offset)
    ahead = b"".join(_AHEAD.pack(*each) for each in progress.ahead[-AHEAD_MAX:])
    raw[_OWN_AT:] = bytes(len(raw) - _OWN_AT)
    _put_with_crc(raw, _OWN_AT, _MAGIC + numbers)
    if ahead:
        full = ahead.ljust(AHEAD_MAX * _AHEAD.size, b"\0")
        _put_with_crc(raw, _OWN_AT + _OWN.size, _AHEAD_MAGIC + full)


def _put_with_crc(raw: bytearray, at: int, part: bytes) -> None:
    raw[at : at + len(part) + 4] = part + struct.pack(">I", zlib.crc32(part))


def _own(raw: bytes) -> TimerProgress | None:
    """What stands behind RocketMQ's part; None when it is not ours, or damaged."""
    if len(raw) < _OWN_AT + _OWN.size:
        return None
    magic, first, read, due_ms, due_offset, crc = _OWN.unpack_from(raw, _OWN_AT)
    sound = zlib.crc32(raw[_OWN_AT : _OWN_AT + _OWN.size - 4]) == crc
    if magic != _MAGIC or not sound or min(first, read, due_offset) < 0:
        return None
    return TimerProgress(first, read, due_ms, due_offset, _ahead(raw))


def _ahead(raw: bytes) -> tuple[tuple[int, int, int], ...]:
    """What stands behind that; nothing when it is damaged."""
    at, size = _OWN_AT + _OWN.size, len(_AHEAD_MAGIC) + AHEAD_MAX * _AHEAD.size
    part = bytes(raw[at : at + size])
    crc = struct.pack(">I", zlib.crc32(part))
    if not part.startswith(_AHEAD_MAGIC) or bytes(raw[at + size : at + size + 4]) != crc:
        return ()
    numbers = _AHEAD.iter_unpack(part[len(_AHEAD_MAGIC) :])
    return tuple((below, due_ms, offset) for below, due_ms, offset in numbers if below > 0)
