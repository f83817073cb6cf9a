"""Calls of event loops through a `OwnerChannel`."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial

from rmqcore.errors import OwnerTimeoutError
from rmqcore.remoting import RemotingCommand
from rmqcore.store.sharing.channel import ChannelLostError, LivenessProbe, OwnerChannel, Waiter


async def ask(channel: OwnerChannel, request: RemotingCommand, timeout_s: float) -> RemotingCommand:
    """As `OwnerChannel.call`, without blocking the event loop.

    Args:
        channel: with the owner; threads may use it meanwhile.
        request: what to ask.
        timeout_s: after half of it without an answer the owner is asked whether it is there.

    Raises:
        ChannelLostError: the owner has gone.
        OwnerTimeoutError: it does not answer; whether it has done what was asked is not known.
        MessageIllegalError: the request is too large; nothing was done.
    """
    loop = asyncio.get_running_loop()
    woken = asyncio.Event()
    waiter = Waiter(partial(_wake, loop, woken), reads=False)
    asked: LivenessProbe | None = None
    try:
        if not channel.send_now(request, waiter):
            await loop.run_in_executor(None, channel.send, request, waiter)
        while True:
            try:
                async with asyncio.timeout(timeout_s / 2):
                    await woken.wait()
            except TimeoutError:
                asked = await loop.run_in_executor(None, channel.ask_whether_there, waiter, asked)
            woken.clear()
            if waiter.answer is not None:
                return waiter.answer
            if channel.lost:
                raise ChannelLostError(sent=True)
    except (asyncio.CancelledError, OwnerTimeoutError):
        channel.give_up(request, waiter)
        raise
    finally:
        channel.drop(waiter, asked)


def _wake(loop: asyncio.AbstractEventLoop, woken: asyncio.Event) -> None:
    """Wake a coroutine from any thread; its loop may have ended."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(woken.set)
