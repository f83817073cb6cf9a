"""Move a MetaQ data path into a RocketMQ store: partitions become queues, in order.

The target is its own journal: the last message of a queue says where the next one comes from, so
an interrupted migration goes on where it stopped. Layout: docs/metaq.md, "Migration".
"""

from __future__ import annotations

import hashlib
import itertools
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rmqcore import DefaultMessageStore, GetMessageStatus, Message, MessageExt, open_store
from rmqcore.errors import CorruptRecordError, StoreError, StoreNotFoundError
from rmqcore.files.config_tables import TopicConfig
from rmqcore.metaq import message as metaq
from rmqcore.metaq.errors import MissingSegmentError
from rmqcore.metaq.message_store import MessageStore
from rmqcore.metaq.meta_config import MetaConfig
from rmqcore.metaq.partition_reader import partition_named
from rmqcore.metaq.segments import Hole
from rmqcore.metaq.settings import SystemConfig

ID = "METAQ_ID"
OFFSET = "METAQ_OFFSET"
ATTRIBUTE = "METAQ_ATTRIBUTE"
TOPIC = "METAQ_TOPIC"
RAW = "METAQ_RAW"

_BATCH_COUNT = 256
_BATCH_SIZE = 1 << 20
_READ_COUNT = 512
_MAX_ATTRIBUTE = 8192
#: A record has fewer bytes than this beside its body and METAQ_ properties: its topic and its key.
_BESIDE = 512
_ROW = struct.Struct(">qii")
_PLAIN_NAME = re.compile(rb"[A-Za-z0-9_-]")

Progress = Callable[[str, int, int], object]


class MigrationError(StoreError):
    """The target does not continue, or does not equal, the source.

    Attributes:
        topic: the MetaQ topic.
        partition: its partition.
        reason: what differs, and where.
    """

    def __init__(self, topic: str, partition: int, reason: str) -> None:
        self.topic = topic
        self.partition = partition
        self.reason = reason
        super().__init__(f"{topic}-{partition}: {reason}")


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """One partition and the queue that it became.

    Attributes:
        topic: MetaQ's name.
        partition: the partition, and the queue id.
        target_topic: RocketMQ's name.
        messages: messages in both.
        moved: messages moved by this run; the others were there already.
        size: bytes of MetaQ records.
        sha256: digest of all records, the same computed from either side.
        holes: offsets that the source had lost before.
        too_large: offsets of messages that the target does not take; they are in the source alone.
        left_behind: bytes behind the last whole record of the source.
    """

    topic: str
    partition: int
    target_topic: str
    messages: int
    moved: int
    size: int
    sha256: str
    holes: tuple[Hole, ...]
    too_large: tuple[int, ...]
    left_behind: int


def migrate(
    source: str | Path, target: str | Path, *, progress: Progress | None = None, **settings: Any
) -> list[PartitionReport]:
    """Move every partition below a data path, then compare both sides message by message.

    The target takes messages of any size that fits into its log files, unless the settings say
    less. What it does not take is left out, and named in the report.

    Args:
        source: MetaQ's data path; it is only read.
        target: the RocketMQ store, created when missing; other topics in it are left alone.
        progress: called with ``(partition, bytes done, bytes in all)``.
        settings: for `rmqcore.open_store`.

    Raises:
        StoreNotFoundError: there is no partition below ``source``.
        CorruptStoreError: a record in the middle of the source is damaged.
        MigrationError: a target queue holds other messages, and nothing was moved; or it differs
            from its source.
        MessageIllegalError: a topic's name is too long for RocketMQ; nothing was moved.
    """
    names = partitions(Path(source))
    if not names:
        raise StoreNotFoundError(source, "no MetaQ partitions here")
    config = MetaConfig(SystemConfig(data_path=str(source)))
    with open_store(target, **settings) as store:
        for topic, partition in names:
            # of all, before anything is put that nobody can take back
            with MessageStore(topic, partition, config, mode="r") as origin:
                _resume_offset(origin, store, target_topic(topic))
        if "max_message_size" not in store.config.explicit:
            store.change_settings(max_message_size=store.config.largest_body)
        _make_topics(store, names)
        moved = {}
        for topic, partition in names:
            with MessageStore(topic, partition, config, mode="r") as origin:
                moved[topic, partition] = move(origin, store, progress)
        store.flush()
        reports = []
        for topic, partition in names:
            with MessageStore(topic, partition, config, mode="r") as origin:
                reports.append(compare(origin, store, moved[topic, partition]))
        return reports


def partitions(source: Path) -> list[tuple[str, int]]:
    """Every ``(topic, partition)`` below a data path, sorted.

    Raises:
        StoreNotFoundError: there is no such directory.
    """
    if not source.is_dir():
        raise StoreNotFoundError(source, "no such directory")
    named = (partition_named(entry.name) for entry in source.iterdir() if entry.is_dir())
    return sorted(partition for partition in named if partition is not None)


