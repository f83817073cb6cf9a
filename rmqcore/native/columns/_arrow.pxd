# Declarations of _arrow.h, and the batch that owns exported memory.
from libc.stdint cimport int64_t

cdef extern from "_arrow.h" nogil:
    cdef struct ArrowSchema:
        const char* format
        const char* name
        int64_t n_children
        ArrowSchema** children
        ArrowSchema* dictionary
        void (*release)(ArrowSchema*) noexcept nogil

    cdef struct ArrowArray:
        int64_t length
        int64_t null_count
        int64_t offset
        int64_t n_buffers
        int64_t n_children
        const void** buffers
        ArrowArray** children
        ArrowArray* dictionary
        void (*release)(ArrowArray*) noexcept nogil

    cdef struct ArrowArrayStream:
        int (*get_schema)(ArrowArrayStream*, ArrowSchema*) noexcept nogil
        int (*get_next)(ArrowArrayStream*, ArrowArray*) noexcept nogil
        const char* (*get_last_error)(ArrowArrayStream*) noexcept nogil
        void (*release)(ArrowArrayStream*) noexcept nogil
        void* private_data

    cdef struct rmq_block:
        void* at
        int64_t size

    cdef struct rmq_blocks:
        rmq_block blocks[96]

    cdef struct rmq_pool:
        pass

    cdef struct rmq_column:
        const char* name
        const char* format
        int nullable
        int buffer_count
        int64_t length
        int64_t null_count
        const void* buffers[3]
        int child_count
        rmq_column* children

    bint rmq_block_grow(rmq_block* block, int64_t size) noexcept
    rmq_pool* rmq_pool_new() noexcept
    void rmq_pool_close(rmq_pool* pool) noexcept
    rmq_blocks* rmq_blocks_new(rmq_pool* pool) noexcept
    void rmq_blocks_drop(rmq_blocks* blocks) noexcept
    int rmq_export_array(ArrowArray* into, const rmq_column* column, rmq_blocks* owner) noexcept
    int rmq_export_schema(ArrowSchema* into, const rmq_column* column) noexcept


cdef class ColumnBatch:
    cdef rmq_column table         # a struct column; its children are the batch's columns
    cdef rmq_blocks* blocks       # all memory that the columns point into
    cdef const rmq_column* column_named(self, str name) except NULL


cdef ColumnBatch new_batch(rmq_column* columns, int count, int64_t rows, rmq_blocks* blocks)
