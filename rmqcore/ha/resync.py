"""A log that is not its master's: where they part, and the way back, on an operator's word.

The master is asked over the replication port alone, so that a Java master does as well: whoever
reports an offset there gets the bytes from it on.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import shutil
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from pathlib import Path
from time import localtime, strftime
from typing import Final, Protocol

from rmqcore.errors import CorruptStoreError
from rmqcore.files.deleted_topics import DeletedTopics
from rmqcore.files.mapped_file_queue import numbered_files
from rmqcore.files.store_dir import StoreDir, make_directory, room_at
from rmqcore.files.store_mark import StoreMark
from rmqcore.files.zeros import zero_pages
from rmqcore.ha.frames import OFFSET_MAX, QUIET_S, REPORT, FrameReader
from rmqcore.ha.sockets import connect, send_all
from rmqcore.ha.undelivered import set_back_all, set_back_progress
from rmqcore.world import REAL, World, sync_directory, sync_fd, sync_file

_CONNECT_TIMEOUT_S: Final = 5.0
#: A master that sends nothing for this long is gone: it sends a heart-beat every 5 s.
_SILENCE_S: Final = 20.0
#: This side reports that it is there this often; how long a master waits for it is the master's
#: setting.
_REPORT_S: Final = 0.2
#: After this many heart-beats the master has nothing to send: the first may have left before it
#: read the report, the second has not.
_IDLE_MAX: Final = 2
#: A log is asked for from this byte on: a report of 0 asks for the last file only. Byte 0 is
#: known: the first of a record's size, which is below 16 MiB.
_FIRST: Final = 1
_READ_SIZE: Final = 1 << 20
#: A master has more to send behind a frame of this many bytes, the most by RocketMQ's own settings;
#: frames of this broker's are larger.
_BATCH: Final = 32 * 1024
#: After smaller frames only for this long, the master may have sent all that there was, and send
#: what is put meanwhile: it is asked whether its log goes on.
_GROWS_S: Final = 3.0


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
        """Bytes of the log as they are; see `FollowedLog.bytes_at`."""
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
        """Append bytes of the other side's log; see `FollowedLog.append_data`."""
        ...

    def drop_partial(self) -> int:
        """Take back a part of a record at the end; the offset behind the last whole one."""
        ...


