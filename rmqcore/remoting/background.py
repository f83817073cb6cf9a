"""`restarted`: what goes on in the background, and begins again when something has ended it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Final, TypeAlias

logger = logging.getLogger(__name__)

_PAUSE_S: Final = 1.0

#: A coroutine function that goes on until it is cancelled.
Work: TypeAlias = Callable[[], Coroutine[None, None, None]]


async def restarted(work: Work) -> None:
    """Begin what has no end again when something has ended it."""
    while True:
        try:
            await work()
        except Exception:
            logger.exception("%s has ended, and begins again", work)
            await asyncio.sleep(_PAUSE_S)
