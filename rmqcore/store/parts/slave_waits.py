"""Types for puts that wait for slaves: what tells how far slaves are, and one wait for them."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Protocol

from rmqcore.errors import ConfigWarning

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from rmqcore.status import PutMessageStatus


class SlaveWait(Protocol):
    """One wait for slaves."""

    def status(self) -> PutMessageStatus:
        """Wait to the end; how it ended."""
        ...


class SlaveWaits(Protocol):
    """Knows how far the slaves have the log: `rmqcore.ha.HAService`."""

    def begin(self, end: int) -> SlaveWait | None:
        """Begin to wait until they have it up to a physical offset; None: nobody is waited for."""
        ...

    def begin_async(self, end: int) -> asyncio.Future[PutMessageStatus] | None:
        """As `begin`, as a future of the running loop."""
        ...


class NoSlaves:
    """Stands in a SYNC_MASTER for the `rmqcore.ha.HAService` that is missing: warns once of that.

    Args:
        end: ends its part: puts wait for nobody from then on.
    """

    def __init__(self, end: Callable[[], None]) -> None:
        self._end = end

    def begin(self, _: int) -> None:
        """Warn.

        Raises:
            ConfigWarning: the caller's filters make errors of warnings; the message is stored.
        """
        self._end()
        text = (
            "broker_role=SYNC_MASTER has no effect: no HAService runs on this store, and no put "
            "waits for a slave. `rmqcore broker` runs one"
        )
        warnings.warn(text, ConfigWarning, stacklevel=5)

    def begin_async(self, end: int) -> None:
        """As `begin`."""
        self.begin(end)