@dataclass(frozen=True, slots=True)
class Divergence:
    """How far a slave's log is its master's.

    Attributes:
        begin: offset where the slave's log begins.
        common_end: both have the same records up to here; ``begin`` when they have none in common,
            0 when the slave's log is empty behind 0, where the master has nothing.
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
    if end == begin > 0 and not await _sends(address, begin):
        return Divergence(begin, 0, end, False)
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
    # a cut inside a record would leave a record whose end is zeros, which may pass for a whole one
    common_end = log.record_begin(same)
    return Divergence(begin, common_end if common_end > start else begin, end, differs)


async def _first_sent(address: str, begin: int, end: int, file_size: int) -> int | None:
    """The lowest offset in a range that a master sends; None when it sends none."""
    if await _sends(address, max(begin, _FIRST)):
        return max(begin, _FIRST)
    last = await _last_file(address)
    # of these it has all behind the first that it sends; where its last file begins, it may end
    starts = range(begin - begin % file_size + file_size, min(end, last), file_size)
    low, high = 0, len(starts)
    while low < high:
        middle = (low + high) // 2
        if await _sends(address, starts[middle]):
            high = middle
        else:
            low = middle + 1
    if low < len(starts):
        return starts[low]
    return last if begin < last < end and await _sends(address, last) else None


async def _sends(address: str, offset: int) -> bool:
    """Whether a master has something from an offset on."""
    async with aclosing(_sent_from(address, offset)) as sent:
        async for _, body in sent:
            if body:
                return True
    return False


async def _last_file(address: str) -> int:
    """An offset where a master has a file: a report of 0 is answered with its last one."""
    async with aclosing(_sent_from(address, 0)) as sent:
        async for begin, _ in sent:
            return begin
    return 0


async def _same_from(
    log: ReadLog, address: str, at: int, stop: int, progress: Callable[[int], None]
) -> tuple[int, bool]:
    """Up to where both are the same from an offset on, and whether the master differs there."""
    async with aclosing(_sent_from(address, at)) as sent:
        async for offset, theirs in sent:
            if not theirs:
                continue
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
    """What a master sends from an offset on, heart-beats too, until they say that this is all.

    Raises:
        OSError: it cannot be reached, or ends before it has said so.
        HAError: it is no master.
    """
    loop = asyncio.get_running_loop()
    sock = await connect(address, _CONNECT_TIMEOUT_S)
    reporting = loop.create_task(_report(sock, offset))
    try:
        frames, idle, since = FrameReader(1), 0, loop.time()
        while idle < _IDLE_MAX or loop.time() - since < QUIET_S:
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
                yield begin, bytes(body)
                idle = 0 if body else idle + 1
                since = loop.time() if body else since
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

    It need not stand still: this ends when all was had but what has just been put into it.

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
    growth = _Growth(address, start)
    async with aclosing(_sent_from(address, start)) as sent:
        async for offset, data in sent:
            if not data:
                continue
            if offset == _FIRST and begin == 0:
                log.append_data(b"\0" + data, 0)
            else:
                log.append_data(data, offset)
            progress(offset + len(data) - start)
            if await growth.is_all(offset + len(data), len(data)):
                break
    return log.drop_partial() - (0 if start == _FIRST else start)


class _Growth:
    """Tells when all was had of a log that grows meanwhile.

    How large a frame is does not tell: the other side's settings may keep all of them small. So it
    is asked what lies further on; when that is nothing, its end lies in front of there.

    Args:
        address: replication port of the other side.
        start: physical offset from which on it is fetched.
    """

    def __init__(self, address: str, start: int) -> None:
        self._address = address
        self._goal = OFFSET_MAX
        self._since: float | None = None
        self._from = start

    async def is_all(self, end: int, size: int) -> bool:
        """Take note of a frame: whether all is there that the other side had a moment ago.

        Args:
            end: where it ends.
            size: its bytes.
        """
        if end >= self._goal:
            return True
        now = asyncio.get_running_loop().time()
        if self._since is not None and size < _BATCH:
            if now - self._since < _GROWS_S:
                return False
            # as much as it takes twice that time to put: what is put more and more slowly is asked
            # for again, nearer
            ahead = end + 2 * (end - self._from)
            if not await self._goes_beyond(ahead):
                self._goal = min(self._goal, ahead)
        self._since, self._from = now, end
        return False

    async def _goes_beyond(self, offset: int) -> bool:
        # RocketMQ closes the connection of who says to be ahead of it
        with suppress(ConnectionError):
            return await _sends(self._address, offset)
        return False


def damage_in(directory: StoreDir, error: CorruptStoreError) -> Divergence | None:
    """Where to cut a log that an opening has found damaged; None when that is not in the log.

    Args:
        directory: of the store.
        error: that the opening has raised; one that names no physical offset is not in the log.
    """
    files = numbered_files(directory.commit_log)
    if not files or error.phy_offset < 0:
        return None
    if directory.commit_log not in (error.path, error.path.parent):
        return None
    last, _, size = files[-1]
    return Divergence(files[0][0], error.phy_offset, last + size, False)


def cut(directory: StoreDir, divergence: Divergence, *, world: World = REAL) -> Path:
    """Cut a slave's log where it is not its master's any more; the store must be closed.

    What is cut off is kept. The next opening with ``on_corruption="truncate"`` brings queues and
    index down to it. A log that has nothing in common with its master's is put aside whole, with
    what was derived from it, and begins anew.

    What was deleted behind the cut was deleted from the other log: it is derived again. What was
    delivered behind it, of delayed and timer messages, is still to come.

    Whatever ends it in the middle, everything is in the store or in the folder, and both another
    opening and another cut go on from there.

    Args:
        directory: of the slave's store.
        divergence: where.
        world: its clock; the folder's name says when it was.

    Returns:
        the folder in which everything is kept that was taken away.

    Raises:
        StoreLockedError: somebody has the store open.
        CorruptConfigFileError: what was deleted cannot be read any more.
        OSError: the disk refuses.
    """
    directory.lock()
    try:
        _undo_deletions(directory, divergence)
        if divergence.begin < divergence.common_end:
            set_back_progress(directory, divergence.common_end, world.clock_ms)
        else:
            set_back_all(directory, world.clock_ms)
        kept = _new_folder(directory.path, divergence.common_end, world.clock_ms())
        make_directory(kept / "commitlog")
        if divergence.common_end <= divergence.begin:
            # first: queues without a log are not opened
            for derived in (
                directory.consume_queue,
                directory.consume_queue_ext,
                directory.batch_consume_queue,
                directory.index,
                directory.checkpoint,
            ):
                if derived.exists():
                    derived.rename(kept / derived.name)
            sync_directory(kept)
            sync_directory(directory.path)
        _cut_files(directory.commit_log, kept / "commitlog", divergence.common_end)
        return kept
    finally:
        directory.unlock()


def _undo_deletions(directory: StoreDir, divergence: Divergence) -> None:
    deleted = DeletedTopics(directory).load()
    if not deleted.is_of_longer(divergence.common_end):
        return
    # first: of a topic that nothing says of that it was deleted, no opening misses the queues
    mark = StoreMark(directory)
    mark.load()
    mark.derive_from = divergence.begin
    mark.store()
    deleted.undo_behind(divergence.common_end)


def _new_folder(store: Path, at: int, now_ms: int) -> Path:
    name = f"resync-{strftime('%Y%m%d-%H%M%S', localtime(now_ms / 1000))}-{at}"
    for number in itertools.count(1):
        folder = store / (name if number == 1 else f"{name}-{number}")
        with suppress(FileExistsError):
            folder.mkdir()
            break
    sync_directory(store)
    return folder


def _cut_files(log: Path, kept: Path, at: int) -> None:
    """Move the files behind an offset, the last one first, and blank what follows it in its own."""
    files = numbered_files(log)
    parted = [one for one in files if one[0] < at < one[0] + one[2]]
    for begin, path, size in parted:
        # before anything is taken away: the disk may be full
        with room_at(kept):
            _copy_end(path, kept / path.name, at - begin, size)
    sync_directory(kept)
    for begin, path, _ in reversed(files):
        if begin >= at:
            _move(path, kept / path.name)
    sync_directory(log)
    for begin, path, size in parted:
        _blank_end(path, at - begin, size)


def _move(path: Path, to: Path) -> None:
    try:
        path.rename(to)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        # the log lies on another disk
        with room_at(to):
            shutil.copyfile(path, to)
            sync_file(to)
        sync_directory(to.parent)
        path.unlink()


def _copy_end(path: Path, to: Path, at: int, size: int) -> None:
    """Copy the end of a file to its place in one of the same size, whose front is a hole."""
    with path.open("rb") as file, to.open("wb") as copy:
        copy.truncate(size)
        for position in range(at, size, _READ_SIZE):
            file.seek(position)
            copy.seek(position)
            copy.write(file.read(_READ_SIZE))
        copy.flush()
        sync_fd(copy.fileno())


def _blank_end(path: Path, at: int, size: int) -> None:
    """Write zeros from the end of a file to a position: what is left at any moment is a log."""
    with path.open("r+b", buffering=0) as file:
        zero_pages(file.fileno(), at, size)
        sync_fd(file.fileno())
