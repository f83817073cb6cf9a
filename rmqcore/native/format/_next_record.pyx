"""What lies at a place of the log, and where the next record may begin.

"Is a good record here" and "does this end the file" are answered here only: by `next_record` of
`_record.pxd`, which Python reaches over this module, and kernels that walk many records call.
"""

from enum import IntEnum

from cpython.bytearray cimport PyByteArray_AS_STRING
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memchr

from rmqcore.native.base._hold cimport BufferHold
from rmqcore.native.format cimport _layout
from rmqcore.native.format._bytes cimport load_i32, load_i64, store_i32
from rmqcore.native.format._layout cimport (
    MAGIC_AT, MAGIC_V1, MAGIC_V2, PHY_OFFSET_AT, TOTAL_SIZE_AT,
)
from rmqcore.native.format._record cimport (
    CHECK_BODY, CHECK_PROPERTY, RecordHead, bytes_t, next_record as look, rmq_crc32_init,
)

rmq_crc32_init()

RECORD_HEAD_SIZE = _layout.RECORD_HEAD_SIZE


class ScanStatus(IntEnum):
    """Why a walk over the log stopped; negative where no good record is.

    OK: all there is is good. BLANK: an end-of-file record. EMPTY: zeros. CAPACITY: the caller's
    arrays are full. PARTIAL: it goes on behind the bytes that were given.
    """

    OK = _layout.OK
    BLANK = _layout.BLANK
    EMPTY = _layout.EMPTY
    CAPACITY = _layout.CAPACITY
    PARTIAL = _layout.PARTIAL
    TRUNCATED = _layout.TRUNCATED
    BAD_MAGIC = _layout.BAD_MAGIC
    BAD_SIZE = _layout.BAD_SIZE
    BAD_CRC = _layout.BAD_CRC
    BAD_OFFSET = _layout.BAD_OFFSET


def next_record(
    buffer, int64_t at, int64_t stop, *, int64_t base_offset, int64_t file_end,
    bint verify_crc=False, bint verify_crc_property=False,
) -> tuple:
    """What lies at one place of a log file.

    Args:
        buffer: bytes of the file; read during the call only.
        at, stop: the place, and where the bytes end that may be read, as positions in the buffer.
        base_offset: physical offset of the buffer's first byte.
        file_end: physical offset where the file ends.
        verify_crc: compare the body with its CRC.
        verify_crc_property: demand and check the ``__CRC32#`` property instead.

    Returns:
        (`ScanStatus`, size, store_timestamp_ms). OK: a whole record that names its own offset, of
        this size; BLANK: the end-of-file record, which ends the file; EMPTY: zeros; PARTIAL: so
        many bytes are needed to say more, which the file has; when `RECORD_HEAD_SIZE` bytes were
        given, that is a record's size, and it names its own offset; negative: damage. The store
        time is that of a record that is told by this, else 0.
    """
    cdef BufferHold hold = BufferHold(buffer, None, base_offset)
    cdef RecordHead head
    cdef int status
    cdef int checks = CHECK_PROPERTY if verify_crc_property else CHECK_BODY if verify_crc else 0
    if at < 0 or stop < at or stop > hold.view.len:
        raise IndexError(f"{at} to {stop} lie outside the buffer")
    head.total_size = 0
    head.store_timestamp = 0
    with nogil:
        status = look(
            <bytes_t>hold.view.buf + at, stop - at, base_offset + at, file_end, checks, &head
        )
    if status < 0 or status == _layout.EMPTY:
        return ScanStatus(status), 0, 0
    return ScanStatus(status), head.total_size, head.store_timestamp


def head_says(buffer) -> tuple:
    """(size, physical offset) of a record as its first bytes say; none of it is checked.

    Args:
        buffer: bytes from the record's first one on; what they are too few for is -1.
    """
    cdef BufferHold hold = BufferHold(buffer, None, 0)
    cdef bytes_t at = <bytes_t>hold.view.buf
    return (
        load_i32(at + TOTAL_SIZE_AT) if hold.view.len >= TOTAL_SIZE_AT + 4 else -1,
        load_i64(at + PHY_OFFSET_AT) if hold.view.len >= PHY_OFFSET_AT + 8 else -1,
    )


def lacks_size_only(buffer, *, int64_t base_offset) -> bool:
    """True for a record that would be good, and take the whole buffer, but for its size word.

    Zeros are in place of all of that, or of its last bytes: where it lies on two pages, a kill may
    break a write of it off between them.

    Args:
        buffer: bytes of the commit log.
        base_offset: physical offset of the buffer's first byte.
    """
    cdef bytearray whole = bytearray(buffer)
    cdef uint8_t* at = <uint8_t*>PyByteArray_AS_STRING(whole)
    cdef int32_t size = <int32_t>len(whole), found
    cdef RecordHead head
    if size < RECORD_HEAD_SIZE:
        return False
    found = load_i32(at + TOTAL_SIZE_AT)
    if found == size or found not in (0, size & ~0xFFFFFF, size & ~0xFFFF, size & ~0xFF):
        return False
    store_i32(at + TOTAL_SIZE_AT, size)
    return look(at, size, base_offset, base_offset + size, CHECK_BODY, &head) == _layout.OK


def find_head(buffer, int64_t at, int64_t stop, *, int64_t base_offset) -> int:
    """Position from ``at`` on where a record's magic code and its own offset stand, -1 for none.

    Where the chain of sizes is broken, this is where a record may begin; whether a good one does
    is for the caller to check.

    Args:
        buffer: bytes of the commit log.
        at, stop: positions in the buffer.
        base_offset: physical offset of the buffer's first byte.
    """
    cdef BufferHold hold = BufferHold(buffer, None, base_offset)
    cdef bytes_t base = <bytes_t>hold.view.buf
    cdef bytes_t found
    cdef int32_t magic
    if at < 0 or stop > hold.view.len:
        raise IndexError(f"{at} to {stop} lie outside the buffer")
    with nogil:
        while at + PHY_OFFSET_AT + 8 <= stop:
            # both magic codes begin with the byte 0xDA
            found = <bytes_t>memchr(base + at + MAGIC_AT, 0xDA, stop - at - PHY_OFFSET_AT - 7)
            if found == NULL:
                at = stop
                break
            at = found - base - MAGIC_AT
            magic = load_i32(found)
            if (magic == MAGIC_V1 or magic == MAGIC_V2) and (
                load_i64(base + at + PHY_OFFSET_AT) == base_offset + at
            ):
                break
            at += 1
    return at if at + PHY_OFFSET_AT + 8 <= stop else -1
