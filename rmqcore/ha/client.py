"""The slave's side: follows one master, for as long as it runs.

Source: RocketMQ store/ha/DefaultHAClient.java.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from rmqcore.errors import CorruptRecordError, RmqCoreError
from rmqcore.ha.connection import FlowMonitor, Log, Replicated
from rmqcore.ha.errors import DivergedError
from rmqcore.ha.frames import QUIET_S, REPORT, FrameReader
from rmqcore.ha.service import client_info
from rmqcore.ha.settings import HAConfig
from rmqcore.ha.sockets import Receiver, connect, send_all
from rmqcore.services.event_loop import first_of, to_the_end
from rmqcore.world import REAL, World

logger = logging.getLogger(__name__)

_CONNECT_TIMEOUT_S: Final = 5.0
#: While the master's address is not known, it is looked for this often.
_LOOK_AGAIN_S: Final = 0.5
#: A slave that connects gets at least this many bytes at the end of its log again, and compares
#: them.
_COMPARED: Final = 32 * 1024
#: After this many bytes others on the event loop have their turn.
_RECEIVED_MAX: Final = 2 << 20
#: So they have after so many frames: each may be a heart-beat, or a byte.
_FRAMES_MAX: Final = 64
#: After this many heart-beats with nothing between them the master has nothing to send.
_IDLE_MAX: Final = 3


class SlaveLog(Log, Protocol):
    """The log of a slave; its end is behind the last whole record."""

    @property
    def log_file_size(self) -> int:
        """Bytes of a log file."""
        ...

    @property
    def unsure_offset(self) -> int:
        """From here on a crash may have left other bytes than were appended."""
        ...

    def has_room(self, size: int) -> bool:
        """Whether this many bytes can be appended without beginning another log file."""
        ...

    def append_data(self, data: memoryview | bytes, phy_offset: int) -> None:
        """Append bytes of the master's log; see `FollowedLog.append_data`."""
        ...

    def drop_partial(self) -> int:
        """Take back a part of a record at the end; the offset behind the last whole one."""
        ...

    def telling_end(self, size: int) -> int:
        """Where this many bytes of the log's end begin, or more, with a record's begin in them."""
        ...

    def note_compared(self) -> None:
        """Note that all of the log is the master's."""
        ...


class LogRange(NamedTuple):
    """Where a master's log begins and ends."""

    min_offset: int
    max_offset: int


class HAState(StrEnum):
    """What a slave is doing. Source: RocketMQ store/ha/HAConnectionState.java."""

    READY = "ready"
    TRANSFER = "transfer"
    SHUTDOWN = "shutdown"


