"""The public face of reading, shared by both kinds of store.

A read tries the fast path, `native/read/_fast_reads.pyx`; where that does not answer, it catches up
with the writers and takes the general path, `general_reads.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypedDict, Unpack

from rmqcore.arguments import text, whole_number
from rmqcore.config import StoreConfig, to_broker_conf
from rmqcore.errors import ArgumentError, CorruptRecordError, CorruptStoreError
from rmqcore.files.log_walker import find_good_record
from rmqcore.native.format._message import status_text
from rmqcore.native.format._next_record import ScanStatus
from rmqcore.services.event_loop import running_loop
from rmqcore.status import BoundaryName, BoundaryType, GetMessageStatus
from rmqcore.store.general_reads import GeneralReads, packed_tags

if TYPE_CHECKING:
    from rmqcore.derived.consume_queue_store import ConsumeQueueStore
    from rmqcore.derived.index_service import IndexService
    from rmqcore.files.commit_log import CommitLog
    from rmqcore.native.format._message import MessageExt
    from rmqcore.native.read._get_result import GetMessageResult
    from rmqcore.native.read._key_query import QueryMessageResult

_MAX_BYTES = 128 << 20
_BATCH = 256
_MOST = 2**63 - 1
OnDamage = Callable[[CorruptStoreError], None]


class GetBounds(TypedDict):
    """How much a get reads at most, under the names of `MessageReads.get_message`."""

    max_messages: int
    max_bytes: int
    tags: str | None
    max_scanned: int


class MessageReads:
    """Reads of a store; every one sees what had been put when it began.

    A subclass sets ``path``, ``config``, ``log``, ``consume_queues``, ``index`` and ``_reader``,
    and says in `_see_new` how to catch up with the writers; where that is expensive, in
    `_see_queue` and `_see_log` how to catch up no further than a read needs.
    """

    path: Path
    config: StoreConfig
    log: CommitLog
    consume_queues: ConsumeQueueStore
    index: IndexService | None
    _reader: GeneralReads

    def _see_new(self) -> None:
        """Catch up with what has been put; raises when the store is closed."""
        raise NotImplementedError

    def _see_queue(self, topic: str, queue_id: int) -> None:
        """Catch up with one queue."""
        self._see_new()

    def _see_log(self) -> None:
        """Catch up with the log and the index."""
        self._see_new()

    def close(self) -> None:
        """Close the store; idempotent."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await running_loop().run_in_executor(None, self.close)

    def broker_conf(self) -> str:
        """The ``broker.conf`` lines with which RocketMQ opens this store."""
        return to_broker_conf(self.config, path=self.path.resolve())

    # ---- by queue

    def get_message(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        *,
        max_messages: int = 32,
        max_bytes: int = _MAX_BYTES,
        tags: str | None = None,
        max_scanned: int | None = None,
    ) -> GetMessageResult:
        """Messages of one queue from an offset on.

        Args:
            topic: topic of the queue.
            queue_id: number of the queue in its topic.
            queue_offset: number of the first message wanted.
            max_messages: at most so many; nothing else caps the number.
            max_bytes: at most so many bytes of records; the first message always comes.
            tags: ``a``, ``a || b``, or None and ``*`` for all. Tags are compared by their hash, as
                RocketMQ's broker does; a consumer compares the text.
            max_scanned: with tags, look at so many units of the queue at most, and answer
                NO_MATCHED_MESSAGE with the offset to go on at when none of them matches; None looks
                to the end of the queue.

        Returns:
            `GetMessageResult`; its status says why it is empty when it is.

        Raises:
            CorruptRecordError: a record contradicts its queue, or (when decoded) its CRC.
            StoreClosedError: the store is closed.

        Source: RocketMQ store/DefaultMessageStore.java, getMessage.
        """
        fast = self._reader.fast
        if fast is not None and tags is None:
            result = fast.get(topic, queue_id, queue_offset, max_messages, max_bytes)
            if result is not None:
                return result
        topic, queue_id = _queue(topic, queue_id)
        whole_number("queue_offset", queue_offset)
        whole_number("max_messages", max_messages, 1)
        whole_number("max_bytes", max_bytes)
        if tags is not None:
            tags = text("tags", tags)
        if max_scanned is not None:
            whole_number("max_scanned", max_scanned, 1)
        self._see_queue(topic, queue_id)
        return self._reader.get_message(
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
            max_messages: at most so many.
            max_bytes: at most so many bytes of records; the first message always comes.

        Returns:
            None where that is not enough: ask `is_cached` and `get_message`.
        """
        fast = self._reader.fast
        if fast is None:
            return None
        return fast.get(topic, queue_id, queue_offset, max_messages, max_bytes, False)

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
        fast = self._reader.fast
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
            _queue(topic, queue_id)
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
        topic, queue_id = _queue(topic, queue_id)
        _check_bounds(queue_offset, bounds)
        self._see_queue(topic, queue_id)
        with suppress(CorruptStoreError, OSError):
            # the get says what is wrong
            self._reader.fetch(topic, queue_id, queue_offset, **bounds)

    def queues(self) -> list[tuple[str, int]]:
        """(topic, queue id) of every queue, sorted."""
        self._see_new()
        return self.consume_queues.keys()

    def min_queue_offset(self, topic: str, queue_id: int) -> int:
        """Number of the oldest message of a queue; 0 when the queue is unknown."""
        topic, queue_id = _queue(topic, queue_id)
        self._see_queue(topic, queue_id)
        queue = self.consume_queues.find(topic, queue_id)
        return queue.min_offset if queue else 0

    def max_queue_offset(self, topic: str, queue_id: int) -> int:
        """Number that the next message of a queue gets; 0 when the queue is unknown."""
        topic, queue_id = _queue(topic, queue_id)
        self._see_queue(topic, queue_id)
        queue = self.consume_queues.find(topic, queue_id)
        return queue.max_offset if queue else 0

    def read_units(self, topic: str, queue_id: int, queue_offset: int, count: int) -> bytes:
        """Up to ``count`` consume-queue units of 20 bytes; empty outside the queue."""
        topic, queue_id = _queue(topic, queue_id)
        self._see_queue(topic, queue_id)
        queue = self.consume_queues.find(topic, queue_id)
        if queue is None or queue_offset < queue.min_offset:
            return b""
        return queue.read_units(queue_offset, count)

    # ---- by key, time, offset and id

    def query_message(
        self,
        topic: str,
        key: str,
        *,
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
            max_messages: at most so many, the newest.
            begin_ms: earliest store time.
            end_ms: latest store time, included; None has no end.
            page: ``next_page`` of the result before, for older hits.
            explain: also say what was looked at and why candidates were dropped.

        Returns:
            true hits only, each once, ascending by physical offset.

        Source: RocketMQ store/DefaultMessageStore.java, queryMessage.
        """
        fast = self._reader.fast
        if fast is not None and page is None and not explain:
            result = fast.query(topic, key, max_messages, begin_ms, end_ms)
            if result is not None:
                return result
        topic, key = text("topic", topic), text("key", key)
        whole_number("begin_ms", begin_ms)
        whole_number("end_ms", 0 if end_ms is None else end_ms)
        whole_number("max_messages", max_messages, 1)
        self._see_log()
        return self._reader.query_message(topic, key, max_messages, begin_ms, end_ms, page, explain)

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
        """
        topic, queue_id = _queue(topic, queue_id)
        whole_number("timestamp_ms", timestamp_ms)
        if boundary not in ("lower", "upper"):
            raise ArgumentError("boundary", boundary, '"lower" or "upper"')
        self._see_queue(topic, queue_id)
        return self._reader.queue_offset_by_time(topic, queue_id, timestamp_ms, boundary)

    def message_at(self, phy_offset: int) -> MessageExt | None:
        """The message whose record begins at a physical offset, None when none does.

        Raises:
            CorruptRecordError: one begins there, but its bytes contradict each other.
        """
        whole_number("phy_offset", phy_offset)
        self._see_log()
        return self._reader.message_at(phy_offset)

    def message_by_id(self, message_id: str) -> MessageExt | None:
        """The message with an offset message id, None when none has it."""
        text("message_id", message_id)
        self._see_log()
        return self._reader.message_by_id(message_id)

    # ---- the log

    @property
    def min_phy_offset(self) -> int:
        """Physical offset of the first byte of the log."""
        self._see_log()
        return self.log.min_offset

    @property
    def max_phy_offset(self) -> int:
        """Physical offset behind the last byte of the log."""
        self._see_log()
        return self.log.max_offset

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
        for name, bound in (("queue_id", queue_id), ("start", start), ("stop", stop)):
            if bound is not None:
                whole_number(name, bound)
        if topic is None:
            return self._log_messages(start, stop, on_damage)
        return self._topic_messages(text("topic", topic), queue_id, start, stop, on_damage)

    def _topic_messages(
        self,
        topic: str,
        queue_id: int | None,
        start: int | None,
        stop: int | None,
        on_damage: OnDamage | None,
    ) -> Iterator[MessageExt]:
        for name, number in self.queues():
            if name == topic and queue_id in (None, number):
                yield from self._queue_messages(name, number, start, stop, on_damage)

    def _queue_messages(
        self,
        topic: str,
        queue_id: int,
        start: int | None,
        stop: int | None,
        on_damage: OnDamage | None,
    ) -> Iterator[MessageExt]:
        offset = max(start or 0, self.min_queue_offset(topic, queue_id))
        # messages before this offset are got singly: one of them is damaged
        singly_before = offset
        while stop is None or offset < stop:
            count = _BATCH if stop is None else min(_BATCH, stop - offset)
            count = 1 if offset < singly_before else count
            try:
                result = self.get_message(topic, queue_id, offset, max_messages=count)
                found = result.messages
            except CorruptStoreError as error:
                if count > 1:
                    singly_before = offset + count
                elif on_damage is None:
                    raise
                else:
                    on_damage(error)
                    offset += 1
                continue
            yield from found
            offset, before = result.next_queue_offset, offset
            if offset == before or (
                result.status is not GetMessageStatus.FOUND and offset >= result.max_queue_offset
            ):
                return

    def _log_messages(
        self, start: int | None, stop: int | None, on_damage: OnDamage | None
    ) -> Iterator[MessageExt]:
        look = self._message_in_log
        offset = max(start or 0, self.min_phy_offset)
        end = 0
        while stop is None or offset < stop:
            if offset >= end:
                end = self.max_phy_offset
                if offset >= end:
                    return
            try:
                message = look(offset)
                if message is None:
                    offset = self._behind_blank(offset) or self._behind_deleted(offset)
            except CorruptRecordError as error:
                if on_damage is None:
                    raise
                on_damage(error)
                message, offset = None, self._next_good(offset, end)
            if message is not None:
                yield message
                offset += message.store_size

    def _message_in_log(self, offset: int) -> MessageExt | None:
        """The message at an offset below the end that was seen last, None when none is there."""
        return self.log.message_at(offset)

    def _next_good(self, offset: int, end: int) -> int:
        """Physical offset of the first good record behind a damaged place, or the end."""
        behind = offset + 1
        files = [
            file
            for file in self.log.queue.files
            if file.file_from_offset + self.log.queue.file_size > behind
        ]
        at = max(0, behind - files[0].file_from_offset) if files else 0
        found = find_good_record(files, at)
        return end if found is None else found.phy_offset

    def _behind_blank(self, offset: int) -> int | None:
        """Where the log goes on behind an end-of-file record; None when none begins there."""
        return self.log.behind_blank(offset)

    def _behind_deleted(self, offset: int) -> int:
        """Where the log begins when retention has come by meanwhile.

        Raises:
            CorruptRecordError: the offset lies in the log.
        """
        first = self.min_phy_offset
        if first > offset:
            return first
        file = self.log.queue.find(offset)
        raise CorruptRecordError(
            file.path if file else self.path, offset, status_text(ScanStatus.BAD_MAGIC)
        )


def _queue(topic: object, queue_id: object) -> tuple[str, int]:
    """The names of a queue, checked."""
    return text("topic", topic), whole_number("queue_id", queue_id, -(2**31), 2**31 - 1)


def _check_bounds(queue_offset: object, bounds: GetBounds) -> None:
    whole_number("queue_offset", queue_offset, -_MOST, _MOST)
    whole_number("max_messages", bounds["max_messages"], 1, _MOST)
    whole_number("max_bytes", bounds["max_bytes"], -_MOST, _MOST)
    whole_number("max_scanned", bounds["max_scanned"], 1, _MOST)
    if bounds["tags"] is not None:
        text("tags", bounds["tags"])
