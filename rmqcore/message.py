"""Messages under their public names: as they are put, as they are stored, as consumers get them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, TypedDict, TypeVar, cast

from rmqcore._codec import decode_message_id, encode_message_id
from rmqcore.errors import MessageIllegalError
from rmqcore.native.format._message import Message, StoredCopy
from rmqcore.native.format._message_ext import MessageExt
from rmqcore.native.format._numbers import PROPERTIES_SIZE_MAX
from rmqcore.native.format._receipt import PutMessageResult
from rmqcore.native.read._get_result import GetMessageResult
from rmqcore.native.read._key_query import QueryMessageResult
from rmqcore.status import Durability, DurabilityName

__all__ = [
    "DEAD_LETTER_PREFIX",
    "EXPIRES_MS",
    "LIGHT_NUMBERS",
    "LIGHT_QUEUES",
    "RETRY_PREFIX",
    "BatchSettings",
    "GetMessageResult",
    "Lease",
    "LeaseSettings",
    "Message",
    "MessageExt",
    "PutMessageResult",
    "PutSettings",
    "QueryMessageResult",
    "QueueLag",
    "ReceivedMessage",
    "Sql",
    "copy_to",
    "decode_message_id",
    "encode_message_id",
    "light_numbers",
    "tags_of",
    "without_light_queues",
]

_log = logging.getLogger("rmqcore")
T = TypeVar("T")

RETRY_PREFIX: Final = "%RETRY%"
DEAD_LETTER_PREFIX: Final = "%DLQ%"
#: A property: the Unix time in milliseconds from which on a message is of no use to anybody.
EXPIRES_MS: Final = "EXPIRES_MS"
#: The attributes that every copy of a message keeps.
_KEPT: Final = ("flag", "sys_flag", "born_timestamp_ms", "born_host", "reconsume_times")
#: A record has no room for more tries; it may come with as many.
_TRIES_MAX: Final = 2**31 - 1
#: Properties that say how a message came here, and that nobody needs to work on it. A copy that
#: does not fit into a record leaves them out, the first of them first.
_SPARE: Final = (
    "TIMER_ENQUEUE_MS",
    "TIMER_DEQUEUE_MS",
    "TRANSACTION_CHECK_TIMES",
    "ORIGIN_GROUP",
    "1ST_POP_TIME",
    "ORIGIN_MESSAGE_ID",
    "WAIT",
    "TRACE_ON",
    "MSG_REGION",
    "CLUSTER",
)
#: Attributes of a message that is put, beside those.
_BESIDE: Final = ("store_host", "prepared_transaction_offset", "wait_store_msg_ok", "tags", "keys")
#: The properties that name light queues, and a message's numbers there.
LIGHT_QUEUES: Final = "INNER_MULTI_DISPATCH"
LIGHT_NUMBERS: Final = "INNER_MULTI_QUEUE_OFFSET"
#: A number with more digits is none.
_DIGITS_MAX: Final = 18
#: About how many bytes a number of a light queue takes.
_NUMBER_SIZE: Final = 26 + 20
#: A copy's properties have at most this many bytes, as the store may add its checksum of 19.
_ROOM: Final = PROPERTIES_SIZE_MAX - 19


class SharedSettings(TypedDict, total=False):
    """What a put may say of a message, and also of all messages of a batch; see `Message`."""

    queue_id: int
    sys_flag: int
    born_timestamp_ms: int
    born_host: str | None
    store_host: str | None
    reconsume_times: int


class PutSettings(SharedSettings, total=False):
    """The arguments of `MessagePutter.put` that come by name; what they are, it says."""

    tags: str | None
    keys: str | Iterable[str] | None
    properties: Mapping[str, str] | None
    delay_level: int
    flag: int
    prepared_transaction_offset: int
    # named properties: settings
    expires_ms: int | None
    sharding_key: str | None
    # named properties end


class BatchSettings(SharedSettings, total=False):
    """The arguments of `Writing.put_messages` that come by name; what they are, it says."""

    topic: str | None


class ColumnSettings(TypedDict, total=False):
    """The arguments of `ColumnWriting.put_columns` that come by name; what they are, it says."""

    topic: str | None
    queue_count: int
    copy: bool
    durability: Durability | DurabilityName | None


class Sql(str):
    """A condition of SQL92 over a message's properties, where a subscription takes an expression.

    A broker needs ``enablePropertyFilter=true`` for it. Source: MessageSelector, bySql.
    """

    __slots__ = ()


def tags_of(expression: str) -> frozenset[str]:
    """The tags of ``a || b``; none where all messages are wanted."""
    text = expression.strip()
    words = () if text == "*" else (word.strip() for word in text.split("||"))
    return frozenset(filter(None, words))


def copy_to(
    topic: str,
    queue_id: int,
    message: Message | MessageExt,
    properties: Mapping[str, str] | None,
    *,
    spare: Sequence[str] = (),
    **settings: Any,
) -> Message:
    """What is put to have the same message in another place; the message is left as it is.

    The copy has the message's body and flags, the time and the host of its birth, and its tries.
    Of how it was stored it has nothing. Properties that only tell of the message's way are left
    out where a record has no room for them, so that a message can be copied however full its
    properties are; a stored message's body is taken however large it is. Of its properties, what is
    no text comes as ``?``.

    Args:
        topic: where it is put.
        queue_id: queue of that topic.
        message: what was put, or what a read gave.
        properties: all that the copy gets; a stored message has its tags and keys among them.
        spare: names of further properties that the copy can do without.
        settings: further arguments of `Message`, or others in place of what is kept.
    """
    settings["reconsume_times"] = min(
        settings.get("reconsume_times", message.reconsume_times), _TRIES_MAX
    )
    kept = {name: getattr(message, name) for name in _KEPT}
    if properties is not None:
        if isinstance(message, MessageExt):
            properties = _as_text(properties)
        beside = {name: settings.get(name) for name in ("tags", "keys")}
        light_queues = properties.get(LIGHT_QUEUES, "")
        numbers_size = (light_queues.count(",") + 1) * _NUMBER_SIZE if light_queues else 0
        properties = _fitting(properties, (*_SPARE, *spare), _size(beside) + numbers_size)
    # the limit of new messages does not hold for what was stored before
    kind = StoredCopy if isinstance(message, (MessageExt, StoredCopy)) else Message
    return kind(topic, message.body, queue_id=queue_id, properties=properties, **(kept | settings))


def without_light_queues(message: Message, refused: MessageIllegalError) -> Message:
    """A message that goes to its own topic only, for where its light queues cannot be had.

    Of a message that waits they were named when there were none in its store, or are more than a
    record has room to number.

    Args:
        message: what a store has refused; it is left as it is.
        refused: why; it is logged.

    Raises:
        MessageIllegalError: ``refused``, where it names no light queues: nothing is gained.
    """
    properties = dict(message.properties or {})
    if properties.pop(LIGHT_QUEUES, None) is None:
        raise refused
    _log.warning("%s: it goes to its topic alone: %s", message.topic, refused)
    settings = {name: getattr(message, name) for name in _BESIDE}
    return copy_to(message.topic, message.queue_id, message, properties, **settings)


def light_numbers(message: MessageExt) -> Iterator[tuple[str, int]]:
    """The light queues that a stored message names, and its numbers there."""
    names, numbers = (
        message.properties.get(name, "").split(",") for name in (LIGHT_QUEUES, LIGHT_NUMBERS)
    )
    for name, number in zip(names, numbers, strict=False):
        if number.isascii() and number.isdigit() and len(number) <= _DIGITS_MAX:
            yield name, int(number)


def _as_text(properties: Mapping[str, str]) -> dict[str, str]:
    """Properties of a record as they can be put: bytes that were none of a text take one each."""
    found = {name: value.replace("\x01", "?") for name, value in properties.items()}
    if _size(found) > _ROOM:
        return {k.replace("\ufffd", "?"): v.replace("\ufffd", "?") for k, v in found.items()}
    return found


def _fitting(properties: Mapping[str, str], spare: Sequence[str], beside: int) -> dict[str, str]:
    """Properties without those to spare that do not fit beside this many bytes of others."""
    fitting = dict(properties)
    size = beside + _size(fitting)
    for name in spare:
        if size <= _ROOM:
            break
        if name in fitting:
            size -= _size({name: fitting.pop(name)})
    return fitting


def _size(properties: Mapping[str, object]) -> int:
    """Bytes that properties take in a record, or a few more; what is none is refused by the put."""
    texts = [f"{name} {value} " for name, value in properties.items() if value]
    return len("".join(texts).encode("utf-8", "replace"))


class Stored(Generic[T]):
    """An attribute of a received message that is the stored one's."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name
        self.__doc__ = getattr(MessageExt, name).__doc__

    def __get__(self, message: ReceivedMessage | None, owner: type) -> T:
        return cast("T", self if message is None else getattr(message.stored, self._name))


