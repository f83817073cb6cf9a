"""A burst of MetaQ put commands: every whole one at the beginning of a buffer, in one call.

    put <topic> <partition> <size> <flag> <checksum> <opaque>\\r\\n<data>

Only this form, which every client since 1.4.4 sends; `protocol.parse_command` knows the others.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT32_MAX, INT32_MIN, int32_t, int64_t, uint8_t
from libc.string cimport memchr, memcmp

from rmqcore.metaq._record cimport checksum_of, rmq_crc32_init

cdef enum:
    NUMBERS = 5        # partition, size, flag, checksum, opaque
    MAX_DIGITS = 10
    NO_CHECKSUM = -1

cdef struct Line:
    const uint8_t* topic
    int64_t topic_size
    int32_t partition
    int32_t size
    int32_t flag
    int32_t checksum
    int32_t opaque
    const uint8_t* data

rmq_crc32_init()


cdef const uint8_t* read_number(
    const uint8_t* at, const uint8_t* stop, uint8_t end, int32_t* value
) noexcept nogil:
    """Read a number that ``end`` follows; point behind that, NULL when there is none."""
    cdef int64_t number = 0
    cdef int digits = 0
    cdef bint negative = at < stop and at[0] == 45
    at += negative
    while at < stop and 48 <= at[0] <= 57 and digits < MAX_DIGITS:
        number = number * 10 + (at[0] - 48)
        digits += 1
        at += 1
    if negative:
        number = -number
    if digits == 0 or at == stop or at[0] != end or not INT32_MIN <= number <= INT32_MAX:
        return NULL
    value[0] = <int32_t>number
    return at + 1


cdef bint read_line(const uint8_t* at, int64_t left, int64_t max_line, Line* line) noexcept nogil:
    """False for everything that is not a put of this form with its whole line there."""
    cdef int32_t[NUMBERS] numbers
    cdef const uint8_t* stop
    cdef int i
    if left < 4 or memcmp(at, b"put ", 4) != 0:
        return False
    stop = <const uint8_t*>memchr(at, 10, min(left, max_line))
    if stop == NULL:
        return False
    line.topic = at + 4
    at = <const uint8_t*>memchr(line.topic, 32, stop - line.topic)
    if at == NULL or at == line.topic:
        return False
    line.topic_size = at - line.topic
    at += 1
    for i in range(NUMBERS):
        at = read_number(at, stop, 32 if i < NUMBERS - 1 else 13, &numbers[i])
        if at == NULL:
            return False
    line.partition = numbers[0]
    line.size = numbers[1]
    line.flag = numbers[2]
    line.checksum = numbers[3]
    line.opaque = numbers[4]
    line.data = stop + 1
    return at == stop


def scan_puts(buffer not None, int64_t max_line, int64_t max_size):
    """Cut the whole puts at the beginning of a buffer into rows.

    Args:
        buffer: bytes as they arrived.
        max_line: bytes that a line may have, its end included.
        max_size: bytes that one put may have.

    Returns:
        ``(rows, used)``: rows ``(topic, partition, flag, checksum, opaque, data)`` and the bytes
        that they take. A checksum that was compared and fits is -1, as if none had been sent. What
        follows is no whole put of this form, or is larger than ``max_size``.
    """
    cdef Py_buffer view
    cdef Line line
    cdef list rows = []
    cdef const uint8_t* at
    cdef const uint8_t* stop
    cdef const uint8_t* known = NULL
    cdef int64_t known_size = 0
    cdef str topic = ""
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        at = <const uint8_t*>view.buf
        stop = at + view.len
        while read_line(at, stop - at, max_line, &line):
            if not 0 <= line.size <= min(max_size, stop - line.data):
                break
            if line.topic_size != known_size or memcmp(line.topic, known, known_size) != 0:
                try:
                    topic = PyUnicode_DecodeUTF8(<const char*>line.topic, line.topic_size, NULL)
                except UnicodeDecodeError:
                    break
                known = line.topic
                known_size = line.topic_size
            if line.checksum == checksum_of(line.data, line.size):
                line.checksum = NO_CHECKSUM
            data = PyBytes_FromStringAndSize(<const char*>line.data, line.size)
            rows.append((topic, line.partition, line.flag, line.checksum, line.opaque, data))
            at = line.data + line.size
        return rows, at - <const uint8_t*>view.buf
    finally:
        PyBuffer_Release(&view)
