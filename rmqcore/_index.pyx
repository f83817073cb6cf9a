"""The hash index: Java's string hash, insertion at the head of a slot's chain, the chain walk.

Works on the bytes of one index file; which file, and when to begin a new one, is Python's. One
writer and any number of readers: an entry is complete before its slot points at it, and the slot
before the count rises. Every number read from the file is checked, and a walk ends after as many
steps as the file has entries.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memset

from rmqcore.native.format._bytes cimport (
    RMQ_ASSERT, load_i32, load_i64, observe_i32, publish_i32, store_i32, store_i64,
)
from rmqcore.native.format._chain cimport Geometry, Source, Walk, entry_at, time_diff, walk
from rmqcore.native.format._layout cimport *
from rmqcore.native.format._record cimport bytes_t, index_hash_of, java_hash_step

from rmqcore.errors import CorruptIndexError

cdef extern from *:
    """
    #define rmq_prefetch(at) __builtin_prefetch(at, 1)
    """
    void rmq_prefetch(bytes_t at) noexcept nogil

cdef enum:
    # prefetch distance: slots lie all over the file, so each is fetched some keys ahead
    KEYS_AHEAD = 16

HEADER_SIZE = INDEX_HEADER_SIZE
INDEX_SLOT_SIZE = SLOT_SIZE
INDEX_ENTRY_SIZE = ENTRY_SIZE


def java_string_hash(str text not None) -> int:
    """Java's ``String.hashCode``: over UTF-16 units, wrapped to int32."""
    encoded = text.encode("utf-8", "replace")
    return java_hash_step(0, <bytes_t>PyBytes_AS_STRING(encoded), <int32_t>len(encoded))


def index_hash(str key not None) -> int:
    """Hash of an index key ``topic#key``: the absolute value of Java's hash, 0 or more.

    Source: RocketMQ store/index/IndexFile.java, indexKeyHashMethod.
    """
    return index_hash_of(java_string_hash(key))


def index_file_size(int64_t slot_count, int64_t entry_count) -> int:
    """Bytes of an index file. Layout: docs/format/index-file.md."""
    return INDEX_HEADER_SIZE + SLOT_SIZE * slot_count + ENTRY_SIZE * entry_count


cdef int check_geometry(int64_t size, int64_t slot_count, int64_t entry_count) except -1:
    if slot_count < 1 or entry_count < 2 or (
        INDEX_HEADER_SIZE + SLOT_SIZE * slot_count + ENTRY_SIZE * entry_count != size
    ):
        raise CorruptIndexError(
            "index file", -1,
            f"{size} bytes are not a header, {slot_count} slots and {entry_count} entries",
        )
    return 0


cdef int insert_key(
    uint8_t* base, const Geometry* shape, int32_t key_hash, int64_t phy_offset,
    int64_t store_timestamp,
) noexcept nogil:
    """Insert one entry at the head of its chain; 0 when the file is full."""
    cdef int32_t count = load_i32(base + INDEX_COUNT_AT)
    cdef int64_t slot_at = INDEX_HEADER_SIZE + <int64_t>SLOT_SIZE * (key_hash % shape.slot_count)
    cdef int64_t begin = load_i64(base + INDEX_BEGIN_TIMESTAMP_AT)
    cdef int32_t previous
    cdef uint8_t* entry
    if count < 1:
        count = 1
    if count >= shape.entry_count:
        return 0
    previous = load_i32(base + slot_at)
    if previous == count:
        # a crash came between slot and count: this overwrites that entry, and keeps what it led to
        previous = load_i32(base + entry_at(shape, count) + ENTRY_PREVIOUS_AT)
        if previous >= count:
            previous = 0
    if previous <= 0 or previous > count:
        previous = 0
    RMQ_ASSERT(key_hash >= 0)
    RMQ_ASSERT(previous < count)
    entry = base + entry_at(shape, count)
    store_i32(entry + ENTRY_HASH_AT, key_hash)
    store_i64(entry + ENTRY_PHY_OFFSET_AT, phy_offset)
    store_i32(entry + ENTRY_TIME_DIFF_AT, time_diff(begin, store_timestamp))
    store_i32(entry + ENTRY_PREVIOUS_AT, previous)
    publish_i32(base + slot_at, count)
    if count <= 1:
        store_i64(base + INDEX_BEGIN_PHY_OFFSET_AT, phy_offset)
        store_i64(base + INDEX_BEGIN_TIMESTAMP_AT, store_timestamp)
    if previous == 0:
        store_i32(base + INDEX_SLOT_COUNT_AT, load_i32(base + INDEX_SLOT_COUNT_AT) + 1)
    store_i64(base + INDEX_END_PHY_OFFSET_AT, phy_offset)
    store_i64(base + INDEX_END_TIMESTAMP_AT, store_timestamp)
    publish_i32(base + INDEX_COUNT_AT, count + 1)
    return 1


