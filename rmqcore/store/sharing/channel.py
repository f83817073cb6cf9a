"""A client's connection with the owner, for calls of threads and of event loops.

Of the threads that wait for an answer one reads, for itself and for all others; when it has its
own, another goes on. Who waits without a thread, as a coroutine does, is told; the thread that
watches for the end of the owner reads for those.
"""

from __future__ import annotations

import itertools
import math
import os
import select
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from rmqcore.errors import MessageIllegalError, OwnerTimeoutError, is_refusal
from rmqcore.native.base._descriptor import Descriptor
from rmqcore.native.base._lock import ReentrantLock
from rmqcore.remoting import FrameDecoder, FrameError, FrameLimits, RemotingCommand, RequestCode
from rmqcore.remoting.codec import encode_command
from rmqcore.store.sharing.calls import CANCEL, GOODBYE, HELLO, LEASES, VERSION, result_of
from rmqcore.store.sharing.pieces import MORE, body_size, joined
from rmqcore.store.sharing.place import MeetingPlace, peer_of, readable, writable
from rmqcore.world import REAL, World

if TYPE_CHECKING:
    from rmqcore.remoting.command import Buffer

LIMITS: Final = FrameLimits(frame_size=1 << 30)
_RECEIVE_SIZE: Final = 1 << 18
#: One call of the system takes at most this many buffers.
_BUFFERS_MAX: Final = 1000
_OPAQUE_MASK: Final = (1 << 31) - 1
#: A socket that is writable at all takes this many bytes without blocking.
_SENT_AT_ONCE_SIZE: Final = 1 << 16
#: Requests that get no answer.
_NOT_ANSWERED: Final = (CANCEL, GOODBYE)
_NEVER: Final = math.inf
#: A thread that waits to send looks this often whether the thread that reads is still there.
_ANOTHER_READS_S: Final = 0.05


class ChannelLostError(Exception):
    """The owner has gone.

    Attributes:
        sent: whether the owner may have seen the request.
    """

    def __init__(self, sent: bool) -> None:
        super().__init__()
        self.sent = sent


class Waiter:
    """Who waits for an answer.

    Attributes:
        answer: what came; None before, and when the owner has gone.
        wake: called when there is something to look at.
    """

    __slots__ = ("answer", "opaque", "pieces", "reads", "wake")

    def __init__(self, wake: Callable[[], object], *, reads: bool) -> None:
        self.answer: RemotingCommand | None = None
        #: the pieces of an answer that have come so far
        self.pieces: list[bytes] = []
        #: number of the request
        self.opaque = 0
        self.wake = wake
        #: whether its thread can read the socket, for all who wait
        self.reads = reads


class LivenessProbe(Waiter):
    """Who waits for a sign of life.

    Attributes:
        signs_of_life: what the channel had counted when this was looked at last.
    """

    __slots__ = ("signs_of_life",)
    signs_of_life: int


