"""The fast path of reading: gets and key queries over mapped files, each in one native call.

The public face, `store/message_reads.py`, tries it first. It serves the plain case only: nothing
that has been put waits to be dispatched, every file concerned is mapped, a queue's units are the
ordinary ones and lie in one file. For everything else it answers None, and the caller takes the
general path, `store/general_reads.py`.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_Check
from libc.stdint cimport INT32_MIN, INT64_MAX, int32_t, int64_t, uint8_t
cimport cython

from rmqcore.native.base._hold cimport BufferHold
from rmqcore.native.base._published cimport PublishedOffset
from rmqcore.native.format._bytes cimport load_i32, load_i64
from rmqcore.native.read._get_result cimport GetMessageResult
from rmqcore.native.read._key_query cimport QueryMessageResult, find_by_key
from rmqcore.native.format._layout cimport (
    FILLER_SIZE, UNIT_SIZE, UNIT_SIZE_AT, UNIT_TAGS_CODE_AT,
)
from rmqcore.native.read._log_map cimport LogMap
from rmqcore.native.read._many_keys cimport find_many
from rmqcore.native.format._record cimport bytes_t

from rmqcore.native.base._mapped import PAGE_SIZE as _PAGE_SIZE
from rmqcore.status import GetMessageStatus

cdef extern from "<unistd.h>" nogil:
    ssize_t pread(int fd, void* into, size_t size, int64_t at)

cdef extern from *:
    """
    #include <errno.h>
    #include <stdint.h>
    #include <sys/mman.h>
    #include <sys/syscall.h>
    #include <sys/uio.h>
    #include <unistd.h>
    /* As pread of what is in memory: fewer bytes than that, or -1; -2 where that is not told.
     * By the system call's number: musl has no preadv2 before 1.2.5, and wheels are for 1.2. */
    static ssize_t rmq_read_cached(int fd, void* into, size_t size, int64_t at) {
    #if defined(RWF_NOWAIT) && defined(SYS_preadv2) && __SIZEOF_LONG__ == 8
        struct iovec there = {into, size};
        ssize_t done = syscall(SYS_preadv2, fd, &there, 1, at, 0L, RWF_NOWAIT);
        if (done >= 0 || errno == EAGAIN)
            return done;
    #endif
        return -2;
    }
    #define RMQ_PAGES_AT_ONCE 256
    /* Whether all of a mapping's pages are in memory; also where the system does not say. */
    static int rmq_in_memory(const uint8_t* first, const uint8_t* end, int64_t page_size) {
    #ifdef __linux__
        unsigned char pages[RMQ_PAGES_AT_ONCE];
        uintptr_t at = (uintptr_t)first & ~(uintptr_t)(page_size - 1);
        while (at < (uintptr_t)end) {
            size_t count = ((uintptr_t)end - at + page_size - 1) / page_size, k;
            if (count > RMQ_PAGES_AT_ONCE)
                count = RMQ_PAGES_AT_ONCE;
            if (mincore((void*)at, count * page_size, pages) == 0)
                for (k = 0; k < count; k++)
                    if (!(pages[k] & 1))
                        return 0;
            at += count * page_size;
        }
    #endif
        return 1;
    }
    """
    ssize_t rmq_read_cached(int fd, void* into, size_t size, int64_t at) nogil
    bint rmq_in_memory(bytes_t first, bytes_t end, int64_t page_size) nogil

cdef enum:
    UNITS_MAX = 256
    # bytes at the log's end that are in memory: they were written, or read by a recovery, a moment
    # ago, and records there are not asked for page by page
    HOT_TAIL_SIZE = 32 * 1024 * 1024
    # two records that lie no further apart are read in one go, with the bytes between them
    READ_ALONG_SIZE = 64 * 1024

cdef int64_t OFFSET_MAX = (<int64_t>1 << 58) - 1

READ_ALONG_MAX = READ_ALONG_SIZE

cdef object FOUND = GetMessageStatus.FOUND
cdef int64_t SYSTEM_PAGE_SIZE = _PAGE_SIZE


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

    cdef Py_ssize_t read(
        self, int64_t offset, Py_ssize_t count, uint8_t* into, bint may_wait
    ) except -2:
        """Read units that lie in one file.

        Args:
            offset, count: the first unit, and how many.
            into: room for them.
            may_wait: wait for the disk where they are not in memory.

        Returns:
            ``count``; 0 when they do not lie in one file, or it is gone; -1 when it would have to
            wait and must not.
        """
        # copied: another thread may point `self` at another file meanwhile
        cdef object file = self.file
        cdef int64_t at = offset * UNIT_SIZE, start = self.start, stop = self.stop
        cdef int64_t size = count * UNIT_SIZE
        cdef ssize_t done
        cdef int fd
        if file is None or at < start or at >= stop or not file.available:
            file = self.plain_files.find(at)
            if file is None:
                return 0
            start = file.file_from_offset
            stop = start + <int64_t>file.size
            self.start, self.stop = start, stop
            self.file = file
        if at > stop - size:
            return 0
        # this reference keeps the descriptor open, whatever closes the file meanwhile
        handle = file.handle
        fd = handle.fd
        if not may_wait:
            done = rmq_read_cached(fd, into, size, at - start)
            if done != -2:
                return count if done == size else -1
        with nogil:
            done = pread(fd, into, size, at - start)
        return count if done == size else 0

    cdef Py_ssize_t read_part(self, int64_t offset, Py_ssize_t count, uint8_t* into) except -2:
        """As `read` without waiting, of those units that lie in the first one's file."""
        cdef Py_ssize_t done = self.read(offset, count, into, False)
        cdef int64_t room = self.stop // UNIT_SIZE - offset
        if done == 0 and 0 < room < count:
            done = self.read(offset, <Py_ssize_t>room, into, False)
        return done


