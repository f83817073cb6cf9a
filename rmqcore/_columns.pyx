"""Records as columns: a stretch of the commit log becomes record batches.

`ColumnDecoder.decode` walks whole records without the GIL and fills only the columns asked for;
`ColumnDecoder.take` hands out what has gathered as a `ColumnBatch`. Columns bear the names of a
message's attributes; times are microseconds UTC and so lose their ``_ms``. Text is made valid
UTF-8 in the way that message objects show it.

Floor: F1; imports _arrow, _hold, _compression and errors.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memset
cimport cython

from rmqcore._arrow cimport (
    ColumnBatch, new_batch, rmq_blocks, rmq_blocks_add, rmq_blocks_new, rmq_column,
)
from rmqcore._column_store cimport (
    HostText, Pair, Store, add_pair, end_value, put_bytes, put_host, put_message_id, put_optional,
    put_text, put_time, room,
)
from rmqcore._hold cimport BufferHold
from rmqcore._layout cimport *
from rmqcore._record cimport (
    RecordHead, Slice, bytes_t, check_body_crc, named, next_property, read_head, rmq_crc32_init,
)
from rmqcore._tags cimport DelayLevels, tags_code_of

from rmqcore._compression import decompress
from rmqcore.errors import CorruptRecordError

rmq_crc32_init()

# The order is that of `COLUMNS`.
cdef enum:
    TOPIC, QUEUE_ID, QUEUE_OFFSET, PHY_OFFSET, STORE_SIZE, STORE_TIMESTAMP, TAGS_CODE
    BORN_TIMESTAMP, KEYS, TAGS, UNIQUE_KEY, BODY, PROPERTIES, FLAG, SYS_FLAG, BODY_CRC
    RECONSUME_TIMES, PREPARED_TRANSACTION_OFFSET, BORN_HOST, STORE_HOST, MESSAGE_ID, CRC_OK, RECORD
    COLUMN_COUNT
    # what the map of properties consists of
    NAMES = COLUMN_COUNT
    VALUES
    STORE_COUNT

cdef struct Kind:
    const char* name
    const char* format
    int width                # bytes a row; 0 for text and bytes, -1 for bits, -2 for the map
    bint nullable

cdef Kind[23] KINDS = [
    Kind(b"topic", b"u", 0, False), Kind(b"queue_id", b"i", 4, False),
    Kind(b"queue_offset", b"l", 8, False), Kind(b"phy_offset", b"l", 8, False),
    Kind(b"store_size", b"i", 4, False), Kind(b"store_timestamp", b"tsu:UTC", 8, True),
    Kind(b"tags_code", b"l", 8, False), Kind(b"born_timestamp", b"tsu:UTC", 8, True),
    Kind(b"keys", b"u", 0, True), Kind(b"tags", b"u", 0, True), Kind(b"unique_key", b"u", 0, True),
    Kind(b"body", b"z", 0, False), Kind(b"properties", b"+m", -2, False),
    Kind(b"flag", b"i", 4, False), Kind(b"sys_flag", b"i", 4, False),
    Kind(b"body_crc", b"i", 4, False), Kind(b"reconsume_times", b"i", 4, False),
    Kind(b"prepared_transaction_offset", b"l", 8, False), Kind(b"born_host", b"u", 0, False),
    Kind(b"store_host", b"u", 0, False), Kind(b"message_id", b"u", 0, False),
    Kind(b"crc_ok", b"b", -1, False), Kind(b"record", b"z", 0, False),
]

# Every column there is, in the order of a batch that has them all.
COLUMNS = tuple([KINDS[index].name.decode() for index in range(COLUMN_COUNT)])
# Those that may lack a value in some row.
NULLABLE = frozenset([name for index, name in enumerate(COLUMNS) if KINDS[index].nullable])

# Bytes of log in one batch; text may grow threefold when it is mended, and offsets are int32.
cdef int64_t BYTES_MAX = 512 << 20
# Compressed bytes in one batch that is to be decompressed: zlib makes at most 1032 of one.
cdef int64_t COMPRESSED_BYTES_MAX = 1 << 20
cdef Py_ssize_t PLAIN_BODY_MAX = 64 << 20
# Pairs that fit into PROPERTIES_SIZE_MAX.
cdef int32_t PAIRS_MAX = 16384


@cython.final
cdef class ColumnDecoder:
    """Turns records into columns.

    Args:
        columns: names out of `COLUMNS`; the batches have them in this order.
        row_max: rows of a batch.
        byte_max: bytes of log that a batch is made of.
        topics, queue_ids: only records of these; None for all.
        begin_ms, end_ms: only records stored at or between these times.
        uncommitted: also prepared and rolled-back transactional records, which are in no queue.
        verify_crc: stop at a body that contradicts its CRC.
        plain_bodies: decompress bodies that are stored compressed.
        delays_ms: delay of level 1, 2, ..., for the tags code of delayed messages.
    """

    cdef Store stores[STORE_COUNT]
    cdef int order[COLUMN_COUNT]
    cdef bint wanted[COLUMN_COUNT]
    cdef int column_count
    cdef bint needs_properties, uncommitted, verify_crc, plain_bodies, out_of_memory
    cdef readonly int64_t row_count
    cdef int64_t row_max, byte_max, byte_count, compressed_bytes, pair_count, begin_ms, end_ms
    cdef tuple topics
    cdef list queue_ids
    cdef Slice* topic_at
    cdef int32_t* queue_id_at
    cdef int32_t topic_count, queue_id_count
    cdef int64_t* delays
    cdef DelayLevels levels
    cdef Pair* pairs
    cdef int64_t* row_offsets
    cdef int32_t* row_flags
    cdef HostText born_host, store_host

    def __cinit__(
        self, columns, *, int64_t row_max=16384, int64_t byte_max=16777216, topics=None,
        queue_ids=None, int64_t begin_ms=INT64_MIN, int64_t end_ms=INT64_MAX,
        bint uncommitted=True, bint verify_crc=False, bint plain_bodies=False, delays_ms=(),
    ):
        cdef int32_t index
        self.row_max = max(1, row_max)
        self.byte_max = max(1, min(byte_max, BYTES_MAX))
        self.begin_ms, self.end_ms = begin_ms, end_ms
        self.uncommitted, self.verify_crc = uncommitted, verify_crc
        self.set_columns(tuple(columns))
        self.plain_bodies = plain_bodies and self.wanted[BODY]
        self.topics = None if topics is None else tuple([topic.encode() for topic in topics])
        self.queue_ids = None if queue_ids is None else list(queue_ids)
        self.topic_count = -1 if topics is None else <int32_t>len(self.topics)
        self.queue_id_count = -1 if queue_ids is None else <int32_t>len(self.queue_ids)
        self.topic_at = <Slice*>malloc((self.topic_count + 2) * sizeof(Slice))
        self.queue_id_at = <int32_t*>malloc((self.queue_id_count + 2) * sizeof(int32_t))
        self.delays = <int64_t*>malloc((len(delays_ms) + 1) * sizeof(int64_t))
        self.row_offsets = <int64_t*>malloc(self.row_max * sizeof(int64_t))
        self.row_flags = <int32_t*>malloc(self.row_max * sizeof(int32_t))
        self.pairs = <Pair*>malloc((PAIRS_MAX if self.wanted[PROPERTIES] else 1) * sizeof(Pair))
        if not (self.topic_at and self.queue_id_at and self.delays and self.row_offsets
                and self.row_flags and self.pairs):
            raise MemoryError
        for index in range(self.topic_count):
            self.topic_at[index].at = <bytes_t>PyBytes_AS_STRING(self.topics[index])
            self.topic_at[index].size = <int32_t>PyBytes_GET_SIZE(self.topics[index])
        for index in range(self.queue_id_count):
            self.queue_id_at[index] = self.queue_ids[index]
        for index in range(<int32_t>len(delays_ms)):
            self.delays[index] = delays_ms[index]
        self.levels.delays = self.delays
        self.levels.count = <int32_t>len(delays_ms)

    cdef int set_columns(self, tuple columns) except -1:
        for name in columns:
            if name not in COLUMNS or self.wanted[COLUMNS.index(name)]:
                raise ValueError(
                    f"column {name!r}: expected different names out of {', '.join(COLUMNS)}"
                )
            self.order[self.column_count] = COLUMNS.index(name)
            self.wanted[COLUMNS.index(name)] = True
            self.column_count += 1
        self.needs_properties = (
            self.wanted[KEYS] or self.wanted[TAGS] or self.wanted[UNIQUE_KEY]
            or self.wanted[TAGS_CODE] or self.wanted[PROPERTIES]
        )
        return 0

    def __dealloc__(self):
        cdef int index
        for index in range(STORE_COUNT):
            free(self.stores[index].values)
            free(self.stores[index].offsets)
            free(self.stores[index].validity)
        free(self.topic_at)
        free(self.queue_id_at)
        free(self.delays)
        free(self.row_offsets)
        free(self.row_flags)
        free(self.pairs)

    def decode(self, buffer, int64_t at, int64_t stop, *, int64_t base_offset) -> tuple:
        """Add the records that lie wholly between ``at`` and ``stop`` to the batch in the making.

        Args:
            buffer: bytes of the commit log; read during the call only.
            at, stop: positions in the buffer.
            base_offset: physical offset of the buffer's first byte.

        Returns:
            (position where it stopped, why), as `DispatchBatch.scan`; CAPACITY: `take` the batch
            and call again from there.
        """
        cdef int status = OK
        cdef RecordHead head
        cdef BufferHold hold = BufferHold(buffer, None, base_offset)
        cdef bytes_t base = <bytes_t>hold.view.buf
        if at < 0 or stop < at or stop > hold.view.len:
            raise IndexError(f"{at} to {stop} lie outside the buffer")
        self.begin()
        with nogil:
            while at < stop:
                status = read_head(base + at, stop - at, &head)
                if status == OK and head.phy_offset != base_offset + at:
                    status = BAD_OFFSET
                if status == OK and self.verify_crc:
                    status = check_body_crc(base + at, &head)
                if status == OK and self.selected(base + at, &head):
                    if self.is_full(&head):
                        status = CAPACITY
                    elif not self.add(base + at, &head):
                        self.out_of_memory = True
                        status = OUT_OF_BOUNDS
                if status != OK:
                    break
                at += head.total_size
        if self.out_of_memory:
            raise MemoryError
        return at, status

    cdef int begin(self) except -1:
        """Make the memory of a fresh batch ready."""
        cdef int index, column
        cdef Store* store
        for index in range(self.column_count):
            column = self.order[index]
            store = &self.stores[column]
            if store.values != NULL:
                continue
            if KINDS[column].width > 0:
                store.capacity = self.row_max * KINDS[column].width
            else:
                store.capacity = max(4096, self.row_max)
            store.values = <uint8_t*>calloc(1, store.capacity)
            if KINDS[column].width in (0, -2):
                store.offset_capacity = self.row_max + 1
                store.offsets = <int32_t*>calloc(self.row_max + 1, sizeof(int32_t))
            if KINDS[column].nullable:
                store.validity = <uint8_t*>malloc(self.row_max // 8 + 1)
                if store.validity != NULL:
                    memset(store.validity, 0xFF, self.row_max // 8 + 1)
            if store.values == NULL:
                raise MemoryError
        if self.wanted[PROPERTIES] and self.stores[NAMES].values == NULL:
            for index in range(NAMES, VALUES + 1):
                self.stores[index].values = <uint8_t*>calloc(1, 4096)
                self.stores[index].capacity = 4096
                self.stores[index].offsets = <int32_t*>calloc(64, sizeof(int32_t))
                self.stores[index].offset_capacity = 64
        return 0

    cdef bint selected(self, bytes_t record, const RecordHead* head) noexcept nogil:
        cdef int32_t transaction = head.sys_flag & TRANSACTION_MASK
        cdef int32_t index
        if not self.uncommitted and transaction != 0 and transaction != TRANSACTION_COMMIT:
            return False
        if not self.begin_ms <= head.store_timestamp <= self.end_ms:
            return False
        if self.queue_id_count >= 0:
            for index in range(self.queue_id_count):
                if self.queue_id_at[index] == head.queue_id:
                    break
            else:
                return False
        if self.topic_count < 0:
            return True
        for index in range(self.topic_count):
            if self.topic_at[index].size == head.topic_size and memcmp(
                self.topic_at[index].at, record + head.topic_at, head.topic_size
            ) == 0:
                return True
        return False

    cdef bint is_full(self, const RecordHead* head) noexcept nogil:
        return self.row_count >= self.row_max or (self.row_count > 0 and (
            self.byte_count + head.total_size > self.byte_max
            or (self.plain_bodies and self.compressed_bytes > COMPRESSED_BYTES_MAX)
        ))

    cdef bint add(self, bytes_t record, const RecordHead* head) noexcept nogil:
        """Add one row; False without memory."""
        cdef int64_t row = self.row_count
        cdef Store* stores = self.stores
        cdef bint good = self.add_numbers(record, head)
        if self.wanted[TOPIC]:
            good = good and put_text(&stores[TOPIC], row, record + head.topic_at, head.topic_size)
        if self.wanted[BODY]:
            good = good and put_bytes(&stores[BODY], row, record + head.body_at, head.body_size)
        if self.wanted[RECORD]:
            good = good and put_bytes(&stores[RECORD], row, record, head.total_size)
        if self.wanted[BORN_HOST]:
            good = good and put_host(&stores[BORN_HOST], row, &self.born_host,
                                     record + BORN_HOST_AT, head.born_host_size)
        if self.wanted[STORE_HOST]:
            good = good and put_host(&stores[STORE_HOST], row, &self.store_host,
                                     record + head.store_host_at, head.store_host_size)
        if self.wanted[MESSAGE_ID]:
            good = good and put_message_id(&stores[MESSAGE_ID], row, record, head)
        if self.needs_properties:
            good = good and self.add_properties(record, head)
        self.row_offsets[row] = head.phy_offset
        self.row_flags[row] = head.sys_flag
        if head.sys_flag & COMPRESSED:
            self.compressed_bytes += head.body_size
        self.byte_count += head.total_size
        self.row_count += 1
        return good

    cdef bint add_numbers(self, bytes_t record, const RecordHead* head) noexcept nogil:
        cdef int64_t row = self.row_count
        cdef Store* stores = self.stores
        if self.wanted[QUEUE_ID]:
            (<int32_t*>stores[QUEUE_ID].values)[row] = head.queue_id
        if self.wanted[QUEUE_OFFSET]:
            (<int64_t*>stores[QUEUE_OFFSET].values)[row] = head.queue_offset
        if self.wanted[PHY_OFFSET]:
            (<int64_t*>stores[PHY_OFFSET].values)[row] = head.phy_offset
        if self.wanted[STORE_SIZE]:
            (<int32_t*>stores[STORE_SIZE].values)[row] = head.total_size
        if self.wanted[STORE_TIMESTAMP]:
            put_time(&stores[STORE_TIMESTAMP], row, head.store_timestamp)
        if self.wanted[BORN_TIMESTAMP]:
            put_time(&stores[BORN_TIMESTAMP], row, head.born_timestamp)
        if self.wanted[FLAG]:
            (<int32_t*>stores[FLAG].values)[row] = head.flag
        if self.wanted[SYS_FLAG]:
            (<int32_t*>stores[SYS_FLAG].values)[row] = head.sys_flag
        if self.wanted[BODY_CRC]:
            (<int32_t*>stores[BODY_CRC].values)[row] = head.body_crc
        if self.wanted[RECONSUME_TIMES]:
            (<int32_t*>stores[RECONSUME_TIMES].values)[row] = head.reconsume_times
        if self.wanted[PREPARED_TRANSACTION_OFFSET]:
            (<int64_t*>stores[PREPARED_TRANSACTION_OFFSET].values)[row] = (
                head.prepared_transaction_offset
            )
        if self.wanted[CRC_OK] and check_body_crc(record, head) == OK:
            stores[CRC_OK].values[row >> 3] |= <uint8_t>(1 << (row & 7))
        return True

    cdef bint add_properties(self, bytes_t record, const RecordHead* head) noexcept nogil:
        cdef int32_t at = 0, count = 0
        cdef int64_t row = self.row_count
        cdef Slice name, value, tags, keys, unique_key, delay
        cdef bytes_t base = record + head.properties_at
        tags.at = NULL
        tags.size = 0
        keys = unique_key = delay = tags
        while next_property(base, head.properties_size, &at, &name, &value):
            if named(&name, b"TAGS", 4):
                tags = value
            elif named(&name, b"KEYS", 4):
                keys = value
            elif named(&name, b"UNIQ_KEY", 8):
                unique_key = value
            elif named(&name, b"DELAY", 5):
                delay = value
            if self.wanted[PROPERTIES]:
                count = add_pair(self.pairs, count, &name, &value)
        if self.wanted[TAGS_CODE]:
            (<int64_t*>self.stores[TAGS_CODE].values)[row] = tags_code_of(
                &self.levels, record, head, &tags, &delay
            )
        if self.wanted[TAGS] and not put_optional(&self.stores[TAGS], row, &tags):
            return False
        if self.wanted[KEYS] and not put_optional(&self.stores[KEYS], row, &keys):
            return False
        if self.wanted[UNIQUE_KEY] and not put_optional(&self.stores[UNIQUE_KEY], row, &unique_key):
            return False
        return not self.wanted[PROPERTIES] or self.add_map(count)

    cdef bint add_map(self, int32_t count) noexcept nogil:
        cdef Store* entries = &self.stores[PROPERTIES]
        cdef int32_t index
        for index in range(count):
            if not put_text(&self.stores[NAMES], self.pair_count, self.pairs[index].name.at,
                            self.pairs[index].name.size):
                return False
            if not put_text(&self.stores[VALUES], self.pair_count, self.pairs[index].value.at,
                            self.pairs[index].value.size):
                return False
            self.pair_count += 1
        # what the map's offsets count are pairs
        entries.size = self.pair_count
        return end_value(entries, self.row_count)

    def take(self) -> ColumnBatch:
        """The rows gathered so far, perhaps none; the next `decode` begins a new batch.

        Raises:
            CorruptRecordError: a body that is to be decompressed does not.
        """
        cdef rmq_blocks* blocks
        cdef rmq_column* columns
        cdef int index
        cdef int64_t rows = self.row_count
        self.begin()
        if self.plain_bodies and self.compressed_bytes:
            self.decompress_bodies()
        blocks = rmq_blocks_new()
        columns = <rmq_column*>calloc(self.column_count + 4, sizeof(rmq_column))
        if blocks == NULL or columns == NULL:
            free(blocks)
            free(columns)
            raise MemoryError
        rmq_blocks_add(blocks, columns)
        for index in range(self.column_count):
            self.hand_out(&columns[index], self.order[index], rows, blocks)
            if self.order[index] == PROPERTIES:
                self.hand_out_map(&columns[index], &columns[self.column_count], blocks)
        self.row_count = self.byte_count = self.compressed_bytes = self.pair_count = 0
        return new_batch(columns, self.column_count, rows, blocks)

    cdef void hand_out(
        self, rmq_column* column, int number, int64_t rows, rmq_blocks* blocks
    ) noexcept:
        """Describe one column, and give its memory to the batch."""
        cdef Store* store = &self.stores[number]
        cdef bint is_text = number >= COLUMN_COUNT or KINDS[number].width == 0
        column.nullable = True
        if number < COLUMN_COUNT:
            column.name = KINDS[number].name
            column.format = KINDS[number].format
        column.length = rows
        column.null_count = store.null_count
        column.buffers[0] = store.validity if store.null_count else NULL
        column.buffers[1] = store.offsets if store.offsets != NULL else <void*>store.values
        column.buffers[2] = store.values if is_text else NULL
        column.buffer_count = 3 if is_text else 2
        rmq_blocks_add(blocks, store.values)
        rmq_blocks_add(blocks, store.offsets)
        rmq_blocks_add(blocks, store.validity)
        memset(store, 0, sizeof(Store))

    cdef void hand_out_map(
        self, rmq_column* column, rmq_column* parts, rmq_blocks* blocks
    ) noexcept:
        column.child_count = 1
        column.children = parts
        parts.name = b"entries"
        parts.format = b"+s"
        parts.buffer_count = 1
        parts.length = self.pair_count
        parts.child_count = 2
        parts.children = parts + 1
        self.hand_out(&parts[1], NAMES, self.pair_count, blocks)
        self.hand_out(&parts[2], VALUES, self.pair_count, blocks)
        parts[1].name = b"key"
        parts[1].nullable = False
        parts[2].name = b"value"
        parts[1].format = parts[2].format = b"u"

    cdef int decompress_bodies(self) except -1:
        """Replace the compressed bodies of the batch by what the producer gave."""
        cdef Store* old = &self.stores[BODY]
        cdef Store plain
        cdef int64_t row
        cdef bytes body
        memset(&plain, 0, sizeof(Store))
        if not room(&plain, old.size + 1):
            raise MemoryError
        try:
            for row in range(self.row_count):
                body = PyBytes_FromStringAndSize(
                    <char*>old.values + old.offsets[row], old.offsets[row + 1] - old.offsets[row]
                )
                if self.row_flags[row] & COMPRESSED:
                    body = plain_body(body, self.row_flags[row], self.row_offsets[row])
                if plain.size + PyBytes_GET_SIZE(body) > 0x7FFFFFFF:
                    raise CorruptRecordError(
                        "commit log", self.row_offsets[row],
                        "the bodies of one batch exceed 2 GiB",
                    )
                if not put_bytes(&plain, row, PyBytes_AS_STRING(body), PyBytes_GET_SIZE(body)):
                    raise MemoryError
        except BaseException:
            free(plain.values)
            free(plain.offsets)
            raise
        free(old.values)
        free(old.offsets)
        old[0] = plain
        return 0


cdef bytes plain_body(bytes body, int32_t sys_flag, int64_t phy_offset):
    try:
        return decompress(body, sys_flag, PLAIN_BODY_MAX)
    except ValueError as error:
        raise CorruptRecordError(
            "commit log", phy_offset, f"the body does not decompress: {error}"
        ) from error