class ReceivedMessage:
    """One message as a consumer wants it, with the attributes of `MessageExt`.

    ``topic`` of a message that comes again is the one that it was sent to, ``body`` is as the
    producer gave it (decompressed), and ``message_id`` is the producer's id (UNIQ_KEY), as in
    RocketMQ's clients; `offset_message_id` is the broker's.

    Attributes:
        stored: the record as the broker has it.
        broker_name: the broker that it came from; empty where a store was asked.
        reconsume_times: how often it was handed out and not acknowledged before.

    Source: MessageClientExt.
    """

    __slots__ = ("_body", "broker_name", "place", "reconsume_times", "stored")

    def __init__(self, stored: MessageExt, broker_name: str = "", place: object = None) -> None:
        self.stored = stored
        self.broker_name = broker_name
        self.reconsume_times = stored.reconsume_times
        #: names the message to the consumer that is asked to acknowledge it or give it back
        self.place = place
        self._body: bytes | None = None

    def __repr__(self) -> str:
        broker = f" from {self.broker_name}" if self.broker_name else ""
        return (
            f"<ReceivedMessage {self.message_id} of {self.topic}/{self.queue_id}"
            f"@{self.queue_offset}{broker}>"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ReceivedMessage):
            return NotImplemented
        return self._facts == other._facts

    def __hash__(self) -> int:
        return hash(self.stored)

    @property
    def _facts(self) -> tuple[object, ...]:
        return self.stored, self.broker_name, self.place, self.reconsume_times

    @property
    def topic(self) -> str:
        """The topic that it was sent to."""
        topic = self.stored.topic
        if topic.startswith(RETRY_PREFIX):
            return self.stored.properties.get("RETRY_TOPIC", topic)
        return topic

    @property
    def body(self) -> bytes:
        """The body as the producer gave it.

        Raises:
            CorruptRecordError: it does not decompress, or has the wrong checksum.
            RmqCoreError: LZ4 or ZSTD without the package that reads it.
        """
        if self._body is None:
            self._body = self.stored.decompressed_body()
        return self._body

    def decompressed_body(self) -> bytes:
        """The same as `body`."""
        return self.body

    @property
    def message_id(self) -> str:
        """The producer's id of the message, the broker's where there is none."""
        return self.stored.unique_key or self.stored.message_id

    @property
    def offset_message_id(self) -> str:
        """The id that says where the message is stored."""
        return self.stored.message_id

    #: of the topic that it came from; of one that comes again, of the retry topic
    queue_id = Stored[int]()
    queue_offset = Stored[int]()
    phy_offset = Stored[int]()
    store_size = Stored[int]()
    flag = Stored[int]()
    sys_flag = Stored[int]()
    born_timestamp_ms = Stored[int]()
    store_timestamp_ms = Stored[int]()
    born_host = Stored[str]()
    store_host = Stored[str]()
    prepared_transaction_offset = Stored[int]()
    body_crc = Stored[int]()
    properties = Stored[dict[str, str]]()
    keys = Stored[tuple[str, ...]]()
    tags = Stored[str | None]()
    unique_key = Stored[str | None]()
    record = Stored[memoryview]()
    body_view = Stored[memoryview]()
    # named properties: stored
    expires_ms = Stored[int | None]()
    sharding_key = Stored[str | None]()
    # named properties end

    def has_key(self, topic: str, key: str) -> bool:
        """True when the message is of the topic and carries the key, as one of KEYS or UNIQ_KEY.

        Args:
            topic: name of the topic.
            key: the whole key.
        """
        return self.stored.has_key(topic, key)

    def check_crc(self) -> bool:
        """True when the stored body agrees with its CRC."""
        return self.stored.check_crc()

    def to_dict(self) -> dict[str, Any]:
        """Every attribute of `MessageExt` by its name, as a consumer has it here."""
        return self.stored.to_dict() | {
            "topic": self.topic,
            "body": self.body,
            "message_id": self.message_id,
            "reconsume_times": self.reconsume_times,
        }


