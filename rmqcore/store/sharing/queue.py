"""`Queue`: a durable queue of Python's values in a directory, for any number of processes."""

from __future__ import annotations

import json
import logging
import math
import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty
from typing import TYPE_CHECKING, Any, Final, Protocol, Self
from weakref import WeakSet

from rmqcore.arguments import real_number, text
from rmqcore.errors import ArgumentError, StoreClosedError, StoreError
from rmqcore.store.consume.arrivals import Deadline
from rmqcore.store.consumer import Consumer, keep_room_for_leases
from rmqcore.store.sharing import open_shared

if TYPE_CHECKING:
    from rmqcore.message import ReceivedMessage
    from rmqcore.store.sharing.shared_store import SharedStore

_log = logging.getLogger("rmqcore")

#: All handles consume as this group; an item that came too often goes to ``%DLQ%`` and this.
GROUP: Final = "queue"
#: Log files that nobody needs are deleted after this many seconds at the latest.
_DELETES_EVERY_S: Final = 60.0
_HOUR_S: Final = 3600.0
#: A wait for an item is broken off this often, so that a queue that was closed is noticed.
_POLL_S: Final = 0.5
#: Who waits for long looks this often whether an interrupt has left an item with nobody.
_WAIT_MS: Final = 5_000.0
_ANY: Final = object()


class Serializer(Protocol):
    """What makes bytes or text of a value, and the value of the bytes: `json`, `pickle`."""

    def dumps(self, item: Any, /) -> bytes | str:
        """The bytes or the text of a value."""
        ...

    def loads(self, data: bytes, /) -> Any:
        """The value of the bytes."""
        ...


@dataclass(slots=True, eq=False)
class _Held:
    """An item that was got, by which thread, and its message.

    Attributes:
        consumer: who holds it.
        in_turn: a loop has handed it out, and settles it itself.
        leaving: `done` has begun with it, and was perhaps interrupted.
        settled: it is nobody's any more, and leaves the list with the next look at it.
    """

    thread: int
    item: Any
    message: ReceivedMessage
    consumer: Consumer
    in_turn: bool = False
    leaving: bool = False
    settled: bool = False


@dataclass(slots=True, eq=False, weakref_slot=True)
class _Getting:
    """A `get` that is under way: it is known as long as its frame is there.

    Attributes:
        consumer: who gets the item.
        held: the item, once it is on the list.
    """

    consumer: Consumer
    held: _Held | None = None


def _milliseconds(name: str, seconds: object) -> int:
    """An argument in seconds as whole milliseconds.

    Raises:
        ArgumentError: it is no number, or negative.
    """
    rule = "a number of seconds, 0 or more"
    number = real_number(name, seconds, rule)
    if not 0 <= number < math.inf:
        raise ArgumentError(name, seconds, rule)
    return math.ceil(number * 1000)


