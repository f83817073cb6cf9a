"""Records as columns: a stretch of the commit log becomes record batches.

`ColumnDecoder.decode` walks whole records without the GIL and fills only the columns asked for;
`ColumnDecoder.take` hands out what has gathered as a `ColumnBatch`, whose memory, once released,
serves a later one. Columns bear the names of a message's attributes; times are microseconds UTC and
so lose their ``_ms``. Text is made valid UTF-8 in the way that message objects show it.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset
cimport cython

from rmqcore.native.columns._arrow cimport (
    ColumnBatch, new_batch, rmq_block, rmq_block_grow, rmq_blocks, rmq_blocks_drop, rmq_blocks_new,
    rmq_column, rmq_pool, rmq_pool_close, rmq_pool_new,
)
from rmqcore.native.columns._column_store cimport *
from rmqcore.native.columns._plain_bodies cimport decompress_bodies
from rmqcore.native.columns._row_filter cimport IS_ROW, UNKNOWN_TOPIC, RowFilter, Verdict
from rmqcore.native.base._hold cimport BufferHold
from rmqcore.native.format._layout cimport *
from rmqcore.native.format._properties cimport Layout, Properties, read_properties
from rmqcore.native.format._record cimport (
    CHECK_BODY, NO_FILE, RecordHead, Slice, bytes_t, check_body_crc, next_record, read_head,
    rmq_crc32_init,
)
from rmqcore.native.format._tags cimport DelayLevels, tags_code_of

rmq_crc32_init()

# Shows where in a head its fields lie.
cdef RecordHead HEAD

cdef int field(const void* at):
    return <int>(<const char*>at - <const char*>&HEAD)

cdef Kind[23] KINDS = [
    Kind(b"topic", b"u", 0, False, field(&HEAD.topic_at), field(&HEAD.topic_size)),
    Kind(b"queue_id", b"i", 4, False, field(&HEAD.queue_id), 0),
    Kind(b"queue_offset", b"l", 8, False, field(&HEAD.queue_offset), 0),
    Kind(b"phy_offset", b"l", 8, False, field(&HEAD.phy_offset), 0),
    Kind(b"store_size", b"i", 4, False, field(&HEAD.total_size), 0),
    Kind(b"store_timestamp", b"tsu:UTC", 8, True, field(&HEAD.store_timestamp), 0),
    Kind(b"tags_code", b"l", 8, False, 0, 0),
    Kind(b"born_timestamp", b"tsu:UTC", 8, True, field(&HEAD.born_timestamp), 0),
    Kind(b"keys", b"u", 0, True, 0, 0),
    Kind(b"tags", b"u", 0, True, 0, 0),
    Kind(b"unique_key", b"u", 0, True, 0, 0),
    Kind(b"body", b"z", 0, False, field(&HEAD.body_at), field(&HEAD.body_size)),
    Kind(b"properties", b"+m", -2, False, 0, 0),
    Kind(b"flag", b"i", 4, False, field(&HEAD.flag), 0),
    Kind(b"sys_flag", b"i", 4, False, field(&HEAD.sys_flag), 0),
    Kind(b"body_crc", b"i", 4, False, field(&HEAD.body_crc), 0),
    Kind(b"reconsume_times", b"i", 4, False, field(&HEAD.reconsume_times), 0),
    Kind(b"prepared_transaction_offset", b"l", 8, False,
         field(&HEAD.prepared_transaction_offset), 0),
    Kind(b"born_host", b"u", 0, False, 0, 0),
    Kind(b"store_host", b"u", 0, False, 0, 0),
    Kind(b"message_id", b"u", 0, False, 0, 0),
    Kind(b"crc_ok", b"b", -1, False, 0, 0),
    Kind(b"record", b"z", 0, False, 0, 0),
]

# Every column there is, in the order of a batch that has them all.
COLUMNS = tuple([KINDS[index].name.decode() for index in range(COLUMN_COUNT)])
# Columns that may have no value in some row.
NULLABLE = frozenset([name for index, name in enumerate(COLUMNS) if KINDS[index].nullable])

# Bytes of log in one batch; text may grow threefold when it is mended, and offsets are int32.
cdef int64_t BYTES_MAX = 512 << 20
# Compressed bytes in one batch that is to be decompressed: zlib makes at most 1032 of one.
cdef int64_t COMPRESSED_BYTES_MAX = 1 << 20


@cython.final
cdef class ColumnDecoder:
    """Turns records into columns.

    Args:
        columns: names out of `COLUMNS`; the batches have them in this order.
        row_max: rows of a batch.
        byte_max: bytes of log that a batch is made of.
        rows: which records are rows; None for all.
        verify_crc: stop at a body that contradicts its CRC.
        plain_bodies: decompress bodies that are stored compressed.
        delays_ms: delay of level 1, 2, ..., for the tags code of delayed messages.
    """

    cdef Store stores[STORE_COUNT]
    cdef rmq_pool* pool
    cdef rmq_blocks* blocks
    cdef Row rows[ROWS_AT_ONCE]
    cdef Slice slices[COLUMN_COUNT][ROWS_AT_ONCE]
    cdef Layout layout
    cdef int order[COLUMN_COUNT]
    cdef bint wanted[COLUMN_COUNT]
    cdef int column_count
    cdef bint needs_properties, verify_crc, plain_bodies, out_of_memory, any_place
    cdef readonly int64_t row_count
    cdef int64_t row_max, byte_max, byte_count, compressed_bytes
    cdef RowFilter chosen
    cdef bint asks
    cdef Slice asked
    cdef int64_t* delays
    cdef DelayLevels levels
    cdef Pair* pairs
    cdef int64_t* row_offsets
    cdef int32_t* row_flags
    cdef HostText born_host, store_host

    def __cinit__(
        self, columns, *, int64_t row_max=16384, int64_t byte_max=16777216,
        RowFilter rows=None, bint verify_crc=False, bint plain_bodies=False, delays_ms=(),
    ):
        cdef int32_t index
        self.row_max = max(1, row_max)
        self.byte_max = max(1, min(byte_max, BYTES_MAX))
        self.chosen = rows
        self.verify_crc = verify_crc
        self.set_columns(tuple(columns))
        self.plain_bodies = plain_bodies and self.wanted[BODY]
        self.delays = <int64_t*>malloc((len(delays_ms) + 1) * sizeof(int64_t))
        self.row_offsets = <int64_t*>malloc(self.row_max * sizeof(int64_t))
        self.row_flags = <int32_t*>malloc(self.row_max * sizeof(int32_t))
        self.pairs = <Pair*>malloc((PAIRS_MAX if self.wanted[PROPERTIES] else 1) * sizeof(Pair))
        self.pool = rmq_pool_new()
        if not (self.pool and self.delays and self.row_offsets and self.row_flags and self.pairs):
            raise MemoryError
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
        if self.blocks != NULL:
            rmq_blocks_drop(self.blocks)
        if self.pool != NULL:
            rmq_pool_close(self.pool)
        free(self.delays)
        free(self.row_offsets)
        free(self.row_flags)
        free(self.pairs)

    def decode(self, buffer, int64_t at, int64_t stop, *, base_offset) -> tuple:
        """Add the records that lie wholly between ``at`` and ``stop`` to the batch in the making.

        Args:
            buffer: bytes of the commit log; read during the call only.
            at, stop: positions in the buffer.
            base_offset: physical offset of the buffer's first byte; None: the records are from
                anywhere in a log, as in the answer to a pull, and their places are not compared.

        Returns:
            (position where it stopped, why), as `DispatchBatch.scan`; CAPACITY: `take` the batch
            and call again from there.
        """
        cdef int status
        cdef int64_t base = 0 if base_offset is None else base_offset
        cdef BufferHold hold = BufferHold(buffer, None, base)
        if at < 0 or stop < at or stop > hold.view.len:
            raise IndexError(f"{at} to {stop} lie outside the buffer")
        self.any_place = base_offset is None
        try:
            status = self.decode_piece(<bytes_t>hold.view.buf, &at, stop, base)
        finally:
            self.any_place = False
        return at, status

    def decode_stretches(self, buffer, stretches, Py_ssize_t number, int64_t phy_offset) -> tuple:
        """Add the records of stretches of the log that lie one behind the other in a buffer.

        Args:
            buffer: the bytes of all of them.
            stretches: physical offsets (begin, end) of each, as int64.
            number: the stretch with which to begin.
            phy_offset: where in it.

        Returns:
            (number of the stretch where it stopped, physical offset, why), as `decode`.
        """
        cdef BufferHold hold = BufferHold(buffer), places = BufferHold(stretches)
        cdef const int64_t* place = <const int64_t*>places.view.buf
        cdef Py_ssize_t index, count = places.view.len // 16
        cdef int64_t begin = 0, at = phy_offset, size
        cdef int status = OK
        for index in range(count):
            size = place[1] - place[0]
            if not 0 <= size <= hold.view.len - begin or (
                index == number and not place[0] <= phy_offset <= place[1]
            ):
                raise IndexError(f"stretch {index} does not fit")
            if index >= number:
                at = begin + (phy_offset - place[0] if index == number else 0)
                status = self.decode_piece(
                    <bytes_t>hold.view.buf, &at, begin + size, place[0] - begin
                )
                at += place[0] - begin
                if status != OK:
                    return index, at, status
            begin += size
            place += 2
        return count, at, status

    cdef int decode_piece(
        self, bytes_t base, int64_t* at, int64_t stop, int64_t base_offset
    ) except? -1000:
        cdef int status = OK, count
        self.begin()
        while True:
            self.asks = False
            with nogil:
                while status == OK and at[0] < stop and not self.asks:
                    status = self.gather(base, at, stop, base_offset, &count)
                    if not self.add(count):
                        self.out_of_memory = True
                        break
            if not self.asks or self.out_of_memory:
                break
            self.chosen.learn(self.asked.at, self.asked.size)
        if self.out_of_memory:
            raise MemoryError
        return status

    cdef int begin(self) except -1:
        """Make the memory of a fresh batch ready, as much as the batch before had."""
        cdef int index
        cdef bint good = True
        cdef Store* store
        if self.blocks != NULL:
            return 0
        self.blocks = rmq_blocks_new(self.pool)
        if self.blocks == NULL:
            raise MemoryError
        for index in range(STORE_COUNT):
            store = &self.stores[index]
            store.values = &self.blocks.blocks[3 * index]
            store.offsets = store.values + 1
            store.validity = store.values + 2
            if self.wanted[PROPERTIES if index >= COLUMN_COUNT else index]:
                good = good and self.begin_store(store, index)
        if not good:
            rmq_blocks_drop(self.blocks)
            self.blocks = NULL
            raise MemoryError
        return 0

    cdef bint begin_store(self, Store* store, int number) noexcept:
        cdef int width = KINDS[number].width if number < COLUMN_COUNT else 0
        cdef int64_t bits = self.row_max // 8 + 1
        cdef int64_t size = store.size + store.size // 8 + 64
        if width != 0:
            size = self.row_max * width if width > 0 else bits
        if not rmq_block_grow(store.values, size):
            return False
        if width == -1:
            memset(store.values.at, 0, bits)
        if width == 0 or width == -2:
            if not rmq_block_grow(store.offsets, (self.row_max + 1) * sizeof(int32_t)):
                return False
            (<int32_t*>store.offsets.at)[0] = 0
        if number < COLUMN_COUNT and KINDS[number].nullable:
            if not rmq_block_grow(store.validity, bits):
                return False
            memset(store.validity.at, 0xFF, bits)
        store.size = store.null_count = 0
        return True

    cdef int gather(
        self, bytes_t base, int64_t* at, int64_t stop, int64_t base_offset, int* count
    ) noexcept nogil:
        """Find the next records that are to be rows, up to `ROWS_AT_ONCE`; why it stopped."""
        cdef int status = OK, found = 0
        cdef int checks = CHECK_BODY if self.verify_crc else 0
        cdef int64_t here = at[0]
        cdef Row* row
        cdef Verdict verdict = IS_ROW
        cdef bint all_chosen = self.chosen is None
        while here < stop and found < ROWS_AT_ONCE:
            row = &self.rows[found]
            row.at = base + here
            if self.any_place:
                status = read_head(row.at, stop - here, &row.head)
                if status == OK and checks:
                    status = check_body_crc(row.at, &row.head)
            else:
                status = next_record(
                    row.at, stop - here, base_offset + here, NO_FILE, checks, &row.head
                )
            if status == OK and not all_chosen:
                verdict = self.chosen.judge(row.at, &row.head)
                if verdict == UNKNOWN_TOPIC:
                    self.asks = True
                    self.asked.at = row.at + row.head.topic_at
                    self.asked.size = row.head.topic_size
                    break
            if status == OK and verdict == IS_ROW:
                if self.is_full(self.row_count + found, &row.head):
                    status = CAPACITY
                    if not all_chosen:
                        # the row is decoded again in the next batch
                        self.chosen.of_topics_count -= 1
                else:
                    self.byte_count += row.head.total_size
                    if row.head.sys_flag & COMPRESSED:
                        self.compressed_bytes += row.head.body_size
                    found += 1
            if status != OK:
                break
            here += row.head.total_size
        at[0] = here
        count[0] = found
        return status

    cdef bint is_full(self, int64_t rows, const RecordHead* head) noexcept nogil:
        return rows >= self.row_max or (rows > 0 and (
            self.byte_count + head.total_size > self.byte_max
            or (self.plain_bodies and self.compressed_bytes > COMPRESSED_BYTES_MAX)
        ))

    cdef bint add(self, int count) noexcept nogil:
        """Add the rows gathered last, column by column; False without memory."""
        cdef int64_t first = self.row_count
        cdef int index
        cdef bint good = True
        if self.plain_bodies:
            for index in range(count):
                self.row_offsets[first + index] = self.rows[index].head.phy_offset
                self.row_flags[first + index] = self.rows[index].head.sys_flag
        if self.needs_properties:
            for index in range(count):
                good = good and self.read_row_properties(first, index)
        for index in range(self.column_count):
            good = good and self.add_column(self.order[index], first, count)
        self.row_count += count
        return good

    cdef bint add_column(self, int column, int64_t first, int count) noexcept nogil:
        cdef const Kind* kind = &KINDS[column]
        cdef Store* store = &self.stores[column]
        cdef Slice* slices = self.slices[column]
        cdef int index
        if kind.width > 0:
            if column == STORE_TIMESTAMP or column == BORN_TIMESTAMP:
                put_times(store, first, self.rows, count, kind.field)
            elif kind.width == 4:
                put_numbers(<int32_t*>store.values.at + first, self.rows, count, kind.field)
            elif column != TAGS_CODE:
                put_numbers(<int64_t*>store.values.at + first, self.rows, count, kind.field)
            return True
        if column == KEYS or column == TAGS or column == UNIQUE_KEY:
            return put_slices(store, first, slices, count, True)
        if kind.size_field != 0:
            find_slices(slices, self.rows, count, kind.field, kind.size_field)
        if column == TOPIC:
            return put_slices(store, first, slices, count, True)
        if column == BODY:
            return put_slices(store, first, slices, count, False)
        for index in range(count):
            if not self.add_made_value(column, first + index, &self.rows[index]):
                return False
        return True

    cdef bint add_made_value(self, int column, int64_t number, const Row* row) noexcept nogil:
        """What is made for one row; the map of properties has been made."""
        cdef Store* store = &self.stores[column]
        if column == BORN_HOST:
            return put_host(
                store, number, &self.born_host, row.at + BORN_HOST_AT, row.head.born_host_size
            )
        if column == STORE_HOST:
            return put_host(
                store, number, &self.store_host, row.at + row.head.store_host_at,
                row.head.store_host_size,
            )
        if column == MESSAGE_ID:
            return put_message_id(store, number, row.at, &row.head)
        if column == RECORD:
            return put_bytes(store, number, row.at, row.head.total_size)
        if column == CRC_OK and check_body_crc(row.at, &row.head) == OK:
            (<uint8_t*>store.values.at)[number >> 3] |= <uint8_t>(1 << (number & 7))
        return True

    cdef bint read_row_properties(self, int64_t first, int index) noexcept nogil:
        """Find what the columns want of the properties of one row."""
        cdef const Row* row = &self.rows[index]
        cdef bytes_t at = row.at + row.head.properties_at
        cdef Properties found
        read_properties(&self.layout, at, row.head.properties_size, &found)
        # field by field: a copy of the whole would wait until both have left the store buffer
        self.slices[TAGS][index].at = found.tags.at
        self.slices[TAGS][index].size = found.tags.size
        self.slices[KEYS][index].at = found.keys.at
        self.slices[KEYS][index].size = found.keys.size
        self.slices[UNIQUE_KEY][index].at = found.unique_key.at
        self.slices[UNIQUE_KEY][index].size = found.unique_key.size
        if self.wanted[TAGS_CODE]:
            (<int64_t*>self.stores[TAGS_CODE].values.at)[first + index] = tags_code_of(
                &self.levels, row.at, &row.head, &found.tags, &found.delay
            )
        return not self.wanted[PROPERTIES] or put_map(
            &self.stores[PROPERTIES], first + index, &self.stores[NAMES], &self.stores[VALUES],
            self.pairs, at, row.head.properties_size,
        )

    def take(self) -> ColumnBatch:
        """The rows gathered so far, perhaps none; the next `decode` begins a new batch.

        Raises:
            CorruptRecordError: a body that is to be decompressed does not.
        """
        cdef ColumnBatch batch
        cdef rmq_column* columns
        cdef rmq_block* block
        cdef int64_t columns_size = (self.column_count + 4) * sizeof(rmq_column)
        cdef int index
        self.begin()
        if self.plain_bodies and self.compressed_bytes:
            decompress_bodies(
                &self.stores[BODY], self.row_count, self.row_flags, self.row_offsets
            )
        block = &self.blocks.blocks[3 * STORE_COUNT]
        if not rmq_block_grow(block, columns_size):
            raise MemoryError
        columns = <rmq_column*>block.at
        memset(columns, 0, columns_size)
        for index in range(self.column_count):
            self.describe(&columns[index], self.order[index], self.row_count)
            if self.order[index] == PROPERTIES:
                self.describe_map(&columns[index], &columns[self.column_count])
        batch = new_batch(columns, self.column_count, self.row_count, self.blocks)
        self.blocks = NULL
        self.row_count = self.byte_count = self.compressed_bytes = 0
        return batch

    cdef void describe(self, rmq_column* column, int number, int64_t rows) noexcept:
        cdef Store* store = &self.stores[number]
        cdef int width = KINDS[number].width if number < COLUMN_COUNT else 0
        column.nullable = True
        if number < COLUMN_COUNT:
            column.name = KINDS[number].name
            column.format = KINDS[number].format
        column.length = rows
        column.null_count = store.null_count
        column.buffers[0] = store.validity.at if store.null_count else NULL
        column.buffers[1] = store.offsets.at if width in (0, -2) else store.values.at
        column.buffers[2] = store.values.at if width == 0 else NULL
        column.buffer_count = 3 if width == 0 else 2

    cdef void describe_map(self, rmq_column* column, rmq_column* parts) noexcept:
        column.child_count = 1
        column.children = parts
        parts.name = b"entries"
        parts.format = b"+s"
        parts.buffer_count = 1
        parts.length = self.stores[PROPERTIES].size
        parts.child_count = 2
        parts.children = parts + 1
        self.describe(&parts[1], NAMES, self.stores[PROPERTIES].size)
        self.describe(&parts[2], VALUES, self.stores[PROPERTIES].size)
        parts[1].name = b"key"
        parts[1].nullable = False
        parts[2].name = b"value"
        parts[1].format = parts[2].format = b"u"
