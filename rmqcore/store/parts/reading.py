"""`Reading`: the part that answers reads, of both kinds of store.

A read tries the fast path, `native/read/_fast_reads.pyx`; where that does not answer, it catches up
with the writers and takes the general path, `general_reads.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypedDict, Unpack

from rmqcore.arguments import text, texts_of, whole_number
from rmqcore.errors import ArgumentError, CorruptRecordError, CorruptStoreError
from rmqcore.files.log_walker import find_good_record
from rmqcore.native.format._message_ext import status_text
from rmqcore.native.format._next_record import ScanStatus
from rmqcore.status import BoundaryName, BoundaryType
from rmqcore.store.parts.general_reads import GeneralReads, packed_tags
from rmqcore.store.parts.iteration import OnDamage, checked_bounds, log_messages, topic_messages

if TYPE_CHECKING:
    from rmqcore.derived.consume_queue_store import ConsumeQueueStore
    from rmqcore.files.commit_log import CommitLog
    from rmqcore.native.format._message_ext import MessageExt
    from rmqcore.native.read._get_result import GetMessageResult
    from rmqcore.native.read._key_query import QueryMessageResult

MAX_BYTES = 128 << 20
_MOST = 2**63 - 1
#: The first time that a record can name.
_FIRST_MS = -(2**63)


class GetBounds(TypedDict):
    """How much a get reads at most, under the names of `Reading.get_message`."""

    max_messages: int
    max_bytes: int
    tags: str | None
    max_scanned: int


class ReadFiles(Protocol):
    """The files that are read."""

    @property
    def log(self) -> CommitLog:
        """The log."""
        ...

    @property
    def consume_queues(self) -> ConsumeQueueStore:
        """All consume queues."""
        ...

    @property
    def reader(self) -> GeneralReads:
        """What reads them, the index too."""
        ...


class CatchesUp(Protocol):
    """Catches up with the writers as far as a read needs; raises when the store is closed."""

    def catch_up_all(self) -> None:
        """Catch up with what has been put."""
        ...

    def catch_up_queue(self, topic: str, queue_id: int) -> None:
        """Catch up with one queue.

        Args:
            topic: of the queue that will be read.
            queue_id: its id; the queue may be one that comes with this.
        """
        ...

    def catch_up_log(self) -> None:
        """Catch up with the log and the index."""
        ...

    def is_level(self, topic: str, queue_id: int) -> bool:
        """Tell whether no message of a queue waits; False also where that is not known.

        Args:
            topic: of the queue; it need not exist.
            queue_id: of the queue; it need not exist.
        """
        ...


class Reading:
    """Reads of a store; every one sees what had been put when it began.

    Args:
        path: the store's directory.
        files: what is read.
        level: catches up with the writers.
    """

    def __init__(self, path: Path, files: ReadFiles, level: CatchesUp) -> None:
        self._path = path
        self._files = files
        self._level = level

    # ---- by queue

    def get_message(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        max_messages: int = 32,
        max_bytes: int = MAX_BYTES,
        tags: str | None = None,
        max_scanned: int | None = None,
    ) -> GetMessageResult:
        """Messages of one queue from an offset on.

        Args:
            topic: topic of the queue; a queue that the store has not got is a status.
            queue_id: number of the queue in its topic.
            queue_offset: number of the first message wanted.
            max_messages: at most this many; nothing else caps the number.
            max_bytes: at most this many bytes of records; the first message always comes.
            tags: ``a``, ``a || b``, or None and ``*`` for all. Tags are compared by their hash, as
                RocketMQ's broker does; a consumer compares the text.
            max_scanned: with tags, look at this many units of the queue at most, and answer
                NO_MATCHED_MESSAGE with the offset to go on at when none of them matches; None looks
                to the end of the queue.

        Returns:
            `GetMessageResult`; its status says why it is empty when it is.

        Raises:
            CorruptRecordError: a record contradicts its queue, or (when decoded) its CRC.
            StoreClosedError: the store is closed.

        Source: RocketMQ store/DefaultMessageStore.java, getMessage.
        """
        fast = self._files.reader.fast
        if fast is not None and tags is None:
            result = fast.get(topic, queue_id, queue_offset, max_messages, max_bytes)
            if result is not None:
                return result
        topic, queue_id = _queue_names(topic, queue_id)
        whole_number("queue_offset", queue_offset)
        whole_number("max_messages", max_messages, 1)
        whole_number("max_bytes", max_bytes)
        if tags is not None:
            tags = text("tags", tags)
        if max_scanned is not None:
            whole_number("max_scanned", max_scanned, 1)
        self._level.catch_up_queue(topic, queue_id)
        fast = self._files.reader.fast_of_level
        if fast is not None and tags is None:
            result = fast.get(topic, queue_id, queue_offset, max_messages, max_bytes)
            if result is not None:
                return result
        return self._files.reader.get_message(
            topic, queue_id, queue_offset, max_messages, max_bytes, tags, max_scanned
        )

    def get_cached(
        self, topic: str, queue_id: int, queue_offset: int, max_messages: int, max_bytes: int
    ) -> GetMessageResult | None:
        """As `get_message` of all tags, in a few microseconds and from memory only.

        Args:
            topic: topic of the queue.
            queue_id: number of the queue in its topic.
            queue_offset: number of the first message wanted.
            max_messages: at most this many.
            max_bytes: at most this many bytes of records; the first message always comes.

        Returns:
            None where that is not enough: ask `is_cached` and `get_message`.
        """
        fast = self._files.reader.fast
        if fast is None:
            return None
        result = fast.get(topic, queue_id, queue_offset, max_messages, max_bytes, False)
        level = self._files.reader.fast_of_level
        if result is None and level is not None and self._level.is_level(topic, queue_id):
            return level.get(topic, queue_id, queue_offset, max_messages, max_bytes, False)
        return result

    def is_cached(
        self, topic: str, queue_id: int, queue_offset: int, **bounds: Unpack[GetBounds]
    ) -> bool:
        """Tell whether `get_message` finds what it reads in memory, so that it waits for no disk.

        Args:
            topic: topic of the queue.
            queue_id: number of the queue in its topic.
            queue_offset: number of the first message wanted.
            bounds: those of the get.

        Returns:
            True also where it cannot be told, as in a store that is open for reading only.

        Raises:
            ArgumentError: an argument is none.
        """
        fast = self._files.reader.fast
        if fast is None:
            return True
        tags = bounds["tags"]
        try:
            return fast.is_cached(
                topic,
                queue_id,
                queue_offset,
                bounds["max_messages"],
                bounds["max_bytes"],
                None if tags is None else packed_tags(tags),
                bounds["max_scanned"],
            )
        except (TypeError, OverflowError, AttributeError):
            _queue_names(topic, queue_id)
            _check_bounds(queue_offset, bounds)
            raise

    def fetch(
        self, topic: str, queue_id: int, queue_offset: int, **bounds: Unpack[GetBounds]
    ) -> None:
        """Read into memory what `get_message` needs; other threads go on meanwhile.

        A get reads mapped files: where it waits for the disk, it has the interpreter's lock.

        Args:
            topic: topic of the queue.
            queue_id: number of the queue in its topic.
            queue_offset: number of the first message wanted.
            bounds: those of the get.

        Raises:
            ArgumentError: an argument is none.
            StoreClosedError: the store is closed.
        """
        topic, queue_id = _queue_names(topic, queue_id)
        _check_bounds(queue_offset, bounds)
        self._level.catch_up_queue(topic, queue_id)
        with suppress(CorruptStoreError, OSError):
            # the get raises what is wrong
            self._files.reader.fetch(topic, queue_id, queue_offset, **bounds)

    def queues(self) -> list[tuple[str, int]]:
        """(topic, queue id) of every queue, sorted."""
        self._level.catch_up_all()
        return self._files.consume_queues.keys()

    def min_queue_offset(self, topic: str, queue_id: int) -> int:
        """Number of the oldest message of a queue; 0 when the queue is unknown.

        Args:
            topic: topic of the queue.
            queue_id: number of the queue in its topic.
        """
        topic, queue_id = _queue_names(topic, queue_id)
        self._level.catch_up_queue(topic, queue_id)
        queue = self._files.consume_queues.find(topic, queue_id)
        return queue.min_offset if queue else 0

    def max_queue_offset(self, topic: str, queue_id: int) -> int:
        """Number that the next message of a queue gets; 0 when the queue is unknown.

        Args:
            topic: topic of the queue.
            queue_id: number of the queue in its topic.
        """
        topic, queue_id = _queue_names(topic, queue_id)
        self._level.catch_up_queue(topic, queue_id)
        queue = self._files.consume_queues.find(topic, queue_id)
        return queue.max_offset if queue else 0

    def queue_bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """`min_queue_offset` and `max_queue_offset` at one moment.

        Args:
            topic: topic of the queue.
            queue_id: number of the queue in its topic.
        """
        topic, queue_id = _queue_names(topic, queue_id)
        self._level.catch_up_queue(topic, queue_id)
        queue = self._files.consume_queues.find(topic, queue_id)
        return (queue.min_offset, queue.max_offset) if queue else (0, 0)

    def read_units(self, topic: str, queue_id: int, queue_offset: int, count: int) -> bytes:
        """Up to ``count`` consume-queue units of 20 bytes; empty outside the queue.

        Args:
            queue_offset: number of the first unit.
            count: how many units at most; fewer come where the queue ends.
            topic: topic of the queue.
            queue_id: number of the queue in its topic.
        """
        topic, queue_id = _queue_names(topic, queue_id)
        self._level.catch_up_queue(topic, queue_id)
        queue = self._files.consume_queues.find(topic, queue_id)
        if queue is None or queue_offset < queue.min_offset:
            return b""
        return queue.read_units(queue_offset, count)

    # ---- by key, time, offset and id

    def query_message(
        self,
        topic: str,
        key: str,
        max_messages: int = 64,
        begin_ms: int = 0,
        end_ms: int | None = None,
        page: int | None = None,
        explain: bool = False,
    ) -> QueryMessageResult:
        """The newest messages of a topic that carry a key; a UNIQ_KEY is a key too.

        Args:
            topic: the messages' topic.
            key: one of their keys, or their UNIQ_KEY.
            max_messages: at most this many, the newest.
            begin_ms: earliest store time.
            end_ms: latest store time, included; None has no end.
            page: ``next_page`` of the result before, for older hits.
            explain: also say what was looked at and why candidates were dropped; a damaged record
                is one of them, and no error.

        Returns:
            true hits only, each once, ascending by physical offset.

        Source: RocketMQ store/DefaultMessageStore.java, queryMessage.
        """
        fast = self._files.reader.fast
        if fast is not None and page is None and not explain:
            # no message has a key without UTF-8
            with suppress(UnicodeEncodeError, OverflowError):
                result = fast.query(topic, key, max_messages, begin_ms, end_ms)
                if result is not None:
                    return result
        topic, key = text("topic", topic), text("key", key)
        begin_ms = _time_of("begin_ms", begin_ms)
        end_ms = None if end_ms is None else _time_of("end_ms", end_ms)
        whole_number("max_messages", max_messages, 1)
        self._level.catch_up_log()
        return self._files.reader.query_message(
            topic, key, max_messages, begin_ms, end_ms, page, explain
        )

    def query_many(
        self,
        topic: str,
        keys: Iterable[str],
        *,
        max_messages: int = 64,
        begin_ms: int = 0,
        end_ms: int | None = None,
    ) -> list[QueryMessageResult]:
        """As `query_message` of each key, faster: the queries wait for memory together.

        Args:
            topic: the messages' topic.
            keys: what to look for, of each one; a str is one key.
            max_messages: at most this many of each key, the newest.
            begin_ms: earliest store time.
            end_ms: latest store time, included; None has no end.

        Returns:
            a result for each key, in their order.
        """
        topic, wanted = text("topic", topic), texts_of("keys", keys)
        begin_ms = _time_of("begin_ms", begin_ms)
        end_ms = None if end_ms is None else _time_of("end_ms", end_ms)
        whole_number("max_messages", max_messages, 1)
        return self._query_each(topic, wanted, max_messages, begin_ms, end_ms)

    def _query_each(
        self, topic: str, wanted: list[str], max_messages: int, begin_ms: int, end_ms: int | None
    ) -> list[QueryMessageResult]:
        reader, found = self._files.reader, None
        if reader.fast is not None:
            with suppress(UnicodeEncodeError):
                found = reader.fast.query_many(topic, wanted, max_messages, begin_ms, end_ms)
        if found is None:
            found = [None] * len(wanted)
        if None in found:
            # once for all of them: each answers as of the beginning of the call, or later
            self._level.catch_up_log()
        return [
            reader.query_message(topic, key, max_messages, begin_ms, end_ms, None, False)
            if one is None
            else one
            for key, one in zip(wanted, found, strict=True)
        ]

    def queue_offset_by_time(
        self,
        topic: str,
        queue_id: int,
        timestamp_ms: int,
        *,
        boundary: BoundaryType | BoundaryName = "lower",
    ) -> int:
        """Queue offset that belongs to a store time.

        Args:
            topic: topic of the queue.
            queue_id: number of the queue in its topic.
            timestamp_ms: Unix time.
            boundary: "lower": the first message stored at or after the time, else the maximum;
                "upper": the last one stored at or before it, else the minimum.

        Returns:
            a queue offset; 0 when the queue is unknown.

        Source: RocketMQ store/DefaultMessageStore.java, getOffsetInQueueByTime.

        Raises:
            ArgumentError: an argument is none of its kind.
            StoreClosedError: the store is closed.
        """
        topic, queue_id = _queue_names(topic, queue_id)
        whole_number("timestamp_ms", timestamp_ms)
        if boundary not in ("lower", "upper"):
            raise ArgumentError("boundary", boundary, '"lower" or "upper"')
        self._level.catch_up_queue(topic, queue_id)
        return self._files.reader.queue_offset_by_time(topic, queue_id, timestamp_ms, boundary)

    def message_at(self, phy_offset: int) -> MessageExt | None:
        """The message whose record begins at a physical offset, None when none does.

        Raises:
            CorruptRecordError: one begins there, but its bytes contradict each other.
        """
        whole_number("phy_offset", phy_offset)
        self._level.catch_up_log()
        return self._files.reader.message_at(phy_offset)

    def message_by_id(self, message_id: str) -> MessageExt | None:
        """The message with an offset message id, None when none has it."""
        text("message_id", message_id)
        self._level.catch_up_log()
        return self._files.reader.message_by_id(message_id)

    # ---- the log

    @property
    def min_phy_offset(self) -> int:
        """Physical offset of the first byte of the log."""
        self._level.catch_up_log()
        return self._files.log.min_offset

    @property
    def max_phy_offset(self) -> int:
        """Physical offset behind the last byte of the log."""
        self._level.catch_up_log()
        return self._files.log.max_offset

    def messages(
        self,
        topic: str | None = None,
        queue_id: int | None = None,
        *,
        start: int | None = None,
        stop: int | None = None,
        on_damage: OnDamage | None = None,
    ) -> Iterator[MessageExt]:
        """Every message there is when the iteration comes to it.

        Args:
            topic: None for the whole log in log order.
            queue_id: one queue, in queue order; None for all of the topic, one after the other.
            start: first queue offset, or the physical offset of a record when ``topic`` is None;
                what was deleted before the iteration comes to it is left out.
            stop: end before this offset, or with the last message when that comes first.
            on_damage: called with what would be raised for each damaged place, which is passed
                over: iteration goes on with the next good message.

        Raises:
            CorruptRecordError: the iteration came to a damaged record, and ``on_damage`` is None;
                all messages before it have been handed out.
        """
        checked_bounds(queue_id, start, stop)
        if topic is None:
            return log_messages(self, start, stop, on_damage)
        return topic_messages(self, text("topic", topic), queue_id, start, stop, on_damage)

    def message_in_log(self, offset: int) -> MessageExt | None:
        """The message at an offset below the end that was seen last, None when none is there."""
        return self._files.log.message_at(offset)

    def next_good(self, offset: int, end: int) -> int:
        """Physical offset of the first good record behind a damage; see `LogReads.next_good`."""
        behind = offset + 1
        files = [
            file
            for file in self._files.log.queue.files
            if file.file_from_offset + self._files.log.queue.file_size > behind
        ]
        at = max(0, behind - files[0].file_from_offset) if files else 0
        found = find_good_record(files, at, past_bad_sectors=True)
        return end if found is None else found.phy_offset

    def behind_blank(self, offset: int) -> int | None:
        """Where the log goes on behind an end-of-file record; None when none begins there."""
        return self._files.log.behind_blank(offset)

    def behind_deleted(self, offset: int) -> int:
        """Where the log begins when retention has come by meanwhile.

        Raises:
            CorruptRecordError: the offset lies in the log.
        """
        first = self.min_phy_offset
        if first > offset:
            return first
        file = self._files.log.queue.find(offset)
        raise CorruptRecordError(
            file.path if file else self._path, offset, status_text(ScanStatus.BAD_MAGIC)
        )


def _queue_names(topic: object, queue_id: object) -> tuple[str, int]:
    """The names of a queue, checked.

    Args:
        topic: what a caller gave: a text.
        queue_id: a whole number of 32 bits.

    Raises:
        ArgumentError: one of them is not.
    """
    return text("topic", topic), whole_number("queue_id", queue_id, -(2**31), 2**31 - 1)


def _check_bounds(queue_offset: object, bounds: GetBounds) -> None:
    whole_number("queue_offset", queue_offset, -_MOST, _MOST)
    whole_number("max_messages", bounds["max_messages"], 1, _MOST)
    whole_number("max_bytes", bounds["max_bytes"], -_MOST, _MOST)
    whole_number("max_scanned", bounds["max_scanned"], 1, _MOST)
    if bounds["tags"] is not None:
        text("tags", bounds["tags"])


def _time_of(name: str, value: object) -> int:
    """A time as a whole number; one in front of all times is the first."""
    return max(whole_number(name, value), _FIRST_MS)
