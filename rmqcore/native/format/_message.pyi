from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final, Never, final

from typing_extensions import Buffer, disjoint_base

# the arguments of `Message`; what `MessageExt` tells of a message, in the order of exported lines
PUT_NAMES: Final[tuple[str, ...]]
STORED_NAMES: Final[tuple[str, ...]]

@disjoint_base
class Message:
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

    Source: RocketMQ common/message/Message.java and MessageExtBrokerInner.java.
    """

    topic: str
    body: bytes | bytearray | memoryview
    queue_id: int
    tags: str | None
    keys: Iterable[str] | None
    properties: dict[str, str] | None
    flag: int
    sys_flag: int
    born_timestamp_ms: int
    born_host: str | None
    store_host: str | None
    reconsume_times: int
    prepared_transaction_offset: int
    delay_level: int
    wait_store_msg_ok: bool
    def __init__(
        self,
        topic: str,
        body: bytes | bytearray | memoryview = b"",
        *,
        queue_id: int = 0,
        tags: str | None = None,
        keys: str | Iterable[str] | None = (),
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
        sys_flag: int = 0,
        born_timestamp_ms: int = 0,
        born_host: str | None = None,
        store_host: str | None = None,
        reconsume_times: int = 0,
        prepared_transaction_offset: int = 0,
        delay_level: int = 0,
        wait_store_msg_ok: bool = True,
    ) -> None: ...
    def to_dict(self) -> dict[str, Any]:
        """The arguments that make this message again; a body that is no bytes becomes bytes."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class StoredCopy(Message):
    """A copy of a stored message: what was acknowledged has a place, however small the largest
    body of a new message has been made since.
    """

@final
class MessageExt:
    """One stored message, decoded on demand from bytes that it keeps alive.

    Made by reads only. Attribute names are those of Spark columns and JSON keys too.

    Attributes:
        queue_id: queue of the topic.
        phy_offset: byte position of the record in the commit log.
        store_size: bytes of the record.
        flag, sys_flag: application flag; RocketMQ's system flags.
        born_timestamp_ms, store_timestamp_ms: Unix time at the producer and in the store.
        born_host, store_host: ``address:port`` of the producer and of the store.
        reconsume_times: how often consumers gave the message back.
        prepared_transaction_offset: of the half message of a transaction, in bytes of the log.
        body_crc: CRC-32 of the stored body without its top bit.
        keys: words of the property KEYS.
        tags, unique_key: the properties TAGS and UNIQ_KEY; None without them.

    Source: RocketMQ common/message/MessageExt.java and MessageDecoder.java, decode.
    """

    def __init__(self, *args: Never, **settings: Never) -> None: ...
    @property
    def topic(self) -> str: ...
    @property
    def queue_id(self) -> int: ...
    @property
    def queue_offset(self) -> int:
        """Number of the message in its queue; of a consumed light queue, see ``properties``."""
    @property
    def phy_offset(self) -> int: ...
    @property
    def store_size(self) -> int: ...
    @property
    def flag(self) -> int: ...
    @property
    def sys_flag(self) -> int: ...
    @property
    def born_timestamp_ms(self) -> int: ...
    @property
    def store_timestamp_ms(self) -> int: ...
    @property
    def born_host(self) -> str: ...
    @property
    def store_host(self) -> str: ...
    @property
    def reconsume_times(self) -> int: ...
    @property
    def prepared_transaction_offset(self) -> int: ...
    @property
    def body_crc(self) -> int: ...
    @property
    def body(self) -> bytes:
        """The body as stored, perhaps compressed: see `decompressed_body`."""
    @property
    def properties(self) -> dict[str, str]:
        """Every property, KEYS, TAGS, UNIQ_KEY and ``__CRC32#`` included."""
    @property
    def keys(self) -> tuple[str, ...]: ...
    @property
    def tags(self) -> str | None: ...
    @property
    def unique_key(self) -> str | None: ...
    @property
    def message_id(self) -> str:
        """The offset id: store host and physical offset as upper-case hex, 32 or 56 digits."""
    @property
    def record(self) -> memoryview:
        """The record's bytes, without a copy; the view keeps the mapping alive."""
    @property
    def body_view(self) -> memoryview:
        """The stored body without a copy; the view keeps the mapping alive."""
    def decompressed_body(self, *, max_size: int = 67108864) -> bytes:
        """The body as the producer gave it.

        Args:
            max_size: refuse a body that would grow beyond this many bytes.

        Raises:
            CorruptRecordError: the body does not decompress, or grows beyond ``max_size``.
            RmqCoreError: LZ4 or ZSTD without the package that reads it.

        Source: RocketMQ common/compression/CompressorFactory.java.
        """
    def has_key(self, topic: str, key: str) -> bool:
        """True when the message is of the topic and carries the key, as one of KEYS or UNIQ_KEY."""
    def check_crc(self) -> bool:
        """True when the stored body agrees with its CRC."""
    def to_dict(self) -> dict[str, Any]:
        """Every attribute by its name, ``body`` as it is stored."""
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

def message_from(
    buffer: Buffer,
    at: int = 0,
    *,
    path: str | Path | None = None,
    base_offset: int = 0,
    check_crc: bool = True,
) -> MessageExt:
    """The message whose record begins at byte ``at`` of ``buffer``, without copying it.

    Args:
        buffer: any C-contiguous buffer; it stays exported while the message lives.
        at: position of the record's first byte in the buffer.
        path, base_offset: file and physical offset of the buffer's first byte, for messages.
        check_crc: also compare the stored body with its CRC.

    Raises:
        CorruptRecordError: no whole record is there.

    Source: RocketMQ common/message/MessageDecoder.java, decode.
    """

def find_message(
    buffer: Buffer, at: int, end: int, *, path: str | Path, base_offset: int
) -> MessageExt | int | None:
    """The message whose record begins at byte ``at``, when one begins there.

    Args:
        buffer: bytes of a log; it stays exported while the message lives.
        at, end: where to look, and how many bytes of the buffer may be read.
        path, base_offset: file and physical offset of the buffer's first byte.

    Returns:
        MessageExt; None when no record begins there; or the record's size in bytes, when ``end``
        comes before its own.

    Raises:
        CorruptRecordError: a record begins there, but its bytes contradict each other.
    """

def status_text(status: int) -> str:
    """What a kernel's status means, as a reason in an error."""
