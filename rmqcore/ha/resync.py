"""A log that is not its master's: where they part, and the way back, on an operator's word.

The master is asked over the replication port alone, so that a Java master does as well: whoever
reports an offset there gets the bytes from it on.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from rmqcore.files.mapped_file_queue import numbered_files
from rmqcore.files.store_dir import StoreDir, sync_directory
from rmqcore.ha.frames import REPORT, FrameReader
from rmqcore.ha.sockets import connect, send_all

_TIMEOUT_S: Final = 5.0
#: a master with data sends it within that time of the last byte, or report
_SILENCE_S: Final = 1.0
_FIRST_STEP: Final = 32 * 1024
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

    def bytes_at(self, phy_offset: int, size: int) -> memoryview | None:
        """Bytes of the log as they are, at most ``size``; None: there are none."""
        ...

    def record_begin(self, phy_offset: int) -> int:
        """Where the record begins that holds a byte."""
        ...


class AppendedLog(Protocol):
    """A log that is gone on with."""

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


async def find_divergence(log: ReadLog, address: str) -> Divergence:
    """Compare a log with a master's, the end first, and then all that both have.

    Args:
        log: the slave's.
        address: replication port of the master, ``host:port``.

    Raises:
        OSError: the master cannot be reached.
        ValueError: it is no address.
        HAError: what answers there is no master.
    """
    begin, end, step = log.min_phy_offset, log.max_phy_offset, _FIRST_STEP
    # byte 0 cannot be asked for: a report of 0 asks for the last file only
    least = max(begin, 1)
    stop, goes_on, same_behind = end, False, False
    while stop > least:
        at = max(least, stop - step)
        same, differs = await _same_from(log, address, at, stop)
        if same == stop:
            if not same_behind and stop < end:
                return Divergence(begin, log.record_begin(stop), end, goes_on)
            same_behind = True
        elif same > at:
            # a cut inside of a record would leave one whose end is zeros, and may pass for whole
            return Divergence(begin, log.record_begin(same), end, differs)
        elif same_behind and not differs:
            # the master's log begins behind this one's
            break
        elif at == least:
            return Divergence(begin, begin, end, differs)
        else:
            same_behind = False
        stop, goes_on, step = at, differs, step * 4
    return Divergence(begin, end, end, False)


async def _same_from(log: ReadLog, address: str, at: int, stop: int) -> tuple[int, bool]:
    """Up to where both are the same from an offset on, and whether the master differs there."""
    async with aclosing(_sent_from(address, at)) as sent:
        async for offset, theirs in sent:
            ours = bytes(log.bytes_at(offset, min(len(theirs), stop - offset)) or b"")
            if ours != theirs[: len(ours)]:
                pairs = enumerate(zip(ours, theirs, strict=False))
                return offset + next(number for number, (a, b) in pairs if a != b), True
            at = offset + len(ours)
            if at >= stop or len(ours) < len(theirs):
                break
    return at, False


async def _sent_from(address: str, offset: int) -> AsyncGenerator[tuple[int, bytes], None]:
    """What a master sends from an offset on, until it is silent."""
    loop = asyncio.get_running_loop()
    sock = await connect(address, _TIMEOUT_S)
    try:
        await send_all(sock, [REPORT.pack(offset)])
        frames = FrameReader()
        deadline = loop.time() + _SILENCE_S
        while (left_s := deadline - loop.time()) > 0:
            try:
                async with asyncio.timeout(left_s):
                    size = await loop.sock_recv_into(sock, frames.free)
            except TimeoutError:
                return
            if size == 0:
                return
            for begin, body in frames.received(size, offset):
                offset = begin + len(body)
                if body:
                    deadline = loop.time() + _SILENCE_S
                    yield begin, bytes(body)
    finally:
        sock.close()


async def fetch(log: AppendedLog, address: str) -> int:
    """Append what the other side has behind the end of a log that is the same up to there.

    Args:
        log: of a store that was opened as a slave's.
        address: replication port of the other side, ``host:port``.

    Returns:
        how many bytes it had.

    Raises:
        OSError: it cannot be reached.
        HAError: what answers is no broker of RocketMQ.
        RmqCoreError: what it has does not continue this log.
    """
    begin = log.drop_partial()
    async with aclosing(_sent_from(address, begin)) as sent:
        async for offset, data in sent:
            log.append_data(data, offset)
    return log.drop_partial() - begin


def cut(store: Path, divergence: Divergence) -> Path:
    """Cut a slave's log where it is not its master's any more; the store must be closed.

    What is cut off is kept. The next opening with ``on_corruption="truncate"`` brings queues and
    index down to it. A log that has nothing in common with its master's is put aside whole, with
    what was derived from it, and begins anew.

    Args:
        store: directory of the slave's store.
        divergence: where.

    Returns:
        the folder in which everything is kept that was taken away.

    Raises:
        StoreLockedError: somebody has the store open.
        OSError: the disk refuses.
    """
    directory = StoreDir(store)
    directory.lock()
    try:
        kept = store / f"resync-{time.strftime('%Y%m%d-%H%M%S')}-{divergence.common_end}"
        (kept / "commitlog").mkdir(parents=True)
        if divergence.common_end <= divergence.begin:
            for name in ("commitlog", "consumequeue", "index", "checkpoint"):
                if (store / name).exists():
                    shutil.rmtree(kept / name, ignore_errors=True)
                    (store / name).rename(kept / name)
        else:
            _cut_files(directory.commit_log, kept / "commitlog", divergence.common_end)
        sync_directory(store)
        return kept
    finally:
        directory.unlock()


def _cut_files(log: Path, kept: Path, at: int) -> None:
    for begin, path, size in reversed(numbered_files(log)):
        if begin >= at:
            path.rename(kept / path.name)
        elif begin + size > at:
            with path.open("r+b") as file, (kept / path.name).open("wb") as copy:
                # at its place in a file of the same size, whose front is a hole
                copy.truncate(size)
                position = at - begin
                while position < size:
                    file.seek(position)
                    piece = file.read(min(_LOOK, size - position))
                    copy.seek(position)
                    copy.write(piece)
                    file.seek(position)
                    file.write(bytes(len(piece)))
                    position += len(piece)
                copy.flush()
                file.flush()
    sync_directory(log)
    sync_directory(kept)
