"""`SimulatedLoop`: an event loop without a system below it, whose time and order follow a seed.

- Time is a number of nanoseconds. It moves a little with every event, and jumps to the next timer
  when nothing else is left to do.
- Events of one node run in the order in which they were planned, as asyncio promises. Which node
  has its turn next is drawn.
- Calls for an executor run in this thread, after a drawn moment, as an event of their own.
- Sockets are those of a simulated network (`rmqcore.simulation.network`), never the system's.

Differs from asyncio's loops: no signals, no subprocesses, no TLS, no datagrams.
"""

from __future__ import annotations

import asyncio
import inspect
import random
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from functools import partial
from heapq import heappop, heappush
from typing import Any, TypeVar, TypeVarTuple
from weakref import WeakSet

from rmqcore.simulation.errors import StuckError
from rmqcore.world import hold_time, release_time

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")

NANOSECONDS = 1_000_000_000
#: The Unix time when the loop's is 0.
_WALL_NS = 1_700_000_000 * NANOSECONDS
#: Each event takes this long, so that code which waits by looking again and again comes to an end.
_EVENT_NS = 2_000
#: The loop's time when it begins; with 0 an error that counts from there would stay hidden.
_BEGIN_NS = 1_000 * NANOSECONDS
#: A call for an executor waits at most this long for its turn, and mostly much less.
_EXECUTOR_NS = 2_000_000
#: The probability that a call for an executor that nobody waits for any more is not made.
_NEVER_BEGUN = 0.2


class Node:
    """Whose event it is: one process on one machine. It gets a new one when it starts anew.

    Attributes:
        number: among all nodes of the loop, in order of their making.
        name: for traces.
        address: of its machine.
        context: what its first events run in; who plans another hands it on.
        wall_ns: nanoseconds by which its wall clock is ahead of the loop's time.
        after_event: called behind each of its events.
    """

    __slots__ = (
        "address",
        "after_event",
        "alive",
        "context",
        "held",
        "kept",
        "name",
        "number",
        "ready",
        "tasks",
        "wall_ns",
    )

    def __init__(self, number: int, name: str, address: str) -> None:
        self.number = number
        self.name = name
        self.address = address
        self.alive = True
        #: called behind each event of it
        self.after_event: Callable[[], None] | None = None
        #: how far its wall clock is ahead of the loop's time
        self.wall_ns = _WALL_NS
        #: nothing of it runs while above 0
        self.held = 0
        self.ready: deque[_Event] = deque()
        self.tasks: WeakSet[asyncio.Task[Any]] = WeakSet()
        #: of a dead node: kept, so that none is collected, and ended by that, while the loop runs
        self.kept: list[asyncio.Task[Any]] = []
        self.context = copy_context()
        self.context.run(_NODE.set, self)

    def __repr__(self) -> str:
        return f"<Node {self.number} {self.name}>"


_NODE: ContextVar[Node] = ContextVar("rmqcore.simulation.node")


def current_node(loop: SimulatedLoop) -> Node:
    """The node whose event runs; the harness where no event does."""
    return _NODE.get(loop.harness)


class _Event(asyncio.TimerHandle):
    """A call that is planned."""

    __slots__ = ("node",)

    def __init__(  # the parent's is not called: it looks for a debugging loop, each time
        self,
        when_ns: int,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: SimulatedLoop,
        context: Context,
    ) -> None:
        self._when = when_ns / NANOSECONDS
        self._callback = callback
        self._args = args
        self._context = context
        self._cancelled = False
        self.node = context.get(_NODE, loop.harness)

    def __repr__(self) -> str:
        return f"<event of {self.node.name} at {self._when}>"

    def cancel(self) -> None:
        """Do not make the call."""
        self._cancelled = True
        self._callback = self._args = None  # type: ignore[assignment]


class _Future(asyncio.Future[_T]):
    """A future that lies in sets where its number says, not its address."""

    def __init__(self, *, loop: SimulatedLoop) -> None:
        self.number = loop.next_number()
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self.number


class _Task(asyncio.Task[_T]):
    """A task that lies in sets where its number says."""

    def __init__(
        self, coro: Coroutine[Any, Any, _T], *, loop: SimulatedLoop, **options: Any
    ) -> None:
        self.number = loop.next_number()
        super().__init__(coro, loop=loop, **options)

    def __hash__(self) -> int:
        return self.number


