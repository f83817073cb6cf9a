"""What coroutines need of asyncio, which is imported with the first call that needs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio


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
    """A block that ends with TimeoutError after so many seconds."""
    import asyncio  # noqa: PLC0415 - as above

    return asyncio.timeout(seconds)


async def one_turn() -> None:
    """Let everything else that is ready on the running loop have its turn."""
    import asyncio  # noqa: PLC0415 - as above

    await asyncio.sleep(0)
