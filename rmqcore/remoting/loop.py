"""The event loop to serve on: uvloop's where it is installed (extra `server`), else asyncio's."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Make the fastest event loop there is."""
    try:
        import uvloop  # noqa: PLC0415 - an extra, loaded where it is wanted
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def run(main: Coroutine[Any, Any, _T]) -> _T:
    """Run a program to its end on such a loop, as `asyncio.run` does."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)
