"""`MessageExt`, which reads hand out.

It, or a slice of it, keeps the mapping that it lies in alive (`BufferHold`). Never opens, maps or
writes a file.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memchr, memcmp
cimport cython

from rmqcore.native.format._bytes cimport load_i64, store_i64
from rmqcore.native.base._hold cimport BufferHold, HeldBytes
from rmqcore.native.format._host cimport host_text
from rmqcore.native.format._layout cimport *
from rmqcore.native.format._record cimport (
    PropertyWalk, RecordHead, Slice, bytes_t, check_body_crc, named, next_property, read_head,
    rmq_crc32_init, walk_properties,
)

from rmqcore.native.format.compression import decompress
from rmqcore.native.format.named_properties import number_of, text_of
from rmqcore.errors import CorruptRecordError

rmq_crc32_init()

STORED_NAMES = (
    "topic", "queue_id", "queue_offset", "phy_offset", "store_size", "message_id", "unique_key",
    "keys", "tags", "flag", "sys_flag", "born_timestamp_ms", "store_timestamp_ms", "born_host",
    "store_host", "reconsume_times", "prepared_transaction_offset", "body_crc", "properties",
    "body",
)


cdef str text(bytes_t at, Py_ssize_t size):
    return PyUnicode_DecodeUTF8(<const char*>at, size, "replace")


cdef MessageExt make_message(BufferHold hold, bytes_t at, const RecordHead* head):
    cdef MessageExt message = MessageExt.__new__(MessageExt)
    message.hold = hold
    message.record_at = at
    message.head = head[0]
    return message


@cython.final
@cython.freelist(64)
cdef class MessageExt:
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

    def __init__(self, *args, **settings):
        raise TypeError("MessageExt objects come from reads; build a Message to put one")

    @property
    def topic(self) -> str:
        if self._topic is None:
            self._topic = text(self.record_at + self.head.topic_at, self.head.topic_size)
        return self._topic

    @property
    def queue_id(self) -> int:
        return self.head.queue_id

    @property
    def queue_offset(self) -> int:
        """Number of the message in its queue; of a consumed light queue, see ``properties``."""
        return self.head.queue_offset

    @property
    def phy_offset(self) -> int:
        return self.head.phy_offset

    @property
    def store_size(self) -> int:
        return self.head.total_size

    @property
    def flag(self) -> int:
        return self.head.flag

    @property
    def sys_flag(self) -> int:
        return self.head.sys_flag

    @property
    def born_timestamp_ms(self) -> int:
        return self.head.born_timestamp

    @property
    def store_timestamp_ms(self) -> int:
        return self.head.store_timestamp

    @property
    def born_host(self) -> str:
        return host_text(self.record_at + BORN_HOST_AT, self.head.born_host_size)

    @property
    def store_host(self) -> str:
        return host_text(self.record_at + self.head.store_host_at, self.head.store_host_size)

    @property
    def reconsume_times(self) -> int:
        return self.head.reconsume_times

    @property
    def prepared_transaction_offset(self) -> int:
        return self.head.prepared_transaction_offset

    @property
    def body_crc(self) -> int:
        return self.head.body_crc

    @property
    def body(self) -> bytes:
        """The body as stored, perhaps compressed: see `decompressed_body`."""
        if self._body is None:
            self._body = PyBytes_FromStringAndSize(
                <const char*>self.record_at + self.head.body_at, self.head.body_size
            )
        return self._body

    @property
    def properties(self) -> dict:
        """Every property, KEYS, TAGS, UNIQ_KEY and ``__CRC32#`` included."""
        cdef PropertyWalk walk
        cdef Slice name, value
        if self._properties is None:
            self._properties = {}
            walk = walk_properties(
                self.record_at + self.head.properties_at, self.head.properties_size
            )
            while next_property(&walk, &name, &value):
                self._properties[text(name.at, name.size)] = text(value.at, value.size)
        return self._properties

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

    cdef void find_properties(self) noexcept:
        """Find KEYS, TAGS and UNIQ_KEY in one pass; of one given twice the later counts."""
        cdef PropertyWalk walk = walk_properties(
            self.record_at + self.head.properties_at, self.head.properties_size
        )
        cdef Slice name, value
        self.found = True
        while next_property(&walk, &name, &value):
            if named(&name, b"KEYS", 4):
                self.keys_slice = value
            elif named(&name, b"TAGS", 4):
                self.tags_slice = value
            elif named(&name, b"UNIQ_KEY", 8):
                self.unique_key_slice = value

    cdef object property_text(self, str name, const Slice* value):
        """The text of one of those three; `properties`, once made, may have been changed."""
        if self._properties is not None:
            return self._properties.get(name)
        if not self.found:
            self.find_properties()
        return None if value.at == NULL else text(value.at, value.size)

    @property
    def keys(self) -> tuple:
        value = self.property_text("KEYS", &self.keys_slice)
        if value is None:
            return ()
        if " " not in value:
            return (value,)
        return tuple([key for key in value.split(" ") if key])

    @property
    def tags(self):
        return self.property_text("TAGS", &self.tags_slice)

    @property
    def unique_key(self):
        return self.property_text("UNIQ_KEY", &self.unique_key_slice)

    @property
    def message_id(self) -> str:
        """The offset id: store host and physical offset as upper-case hex, 32 or 56 digits."""
        cdef uint8_t offset[8]
        store_i64(offset, self.head.phy_offset)
        host = self.record_at[self.head.store_host_at:
                              self.head.store_host_at + self.head.store_host_size]
        return (host + offset[:8]).hex().upper()

    @property
    def record(self) -> memoryview:
        """The record's bytes, without a copy; the view keeps the mapping alive."""
        cdef Py_ssize_t start = self.record_at - <bytes_t>self.hold.view.buf
        return memoryview(HeldBytes(self.hold, start, self.head.total_size))

    @property
    def body_view(self) -> memoryview:
        """The stored body without a copy; the view keeps the mapping alive."""
        return self.record[self.head.body_at:self.head.body_at + self.head.body_size]

    def decompressed_body(self, *, Py_ssize_t max_size=64 << 20) -> bytes:
        """The body as the producer gave it.

        Args:
            max_size: refuse a body that would grow beyond this many bytes.

        Raises:
            CorruptRecordError: the body does not decompress, or grows beyond ``max_size``.
            RmqCoreError: LZ4 or ZSTD without the package that reads it.

        Source: RocketMQ common/compression/CompressorFactory.java.
        """
        if not self.head.sys_flag & COMPRESSED:
            return self.body
        try:
            return decompress(self.body, self.head.sys_flag, max_size)
        except ValueError as error:
            raise CorruptRecordError(
                self.hold.path or "message", self.head.phy_offset,
                f"the body does not decompress: {error}",
            ) from error

    cpdef bint has_key(self, str topic, str key) except -1:
        """True when the message is of the topic and carries the key, as one of KEYS or UNIQ_KEY."""
        cdef bytes wanted = key.encode("utf-8", "replace")
        return len(wanted) <= PROPERTIES_SIZE_MAX and self.topic == topic and self.has_word(
            <bytes_t>PyBytes_AS_STRING(wanted), <int32_t>len(wanted)
        )

    cdef bint is_of(self, bytes_t topic, int32_t size) noexcept:
        return self.head.topic_size == size and memcmp(
            self.record_at + self.head.topic_at, topic, size
        ) == 0

    cdef bint has_word(self, bytes_t key, int32_t size) noexcept:
        """True when UTF-8 text is one of KEYS, or UNIQ_KEY."""
        if not self.found:
            self.find_properties()
        return has_word(&self.keys_slice, key, size) or (
            self.unique_key_slice.at != NULL and self.unique_key_slice.size == size
            and memcmp(self.unique_key_slice.at, key, size) == 0
        )

    def check_crc(self) -> bool:
        """True when the stored body agrees with its CRC."""
        return self.hold is not None and check_body_crc(self.record_at, &self.head) == OK

    def to_dict(self) -> dict:
        """Every attribute by its name, ``body`` as it is stored.

        Those that are one property each, such as ``sharding_key``, are among ``properties`` only.
        """
        return {name: getattr(self, name) for name in STORED_NAMES}

    def __eq__(self, other):
        """Whether two messages are the same record: its bytes, its place in the log included."""
        if not isinstance(other, MessageExt):
            return NotImplemented
        cdef MessageExt that = <MessageExt>other
        cdef int32_t size = self.head.total_size
        return size == that.head.total_size and (
            size == 0 or memcmp(self.record_at, that.record_at, size) == 0
        )

    def __hash__(self):
        return hash((self.head.phy_offset, self.head.store_timestamp, self.head.body_crc))

    def __reduce__(self):
        return _stored_again, (bytes(self.record), self.hold.path, self.head.phy_offset)

    def __repr__(self):
        return (
            f"MessageExt({self.topic!r}, queue_id={self.queue_id}, "
            f"queue_offset={self.queue_offset}, phy_offset={self.phy_offset}, "
            f"{self.head.body_size} bytes, tags={self.tags!r}, keys={self.keys!r})"
        )