def put_key(
    buffer, int32_t slot_count, int32_t entry_count, str key not None, int64_t phy_offset,
    int64_t store_timestamp_ms,
) -> bool:
    """Insert one entry at the head of its slot's chain.

    Args:
        buffer: writable bytes of a whole index file.
        slot_count, entry_count: its geometry.
        key: ``topic#key``, hashed as Java hashes a String.
        phy_offset: byte position of the record in the commit log.
        store_timestamp_ms: stored as whole seconds since the file began.

    Returns:
        False when the file already holds ``entry_count - 1`` entries.

    Raises:
        CorruptIndexError: the buffer's size contradicts the geometry.

    Layout: docs/format/index-file.md, "Entry".
    Source: RocketMQ store/index/IndexFile.java, putKey.
    """
    cdef Py_buffer view
    cdef Geometry shape
    cdef int32_t key_hash = index_hash(key)
    cdef int inserted = 0
    shape.slot_count = slot_count
    shape.entry_count = entry_count
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE | PyBUF_WRITABLE)
    try:
        check_geometry(view.len, slot_count, entry_count)
        inserted = insert_key(
            <uint8_t*>view.buf, &shape, key_hash, phy_offset, store_timestamp_ms
        )
    finally:
        PyBuffer_Release(&view)
    return inserted == 1


cdef int hold_column(object column, Py_buffer* view, Py_ssize_t width, str name) except -1:
    PyObject_GetBuffer(column, view, PyBUF_SIMPLE)
    if view.len % width:
        PyBuffer_Release(view)
        raise ValueError(f"{name}: expected packed values of {width} bytes")
    return 0


def put_keys(
    buffer, int32_t slot_count, int32_t entry_count, key_hashes, phy_offsets, store_timestamps_ms,
    Py_ssize_t start, Py_ssize_t stop,
) -> int:
    """Insert the entries ``start`` to ``stop`` of three columns until the file is full.

    Args:
        buffer: writable bytes of a whole index file.
        key_hashes: int32[n], as `index_hash` computes them, native byte order.
        phy_offsets, store_timestamps_ms: int64[n].

    Returns:
        How many were inserted; fewer than asked for means that the file is full.

    Raises:
        CorruptIndexError: the buffer's size contradicts the geometry.
        IndexError: a column is shorter than ``stop``.
    """
    cdef Py_buffer view, hashes, offsets, times
    cdef Geometry shape
    cdef Py_ssize_t at = start
    shape.slot_count = slot_count
    shape.entry_count = entry_count
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE | PyBUF_WRITABLE)
    memset(&hashes, 0, sizeof(Py_buffer))
    memset(&offsets, 0, sizeof(Py_buffer))
    memset(&times, 0, sizeof(Py_buffer))
    try:
        check_geometry(view.len, slot_count, entry_count)
        hold_column(key_hashes, &hashes, 4, "key_hashes")
        hold_column(phy_offsets, &offsets, 8, "phy_offsets")
        hold_column(store_timestamps_ms, &times, 8, "store_timestamps_ms")
        if start < 0 or stop < start or stop > min(
            hashes.len // 4, min(offsets.len // 8, times.len // 8)
        ):
            raise IndexError(f"entries {start} to {stop} lie outside the columns")
        with nogil:
            while at < stop:
                if at < stop - KEYS_AHEAD:
                    rmq_prefetch(
                        <bytes_t>view.buf + INDEX_HEADER_SIZE + <int64_t>SLOT_SIZE
                        * (max(0, (<int32_t*>hashes.buf)[at + KEYS_AHEAD]) % slot_count)
                    )
                # a negative hash is no hash; 0 is where RocketMQ puts what has no absolute value
                if not insert_key(
                    <uint8_t*>view.buf, &shape, max(0, (<int32_t*>hashes.buf)[at]),
                    (<int64_t*>offsets.buf)[at], (<int64_t*>times.buf)[at],
                ):
                    break
                at += 1
    finally:
        PyBuffer_Release(&view)
        for_each_release(&hashes, &offsets, &times)
    return at - start


