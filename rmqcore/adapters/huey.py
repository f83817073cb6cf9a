"""huey's storage in a store's directory: `RmqStorage`, and `RmqHuey` with it.

The queue is a topic whose queue ids are the priorities; schedule, results and counters are tables
of keys and values. docs/adapters/huey.md has the rest.
"""

from __future__ import annotations

import logging
import os
import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from huey.api import Huey
from huey.constants import WORKER_GREENLET, EmptyData
from huey.signals import SIGNAL_INTERRUPTED
from huey.storage import BaseStorage

from rmqcore.adapters.huey_chords import end_member
from rmqcore.adapters.names import table_of, topic_of
from rmqcore.adapters.opened import DELETE_CONSUMED_EVERY_S, OpenedStore, lease_of, opened_again
from rmqcore.arguments import directory_path
from rmqcore.chance import token_bytes
from rmqcore.errors import ConfigError, MessageIllegalError, RmqCoreError, StoreClosedError
from rmqcore.message import DEAD_LETTER_PREFIX
from rmqcore.store.consume.holders import is_gone
from rmqcore.store.consume.undoing import undone_if_interrupted

_log = logging.getLogger("rmqcore")

if TYPE_CHECKING:
    from rmqcore.message import Lease, ReceivedMessage
    from rmqcore.store.protocol import MessageStore

#: All consumers are one group of this name; a task that could not be read goes to ``%DLQ%huey``.
GROUP: Final = "huey"
#: Priority 0 has this queue id; priorities below -128 and above 127 count as the last ones.
_PRIORITY_ZERO: Final = 128
_PRIORITY_MAX: Final = 255
#: A task that is dequeued for good is leased for this long, and acknowledged meanwhile.
_TAKEN_WITHIN_MS: Final = 60_000
_NEVER: Final = 1 << 30
#: A key of the schedule: microseconds since 1970, moved up so that every date sorts; 16 bytes that
#: tell tasks of one time apart.
_DUE: Final = struct.Struct(">Q16s")
_DUE_ZERO: Final = 1 << 62
_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - of times without a zone
#: A scheduler that claims a task has this long to enqueue it; then another may claim it.
_CLAIMED_FOR_MS: Final = 60_000
_FLUSHED_AT_ONCE: Final = 1000
#: The errors by which the store refuses a put.
_REFUSALS: Final = (RmqCoreError, OSError)


