"""Progress bars on standard error, where that is a terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from rmqcore.recovery.report import RecoveryProgress

_PHASES = {"queues": "open queues", "log": "check log", "index": "index"}


def _progress() -> Progress:
    """What draws the bars; imported only where somebody sees them."""
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(compact=True),
        console=Console(stderr=True),
        transient=True,
    )


class Bars:
    """Bars by name; each appears with its first progress and all vanish at the end."""

    def __init__(self) -> None:
        self._progress = _progress() if sys.stderr.isatty() else None
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def show(self, name: str, done: int, total: int | None) -> None:
        """Move one bar; without a total it only says that something happens.

        Args:
            name: of the bar; the first one with it makes it.
            done: how many are done, in whatever unit.
            total: how many there are; None while nobody knows.
        """
        if self._progress is None:
            return
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task(name, total=total)
        self._progress.update(self._tasks[name], completed=done, total=total)

    def hide(self, *names: str) -> None:
        """Take bars away."""
        if self._progress is None:
            return
        for name in self._tasks.keys() & set(names):
            self._progress.remove_task(self._tasks.pop(name))

    def hide_recovery(self) -> None:
        """Take the bars of a recovery away: the store is open."""
        self.hide(*_PHASES.values())

    def recovery(self, progress: RecoveryProgress) -> None:
        """Show how far the opening of a store is; pass it as ``open_store(progress=...)``."""
        self.show(_PHASES.get(progress.phase, progress.phase), progress.done, progress.total)