class SimulatedLoop(asyncio.AbstractEventLoop):
    """See the module.

    Attributes:
        now_ns: the time.
        events: how many have run.
        trace: a number that follows from all events so far; equal runs have equal ones.
        errors: what nobody has caught: the contexts of `call_exception_handler`.
        nodes: all there are or were; the first is the harness.
        harness: the node of who runs the loop.

    Threads: one.
    """

    #: that nothing here waits for a real clock
    is_simulated = True

    def __init__(self, seed: object) -> None:
        """Make a loop.

        Args:
            seed: what the order follows from, by its text.
        """
        self.now_ns = _BEGIN_NS
        self.events = 0
        self.trace = 0
        self.errors: list[dict[str, Any]] = []
        self._order = random.Random(f"{seed}/order")  # noqa: S311 - repeatable
        self._delays = random.Random(f"{seed}/executor")  # noqa: S311 - repeatable
        self._numbers = 0
        self._timers: list[tuple[int, int, _Event]] = []
        #: nodes that have something to do and may do it
        self._turns: list[Node] = []
        self.nodes: list[Node] = []
        self._running = False
        self._stopping = False
        self._closed = False
        self.harness = self.new_node("harness", "0.0.0.0")  # noqa: S104 - nobody listens there

    # ---- nodes

    def new_node(self, name: str, address: str) -> Node:
        """Make a node; what is planned in its `context` is its own.

        Args:
            name: by which reports name it.
            address: IPv4; one of its own.
        """
        node = Node(len(self.nodes), name, address)
        self.nodes.append(node)
        return node

    def end_node(self, node: Node) -> None:
        """Let nothing of a node run any more, as after a kill: no `finally`, no callback."""
        node.alive = False
        node.ready.clear()
        if node in self._turns:
            self._turns.remove(node)
        node.kept = list(node.tasks)
        for task in node.kept:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            work: Any = task.get_coro()
            if inspect.getcoroutinestate(work) == inspect.CORO_CREATED:
                work.close()

    def pause_node(self, node: Node, for_ns: int) -> None:
        """Let a node do nothing for a while; its timers are late then, as those of a real one.

        Args:
            node: of this loop.
            for_ns: nanoseconds.
        """
        node.held += 1
        if node in self._turns:
            self._turns.remove(node)
        self.call_at_ns(self.now_ns + for_ns, self._release, node, context=self.harness.context)

    def _release(self, node: Node) -> None:
        node.held -= 1
        if node.alive and not node.held and node.ready:
            self._turns.append(node)

    def spawn(self, node: Node, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Begin something on a node.

        Args:
            node: of this loop.
            work: runs in a copy of the node's context.
        """
        return node.context.copy().run(self.create_task, work)

    # ---- planning

    def time(self) -> float:
        """The time, in seconds."""
        return self.now_ns / NANOSECONDS

    def wall_ms(self) -> int:
        """What the wall clocks say that nobody has put forward or back, Unix milliseconds."""
        return (self.now_ns + _WALL_NS) // 1_000_000

    def next_number(self) -> int:
        """A number that nothing else has had."""
        self._numbers += 1
        return self._numbers

    def call_soon(
        self,
        callback: Callable[[*_Ts], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Plan a call behind those that its node has to make already.

        Args:
            callback: the function.
            args: of the function.
            context: of a node; None for the one of now.
        """
        event = _Event(self.now_ns, callback, args, self, context or copy_context())
        node = event.node
        if node.alive:
            if not node.ready and not node.held:
                self._turns.append(node)
            node.ready.append(event)
        return event

    def call_soon_threadsafe(
        self,
        callback: Callable[[*_Ts], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """As `call_soon`, after a moment: what comes from another thread comes in between.

        Arguments as those of `call_soon`.
        """
        delay_ns = int(self._delays.random() ** 8 * _EXECUTOR_NS)
        return self.call_at_ns(self.now_ns + delay_ns, callback, *args, context=context)

    def call_later(
        self,
        delay: float,
        callback: Callable[[*_Ts], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Plan a call in this many seconds.

        Args:
            delay: seconds of simulated time; below 0 is at once.
            callback: the function.
            args: of the function.
            context: of a node; None for the one of now.
        """
        when_ns = self.now_ns + round(delay * NANOSECONDS)
        return self.call_at_ns(when_ns, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*_Ts], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Plan a call for a time of `time`.

        Args:
            when: seconds of simulated time; what is over is at once.
            callback: the function.
            args: of the function.
            context: of a node; None for the one of now.
        """
        return self.call_at_ns(round(when * NANOSECONDS), callback, *args, context=context)

    def call_at_ns(
        self,
        when_ns: int,
        callback: Callable[[*_Ts], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Plan a call for a time in nanoseconds; those of one time keep their order.

        Args:
            when_ns: nanoseconds of simulated time; what is over is at once.
            callback: the function.
            args: of the function.
            context: of a node; None for the one of now.
        """
        event = _Event(when_ns, callback, args, self, context or copy_context())
        self._numbers = number = self._numbers + 1
        heappush(self._timers, (when_ns, number, event))
        return event

    def create_future(self) -> asyncio.Future[Any]:
        """A future of this loop."""
        return _Future(loop=self)

    def create_task(  # type: ignore[override] # asyncio has coroutine-likes, too
        self, coro: Coroutine[Any, Any, _T], **options: Any
    ) -> asyncio.Task[_T]:
        """A task of this loop, and of the node whose context it runs in.

        Args:
            coro: runs in a copy of the context.
            options: asyncio's: ``name``, and ``context``; without one it is the one of now.
        """
        if options.get("context") is None:
            options.pop("context", None)
        task = _Task(coro, loop=self, **options)
        context = options.get("context")
        node = current_node(self) if context is None else context.get(_NODE, self.harness)
        node.tasks.add(task)
        return task

    def run_in_executor(
        self, executor: Any, func: Callable[[*_Ts], _T], *args: *_Ts
    ) -> asyncio.Future[_T]:
        """Call a function in a moment, as an event; what it returns comes with another.

        Args:
            executor: without effect: there are no threads.
            func: the function.
            args: of the function.
        """
        del executor
        answer: asyncio.Future[_T] = self.create_future()
        delay_ns = int(self._delays.random() ** 4 * _EXECUTOR_NS)
        self.call_at_ns(self.now_ns + delay_ns, self._execute, answer, partial(func, *args))
        return answer

    def _execute(self, answer: asyncio.Future[_T], call: Callable[[], _T]) -> None:
        if answer.cancelled() and self._delays.random() < _NEVER_BEGUN:
            return
        try:
            result = call()
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 - it is the caller's
            self.call_soon_threadsafe(_refuse, answer, error)
        else:
            self.call_soon_threadsafe(_set_result, answer, result)

    async def pause(self, seconds: float) -> None:
        """Wait so long."""
        done = self.create_future()
        self.call_later(seconds, _set_result, done, None)
        await done

    # ---- running

    def run_until_complete(self, future: Any) -> Any:
        """Run until something is done.

        Raises:
            StuckError: nothing is left that could ever happen, and it is not done.
        """
        previous = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        self._running = True
        try:
            task = self.harness.context.copy().run(asyncio.ensure_future, future, loop=self)
            self._run_until(task.done)
        finally:
            self._running = False
            asyncio._set_running_loop(previous)
            release_time()
        return task.result()

    def step(self) -> None:
        """Run the next event, the time having jumped to it where nothing was ready.

        Raises:
            StuckError: there is none.
        """
        self._run_until(iter((False, True)).__next__)

    def _run_until(self, is_done: Callable[[], bool]) -> None:
        timers, turns, draw = self._timers, self._turns, self._order.random
        while not is_done():
            now_ns = self.now_ns
            while timers and (timers[0][0] <= now_ns or not turns):
                when_ns, _, event = heappop(timers)
                node = event.node
                if event._cancelled or not node.alive:
                    continue
                now_ns = max(now_ns, when_ns)
                if not node.ready and not node.held:
                    turns.append(node)
                node.ready.append(event)
            self.now_ns = now_ns
            count = len(turns)
            if not count:
                raise StuckError(self.time())
            index = int(draw() * count) if count > 1 else 0
            node = turns[index]
            event = node.ready.popleft()
            if not node.ready:
                turns[index] = turns[-1]
                turns.pop()
            if event._cancelled:
                continue
            self.now_ns = now_ns = now_ns + _EVENT_NS
            self.events += 1
            hold_time(now_ns + node.wall_ns, now_ns)
            self.trace = (self.trace * 1_000_003 + now_ns + node.number) & 0xFFFFFFFFFFFFFFFF
            try:
                event._context.run(event._callback, *event._args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:  # noqa: BLE001 - as asyncio's loops do
                context = {"message": "an event has failed", "exception": error}
                event._context.run(self.call_exception_handler, context)
            if node.after_event is not None and node.alive:
                node.after_event()

    def is_running(self) -> bool:
        """Tell whether it runs."""
        return self._running

    def is_closed(self) -> bool:
        """Tell whether it has been closed."""
        return self._closed

    def close(self) -> None:
        """End every node and forget what was planned."""
        self._closed = True
        for node in self.nodes:
            self.end_node(node)
        self._timers.clear()
        self._turns.clear()

    def get_debug(self) -> bool:
        """It has no debug mode."""
        return False

    async def shutdown_asyncgens(self) -> None:
        """Does nothing: asynchronous generators end with their nodes."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """There is none."""

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Keep what nobody has caught."""
        self.errors.append(context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Keep what nobody has caught, with its node and time."""
        node = current_node(self)
        if node.alive and not self._closed:
            self.errors.append({**context, "node": node.name, "time": self.time()})


def _set_result(answer: asyncio.Future[_T], result: _T) -> None:
    if not answer.done():
        answer.set_result(result)


def _refuse(answer: asyncio.Future[Any], error: BaseException) -> None:
    if not answer.done():
        answer.set_exception(error)
