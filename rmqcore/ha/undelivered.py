"""What a cut of the log takes with it: what was delivered, or decided, behind it is so no more.

A master delivers delayed and timer messages, and what POP hands out again, by copies at the end of
its log, and waits for no slave that has them. Where that end is cut off, the messages are still in
the log, and have to come.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Final

from rmqcore.errors import CorruptStoreError
from rmqcore.files.consume_queue import SCHEDULE_TOPIC
from rmqcore.files.consumer_offset_table import ConsumerOffsetTable
from rmqcore.files.delay_offset_table import DelayOffsetTable
from rmqcore.files.service_topics import OP_HALF_TOPIC
from rmqcore.files.store_dir import StoreDir
from rmqcore.files.timer_check import TIMER_TOPIC, TimerCheck
from rmqcore.message import MessageExt
from rmqcore.services.delay_schedule import queue_id_of_level
from rmqcore.store.opening import open_store
from rmqcore.store.read_only_store import ReadOnlyMessageStore

logger = logging.getLogger(__name__)

#: whose offsets say how far transactions are decided, and how far it is looked after what POP has
#: handed out
_TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"
_REVIVE_GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"
#: What POP hands out comes again after this at the latest.
_POP_MAX_MS: Final = 12 * 3600 * 1000
_RETRY_PREFIX: Final = "%RETRY%"
_REAL_TOPIC: Final = "REAL_TOPIC"

#: what a message and its copy have in common
_Identity = tuple[str, int, int, str | None]


def set_back_progress(directory: StoreDir, at: int, clock_ms: Callable[[], int]) -> None:
    """Let nothing count as delivered whose copy lies behind an offset, before the log is cut there.

    What was delivered since the first of these comes again.

    Args:
        directory: of the store, which nobody has open.
        at: physical offset where the log is to be cut.
        clock_ms: Unix time in milliseconds.

    Raises:
        OSError: it cannot be written.
    """
    log = str(directory.commit_log)
    try:
        with open_store(directory.path, mode="r", store_path_commit_log=log) as store:
            _set_back(directory, store, at, clock_ms)
    except CorruptStoreError as error:
        logger.warning("what was delivered behind %d may not come again: %s", at, error)


def _set_back(
    directory: StoreDir, store: ReadOnlyMessageStore, at: int, clock_ms: Callable[[], int]
) -> None:
    topics, copies, since_ms = set[str](), set[_Identity](), None
    for message in store.messages(start=at, on_damage=_pass_over):
        topics.add(message.topic)
        copies.add(_identity(message, message.topic))
        since_ms = message.store_timestamp_ms if since_ms is None else since_ms
    if since_ms is None:
        return
    delays = DelayOffsetTable(directory.config, clock=clock_ms)
    for level, offset in delays.levels().items():
        place = SCHEDULE_TOPIC, queue_id_of_level(level)
        delays.commit(level, _first_of(copies, store, *place, offset))
    delays.persist()
    timer = TimerCheck(directory.config)
    if (progress := timer.load()) is not None:
        first = _first_of(copies, store, TIMER_TOPIC, 0, progress.read_offset)
        timer.keep_up_to(first, clock_ms())
    offsets = ConsumerOffsetTable(directory.config, clock=clock_ms)
    for topic, group in offsets.pairs():
        for queue_id, offset in offsets.queues(topic, group).items():
            if group == _TRANSACTION_GROUP and OP_HALF_TOPIC in topics:
                # they are read again from the notes that are left
                offsets.advance(topic, group, queue_id, 0)
            elif group == _REVIVE_GROUP and any(map(_is_retry, topics)):
                popped_ms = max(0, since_ms - _POP_MAX_MS)
                first = store.queue_offset_by_time(topic, queue_id, popped_ms)
                # this offset is that of the last record that is done with
                offsets.forget_queue(topic, queue_id)
                if first > 0:
                    offsets.advance(topic, group, queue_id, min(offset, first - 1))
    offsets.persist()


def _first_of(
    copies: Collection[_Identity], store: ReadOnlyMessageStore, topic: str, queue_id: int, stop: int
) -> int:
    """Queue offset of the first message below an offset that has a copy among some; else that."""
    for message in store.messages(topic, queue_id, stop=stop, on_damage=_pass_over):
        if _identity(message, message.properties.get(_REAL_TOPIC, "")) in copies:
            return message.queue_offset
    return stop


def _is_retry(topic: str) -> bool:
    return topic.startswith(_RETRY_PREFIX)


def _pass_over(_: Exception) -> None:
    """What is damaged is delivered to nobody, and is no copy that counts."""


def _identity(message: MessageExt, topic: str) -> _Identity:
    return topic, message.born_timestamp_ms, message.body_crc, message.unique_key
