"""Bodies of a batch as their producers gave them, where they are stored compressed."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free
from libc.string cimport memset

from rmqcore.native.columns._arrow cimport rmq_block, rmq_block_grow
from rmqcore.native.columns._column_store cimport Store, put_bytes, room
from rmqcore.native.format._layout cimport COMPRESSED

from rmqcore.native.format.compression import decompress
from rmqcore.errors import CorruptRecordError

cdef Py_ssize_t PLAIN_BODY_MAX = 64 << 20


cdef int decompress_bodies(
    Store* bodies, int64_t rows, const int32_t* sys_flags, const int64_t* phy_offsets
) except -1:
    """Replace the compressed bodies among `rows` by what the producer gave."""
    cdef const int32_t* ends = <const int32_t*>bodies.offsets.at
    cdef rmq_block[2] memory
    cdef Store plain
    cdef int64_t row
    cdef bytes body
    memset(memory, 0, sizeof(memory))
    memset(&plain, 0, sizeof(Store))
    plain.values = &memory[0]
    plain.offsets = &memory[1]
    try:
        if not (
            room(plain.values, bodies.size)
            and rmq_block_grow(plain.offsets, bodies.offsets.size)
        ):
            raise MemoryError
        (<int32_t*>plain.offsets.at)[0] = 0
        for row in range(rows):
            body = PyBytes_FromStringAndSize(
                <char*>bodies.values.at + ends[row], ends[row + 1] - ends[row]
            )
            if sys_flags[row] & COMPRESSED:
                body = plain_body(body, sys_flags[row], phy_offsets[row])
            if plain.size + PyBytes_GET_SIZE(body) > 0x7FFFFFFF:
                raise CorruptRecordError(
                    "commit log", phy_offsets[row], "the bodies of one batch exceed 2 GiB"
                )
            if not put_bytes(&plain, row, PyBytes_AS_STRING(body), PyBytes_GET_SIZE(body)):
                raise MemoryError
        bodies.values[0], memory[0] = memory[0], bodies.values[0]
        bodies.offsets[0], memory[1] = memory[1], bodies.offsets[0]
        bodies.size = plain.size
    finally:
        free(memory[0].at)
        free(memory[1].at)
    return 0


cdef bytes plain_body(bytes body, int32_t sys_flag, int64_t phy_offset):
    try:
        return decompress(body, sys_flag, PLAIN_BODY_MAX)
    except ValueError as error:
        raise CorruptRecordError(
            "commit log", phy_offset, f"the body does not decompress: {error}"
        ) from error
