"""Topics and queues that the log has, and the table of topics has not: what a master needs.

A table may be lost, or never have been there: a program has filled the store. And a slave asks its
master for topics every 10 seconds, and soon when messages of an unknown one come, or of a queue
that a topic did not have. A master that is gone before leaves messages that nobody could read: in
queues without a topic, in queues that their topic got last, or waiting to be delivered to one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from rmqcore.errors import CorruptStoreError
from rmqcore.files.config_tables import TopicConfigTable
from rmqcore.files.consume_queue import LIGHT_QUEUE_PREFIX, SCHEDULE_TOPIC
from rmqcore.files.service_topics import HALF_TOPIC
from rmqcore.files.timer_check import TIMER_TOPIC
from rmqcore.files.unit_file import UNIT_HEAD
from rmqcore.message import MessageExt
from rmqcore.store.message_store import DefaultMessageStore

#: A topic with messages that are this old when the log ends is one that the master has deleted; a
#: queue, one that it has taken away.
_NEW_MS: Final = 600_000
_BATCH: Final = 256
#: Messages wait there for other topics, which they name.
_WAITING_IN: Final = frozenset({SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC})
_DIGITS_MAX: Final = 5


def unknown_topics(store: DefaultMessageStore) -> list[tuple[str, int]]:
    """Queues, by topic and queue id, that the log needs and the table has not.

    Of a topic that the table has these are queues behind all that it has to read or to write. What
    is older than `_NEW_MS` does not count where the table is a master's.

    Args:
        store: of a slave that is made master, or whose table of topics was lost, before anything is
            put.
    """
    queues = store.queues()
    newest_ms = max((_stored_ms(store, *queue, last=True) for queue in queues), default=0)
    # a table that no master has had, or that was lost, says of no topic that it is gone
    is_told = store.topics.is_of_a_leader and store.topics.is_whole
    since_ms = max(0, newest_ms - _NEW_MS) if is_told else 0
    found = set[tuple[str, int]]()
    for topic, queue_id in queues:
        if topic in _WAITING_IN:
            offset = store.queue_offset_by_time(topic, queue_id, since_ms)
            found.update(_destinations(store, topic, queue_id, offset))
        elif has_queue(store.topics, topic, queue_id):
            continue
        elif _stored_ms(store, topic, queue_id, last=False) >= since_ms:
            found.add((topic, queue_id))
    return sorted(found)


def lost_topics(store: DefaultMessageStore) -> list[tuple[str, int]]:
    """Queues with messages, by topic and queue id, whose topic a master's table has not and had.

    It is one of before then: whoever deletes a topic here writes that down, too; RocketMQ does not.
    One that was deleted was made again, unless all that came to it had been waiting since before.

    Args:
        store: of a master, before anything is put.
    """
    if store.topics.begun_ms is None:
        return []
    found = [
        (topic, queue_id)
        for topic, queue_id in store.queues()
        if store.topics.get(topic) is None
        and not has_queue(store.topics, topic, queue_id)
        and store.min_queue_offset(topic, queue_id) < store.max_queue_offset(topic, queue_id)
    ]
    deletions = store.followed_log.deletions()
    lost = {queue[0] for queue in found if queue[0] not in deletions or _was_put_to(store, *queue)}
    late = {topic: deletions[topic] for topic, _ in found if topic not in lost}
    if late:
        since = min(late.values())
        for topic in _WAITING_IN:
            for queue_id in (each for name, each in store.queues() if name == topic):
                offset = _first_behind(store, topic, queue_id, since)
                lost.update(name for name, _ in _destinations(store, topic, queue_id, offset))
    return [queue for queue in found if queue[0] in lost]


def _was_put_to(store: DefaultMessageStore, topic: str, queue_id: int) -> bool:
    """Tell whether a queue has a message that waited nowhere before it came."""
    messages = _messages(store, topic, queue_id, store.min_queue_offset(topic, queue_id))
    # whoever forwards what had waited for another topic gives it that one's name, too
    return any(message.properties.get("REAL_TOPIC") != topic for message in messages)


def _first_behind(store: DefaultMessageStore, topic: str, queue_id: int, phy_offset: int) -> int:
    """Offset of the first message of a queue whose record does not lie before a physical offset."""
    offsets = range(
        store.min_queue_offset(topic, queue_id), store.max_queue_offset(topic, queue_id)
    )

    def place(offset: int) -> int:
        unit = store.read_units(topic, queue_id, offset, 1)
        return int(UNIT_HEAD.unpack_from(unit)[0])

    return offsets.start + bisect_left(offsets, phy_offset, key=place)


def has_queue(topics: TopicConfigTable, topic: str, queue_id: int) -> bool:
    """Tell whether a table explains that a message is in a queue: somebody reads or writes it.

    Light queues are in no table, and delay levels are as many as the settings say.

    Args:
        topics: the table.
        topic: by name.
        queue_id: of the queue.
    """
    if topic in _WAITING_IN or topic.startswith(LIGHT_QUEUE_PREFIX):
        return True
    found = topics.get(topic)
    return found is not None and queue_id < max(found.read_queue_nums, found.write_queue_nums)


def _destinations(
    store: DefaultMessageStore, topic: str, queue_id: int, offset: int
) -> Iterator[tuple[str, int]]:
    """The unknown queues for which messages wait, but for those of topics deleted meanwhile."""
    deletions = store.followed_log.deletions()
    for message in _messages(store, topic, queue_id, offset):
        name = message.properties.get("REAL_TOPIC", "")
        text = message.properties.get("REAL_QID", "")
        known = text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX
        if not name or not known or store.topics.get(name) is not None:
            continue
        if message.phy_offset >= deletions.get(name, 0):
            yield name, int(text)


def _messages(
    store: DefaultMessageStore, topic: str, queue_id: int, offset: int
) -> Iterator[MessageExt]:
    """Messages of a queue from an offset on, but for what is damaged."""
    end, count = store.max_queue_offset(topic, queue_id), _BATCH
    while offset < end:
        try:
            result = store.get_message(topic, queue_id, offset, max_messages=count)
            found = list(result.messages)
        except CorruptStoreError:
            # those in front of the damage, one by one, and then those behind it
            offset, count = offset + (count == 1), 1
            continue
        yield from found
        offset = max(offset + 1, result.next_queue_offset)


def _stored_ms(store: DefaultMessageStore, topic: str, queue_id: int, *, last: bool) -> int:
    """Store time of the first or last message of a queue, Unix time; -1 for none."""
    least, end = store.min_queue_offset(topic, queue_id), store.max_queue_offset(topic, queue_id)
    with suppress(CorruptStoreError):
        if end > least:
            offset = end - 1 if last else least
            found = store.get_message(topic, queue_id, offset, max_messages=1).messages
            return found[0].store_timestamp_ms if found else -1
    return -1