cdef void for_each_release(Py_buffer* first, Py_buffer* second, Py_buffer* third) noexcept:
    if <void*>first.obj != NULL:
        PyBuffer_Release(first)
    if <void*>second.obj != NULL:
        PyBuffer_Release(second)
    if <void*>third.obj != NULL:
        PyBuffer_Release(third)


def read_header(buffer) -> tuple:
    """(begin_timestamp_ms, end_timestamp_ms, begin_phy_offset, end_phy_offset, hash_slot_count,
    index_count) of the first 40 bytes; a count below 1 reads as 1, as RocketMQ takes it."""
    cdef Py_buffer view
    cdef bytes_t base
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        if view.len < INDEX_HEADER_SIZE:
            raise CorruptIndexError("index file", -1, f"{view.len} bytes hold no header")
        base = <bytes_t>view.buf
        return (
            load_i64(base + INDEX_BEGIN_TIMESTAMP_AT), load_i64(base + INDEX_END_TIMESTAMP_AT),
            load_i64(base + INDEX_BEGIN_PHY_OFFSET_AT), load_i64(base + INDEX_END_PHY_OFFSET_AT),
            load_i32(base + INDEX_SLOT_COUNT_AT), max(1, observe_i32(base + INDEX_COUNT_AT)),
        )
    finally:
        PyBuffer_Release(&view)


def walk_chain(
    source, int32_t slot_count, int32_t entry_count, int32_t key_hash, *, int64_t begin_ms=0,
    int64_t end_ms=0x7FFFFFFFFFFFFFFF, Py_ssize_t max_offsets=64,
) -> tuple:
    """Physical offsets whose key has this hash, newest first.

    Args:
        source: bytes of a whole index file, or an open file descriptor, which is read with
            ``pread`` and so survives that the file is cut short.
        key_hash: from `index_hash`; keys of one record that have the same count once.
        begin_ms, end_ms: store times wanted; the index knows whole seconds only, so the caller
            compares the record's own time, as well as its topic and key.
        max_offsets: end after so many, 1 or more.

    Returns:
        (offsets, chain steps taken, True when the chain was found broken).

    Raises:
        CorruptIndexError: the size contradicts the geometry.

    Source: RocketMQ store/index/IndexFile.java, selectPhyOffset.
    """
    cdef Py_buffer view
    cdef Source from_where
    cdef Geometry shape
    cdef Walk report
    cdef int64_t count
    cdef bint mapped = not isinstance(source, int)
    from_where.fd = -1
    shape.slot_count = slot_count
    shape.entry_count = entry_count
    report.steps = report.matches = 0
    report.broken = False
    # a chain is no longer than the file has entries
    max_offsets = max(1, min(max_offsets, entry_count))
    offsets = bytearray(8 * max_offsets)
    cdef int64_t* found = <int64_t*><char*>offsets
    if mapped:
        PyObject_GetBuffer(source, &view, PyBUF_SIMPLE)
        from_where.base = <bytes_t>view.buf
        from_where.size = view.len
    else:
        from_where.base = NULL
        from_where.fd = source
        from_where.size = index_file_size(slot_count, entry_count)
    try:
        check_geometry(from_where.size, slot_count, entry_count)
        with nogil:
            # whoever chooses keys chooses how long a chain is
            count = walk(
                &from_where, &shape, key_hash, begin_ms, end_ms, found, max_offsets, entry_count,
                &report,
            )
    finally:
        if mapped:
            PyBuffer_Release(&view)
    return memoryview(offsets).cast("q")[:count].tolist(), report.steps, report.broken
