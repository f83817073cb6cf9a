"""A log that is not its master's: where they part, and the way back, on an operator's word.

The master is asked over the replication port alone, so that a Java master does as well: whoever
reports an offset there gets the bytes from it on.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import socket
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from rmqcore.files.mapped_file_queue import numbered_files
from rmqcore.files.store_dir import StoreDir, sync_directory
from rmqcore.ha.frames import OFFSET_MAX, REPORT, FrameReader
from rmqcore.ha.sockets import connect, send_all

_CONNECT_TIMEOUT_S: Final = 5.0
#: a master sends a heart-beat every 5 s when it has nothing else
_SILENCE_S: Final = 20.0
#: how often a slave says that it is there
_REPORT_S: Final = 5.0
#: the first heart-beat may come before the report was looked at, the second does not
_IDLE_MAX: Final = 2
#: the byte that a log can be asked for from: a report of 0 asks for the last file only, and byte 0
#: is the first of a record's size, which is below 16 MiB
_FIRST: Final = 1
_LOOK: Final = 1 << 20


class ReadLog(Protocol):
    """A log that is compared."""

    @property
    def min_phy_offset(self) -> int:
        """Physical offset of the first byte."""
        ...

    @property
    def max_phy_offset(self) -> int:
        """Physical offset behind the last whole record."""
        ...

    @property
    def log_file_size(self) -> int:
        """Bytes of a log file."""
        ...

    def bytes_at(self, phy_offset: int, size: int) -> memoryview | None:
        """Bytes of the log as they are, at most ``size``; None: there are none."""
        ...

    def record_begin(self, phy_offset: int) -> int:
        """Where the record begins that holds a byte."""
        ...


class AppendedLog(Protocol):
    """A log that is gone on with."""

    @property
    def log_file_size(self) -> int:
        """Bytes of a log file."""
        ...

    def append_data(self, data: bytes, phy_offset: int) -> None:
        """Append bytes of the other side's log."""
        ...

    def drop_partial(self) -> int:
        """Take back a part of a record at the end; the offset behind the last whole one."""
        ...


@dataclass(frozen=True, slots=True)
class Divergence:
    """How far a slave's log is its master's.

    Attributes:
        begin: offset where the slave's log begins.
        common_end: both have the same records up to here; ``begin`` when they have none in common.
        end: offset where the slave's log ends.
        master_goes_on: whether the master has something else there, not only nothing yet.
    """

    begin: int
    common_end: int
    end: int
    master_goes_on: bool

    @property
    def in_order(self) -> bool:
        """Whether the master can continue the slave's log as it is."""
        return self.common_end == self.end


async def find_divergence(
    log: ReadLog, address: str, progress: Callable[[int, int], None] = lambda _done, _total: None
) -> Divergence:
    """Compare all that a log and a master's have both, from where both begin to where they part.

    Two logs that have parted are alike by chance in single bytes, often, and in whole records that
    say nothing, so only what is the same from the beginning on counts.

    Args:
        log: the slave's.
        address: replication port of the master, ``host:port``.
        progress: called with the bytes compared and those to compare.

    Raises:
        OSError: the master cannot be reached, or says nothing.
        ValueError: it is no address.
        HAError: what answers there is no master.
    """
    begin, end = log.min_phy_offset, log.max_phy_offset
    if end <= max(begin, _FIRST):
        return Divergence(begin, end, end, False)
    start = await _first_sent(address, begin, end, log.log_file_size)
    if start is None:
        return Divergence(begin, begin, end, False)
    same, differs = await _same_from(
        log, address, start, end, lambda at: progress(at - start, end - start)
    )
    if same == end:
        return Divergence(begin, end, end, False)
    # a cut inside of a record would leave one whose end is zeros, and may pass for whole
    common_end = begin if same == start else log.record_begin(same)
    return Divergence(begin, common_end, end, differs)


async def _first_sent(address: str, begin: int, end: int, file_size: int) -> int | None:
    """The lowest offset, of those in question, that a master sends; None: it has none of them."""
    if await _sent_first(address, max(begin, _FIRST)) is not None:
        return max(begin, _FIRST)
    # 0 is answered by an offset that it has
    known = await _sent_first(address, 0)
    if known is None:
        return None
    starts = range(begin - begin % file_size + file_size, min(end, known + 1), file_size)
    low, high = 0, len(starts)
    while low < high:
        middle = (low + high) // 2
        if await _sent_first(address, starts[middle]) is None:
            low = middle + 1
        else:
            high = middle
    return starts[low] if low < len(starts) else None


async def _sent_first(address: str, offset: int) -> int | None:
    """The offset of what a master sends first when it is asked for one; None: it sends nothing."""
    async with aclosing(_sent_from(address, offset)) as sent:
        async for begin, _ in sent:
            return begin
    return None


async def _same_from(
    log: ReadLog, address: str, at: int, stop: int, progress: Callable[[int], None]
) -> tuple[int, bool]:
    """Up to where both are the same from an offset on, and whether the master differs there."""
    async with aclosing(_sent_from(address, at)) as sent:
        async for offset, theirs in sent:
            ours = bytes(log.bytes_at(offset, min(len(theirs), stop - offset)) or b"")
            if ours != theirs[: len(ours)]:
                pairs = enumerate(zip(ours, theirs, strict=False))
                return offset + next(number for number, (a, b) in pairs if a != b), True
            at = offset + len(ours)
            progress(at)
            if at >= stop or len(ours) < len(theirs):
                break
    return at, False