class Queue:
    """A queue in a directory: first in, first out, as `queue.Queue` is, and it outlives processes.

    - ``put`` returns when the item is in the log: a kill of every process does not lose it.
    - ``get`` hands an item to one caller, of whatever process. It is gone when that says ``done``;
      one whose process has ended before, however it ended, comes again at once.
    - So an item may come more than once: after a kill, and when `lease_s` were not enough.

    Threads: any. Processes: any number on this machine; forked children too.

    Attributes:
        path: the store's directory; every command and every call for stores works on it.
        name: of the queue, the topic of its messages.
        store: the handle of `open_shared`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        name: str = "queue",
        *,
        serializer: Serializer = json,
        lease_s: float = _HOUR_S,
        max_reconsume_times: int = 16,
        **settings: Any,
    ) -> None:
        """Open the queue; the directory is made when it is missing.

        Args:
            path: the directory.
            name: queues of other names in one directory are apart; a topic's name.
            serializer: ``dumps`` makes bytes or text of an item, ``loads`` the item of the bytes.
            lease_s: seconds after which an item that was got and is not done comes again, though
                who has it lives.
            max_reconsume_times: how often an item comes again before it goes to ``%DLQ%queue``.
            settings: of `open_shared`, such as ``flush_disk_type="SYNC_FLUSH"``.

        Raises:
            ArgumentError: an argument is not what it should be.
            StoreError, ConfigError, OSError: as `open_shared`.
        """
        if not all(callable(getattr(serializer, name, None)) for name in ("dumps", "loads")):
            raise ArgumentError("serializer", serializer, "what has dumps and loads, such as json")
        lease_ms = max(1, _milliseconds("lease_s", lease_s))
        self.name = text("name", name)
        self._serializer = serializer
        self.store: SharedStore = open_shared(path, **settings)
        self.path = self.store.path
        self._new_consumer = partial(
            Consumer,
            self.store,
            GROUP,
            {self.name: "*"},
            lease_ms=lease_ms,
            max_reconsume_times=max_reconsume_times,
        )
        try:
            self._consumer = self._new_consumer()
            keep_room_for_leases(self.store)
        except BaseException:
            self.store.close()
            raise
        #: those who may hold what a `get` that was interrupted did not hand out
        self._retired: list[Consumer] = []
        self._gettings: WeakSet[_Getting] = WeakSet()
        #: what was got and not settled, oldest first
        self._taken: deque[_Held] = deque()
        #: those of them of which somebody has begun to say what becomes of them
        self._begun: list[_Held] = []
        #: by process id; a signal handler may come in a block of its own thread's
        self._locks: dict[int, threading.RLock] = {}
        self._pid = os.getpid()
        self._stopped = False
        self._file_size = self.store.config.mapped_file_size_commit_log
        self._deletes_at = self.store.world.monotonic_s() + _DELETES_EVERY_S
        self._handed_out_size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let the directory go; what was got and is not done comes again at once. Idempotent."""
        for consumer in (self._consumer, *self._retired):
            consumer.close()
        self.store.close()

    # ---- putting and getting

    def put(self, item: Any) -> None:
        """Put an item behind all others.

        Args:
            item: what the serializer takes; with JSON: dicts, lists, text, numbers, True, None.

        Raises:
            ArgumentError: the serializer does not take it; nothing was put.
            DiskFullError: there is no room; nothing was put.

        Durability: page_cache when it returns, ``disk`` with ``flush_disk_type="SYNC_FLUSH"``.
        """
        try:
            data = self._serializer.dumps(item)
            body = data.encode() if isinstance(data, str) else data
        except Exception as error:
            # a serializer raises what it likes: pickle.PicklingError, RecursionError
            rule = f"what the serializer takes ({error}); or another, such as serializer=pickle"
            raise ArgumentError("item", item, rule) from error
        self.store.put(self.name, body)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Hand out the next item; nobody else gets it until this process has ended.

        Args:
            block: False: not to wait for one.
            timeout: seconds to wait; None until there is one.

        Raises:
            queue.Empty: there was none in time.
            ArgumentError: the time is none; or the serializer does not read the item, which another
                one has put. It comes again later, as after `nack`, and is a dead letter in the end;
                others come first.
            StoreClosedError: the queue is closed, maybe since this began to wait.

        Interrupted, it hands out nothing: an item that it was given comes again with a next `get`,
        of this process too, once all is settled that was handed out before the interrupt.
        """
        wait_ms = None if timeout is None else _milliseconds("timeout", timeout)
        self._finish_leaving()
        getting = self._begin_get()
        try:
            held = self._get(getting, wait_ms if block else 0)
            if held is not None:
                # no call behind it, in which an interrupt could come
                return held.item
        except StoreClosedError:
            raise
        except BaseException:
            self._give_up(getting)
            raise
        raise Empty

    def _begin_get(self) -> _Getting:
        """Begin to get an item; those that were interrupted in that let go of theirs."""
        with self._own_lock():
            getting = _Getting(self._consumer)
            self._gettings.add(getting)
        if self._retired:
            self._let_go()
        return getting

    def _let_go(self) -> None:
        """Let come again what is held by those who hold nothing that was handed out."""
        with self._own_lock():
            busy = {held.consumer for held in list(self._unsettled())}
            busy |= {getting.consumer for getting in self._gettings}
            idle = [consumer for consumer in self._retired if consumer not in busy]
        for consumer in idle:
            # what the store refuses, on a full disk, is tried by the next `get`
            with suppress(StoreError, OSError):
                self.store.release_leases(consumer.holder)
                with self._own_lock():
                    self._retired = [each for each in self._retired if each is not consumer]

    def _give_up(self, getting: _Getting) -> None:
        """Hand out nothing of a `get` that did not come to its end.

        Nobody knows whether it was given an item. What its consumer holds comes again when all is
        settled that this one has handed out; another one goes on.
        """
        with self._own_lock():
            # a traceback may keep its frame for long
            self._gettings.discard(getting)
            if getting.held is not None:
                getting.held.settled = True
                self._begun.append(getting.held)
            if getting.consumer is self._consumer:
                self._retired.append(self._consumer)
                self._consumer = self._new_consumer()

    def _get(self, getting: _Getting, wait_ms: float | None) -> _Held | None:
        """The next item, which is to be settled from now on; without a time wait until it is there.

        Raises:
            StoreClosedError: the queue is closed.
        """
        message = self._receive(getting, wait_ms)
        if message is None:
            return None
        try:
            item = self._serializer.loads(message.body)
        except Exception as error:
            getting.consumer.nack(message)
            rule = f"bytes that the queue's serializer reads ({error}), at {message.queue_offset}"
            raise ArgumentError("item", bytes(message.body), rule) from error
        held = getting.held = _Held(threading.get_ident(), item, message, getting.consumer)
        with self._own_lock():
            self._unsettled().append(held)
            self._handed_out_size += message.stored.store_size
        return held

    def _receive(self, getting: _Getting, wait_ms: float | None) -> ReceivedMessage | None:
        """The next message; now and then who waits goes on as the consumer of now."""
        deadline = Deadline(wait_ms, self.store.world.monotonic_s)
        while True:
            left_ms = deadline.left_s * 1000
            for message in getting.consumer.receive(timeout_ms=min(left_ms, _WAIT_MS)):
                return message
            if left_ms <= _WAIT_MS:
                return None
            with self._own_lock():
                getting.consumer = self._consumer
            if self._retired:
                self._let_go()

    def done(self, item: Any = _ANY) -> None:
        """Be done with an item: it is gone for good.

        Args:
            item: the very object that `get` has returned; without it the oldest of those that this
                thread has got and that are not done.

        Raises:
            ValueError: there is none; as `queue.Queue.task_done`.
            DiskFullError: there is no room to write it down; it is still to be settled.

        Interrupted, it is said once more, or left: `get` then says it, and no other item is taken
        for this one.
        """
        held = self._held(item)
        self._leave(held)
        self._give_files_back()
        # no call behind it, in which an interrupt could come
        held.settled = True

    def _leave(self, held: _Held) -> None:
        held.leaving = True
        try:
            # once more is nothing new
            self._consumer.ack(held.message)
        except Exception:
            held.leaving = False
            raise

    def _finish_leaving(self) -> None:
        """Be done with what this thread was interrupted in being done with, and has left."""
        here = threading.get_ident()
        with self._own_lock():
            self._unsettled()
            left = [each for each in self._begun if each.leaving and each.thread == here]
        for held in left:
            self._leave(held)
            held.settled = True

    task_done = done

    def nack(self, item: Any = _ANY, *, delay_s: float | None = None) -> None:
        """Let an item come again.

        Args:
            item: as in `done`.
            delay_s: seconds until then; None: longer each time, 10 s, 30 s, 1, 2 ... minutes.

        Raises:
            ValueError: as `done`.
        """
        delay_ms = None if delay_s is None else _milliseconds("delay_s", delay_s)
        held = self._held(item)
        self._consumer.nack(held.message, delay_ms=delay_ms)
        held.settled = True

    def __iter__(self) -> Iterator[Any]:
        """Hand out one item after the other, and wait for more; it ends with `stop` or `close`.

        An item is done when the next one is asked for. One whose turn ends otherwise, by ``break``
        or an exception, is not, unless `done` was called.
        """
        with suppress(StoreClosedError):
            while not self._stopped:
                try:
                    item = self.get(timeout=_POLL_S)
                except Empty:
                    continue
                held = self._begin_turn()
                yield item
                if held is not None and self._has(held):
                    self.done(held)

    def stop(self) -> None:
        """Let loops end when they are done with the item that they have; a signal may call it."""
        self._stopped = True

    # ---- what there is

    def qsize(self) -> int:
        """Items that wait: without those that somebody has got, or that come again later."""
        return sum(row.ready for row in self._lag())

    __len__ = qsize

    def empty(self) -> bool:
        """Whether no item waits."""
        return not self.qsize()

    def unfinished(self) -> int:
        """Items that are not done: those that wait, and those that somebody has got."""
        return sum(row.ready + row.leased for row in self._lag())

    def __bool__(self) -> bool:
        """True, also of an empty queue."""
        return True

    def __repr__(self) -> str:
        return f"<Queue {self.name} in {self.path}>"

    def _lag(self) -> list[Any]:
        return [row for row in self._consumer.lag() if row.topic == self.name]

    def _own_lock(self) -> AbstractContextManager[object]:
        """The lock of what was got; a forked child begins with nothing, and a lock of its own."""
        pid = os.getpid()
        # of several threads that come here first, all get one lock
        lock = self._locks.setdefault(pid, threading.RLock())
        if self._pid != pid:
            with lock:
                if self._pid != pid:
                    self._taken, self._begun, self._retired = deque(), [], []
                    self._gettings = WeakSet()
                    self._pid = pid
        return lock

    def _begin_turn(self) -> _Held | None:
        """What this thread has got last: the same object may be the item of several messages.

        None where another thread has settled it already.
        """
        here = threading.get_ident()
        with self._own_lock():
            newest_first = reversed(list(self._unsettled()))
            held = next((each for each in newest_first if each.thread == here), None)
        if held is not None:
            held.in_turn = True
        return held

    def _has(self, held: _Held) -> bool:
        with self._own_lock():
            return held in self._unsettled()

    def _held(self, item: Any) -> _Held:
        """What `get` has returned and is to be settled; it stays on the list until it is.

        Of several whose item is one object, such as a small number, it is one of this thread's,
        and what its loop has in hand.

        Args:
            item: see `done`; or what a loop has in hand.
        """
        here = threading.get_ident()
        with self._own_lock():
            found = [
                held
                for held in list(self._unsettled())
                if item is held.item or item is held or (item is _ANY and held.thread == here)
            ]
            if item is not _ANY:
                found.sort(key=lambda held: (held.thread != here, not held.in_turn))
            for held in found:
                if not held.settled:
                    if held not in self._begun:
                        self._begun.append(held)
                    return held
        raise ValueError(f"nothing that {self!r} has handed out is left to be settled by this call")

    def _unsettled(self) -> deque[_Held]:
        """What is to be settled, oldest first; under the lock."""
        for held in [each for each in self._begun if each.settled]:
            for those in (self._taken, self._begun):
                with suppress(ValueError):
                    those.remove(held)
        return self._taken

    def _give_files_back(self) -> None:
        """Delete log files in which everything is done, if it is time to."""
        now = self.store.world.monotonic_s()
        with self._own_lock():
            if now < self._deletes_at and self._handed_out_size < self._file_size:
                return
            self._deletes_at, self._handed_out_size = now + _DELETES_EVERY_S, 0
        try:
            self.store.delete_consumed_files()
        except (StoreError, OSError) as error:
            # the item is done all the same, and the files are looked at again
            _log.warning("%s: no log files are given back now: %s", self.path, error)
