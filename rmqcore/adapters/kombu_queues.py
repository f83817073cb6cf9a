"""kombu's queues: what all processes know of each, when it expires, and how it is deleted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from kombu.transport.base import to_rabbitmq_queue_arguments
from kombu.utils.json import dumps, loads

from rmqcore.adapters.kombu_bindings import SharedExchanges
from rmqcore.adapters.kombu_consumers import QueueConsumers
from rmqcore.adapters.kombu_qos import GROUP
from rmqcore.adapters.names import topic_of
from rmqcore.errors import StoreError
from rmqcore.files.config_tables import OFFSET_MAX
from rmqcore.store.consume.holders import Holder, is_gone

if TYPE_CHECKING:
    from rmqcore.adapters.opened import OpenedStore
    from rmqcore.store.protocol import MessageStore

#: the tables: arguments by queue, queues that may expire
QUEUES: Final = "kombu-queues"
EXPIRING: Final = "kombu-expiring"

#: Among the arguments of a queue with ``auto_delete``: milliseconds for which it outlives its
#: consumers.
_AUTO_DELETE: Final = "auto-delete"
_AUTO_DELETED_MS: Final = 60_000
#: Consumers of a queue that expires renew it this many times within its time.
_KEPT_TIMES: Final = 3
#: Consumers of a queue that does not expire look so often whether it was deleted and does now.
_LOOKED_UP_S: Final = 1
#: With this, a `_Deletion` stands in the place of a queue's arguments while its messages are
#: deleted. Of one who has died another takes it over; after `_DELETING_MS` of anybody, of whom it
#: cannot be told.
_DELETING: Final = b"\0"
_DELETER: Final = Holder()
_DELETING_MS: Final = 10_000
_DELETING_PAUSE_S: Final = 0.01


class _Deletion(NamedTuple):
    """A deletion of a queue that is under way, or was left by one who was killed.

    Attributes:
        deleter: who does it.
        end: physical offset below which the queue's messages are deleted; what is published behind
            it while nobody goes on with the deletion stays.
        since_ms: Unix time at which it began.
    """

    deleter: str
    end: int
    since_ms: int

    @classmethod
    def of(cls, mark: bytes) -> Self:
        """What a mark says; one of an earlier release has the deleter only, and goes by itself."""
        deleter, *rest = mark.removeprefix(_DELETING).decode("ascii", "replace").split(" ")
        end, since_ms = map(int, rest) if len(rest) == 2 else (OFFSET_MAX, 0)
        return cls(deleter, end, since_ms)

    @property
    def mark(self) -> bytes:
        """It, as the table of queues has it."""
        return _DELETING + " ".join(map(str, self)).encode()

    def is_left(self, now_ms: int) -> bool:
        """Whether nobody is at it any more, as far as one can tell."""
        if is_gone(self.deleter):
            return True
        return self.since_ms > 0 and not 0 <= now_ms - self.since_ms < _DELETING_MS


class SharedQueues(SharedExchanges):
    """The part of a channel that declares queues, for all processes, and deletes them."""

    def __init__(self, connection: Any, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self._opened: OpenedStore = connection.opened
        self.store = self._opened.store
        self._arguments: dict[str, dict[str, Any]] = {}
        self._kept_until: dict[str, float] = {}
        self._consuming = QueueConsumers(self.store)
        self._opened.before_drop.add(self._consuming.leave_all)

    def close(self) -> None:
        """Close the channel: its consumers end."""
        super().close()
        self._opened.before_drop.discard(self._consuming.leave_all)

    def prepare_queue_arguments(self, arguments: Any, **kwargs: Any) -> Any:
        """The arguments of a queue as AMQP names them: ``x-expires``, ``x-message-ttl``.

        Args:
            arguments: by name, of AMQP already.
            kwargs: kombu's: ``expires`` and ``message_ttl`` in seconds, ``max_priority`` and
                others.
        """
        return to_rabbitmq_queue_arguments(arguments, **kwargs)

    def _new_queue(
        self,
        queue: str,
        arguments: Mapping[str, Any] | None = None,
        auto_delete: bool = False,
        **_: object,
    ) -> None:
        known = ("x-expires", "x-message-ttl")
        kept = {name: int(arguments[name]) for name in known if arguments and name in arguments}
        if auto_delete and not kept.get("x-expires"):
            kept[_AUTO_DELETE] = _AUTO_DELETED_MS
        self._arguments[queue] = kept
        key, value = queue.encode(), dumps(kept).encode()
        # one with auto_delete lives until it has had a consumer
        expires_ms = kept.get("x-expires", 0)
        if _lives_unused_ms(kept):
            # what was published behind a deletion that was left has not expired
            self._settled(key)
            self.delete_expired()
        while True:
            old = self._settled(key)
            if old == value and not expires_ms:
                break
            if self.store.kv_swap(QUEUES, key, old, value, ttl_ms=expires_ms):
                break
        if _lives_unused_ms(kept):
            self.store.kv_swap(EXPIRING, key, None, b"")

    def _settled(self, name: bytes) -> bytes | None:
        """What the table has of a queue, once no deletion of it is under way any more."""
        while True:
            (known,) = self.store.kv_get(QUEUES, [name])
            if known is None or not _is_deleting(known):
                return known
            self._end_deletion(name, known)

    def _declared(self, queue: str) -> dict[str, Any]:
        """The arguments that a queue was declared with, by whatever process.

        Those that take messages away are looked up each time: it may have been deleted and declared
        without them.
        """
        return {} if self._arguments.get(queue) == {} else self._looked_up(queue)[0]

    def _looked_up(self, queue: str) -> tuple[dict[str, Any], bytes | None]:
        """The arguments, the last ones of a queue that is not there, and what the table has."""
        (value,) = self.store.kv_get(QUEUES, [queue.encode()])
        if value is not None and not _is_deleting(value):
            self._arguments[queue] = loads(value)
        return self._arguments.get(queue) or {}, value

    def expires_after_ms(self, queue: str) -> int:
        """Milliseconds after which a queue that nobody uses is deleted; 0 for never."""
        return _lives_unused_ms(self._looked_up(queue)[0])

    def keep_queues(self, queues: Iterable[str], longest_s: float) -> float:
        """Let queues that expire without consumers know that they have one.

        Args:
            queues: names; those that never expire are passed over.
            longest_s: seconds, returned when nothing has to be said before.

        Returns:
            the seconds after which that has to be said again, or ``longest_s``.
        """
        now = self.store.world.monotonic_s()
        for queue in queues:
            left = self._kept_until.get(queue, 0) - now
            if left <= 0:
                left = self._keep(queue) / 1000 / _KEPT_TIMES
                self._kept_until[queue] = now + (left or _LOOKED_UP_S)
            if _lives_unused_ms(self._arguments.get(queue) or {}):
                longest_s = min(longest_s, left)
        return longest_s

    def _keep(self, queue: str) -> int:
        """Renew a queue; the milliseconds for which it lives unused, 0 for ever."""
        key = queue.encode()
        while True:
            declared, old = self._looked_up(queue)
            if old is not None and _is_deleting(old) and self._take_over(key, old):
                continue
            expires_ms = _lives_unused_ms(declared)
            unrenewed = _AUTO_DELETE in declared and queue not in self._active_queues
            # who declares one that is being deleted waits until its messages are gone
            if not expires_ms or unrenewed or _is_deleting(old):
                return expires_ms
            value = dumps(declared).encode()
            if self.store.kv_swap(QUEUES, key, old, value, ttl_ms=expires_ms):
                break
        if old is None:
            # it was deleted, by whomever, and is used again
            self.store.kv_swap(EXPIRING, key, None, b"")
        if queue in self._active_queues:
            self._consuming.enter(queue, declared)
        return expires_ms

    def delete_expired(self) -> None:
        """Delete queues that nobody has used for as long as they were declared to live.

        A deletion of any queue that was left is ended, too: what is deleted keeps no log files.
        """
        queues = [key.decode() for key, _ in self.store.kv_list(EXPIRING)]
        for name, value in self.store.kv_list(QUEUES):
            if _is_deleting(value) and name.decode() in queues:
                self._end_unused(name, value)
            elif _is_deleting(value):
                self._take_over(name, value)
        for queue in self.unused(queues):
            self._mark_and_delete(queue.encode(), None)

    def _end_unused(self, name: bytes, mark: bytes) -> None:
        """End a deletion that was left; what was published since then has its time to be asked for.

        Who declares or consumes the queue before ends the deletion, and has it.
        """
        left, now_ms = _Deletion.of(mark), self.store.world.clock_ms()
        if not left.is_left(now_ms):
            return
        if left.since_ms and now_ms - left.since_ms >= _AUTO_DELETED_MS:
            self._mark_and_delete(name, mark)
        elif not self._behind(queue_topic(name.decode()), left.end):
            self._take_over(name, mark)

    def unused(self, queues: Sequence[str]) -> list[str]:
        """Those of queues that nobody has used for as long as they were declared to live.

        One whose consumer lives, and was only long busy, is used.
        """
        values = self.store.kv_get(QUEUES, [queue.encode() for queue in queues])
        unused = [queue for queue, value in zip(queues, values, strict=True) if value is None]
        if not unused:
            return []
        consumed = self._consuming.living()
        for queue in consumed.keys() & set(unused):
            ttl_ms = _lives_unused_ms(consumed[queue])
            arguments = dumps(consumed[queue]).encode()
            self.store.kv_swap(QUEUES, queue.encode(), None, arguments, ttl_ms=ttl_ms)
        return [queue for queue in unused if queue not in consumed]

    def _mark_and_delete(self, name: bytes, old: bytes | None) -> None:
        """Delete the messages of a queue if this is still what is known of it."""
        deletion = self._deletion()
        if self.store.kv_swap(QUEUES, name, old, deletion.mark):
            self._delete_messages(name, deletion, self.store.delete_topic)

    def _deletion(self) -> _Deletion:
        """One that this process begins now, of what is on disk.

        A log that a power cut makes shorter gives its offsets to what is published later.
        """
        store = self.store
        end = store.max_phy_offset
        store.flush()
        return _Deletion(_DELETER.name, end, store.world.clock_ms())

    def _end_deletion(self, name: bytes, mark: bytes) -> None:
        """Wait a moment for a deletion to end, or end it for one who was killed meanwhile."""
        if not self._take_over(name, mark):
            self.store.world.sleep(_DELETING_PAUSE_S)

    def _take_over(self, name: bytes, mark: bytes) -> bool:
        """Come to the end of a deletion that was left; False when it was not, or another does."""
        left = _Deletion.of(mark)
        if not left.is_left(self.store.world.clock_ms()):
            return False
        own = self._deletion()
        own = own._replace(end=min(left.end, own.end))
        if not self.store.kv_swap(QUEUES, name, mark, own.mark):
            return False
        self._delete_messages(name, own, lambda topic: self._delete_below(topic, own.end))
        return True

    def _delete_messages(
        self, name: bytes, deletion: _Deletion, delete_topic: Callable[[str], object]
    ) -> None:
        """Delete a queue that is marked, so that nobody declares it meanwhile, and what it has."""
        queue = name.decode()
        self.delete_bindings(queue)
        self._consuming.forget(queue)
        delete_topic(queue_topic(queue))
        self.store.kv_put(EXPIRING, name, None)
        self.store.kv_swap(QUEUES, name, deletion.mark, None)

    def _delete_below(self, topic: str, end: int) -> None:
        """Delete a topic, or where messages lie behind the end, be done with those in front."""
        store = self.store
        following = self._behind(topic, end)
        if not following:
            store.delete_topic(topic)
        for queue_id, first in following.items():
            if (store.consumer_offsets.get(topic, GROUP, queue_id) or 0) < first:
                store.consumer_offsets.commit(topic, GROUP, queue_id, first)

    def _behind(self, topic: str, end: int) -> dict[int, int]:
        """Where in each queue of a topic what lies behind the end begins; empty if nothing does."""
        store = self.store
        queue_ids = [queue_id for name, queue_id in store.queues() if name == topic]
        following = {queue_id: _first_behind(store, topic, queue_id, end) for queue_id in queue_ids}
        if all(store.max_queue_offset(topic, each) == following[each] for each in queue_ids):
            return {}
        return following

    def _has_queue(self, queue: str, **_: object) -> bool:
        (value,) = self.store.kv_get(QUEUES, [queue.encode()])
        return value is not None and not _is_deleting(value)

    def _size(self, queue: str) -> int:
        topic = queue_topic(queue)
        return sum(row.ready for row in self.store.lag(GROUP, [topic]) if row.topic == topic)

    def _purge(self, queue: str) -> int:
        return self.store.purge(GROUP, queue_topic(queue))

    def queue_delete(
        self, queue: str, if_unused: bool = False, if_empty: bool = False, **_: object
    ) -> None:
        """Delete a queue with its messages and its bindings.

        Args:
            queue: its name; one that is not there is nothing to do.
            if_unused: without effect.
            if_empty: do nothing when it has messages.
        """
        if if_empty and self._size(queue):
            return
        name = queue.encode()
        (declared,) = self.store.kv_get(QUEUES, [name])
        deletion = self._deletion()
        self.store.kv_put(QUEUES, name, deletion.mark)
        self._arguments.pop(queue, None)
        try:
            self._delete_messages(name, deletion, self.store.delete_topic)
        except (StoreError, OSError):
            # the queue is there still: who declares it is not to wait for its end, and ends what
            # another one has left
            with suppress(StoreError, OSError):
                under_way = declared is not None and _is_under_way(declared, deletion.since_ms)
                known = None if under_way else declared
                self.store.kv_swap(QUEUES, name, deletion.mark, known)
            raise


def _first_behind(store: MessageStore, topic: str, queue_id: int, phy_offset: int) -> int:
    """The queue offset of a queue's first message at or behind a place in the log.

    Args:
        store: that has the queue.
        topic: of the queue.
        queue_id: of the queue.
        phy_offset: the place.

    Returns:
        the offset behind the last message where all lie in front.
    """
    low, high = store.min_queue_offset(topic, queue_id), store.max_queue_offset(topic, queue_id)
    while low < high:
        middle = (low + high) // 2
        found = store.get_message(topic, queue_id, middle, max_messages=1).messages
        if found and found[0].phy_offset < phy_offset:
            low = middle + 1
        else:
            high = middle
    return low


def _lives_unused_ms(arguments: Mapping[str, int]) -> int:
    """Milliseconds after which a queue that nobody uses is deleted; 0 for never."""
    return arguments.get("x-expires", 0) or arguments.get(_AUTO_DELETE, 0)


def _is_deleting(value: bytes | None) -> bool:
    return value is not None and value.startswith(_DELETING)


def _is_under_way(value: bytes, now_ms: int) -> bool:
    return _is_deleting(value) and not _Deletion.of(value).is_left(now_ms)


def queue_topic(queue: str) -> str:
    """The topic of a queue."""
    return topic_of("kombu", queue)