async def _sent_from(address: str, offset: int) -> AsyncGenerator[tuple[int, bytes], None]:
    """What a master sends from an offset on, until heart-beats say that this is all.

    Raises:
        OSError: it cannot be reached, or ends before it has said so.
        HAError: it is no master.
    """
    loop = asyncio.get_running_loop()
    sock = await connect(address, _CONNECT_TIMEOUT_S)
    reporting = loop.create_task(_report(sock, offset))
    try:
        frames, idle = FrameReader(1), 0
        while idle < _IDLE_MAX:
            try:
                async with asyncio.timeout(_SILENCE_S):
                    size = await loop.sock_recv_into(sock, frames.free)
            except TimeoutError:
                silence = f"{address}: it has not said a word for {_SILENCE_S:.0f} s"
                raise TimeoutError(silence) from None
            if size == 0:
                raise ConnectionResetError(f"{address}: it has closed the connection")
            for begin, body in frames.received(size, offset):
                offset = begin + len(body)
                idle = 0 if body else idle + 1
                if body:
                    yield begin, bytes(body)
    finally:
        reporting.cancel()
        await asyncio.gather(reporting, return_exceptions=True)
        sock.close()


async def _report(sock: socket.socket, offset: int) -> None:
    """Say again and again that this side is there, and never that it has more."""
    while True:
        await send_all(sock, [REPORT.pack(offset)])
        await asyncio.sleep(_REPORT_S)


async def fetch(
    log: AppendedLog, address: str, progress: Callable[[int], None] = lambda _done: None
) -> int:
    """Append what the other side has behind the end of a log that is the same up to there.

    Args:
        log: of a store that was opened as a slave's.
        address: replication port of the other side, ``host:port``.
        progress: called with the bytes appended.

    Returns:
        how many bytes it had.

    Raises:
        OSError: it cannot be reached, or ends before it has said that this is all.
        HAError: what answers is no broker of RocketMQ.
        RmqCoreError: what it has does not continue this log.
    """
    begin = log.drop_partial()
    start: int | None = begin
    if begin == 0:
        start = await _first_sent(address, 0, OFFSET_MAX, log.log_file_size)
    if start is None:
        return 0
    async with aclosing(_sent_from(address, start)) as sent:
        async for offset, data in sent:
            if offset == _FIRST and begin == 0:
                log.append_data(b"\0" + data, 0)
            else:
                log.append_data(data, offset)
            progress(offset + len(data) - start)
    return log.drop_partial() - (0 if start == _FIRST else start)


def cut(directory: StoreDir, divergence: Divergence) -> Path:
    """Cut a slave's log where it is not its master's any more; the store must be closed.

    What is cut off is kept. The next opening with ``on_corruption="truncate"`` brings queues and
    index down to it. A log that has nothing in common with its master's is put aside whole, with
    what was derived from it, and begins anew.

    Args:
        directory: of the slave's store.
        divergence: where.

    Returns:
        the folder in which everything is kept that was taken away.

    Raises:
        StoreLockedError: somebody has the store open.
        OSError: the disk refuses.
    """
    directory.lock()
    try:
        kept = _new_folder(directory.path, divergence.common_end)
        (kept / "commitlog").mkdir()
        _cut_files(directory.commit_log, kept / "commitlog", divergence.common_end)
        if divergence.common_end <= divergence.begin:
            for derived in (
                directory.consume_queue,
                directory.consume_queue_ext,
                directory.batch_consume_queue,
                directory.index,
                directory.checkpoint,
            ):
                if derived.exists():
                    derived.rename(kept / derived.name)
        sync_directory(directory.path)
        return kept
    finally:
        directory.unlock()


def _new_folder(store: Path, at: int) -> Path:
    name = f"resync-{time.strftime('%Y%m%d-%H%M%S')}-{at}"
    for number in itertools.count(1):
        folder = store / (name if number == 1 else f"{name}-{number}")
        with suppress(FileExistsError):
            folder.mkdir()
            break
    return folder


def _cut_files(log: Path, kept: Path, at: int) -> None:
    for begin, path, size in reversed(numbered_files(log)):
        if begin >= at:
            # the log may lie on another disk
            shutil.move(path, kept / path.name)
        elif begin + size > at:
            # at its place in a file of the same size, whose front is a hole
            with path.open("r+b") as file, (kept / path.name).open("wb") as copy:
                copy.truncate(size)
                for position in range(at - begin, size, _LOOK):
                    file.seek(position)
                    copy.seek(position)
                    copy.write(file.read(_LOOK))
                copy.flush()
                os.fsync(copy.fileno())
                for position in range(at - begin, size, _LOOK):
                    file.seek(position)
                    file.write(bytes(min(_LOOK, size - position)))
                file.flush()
                os.fsync(file.fileno())
    sync_directory(log)
    sync_directory(kept)
