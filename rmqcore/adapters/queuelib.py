"""queuelib's disk queues over a store: `FifoQueue` and `LifoQueue`.

The contract is that of queuelib's FifoDiskQueue and LifoDiskQueue; what they add is that everything
pushed survives a kill. docs/adapters/scrapy.md shows how to use them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import ClassVar

from rmqcore.adapters.named_queue import NamedFifo, NamedLifo, NamedQueue
from rmqcore.adapters.named_queues import named_queues
from rmqcore.arguments import directory_path
from rmqcore.status import Durability, DurabilityName


class DiskQueue:
    """A queue of bytes in a directory; `FifoQueue` and `LifoQueue` say in which order it gives.

    Args:
        path: the queue's own directory, made when missing; or, with ``store``, only its name.
        store: a directory that many queues share, as those of a crawl do; None: ``path`` itself.
        durability: "page_cache": what was pushed survives a kill, and with the next flush (half a
            second) a power cut; "disk": a power cut, too, as soon as the call returns.

    - An empty queue removes its files when it is closed, a shared store when all are.
    - A queue that was not closed is there as it was, whatever ended its process.

    Raises:
        StoreLockedError: another process, which the error names, or another object has it open.
        ConfigError: the directory holds something else, or a queue of the other order.
        OSError: the system refused.

    Threads: one at a time.
    """

    _kind: ClassVar[type[NamedQueue]]

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        store: str | os.PathLike[str] | None = None,
        durability: Durability | DurabilityName = Durability.PAGE_CACHE,
    ) -> None:
        home = directory_path("path", path) if store is None else directory_path("store", store)
        name = "queue" if store is None else os.path.relpath(path, home.parent)
        self.path = str(path)
        self._home = named_queues(home, Durability(durability))
        try:
            self._queue: NamedQueue | None = self._home.open(name, self._kind)
        except BaseException:
            self._home.leave()
            raise

    def _opened(self) -> NamedQueue:
        if self._queue is None:
            raise ValueError(f"the queue {self.path} is closed")
        return self._queue

    def push(self, obj: bytes) -> None:
        """Add an element.

        Raises:
            TypeError: it is not bytes.
            OSError: the disk is full; nothing was added.
            MessageIllegalError: it has more than about 16 MB. It is a ValueError.
        """
        if not isinstance(obj, bytes):
            raise TypeError(f"Unsupported type: {type(obj).__name__}")
        self._opened().push(obj)

    def pop(self) -> bytes | None:
        """Take the next element, for good; None when there is none."""
        queue = self._opened()
        element = queue.first()
        if element is None:
            return None
        queue.drop_first()
        self._home.sync()
        return element.body

    def hold(self) -> tuple[bytes, Callable[[], None]] | None:
        """Take the next element, with a function to call once it is done with.

        Until that was called, the element comes back when the queue is opened again: a queue has it
        as its newest element then. None when there is none.

        Threads: the function may be called by any, by a finalizer and after `close`.
        """
        held = self._home.hold(self._opened())
        if held is None:
            return None
        body, slot = held
        self._home.sync()
        return body, partial(self._home.release, slot)

    def bury(self, body: bytes) -> None:
        """Keep what the program cannot read in the dead letters, ``%DLQ%NAMED_QUEUES``."""
        self._home.bury(self._opened().name, body)

    def peek(self) -> bytes | None:
        """The element that `pop` would take; None when there is none."""
        element = self._opened().first()
        return None if element is None else element.body

    def clear(self) -> None:
        """Remove every element."""
        self._opened().clear()
        self._home.sync()

    def close(self) -> None:
        """Let the queue go, and its files when it is empty; idempotent."""
        queue, self._queue = self._queue, None
        if queue is not None:
            self._home.close_queue(queue)
            self._home.leave()

    def held_size(self) -> int:
        """Bytes of the log files that the queue's store has."""
        self._opened()
        return self._home.held_size()

    def __len__(self) -> int:
        """How many elements there are."""
        return len(self._opened())


class FifoQueue(DiskQueue):
    """First in, first out."""

    _kind = NamedFifo


class LifoQueue(DiskQueue):
    """Last in, first out."""

    _kind = NamedLifo
