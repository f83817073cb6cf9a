"""Who consumes those of kombu's queues that expire: one lives for as long as a consumer of it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from kombu.utils.json import dumps, loads

from rmqcore.errors import StoreError
from rmqcore.store.consume.holders import Holder, is_elsewhere, is_gone

if TYPE_CHECKING:
    from rmqcore.store.protocol import MessageStore

#: the table: what a queue was declared with and when its consumer last said so, by both
_CONSUMERS: Final = "kombu-consumers"
_SEPARATOR: Final = "\0"
#: One of another PID namespace, of whom nobody can tell, counts for so long after it was heard of.
_ELSEWHERE_MS: Final = 3_600_000


class QueueConsumers:
    """The table of consumers, for the channel that is one of them.

    A consumer may be busy, or its machine asleep, for longer than its queue lives unused.
    """

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._clock_ms = store.world.clock_ms
        self._channel = Holder()
        self._entered: set[str] = set()

    def enter(self, queue: str, arguments: dict[str, Any]) -> None:
        """Say that the channel consumes a queue.

        Args:
            queue: its name.
            arguments: that it was declared with.
        """
        self._store.kv_put(
            _CONSUMERS, self._key(queue), dumps([arguments, self._clock_ms()]).encode()
        )
        self._entered.add(queue)

    def leave(self, queue: str) -> None:
        """Say that it consumes a queue no more; where the store refuses, its process's end does."""
        if queue in self._entered:
            self._entered.discard(queue)
            with suppress(StoreError, OSError):
                self._store.kv_put(_CONSUMERS, self._key(queue), None)

    def leave_all(self) -> None:
        """Say that it consumes no queue more."""
        for queue in tuple(self._entered):
            self.leave(queue)

    def living(self) -> dict[str, dict[str, Any]]:
        """The arguments of the queues that are consumed, by name; who has died is forgotten."""
        found = {}
        for key, value in self._store.kv_list(_CONSUMERS):
            queue, _, channel = key.decode().rpartition(_SEPARATOR)
            arguments, heard_ms = loads(value)
            if is_gone(channel):
                self._store.kv_put(_CONSUMERS, key, None)
            elif not is_elsewhere(channel) or self._clock_ms() - heard_ms < _ELSEWHERE_MS:
                found[queue] = arguments
        return found

    def forget(self, queue: str) -> None:
        """Forget all consumers of a queue that is deleted."""
        first, last = f"{queue}\0".encode(), f"{queue}\1".encode()
        self._store.kv_take(_CONSUMERS, first=first, last=last)

    def _key(self, queue: str) -> bytes:
        return _SEPARATOR.join((queue, self._channel.name)).encode()