class RmqStorage(BaseStorage):  # type: ignore[misc]
    """The storage of a huey in a store that any number of processes use at a time.

    Threads: any. Processes: a forked child opens the store anew.
    """

    priority = True

    def __init__(
        self,
        name: str = "huey",
        path: str | os.PathLike[str] | None = None,
        *,
        blocking: bool = True,
        read_timeout: float = 1,
        result_ttl: float | None = None,
        lease_ms: int | None = None,
        delete_consumed_every: float | None = DELETE_CONSUMED_EVERY_S,
        **settings: Any,
    ) -> None:
        """A storage; its store is opened at the first use.

        Args:
            name: of the queue; storages of other names in one store are apart.
            path: the store's directory.
            blocking: whether `dequeue` waits for a task.
            read_timeout: how long, in seconds.
            result_ttl: seconds after which a result that nobody read is dropped; None for never.
            lease_ms: None: a task is taken off the queue when it is handed out, as huey's own
                storages do. A number: `RmqHuey` takes it off when it has been executed, and hands
                it out again when its process has ended, or after this many milliseconds.
            delete_consumed_every: seconds after which log files that nobody needs any more are
                given back; None for never.
            settings: of `rmqcore.open_shared`.

        Raises:
            ConfigError: there is no path.
        """
        super().__init__(name)
        if path is None:
            raise ConfigError(
                "path", path, "the directory of the store, such as /var/lib/app/queue"
            )
        self._path = os.fspath(directory_path("path", path).absolute())
        self._settings = settings
        self.blocking = blocking
        self.lease_ms = lease_ms
        self._read_timeout_ms = read_timeout * 1000
        self._result_ttl = result_ttl
        self._delete_consumed_every = delete_consumed_every
        self._topic = topic_of("huey", name)
        self._results = table_of("huey-results", name)
        self._counters = table_of("huey-counters", name)
        self._schedule = table_of("huey-schedule", name)
        #: the table of those who enqueue what is due, or what follows a chord
        self.claims = table_of("huey-claims", name)
        self._opened: OpenedStore | None = None
        #: by process id: a thread may have it when another one forks
        self._opening: dict[int, threading.RLock] = {}

    @property
    def store(self) -> MessageStore:
        """The store, opened at the first use, and anew when its directory has been removed.

        Forked children use it too.
        """
        return self._open.store

    @property
    def _open(self) -> OpenedStore:
        opened = self._opened
        if opened is None or not opened.is_there():
            with self._opening.setdefault(os.getpid(), threading.RLock()):
                opened = self._opened = opened_again(self._opened, self._path, self._settings)
        return opened

    def close(self) -> bool:
        """Let the store go; the next use opens it again.

        Returns:
            False when it was not open.
        """
        opened, self._opened = self._opened, None
        if opened is None:
            return False
        opened.close()
        return True

    # ---- the queue

    def enqueue(self, data: bytes, priority: float | None = None) -> None:
        """Put a task; higher priorities are handed out first.

        Args:
            data: the task as huey has packed it.
            priority: None for 0; what is beyond the least or greatest counts as that.
        """
        self.put_task(data, priority, {})

    def put_task(self, data: bytes, priority: float | None, properties: Mapping[str, str]) -> None:
        """As `enqueue`, with properties of the task's message.

        Args:
            data: as `enqueue` takes it.
            priority: as `enqueue` takes it.
            properties: the message's, by name.
        """
        level = int(max(-_PRIORITY_ZERO, min(priority or 0, _PRIORITY_MAX - _PRIORITY_ZERO)))
        queue_id = _PRIORITY_ZERO + level
        self.store.put(self._topic, data, queue_id=queue_id, properties=properties)

    @undone_if_interrupted
    def dequeue(self) -> bytes | None:
        """Take the next task off the queue: it is handed out once."""
        taken = self.lease(_TAKEN_WITHIN_MS)
        if taken is None:
            return None
        self.take(lease_of(taken))
        return bytes(taken.body)

    @undone_if_interrupted
    def lease(self, lease_ms: int) -> ReceivedMessage | None:
        """The next task, which comes again unless it is acknowledged in time; None without one."""
        opened = self._open
        self.delete_consumed()
        try:
            leased = opened.lease(
                GROUP,
                {self._topic: "*"},
                max_messages=1,
                lease_ms=lease_ms,
                timeout_ms=self._read_timeout_ms if self.blocking else 0,
                max_reconsume_times=_NEVER,
                by_priority=True,
            )
        except StoreClosedError:
            # closed while a worker waits: the consumer is being stopped
            if not self.blocking:
                raise
            return None
        return leased[0] if leased else None

    def acknowledge(self, lease: Lease) -> None:
        """Take a leased task off the queue that has been executed."""
        self._open.settle(lambda: self.store.acknowledge(GROUP, [lease]))

    def take(self, lease: Lease) -> None:
        """Take a leased task off the queue; one that the disk has no room to take comes again."""
        try:
            self.store.acknowledge(GROUP, [lease])
        except _REFUSALS:
            with suppress(*_REFUSALS):
                self.give_back(lease)
            raise

    def give_back(self, lease: Lease) -> None:
        """Let a leased task be handed out again, at once."""
        terms: dict[str, Any] = {"delay_ms": 0, "max_reconsume_times": _NEVER}
        self._open.settle(lambda: self.store.give_back(GROUP, [lease], **terms))

    def bury(self, lease: Lease) -> None:
        """Put a leased task into the dead-letter topic."""
        self._open.settle(lambda: self.store.give_back(GROUP, [lease], max_reconsume_times=0))

    def bury_data(self, data: bytes) -> None:
        """Put a task of the schedule into the dead-letter topic."""
        self.store.put(f"{DEAD_LETTER_PREFIX}{GROUP}", data)

    def queue_size(self) -> int:
        """Tasks that wait."""
        rows = self.store.lag(GROUP, [self._topic])
        return sum(row.ready for row in rows if row.topic == self._topic)

    def enqueued_items(self, limit: int | None = None) -> list[bytes]:
        """The tasks that wait; with a limit the next ones."""
        stretches = self.store.ready(GROUP, self._topic)
        by_priority = sorted(stretches, key=lambda stretch: -stretch[0])
        waiting = (
            bytes(message.body)
            for queue_id, first, end in by_priority
            for message in self.store.messages(self._topic, queue_id, start=first, stop=end)
        )
        return list(islice(waiting, limit or None))

    def flush_queue(self) -> None:
        """Drop all tasks that wait."""
        self.store.purge(GROUP, self._topic)

    # ---- the schedule

    def add_to_schedule(self, data: bytes, ts: datetime) -> None:
        """Keep a task until a time.

        Args:
            data: the task as huey has packed it.
            ts: when it is due.
        """
        key = _DUE.pack(_due(ts), token_bytes(16))
        self.store.kv_put(self._schedule, key, data)

    def read_schedule(self, ts: datetime) -> list[bytes]:
        """Take the tasks that are due at a time, soonest first."""
        return [data for _, data in self.store.kv_take(self._schedule, last=_behind(ts))]

    def delete_consumed(self) -> None:
        """Give log files back, if it is time to."""
        self._open.delete_consumed(self._delete_consumed_every)

    def held_size(self) -> int:
        """Bytes of the log files that the store has."""
        return self._open.held_size()

    def claim_schedule(self, ts: datetime) -> Iterator[tuple[bytes, bytes]]:
        """(key, data) of the tasks that are due at a time, and that no other scheduler has.

        Each is claimed when it is asked for, as all together may take longer than a claim lasts. It
        stays in the schedule until `unschedule`; after a minute, or when the process has ended that
        has claimed it, another may have it.
        """
        store = self.store
        claimed = False
        for key, data in store.kv_list(self._schedule, last=_behind(ts)):
            try:
                mine = self._claim(key)
            except _REFUSALS:
                # the others are claimed later
                if not claimed:
                    raise
                return
            if not mine:
                continue
            claimed = True
            # since it was listed another may have enqueued it, and its claim be over
            if store.kv_get(self._schedule, [key]) == [None]:
                self.unclaim(key)
            else:
                yield key, data

    def _claim(self, key: bytes) -> bool:
        """Claim a task of the schedule for this process; False when another has it, and lives."""
        store, holder = self.store, self._open.holder.encode()
        if store.kv_swap(self.claims, key, None, holder, ttl_ms=_CLAIMED_FOR_MS):
            return True
        (known,) = store.kv_get(self.claims, [key])
        if known is None or not is_gone(known.decode("ascii", "replace")):
            return False
        return store.kv_swap(self.claims, key, known, holder, ttl_ms=_CLAIMED_FOR_MS)

    def unclaim(self, key: bytes) -> None:
        """Let whoever wants have a task that was claimed, if the store writes that down."""
        with suppress(*_REFUSALS):
            self.store.kv_put(self.claims, key, None)

    def unschedule(self, key: bytes) -> None:
        """Take a task that was claimed out of the schedule."""
        self.store.kv_put(self._schedule, key, None)

    def schedule_size(self) -> int:
        """Tasks in the schedule."""
        return self.store.kv_count(self._schedule)

    def scheduled_items(self, limit: int | None = None) -> list[bytes]:
        """The tasks of the schedule, soonest first; with a limit the next ones."""
        found = self.store.kv_list(self._schedule, max_entries=limit or 0)
        return [data for _, data in found]

    def flush_schedule(self) -> None:
        """Drop the schedule."""
        self._flush(self._schedule)

    # ---- results, and what huey keeps beside them

    def put_data(self, key: bytes | str, value: bytes, is_result: bool = False) -> None:
        """Set a value; a result is dropped after the storage's `result_ttl`.

        Args:
            key: text is UTF-8.
            value: its bytes.
            is_result: of a task, so that it is dropped at last.
        """
        ttl_ms = int(self._result_ttl * 1000) if is_result and self._result_ttl else 0
        self.store.kv_put(self._results, _key(key), bytes(value), ttl_ms=ttl_ms)

    def peek_data(self, key: bytes | str) -> Any:
        """The value of a key, or ``EmptyData``."""
        (value,) = self.store.kv_get(self._results, [_key(key)])
        return EmptyData if value is None else value

    def peek_many(self, keys: Sequence[bytes | str]) -> dict[bytes | str, bytes]:
        """The values of those keys that there are."""
        values = self.store.kv_get(self._results, [_key(key) for key in keys])
        return {key: value for key, value in zip(keys, values, strict=True) if value is not None}

    def pop_data(self, key: bytes | str) -> Any:
        """Take the value of a key, or ``EmptyData``; of several callers one gets it."""
        name = _key(key)
        found = self.store.kv_take(self._results, first=name, last=name + b"\0")
        return found[0][1] if found else EmptyData

    def has_data_for_key(self, key: bytes | str) -> bool:
        """Tell whether a key has a value."""
        return self.peek_data(key) is not EmptyData

    def put_if_empty(self, key: bytes | str, value: bytes, ttl: float | None = None) -> bool:
        """Set a value if the key has none; of several callers, in any process, one does.

        Args:
            key: text is UTF-8.
            value: its bytes.
            ttl: seconds until it is dropped; None or 0 for never.
        """
        ttl_ms = int(ttl * 1000) if ttl else 0
        return self.store.kv_swap(self._results, _key(key), None, bytes(value), ttl_ms=ttl_ms)

    def incr(self, key: bytes | str, amount: int = 1) -> int:
        """Add to a counter; the new value.

        Args:
            key: text is UTF-8; a counter that there is not is 0.
            amount: may be negative.
        """
        name = _key(key)
        while True:
            (old,) = self.store.kv_get(self._counters, [name])
            value = int(old or 0) + amount
            if self.store.kv_swap(self._counters, name, old, b"%d" % value):
                return value

    def delete_counter(self, key: bytes | str) -> None:
        """Drop a counter."""
        self.store.kv_put(self._counters, _key(key), None)

    def result_store_size(self) -> int:
        """Keys that have values."""
        return self.store.kv_count(self._results)

    def result_items(self) -> dict[str, bytes]:
        """All keys and values."""
        found = self.store.kv_list(self._results)
        return {key.decode("utf-8", "surrogateescape"): value for key, value in found}

    def flush_results(self) -> None:
        """Drop all values."""
        self._flush(self._results)

    def flush_counters(self) -> None:
        """Drop all counters."""
        self._flush(self._counters)

    def _flush(self, table: str) -> None:
        while self.store.kv_take(table, max_entries=_FLUSHED_AT_ONCE):
            pass