cdef bint has_word(const Slice* words, bytes_t wanted, int32_t size) noexcept:
    """True when a list separated by spaces has the word."""
    cdef bytes_t at = words.at
    cdef bytes_t end = words.at + words.size
    cdef bytes_t space
    while size and end - at >= size:
        space = <bytes_t>memchr(at, 32, end - at)
        if space == NULL:
            space = end
        if space - at == size and memcmp(at, wanted, size) == 0:
            return True
        at = space + 1
    return False


def message_from(buffer, int64_t at=0, *, path=None, int64_t base_offset=0, bint check_crc=True):
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
    cdef BufferHold hold = BufferHold(buffer, path, base_offset)
    cdef RecordHead head
    cdef int status
    if at < 0 or at > hold.view.len:
        raise CorruptRecordError(path or "buffer", base_offset + at, "outside the buffer")
    status = read_head(<bytes_t>hold.view.buf + at, hold.view.len - at, &head)
    if status == OK and check_crc:
        status = check_body_crc(<bytes_t>hold.view.buf + at, &head)
    if status != OK:
        raise CorruptRecordError(path or "buffer", base_offset + at, status_text(status))
    return make_message(hold, <bytes_t>hold.view.buf + at, &head)


def _stored_again(bytes record, path, int64_t phy_offset):
    return message_from(record, path=path, base_offset=phy_offset, check_crc=False)


