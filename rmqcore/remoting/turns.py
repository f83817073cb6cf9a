"""`Turns`: between the entries of one long request others are served."""

from __future__ import annotations

import asyncio

from rmqcore.remoting.connection import TURN_S


class Turns:
    """The time that a request has had since others were served, on a running event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._end_s = self._loop.time() + TURN_S

    async def next_entry(self) -> None:
        """Let others have their turn, where this one is over."""
        if self._loop.time() > self._end_s:
            await asyncio.sleep(0)
            self._end_s = self._loop.time() + TURN_S
