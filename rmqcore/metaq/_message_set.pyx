"""Bytes of MetaQ records: encode, walk, verify and search them, in memory and in open files.

    record = length i32 | checksum i32 | message id i64 | flag i32 | data (length bytes)

All numbers are big-endian; the checksum is CRC-32 & 0x7FFFFFFF of the data alone. Twenty zero
bytes, which that rule would accept as an empty message, are the end of a segment here, never a
message, and nothing without data is written. Layout: docs/metaq.md, "Record".

Source: MetaQ MessageUtils.java, FileMessageSet.java.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.errno cimport EINTR, errno
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy

from rmqcore.native.format._bytes cimport load_i32, load_i64
from rmqcore.metaq._record cimport (
    CHECKSUM_AT,
    CHECKSUM_MASK,
    DATA_AT,
    FLAG_AT,
    HEADER_SIZE,
    LENGTH_AT,
    MAX_DATA_SIZE,
    MESSAGE_ID_AT,
    checksum_of,
    rmq_crc32,
    rmq_crc32_init,
    store_header,
    storable,
)

from rmqcore.metaq.errors import UnstorableRecordError

cdef extern from "<unistd.h>" nogil:
    Py_ssize_t pread(int fd, void* to, size_t size, int64_t at) noexcept

cdef enum:
    WINDOW_SIZE = 1048576
    MAX_APPEND_SIZE = 0x7FFFFFFF      # a Location has a 31-bit length in Java
    RESYNC_BUDGET = 268435456        # bytes of candidate data that one search may read

cdef enum Verdict:
    END_OF_DATA = 0
    TORN_HEADER = 1
    TORN_DATA = 2
    NEGATIVE_LENGTH = 3
    WRONG_CHECKSUM = 4
    ZEROS = 5
    READ_FAILED = 6

LAYOUT = {
    "HEADER_SIZE": HEADER_SIZE,
    "LENGTH_AT": LENGTH_AT,
    "CHECKSUM_AT": CHECKSUM_AT,
    "MESSAGE_ID_AT": MESSAGE_ID_AT,
    "FLAG_AT": FLAG_AT,
    "DATA_AT": DATA_AT,
    "CHECKSUM_MASK": CHECKSUM_MASK,
    "MAX_DATA_SIZE": MAX_DATA_SIZE,
}
VERDICTS = {
    "END": END_OF_DATA,
    "TORN_HEADER": TORN_HEADER,
    "TORN_DATA": TORN_DATA,
    "NEGATIVE_LENGTH": NEGATIVE_LENGTH,
    "WRONG_CHECKSUM": WRONG_CHECKSUM,
    "ZEROS": ZEROS,
    "READ_FAILED": READ_FAILED,
}

cdef const uint8_t[HEADER_SIZE] NO_HEADER
rmq_crc32_init()

cdef struct Window:
    int fd
    uint8_t* bytes
    int64_t at      # file position of bytes[0]
    int64_t size    # bytes held


cdef Verdict check_header(const uint8_t* at, int64_t remaining) noexcept nogil:
    cdef int32_t length
    if remaining < HEADER_SIZE:
        return END_OF_DATA if remaining == 0 else TORN_HEADER
    length = load_i32(at + LENGTH_AT)
    if length < 0:
        return NEGATIVE_LENGTH
    if length > remaining - HEADER_SIZE:
        return TORN_DATA
    if length == 0 and memcmp(at, NO_HEADER, HEADER_SIZE) == 0:
        return ZEROS
    return END_OF_DATA


cdef int64_t read_full(int fd, uint8_t* to, int64_t size, int64_t at) noexcept nogil:
    """Bytes read before the end of the file, or -1."""
    cdef int64_t done = 0
    cdef Py_ssize_t step
    while done < size:
        step = pread(fd, to + done, size - done, at + done)
        if step == 0:
            break
        if step < 0:
            if errno == EINTR:
                continue
            return -1
        done += step
    return done


cdef const uint8_t* hold(Window* window, int64_t at, int64_t size) noexcept nogil:
    """Point to ``size`` bytes (at most a window) of the file at ``at``; NULL when they are gone."""
    if at < window.at or at + size > window.at + window.size:
        window.at = at
        window.size = read_full(window.fd, window.bytes, WINDOW_SIZE, at)
        if window.size < size:
            window.size = 0
            return NULL
    return window.bytes + (at - window.at)


cdef Verdict check_record(
    Window* window, int64_t at, int64_t stop, int32_t* length
) noexcept nogil:
    cdef int64_t left = min(stop - at, <int64_t>HEADER_SIZE), step
    cdef uint32_t crc = 0
    cdef int32_t expected
    cdef const uint8_t* bytes = hold(window, at, left)
    cdef Verdict verdict
    if bytes == NULL:
        return READ_FAILED
    verdict = check_header(bytes, stop - at)
    if verdict != END_OF_DATA or left == 0:
        return verdict
    length[0] = load_i32(bytes + LENGTH_AT)
    expected = load_i32(bytes + CHECKSUM_AT)
    at += HEADER_SIZE
    left = length[0]
    while left > 0:
        step = window.at + window.size - at
        if step <= 0:
            step = WINDOW_SIZE
        step = min(step, left)
        bytes = hold(window, at, step)
        if bytes == NULL:
            return READ_FAILED
        crc = rmq_crc32(crc, bytes, step)
        at += step
        left -= step
    return END_OF_DATA if <int32_t>(crc & CHECKSUM_MASK) == expected else WRONG_CHECKSUM


cdef Verdict scan_window(
    Window* window, int64_t* valid_up_to, int64_t stop, int64_t* count
) noexcept nogil:
    """Walk whole records; one without data counts only when what follows it is whole too.

    The header of a record whose first page was lost in a power cut reads as length 0 and
    checksum 0, which is also the checksum of no data: what follows gives it away.
    """
    cdef int64_t at = valid_up_to[0], empty = 0
    cdef int32_t length = 0
    cdef Verdict verdict = END_OF_DATA
    while at < stop:
        verdict = check_record(window, at, stop, &length)
        if verdict != END_OF_DATA:
            return verdict
        at += HEADER_SIZE + <int64_t>length
        empty += 1
        if length > 0 or at == stop:
            valid_up_to[0] = at
            count[0] += empty
            empty = 0
    return verdict


cdef int64_t search(Window* window, Window* candidate, int64_t at, int64_t stop) noexcept nogil:
    """Position of the first whole record at or behind ``at``; -1 when there is none."""
    cdef int64_t budget = RESYNC_BUDGET
    cdef const uint8_t* bytes
    cdef int32_t length
    while at <= stop - HEADER_SIZE and budget > 0:
        bytes = hold(window, at, HEADER_SIZE)
        if bytes == NULL:
            return -1
        length = load_i32(bytes + LENGTH_AT)
        if (
            0 < length <= stop - at - HEADER_SIZE
            and <uint32_t>load_i32(bytes + FLAG_AT) <= 1
            and load_i32(bytes + CHECKSUM_AT) >= 0
        ):
            budget -= length + HEADER_SIZE
            if check_record(candidate, at, stop, &length) == END_OF_DATA:
                return at
        at += 1
    return -1


cdef int fill(list messages, uint8_t* to, int64_t left) except -1:
    """Encode ``(message_id, data, flag)`` rows behind each other into ``left`` bytes."""
    cdef Py_buffer view
    cdef int64_t message_id
    cdef int32_t flag
    for number, data, bits in messages:
        message_id = number
        flag = bits
        if len(<bytes?>data) > left - HEADER_SIZE:
            raise RuntimeError("the messages changed while they were encoded")
        left -= HEADER_SIZE + len(<bytes>data)
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        store_header(
            to, <int32_t>view.len, checksum_of(<const uint8_t*>view.buf, view.len), message_id, flag
        )
        memcpy(to + DATA_AT, view.buf, view.len)
        to += HEADER_SIZE + view.len
        PyBuffer_Release(&view)
    return 0


cdef int64_t size_of(list messages) except -1:
    cdef int64_t total = 0
    cdef int64_t size
    for number, data, _ in messages:
        if not isinstance(data, bytes):
            raise TypeError(f"data is bytes, not {type(data).__name__}")
        size = len(<bytes>data)
        total += HEADER_SIZE + size
        if not storable(size) or total > MAX_APPEND_SIZE:
            raise UnstorableRecordError(number, total - HEADER_SIZE if size else 0)
    return total


def checksum(buffer not None):
    """CRC-32 & 0x7FFFFFFF of a buffer. Source: MetaQ CheckSum.java, crc32."""
    cdef Py_buffer view
    cdef int32_t value
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        with nogil:
            value = checksum_of(<const uint8_t*>view.buf, view.len)
        return value
    finally:
        PyBuffer_Release(&view)


def encode_many(messages not None):
    """Records of ``(message_id, data, flag)`` rows, one behind the other.

    Source: MetaQ MessageUtils.java, makeMessageBuffer (both forms).
    """
    cdef list rows = list(messages)
    cdef int64_t size = size_of(rows)
    cdef bytes out = PyBytes_FromStringAndSize(NULL, size)
    fill(rows, <uint8_t*>PyBytes_AS_STRING(out), size)
    return out


def scan(buffer not None, int64_t at=0):
    """Walk whole records of a buffer and verify each.

    Returns:
        ``(rows, valid_up_to, verdict)``: a row is ``(at, length, message_id, flag)``; verdict 0
        when the last record ends where the buffer ends, else a member of `Verdict`.
    """
    cdef Py_buffer view
    cdef const uint8_t* bytes
    cdef int32_t length
    cdef Verdict verdict = END_OF_DATA
    cdef list rows = []
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        if at < 0 or at > view.len:
            raise ValueError(f"at={at} lies outside a buffer of {view.len} bytes")
        while at < view.len:
            bytes = <const uint8_t*>view.buf + at
            verdict = check_header(bytes, view.len - at)
            if verdict != END_OF_DATA:
                break
            length = load_i32(bytes + LENGTH_AT)
            if checksum_of(bytes + DATA_AT, length) != load_i32(bytes + CHECKSUM_AT):
                verdict = WRONG_CHECKSUM
                break
            rows.append((at, length, load_i64(bytes + MESSAGE_ID_AT), load_i32(bytes + FLAG_AT)))
            at += HEADER_SIZE + <int64_t>length
        return rows, at, <int>verdict
    finally:
        PyBuffer_Release(&view)


def scan_file(int fd, int64_t at, int64_t stop):
    """Verify the records of an open file from ``at`` to ``stop``, without the GIL.

    Returns:
        ``(valid_up_to, message_count, verdict)`` as `scan`.
    """
    cdef Window window
    cdef int64_t count = 0
    cdef Verdict verdict
    if at < 0 or stop < at:
        raise ValueError(f"no range: {at} to {stop}")
    window.fd = fd
    window.at = window.size = 0
    window.bytes = <uint8_t*>malloc(WINDOW_SIZE)
    if window.bytes == NULL:
        raise MemoryError
    try:
        with nogil:
            verdict = scan_window(&window, &at, stop, &count)
        return at, count, <int>verdict
    finally:
        free(window.bytes)


def find_record(int fd, int64_t at, int64_t stop):
    """Position of the first whole, valid, non-empty record at or behind ``at``, or -1.

    The search is bounded: it gives up after 256 MiB of candidates.
    """
    cdef Window window, candidate
    cdef int64_t found
    if at < 0 or stop < at:
        raise ValueError(f"no range: {at} to {stop}")
    window.fd = candidate.fd = fd
    window.at = window.size = candidate.at = candidate.size = 0
    window.bytes = <uint8_t*>malloc(2 * WINDOW_SIZE)
    if window.bytes == NULL:
        raise MemoryError
    candidate.bytes = window.bytes + WINDOW_SIZE
    try:
        with nogil:
            found = search(&window, &candidate, at, stop)
        return found
    finally:
        free(window.bytes)
