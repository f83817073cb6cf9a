"""What ends a replication connection."""

from __future__ import annotations

from rmqcore.errors import RmqCoreError


class HAError(RmqCoreError):
    """The other side of a replication connection says what cannot be; the connection is closed."""


class DivergedError(HAError):
    """Master and slave do not have the same log; an operator has to say which one counts."""
