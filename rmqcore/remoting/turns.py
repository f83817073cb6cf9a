"""When others have their turn on an event loop: between a connection's requests, in a long one.

`Turn` is a connection's, `Turns` are those of one long request. Whichever has used up a turn is in
one line, of which one goes on each time that the loop comes round: however many there are, who asks
for little waits for one of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Sized
from typing import Any, Final, Generic, TypeVar
from weakref import WeakKeyDictionary

from rmqcore.remoting.command import RemotingCommand

#: After this many frames other connections have their turn, and behind the frame that ends after
#: this time.
TURN_FRAMES: Final = 128
TURN_S: Final = 0.005
#: So they have when so many requests were begun that coroutines work on, or so many bytes of their
#: bodies: nothing that coroutines do is in the time of the turn.
TURN_TASKS: Final = 16
TURN_BODY_SIZE: Final = 256 * 1024
#: While so many long requests are begun that have used up a turn, each of them goes on before a
#: connection in the line begins one more: each keeps what it has read of its body.
BEGUN_MAX: Final = 32

T = TypeVar("T")


class OnlyWaits(Generic[T]):
    """What a request still waits for when its work is done: it does not count for the turn.

    The request's body is let go.

    Args:
        rest: waits, and makes the answer; it keeps nothing of the body.
    """

    __slots__ = ("_rest",)

    def __init__(self, rest: Awaitable[T]) -> None:
        self._rest = rest

    def __await__(self) -> Generator[Any, Any, T]:
        """Wait for it."""
        return self._rest.__await__()


class _Line:
    """What waits to go on, in its order: what is begun, and what is not, one of each in turn.

    Where many are begun all of them go on before one that is not.
    """

    def __init__(self) -> None:
        self._begun: Final = deque[Callable[[], None]]()
        self._waiting: Final = deque[Callable[[], None]]()
        self._planned = False
        #: how many that are begun have gone on since one that is not
        self._gone_on = 0

    def add(
        self, loop: asyncio.AbstractEventLoop, go_on: Callable[[], None], *, begun: bool = False
    ) -> None:
        """Let something go on behind what waits.

        Args:
            loop: the running event loop, whose line this is.
            go_on: called once.
            begun: it is in the middle of a request.
        """
        (self._begun if begun else self._waiting).append(go_on)
        if not self._planned:
            self._planned = True
            loop.call_soon(self._next, loop)

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        begun = len(self._begun)
        if begun and (not self._waiting or self._gone_on < (begun if begun >= BEGUN_MAX else 1)):
            self._gone_on += 1
            go_on = self._begun.popleft()
        else:
            self._gone_on = 0
            go_on = self._waiting.popleft()
        self._planned = bool(self._begun or self._waiting)
        if self._planned:
            loop.call_soon(self._next, loop)
        go_on()


_LINES: Final = WeakKeyDictionary[asyncio.AbstractEventLoop, _Line]()


def _line_of(loop: asyncio.AbstractEventLoop) -> _Line:
    line = _LINES.get(loop)
    if line is None:
        line = _LINES[loop] = _Line()
    return line


class Turn:
    """The turns of one connection.

    Args:
        loop: the running event loop.
        take: takes one; it calls `begin`, and `end`.
        tasks: what works on the connection's requests.

    Attributes:
        is_planned: it is to be taken by itself.
        is_heavy: the last one was used up; until one is not the connection is in the line.
    """

    __slots__ = (
        "_end_s",
        "_loop",
        "_most",
        "_take",
        "_tasks",
        "_worked_most",
        "is_heavy",
        "is_planned",
    )

    def __init__(
        self, loop: asyncio.AbstractEventLoop, take: Callable[[], None], tasks: Sized
    ) -> None:
        self._loop, self._take, self._tasks = loop, take, tasks
        self.is_planned = self.is_heavy = False
        self.begin()

    def begin(self, worked_size: int = 0) -> None:
        """Begin one.

        Args:
            worked_size: bytes of bodies that tasks work on.
        """
        self.is_planned = False
        self._end_s = self._loop.time() + TURN_S
        self._most = len(self._tasks) + TURN_TASKS
        self._worked_most = worked_size + TURN_BODY_SIZE

    def is_over(self, worked_size: int = 0) -> bool:
        """Tell whether it is used up.

        Args:
            worked_size: bytes of bodies that tasks work on now.
        """
        return (
            len(self._tasks) >= self._most
            or worked_size > self._worked_most
            or self._loop.time() > self._end_s
        )

    def allow(self, request: RemotingCommand) -> None:
        """Let a request that only waits count for nothing, and be kept without its body."""
        self._most += 1
        request.body = b""

    def end(self, worked_size: int = 0) -> None:
        """Note whether it was used up; argument as that of `is_over`."""
        self.is_heavy = self.is_over(worked_size)

    def plan(self) -> None:
        """Have one taken, once, when others have had theirs."""
        if self.is_planned:
            return
        self.is_planned = True
        if self.is_heavy:
            _line_of(self._loop).add(self._loop, self._take)
        else:
            self._loop.call_soon(self._take)


class Turns:
    """The time that a request has had since others were served, on a running event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._end_s = self._loop.time() + TURN_S

    @property
    def is_over(self) -> bool:
        """Whether others are to have their turn now."""
        return self._loop.time() > self._end_s

    async def next_entry(self) -> None:
        """Let others have their turn, where this one is over."""
        if not self.is_over:
            return
        turn = self._loop.create_future()

        def go_on() -> None:
            if not turn.done():
                turn.set_result(None)

        _line_of(self._loop).add(self._loop, go_on, begun=True)
        await turn
        self._end_s = self._loop.time() + TURN_S
