"""One slave of a master: reads its reports, sends it the log.

Source: RocketMQ store/ha/DefaultHAConnection.java.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from rmqcore.errors import RmqCoreError
from rmqcore.ha.errors import HAError
from rmqcore.ha.frames import HEADER, ReportReader
from rmqcore.ha.settings import HAConfig
from rmqcore.ha.sockets import Receiver, send_all
from rmqcore.services.event_loop import first_of
from rmqcore.world import World

#: One system call sends at most this many bytes of the log, in one frame or more.
_SEND_MAX: Final = 1024 * 1024
#: One system call sends at most this many frames: the system takes 1024 buffers.
_FRAMES_MAX: Final = 64
#: A master looks this often for what nobody has woken it for, as RocketMQ's does.
_POLL_S: Final = 0.1
#: It looks less often where the slave has been sent everything.
_IDLE_POLL_S: Final = 1.0
_WINDOW_S: Final = 1.0


LogT_co = TypeVar("LogT_co", covariant=True)


class Replicated(Protocol[LogT_co]):
    """A store whose log is sent to slaves, or follows a master's."""

    @property
    def followed_log(self) -> LogT_co:
        """The log as replication sees it."""
        ...


class Log(Protocol):
    """The master's log."""

    @property
    def min_phy_offset(self) -> int:
        """Physical offset of the first byte."""
        ...

    @property
    def max_phy_offset(self) -> int:
        """Physical offset behind the last byte."""
        ...

    @property
    def appended_offset(self) -> int:
        """As `max_phy_offset`, without dispatching what is new, which may fail and take long."""
        ...

    def bytes_at(self, phy_offset: int, size: int) -> memoryview | None:
        """Bytes of the log as they are, of one file; see `FollowedLog.bytes_at`."""
        ...