class OwnerChannel:
    """A connection that any number of threads call through at a time.

    Args:
        connected: a socket that does not block.
        place: for what errors say of the owner.
        timeout_s: after this without an answer the owner is asked whether it is there; when it does
            not answer that either, it hangs.
        world: its clock.
    """

    def __init__(
        self,
        connected: socket.socket,
        place: MeetingPlace,
        timeout_s: float,
        world: World = REAL,
    ) -> None:
        self.owner = peer_of(connected)
        self._socket = connected
        self._place = place
        self._timeout_s = timeout_s
        self._monotonic_s = world.monotonic_s
        self._decoder = FrameDecoder(LIMITS)
        self._opaques = itertools.count(1)
        #: wherever an interrupt comes, neither of them stays locked
        self._sending = ReentrantLock(counted=False)
        self._reading = ReentrantLock(counted=False)
        self._waiting: dict[int, Waiter] = {}
        #: requests sent that have answers, and answers read: what is behind is on its way
        self._asked = self._answered = 0
        #: counts what the owner has read or sent
        self._signs_of_life = 0
        #: wakes the thread that watches; it reads while somebody waits without a thread
        self._watching = Descriptor(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
        self.lost = False

    @property
    def interrupted(self) -> bool:
        """True in a signal handler or a finalizer inside this thread's own sending or reading.

        Such a thread must not call here: it is in the middle of a frame.
        """
        return self._sending.mine or self._reading.mine

    def say_hello(self, client: str) -> None:
        """Tell the owner whose connection this is.

        Args:
            client: the name of a holder in this process.

        Raises:
            ChannelLostError: the owner has gone.
            OwnerTimeoutError: it does not answer.
            StoreError: it speaks another version.
        """
        result_of(self.call(RemotingCommand(HELLO, {"version": str(VERSION), "client": client})))

    def call(self, request: RemotingCommand) -> RemotingCommand:
        """Send a request and wait for its answer.

        Raises:
            ChannelLostError: the owner has gone.
            OwnerTimeoutError: it does not answer; whether it has done what was asked is not known.
            MessageIllegalError: the request is too large; nothing was done.
        """
        look = threading.Lock()
        look.acquire()
        waiter = Waiter(partial(_release, look), reads=True)
        asked: LivenessProbe | None = None
        try:
            try:
                self.send(request, waiter)
                while True:
                    answer = self._wait(waiter, look, self._timeout_s / 2)
                    if answer is not None:
                        return answer
                    asked = self.ask_whether_there(waiter, asked)
            finally:
                self.drop(waiter, asked)
        except ChannelLostError:
            raise
        except BaseException:
            self.give_up(request, waiter)
            raise

    def ask_whether_there(self, waiter: Waiter, asked: LivenessProbe | None) -> LivenessProbe:
        """Ask the owner of which an answer is overdue for a sign of life.

        Args:
            waiter: who waits.
            asked: what this returned when it was called half the time-out ago; None the first time.

        Raises:
            OwnerTimeoutError: it has not answered that either, nor sent or taken anything else.
        """
        if asked is None or asked.answer is not None:
            asking = LivenessProbe(waiter.wake, reads=waiter.reads)
            self.send(RemotingCommand(RequestCode.HEART_BEAT), asking)
        else:
            asking = asked
            if waiter.answer is None and asked.signs_of_life == self._signs_of_life:
                raise self.hangs()
        asking.signs_of_life = self._signs_of_life
        return asking

    def give_up(self, request: RemotingCommand, waiter: Waiter) -> None:
        """Tell the owner that nobody waits for an answer any more, without waiting for that.

        Args:
            request: what was sent.
            waiter: who waited for its answer; one that was never sent is passed over.
        """
        if not waiter.opaque or self.lost:
            return
        fields = {"opaque": str(waiter.opaque)}
        fields.update((name, value) for name, value in request.ext_fields.items() if name in LEASES)
        cancel = RemotingCommand(CANCEL, fields)
        nobody = Waiter(_nothing, reads=True)
        with suppress(ChannelLostError):
            if not self.send_now(cancel, nobody):
                args = cancel, nobody
                threading.Thread(target=self._send_late, args=args, daemon=True).start()
        self.drop(nobody)

    def _send_late(self, request: RemotingCommand, nobody: Waiter) -> None:
        with suppress(ChannelLostError, OwnerTimeoutError):
            self.send(request, nobody)
        self.drop(nobody)

    def hangs(self) -> OwnerTimeoutError:
        """The error that names the owner, who has not answered."""
        return self._place.hangs(self._timeout_s, self.owner)

    def close(self) -> bool:
        """End the connection; whoever waits gets a `ChannelLostError`.

        Returns:
            False when the owner may not hear that its client closes: it could not be told, or the
            connection ends for it when it sends an answer that is still due.
        """
        nobody, told = Waiter(_nothing, reads=True), False
        with suppress(ChannelLostError):
            told = self.send_now(RemotingCommand(GOODBYE), nobody)
        told = told and self._answered == self._asked
        self.lose()
        return told

    def lose(self) -> None:
        """End the connection as an interrupt does: its client lives, and makes another."""
        self.lost = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        for waiter in self._all_waiting():
            waiter.wake()

    def forget(self) -> None:
        """Close this process's copy in a forked child; the parent's connection goes on."""
        self.lost = True
        self._close_files()

    def until_lost(self) -> None:
        """Block until the owner has gone, or `close` was called; then the socket is closed.

        Meanwhile this thread reads for those that wait without one.
        """
        poll, watching = select.poll(), self._watching.fileno()
        poll.register(self._socket, select.POLLRDHUP)
        poll.register(watching, select.POLLIN)
        while not self.lost:
            ready = poll.poll()
            if any(fd != watching for fd, _ in ready):
                break
            os.eventfd_read(watching)
            with self._reading.within():
                self._read_while(lambda: any(not each.reads for each in self._all_waiting()))
            self._let_another_read()
        self.end()

    def end(self) -> None:
        """Close the socket as soon as no thread uses it any more."""
        self.lose()
        with self._sending.within(), self._reading.within():
            self._close_files()

    def _close_files(self) -> None:
        """Close both files, once: a number that was closed may be another file's since."""
        self._socket.close()
        self._watching.close()

    # ---- sending

    def send(self, request: RemotingCommand, waiter: Waiter) -> None:
        """Send a request whose answer the waiter gets; may block while the owner does not read.

        Args:
            request: its number is set here.
            waiter: must be given to `drop` afterwards.

        Raises:
            ChannelLostError: the owner has gone.
            OwnerTimeoutError: it does not read.
            MessageIllegalError: the request is too large; nothing was done.
        """
        signs_of_life = -1
        while True:
            with self._sending.within(self._timeout_s) as mine:
                if self._may_send(mine):
                    self._send_locked(request, waiter)
                    return
                if mine or signs_of_life == self._signs_of_life:
                    raise self.hangs()
            # the owner is reading a long request of another thread
            signs_of_life = self._signs_of_life

    def send_now(self, request: RemotingCommand, waiter: Waiter) -> bool:
        """As `send`, if that does not block; False when it would, and nothing was sent.

        Args:
            request: its number is set here.
            waiter: must be given to `drop` afterwards.

        Raises:
            ChannelLostError: the owner goes while it is sent.
            MessageIllegalError: the request is too large; nothing was done.
        """
        if body_size(request) > _SENT_AT_ONCE_SIZE:
            return False
        with self._sending.within(0.0) as mine:
            if not self._may_send(mine) or self.lost or not writable(self._socket, 0):
                return False
            self._send_locked(request, waiter)
        return True

    def _may_send(self, mine: bool) -> bool:
        """Whether this thread has the lock, and is not in the middle of a frame already."""
        return mine and self._sending.depth == 1

    def drop(self, *waiters: Waiter | None) -> None:
        """Forget requests whose callers have stopped waiting."""
        for waiter in waiters:
            if waiter is not None:
                self._waiting.pop(waiter.opaque, None)

    def _send_locked(self, request: RemotingCommand, waiter: Waiter) -> None:
        opaque = next(self._opaques) & _OPAQUE_MASK
        request.opaque, request.flag = opaque, 0
        try:
            buffers, _ = encode_command(request, limits=LIMITS)
        except FrameError as error:
            raise MessageIllegalError(f"a call of a shared store: {error}") from error
        waiter.opaque = opaque
        self._waiting[opaque] = waiter
        if request.code not in _NOT_ANSWERED:
            self._asked += 1
        try:
            self._write(buffers)
        except BaseException:
            self._waiting.pop(opaque, None)
            raise
        if not waiter.reads:
            os.eventfd_write(self._watching.fileno(), 1)

    def _write(self, buffers: list[Buffer]) -> None:
        """Send a frame; what ends it in the middle ends the connection."""
        if len(buffers) > _BUFFERS_MAX:
            buffers = [b"".join(buffers)]
        if self.lost:
            raise ChannelLostError(sent=False)
        whole = False
        try:
            left = sum(len(each) for each in buffers)
            while True:
                try:
                    sent = self._socket.sendmsg(buffers)
                except BlockingIOError:
                    sent = 0
                    if not self._wait_until_writable():
                        raise self.hangs() from None
                self._signs_of_life += sent
                left -= sent
                if not left:
                    whole = True
                    return
                buffers = _behind(buffers, sent)
        except OSError as error:
            if isinstance(error, TimeoutError):
                raise
            raise ChannelLostError(sent=False) from error
        finally:
            if not whole:
                self.lose()

    def _wait_until_writable(self) -> bool:
        """Wait until the owner takes more; False when there is no sign of life.

        Meanwhile this thread reads for those who wait, as an owner whose answers nobody takes does
        not read on.
        """
        signs_of_life, deadline = self._signs_of_life, self._monotonic_s() + self._timeout_s
        try:
            while (left_s := deadline - self._monotonic_s()) > 0:
                with self._reading.within(0.0) as mine:
                    reads = mine and self._reading.depth == 1
                    pause_s = left_s if reads else min(left_s, _ANOTHER_READS_S)
                    if writable(self._socket, pause_s, or_readable=reads):
                        return True
                    if reads:
                        self._read_while(lambda: True, 0.0)
                if self._signs_of_life != signs_of_life:
                    signs_of_life = self._signs_of_life
                    deadline = self._monotonic_s() + self._timeout_s
            return False
        finally:
            self._let_another_read()

    # ---- receiving

    def _wait(
        self, waiter: Waiter, look: threading.Lock, timeout_s: float
    ) -> RemotingCommand | None:
        """The answer; None when it takes too long."""
        deadline = self._monotonic_s() + timeout_s
        while True:
            mine = False
            try:
                with self._reading.within(0.0) as mine:
                    if mine:
                        self._read_while(lambda: waiter.answer is None, deadline)
            finally:
                if mine:
                    self._let_another_read()
            if not mine and not look.acquire(timeout=max(0.0, deadline - self._monotonic_s())):
                # this waiter may just have been woken to read for all
                self._let_another_read()
            if waiter.answer is not None:
                return waiter.answer
            if self.lost:
                raise ChannelLostError(sent=True)
            if self._monotonic_s() >= deadline:
                return None

    def _all_waiting(self) -> list[Waiter]:
        return list(self._waiting.values())

    def _let_another_read(self) -> None:
        for waiter in self._all_waiting():
            if waiter.answer is None and waiter.reads:
                waiter.wake()
                return

    def _read_while(self, wanted: Callable[[], bool], deadline: float = _NEVER) -> None:
        """Hand out answers while more are wanted, it is not too late, and the owner is there."""
        while not self.lost and wanted():
            if not readable(self._socket, deadline - self._monotonic_s()):
                return
            try:
                data = self._socket.recv(_RECEIVE_SIZE)
                if data:
                    self._signs_of_life += 1
                    self._receive(data)
                    continue
            except BlockingIOError:
                continue
            except FrameError:
                pass
            except BaseException as error:
                # a signal handler that raises here may leave a frame read in part
                if not is_refusal(error):
                    self.lose()
                    raise
            self.lose()

    def _receive(self, data: bytes) -> None:
        self._decoder.feed(data)
        while (answer := self._decoder.next()) is not None:
            whole = MORE not in answer.ext_fields
            self._answered += whole
            waiter = self._waiting.get(answer.opaque)
            if waiter is None:
                continue
            if not whole:
                waiter.pieces.append(answer.body)
            else:
                waiter.answer = joined(waiter.pieces, answer)
                self.drop(waiter)
                waiter.wake()


def _nothing() -> None:
    """Nobody waits for this answer."""


def _release(look: threading.Lock) -> None:
    """Wake the thread that waits for a lock; it may be awake."""
    with suppress(RuntimeError):
        look.release()


def _behind(buffers: list[Buffer], sent: int) -> list[Buffer]:
    """What is left of a frame of which this many bytes have been sent."""
    left: list[Buffer] = []
    for each in buffers:
        size = len(each)
        if sent >= size:
            sent -= size
        else:
            left.append(memoryview(each)[sent:] if sent else each)
            sent = 0
    return left
