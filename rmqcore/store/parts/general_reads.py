"""The general path of reading, for every case: by queue, key, time, physical offset, message id.

It reads a store that is open for writing and one that another process writes. The public face,
`message_reads.py`, comes here when the fast path, `native/read/_fast_reads.pyx`, does not answer;
both find the same.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from rmqcore._codec import decode_message_id, tags_code
from rmqcore.errors import CorruptConsumeQueueError, CorruptRecordError, StoreError
from rmqcore.files.batch_consume_queue import BatchConsumeQueue
from rmqcore.files.consume_queue import FILLER, UNIT
from rmqcore.files.queue_damage import agrees_from
from rmqcore.files.unit_file import UNIT_HEAD
from rmqcore.native.format._numbers import UNIT_SIZE
from rmqcore.native.read._fast_reads import READ_ALONG_MAX, FastReads
from rmqcore.native.read._get_result import GetMessageResult
from rmqcore.native.read._key_query import QueryMessageResult, is_hit
from rmqcore.status import BoundaryType, GetMessageStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rmqcore.derived.consume_queue_store import ConsumeQueueStore
    from rmqcore.derived.index_service import IndexQuery, IndexService
    from rmqcore.files.batch_consume_queue import StoredQueue
    from rmqcore.files.commit_log import CommitLog
    from rmqcore.native.format._message_ext import MessageExt

END_OF_TIME_MS = 2**63 - 1
#: No store has this many messages or bytes.
_ALL = 1 << 48
_LIGHT_QUEUE = "%LMQ%"
_FILTER_UNITS = 800
_READ_AHEAD = 1 << 20
#: One get reads at most this many bytes from the disk, those between its records included.
_FETCHED_MOST = 16 << 20
_ENOUGH, _ELSEWHERE, _MISMATCH = 1, 2, 3
_PAGE_MAX = 1 << 20


@dataclass(slots=True)
class QueryExplanation:
    """Why a key query answered as it did.

    Attributes:
        index_key: what was hashed; ``key_hash`` its hash.
        begin_ms, end_ms: the time window that was used.
        files: (index file, looked into, chain steps, candidates) newest first.
        candidates: physical offsets with the right hash.
        dropped: (physical offset, reason) of the candidates that are no hits.
        damaged: (physical offset, reason) of those that cannot be read, and may be hits.
    """

    index_key: str
    key_hash: int
    begin_ms: int
    end_ms: int
    files: list[tuple[str, bool, int, int]]
    candidates: list[int]
    dropped: list[tuple[int, str]] = field(default_factory=list)
    damaged: list[tuple[int, str]] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"key {self.index_key!r} has hash {self.key_hash}"]
        lines.append(f"store time from {self.begin_ms} to {self.end_ms} ms")
        for name, inside, steps, found in self.files:
            what = f"{steps} chain steps, {found} candidates" if inside else "outside the time"
            lines.append(f"index file {name}: {what}")
        lines += [f"record at {offset} is no hit: {reason}" for offset, reason in self.dropped]
        lines += [f"record at {offset} cannot be read: {why}" for offset, why in self.damaged]
        if not self.candidates:
            lines.append("no entry has this hash in this time: never put, expired, or not indexed")
        return "\n".join(lines)


class _Everything:
    """Says that the whole log has been dispatched."""

    offset: Final = 2**63 - 1


class GeneralReads:
    """Reads over the parts of one store; the caller has made them catch up with the writer.

    Source: RocketMQ store/DefaultMessageStore.java.
    """

    def __init__(
        self, log: CommitLog, queues: ConsumeQueueStore, index: IndexService | None
    ) -> None:
        self._log = log
        self._queues = queues
        self._index = index
        #: the fast path; None where bytes are not read from mappings
        self.fast: FastReads | None = None
        #: the same for a queue of which nothing waits, whatever waits of others
        self.fast_of_level: FastReads | None = None
        if log.mapped is not None:
            self.fast, self.fast_of_level = (
                FastReads(
                    queues.table,
                    index,
                    log.mapped,
                    log.queue,
                    log.end,
                    index_files_max=log.queue.open_files.kept_max,
                )
                for _ in range(2)
            )
        #: called where a unit is wrong: the log has the queue's message from this offset on
        self.doubt: Callable[[int], object] | None = None
        self._found_count = 0
        self._missed_count = 0
        self._transferred_count = 0

    def begin_fast(self, dispatched: object) -> None:
        """Let the fast path answer from now on.

        Args:
            dispatched: its ``offset`` says how far the log has been dispatched.
        """
        if self.fast is not None and self.fast_of_level is not None:
            self.fast.dispatched = dispatched
            self.fast_of_level.dispatched = _Everything

    def end_fast(self) -> None:
        """Let every later read take the general path, which says why there is none.

        The fast one holds mappings of the index, whoever still has a store that is closed.
        """
        ended = [each for each in (self.fast, self.fast_of_level) if each is not None]
        self.fast = self.fast_of_level = None
        for each in ended:
            each.dispatched = None
            self._found_count += each.found_count
            self._transferred_count += each.transferred_count

    @property
    def counts(self) -> tuple[int, int, int]:
        """Gets that found messages, gets that found none, messages handed out."""
        fast = [each for each in (self.fast, self.fast_of_level) if each is not None]
        return (
            self._found_count + sum(each.found_count for each in fast),
            self._missed_count,
            self._transferred_count + sum(each.transferred_count for each in fast),
        )

    # ---- by queue

    def get_message(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        max_messages: int,
        max_bytes: int,
        tags: str | None,
        max_scanned: int | None,
    ) -> GetMessageResult:
        """Messages of one queue from an offset on.

        Source: RocketMQ store/DefaultMessageStore.java, getMessage.
        Differs: no more is held back than the caller asked for, a filter looks as far as the caller
            says, and an unknown queue is answered as such and not created.

        Args:
            topic: of the queue; one that does not exist is a status.
            queue_id: of the queue; one that does not exist is a status.
            queue_offset: of the first message; one that the queue has not is a status.
            max_messages: at most this many.
            max_bytes: of records at most; the first message comes in any case.
            tags: expression such as ``a || b``; None for all messages.
            max_scanned: units at most that a filter looks at; None as far as the queue goes.

        Raises:
            CorruptStoreError: a record or unit that is read is damaged.
        """
        max_messages, max_bytes = min(max_messages, _ALL), min(max_bytes, _ALL)
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            return GetMessageResult(GetMessageStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
        low, high = queue.min_offset, queue.max_offset
        if high == 0:
            return GetMessageResult(GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0, low, high)
        if queue_offset < low:
            return GetMessageResult(GetMessageStatus.OFFSET_TOO_SMALL, low, low, high)
        if queue_offset == high:
            return GetMessageResult(GetMessageStatus.OFFSET_OVERFLOW_ONE, high, low, high)
        if queue_offset > high:
            return GetMessageResult(GetMessageStatus.OFFSET_OVERFLOW_BADLY, high, low, high)
        result = GetMessageResult(GetMessageStatus.NO_MATCHED_MESSAGE, queue_offset, low, high)
        if not topic.startswith(_LIGHT_QUEUE):
            # a batch that has the wanted offset begins before it
            least = 0 if queue.unit_size != UNIT_SIZE else queue_offset
            result.expect(topic, queue_id, least, self._log.demand_crc)
        codes = None if tags is None else packed_tags(tags)
        self._collect(queue, result, max_messages, max_bytes, codes, max_scanned)
        found = len(result)
        if found and isinstance(queue, BatchConsumeQueue):
            _check_batches(queue, result.messages)
        if found:
            self._found_count += 1
            self._transferred_count += found
        else:
            self._missed_count += 1
        return result

    def fetch(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        max_messages: int,
        max_bytes: int,
        tags: str | None,
        max_scanned: int,
    ) -> None:
        """Read into memory what a get needs, without the interpreter's lock.

        Arguments as those of `get_message`.
        """
        queue = self._queues.find(topic, queue_id)
        if queue is None or queue.unit_size != UNIT_SIZE or self._log.mapped is None:
            return
        codes = None if tags is None else packed_tags(tags)
        wanted = None if codes is None else set(struct.unpack(f"={len(codes) // 8}q", codes))
        count = max_messages if wanted is None else max_scanned
        units = queue.read_units(max(queue_offset, queue.min_offset), min(count, _ALL))
        begin = end = -1
        left, records = _FETCHED_MOST, 0
        for at, size, code in UNIT.iter_unpack(queue.with_tags_codes(units, self._tags_code_of)):
            if size > _FETCHED_MOST or (wanted is not None and code not in wanted):
                continue
            records += size
            if max_messages == 0 or left < size or (end >= 0 and records > max_bytes):
                break
            max_messages -= 1
            if end < 0 or not 0 <= at - end <= READ_ALONG_MAX:
                self._log.fetch(begin, end)
                begin = at
            left -= max(0, at + size - max(begin, end))
            end = at + size
        self._log.fetch(begin, end)

    def _collect(
        self,
        queue: StoredQueue,
        result: GetMessageResult,
        max_messages: int,
        max_bytes: int,
        codes: bytes | None,
        max_scanned: int | None,
    ) -> None:
        mapped = self._log.mapped
        if codes is None and mapped is not None and queue.unit_size == UNIT_SIZE:
            offset = result.next_queue_offset
            units = queue.read_units(offset, max_messages)
            taken = result.collect_mapped(mapped, units, max_messages, max_bytes)
            if taken > 0:
                result.next_queue_offset = offset + taken
                result.status = GetMessageStatus.FOUND
                return
        removed = False
        left = _ALL if codes is None or max_scanned is None else max_scanned
        while (
            len(result) < max_messages and result.next_queue_offset < result.max_queue_offset
        ) and left > 0:
            offset = result.next_queue_offset
            count = max_messages - len(result) if codes is None else min(_FILTER_UNITS, left)
            units = queue.read_units(offset, count)
            if not units:
                result.status = GetMessageStatus.OFFSET_FOUND_NULL
                return
            if codes is not None:
                units = queue.with_tags_codes(units, self._tags_code_of)
            taken, gone, enough = self._collect_units(
                queue, result, units, max_messages, max_bytes, codes
            )
            removed = removed or gone
            left -= taken
            result.next_queue_offset = queue.offset_after(offset, taken)
            if enough:
                break
        if len(result):
            result.status = GetMessageStatus.FOUND
        elif removed:
            result.status = GetMessageStatus.MESSAGE_WAS_REMOVING

    def _collect_units(
        self,
        queue: StoredQueue,
        result: GetMessageResult,
        units: bytes,
        max_messages: int,
        max_bytes: int,
        codes: bytes | None,
    ) -> tuple[int, bool, bool]:
        """Collect the records of some units: (units looked at, some were gone, enough)."""
        number, count, gone = 0, len(units) // UNIT_SIZE, False
        whole = self._log.queue.writable
        while number < count:
            phy_offset, _ = UNIT_HEAD.unpack_from(units, number * UNIT_SIZE)
            view = self._log.view(phy_offset, 0 if whole else self._span(units, number))
            before, why = number, _ELSEWHERE
            if view is not None:
                number, why = result.collect(
                    view.buffer,
                    view.end,
                    view.path,
                    view.base_offset,
                    units,
                    number,
                    max_messages,
                    max_bytes,
                    codes,
                )
            if why == _ENOUGH:
                return number, gone, True
            if why == _MISMATCH:
                self._check_unit(queue, units, number, result.next_queue_offset)
            if why == _ELSEWHERE and number == before:
                if view is not None or not 0 <= phy_offset < self._log.max_offset:
                    self._check_unit(queue, units, number, result.next_queue_offset)
                gone = gone or units[number * UNIT_SIZE : (number + 1) * UNIT_SIZE] != FILLER
                number += 1
        return number, gone, False

    def _tags_code_of(self, phy_offset: int) -> int:
        """The tags code of the message at a physical offset; 0, as of one without tags, of none."""
        try:
            message = self.message_at(phy_offset)
        except CorruptRecordError:
            return 0
        return 0 if message is None else tags_code(message.tags)

    def _is_whole(self, phy_offset: int) -> bool:
        try:
            return self.message_at(phy_offset) is not None
        except CorruptRecordError:
            return False

    @staticmethod
    def _span(units: bytes, number: int) -> int:
        """Bytes of the log from one unit's record to the last unit's end, within reason."""
        size: int
        first, size = UNIT_HEAD.unpack_from(units, number * UNIT_SIZE)
        last, last_size = UNIT_HEAD.unpack_from(units, len(units) - UNIT_SIZE)
        span = last + last_size - first
        # one that has rotted may say fewer bytes than none
        return max(0, span if size <= span <= _READ_AHEAD else size)

    def _check_unit(self, queue: StoredQueue, units: bytes, number: int, first: int) -> None:
        phy_offset, size = UNIT_HEAD.unpack_from(units, number * UNIT_SIZE)
        record = self._log.record_head(phy_offset)
        # a writer's log has lost no end
        lost = phy_offset >= self._log.max_offset and self._log.queue.writable
        nowhere = phy_offset < 0 or lost or self._log.lies_in_a_record(phy_offset)
        if self.doubt is not None and (nowhere if record is None else self._is_whole(phy_offset)):
            self.doubt(agrees_from(self._log, queue, queue.offset_after(first, number)))
        if record is None and nowhere:
            raise CorruptConsumeQueueError(
                queue.queue.directory,
                -1,
                f"a unit leads to {phy_offset}, where no record begins; rebuild the consume queue",
            )
        if record is None:
            file = self._log.queue.find(phy_offset)
            raise CorruptRecordError(
                file.path if file else self._log.queue.directory,
                phy_offset,
                f"queue {queue.topic}/{queue.queue_id} has a message here, the log has no record",
            )
        raise CorruptConsumeQueueError(
            queue.queue.directory,
            phy_offset,
            f"a unit says {size} bytes, the record has {record[0]}; rebuild the consume queue",
        )

    # ---- by key

    def query_message(
        self,
        topic: str,
        key: str,
        max_messages: int,
        begin_ms: int,
        end_ms: int | None,
        page: int | None,
        explain: bool,
    ) -> QueryMessageResult:
        """The newest messages of a topic that carry a key.

        Source: RocketMQ store/DefaultMessageStore.java, queryMessage.
        Differs: topic, key and time are compared with the record's own, and a message that is
            indexed twice is found once.

        Args:
            topic: as the message has it.
            key: one of the message's keys, or its unique key.
            max_messages: at most this many, the newest.
            begin_ms: first store time, Unix milliseconds.
            end_ms: last store time, Unix milliseconds; None for no end.
            page: physical offset before which to look, from the result before; None from the newest
                on.
            explain: also say which index files and records were looked at; damaged records among
                them are passed over and told there.

        Raises:
            CorruptStoreError: an index file is damaged, or a record.
            StoreError: ``message_index_enable`` is off.
        """
        begin_ms = min(begin_ms, END_OF_TIME_MS)
        last_ms = END_OF_TIME_MS if end_ms is None else min(end_ms, END_OF_TIME_MS)
        wanted = min(max_messages, _ALL) + 1
        limit = max(64, 2 * wanted)
        damaged: dict[int, str] | None = {} if explain else None
        while True:
            answer = self._query_index(topic, key, limit, begin_ms, last_ms)
            hits, misses = self._true_hits(
                topic, key, begin_ms, last_ms, answer.phy_offsets, wanted, page, damaged
            )
            if len(hits) >= wanted or len(answer.phy_offsets) < limit or limit >= _PAGE_MAX:
                break
            limit *= 4
        more = len(hits) > max_messages
        hits = hits[:max_messages][::-1]
        explanation = None
        if damaged is not None:
            explanation = QueryExplanation(
                f"{topic}#{key}",
                answer.key_hash,
                begin_ms,
                last_ms,
                answer.files,
                answer.phy_offsets,
                [(offset, _why_no_hit(message, topic, key)) for offset, message in misses],
                sorted(damaged.items()),
            )
        return QueryMessageResult(hits, hits[0].phy_offset if more else None, explanation)

    def _query_index(
        self, topic: str, key: str, limit: int, begin_ms: int, end_ms: int
    ) -> IndexQuery:
        if self._index is None:
            raise StoreError("no key is looked up: the store is open with message_index_enable off")
        return self._index.query(topic, key, limit, begin_ms, end_ms)

    def _true_hits(
        self,
        topic: str,
        key: str,
        begin_ms: int,
        end_ms: int,
        offsets: list[int],
        wanted: int,
        page: int | None,
        damaged: dict[int, str] | None,
    ) -> tuple[list[MessageExt], list[tuple[int, MessageExt | None]]]:
        """Hits in descending order of their offset, at most ``wanted``, and what is no hit.

        Why a record is damaged comes into ``damaged``, by its place; None raises it.
        """
        hits: list[MessageExt] = []
        misses: list[tuple[int, MessageExt | None]] = []
        if len(offsets) > 1:
            offsets = sorted(set(offsets), reverse=True)
        for offset in offsets:
            if page is not None and offset >= page:
                continue
            try:
                message = self._log.message_at(offset)
            except CorruptRecordError as error:
                if damaged is None:
                    raise
                damaged[offset] = error.reason
                continue
            in_log = self._log.min_offset <= offset < self._log.max_offset
            if message is None and in_log and damaged is not None:
                damaged[offset] = "the index has the key here, the log no record"
                continue
            if message is None or not is_hit(message, topic, key, begin_ms, end_ms):
                misses.append((offset, message))
                continue
            hits.append(message)
            if len(hits) >= wanted:
                break
        return hits, misses

    # ---- by time

    def queue_offset_by_time(
        self, topic: str, queue_id: int, timestamp_ms: int, boundary: str
    ) -> int:
        """Queue offset of a store time.

        Source: RocketMQ store/queue/ConsumeQueueStore.java, getOffsetInQueueByTime.
        Differs: the whole queue is searched, where RocketMQ searches one of its files.

        Args:
            topic: of the queue; one that is unknown answers 0.
            queue_id: of the queue; one that is unknown answers 0.
            timestamp_ms: store time, Unix milliseconds.
            boundary: a value of `BoundaryType`: of several messages of that time the first or the
                last.

        Raises:
            ValueError: the boundary is none.
        """
        lower = BoundaryType(boundary) is BoundaryType.LOWER
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            return 0
        low, high = queue.min_offset, queue.max_offset
        first, end = low, high
        while low < high:
            middle = (low + high) // 2
            at, stored = self._store_time_at_or_after(queue, middle, high)
            if stored is None:
                high = middle
            elif stored < timestamp_ms or (not lower and stored == timestamp_ms):
                low = at + 1
            else:
                high = middle
        if lower:
            return low
        return max(first, min(low, end) - 1)

    def _store_time_at_or_after(
        self, queue: StoredQueue, offset: int, stop: int
    ) -> tuple[int, int | None]:
        while offset < stop:
            unit = queue.unit_at(offset)
            stored = None if unit is None else self.store_timestamp_at(unit[0])
            if stored is not None:
                return offset, stored
            offset += 1
        return offset, None

    def store_timestamp_at(self, phy_offset: int) -> int | None:
        """Store time in milliseconds of the record at an offset, None when it is gone."""
        record = self._log.record_head(phy_offset)
        return None if record is None else record[1]

    # ---- by offset and id

    def message_at(self, phy_offset: int) -> MessageExt | None:
        """The message at a physical offset, None when none begins there."""
        return None if phy_offset >= self._log.max_offset else self._log.message_at(phy_offset)

    def message_by_id(self, message_id: str) -> MessageExt | None:
        """The message with an offset id, None when none has it."""
        try:
            _, phy_offset = decode_message_id(message_id)
        except ValueError:
            return None
        return self.message_at(phy_offset)


def packed_tags(tags: str) -> bytes | None:
    """The codes of an expression ``a || b`` as packed int64; None for ``*`` and empty ones."""
    words = [word.strip() for word in tags.split("||")]
    words = [word for word in words if word]
    if not words or words == ["*"]:
        return None
    return struct.pack(f"={len(words)}q", *(tags_code(word) for word in words))


def _why_no_hit(message: MessageExt | None, topic: str, key: str) -> str:
    if message is None:
        return "the log has no record there any more"
    if message.topic != topic:
        return f"it is of topic {message.topic!r} (hash collision)"
    if not message.has_key(topic, key):
        return f"it has keys {message.keys} (hash collision)"
    return f"it was stored at {message.store_timestamp_ms}, outside the time asked for"


def _check_batches(queue: BatchConsumeQueue, batches: Sequence[MessageExt]) -> None:
    """Raise for a stored batch that its queue does not have at the place which it names."""
    for batch in batches:
        offset, count = batch.queue_offset, batch.properties.get("INNER_NUM", "")
        if not queue.has_batch(offset, count, batch.phy_offset):
            helps = "open the store for writing, which derives it again from the log"
            if batch.properties.get("INNER_BASE") != str(offset):
                helps = "rmqcore doctor plan STORE says what a repair does"
            raise CorruptConsumeQueueError(
                queue.queue.directory,
                -1,
                f"the batch at {batch.phy_offset} has {count} messages from queue offset {offset} "
                f"on, where the queue has others; {helps}",
            )
