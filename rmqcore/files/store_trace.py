"""The store's trace: its last 200 events, for who looks for what went before a failure.

They lie in a small mapped file below ``config/``, which outlives a kill and which other processes
read. It says nothing that the store needs: nothing waits for it, and where it cannot be written the
trace is in memory only. RocketMQ never reads it.

Layout: docs/format/store-trace.md.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
import struct
import threading
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from rmqcore.errors import CorruptStoreError
from rmqcore.native.base._lock import ReentrantLock
from rmqcore.native.base._mapped import MappedRegion, reserve
from rmqcore.world import monotonic_s

if TYPE_CHECKING:
    from pathlib import Path

#: The kinds of events; a kind's number in a row is its place here.
EVENTS: Final = (
    "put",
    "dispatch",
    "roll",
    "flush",
    "commit",
    "mark",
    "checkpoint",
    "verdict",
    "flag",
    "refused",
    "expired",
    "topic",
    "open",
    "close",
)
ROWS_MAX: Final = 200
_HEADER: Final = b"rmqcore trace 1\n".ljust(64, b"\0")
#: kind, time, log end, flushed, dispatched, count, thread, words, number
_BODY: Final = struct.Struct("<I5q28s76sQ")
_CHECKSUM_SIZE: Final = 4
_ROW_SIZE: Final = _CHECKSUM_SIZE + _BODY.size
TRACE_SIZE: Final = len(_HEADER) + ROWS_MAX * _ROW_SIZE
#: The last millisecond that has a date; a row with a later time is passed over.
_TIME_MAX_MS: Final = 253_402_300_799_999
#: A file with a row of this number or a higher one is begun anew: none of ours has one.
_NUMBER_MAX: Final = 1 << 53
#: Dispatches that follow each other more quickly than this are one row.
_DISPATCH_EVERY_S: Final = 0.01
_KINDS: Final = {event: kind for kind, event in enumerate(EVENTS)}
#: log end, flushed offset, dispatched offset, messages put
Numbers: TypeAlias = tuple[int, int, int, int]
_UNKNOWN: Final[Numbers] = (-1, -1, -1, 0)


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One event of a store.

    Attributes:
        number: counts the store's rows.
        time_ms: of the store's clock, Unix milliseconds.
        thread: name of the thread; empty where the row sums up what any of them did.
        event: what it was, see docs/cli.md, ``stat``.
        log_end, flushed, dispatched: physical offsets then; -1 while the store is being opened.
        count: how many, of what the event says.
        words: what else there is to say.
    """

    number: int
    time_ms: int
    thread: str
    event: str
    log_end: int
    flushed: int
    dispatched: int
    count: int
    words: str


class Note(Protocol):
    """Takes an event down: `StoreTrace.note`."""

    def __call__(self, event: str, count: int = 0, words: str = "") -> None:
        """See `StoreTrace.note`."""
        ...


def unnoted(event: str, count: int = 0, words: str = "") -> None:
    """Take nothing down, for parts that belong to no open store; see `StoreTrace.note`."""


def error_words(error: BaseException) -> str:
    """An error in few words: without the path, which all rows of a trace have in common."""
    if isinstance(error, CorruptStoreError):
        return f"{type(error).__name__} at {error.phy_offset}: {error.reason}"
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return f"{type(error).__name__}: {said}"


