"""What a MetaQ broker answers to put, get, offset, stats and version.

Decides; `server.py` moves the bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from rmqcore.chance import randrange
from rmqcore.errors import CorruptStoreError, MessageIllegalError, RmqCoreError, StoreError
from rmqcore.metaq._message_set import checksum as checksum_of
from rmqcore.metaq._segment_tail import Location
from rmqcore.metaq.errors import (
    InvalidChecksumError,
    MissingSegmentError,
    OffsetTooSmallError,
    UnstorableRecordError,
)
from rmqcore.metaq.file_message_set import FileMessageSet
from rmqcore.metaq.ini import read_text
from rmqcore.metaq.manager import MessageStoreManager
from rmqcore.metaq.message import HEADER_SIZE, IdWorker, split_data
from rmqcore.metaq.message_store import MessageStore, Row
from rmqcore.metaq.protocol import (
    NO_CHECKSUM,
    RANDOM_PARTITION,
    Get,
    Offset,
    ResultCode,
    Stats,
    Version,
    format_result,
)
from rmqcore.metaq.stats import Count, StatsManager
from rmqcore.version import __version__

_LOG = logging.getLogger(__name__)
_MAX_OFFSET = 2**63 - 1
#: Far more than a topic has partitions, so that each of them is as likely.
_TURNS = 1 << 31
#: What a client is told of an error of this machine: it is no client's business where a file lies.
_NOT_STORED = "the broker cannot store it now; its log says why"
_NOT_READ = "the broker cannot read it now; its log says why"


PutRow = tuple[str, int, int, int, int, bytes]


class ForbiddenError(MessageIllegalError):
    """The operator has closed the partition, or the topic takes no puts."""


@dataclass(slots=True)
class PutGroup:
    """The puts of a burst to one partition.

    Attributes:
        topic: their topic.
        partition: the partition, `RANDOM_PARTITION` where ``choices`` says which there are.
        store: where they go; None: nowhere.
        refused: why they go nowhere.
        choices: open partitions.
        rows: ``(message_id, data, flag)`` of those that are to be stored; none once they have been
            written.
        askers: for each of these its place in the burst, its opaque, its id and the bytes of its
            data.
        count: puts, the refused ones too.
        size: bytes of their data.
        stored: where the rows begin, once they are stored.
    """

    topic: str
    partition: int
    store: MessageStore | None = None
    refused: Exception | None = None
    choices: list[int] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    askers: list[tuple[int, int, int, int]] = field(default_factory=list)
    count: int = 0
    size: int = 0
    stored: Future[Location] = field(default_factory=Future)


@dataclass(slots=True)
class Puts:
    """The answers to a burst of puts.

    Attributes:
        replies: one a put, in order; empty while it waits for the disk.
        waiting: what waits for the disk.
    """

    replies: list[bytes]
    waiting: list[PutGroup] = field(default_factory=list)


class BrokerProcessor:
    """The rules of one broker.

    Attributes:
        manager: its partitions.
        stats: its counters.

    Differs: a topic with acceptPublish=false or acceptSubscribe=false is refused with 403 (the
    original only leaves it out of ZooKeeper); an offset in a hole is answered with 301 and the
    offset where the log goes on.

    Source: MetaQ BrokerCommandProcessor.java.
    """

    def __init__(self, manager: MessageStoreManager) -> None:
        self.manager = manager
        self.stats = StatsManager(manager)
        self._config = manager.config
        self._ids = IdWorker(manager.config.system.broker_id, world=manager.world)

    def put_many(self, rows: Sequence[PutRow]) -> Puts:
        """Store a burst of messages, each partition's in one write and one flush.

        Returns:
            The answers; those of `Puts.waiting` are known once `settle` has been called with each.
        """
        puts = Puts([b""] * len(rows))
        groups: dict[tuple[str, int], PutGroup] = {}
        turn = -1
        for index, (row, message_id) in enumerate(
            zip(rows, self._ids.next_ids(len(rows)), strict=True)
        ):
            topic, partition, flag, checksum, opaque, data = row
            group = groups.get((topic, partition))
            if group is None:
                group = groups[topic, partition] = self._admit(topic, partition)
            if group.choices:
                # the first message of a burst goes anywhere, the others to the partitions behind
                turn = randrange(_TURNS) if turn < 0 else turn + 1
                partition = group.choices[turn % len(group.choices)]
                group = groups.get((topic, partition))
                if group is None:
                    group = groups[topic, partition] = self._admit(topic, partition)
            group.count += 1
            group.size += len(data)
            reason = group.refused
            if reason is None and (flag or checksum != NO_CHECKSUM or not data):
                reason = _unfit(message_id, data, flag, checksum)
            if reason is None:
                group.rows.append((message_id, data, flag))
                group.askers.append((index, opaque, message_id, len(data)))
            else:
                puts.replies[index] = self._put_failed(group, opaque, reason)
        for group in groups.values():
            if group.count:
                self._append(puts, group)
        return puts

    def answer_puts(self, puts: Puts, group: PutGroup) -> None:
        """Write the answers to the puts of one partition whose future is done.

        Args:
            puts: of a burst; gets the answers.
            group: of one partition; its future is done.
        """
        error = group.stored.exception()
        if error is not None:
            for index, opaque, _, _ in group.askers:
                puts.replies[index] = self._put_failed(group, opaque, error)
            return
        offset = group.stored.result().offset
        replies, partition = puts.replies, group.partition
        for index, opaque, message_id, size in group.askers:
            text = f"{message_id} {partition} {offset}"
            replies[index] = f"result 200 {len(text)} {opaque}\r\n{text}".encode()
            offset += HEADER_SIZE + size

    def refuse_put(
        self, topic: str, partition: int, opaque: int, code: ResultCode, reason: str
    ) -> bytes:
        """Answer a put of which nothing was stored.

        Args:
            topic: of the put.
            partition: of the put.
            opaque: number by which the client knows its answer.
            code: of the answer.
            reason: for people, behind the words that MetaQ's clients look for.

        Returns:
            the answer as it is sent.
        """
        self.stats.count(Count.PUT_FAILED, topic)
        text = f"Put message to [partition '{topic}-{partition}'] failed.Detail:{reason}"
        return format_result(code, text, opaque)

    def get(self, command: Get) -> bytes | FileMessageSet:
        """Find the bytes to send, or the answer that says why there are none."""
        topic, opaque = command.topic, command.opaque
        self.stats.count(Count.GET, topic)
        refused = self._closed(topic, command.partition)
        if refused is None and not self._config.topic_config(topic).accept_subscribe:
            refused = f"topic {topic} does not accept subscribing"
        if refused is not None:
            return format_result(ResultCode.FORBIDDEN, refused, opaque)
        store = self.manager.get(topic, command.partition)
        if store is None:
            return self._miss(command, ResultCode.NOT_FOUND, _unknown(topic, command.partition))
        if command.max_size <= 0:
            text = f"Bad request,invalid max size:{command.max_size}"
            return format_result(ResultCode.BAD_REQUEST, text, opaque)
        try:
            found = self._slice(store, command)
        except OffsetTooSmallError as error:
            return self._miss(command, ResultCode.MOVED, str(error.min_offset))
        except MissingSegmentError as error:
            return self._miss(command, ResultCode.MOVED, str(error.next_offset))
        except (OSError, CorruptStoreError) as error:
            _LOG.error("a get of %s at %d failed: %s", store.path, command.offset, error)
            return self._miss(command, ResultCode.INTERNAL_SERVER_ERROR, _NOT_READ)
        if found is not None:
            return found
        end = store.max_offset
        tell = self._config.system.update_consumer_offsets or command.offset == _MAX_OFFSET
        if command.offset > end and tell:
            self.stats.count(Count.OFFSET, topic)
            return self._miss(command, ResultCode.MOVED, str(end))
        text = f"Could not find message at position {command.offset}"
        return self._miss(command, ResultCode.NOT_FOUND, text)

    def offset(self, command: Offset) -> bytes:
        """Answer with the nearest offset."""
        self.stats.count(Count.OFFSET, command.topic)
        store = self.manager.get(command.topic, command.partition)
        if store is None:
            text = _unknown(command.topic, command.partition)
            return format_result(ResultCode.NOT_FOUND, text, command.opaque)
        nearest = store.nearest_offset(command.offset)
        return format_result(ResultCode.SUCCESS, str(nearest), command.opaque)

    def statistics(self, command: Stats) -> bytes:
        """Answer with counters, or with the configuration file."""
        if command.item != "config":
            return format_result(ResultCode.SUCCESS, self.stats.text(command.item), command.opaque)
        path = self._config.path
        try:
            text = read_text(path) if path is not None else ""
        except (OSError, RmqCoreError) as error:
            _LOG.error("the configuration cannot be read: %s", error)
            return format_result(ResultCode.INTERNAL_SERVER_ERROR, _NOT_READ, command.opaque)
        return format_result(ResultCode.SUCCESS, text, command.opaque)

    def version(self, command: Version) -> bytes:
        """Answer with the version of rmqcore."""
        return format_result(ResultCode.SUCCESS, __version__, command.opaque)

    def _slice(self, store: MessageStore, command: Get) -> FileMessageSet | None:
        """At most the smaller of both limits, but the whole first record if the client takes it."""
        limit = min(self._config.system.max_transfer_size, command.max_size)
        found = store.slice(command.offset, limit)
        if found is None or found.size_in_bytes < limit or limit == command.max_size:
            return found
        record = HEADER_SIZE + int.from_bytes(found.read(4), "big", signed=True)
        if limit < record <= command.max_size:
            return store.slice(command.offset, record)
        return found

    def _closed(self, topic: str, partition: int) -> str | None:
        if self._config.is_closed_partition(topic, partition):
            return f"Partition[{self._config.system.broker_id}-{partition}] has been closed"
        return None

    def _miss(self, command: Get, code: ResultCode, text: str) -> bytes:
        self.stats.count(Count.GET_MISS, command.topic)
        return format_result(code, text, command.opaque)

    def _admit(self, topic: str, partition: int) -> PutGroup:
        """Find the partition of a put, or why there is none."""
        group = PutGroup(topic, partition)
        try:
            if partition == RANDOM_PARTITION:
                count = self.manager.num_partitions(topic)
                group.choices = [p for p in range(count) if self._closed(topic, p) is None]
                if not group.choices:
                    group.refused = ForbiddenError(f"every partition of {topic} has been closed")
                return group
            refused = self._closed(topic, partition)
            if refused is None and not self._config.topic_config(topic).accept_publish:
                refused = f"topic {topic} does not accept publishing"
            if refused is not None:
                group.refused = ForbiddenError(refused)
            else:
                group.store = self.manager.get_or_create(topic, partition)
        except (OSError, RmqCoreError, ValueError) as error:
            group.refused = error
        return group

    def _append(self, puts: Puts, group: PutGroup) -> None:
        """Write what one partition got from a burst."""
        self.stats.count(Count.PUT, group.topic, group.count)
        self.stats.count(Count.MESSAGE_SIZE, group.topic, group.count, group.size)
        if group.store is None or not group.rows:
            return
        try:
            group.stored = group.store.append_many_async(group.rows)
        except (OSError, RmqCoreError, ValueError) as error:
            group.stored = Future()
            group.stored.set_exception(error)
        # written: what waits for the disk is no memory of this process
        group.rows = []
        if group.stored.done():
            self.answer_puts(puts, group)
        else:
            puts.waiting.append(group)

    def _put_failed(self, group: PutGroup, opaque: int, error: BaseException) -> bytes:
        if isinstance(error, ForbiddenError):
            code = ResultCode.FORBIDDEN
        elif isinstance(error, MessageIllegalError | ValueError):
            code = ResultCode.BAD_REQUEST
        else:
            _LOG.error("a put to %s-%d failed: %s", group.topic, group.partition, error)
            code, error = ResultCode.INTERNAL_SERVER_ERROR, StoreError(_NOT_STORED)
        return self.refuse_put(group.topic, group.partition, opaque, code, str(error))


def _unfit(message_id: int, data: bytes, flag: int, checksum: int) -> Exception | None:
    """Why these bytes are no message; None when they are."""
    if not data:
        return UnstorableRecordError(message_id, 0)
    actual = checksum_of(data)
    if checksum not in {NO_CHECKSUM, actual}:
        return InvalidChecksumError(checksum, actual)
    try:
        split_data(memoryview(data), flag)
    except ValueError as error:
        return error
    return None


def _unknown(topic: str, partition: int) -> str:
    return f"The topic `{topic}` in partition `{partition}` is not exists"