def _make_topics(store: DefaultMessageStore, names: list[tuple[str, int]]) -> None:
    """Have topics with a queue to read for each partition, on the disk before a message is put.

    A broker answers no pull of others, and messages of a topic that is not in its table count as
    deleted where their queues are lost.
    """
    counts: dict[str, int] = {}
    for topic, partition in names:
        name = target_topic(topic)
        counts[name] = max(counts.get(name, 0), partition + 1)
    for name, count in counts.items():
        found = store.topics.get(name)
        if found is None:
            made = TopicConfig(topic_name=name, read_queue_nums=count, write_queue_nums=count)
            store.topics.put(made)
        elif found.read_queue_nums < count:
            store.topics.put(replace(found, read_queue_nums=count))
    store.topics.persist()


def target_topic(topic: str) -> str:
    """RocketMQ's name for a topic: bytes that it does not take become ``%XX``, as does ``%``."""
    # a directory's name, and so a topic's, may be no UTF-8
    name = topic.encode("utf-8", "surrogateescape")
    return "".join(
        chr(byte) if _PLAIN_NAME.match(bytes([byte])) else f"%{byte:02X}" for byte in name
    )


def to_rocketmq(message: metaq.Message) -> Message:
    """Turn a MetaQ message into one that RocketMQ stores; nothing of it is lost."""
    name = target_topic(message.topic)
    properties = {ID: str(message.message_id), OFFSET: str(message.offset)}
    # without the property the name can be read from the new one
    if name != message.topic and _fits_property(message.topic):
        properties[TOPIC] = message.topic
    body = message.data
    if message.malformed:
        properties[RAW] = "1"
    elif message.attribute is not None:
        if _fits_property(message.attribute):
            if message.attribute:
                properties[ATTRIBUTE] = message.attribute
        else:
            properties[RAW] = "1"
            body, _ = metaq.encode_data(message.data, message.attribute)
    return Message(
        name,
        body,
        queue_id=message.partition,
        keys=(str(message.message_id),),
        properties=properties,
        flag=message.flag,
    )


def to_row(message: MessageExt) -> tuple[int, bytes, int]:
    """Turn a migrated message back into the row that MetaQ stored."""
    properties = message.properties
    data = bytes(message.body)
    if message.flag & metaq.HAS_ATTRIBUTE and RAW not in properties:
        data, _ = metaq.encode_data(data, properties.get(ATTRIBUTE, ""))
    return int(properties[ID]), data, message.flag


def move(origin: MessageStore, store: DefaultMessageStore, progress: Progress | None) -> int:
    """Append what the queue does not hold yet; return how many messages that was.

    Args:
        origin: one partition of the old store.
        store: what is put into.
        progress: called with (partition, bytes done, bytes in all); None for nobody.

    Raises:
        MigrationError: the store refuses; what was put stays, and a call goes on behind it.
    """
    name = target_topic(origin.topic)
    start = _resume_offset(origin, store, name)
    moved = 0
    for batch in _batches(origin, store, start):
        copies = [copy for _, copy in batch]
        if len(copies) == 1:
            result = store.put_message(copies[0])
        else:
            result = store.put_messages(copies, topic=name, queue_id=origin.partition)
        if result.status.name != "PUT_OK":
            why = store.why_not_writable() or "see its log"
            reason = (
                f"the target answered {result.status.name} at offset {batch[0][0].offset}: {why}"
            )
            raise MigrationError(origin.topic, origin.partition, reason)
        moved += len(copies)
        if progress is not None:
            last, _ = batch[-1]
            done = last.offset + last.stored_size - origin.min_offset
            progress(f"{origin.topic}-{origin.partition}", done, origin.size_in_bytes)
    return moved