class StoreTrace:
    """The ring of a store's last 200 events.

    - Puts are not noted, which would cost them more than they cost themselves: a row says how many
      there were since the one before it, and is made when there is another event, or somebody
      reads. So it is with dispatches that follow one another within 10 ms.
    - A row is written by one copy of bytes. No lock is waited for, so a signal handler or a
      finalizer may come here from anywhere.

    Args:
        path: the file; nothing is opened before `open`.
        clock_ms: Unix time in milliseconds.

    Threads: any.
    Durability: survives the process; after a power cut rows may be missing.
    """

    def __init__(self, path: Path, clock_ms: Callable[[], int]) -> None:
        self.path = path
        self._clock_ms = clock_ms
        #: the mapped file, or plain memory without one
        self._bytes: memoryview | bytearray = bytearray(_HEADER.ljust(TRACE_SIZE, b"\0"))
        self._next = itertools.count(1)
        self._numbers: Callable[[], Numbers] = lambda: _UNKNOWN
        #: the numbers that the last row about puts and dispatches told
        self._seen = _UNKNOWN
        self._summing = ReentrantLock(counted=False)
        self._dispatched_at = 0.0
        self._refusal = ""

    def open(self) -> None:
        """Go on behind the rows of the file, and in it where that can be."""
        with suppress(OSError):
            fd = _opened(self.path, os.O_RDWR | os.O_CREAT)
            try:
                self._load_rows(fd)
            finally:
                os.close(fd)

    def _load_rows(self, fd: int) -> None:
        found = os.pread(fd, TRACE_SIZE, 0)
        rows = _rows_at(found)
        last = max(rows.values(), default=0)
        image = bytearray(self._bytes)
        if last < _NUMBER_MAX:
            for at in rows:
                image[at : at + _ROW_SIZE] = found[at : at + _ROW_SIZE]
            self._next = itertools.count(last + 1)
        self._bytes = image
        # a write to a mapping must not find the disk full
        if not reserve(fd, 0, TRACE_SIZE) or found != image:
            _write(fd, image)
        os.ftruncate(fd, TRACE_SIZE)
        self._bytes = memoryview(MappedRegion(fd, TRACE_SIZE, path=self.path))

    def let_go(self) -> None:
        """Let the file go, which another may go on with; the rows stay in memory."""
        self._bytes = bytearray(self._bytes)

    # ---- taking down

    def watch(self, numbers: Callable[[], Numbers]) -> None:
        """From now on rows say these numbers, and what moves them becomes rows of its own."""
        self._seen = numbers()
        self._numbers = numbers

    def note(self, event: str, count: int = 0, words: str = "") -> None:
        """Take one event down; never raises.

        Args:
            event: one of `EVENTS`. A refusal that repeats the last row is not taken down again.
            count: how many.
            words: what else to say; as many as there is room for are kept.
        """
        if event == "refused":
            if words == self._refusal:
                return
            self._refusal = words
        else:
            self._refusal = ""
        thread = threading.current_thread().name
        self._add(event, self._sum_up(), count, thread, words)

    def dispatched(self) -> None:
        """Note that the dispatched offset has moved, unless it did so a moment ago."""
        now = monotonic_s()
        if now - self._dispatched_at >= _DISPATCH_EVERY_S:
            self._dispatched_at = now
            self._sum_up(threading.current_thread().name)

    def _sum_up(self, dispatcher: str = "") -> Numbers:
        """Make rows of what has moved the numbers; returns these."""
        now = self._numbers()
        with self._summing.within(0.0) as mine:
            # otherwise another thread is doing it, or a call of this thread that was interrupted
            if mine and self._summing.depth == 1:
                _, _, dispatched, puts = self._seen
                self._seen = now
                if now[3] > puts:
                    self._add("put", now, now[3] - puts)
                if now[2] > dispatched:
                    self._add("dispatch", now, now[2] - dispatched, dispatcher)
        return now

    def _add(
        self, event: str, numbers: Numbers, count: int, thread: str = "", words: str = ""
    ) -> None:
        number = next(self._next)
        end, flushed, dispatched, _ = numbers
        time_ms, name, text = (
            self._clock_ms(),
            thread.encode(errors="replace"),
            words.encode(errors="replace"),
        )
        try:
            body = _BODY.pack(
                _KINDS[event], time_ms, end, flushed, dispatched, count, name, text, number
            )
        except struct.error:
            # a clock may say anything
            return
        at = _place_of(number)
        checksum = zlib.crc32(body).to_bytes(_CHECKSUM_SIZE, "little")
        self._bytes[at : at + _ROW_SIZE] = checksum + body

    # ---- reading

    def rows(self) -> list[TraceRow]:
        """The last events, newest last."""
        self._sum_up()
        return _decoded(bytes(self._bytes))


def read_trace(path: Path) -> list[TraceRow]:
    """The rows of a trace's file, newest last, while its store is open, closed or killed.

    What is no whole row is passed over; a file that is none of ours, or cannot be read, has none.
    """
    with suppress(OSError):
        fd = _opened(path, os.O_RDONLY)
        try:
            return _decoded(os.pread(fd, TRACE_SIZE, 0))
        finally:
            os.close(fd)
    return []


def _opened(path: Path, flags: int) -> int:
    """Open a file that may be anything.

    Raises:
        OSError: it is no file, or the system refused.
    """
    fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is no file", str(path))
    return fd


def _write(fd: int, data: bytearray) -> None:
    rest, at = memoryview(data), 0
    while rest:
        count = os.pwrite(fd, rest, at)
        rest, at = rest[count:], at + count


def _place_of(number: int) -> int:
    return len(_HEADER) + (number - 1) % ROWS_MAX * _ROW_SIZE


def _rows_at(data: bytes) -> dict[int, int]:
    """Where whole rows lie, with their numbers."""
    found: dict[int, int] = {}
    if not data.startswith(_HEADER):
        return found
    for at in range(len(_HEADER), len(data) - _ROW_SIZE + 1, _ROW_SIZE):
        body = data[at + _CHECKSUM_SIZE : at + _ROW_SIZE]
        if zlib.crc32(body) != int.from_bytes(data[at : at + _CHECKSUM_SIZE], "little"):
            continue
        kind, time_ms, end, flushed, dispatched, count, _, _, number = _BODY.unpack(body)
        if (
            kind < len(EVENTS)
            and 0 <= time_ms <= _TIME_MAX_MS
            and min(end, flushed, dispatched) >= -1
            and count >= 0
            and number > 0
            and _place_of(number) == at
        ):
            found[at] = number
    return found


def _decoded(data: bytes) -> list[TraceRow]:
    rows = []
    for at in _rows_at(data):
        kind, time_ms, end, flushed, dispatched, count, thread, words, number = _BODY.unpack_from(
            data, at + _CHECKSUM_SIZE
        )
        rows.append(
            TraceRow(
                number,
                time_ms,
                _text(thread),
                EVENTS[kind],
                end,
                flushed,
                dispatched,
                count,
                _text(words),
            )
        )
    return sorted(rows, key=lambda row: row.number)


def _text(raw: bytes) -> str:
    """What can be shown of a text that may be cut off in the middle of a letter."""
    text = raw.rstrip(b"\0").decode(errors="ignore")
    return "".join(letter if letter.isprintable() else "?" for letter in text)
