"""Columns as records: tables of other libraries become records for the commit log.

`ColumnEncoder.next_batch` takes the next batch of a table and looks at every row of it, without the
GIL: what is no message is refused with its row and column before anything is written. `next_piece`
then gives the records, with the CRC of their bodies, in pieces that a log tail appends whole. What
only the owner of the log knows is left to it: a record's place, its number in its queue (in its
stead stands the number of the queue in `queues`), the store's time and host.

`batch_of_records` makes of such a piece what a producer sends.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset
cimport cython

from rmqcore.native.columns._row_in cimport *
from rmqcore.native.columns._source cimport VALUE, Source, text_at
from rmqcore.native.columns._table_rows cimport TableRows
from rmqcore.native.format._bytes cimport (
    RMQ_ASSERT, copy_text, expect_read, load_i32, store_i16, store_i32, store_i64,
)
from rmqcore.native.format._layout cimport *
from rmqcore.native.format._properties cimport Layout, Properties, read_properties
from rmqcore.native.format._record cimport (
    RecordFields, RecordHead, Slice, bytes_t, read_head, record_size, rmq_crc32, rmq_crc32_init,
    write_fields,
)

from rmqcore.errors import CorruptRecordError, MessageIllegalError, RowIllegalError
from rmqcore.native.columns._table_rows import RULES as _RULES, WRITTEN as _WRITTEN
from rmqcore.native.format._host import encode_host
from rmqcore.native.format._message_ext import status_text

rmq_crc32_init()

# A body is asked for so many records before it is copied; with fewer, the copy waits for memory.
cdef enum:
    BODIES_AHEAD = 8

cdef const char* DIGITS = "0123456789ABCDEF"

cdef struct Measured:
    int32_t size
    int32_t slot


@cython.final
cdef class ColumnEncoder(TableRows):
    """Makes records of the rows of one table.

    Args:
        table, topic, queue_count, unique_prefix, copy, light_queues, append_crc: as `TableRows`.
        body_max: bytes of the longest body.
        log_file_size: bytes of a log file, which holds any record whole.
        store_host: of the owner; its port and address may be others, not the kind of address.

    Attributes:
        row_count: rows of the batches before this one.
        queues: (topic, queue id) by number.
        names_light_queues: some row does.
        piece_row_count: rows of the piece that was given last.
        content_sum: of checksums of the rows that were given, whatever their order, modulo 2**64:
            of bodies, topics and properties, without unique keys that are made here.

    Raises:
        ArgumentError: a column that no message has, one twice, or none with the body or the topic.
    """

    cdef Measured* measured
    cdef int64_t room, at, count, record_max
    cdef readonly int64_t piece_row_count
    cdef readonly uint64_t content_sum
    cdef bytes host_bytes
    cdef bytes_t store_host
    cdef int32_t store_host_size

    def __cinit__(self, table, *, int64_t log_file_size, str store_host not None, **others):
        self.record_max = log_file_size - BLANK_SIZE_MIN
        self.host_bytes = encode_host(store_host)
        self.store_host = <bytes_t>PyBytes_AS_STRING(self.host_bytes)
        self.store_host_size = <int32_t>PyBytes_GET_SIZE(self.host_bytes)

    def __dealloc__(self):
        free(self.measured)

    # ---- looking at a batch

    def next_batch(self):
        """Take the next batch of the table, when all pieces of the one before are taken.

        Returns:
            its number of rows; None: there is no further one.

        Raises:
            RowIllegalError: a row is no message; names row and column.
            ArgumentError: a column's type is none of its own.
            RmqCoreError: the table's maker failed.
        """
        cdef int64_t row = 0
        cdef int problem = GOOD
        cdef Measured* grown
        batch = next(self.table, None)
        self.row_count += self.count
        self.batch, self.count, self.at = batch, 0, 0
        if batch is None:
            return None
        self.bind()
        self.count = self.batch.array.length
        if self.count > self.room:
            grown = <Measured*>realloc(self.measured, self.count * sizeof(Measured))
            if grown == NULL:
                raise MemoryError
            self.measured, self.room = grown, self.count
        with nogil:
            while row < self.count:
                problem = self.measure(row, <int32_t>min(STRIP_SIZE, self.count - row))
                if problem != GOOD:
                    problem = self.first_refused(&row)
                    break
                row += STRIP_SIZE
        if problem != GOOD:
            raise self.refusal(problem, row)
        return self.count

    cdef object refusal(self, int problem, int64_t row):
        if problem == OUT_OF_MEMORY:
            return MemoryError()
        rule = _RULES.get(problem)
        if problem == BODY_TOO_LONG:
            rule = f"the body is longer than {self.body_max} bytes, which is max_message_size"
        elif problem == RECORD_TOO_LONG:
            rule = f"the record is longer than {self.record_max} bytes, which a log file holds"
        self.count = 0
        column = "" if problem == CHANGED else _WRITTEN[self.column]
        return RowIllegalError(self.row_count + row, column, rule)

    cdef int measure(self, int64_t first, int32_t count) noexcept nogil:
        cdef Measured* measured = &self.measured[first]
        cdef int64_t size
        cdef int32_t row
        cdef int problem = self.look_at(first, count, True)
        if problem != GOOD:
            return problem
        for row in range(count):
            size = self.size_of(row, self.strip.slot[row])
            if size > self.record_max:
                return self.wrong(IN_BODY, RECORD_TOO_LONG)
            measured[row].size = <int32_t>size
            measured[row].slot = self.strip.slot[row]
        return GOOD

    cdef int first_refused(self, int64_t* row) noexcept nogil:
        """Which of the rows from `row` on is the first to be refused, and why."""
        cdef int problem = GOOD
        while problem == GOOD and row[0] < self.count:
            problem = self.measure(row[0], 1)
            row[0] += problem == GOOD
        # a table that was changed meanwhile may have none
        return CHANGED if problem == GOOD else problem

    cdef int64_t size_of(self, int32_t row, int32_t slot) noexcept nogil:
        cdef int32_t topic_size = self.slots.topics[self.slots.slots[slot].topic].size
        return (
            <int64_t>FIXED_SIZE + self.strip.born_host_size[row] + self.store_host_size
            + self.strip.body[row].size + (1 if topic_size <= TOPIC_SIZE_V1_MAX else 2)
            + topic_size + 2 + self.strip.properties_size[row]
        )

    # ---- writing

    def next_piece(self, int64_t size_max):
        """The next records of the batch, at most `size_max` bytes unless one alone has more.

        Returns:
            whole records, one behind the other; None: all of the batch have been given.

        Raises:
            RowIllegalError: the table was changed since `next_batch`.
        """
        cdef int64_t size = 0, stop = self.at, row = self.at
        cdef uint8_t* to
        while stop < self.count and (
            stop == row or size + self.measured[stop].size <= size_max
        ):
            size += self.measured[stop].size
            stop += 1
        if stop == row:
            self.batch = None
            return None
        piece = PyBytes_FromStringAndSize(NULL, size)
        to = <uint8_t*>PyBytes_AS_STRING(piece)
        with nogil:
            while row < stop:
                size = self.write_rows(row, <int32_t>min(STRIP_SIZE, stop - row), to)
                if size < 0:
                    break
                to += size
                row += STRIP_SIZE
            # one of the rows from here on has changed: which
            while row < stop and self.write_rows(row, 1, to) >= 0:
                to += self.measured[row].size
                row += 1
        if row < stop:
            raise self.refusal(CHANGED, row)
        self.piece_row_count = stop - self.at
        self.at = stop
        return piece

    cdef int64_t write_rows(self, int64_t first, int32_t count, uint8_t* to) noexcept nogil:
        """Write some records where each has as many bytes as it was measured to have.

        Returns:
            the bytes of all; -1: one has changed.
        """
        cdef const Measured* measured = &self.measured[first]
        cdef const Slice* ahead
        cdef uint8_t* record = to
        cdef int32_t row
        if self.look_at(first, count, False) != GOOD:
            return -1
        for row in range(count):
            if row + BODIES_AHEAD < count:
                ahead = &self.strip.body[row + BODIES_AHEAD]
                expect_read(ahead.at, ahead.size)
            if self.size_of(row, measured[row].slot) != measured[row].size:
                return -1
            if not self.write_row(first, row, &measured[row], record):
                return -1
            record += measured[row].size
        return record - to

    cdef bint write_row(
        self, int64_t first, int32_t row, const Measured* measured, uint8_t* record
    ) noexcept nogil:
        cdef const rmq_slot* slot = &self.slots.slots[measured.slot]
        cdef RecordFields fields
        cdef uint8_t* at
        fields.topic, fields.topic_size = (
            self.slots.topics[slot.topic].name, self.slots.topics[slot.topic].size
        )
        fields.body, fields.body_size = self.strip.body[row].at, self.strip.body[row].size
        fields.born_host = self.strip.born_host[row]
        fields.born_host_size = self.strip.born_host_size[row]
        fields.store_host, fields.store_host_size = self.store_host, self.store_host_size
        fields.properties_size = self.strip.properties_size[row]
        fields.queue_id = slot.queue_id
        fields.flag, fields.sys_flag = self.strip.flag[row], self.strip.sys_flag[row]
        fields.reconsume_times = self.strip.reconsume_times[row]
        fields.queue_offset = measured.slot
        fields.phy_offset = fields.store_timestamp = fields.prepared_transaction_offset = 0
        fields.born_timestamp = self.strip.born_timestamp[row]
        RMQ_ASSERT(record_size(&fields) == measured.size)
        at = write_fields(record, &fields)
        store_i32(record, measured.size)
        self.content_sum += <uint32_t>load_i32(record + BODY_CRC_AT)
        return self.write_properties(
            first, row, at, record + measured.size, rmq_crc32(0, fields.topic, fields.topic_size)
        )

    cdef bint write_properties(
        self, int64_t first, int32_t row, uint8_t* at, uint8_t* end, uint32_t checksum
    ) noexcept nogil:
        """Write what `find_properties` has measured, up to `end`; False where that has changed."""
        cdef uint8_t* summed = at
        if self.append_crc:
            end -= CRC_PROPERTY_SIZE
            memcpy(end, b"__CRC32#\x010000000000\x02", CRC_PROPERTY_SIZE)
        if self.strip.keys[row].at != NULL:
            at = put_pair(at, b"KEYS", 4, &self.strip.keys[row])
        elif self.strip.first_key[row] < self.strip.stop_key[row]:
            at = self.put_keys(row, at)
            if at == NULL:
                return False
        if self.strip.tags[row].at != NULL:
            at = put_pair(at, b"TAGS", 4, &self.strip.tags[row])
        if self.strip.unique_key[row].at != NULL:
            at = put_pair(at, b"UNIQ_KEY", 8, &self.strip.unique_key[row])
        checksum = rmq_crc32(checksum, summed, at - summed)
        if self.strip.unique_key[row].at == NULL and self.strip.own_unique_key[row]:
            at = self.put_unique_key(self.row_count + first + row, at)
        summed = at
        if self.strip.first_pair[row] < self.strip.stop_pair[row]:
            at = self.put_pairs(row, at, end)
        if at != end:
            return False
        self.content_sum += <uint64_t>rmq_crc32(checksum, summed, at - summed) << 32
        return True

    cdef uint8_t* put_pairs(self, int32_t row, uint8_t* at, uint8_t* end) noexcept nogil:
        """Write the map of a row; NULL where that has changed."""
        cdef const Source* source = &self.sources[IN_PROPERTIES]
        cdef Slice name, value
        cdef int64_t item
        for item in range(self.strip.first_pair[row], self.strip.stop_pair[row]):
            if text_at(source.first, item, &name) != VALUE or text_at(
                source.second, item, &value
            ) != VALUE:
                return NULL
            if self.is_given(row, &name):
                continue
            if <int64_t>name.size + value.size + 2 > end - at:
                # less room than was measured
                return NULL
            at = put_pair(at, <const char*>name.at, name.size, &value)
        return at

    cdef uint8_t* put_keys(self, int32_t row, uint8_t* at) noexcept nogil:
        """Write a list of keys; NULL where that has changed."""
        cdef const Source* items = self.sources[IN_KEYS].first
        cdef int64_t item, stop = self.strip.stop_key[row]
        cdef uint8_t* end = at + self.strip.keys_size[row]
        cdef Slice key
        at = put_bytes(at, b"KEYS\x01", 5)
        for item in range(self.strip.first_key[row], stop):
            if text_at(items, item, &key) != VALUE or <int64_t>key.size + 1 > end - at:
                return NULL
            copy_text(at, key.at, key.size)
            at += key.size
            at[0] = 32 if item < stop - 1 else 2
            at += 1
        return at if at == end else NULL

    cdef uint8_t* put_unique_key(self, int64_t number, uint8_t* at) noexcept nogil:
        cdef int digit
        at = put_bytes(at, b"UNIQ_KEY\x01", 9)
        at = put_bytes(at, self.unique_prefix.at, UNIQUE_PREFIX_SIZE)
        for digit in range(UNIQUE_PREFIX_SIZE):
            at[digit] = DIGITS[number >> 4 * (UNIQUE_PREFIX_SIZE - 1 - digit) & 15]
        at[UNIQUE_PREFIX_SIZE] = 2
        return at + UNIQUE_PREFIX_SIZE + 1


def batch_of_records(bytes records not None, int64_t number) -> tuple:
    """The wire form of a batch with some of the records that `ColumnEncoder` has made.

    Args:
        records: whole records, one behind the other.
        number: of the queue; records of other queues are left out.

    Returns:
        (body of the batch, unique keys of its messages, in order).

    Raises:
        MessageIllegalError: a body is empty, or compressed: a batch says that for all together.
        CorruptRecordError: the bytes are no records.

    Layout: docs/format/batch-body.md.
    """
    cdef bytes_t at = <bytes_t>PyBytes_AS_STRING(records)
    cdef int64_t left = PyBytes_GET_SIZE(records)
    # an item has the parts of its record, and fewer fields around them
    cdef bytes items = PyBytes_FromStringAndSize(NULL, left)
    cdef uint8_t* start = <uint8_t*>PyBytes_AS_STRING(items)
    cdef uint8_t* item = start
    cdef RecordHead head
    cdef Layout layout
    cdef Properties properties
    cdef int status
    names = []
    memset(&layout, 0, sizeof(layout))
    while left > 0:
        status = read_head(at, left, &head)
        if status != OK:
            where = PyBytes_GET_SIZE(records) - left
            raise CorruptRecordError("records", where, status_text(status))
        if head.queue_offset == number:
            if head.body_size == 0 or head.sys_flag & (COMPRESSED | MULTI_TAGS):
                raise MessageIllegalError("a batch has no empty and no compressed bodies")
            store_i32(item, BATCH_ITEM_SIZE_MIN + head.body_size + head.properties_size)
            store_i64(item + 4, 0)
            store_i32(item + 12, head.flag)
            store_i32(item + 16, head.body_size)
            memcpy(item + 20, at + head.body_at, head.body_size)
            item += 20 + head.body_size
            store_i16(item, <int16_t>head.properties_size)
            memcpy(item + 2, at + head.properties_at, head.properties_size)
            item += 2 + head.properties_size
            read_properties(&layout, at + head.properties_at, head.properties_size, &properties)
            names.append(properties.unique_key.at[:properties.unique_key.size].decode())
        at += head.total_size
        left -= head.total_size
    return items[:item - start], names