def compare(origin: MessageStore, store: DefaultMessageStore, moved: int) -> PartitionReport:
    """Read both sides to their ends, message by message.

    Args:
        origin: one partition of the old store.
        store: what was put into.
        moved: how many messages this run has put, for the report.

    Raises:
        MigrationError: the first message that differs, or that only one side has.
    """
    name = target_topic(origin.topic)
    ours, theirs = hashlib.sha256(), hashlib.sha256()
    count = size = 0
    copies = _queue(store, name, origin.partition)
    copies = itertools.dropwhile(lambda copy: _offset(copy) < origin.min_offset, copies)
    copy = next(copies, None)
    too_large: list[int] = []
    for source in origin.messages(across_holes=True, keep_malformed=True):
        is_there = copy is not None and _offset(copy) == source.offset
        if not is_there and not _takes(store, to_rocketmq(source)):
            too_large.append(source.offset)
            continue
        _, data, _ = source.row()
        _digest(ours, source.message_id, data, source.flag)
        if copy is not None:
            _digest(theirs, *to_row(copy))
        if copy is None or _offset(copy) != source.offset or ours.digest() != theirs.digest():
            reason = f"the message at offset {source.offset} is not message {count} of the queue"
            raise MigrationError(origin.topic, origin.partition, reason)
        count += 1
        size += source.stored_size
        copy = next(copies, None)
    if copy is not None:
        reason = f"the queue has more than the {count} messages of the partition"
        raise MigrationError(origin.topic, origin.partition, reason)
    behind = sum(s.messages.path.stat().st_size - s.messages.size_in_bytes for s in origin.segments)
    return PartitionReport(
        origin.topic,
        origin.partition,
        name,
        count,
        moved,
        size,
        theirs.hexdigest(),
        origin.holes,
        tuple(too_large),
        behind,
    )


def _digest(digest: hashlib._Hash, message_id: int, data: bytes, flag: int) -> None:
    digest.update(_ROW.pack(message_id, flag, len(data)))
    digest.update(data)


def _takes(store: DefaultMessageStore, copy: Message) -> bool:
    """False for a body that is larger than the store takes, or whose record no log file holds."""
    fits = _size(copy) <= store.config.largest_body
    return fits and len(copy.body) <= store.config.effective_max_message_size


def _size(copy: Message) -> int:
    """More bytes than the record of a message takes."""
    properties = (copy.properties or {}).items()
    beside = _BESIDE + sum(len(name) + len(value.encode()) + 2 for name, value in properties)
    return len(copy.body) + beside


def _fits_property(attribute: str) -> bool:
    """True for what RocketMQ's properties string carries unchanged."""
    try:
        encoded = attribute.encode()
    except UnicodeEncodeError:
        return False
    return len(encoded) <= _MAX_ATTRIBUTE and not {"\0", "\1", "\2"} & set(attribute)


def _offset(copy: MessageExt) -> int:
    return int(copy.properties.get(OFFSET, -1))


def _resume_offset(origin: MessageStore, store: DefaultMessageStore, name: str) -> int:
    """Where the queue's last message ends in the partition; its begin for a new queue."""
    end = store.max_queue_offset(name, origin.partition)
    if end == 0:
        return origin.min_offset
    found = store.get_message(name, origin.partition, end - 1, max_messages=1)
    if found.status is not GetMessageStatus.FOUND or OFFSET not in found.messages[0].properties:
        reason = f"the last message of queue {name}/{origin.partition} is not from a migration"
        raise MigrationError(origin.topic, origin.partition, reason)
    last = found.messages[0]
    if not _is_of(origin, last):
        reason = (
            f"the last message of queue {name}/{origin.partition} is not the one at offset "
            f"{_offset(last)} here: the queue is from another broker's partition, or this one is "
            "damaged"
        )
        raise MigrationError(origin.topic, origin.partition, reason)
    _, data, _ = to_row(last)
    return max(origin.min_offset, _offset(last) + metaq.HEADER_SIZE + len(data))


def _is_of(origin: MessageStore, copy: MessageExt) -> bool:
    """Whether a partition has the message that was copied, or has deleted it since."""
    if _offset(copy) < origin.min_offset:
        return True
    try:
        source = next(origin.messages(_offset(copy), keep_malformed=True), None)
    except MissingSegmentError:
        return True
    except CorruptRecordError:
        return False
    return source is not None and source.row() == to_row(copy)


def _batches(
    origin: MessageStore, store: DefaultMessageStore, start: int
) -> Iterator[list[tuple[metaq.Message, Message]]]:
    """Messages that the store takes, and their copies: as many as it takes together."""
    most = min(_BATCH_SIZE, store.config.effective_max_message_size, store.config.largest_body)
    batch: list[tuple[metaq.Message, Message]] = []
    size = 0
    for message in origin.messages(start, across_holes=True, keep_malformed=True):
        copy = to_rocketmq(message)
        if not _takes(store, copy):
            continue
        if batch and (len(batch) >= _BATCH_COUNT or size + _size(copy) > most):
            yield batch
            batch, size = [], 0
        batch.append((message, copy))
        size += _size(copy)
    if batch:
        yield batch


def _queue(store: DefaultMessageStore, name: str, queue_id: int) -> Iterator[MessageExt]:
    offset = store.min_queue_offset(name, queue_id)
    while True:
        found = store.get_message(name, queue_id, offset, max_messages=_READ_COUNT)
        if found.status is not GetMessageStatus.FOUND:
            return
        yield from found.messages
        offset = found.next_queue_offset
