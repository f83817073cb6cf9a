"""What a MetaQ broker answers to put, get, offset, stats and version.

Decides; `server.py` moves the bytes.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future

from rmqcore.errors import CorruptStoreError, MessageIllegalError, RmqCoreError
from rmqcore.metaq._segment_tail import Location
from rmqcore.metaq.errors import MissingSegmentError, OffsetTooSmallError
from rmqcore.metaq.file_message_set import FileMessageSet
from rmqcore.metaq.ini import read_text
from rmqcore.metaq.manager import MessageStoreManager
from rmqcore.metaq.message import HEADER_SIZE, IdWorker, split_data
from rmqcore.metaq.message_store import MessageStore
from rmqcore.metaq.protocol import (
    RANDOM_PARTITION,
    Code,
    Get,
    Offset,
    Put,
    Stats,
    Version,
    format_result,
)
from rmqcore.metaq.stats import Count, StatsManager
from rmqcore.version import __version__

_LOG = logging.getLogger(__name__)
_MAX_OFFSET = 2**63 - 1


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
        self._ids = IdWorker(manager.config.system.broker_id)

    def put(self, command: Put, data: bytes) -> bytes | Future[bytes]:
        """Store a message; the answer may wait for the disk."""
        self.stats.count(Count.PUT, command.topic)
        self.stats.count(Count.MESSAGE_SIZE, command.topic, len(data))
        partition = command.partition
        try:
            if command.transaction is not None:
                return self._refuse_put(command, Code.BAD_REQUEST, "no transactions here")
            if partition == RANDOM_PARTITION:
                partition = self.manager.random_partition(command.topic)
            refused = self._closed(command.topic, partition)
            if refused is None and not self._config.topic_config(command.topic).accept_publish:
                refused = f"topic {command.topic} does not accept publishing"
            if refused is not None:
                return self._refuse_put(command, Code.FORBIDDEN, refused)
            split_data(memoryview(data), command.flag)
            store = self.manager.get_or_create(command.topic, partition)
            message_id = self._ids.next_id()
            stored = store.append_async(message_id, data, command.flag, command.checksum)
        except (OSError, RmqCoreError, ValueError) as error:
            return self._put_failed(command, partition, error)
        if stored.done():
            return self._put_done(command, partition, message_id, stored)
        reply: Future[bytes] = Future()
        reply.set_running_or_notify_cancel()
        stored.add_done_callback(
            lambda done: reply.set_result(self._put_done(command, partition, message_id, done))
        )
        return reply

    def get(self, command: Get) -> bytes | FileMessageSet:
        """Find the bytes to send, or the answer that says why there are none."""
        topic, opaque = command.topic, command.opaque
        self.stats.count(Count.GET, topic)
        refused = self._closed(topic, command.partition)
        if refused is None and not self._config.topic_config(topic).accept_subscribe:
            refused = f"topic {topic} does not accept subscribing"
        if refused is not None:
            return format_result(Code.FORBIDDEN, refused, opaque)
        store = self.manager.get(topic, command.partition)
        if store is None:
            return self._miss(command, Code.NOT_FOUND, _unknown(topic, command.partition))
        if command.max_size <= 0:
            text = f"Bad request,invalid max size:{command.max_size}"
            return format_result(Code.BAD_REQUEST, text, opaque)
        try:
            found = self._slice(store, command)
        except OffsetTooSmallError as error:
            return self._miss(command, Code.MOVED, str(error.min_offset))
        except MissingSegmentError as error:
            return self._miss(command, Code.MOVED, str(error.next_offset))
        except (OSError, CorruptStoreError) as error:
            _LOG.exception("a get of %s at %d failed", store.path, command.offset)
            return self._miss(command, Code.INTERNAL_SERVER_ERROR, str(error))
        if found is not None:
            return found
        end = store.max_offset
        tell = self._config.system.update_consumer_offsets or command.offset == _MAX_OFFSET
        if command.offset > end and tell:
            self.stats.count(Count.OFFSET, topic)
            return self._miss(command, Code.MOVED, str(end))
        text = f"Could not find message at position {command.offset}"
        return self._miss(command, Code.NOT_FOUND, text)

    def offset(self, command: Offset) -> bytes:
        """Answer with the nearest offset."""
        self.stats.count(Count.OFFSET, command.topic)
        store = self.manager.get(command.topic, command.partition)
        if store is None:
            text = _unknown(command.topic, command.partition)
            return format_result(Code.NOT_FOUND, text, command.opaque)
        nearest = store.nearest_offset(command.offset)
        return format_result(Code.SUCCESS, str(nearest), command.opaque)

    def statistics(self, command: Stats) -> bytes:
        """Answer with counters, or with the configuration file."""
        if command.item != "config":
            return format_result(Code.SUCCESS, self.stats.text(command.item), command.opaque)
        path = self._config.path
        try:
            text = read_text(path) if path is not None else ""
        except (OSError, RmqCoreError) as error:
            return format_result(Code.INTERNAL_SERVER_ERROR, str(error), command.opaque)
        return format_result(Code.SUCCESS, text, command.opaque)

    def version(self, command: Version) -> bytes:
        """Answer with the version of rmqcore."""
        return format_result(Code.SUCCESS, __version__, command.opaque)

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

    def _miss(self, command: Get, code: Code, text: str) -> bytes:
        self.stats.count(Count.GET_MISS, command.topic)
        return format_result(code, text, command.opaque)

    def _put_done(
        self, command: Put, partition: int, message_id: int, stored: Future[Location]
    ) -> bytes:
        error = stored.exception()
        if error is not None:
            return self._put_failed(command, partition, error)
        text = f"{message_id} {partition} {stored.result().offset}"
        return format_result(Code.SUCCESS, text, command.opaque)

    def _put_failed(self, command: Put, partition: int, error: BaseException) -> bytes:
        caller = isinstance(error, MessageIllegalError | ValueError)
        if not caller:
            _LOG.error("a put to %s-%d failed: %s", command.topic, partition, error)
        code = Code.INTERNAL_SERVER_ERROR if not caller else Code.BAD_REQUEST
        return self._refuse_put(command, code, str(error))

    def _refuse_put(self, command: Put, code: Code, reason: str) -> bytes:
        self.stats.count(Count.PUT_FAILED, command.topic)
        where = f"{command.topic}-{command.partition}"
        text = f"Put message to [partition '{where}'] failed.Detail:{reason}"
        return format_result(code, text, command.opaque)


def _unknown(topic: str, partition: int) -> str:
    return f"The topic `{topic}` in partition `{partition}` is not exists"
