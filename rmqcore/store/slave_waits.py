"""Types for puts that wait for slaves: what tells how far slaves are, and one wait for them."""

from __future__ import annotations

import asyncio
from typing import Protocol, TypeAlias

from rmqcore.status import PutMessageStatus


class SlaveWait(Protocol):
    """One wait for slaves."""

    def status(self) -> PutMessageStatus:
        """Wait to the end; how it ended."""
        ...


class SlaveWaits(Protocol):
    """Knows how far the slaves have the log: `rmqcore.ha.HAService`."""

    def begin(self, end: int) -> SlaveWait:
        """Begin to wait until they have it up to a physical offset."""
        ...

    def begin_async(self, end: int) -> asyncio.Future[PutMessageStatus]:
        """As `begin`, as a future of the running loop."""
        ...


#: whether a put waits for the disk, and the slaves that it waits for
Waits: TypeAlias = tuple[bool, SlaveWaits | None]