class Lease(NamedTuple):
    """A message that is handed out for a time; plain values, for another process too.

    Topic, queue, offset, attempt and record name one handing out to a group.

    Attributes:
        topic: where the message lies: the topic that was asked for, or the group's retry topic.
        queue_id: number of the queue.
        queue_offset: number of the message in it.
        attempt: how often it had been handed out to the group before.
        due_ms: Unix time at which it comes again when it is not acknowledged.
        phy_offset: where its record begins in the log, in bytes; it tells the message from one with
            the same number in a topic that was deleted and made anew. -1 where nobody can tell.
    """

    topic: str
    queue_id: int
    queue_offset: int
    attempt: int
    due_ms: int
    phy_offset: int = -1


class LeaseSettings(TypedDict, total=False):
    """The arguments of `MessageStore.lease` that come by name; what they are, it says."""

    holder: str
    max_messages: int
    lease_ms: int
    timeout_ms: float | None
    max_reconsume_times: int
    by_priority: bool
    drop_expired: bool


class QueueLag(NamedTuple):
    """How much of a queue a group has before it.

    Attributes:
        topic: of the queue.
        queue_id: its number.
        committed_offset: number of the first message that is not acknowledged, as it stands in
            ``consumerOffset.json``.
        ready: messages that can be handed out now, whatever the expression says of them.
        leased: messages that are handed out, or were given back with a delay that is not over.
    """

    topic: str
    queue_id: int
    committed_offset: int
    ready: int
    leased: int
