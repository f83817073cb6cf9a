"""The fast path of reading: gets and key queries over mapped files, each in one native call.

The public face, `store/message_reads.py`, tries it first. It serves the plain case only: nothing
that has been put waits to be dispatched, every file concerned is mapped, a queue's units are the
ordinary ones and lie in one file. For everything else it answers None, and the caller takes the
general path, `store/general_reads.py`.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_Check
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t
cimport cython

from rmqcore.native.base._published cimport PublishedOffset
from rmqcore.native.format._bytes cimport load_i32, load_i64
from rmqcore.native.read._get_result cimport GetMessageResult
from rmqcore.native.read._key_query cimport QueryMessageResult, find_by_key
from rmqcore.native.format._layout cimport FILLER_SIZE, UNIT_SIZE, UNIT_SIZE_AT
from rmqcore.native.read._log_map cimport LogMap
from rmqcore.native.format._record cimport bytes_t

from rmqcore.status import GetMessageStatus

cdef extern from "<unistd.h>" nogil:
    ssize_t pread(int fd, void* into, size_t size, int64_t at)

cdef enum:
    UNITS_MAX = 256

cdef int64_t OFFSET_MAX = (<int64_t>1 << 58) - 1

cdef object FOUND = GetMessageStatus.FOUND


cdef class UnitQueue:
    """The bounds of a consume queue, where a get finds them without Python.

    Attributes:
        min_offset, max_offset: queue offsets of the first unit and behind the last one.
        plain_files: the files of units by byte offset; None where units are not the ordinary ones.

    `rmqcore.files.consume_queue.ConsumeQueue` is one.
    """

    cdef public int64_t min_offset
    cdef public int64_t max_offset
    cdef public object plain_files
    cdef object file
    cdef int64_t start
    cdef int64_t stop

    cdef bint read(self, int64_t offset, Py_ssize_t count, uint8_t* into) except -1:
        """Read units that lie in one file; False when they do not, or it is gone."""
        # copied: another thread may point `self` at another file meanwhile
        cdef object file = self.file
        cdef int64_t at = offset * UNIT_SIZE, start = self.start, stop = self.stop
        cdef int64_t size = count * UNIT_SIZE
        cdef ssize_t done
        cdef int fd
        if file is None or at < start or at >= stop or not file.available:
            file = self.plain_files.find(at)
            if file is None:
                return False
            start = file.file_from_offset
            stop = start + <int64_t>file.size
            self.start, self.stop = start, stop
            self.file = file
        if at > stop - size:
            return False
        # this reference keeps the descriptor open, whatever closes the file meanwhile
        handle = file.handle
        fd = handle.fd
        with nogil:
            done = pread(fd, into, size, at - start)
        return done == size


cdef int64_t whole_number(object value) except? -1:
    """An int; -1 for what is no int, or too large to be a queue offset or a count of bytes."""
    cdef int overflow = 0
    if not PyLong_Check(value):
        return -1
    cdef int64_t number = PyLong_AsLongLongAndOverflow(value, &overflow)
    return -1 if overflow else number


cdef inline bint is_filler(bytes_t unit) noexcept nogil:
    return load_i64(unit) == 0 and load_i32(unit + UNIT_SIZE_AT) == FILLER_SIZE


def good_units(bytes units not None, Py_ssize_t unit_size, int64_t floor) -> tuple:
    """How many units are good: their records lie in log order, and none overlaps the next.

    Args:
        units: consume-queue units.
        unit_size: bytes of one, 20 or more; the first 12 say where its record lies.
        floor: physical offset behind the record before the first.

    Returns:
        (how many are good, True when any from there on names a size, physical offset behind the
        last good one's record).
    """
    cdef bytes_t unit = <bytes_t>PyBytes_AS_STRING(units)
    cdef Py_ssize_t count = PyBytes_GET_SIZE(units) // max(UNIT_SIZE, unit_size), good = 0
    cdef bytes_t end = unit + count * unit_size
    cdef int64_t at
    cdef int32_t size
    while good < count:
        at = load_i64(unit)
        size = load_i32(unit + UNIT_SIZE_AT)
        if not is_filler(unit):
            if size <= 0 or at < floor or at < 0 or at > INT64_MAX - size:
                break
            floor = at + size
        good += 1
        unit += unit_size
    while unit < end:
        if load_i32(unit + UNIT_SIZE_AT) != 0:
            return good, True, floor
        unit += unit_size
    return good, False, floor


def message_units(bytes units not None, Py_ssize_t unit_size) -> tuple:
    """Numbers of the first and the last unit that is no filler; both -1 when all are fillers.

    Args:
        units: consume-queue units.
        unit_size: bytes of one, 20 or more.
    """
    cdef bytes_t base = <bytes_t>PyBytes_AS_STRING(units)
    cdef Py_ssize_t first = 0, last
    unit_size = max(UNIT_SIZE, unit_size)
    last = PyBytes_GET_SIZE(units) // unit_size - 1
    while last >= 0 and is_filler(base + last * unit_size):
        last -= 1
    if last < 0:
        return -1, -1
    while is_filler(base + first * unit_size):
        first += 1
    return first, last


@cython.final
cdef class FastReads:
    """Reads over the mapped files of a store that is open for writing.

    Args:
        queues: `UnitQueue` by (topic, queue id); the caller's own dict, looked into at each get.
        index: its ``files`` are the index files, oldest first, each with a `MappedIndex` as
            ``mapped``; another list whenever they change. None when the store has no index.
        log, log_files: the mapped log, and its `MappedFileQueue`.
        end: where the log ends.
        index_files_max: with more of them keys are looked for in the general path, which does not
            keep every index file mapped.

    Attributes:
        dispatched: its ``offset`` says how far the log has been dispatched; None while the store is
            not open.
        found_count, transferred_count: gets that found messages, and how many they handed out.

    Threads: any, under the GIL.
    """

    cdef dict queues
    cdef object index
    cdef list index_files
    cdef Py_ssize_t index_files_max
    cdef list mapped
    cdef LogMap log
    cdef object log_files
    cdef list log_list
    cdef int64_t min_offset
    cdef PublishedOffset end
    cdef public object dispatched
    cdef readonly int64_t found_count
    cdef readonly int64_t transferred_count

    def __init__(self, dict queues not None, index, LogMap log not None, log_files,
                 PublishedOffset end not None, *, Py_ssize_t index_files_max=1024):
        self.queues = queues
        self.index = index
        self.log = log
        self.log_files = log_files
        self.end = end
        self.index_files_max = index_files_max

    cdef bint level(self) except -1:
        """True when the store is open and all that has been put is dispatched."""
        if self.dispatched is None:
            return False
        return <int64_t>self.dispatched.offset >= self.end.observe()

    cdef int64_t first_offset(self) except -1:
        """Physical offset of the first byte of the log; it moves when files come or go."""
        cdef list files = self.log_files.files
        if files is not self.log_list:
            self.min_offset = files[0].file_from_offset if files else 0
            self.log_list = files
        return self.min_offset

    def get(self, topic, queue_id, queue_offset, max_messages, max_bytes):
        """Messages of one queue from an offset on; None when the general path has to be taken."""
        cdef uint8_t units[UNITS_MAX * 20]
        cdef UnitQueue queue
        cdef GetMessageResult result
        cdef int64_t offset = whole_number(queue_offset)
        cdef int64_t count = whole_number(max_messages)
        cdef int64_t bytes_max = whole_number(max_bytes)
        if type(topic) is not str or type(queue_id) is not int or bytes_max < 0:
            return None
        if not self.level():
            return None
        found = self.queues.get((topic, queue_id))
        if found is None:
            return None
        queue = <UnitQueue?>found
        count = min(count, queue.max_offset - offset)
        if offset < queue.min_offset or offset > OFFSET_MAX or count < 1 or count > UNITS_MAX:
            return None
        if queue.plain_files is None or (<str>topic).startswith("%LMQ%"):
            return None
        result = GetMessageResult.__new__(GetMessageResult)
        result.min_queue_offset = queue.min_offset
        result.max_queue_offset = queue.max_offset
        if not queue.read(offset, count, units):
            return None
        result.holds = []
        count = result.take_mapped(self.log, units, count, bytes_max)
        if count < 1:
            return None
        result.status = FOUND
        result.next_queue_offset = offset + count
        result.topic = <str>topic
        result.queue_id = queue_id
        result.least_offset = offset
        self.found_count += 1
        self.transferred_count += count
        return result

    def query(self, topic, key, max_messages, begin_ms, end_ms) -> QueryMessageResult | None:
        """Messages of a topic that carry a key; None when the general path has to be taken.

        Args:
            topic, key: what to look for.
            max_messages: no more than so many may be there.
            begin_ms: earliest store time.
            end_ms: latest store time, included; None has no end.
        """
        cdef int64_t begin = whole_number(begin_ms)
        cdef int64_t end = INT64_MAX if end_ms is None else whole_number(end_ms)
        cdef int64_t count = whole_number(max_messages)
        cdef list files, mapped
        if count < 1:
            return None
        if type(topic) is not str or type(key) is not str or not (<str>topic).isascii():
            return None
        if self.index is None or begin < 0 or end < 0 or not self.level():
            return None
        files = self.index.files
        if files is self.index_files:
            mapped = self.mapped
        elif len(files) > self.index_files_max:
            return None
        else:
            mapped = [file.mapped for file in files]
            self.index_files, self.mapped = files, mapped
        return find_by_key(
            mapped, self.log, self.first_offset(), topic, key, begin, end, count
        )
