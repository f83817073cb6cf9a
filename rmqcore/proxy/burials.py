"""`Burials`: what clients have made dead letters, so that each is made once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

#: So many of the latest are known again when a client asks for them once more.
_KNOWN_MAX: Final = 10_000


class Burials:
    """Used from one event loop. What was refused is asked for anew, what was done is not."""

    def __init__(self, work_on: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]) -> None:
        """Make one that knows of none.

        Args:
            work_on: runs a coroutine to its end, whoever waits for it.
        """
        self._work_on = work_on
        #: by account, group and given handle, the latest last
        self._known: dict[tuple[str, str, str], asyncio.Task[None]] = {}

    async def once(
        self, key: tuple[str, str, str], bury: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        """Have a message made a dead letter, unless that is done, or under way.

        Args:
            key: the client's account, its group, and the receipt handle that it has given.
            bury: makes it one.

        Raises:
            Exception: whatever `bury` raises.
        """
        burial = self._known.get(key)
        if burial is None:
            burial = self._known[key] = self._work_on(bury())
            burial.add_done_callback(partial(self._note, key))
        # who asked first may have gone meanwhile, and asks again
        await asyncio.shield(burial)

    def _note(self, key: tuple[str, str, str], burial: asyncio.Task[None]) -> None:
        if burial.cancelled() or burial.exception() is not None:
            del self._known[key]
        elif len(self._known) > _KNOWN_MAX:
            del self._known[next(key for key, one in self._known.items() if one.done())]
