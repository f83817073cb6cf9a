"""`Message`, which is put. Never opens, maps or writes a file."""

from cpython.iterator cimport PyIter_Check

from rmqcore.native.format._arguments cimport as_i32, as_i64

from rmqcore.arguments import keys_of, properties_of
from rmqcore.native.format.named_properties import number_of, text_of, with_named

PUT_NAMES = (
    "topic", "body", "queue_id", "tags", "keys", "properties", "flag", "sys_flag",
    "born_timestamp_ms", "born_host", "store_host", "reconsume_times",
    "prepared_transaction_offset", "delay_level", "wait_store_msg_ok",
)


cdef class Message:
    """What is put: a topic, a body, and what travels with them.

    Attributes:
        topic: 1 to 127 characters of ``[%|a-zA-Z0-9_-]`` (longer topics become V2 records).
        body: bytes, stored as they are.
        queue_id: queue of the topic, 0 or more.
        tags: filter tag, or None.
        keys: look-up keys, a tuple of str; one str is one key.
        properties: further name/value pairs, all str.
        flag, sys_flag: application flag; RocketMQ's system flags.
        born_timestamp_ms: 0 for the time of the put.
        born_host, store_host: ``address:port``; None for the store's own.
        reconsume_times, prepared_transaction_offset: stored as given.
        delay_level: 0 for none, else the level of ``messageDelayLevel``.
        wait_store_msg_ok: False returns before the disk has confirmed under SYNC_FLUSH.

    Further arguments are the properties that have names of their own; None leaves one out.

    Source: RocketMQ common/message/Message.java and MessageExtBrokerInner.java.
    """

    def __init__(
        self, topic, body=b"", *, queue_id=0, tags=None, keys=(), properties=None, flag=0,
        sys_flag=0, born_timestamp_ms=0, born_host=None, store_host=None, reconsume_times=0,
        prepared_transaction_offset=0, delay_level=0, bint wait_store_msg_ok=True,
        # named properties: arguments
        expires_ms=None,
        sharding_key=None,
        # named properties end
    ):
        if type(keys) is str:
            keys = (keys,)
        elif keys is not None and type(keys) is not tuple and type(keys) is not list:
            keys = keys_of(keys)
        # named properties: merged
        if (
            expires_ms is not None
            or sharding_key is not None
        ):
            properties = with_named(
                properties,
                expires_ms=expires_ms,
                sharding_key=sharding_key,
            )
        # named properties end
        if properties is not None and type(properties) is not dict:
            properties = properties_of(properties)
        self.topic = topic
        self.body = body
        self.queue_id = as_i32(queue_id, "queue_id")
        self.tags = tags
        self.keys = keys
        self.properties = properties
        self.flag = as_i32(flag, "flag")
        self.sys_flag = as_i32(sys_flag, "sys_flag")
        self.born_timestamp_ms = as_i64(born_timestamp_ms, "born_timestamp_ms")
        self.born_host = born_host
        self.store_host = store_host
        self.reconsume_times = as_i32(reconsume_times, "reconsume_times")
        self.prepared_transaction_offset = as_i64(
            prepared_transaction_offset, "prepared_transaction_offset"
        )
        self.delay_level = as_i32(delay_level, "delay_level")
        self.wait_store_msg_ok = wait_store_msg_ok

    # named properties: attributes
    @property
    def expires_ms(self):
        """Unix milliseconds from which on it is of no use."""
        return number_of(self.properties, "EXPIRES_MS")

    @property
    def sharding_key(self):
        """Messages with the same one stay in order."""
        return text_of(self.properties, "__SHARDINGKEY")
    # named properties end

    def to_dict(self) -> dict:
        """The arguments that make this message again; a body that is no bytes becomes bytes."""
        values = {name: getattr(self, name) for name in PUT_NAMES}
        values["body"] = bytes(self.body)
        values["keys"] = () if self.keys is None else tuple(self.keys)
        values["properties"] = dict(self.properties or {})
        return values

    def __eq__(self, other):
        if not isinstance(other, Message):
            return NotImplemented
        return self.to_dict() == (<Message>other).to_dict()

    def __reduce__(self):
        return _message_again, (type(self), self.to_dict())

    def __repr__(self):
        return (
            f"Message({self.topic!r}, {len(self.body)} bytes, queue_id={self.queue_id}, "
            f"tags={self.tags!r}, keys={self.keys!r})"
        )


class StoredCopy(Message):
    """A copy of a stored message: what was acknowledged has a place, however small the largest
    body of a new message has been made since.
    """


def _message_again(kind, values):
    return kind(**values)


cdef object keys_read_once(Message message):
    """The keys as None, a str or a tuple; an iterator, which can be read once only, is replaced."""
    given = message.keys
    if given is None or type(given) is tuple or type(given) is str:
        return given
    keys = keys_of(given)
    if PyIter_Check(given):
        message.keys = keys
    return keys
