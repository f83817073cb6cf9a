"""The result of a get: which records were found, held without a copy and decoded on demand.

Walks consume-queue units beside the log bytes they point at. Never reads a file by itself.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp
cimport cython

from rmqcore.native.format._bytes cimport expect_read, load_i32, load_i64
from rmqcore.native.base._hold cimport BufferHold, HeldBytes
from rmqcore.native.format._layout cimport *
from rmqcore.native.read._log_map cimport LogMap
from rmqcore.native.format._message_ext cimport MessageExt, make_message
from rmqcore.native.format._record cimport (
    RecordHead, bytes_t, check_body_crc, check_crc_property, read_head, rmq_crc32_init,
)

from rmqcore.native.columns._arrow import ColumnBatches
from rmqcore.native.columns._columns import COLUMNS as _COLUMNS
from rmqcore.native.columns._columns import ColumnDecoder
from rmqcore.native.format._message_ext import status_text
from rmqcore.native.read.result_html import table_of
from rmqcore.errors import CorruptRecordError

rmq_crc32_init()

cdef extern from "<string.h>" nogil:
    void* memmem(const void* hay, size_t hay_size, const void* needle, size_t needle_size)

# The columns of a table of messages: what a message object has.
cdef tuple MESSAGE_COLUMNS = tuple([
    name for name in _COLUMNS if name not in ("tags_code", "crc_ok", "record")
])


cdef enum Collected:
    ALL = 0          # every unit was looked at
    FULL = 1         # enough messages or bytes
    ELSEWHERE = 2    # the next unit points outside this buffer
    MISMATCH = 3     # the next unit contradicts the record it points at


cdef bint is_record(bytes_t at, int32_t size, int64_t phy_offset) noexcept nogil:
    cdef int32_t magic = load_i32(at + MAGIC_AT)
    return (
        load_i32(at) == size and load_i64(at + PHY_OFFSET_AT) == phy_offset
        and (magic == MAGIC_V1 or magic == MAGIC_V2)
    )


@cython.final
cdef class GetMessageResult:
    """Messages of one queue, and where to go on.

    Attributes:
        status: `GetMessageStatus`.
        next_queue_offset: where the next get begins.
        min_queue_offset, max_queue_offset: bounds of the queue when it was read.
        buffer_total_size: bytes of all records found.

    The records are held without a copy; `messages` decodes them on first use and raises
    CorruptRecordError where a body contradicts its CRC.

    Source: RocketMQ store/GetMessageResult.java.
    """

    def __init__(self, status, int64_t next_queue_offset, int64_t min_queue_offset,
                 int64_t max_queue_offset):
        self.status = status
        self.next_queue_offset = next_queue_offset
        self.min_queue_offset = min_queue_offset
        self.max_queue_offset = max_queue_offset
        self.holds = []

    def __dealloc__(self):
        free(self.found)

    cdef int make_room(self, Py_ssize_t count) except -1:
        """Allocate room for ``count`` records."""
        cdef Found* found
        if count > self.room:
            found = <Found*>realloc(self.found, count * sizeof(Found))
            if found == NULL:
                raise MemoryError
            self.found = found
            self.room = count
        return 0

    def collect(
        self, buffer, int64_t end, path, int64_t base_offset, bytes units not None,
        Py_ssize_t first, Py_ssize_t max_messages, int64_t max_bytes, bytes tags_codes=None,
    ):
        """Take records out of one buffer of the commit log, in the order of the units.

        Args:
            buffer: bytes of the log.
            end: how many of them, from the first on, may be read.
            path, base_offset: its file, and the physical offset of its first byte.
            units: consume-queue units, 20 bytes each.
            first: number of the unit to begin with.
            max_messages, max_bytes: stop before either is exceeded; the first message always fits.
            tags_codes: packed int64 values to match, or None for every message.

        Returns:
            (number of the first unit not looked at, why it stopped: 0 all looked at, 1 enough,
            2 that unit points outside the buffer, 3 it contradicts the record it points at).

        Raises:
            IndexError: ``first`` is below 0.
        """
        cdef BufferHold hold = BufferHold(buffer, path, base_offset)
        cdef Py_ssize_t unit_count = PyBytes_GET_SIZE(units) // UNIT_SIZE
        cdef bytes_t base = <bytes_t>hold.view.buf
        cdef int64_t size = min(end, hold.view.len)
        cdef const int64_t* codes = NULL
        cdef Py_ssize_t index = first, before = self.count, code, code_count = 0
        cdef int64_t at, tags_code
        cdef int32_t record_size
        cdef bytes_t unit
        cdef Found* found
        cdef int stop = ALL
        if first < 0:
            raise IndexError(f"unit {first}: expected 0 or more")
        if tags_codes is not None:
            codes = <const int64_t*>PyBytes_AS_STRING(tags_codes)
            code_count = PyBytes_GET_SIZE(tags_codes) // 8
        self.make_room(min(max_messages, self.count + unit_count))
        found = self.found
        while index < unit_count:
            if self.count >= max_messages:
                stop = FULL
                break
            unit = <bytes_t>PyBytes_AS_STRING(units) + index * UNIT_SIZE
            at = load_i64(unit) - base_offset
            record_size = load_i32(unit + UNIT_SIZE_AT)
            tags_code = load_i64(unit + UNIT_TAGS_CODE_AT)
            if record_size == FILLER_SIZE and at + base_offset == 0:
                index += 1
                continue
            if codes != NULL:
                code = 0
                while code < code_count and codes[code] != tags_code:
                    code += 1
                if code == code_count:
                    index += 1
                    continue
            if self.count and self.buffer_total_size + record_size > max_bytes:
                stop = FULL
                break
            if at < 0 or record_size < RECORD_SIZE_MIN or at > size - record_size:
                stop = ELSEWHERE
                break
            if not is_record(base + at, record_size, at + base_offset):
                stop = MISMATCH
                break
            found[self.count].at = base + at
            found[self.count].size = record_size
            found[self.count].hold = <int32_t>len(self.holds)
            self.count += 1
            self.buffer_total_size += record_size
            index += 1
        if self.count > before:
            self.holds.append(hold)
        return index, stop

    def collect_mapped(
        self, LogMap log not None, bytes units not None, Py_ssize_t max_messages,
        int64_t max_bytes,
    ):
        """Take every unit's record out of the mapped log: the plain case, in one call.

        Args:
            log: the mapped files.
            units: consume-queue units, 20 bytes each.
            max_messages, max_bytes: stop before either is exceeded; the first message always fits.

        Returns:
            units taken; they end where ``max_bytes`` would be exceeded. -1 when one of them needs
            a closer look: nothing has been taken then.
        """
        return self.take_mapped(
            log, <bytes_t>PyBytes_AS_STRING(units),
            min(PyBytes_GET_SIZE(units) // UNIT_SIZE, max_messages), max_bytes,
        )

    cdef Py_ssize_t take_mapped(
        self, LogMap log, bytes_t units, Py_ssize_t unit_count, int64_t max_bytes
    ) except -2:
        """As `collect_mapped`, of units anywhere in memory; the result is empty before."""
        cdef Py_ssize_t index
        cdef bytes_t unit = units
        cdef bytes_t base = NULL
        cdef int64_t offset, readable, total = 0, first = 0, end = 0
        cdef int32_t size
        cdef BufferHold hold
        cdef Found* found
        cdef list holds = self.holds
        self.make_room(unit_count)
        found = self.found
        # first the places of all records, with a prefetch of each; then the records themselves
        for index in range(unit_count):
            offset = load_i64(unit)
            size = load_i32(unit + UNIT_SIZE_AT)
            if base == NULL or offset < first or offset >= end:
                hold = log.find(offset, &base, &readable)
                if hold is None:
                    del holds[:]
                    return -1
                holds.append(hold)
                first = hold.base_offset
                end = offset + readable
                base -= offset - first
            if size < RECORD_SIZE_MIN or size > end - offset:
                del holds[:]
                return -1
            if index and total + size > max_bytes:
                unit_count = index
                break
            total += size
            found[index].at = base + (offset - first)
            expect_read(found[index].at, 1)
            found[index].size = size
            found[index].hold = <int32_t>len(holds) - 1
            unit += UNIT_SIZE
        for index in range(unit_count):
            if not is_record(found[index].at, found[index].size, load_i64(units)):
                del holds[:]
                return -1
            units += UNIT_SIZE
        self.count = unit_count
        self.buffer_total_size = total
        return unit_count

    def expect(self, str topic not None, int32_t queue_id, int64_t least_offset,
               bint demand_crc) -> None:
        """Say whose records `messages` may hand out; any other is an error.

        Args:
            topic, queue_id: of the queue.
            least_offset: number of the first message; each has a greater one than that before it.
            demand_crc: refuse records without a right ``__CRC32#`` property.
        """
        self.topic = topic
        self.queue_id = queue_id
        self.least_offset = least_offset
        self.demand_crc = demand_crc

    @property
    def expected(self):
        """The arguments that `expect` was given; None before."""
        if self.topic is None:
            return None
        return self.topic, self.queue_id, self.least_offset, self.demand_crc

    cdef int belongs(
        self, const Found* found, const RecordHead* head, bytes topic, int64_t least
    ) noexcept:
        """2 for a record of the queue, 1 for one that is dispatched to further queues, else 0."""
        if (
            head.queue_id == self.queue_id and head.queue_offset >= least
            and head.topic_size == PyBytes_GET_SIZE(topic)
            and memcmp(
                found.at + head.topic_at, PyBytes_AS_STRING(topic), head.topic_size
            ) == 0
        ):
            return 2
        return memmem(
            found.at + head.properties_at, head.properties_size, b"INNER_MULTI_DISPATCH", 20
        ) != NULL

    def __len__(self):
        return self.count

    def __iter__(self):
        return iter(self.messages)

    @property
    def messages(self) -> list:
        """The messages, decoded once."""
        cdef Found* found = self.found
        cdef Found* end = self.found + self.count
        cdef RecordHead head
        cdef BufferHold hold
        cdef MessageExt message
        cdef int status, belongs
        cdef int64_t least = self.least_offset
        cdef str reason
        cdef bytes topic
        if self._messages is not None:
            return self._messages
        topic = None if self.topic is None else self.topic.encode()
        messages = []
        while found < end:
            hold = self.holds[found.hold]
            status = read_head(found.at, found.size, &head)
            if status == OK:
                status = check_body_crc(found.at, &head)
            if status == OK and self.demand_crc and check_crc_property(found.at, &head) != OK:
                status = BAD_CRC
            reason = None if status == OK else status_text(status)
            belongs = 0
            if status == OK and topic is not None:
                belongs = self.belongs(found, &head, topic, least)
                if not belongs:
                    reason = f"no message of queue {self.topic}/{self.queue_id} from {least} on"
                elif belongs == 2:
                    least = max(least, head.queue_offset + 1)
            if reason is not None:
                raise CorruptRecordError(
                    hold.path or "commit log",
                    hold.base_offset + (found.at - <bytes_t>hold.view.buf),
                    reason,
                )
            message = make_message(hold, found.at, &head)
            if belongs == 2:
                message._topic = self.topic
            messages.append(message)
            found += 1
        self._messages = messages
        return messages

    def slices(self) -> list:
        """The records' bytes as read-only memoryviews, without a copy and without any check."""
        cdef Py_ssize_t index
        cdef Found* found
        cdef BufferHold hold
        views = []
        for index in range(self.count):
            found = self.found + index
            hold = self.holds[found.hold]
            views.append(memoryview(
                HeldBytes(hold, found.at - <bytes_t>hold.view.buf, found.size)
            ))
        return views

    def sizes(self) -> list:
        """Size in bytes of every record, read from the record itself."""
        cdef Py_ssize_t index
        cdef object size
        cdef list sizes = PyList_New(self.count)
        for index in range(self.count):
            size = load_i32(self.found[index].at)
            Py_INCREF(size)
            PyList_SET_ITEM(sizes, index, size)
        return sizes

    def batches(self, columns=MESSAGE_COLUMNS) -> object:
        """The messages as a stream of record batches, for anything that takes Arrow.

        Args:
            columns: names of a message's attributes; times lose their ``_ms``.

        Raises:
            ValueError: an unknown column.
            CorruptRecordError: when the stream comes to a body that contradicts its CRC.
        """
        names = tuple(columns)
        empty = ColumnDecoder(names, row_max=1).take()
        return ColumnBatches(
            empty, lambda: decoded(self.slices(), ColumnDecoder(names, verify_crc=True))
        )

    def __arrow_c_stream__(self, requested_schema=None) -> object:
        return self.batches().__arrow_c_stream__(requested_schema)

    def to_arrow(self) -> object:
        """The messages as a ``pyarrow.Table``; needs pyarrow."""
        return self.batches().to_arrow()

    def to_pandas(self) -> object:
        """The messages as a ``pandas.DataFrame``; needs pandas and pyarrow."""
        return self.batches().to_pandas()

    def to_polars(self) -> object:
        """The messages as a ``polars.DataFrame``; needs polars."""
        return self.batches().to_polars()

    def _repr_html_(self) -> str:
        return table_of(f"GetMessageResult: {self.status.name}", self.messages)

    def __repr__(self):
        return (
            f"GetMessageResult({self.status.name}, {self.count} messages, "
            f"next_queue_offset={self.next_queue_offset}, "
            f"min={self.min_queue_offset}, max={self.max_queue_offset})"
        )


def decoded(slices, decoder):
    """Batches of records that lie in many places."""
    cdef bytes_t at
    cdef HeldBytes held
    for view in slices:
        held = view.obj
        at = <bytes_t>held.hold.view.buf + held.start
        own = load_i64(at + PHY_OFFSET_AT)
        status = CAPACITY
        while status == CAPACITY:
            _, status = decoder.decode(view, 0, held.size, base_offset=own)
            if status == CAPACITY:
                yield decoder.take()
        if status != OK:
            raise CorruptRecordError(held.hold.path or "commit log", own, status_text(status))
    if decoder.row_count:
        yield decoder.take()