cdef int64_t whole_number(object value) except? -1:
    """An int; -1 for what is no int, or too large to be a queue offset or a count of bytes."""
    cdef int overflow = 0
    if not PyLong_Check(value):
        return -1
    cdef int64_t number = PyLong_AsLongLongAndOverflow(value, &overflow)
    return -1 if overflow else number


cdef inline bint is_filler(bytes_t unit) noexcept nogil:
    return load_i64(unit) == 0 and load_i32(unit + UNIT_SIZE_AT) == FILLER_SIZE


cdef struct Wanted:
    int64_t messages    # how many more
    int64_t bytes       # of records, how many more
    bint is_first       # the first message comes, whatever its size


cdef inline bint has_code(bytes codes, bytes_t behind) noexcept:
    """Whether the unit that ends there has one of the codes; True without any.

    True also for the address of a code, which lies below those of 32 bits.
    """
    cdef const int64_t* code
    cdef const int64_t* end
    cdef int64_t own
    if codes is None:
        return True
    own = load_i64(behind - UNIT_SIZE + UNIT_TAGS_CODE_AT)
    if own < INT32_MIN:
        return True
    code = <const int64_t*>PyBytes_AS_STRING(codes)
    end = code + PyBytes_GET_SIZE(codes) // 8
    while code < end and code[0] != own:
        code += 1
    return code < end


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

    def get(self, topic, queue_id, queue_offset, max_messages, max_bytes, bint may_wait=True):
        """Messages of one queue from an offset on; None when the general path has to be taken.

        Args:
            topic, queue_id, queue_offset, max_messages, max_bytes: what is wanted.
            may_wait: wait for the disk; without, None also where that would have to be read.
        """
        cdef uint8_t units[UNITS_MAX * 20]
        cdef UnitQueue queue
        cdef GetMessageResult result
        cdef int64_t offset = whole_number(queue_offset)
        cdef int64_t count = whole_number(max_messages)
        cdef int64_t bytes_max = whole_number(max_bytes)
        cdef Wanted wanted
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
        if queue.read(offset, count, units, may_wait) < 1:
            return None
        wanted = Wanted(count, bytes_max, True)
        if not may_wait and not self.are_cached(units, count, None, &wanted):
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

    def is_cached(
        self, str topic not None, int queue_id, int64_t queue_offset, int64_t max_messages,
        int64_t max_bytes, bytes tags_codes, int64_t max_scanned,
    ) -> bool:
        """Tell whether a get finds what it reads in memory; reads nothing from the disk.

        Args:
            topic, queue_id, queue_offset, max_messages, max_bytes: those of the get.
            tags_codes: packed int64 values of which a message has one, or None for every message.
            max_scanned: with ``tags_codes``, how many units are looked at.

        Returns:
            True also where it cannot be told: no such queue, units that are not the ordinary ones,
            another system than Linux.
        """
        cdef uint8_t units[UNITS_MAX * 20]
        cdef UnitQueue queue
        cdef Py_ssize_t count
        cdef int64_t offset = queue_offset
        cdef int64_t left = max_messages if tags_codes is None else max_scanned
        cdef Wanted wanted = Wanted(max_messages, max_bytes, True)
        found = self.queues.get((topic, queue_id))
        if found is None:
            return True
        queue = <UnitQueue?>found
        if queue.plain_files is None or offset < queue.min_offset:
            return True
        while left > 0 and wanted.messages > 0 and offset < queue.max_offset:
            count = <Py_ssize_t>min(UNITS_MAX, left, queue.max_offset - offset)
            count = queue.read_part(offset, count, units)
            if count < 1:
                return count == 0
            if not self.are_cached(units, count, tags_codes, &wanted):
                return False
            offset += count
            left -= count
        return True

    cdef bint are_cached(
        self, bytes_t unit, Py_ssize_t count, bytes tags_codes, Wanted* wanted
    ) except -1:
        """Tell whether the records of units are in memory, those that are still wanted."""
        cdef int64_t at, readable
        cdef int32_t size
        cdef Py_ssize_t _
        cdef bytes_t record = NULL
        cdef bytes_t first = NULL
        cdef bytes_t end = NULL
        cdef BufferHold hold
        cdef BufferHold held = None
        if self.end.observe() - load_i64(unit) <= HOT_TAIL_SIZE:
            wanted.messages = 0
            return True
        for _ in range(count):
            at, size = load_i64(unit), load_i32(unit + UNIT_SIZE_AT)
            unit += UNIT_SIZE
            if is_filler(unit - UNIT_SIZE) or not has_code(tags_codes, unit):
                continue
            if wanted.messages == 0 or (size > wanted.bytes and not wanted.is_first):
                wanted.messages = 0
                break
            wanted.messages -= 1
            wanted.bytes -= size
            wanted.is_first = False
            hold = self.log.find(at, &record, &readable)
            if hold is None or size > readable:
                return False
            if hold is not held or not 0 <= record - end <= READ_ALONG_SIZE:
                if first != NULL and not rmq_in_memory(first, end, SYSTEM_PAGE_SIZE):
                    return False
                first, held = record, hold
            end = record + size
        return first == NULL or rmq_in_memory(first, end, SYSTEM_PAGE_SIZE)

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
        if type(key) is not str or not self.can_query(topic, count, begin, end):
            return None
        return find_by_key(
            self.mapped, self.log, self.first_offset(), topic, key, begin, end, count
        )

    def query_many(self, topic, list keys not None, max_messages, begin_ms, end_ms) -> list | None:
        """As `query` of each key; None when the general path has to be taken for all of them."""
        cdef int64_t begin = whole_number(begin_ms)
        cdef int64_t end = INT64_MAX if end_ms is None else whole_number(end_ms)
        cdef int64_t count = whole_number(max_messages)
        if not self.can_query(topic, count, begin, end):
            return None
        return find_many(
            self.mapped, self.log, self.first_offset(), topic, keys, begin, end, count
        )

    cdef bint can_query(self, topic, int64_t count, int64_t begin, int64_t end) except -1:
        """True when the fast path may be tried; `mapped` has the index files then."""
        cdef list files
        if count < 1 or type(topic) is not str or not (<str>topic).isascii():
            return False
        if self.index is None or begin < 0 or end < 0 or not self.level():
            return False
        files = self.index.files
        if files is not self.index_files:
            if len(files) > self.index_files_max:
                return False
            self.mapped = [file.mapped for file in files]
            self.index_files = files
        return True