class FlowMonitor:
    """Counts the bytes that were sent in the last second. Source: RocketMQ FlowMonitor."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._sent: deque[tuple[float, int]] = deque()
        self._total = 0

    def add(self, size: int) -> None:
        """Count what was just sent."""
        self._sent.append((self._clock(), size))
        self._total += size

    @property
    def in_last_second(self) -> int:
        """Bytes sent in the last second."""
        since = self._clock() - _WINDOW_S
        while self._sent and self._sent[0][0] <= since:
            self._total -= self._sent.popleft()[1]
        return self._total


class HAConnection:
    """Serves one slave.

    Attributes:
        address: of the slave's socket.
        request_offset: where the slave asked to begin; -1 before it has.
        ack_offset: the slave has the log up to here; -1 before it has said so.
        is_ahead: whether it has asked to begin behind the end of this log, and so has another.
        next_offset: where the next frame begins; -1 before anything is sent.
        problem: why nothing is sent; None when all is well.
        flow: what was sent in the last second.

    Threads: those of the event loop.
    """

    def __init__(
        self,
        sock: socket.socket,
        address: str,
        log: Log,
        config: HAConfig,
        on_ack: Callable[[HAConnection], None],
        world: World,
    ) -> None:
        """Prepare to serve.

        Args:
            sock: connected, not blocking.
            address: of the slave.
            log: what is sent.
            config: the settings.
            on_ack: called after each report.
            world: tells how long the slave was silent.
        """
        self.address = address
        self.request_offset = self.ack_offset = self.next_offset = -1
        self.is_ahead = False
        self.problem: str | None = None
        self.flow = FlowMonitor(world.monotonic_s)
        self._sock = sock
        self._receiver = Receiver(sock)
        self._log = log
        self._config = config
        self._on_ack = on_ack
        self._monotonic_s = world.monotonic_s
        self._last_read = self._last_write = world.monotonic_s()
        self._sends = False
        self._sleeping: asyncio.Future[None] | None = None
        self._ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def serve(self) -> str:
        """Serve until the connection ends; why it did."""
        try:
            return await first_of(self._ended, self._read(), self._write(), self._keep_house())
        except (OSError, RmqCoreError) as error:
            # of this log, too: another connection begins anew
            return str(error)
        finally:
            self.close()

    @property
    def goes_on(self) -> bool:
        """Whether nobody has ended it."""
        return not self._ended.done()

    @property
    def is_silent(self) -> bool:
        """Whether it has not reported yet, and goes on."""
        return self.request_offset < 0 and self.goes_on

    def end(self, reason: str) -> None:
        """End it; `serve` returns the reason."""
        if not self._ended.done():
            self._ended.set_result(reason)

    def close(self) -> None:
        """Close the socket; `serve` does so when it ends."""
        self._receiver.close()
        self._sock.close()

    def wake(self) -> None:
        """Look whether there is something to send."""
        if self._sleeping is not None and not self._sleeping.done():
            self._sleeping.set_result(None)

    async def _read(self) -> str:
        reports = ReportReader()
        while True:
            size = await self._receiver.into(reports.free)
            if size == 0:
                return "the slave has closed the connection"
            self._last_read = self._monotonic_s()
            offset = reports.received(size)
            if offset is None:
                continue
            if self.request_offset < 0:
                self.request_offset = offset
                # not `max_phy_offset`: a slave gets also what cannot be dispatched here
                self.is_ahead = offset > self._log.appended_offset
                self.wake()
            elif offset > max(self.request_offset, self.next_offset):
                raise HAError(f"it reports {offset}, which it was not sent: it is no slave")
            self.ack_offset = offset
            if not self.is_ahead:
                self._on_ack(self)

    async def _keep_house(self) -> str:
        most_s = self._config.ha_housekeeping_interval / 1000
        idle_s = max(_POLL_S, min(_IDLE_POLL_S, self._config.ha_send_heartbeat_interval / 1000))
        while (silent_s := self._monotonic_s() - self._last_read) <= most_s:
            stuck_s = self._monotonic_s() - self._last_write if self._sends else 0.0
            if stuck_s > most_s:
                # it would keep the file that it does not read on the disk, retention or not
                return f"the slave has not read what it is sent for {stuck_s:.0f} s"
            look_s = _POLL_S if self.next_offset < self._log.appended_offset else idle_s
            await asyncio.sleep(min(look_s, most_s - silent_s + 0.001))
            self.wake()
        return f"the slave has not said a word for {silent_s:.0f} s"

    async def _write(self) -> str:
        interval_s = self._config.ha_send_heartbeat_interval / 1000
        while self.request_offset < 0:
            await self._sleep()
        # an empty slave gets all there is; RocketMQ sends it the last file only
        self.next_offset = self.request_offset or self._log.min_phy_offset
        while True:
            if self._monotonic_s() - self._last_write > interval_s:
                await self._send([HEADER.pack(self.next_offset, 0)])
            frames, size = self._frames()
            if frames:
                # a report may come before the call returns
                self.next_offset += size
                await self._send(frames)
                self.flow.add(size)
                # a slave that reads as fast as this sends would keep the others on this loop
                # waiting
                await asyncio.sleep(0)
            else:
                await self._sleep()

    async def _send(self, buffers: list[bytes | memoryview]) -> None:
        self._sends = True
        self._note_sent()
        await send_all(self._sock, buffers, self._note_sent)
        self._sends = False

    def _note_sent(self) -> None:
        self._last_write = self._monotonic_s()

    def _frames(self) -> tuple[list[bytes | memoryview], int]:
        """The next frames, header and body by turns, and how many bytes of the log they carry."""
        if self.is_ahead:
            self.problem = (
                f"the slave has a log up to {self.request_offset}, and this one ended at "
                "less when it came: this master has lost its end, or the log is another's. "
                "`rmqcore ha resync` leads back"
            )
            return [], 0
        size = self._config.ha_transfer_batch_size
        most = size * max(1, min(_SEND_MAX // size, _FRAMES_MAX))
        if self._config.ha_flow_control_enable:
            bound = self._config.max_ha_transfer_byte_in_second
            most = min(most, bound - self.flow.in_last_second)
        data = self._log.bytes_at(self.next_offset, most) if most > 0 else None
        self.problem = self._missing() if data is None else None
        if data is None:
            return [], 0
        frames: list[bytes | memoryview] = []
        for at in range(0, len(data), size):
            body = data[at : at + size]
            frames += (HEADER.pack(self.next_offset + at, len(body)), body)
        return frames, len(data)

    def _missing(self) -> str | None:
        """Why there is nothing to send, when it is not that the slave has it all."""
        if self.next_offset == self._log.appended_offset:
            return None
        least = self._log.min_phy_offset
        if self.next_offset < least:
            return f"the slave asks from {self.next_offset} on, and this log begins at {least}"
        return None

    async def _sleep(self) -> None:
        self._sleeping = asyncio.get_running_loop().create_future()
        try:
            await self._sleeping
        finally:
            self._sleeping = None
