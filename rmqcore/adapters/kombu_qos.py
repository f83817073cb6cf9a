"""What a channel of kombu's has delivered: leases of the store until they are acknowledged."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from kombu.transport import virtual

from rmqcore.errors import StoreClosedError, StoreError

if TYPE_CHECKING:
    from rmqcore.message import Lease

#: All consumers are one group of this name; what it could not read goes to ``%DLQ%kombu``.
GROUP: Final = "kombu"


class QoS(virtual.QoS):  # type: ignore[misc]
    """What a channel has delivered: leases of the store until they are acknowledged.

    Threads: `ack` and `reject` from any.
    """

    #: a `rmqcore.adapters.kombu.Channel`
    channel: Any

    def __init__(self, channel: Any, prefetch_count: int = 0) -> None:
        super().__init__(channel, prefetch_count)
        # kombu's would keep a connection that was dropped until the process ends
        self._on_collect.cancel()
        self.leases: dict[str, Lease] = {}
        self._pid = os.getpid()

    def ack(self, delivery_tag: str) -> None:
        """Acknowledge a message: it never comes again."""
        self._settle(delivery_tag, self.channel.acknowledge)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Give a message back, so that it comes again at once in its place, or drop it.

        Args:
            delivery_tag: of the message; one that is not known, or settled, is passed over.
            requeue: give it back; else it is dropped.
        """
        self._settle(delivery_tag, self.channel.give_back if requeue else self.channel.acknowledge)

    def _settle(self, delivery_tag: str, settle: Callable[[list[Lease]], object]) -> None:
        lease = self.leases.get(delivery_tag)
        if lease is not None:
            try:
                settle([lease])
            except (StoreError, OSError):
                # It is settled with the next lease. Celery goes on without asking again, and a
                # window that had no room for that would stay full for ever.
                self._forget_lease(delivery_tag)
                raise
        self._forget_lease(delivery_tag)

    def restore_unacked(self) -> list[tuple[BaseException, Any]]:
        """Give back everything that was delivered and not acknowledged.

        A forked child that closes what it has inherited leaves its parent's messages with it.
        """
        self._flush()
        leases, self.leases = self.leases, {}
        delivered = list(self._delivered.values())
        self._delivered.clear()
        if self._pid != os.getpid():
            return []
        try:
            self.channel.give_back(list(leases.values()))
        except StoreClosedError:
            # the interpreter is ending and has closed the store, which released all leases
            return []
        except (StoreError, OSError) as error:
            return [(error, message) for message in delivered]
        return []

    def _forget_lease(self, delivery_tag: str) -> None:
        self.leases.pop(delivery_tag, None)
        super().ack(delivery_tag)
        # Celery acknowledges a task that ends when its channel has been closed, and has none then
        connection = self.channel.connection
        if connection is not None:
            connection.look_at_once()
