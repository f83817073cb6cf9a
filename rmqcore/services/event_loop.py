"""What coroutines need of asyncio, which is imported with the first call that needs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

_Found = TypeVar("_Found")


def running_loop() -> asyncio.AbstractEventLoop:
    """The event loop that runs the calling coroutine.

    Raises:
        RuntimeError: none does.
    """
    import asyncio  # noqa: PLC0415 - heavy, and there already where a loop runs

    return asyncio.get_running_loop()


def new_event() -> asyncio.Event:
    """An event of the running loop."""
    import asyncio  # noqa: PLC0415 - as above

    return asyncio.Event()


def within(seconds: float) -> asyncio.Timeout:
    """A block that ends with TimeoutError after this many seconds."""
    import asyncio  # noqa: PLC0415 - as above

    return asyncio.timeout(seconds)


async def one_turn() -> None:
    """Let everything else that is ready on the running loop have its turn."""
    import asyncio  # noqa: PLC0415 - as above

    await asyncio.sleep(0)


def in_thread(work: Callable[[], _Found]) -> asyncio.Future[_Found]:
    """Do something in a thread of the running loop's, also where who awaits it is cancelled.

    A call of the loop's own executor is given up then, while all its threads are at work.
    """
    import asyncio  # noqa: PLC0415 - as above

    return asyncio.shield(running_loop().run_in_executor(None, work))


async def to_the_end(work: Awaitable[_Found]) -> _Found:
    """Wait for what a thread does, even when cancelled: what comes next would meet it."""
    import asyncio  # noqa: PLC0415 - as above

    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    finally:
        await asyncio.wait([task])
        if not task.cancelled():
            # reads the exception: otherwise the loop logs one that nobody has awaited
            task.exception()


async def first_of(*works: Awaitable[_Found]) -> _Found:
    """Wait until one of several ends; what that gives. The others are cancelled, and have ended.

    Raises:
        Exception: what the one raised that has ended first.
    """
    import asyncio  # noqa: PLC0415 - as above

    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next(iter(done)).result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
