"""CoilMQ's queue store over a store: ``qstore.factory = rmqcore.adapters.coilmq.make_store``.

docs/adapters/coilmq.md shows how to use it, and what it guarantees.
"""

from __future__ import annotations

import json
import logging
import os
import struct
import threading
import weakref
from collections import deque
from configparser import NoOptionError
from contextlib import suppress
from typing import Final

from coilmq.config import config
from coilmq.exception import ConfigError
from coilmq.store import QueueStore
from coilmq.util.frames import Frame

from rmqcore.adapters.named_queue import NamedFifo
from rmqcore.adapters.named_queues import named_queues, stored_name
from rmqcore.arguments import directory_path
from rmqcore.errors import StoreClosedError, StoreError
from rmqcore.status import Durability, DurabilityName

_log = logging.getLogger("rmqcore")
_HEAD_SIZE: Final = struct.Struct(">I")
PATH_OPTION: Final = "qstore.rmqcore.path"
DURABILITY_OPTION: Final = "qstore.rmqcore.durability"


def make_store() -> RmqQueueStore:
    """The store that CoilMQ's configuration describes.

    ``qstore.rmqcore.path`` is its directory; ``qstore.rmqcore.durability`` is "page_cache", or
    "disk" for frames that survive a power cut.

    Raises:
        ConfigError: CoilMQ's: there is no path, or the durability is neither.
        OSError: the directory cannot be opened; another process that has it is named.
    """
    try:
        path = config.get("coilmq", PATH_OPTION)
    except NoOptionError as error:
        raise ConfigError(f"Missing configuration parameter: {error}") from error
    durability = config.get("coilmq", DURABILITY_OPTION, fallback=Durability.PAGE_CACHE)
    try:
        return RmqQueueStore(path, durability=Durability(durability))
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error


class RmqQueueStore(QueueStore):  # type: ignore[misc]
    """CoilMQ's queues in a directory: frames survive a kill of the server.

    Args:
        path: the store's directory, made when missing.
        durability: "page_cache": a frame survives a kill when `enqueue` returns; "disk": a power
            cut, too.

    - A frame that a client has not acknowledged is not done with: it comes back, at the end of its
      queue, when the server was killed and the store is opened again.
    - What is no frame goes to the dead letters, and the next one is given.

    Raises:
        StoreLockedError: another process, which the error names, or another object has it open.
        ConfigError: the directory holds something else.

    Threads: any.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durability: Durability | DurabilityName = Durability.PAGE_CACHE,
    ) -> None:
        super().__init__()
        self._lock = threading.RLock()
        self._queues: dict[str, NamedFifo] = {}
        #: frames that no client took and the store has refused: as long as they are here they
        #: are held, and come back when the store is opened again
        self._refused: deque[tuple[str, Frame]] = deque()
        self._home = named_queues(directory_path("path", path), Durability(durability))
        self._open = True
        try:
            for name in self._home.names():
                self._queues[name] = self._home.open(name, NamedFifo)
        except BaseException:
            self.close()
            raise

    def enqueue(self, destination: str, frame: Frame) -> None:
        """Store a frame at the end of a queue.

        Args:
            destination: the queue's name; it is made when there is none.
            frame: of STOMP, with headers and body.

        Raises:
            OSError: the disk is full; the frame was not stored.
            MessageIllegalError: it has more than about 16 MB.
        """
        body = encode_frame(frame)
        with self._lock:
            queue = self._queue(destination)
            if queue is None:
                queue = self._home.open(destination, NamedFifo)
                self._queues[queue.name] = queue
            queue.push(body)

    def requeue(self, destination: str, frame: Frame) -> None:
        """Store a frame again that `dequeue` gave and no client took, at the end of its queue.

        One that the disk has no room for is stored again when it has. That is no error of the
        caller's: CoilMQ would keep the connection that has ended, and with it the frame, which then
        came twice.

        Args:
            destination: the queue's name.
            frame: that `dequeue` gave.

        Raises:
            StoreClosedError: the store is closed: what `dequeue` gave comes back when it is opened.
        """
        with self._lock:
            if not self._open:
                raise StoreClosedError(f"{destination}: the store is closed")
            try:
                self.enqueue(destination, frame)
            except (OSError, StoreError) as error:
                self._refused.append((destination, frame))
                # as text: who keeps what is logged must not keep the frame by the error's traceback
                _log.warning("%s: a frame is stored again later: %s", destination, str(error))

    def _requeue_refused(self) -> None:
        """Store again what the store has refused, as far as it takes it now."""
        with suppress(OSError, StoreError):
            while self._refused:
                self.enqueue(*self._refused[0])
                self._refused.popleft()

    def dequeue(self, destination: str) -> Frame | None:
        """Take the first frame of a queue; None when there is none.

        It is done with when nobody holds the object any more, as CoilMQ does until the
        acknowledgement.
        """
        with self._lock:
            self._requeue_refused()
            queue = self._queue(destination)
            frame = None if queue is None else self._first_frame(destination, queue)
            if queue is not None and not len(queue):
                # gives its place to the next destination: there are as many queues as wait at a
                # time
                del self._queues[queue.name]
                self._home.close_queue(queue)
            return frame

    def _first_frame(self, destination: str, queue: NamedFifo) -> Frame | None:
        while (taken := self._home.hold(queue)) is not None:
            body, slot = taken
            try:
                frame = decode_frame(body)
            except ValueError as error:
                self._home.bury(destination, body)
                self._home.release(slot)
                _log.error("%s: dead letter: %s", destination, error)
                continue
            self._home.sync()
            weakref.finalize(frame, self._home.release, slot).atexit = False
            return frame
        return None

    def held_size(self) -> int:
        """Bytes of the log files that the store has."""
        with self._lock:
            return self._home.held_size()

    def size(self, destination: str) -> int:
        """How many frames a queue has."""
        with self._lock:
            self._requeue_refused()
            queue = self._queue(destination)
            return 0 if queue is None else len(queue)

    def destinations(self) -> set[str]:
        """The names of the queues that have frames."""
        with self._lock:
            self._requeue_refused()
            return set(self._queues)

    def close(self) -> None:
        """Close the store, with what it has refused if there is room now; idempotent."""
        with self._lock:
            if self._open:
                self._requeue_refused()
                self._open = False
                for queue in self._queues.values():
                    self._home.close_queue(queue)
                self._home.leave()

    def _queue(self, destination: str) -> NamedFifo | None:
        return self._queues.get(stored_name(destination))


def encode_frame(frame: Frame) -> bytes:
    """A frame as bytes: a size, this many bytes of JSON with all but the body, the body."""
    text = isinstance(frame.body, str)
    headers = {str(name): str(value) for name, value in frame.headers.items()}
    head = json.dumps({"cmd": frame.cmd, "headers": headers, "text": text}).encode()
    body = frame.body.encode() if text else bytes(frame.body)
    return _HEAD_SIZE.pack(len(head)) + head + body


def decode_frame(encoded: bytes) -> Frame:
    """The frame that `encode_frame` has encoded.

    Raises:
        ValueError: it is none.
    """
    if len(encoded) < _HEAD_SIZE.size:
        raise ValueError(f"{len(encoded)} bytes are no frame")
    begin = _HEAD_SIZE.size
    end = begin + _HEAD_SIZE.unpack_from(encoded)[0]
    body = encoded[end:]
    try:
        head = json.loads(encoded[begin:end])
        text, headers = head["text"], dict(head["headers"])
        return Frame(str(head["cmd"]), headers, body.decode() if text else body)
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"its head is that of no frame: {error!r}") from error