class RmqHuey(Huey):  # type: ignore[misc]
    """A huey whose tasks, schedule and results are in a store: ``RmqHuey(name, path=...)``.

    With ``lease_ms`` a task that was begun and not ended is handed out again. A task that cannot
    be read goes to the dead-letter topic ``%DLQ%huey``.
    """

    storage_class = RmqStorage

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """As `Huey`; further arguments are those of `RmqStorage`."""
        super().__init__(*args, **kwargs)
        #: by the object that was dequeued, which is kept: a retry has the same task id
        self._leases: dict[int, tuple[Any, Lease]] = {}
        #: without leases: what was read from the schedule last and is not enqueued yet, and what
        #: neither queue nor schedule took
        self._due: dict[int, Any] = {}
        self._refused: list[Any] = []
        self._signal.connect(self._interrupted, SIGNAL_INTERRUPTED)

    def create_consumer(self, **options: Any) -> Any:
        """As `Huey.create_consumer`, for workers that are threads or processes.

        Raises:
            ConfigError: they are greenlets: whoever waits for a task lets no other go on.
        """
        kind = options.get("worker_type")
        # huey's other word for it, from before
        if kind in (WORKER_GREENLET, "gevent"):
            rule = "thread or process: a store is served by threads"
            raise ConfigError("worker_type", kind, rule)
        return super().create_consumer(**options)

    @undone_if_interrupted
    def dequeue(self) -> Any:
        """The next task; None when there is none."""
        storage = self.storage
        if not isinstance(storage, RmqStorage):
            return super().dequeue()
        taken = storage.lease(storage.lease_ms or _TAKEN_WITHIN_MS)
        if taken is None:
            return None
        lease = lease_of(taken)
        try:
            task = self._read(bytes(taken.body))
        except Exception:
            storage.bury(lease)
            raise
        if storage.lease_ms is None:
            storage.take(lease)
        else:
            self._leases[id(task)] = task, lease
        return task

    def _read(self, data: bytes) -> Any:
        """A task as its bytes say; what cannot be read a second time either raises.

        Raises:
            ValueError: whoever reads it is ended by it, as by a module that calls `sys.exit`.
        """
        try:
            return self.deserialize_task(data)
        except BaseException as error:  # noqa: BLE001 - looked at below
            first = error
        # a signal handler may have raised, or memory been short
        try:
            task = self.deserialize_task(data)
        except BaseException as error:
            if isinstance(first, Exception) or isinstance(error, Exception | KeyboardInterrupt):
                raise
            raise ValueError(f"the task ends whoever reads it: {error!r}") from error
        if not isinstance(first, Exception):
            raise first
        return task

    def read_schedule(self, timestamp: datetime | None = None) -> list[Any]:
        """The tasks that are due, to be enqueued; with leases they are enqueued here.

        A task leaves the schedule when it is in the queue, so that one is not lost which its
        scheduler, killed, did not enqueue. Without leases one goes back that `enqueue` refuses.
        """
        storage = self.storage
        if not isinstance(storage, RmqStorage):
            return list(super().read_schedule(timestamp))
        storage.delete_consumed()
        at = self._get_timestamp() if timestamp is None else timestamp
        if storage.lease_ms is None:
            refused, self._refused = self._refused, []
            read = [self._readable(data) for data in storage.read_schedule(at)]
            due = [*refused, *(task for task in read if task is not None)]
            self._due = {id(task): task for task in due}
            return due
        for key, data in storage.claim_schedule(at):
            try:
                task = self._readable(data)
                if task is not None:
                    self.enqueue(task)
                storage.unschedule(key)
            except BaseException:
                storage.unclaim(key)
                raise
        return []

    def enqueue(self, task: Any) -> Any:
        """Put a task into the queue; one that was due and is refused is in the schedule again.

        Args:
            task: the task; huey's scheduler drops it when this raises.
        """
        was_due = self._due.pop(id(task), None) is not None
        try:
            return super().enqueue(task)
        except _REFUSALS as error:
            if was_due and not isinstance(error, MessageIllegalError):
                self._put_back(task)
            raise

    def _put_back(self, task: Any) -> None:
        try:
            due = task.eta or self._get_timestamp()
            self.storage.add_to_schedule(self.serialize_task(task), due)
        except _REFUSALS:
            # it is due again with the next look
            self._refused.append(task)

    def _readable(self, data: bytes) -> Any:
        """A task of the schedule; None for one that cannot be read, which is a dead letter then."""
        try:
            return self._read(data)
        except Exception:  # noqa: BLE001 - whatever a serializer says of what it cannot read
            _log.exception("a task of the schedule cannot be read")
            self.storage.bury_data(data)
            return None

    def execute(self, task: Any, timestamp: datetime | None = None) -> Any:
        """Execute a task, and take it off the queue when that has ended.

        A task whose retry, or what follows it, the store refuses keeps its lease: it comes again.

        Args:
            task: that `dequeue` gave.
            timestamp: when it is compared with what the task waits for; None for now.
        """
        try:
            value = super().execute(task, timestamp)
        except Exception as error:
            if isinstance(error, MessageIllegalError) or not isinstance(error, _REFUSALS):
                self._acknowledge(task)
            self._leases.pop(id(task), None)
            raise
        self._acknowledge(task)
        return value

    def _check_chord(self, config: Any, value: object) -> None:
        storage = self.storage
        if isinstance(storage, RmqStorage) and storage.lease_ms is not None:
            end_member(self, storage.store, storage.claims, config, value)
        else:
            super()._check_chord(config, value)

    def _acknowledge(self, task: Any) -> None:
        _, lease = self._leases.pop(id(task), (None, None))
        if lease is not None:
            self.storage.acknowledge(lease)

    def _interrupted(self, signal: str, task: Any) -> None:
        """The worker is being stopped: another one is to execute the task."""
        _, lease = self._leases.pop(id(task), (None, None))
        if lease is not None:
            self.storage.give_back(lease)


def _key(key: bytes | str) -> bytes:
    return key.encode("utf-8", "surrogateescape") if isinstance(key, str) else key


def _due(ts: datetime) -> int:
    """A number that orders times as huey compares them: without a zone, they are all of one."""
    if ts.tzinfo is not None:
        ts = ts.astimezone(UTC).replace(tzinfo=None)
    return _DUE_ZERO + (ts - _EPOCH) // timedelta(microseconds=1)


def _behind(ts: datetime) -> bytes:
    """The key behind all that are due at a time."""
    return _DUE.pack(_due(ts) + 1, bytes(16))
