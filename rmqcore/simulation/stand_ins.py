"""What a simulated run puts in the place of the process's own chance, id and threads.

Time is the loop's: it holds that of `rmqcore.world`.
"""

from __future__ import annotations

import gc
import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

from rmqcore import chance
from rmqcore.recovery import walk

_PROCESS_ID = 4711


class _Beside:
    """`rmqcore.recovery.helper_thread.HelperThread`, which does the work when it is given it."""

    def start(self, work: Callable[[], None]) -> None:
        work()

    def wait(self) -> None:
        """Nothing is left to wait for."""

    def end(self) -> None:
        """Nothing is left to end."""


@contextmanager
def let_go() -> Iterator[None]:
    """Collect what is left of a run behind it, whose tasks are in the middle of something."""
    # what was there before needs not to be looked at again
    kept = gc.get_freeze_count() > 0
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        with mock.patch.object(sys, "unraisablehook", _ignore):
            gc.collect()
        if not kept:
            gc.unfreeze()


def _ignore(_: object) -> None:
    """A dead process's work cannot end in order."""


def _process_id() -> int:
    return _PROCESS_ID


@contextmanager
def stand_ins(seed: object) -> Iterator[None]:
    """Let this process be a simulated one meanwhile; nothing else may run in it.

    Args:
        seed: what is drawn follows from it, by its text.
    """
    source = random.Random(f"{seed}/product")  # noqa: S311 - repeatable
    collected = gc.isenabled()
    gc.disable()
    chance.follow(source)
    try:
        with (
            mock.patch.object(os, "getpid", _process_id),
            mock.patch.object(walk, "HelperThread", _Beside),
        ):
            yield
    finally:
        chance.follow(None)
        if collected:
            gc.enable()
