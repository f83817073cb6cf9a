"""Message arrival: calls listeners, such as long polling, when a queue has new messages."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from rmqcore.native.derive._dispatch import DispatchBatch

_log = logging.getLogger("rmqcore")

#: Called with the (topic, queue id) of each queue that has new messages, each once.
ArrivalListener: TypeAlias = Callable[[Sequence[tuple[str, int]]], None]


class MessageArrival:
    """The last dispatcher: its listeners hear of messages that can be read already.

    Threads: listeners run in the thread that dispatches: the reput service, or a reader.
    Source: RocketMQ store/MessageArrivingListener.java.
    """

    def __init__(self) -> None:
        #: each under a key of its own: one comes, or goes, in one step, whatever others do
        self._listeners: dict[object, ArrivalListener] = {}

    def listen(self, listener: ArrivalListener) -> Callable[[], None]:
        """Add a listener; returns what takes it away again. Threads: any."""
        key = object()
        self._listeners[key] = listener

        def forget() -> None:
            self._listeners.pop(key, None)

        return forget

    def dispatch(self, batch: DispatchBatch) -> None:
        """Tell every listener; one that fails is logged and does not stop dispatch."""
        if not self._listeners:
            return
        queues = [(stretch.topic, stretch.queue_id) for stretch in batch.stretches()]
        for listener in list(self._listeners.values()):
            try:
                listener(queues)
            except Exception:  # noqa: BLE001 - logged; the listeners are not ours
                _log.exception("a listener for arrivals failed")