def find_message(buffer, int64_t at, int64_t end, *, path, int64_t base_offset):
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
    cdef BufferHold hold = BufferHold(buffer, path, base_offset)
    if at < 0 or end > hold.view.len or end - at < BORN_TIMESTAMP_AT:
        return None
    return find_in_hold(hold, <bytes_t>hold.view.buf + at, end - at, True)


cdef object find_in_hold(BufferHold hold, bytes_t record, int64_t readable, bint check_crc):
    """As `find_message`, of a held buffer; at least 40 bytes are readable."""
    cdef RecordHead head
    cdef int64_t offset = hold.base_offset + (record - <bytes_t>hold.view.buf)
    cdef int status
    head.total_size = 0
    if load_i64(record + PHY_OFFSET_AT) != offset:
        return None
    status = read_head(record, readable, &head)
    if status in (BLANK, EMPTY, BAD_MAGIC):
        return None
    if status == TRUNCATED:
        return head.total_size
    if status == OK and check_crc:
        status = check_body_crc(record, &head)
    if status != OK:
        raise CorruptRecordError(hold.path or "log", offset, status_text(status))
    return make_message(hold, record, &head)


cpdef str status_text(int status):
    """What a kernel's status means, as a reason in an error."""
    return {
        OK: "a good record",
        BLANK: "the end-of-file marker, not a message",
        EMPTY: "zeros: nothing was written here",
        CAPACITY: "more than the arrays hold",
        PARTIAL: "the record goes on behind what was read",
        TRUNCATED: "the record is cut short",
        BAD_MAGIC: "no record begins here (magic code)",
        BAD_SIZE: "the lengths of the record's parts contradict its size",
        BAD_CRC: "the stored bytes contradict their CRC",
        BAD_OFFSET: "the record names another physical offset",
        OUT_OF_BOUNDS: "outside the readable bytes",
    }[status]
