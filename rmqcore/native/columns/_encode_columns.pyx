"""Columns as records: tables of other libraries become records for the commit log.

`ColumnEncoder.next_batch` takes the next batch of a table and looks at every row of it, without the
GIL: what is no message is refused with its row and column before anything is written. `next_piece`
then gives the records, with the CRC of their bodies, in pieces that a log tail appends whole. What
only the owner of the log knows is left to it: a record's place, its number in its queue (in its
stead stands the number of the queue in `queues`), the store's time and host.

`batch_of_records` makes of such a piece what a producer sends.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset
cimport cython

from rmqcore.native.columns._row_in cimport *
from rmqcore.native.columns._source cimport VALUE, Source, text_at
from rmqcore.native.columns._table_rows cimport TableRows
from rmqcore.native.format._bytes cimport RMQ_ASSERT, store_i16, store_i32, store_i64
from rmqcore.native.format._layout cimport *
from rmqcore.native.format._properties cimport Layout, Properties, read_properties
from rmqcore.native.format._record cimport (
    RecordFields, RecordHead, Slice, bytes_t, read_head, record_size, rmq_crc32_init, write_fields,
)

from rmqcore.errors import CorruptRecordError, MessageIllegalError, RowIllegalError
from rmqcore.native.columns._table_rows import RULES as _RULES, WRITTEN as _WRITTEN
from rmqcore.native.format._host import encode_host
from rmqcore.native.format._message import status_text

rmq_crc32_init()

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

    Raises:
        ArgumentError: a column that no message has, one twice, or none with the body or the topic.
    """

    cdef Measured* measured
    cdef int64_t room, at, count, record_max
    cdef readonly int64_t piece_row_count
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
                problem = self.measure(row)
                if problem != GOOD:
                    break
                row += 1
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

    cdef int measure(self, int64_t row) noexcept nogil:
        cdef RowIn found
        cdef Measured* measured = &self.measured[row]
        cdef int64_t size
        cdef int problem = self.gather(row, &found, True)
        if problem != GOOD:
            return problem
        measured.slot = rmq_slot_of(&self.slots, found.topic, found.queue_id)
        if measured.slot < 0:
            return OUT_OF_MEMORY
        size = self.size_of(&found)
        if size > self.record_max:
            return self.wrong(IN_BODY, RECORD_TOO_LONG)
        measured.size = <int32_t>size
        return GOOD

    cdef int64_t size_of(self, const RowIn* row) noexcept nogil:
        cdef int32_t topic_size = self.slots.topics[row.topic].size
        return (
            <int64_t>FIXED_SIZE + row.born_host_size + self.store_host_size
            + row.body.size + (1 if topic_size <= TOPIC_SIZE_V1_MAX else 2) + topic_size
            + 2 + row.properties_size
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
        cdef bint good = True
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
            while good and row < stop:
                good = self.write_row(row, to)
                to += self.measured[row].size
                row += 1
        if not good:
            raise self.refusal(CHANGED, row - 1)
        self.piece_row_count = stop - self.at
        self.at = stop
        return piece

    cdef bint write_row(self, int64_t row, uint8_t* record) noexcept nogil:
        """Write one record where it has as many bytes as it was measured to have."""
        cdef const Measured* measured = &self.measured[row]
        cdef const rmq_slot* slot = &self.slots.slots[measured.slot]
        cdef RowIn found
        cdef RecordFields fields
        cdef uint8_t* at
        if self.gather(row, &found, False) != GOOD:
            return False
        if found.topic != slot.topic or self.size_of(&found) != measured.size:
            return False
        fields.topic, fields.topic_size = (
            self.slots.topics[slot.topic].name, self.slots.topics[slot.topic].size
        )
        fields.body, fields.body_size = found.body.at, found.body.size
        fields.born_host, fields.born_host_size = self.host, found.born_host_size
        fields.store_host, fields.store_host_size = self.store_host, self.store_host_size
        fields.properties_size = found.properties_size
        fields.queue_id = slot.queue_id
        fields.flag, fields.sys_flag = found.flag, found.sys_flag
        fields.reconsume_times = found.reconsume_times
        fields.queue_offset = measured.slot
        fields.phy_offset = fields.store_timestamp = fields.prepared_transaction_offset = 0
        fields.born_timestamp = found.born_timestamp
        RMQ_ASSERT(record_size(&fields) == measured.size)
        at = write_fields(record, &fields)
        store_i32(record, measured.size)
        return self.write_properties(row, &found, at, record + measured.size)

    cdef bint write_properties(
        self, int64_t row, const RowIn* found, uint8_t* at, uint8_t* end
    ) noexcept nogil:
        """Write what `properties_of` has measured, up to `end`; False where that has changed."""
        cdef const Source* source = &self.sources[IN_PROPERTIES]
        cdef Slice name, value
        cdef int64_t item
        if self.append_crc:
            end -= CRC_PROPERTY_SIZE
            memcpy(end, b"__CRC32#\x010000000000\x02", CRC_PROPERTY_SIZE)
        if found.keys.at != NULL:
            at = put_pair(at, b"KEYS", 4, &found.keys)
        elif found.first_key < found.stop_key:
            at = self.put_keys(found, at, end)
            if at == NULL:
                return False
        if found.tags.at != NULL:
            at = put_pair(at, b"TAGS", 4, &found.tags)
        if found.unique_key.at != NULL:
            at = put_pair(at, b"UNIQ_KEY", 8, &found.unique_key)
        elif found.own_unique_key:
            at = self.put_unique_key(self.row_count + row, at)
        for item in range(found.first_pair, found.stop_pair):
            if text_at(source.first, item, &name) != VALUE or text_at(
                source.second, item, &value
            ) != VALUE or <int64_t>name.size + value.size + 2 > end - at:
                # less room than was measured, or one that is not written
                if self.is_given(found, &name):
                    continue
                return False
            if not self.is_given(found, &name):
                at = put_pair(at, <const char*>name.at, name.size, &value)
        return at == end

    cdef uint8_t* put_keys(self, const RowIn* found, uint8_t* at, uint8_t* end) noexcept nogil:
        cdef const Source* items = self.sources[IN_KEYS].first
        cdef Slice key
        cdef int64_t item
        at = put_bytes(at, b"KEYS\x01", 5)
        for item in range(found.first_key, found.stop_key):
            if text_at(items, item, &key) != VALUE or <int64_t>key.size + 1 > end - at:
                return NULL
            at = put_bytes(at, key.at, key.size)
            at[0] = 32 if item < found.stop_key - 1 else 2
            at += 1
        return at

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