class HAClient:
    """Appends what a master sends, and reports how far it has come.

    - Nothing is reported that is not appended.
    - Before it appends it gets the end of what it has once more, and compares: a log that is not
      the master's is never gone on with.

    Attributes:
        state: what it is doing.
        master_address: of the replication port that it follows, or has last tried; may be empty.
        problem: what is wrong, in a sentence with a way out; None when all is well.
        agrees: whether it is connected, and has compared the end of this log with the master's.

    Threads: those of the event loop that `run` runs on; its attributes may be read from any.
    """

    def __init__(
        self,
        store: Replicated[SlaveLog],
        config: HAConfig,
        address: Callable[[], str],
        master_range: Callable[[], Awaitable[LogRange | None]],
        besides: Callable[[], str | None] = lambda: None,
        *,
        follows: Callable[[int], object] = lambda _: None,
        world: World = REAL,
    ) -> None:
        """Prepare to follow.

        Args:
            store: the slave's.
            config: the settings.
            address: gives the master's replication port at this moment; empty: not known.
            master_range: asks the master where its log begins and ends; None: it does not say.
            besides: tells what is wrong with all that comes from the master in other ways.
            follows: called, on any thread, with the end of this log before a master's bytes come
                behind it over another connection; an OSError of it is logged.
            world: tells how long the master was silent.
        """
        self.state = HAState.READY
        self.master_address = ""
        self.problem: str | None = None
        self.agrees = False
        self.master_max_offset = -1
        self._log = log = store.followed_log
        self._config = config
        self._address = address
        self._master_range = master_range
        self._besides = besides
        self._follows = follows
        self._world = world
        self._flow = FlowMonitor(world.monotonic_s)
        self._told: str | None = None
        #: this log is the master's up to here, or was not touched by a crash
        self._sure_to = log.unsure_offset
        self._unsure = self._sure_to < log.max_phy_offset
        #: the offset that an empty log asks for while it is not known where the master's begins
        self._asks = 0
        self._takes_last = False
        self._reported = self._idle = 0
        self._last_read = self._last_write = self._last_data = 0.0
        self._last_read_ms = self._last_write_ms = 0

    async def run(self) -> None:
        """Follow the master until the task is cancelled."""
        try:
            while True:
                self.master_address = address = self._address()
                if not address:
                    await asyncio.sleep(_LOOK_AGAIN_S)
                    continue
                self._log_disconnect(address, await self._connected_to(address))
                self.state, self.agrees = HAState.READY, False
                await asyncio.sleep(self._config.ha_retry_interval / 1000)
        finally:
            self.state, self.agrees = HAState.SHUTDOWN, False

    def _log_disconnect(self, address: str, reason: str) -> None:
        """Log why a connection has ended, once for each reason."""
        level = logging.DEBUG if reason == self._told else logging.WARNING
        self._told = reason
        logger.log(level, "master %s: not followed: %s", address, reason)

    async def _connected_to(self, address: str) -> str:
        """Follow one master over one connection; why it ended."""
        try:
            sock = await connect(address, _CONNECT_TIMEOUT_S)
        except TimeoutError:
            return "it does not answer"
        except (OSError, ValueError) as error:
            return str(error)
        try:
            return await self._follow(sock)
        except CorruptRecordError as error:
            self.problem = f"{error}. mappedFileSizeCommitLog has to be the master's: is it?"
            return self.problem
        except RmqCoreError as error:
            self.problem = str(error)
            return self.problem
        except OSError as error:
            return str(error)
        except MemoryError:
            self.problem = "there is no memory for a record of the master's: it is asked for again"
            return self.problem
        finally:
            sock.close()

    async def _follow(self, sock: socket.socket) -> str:
        start = await self._where_to_begin()
        self._heard()
        self._idle, self._last_data = 0, self._world.monotonic_s()
        self.state = HAState.TRANSFER
        await self._report(sock, start)
        receiver = Receiver(sock)
        try:
            return await first_of(self._receive(sock, receiver, start), self._keep_house(sock))
        finally:
            receiver.close()

    # ---- where to begin

    async def _where_to_begin(self) -> int:
        """The offset that the first frame shall have.

        Raises:
            DivergedError: the master cannot continue this log.
        """
        store, known = self._log, await self._master_range()
        end = store.drop_partial()
        self.master_max_offset = known.max_offset if known else -1
        try:
            await to_the_end(asyncio.to_thread(self._follows, end))
        except OSError as error:
            logger.warning("it is not written yet where the log ended, %d: %s", end, error)
        if end == 0:
            return self._begin_of(known)
        # 0 would say that this log is empty
        start = max(1, store.min_phy_offset, min(store.telling_end(_COMPARED), self._sure_to))
        if known is None:
            return start
        self._check_range(known, end)
        return max(start, known.min_offset)

    def _check_range(self, known: LogRange, end: int) -> None:
        """Look whether a master has what follows this log.

        Raises:
            DivergedError: it has not.
        """
        if end < known.min_offset:
            raise DivergedError(
                f"the master's log begins at {known.min_offset}, and this one ends at {end}: "
                "what lies between was deleted there. `rmqcore ha resync` begins anew with what "
                "the master still has"
            )
        if end > known.max_offset:
            raise DivergedError(
                f"this log ends at {end}, {end - known.max_offset} bytes ahead of the master's, "
                f"which ends at {known.max_offset}. If the master has lost them, stop it and give "
                "them back: `rmqcore ha resync --fetch` on its store. If not, `rmqcore ha resync` "
                "on this one says from where on they differ, and cuts it there"
            )

    def _begin_of(self, known: LogRange | None) -> int:
        """Where an empty log begins: with all that the master has, 0 where the master decides."""
        if known is None:
            return self._asks
        if known.max_offset <= self._log.log_file_size:
            return 0
        # RocketMQ takes 0 for "your last file only"; whoever has byte 1 gets everything behind it,
        # and byte 0 is known: the first of a record's size, which is below 16 MiB
        return known.min_offset or 1

    # ---- receiving

    async def _receive(self, sock: socket.socket, receiver: Receiver, start: int) -> str:
        file_size = self._log.log_file_size
        frames, expected = FrameReader(file_size), start
        had = self._log.appended_offset
        while True:
            size = await receiver.into(frames.free[:_RECEIVED_MAX])
            if size == 0:
                return "it has closed the connection"
            self._heard()
            self._flow.add(size)
            for number, (offset, body) in enumerate(frames.received(size, expected), 1):
                if number % _FRAMES_MAX == 0:
                    await asyncio.sleep(0)
                if offset != expected and not self._takes_last:
                    self._asks = 1
                    return f"it offers its log from {offset} on: asked for all of it"
                await self._append(body, offset)
                expected = offset + len(body)
                self._idle = 0 if body else self._idle + 1
                if body:
                    self._last_data = self._world.monotonic_s()
            appended = self._log.appended_offset
            has_nothing = self._has_nothing()
            if has_nothing and self._asks and appended == 0:
                self._asks, self._takes_last = 0, True
                return "it has nothing from the beginning on: asked for what it has"
            if has_nothing and expected < appended:
                raise DivergedError(
                    f"the master has nothing from {expected} on, where this log goes on to "
                    f"{appended}: it has lost its end, or the log is another's. "
                    "`rmqcore ha resync` leads back"
                )
            self.agrees = expected >= appended
            if self._unsure and self.agrees:
                # before the report: a master that has it may count on the note
                await self._note_compared()
            # bytes that were here before count when the master's are the same
            reached = min(expected, appended)
            if reached > self._reported:
                self._sure_to = max(self._sure_to, reached)
                await self._report(sock, reached)
            if 0 < appended <= expected and (self._idle or appended > had):
                # all is compared, and the master has nothing else or sends what follows
                self.problem = self._told = None

    def _has_nothing(self) -> bool:
        """Whether the master has said for long enough that it has nothing to send."""
        return self._idle >= _IDLE_MAX and self._world.monotonic_s() - self._last_data >= QUIET_S

    async def _note_compared(self) -> None:
        self._unsure = False
        try:
            await to_the_end(asyncio.to_thread(self._log.note_compared))
        except OSError as error:
            logger.warning("the log is compared again after the next start: %s", error)

    async def _append(self, body: memoryview, offset: int) -> None:
        """Append a frame; bytes of it that this log has already must be the same.

        Raises:
            RmqCoreError: it cannot be appended; nothing was.
        """
        store = self._log
        known = store.appended_offset - offset
        if known > 0 and body:
            self._compare(body[:known], offset)
            body, offset = body[known:], offset + min(known, len(body))
        if not body:
            return
        if offset == 1 and store.appended_offset == 0:
            body, offset = memoryview(b"\0" + bytes(body)), 0
        if store.has_room(len(body)):
            store.append_data(body, offset)
        else:
            # the next log file may have to be made
            await to_the_end(asyncio.to_thread(store.append_data, body, offset))

    def _compare(self, theirs: memoryview, offset: int) -> None:
        ours = self._log.bytes_at(offset, len(theirs))
        if ours is None or bytes(ours) != bytes(theirs):
            raise DivergedError(
                f"the bytes from {offset} on are not the master's. `rmqcore ha resync` says where "
                "the difference begins, and cuts this log there"
            )

    def _heard(self) -> None:
        self._last_read, self._last_read_ms = self._world.monotonic_s(), self._world.clock_ms()

    async def _report(self, sock: socket.socket, offset: int) -> None:
        self._reported = offset
        await send_all(sock, [REPORT.pack(offset)])
        self._last_write, self._last_write_ms = self._world.monotonic_s(), self._world.clock_ms()

    async def _keep_house(self, sock: socket.socket) -> str:
        """Say that this slave is there; close a connection on which nothing comes any more.

        Raises:
            DivergedError: the master has deleted what comes next.
        """
        interval_s = self._config.ha_send_heartbeat_interval / 1000
        most_s = self._config.ha_housekeeping_interval / 1000
        while True:
            now = self._world.monotonic_s()
            if now - self._last_read > most_s:
                return f"it has not said a word for {now - self._last_read:.0f} s"
            if now - self._last_write >= interval_s:
                await self._report(sock, self._reported)
            if self._idle >= _IDLE_MAX:
                self._idle, end = 0, self._reported
                # bytes that come while the master is asked may lie beyond the end that it answers
                # with
                if (known := await self._master_range()) is not None:
                    self._check_range(known, end)
            told = self._address()
            if told not in ("", self.master_address) and await self._answers(told):
                # who was the master before may follow the new one, and sends its log on
                return f"the master is at {told} now"
            rest_s = min(self._last_write + interval_s, self._last_read + most_s) - now
            await asyncio.sleep(max(0.001, min(1.0, rest_s)))

    async def _answers(self, address: str) -> bool:
        """Whether the master says where its log is, and sends it from a replication port."""
        if await self._master_range() is None:
            return False
        try:
            sock = await connect(address, _CONNECT_TIMEOUT_S)
        except (OSError, ValueError):
            return False
        sock.close()
        return True

    # ---- what it says of itself

    def runtime_info(self) -> dict[str, object]:
        """The body of an answer to request 907.

        Source: RocketMQ remoting/protocol/body/HARuntimeInfo.java.
        """
        told = client_info(
            activated=self.state is HAState.TRANSFER,
            lastReadTimestamp=self._last_read_ms,
            lastWriteTimestamp=self._last_write_ms,
            masterAddr=self.master_address,
            masterFlushOffset=max(0, self.master_max_offset),
            maxOffset=self._log.appended_offset,
            transferredByteInSecond=self._flow.in_last_second,
        )
        problem = self.problem
        if problem is None and self.state is HAState.TRANSFER:
            problem = self._besides()
        if problem is not None:
            told["problem"] = problem
        return {
            "haClientRuntimeInfo": told,
            "haConnectionInfo": [],
            "inSyncSlaveNums": 0,
            "master": False,
            "masterCommitLogMaxOffset": 0,
        }
