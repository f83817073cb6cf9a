"""Queries of many keys: the walks of some keys go side by side, so that they wait for memory once.

A query goes from slot to entry, along a chain of entries, and to a record; each step waits for the
one before. Here all slots of a group of keys are asked for, then all entries, step by step, then
all records; the query of each key, which is `find_by_key`, then finds them in the processor's
cache.
"""

from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stdint cimport int32_t, int64_t

from rmqcore.native.format._bytes cimport expect_read, load_i32, load_i64, observe_i32
from rmqcore.native.format._chain cimport entry_at
from rmqcore.native.format._layout cimport *
from rmqcore.native.format._record cimport bytes_t, index_hash_of, java_hash_step
from rmqcore.native.read._key_query cimport MappedIndex, find_by_key
from rmqcore.native.read._log_map cimport LogMap

cdef enum:
    KEYS_AT_ONCE = 32
    # bytes of a record that hold its head, and of most the body and the properties, too
    RECORD_BYTES = 512
    # entries of a chain that are asked for; each further one is waited for
    CHAIN_STEPS = 8


cdef list find_many(
    list files, LogMap log, int64_t min_offset, str topic, list keys, int64_t begin_ms,
    int64_t end_ms, Py_ssize_t max_messages,
):
    """As `find_by_key` of each key; None in place of what has to take the general path."""
    cdef list found = []
    cdef Py_ssize_t first, number, stop, count = len(keys)
    for first in range(0, count, KEYS_AT_ONCE):
        stop = min(count, first + KEYS_AT_ONCE)
        for number in range(len(files) - 1, -1, -1):
            fetch(<MappedIndex>files[number], log, min_offset, topic, keys, first, stop)
        for number in range(first, stop):
            found.append(find_by_key(
                files, log, min_offset, topic, <str?>keys[number], begin_ms, end_ms, max_messages
            ))
    return found


cdef int fetch(
    MappedIndex file, LogMap log, int64_t min_offset, str topic, list keys, Py_ssize_t first,
    Py_ssize_t stop,
) except -1:
    """Ask for what the newest entry of each key leads to, and for the entries in front of it."""
    cdef bytes_t[KEYS_AT_ONCE] places
    cdef int32_t[KEYS_AT_ONCE] hashes
    cdef bytes_t base = <bytes_t>file.hold.view.buf
    cdef bytes_t record = NULL, key
    cdef Py_ssize_t size, index
    cdef int64_t at, readable = 0
    cdef int32_t begin, _step
    cdef bint further
    key = <bytes_t>PyUnicode_AsUTF8AndSize(topic, &size)
    begin = java_hash_step(0, key, <int32_t>size)
    begin = java_hash_step(begin, <bytes_t><const char*>b"#", 1)
    for index in range(stop - first):
        key = <bytes_t>PyUnicode_AsUTF8AndSize(<str?>keys[first + index], &size)
        hashes[index] = index_hash_of(java_hash_step(begin, key, <int32_t>size))
        at = INDEX_HEADER_SIZE + <int64_t>SLOT_SIZE * (hashes[index] % file.shape.slot_count)
        places[index] = base + at if at + 4 <= file.hold.view.len else NULL
        if places[index] != NULL:
            expect_read(places[index], 4)
    for index in range(stop - first):
        if places[index] != NULL:
            places[index] = fetch_entry(file, observe_i32(places[index]))
    # one step of every chain, then the next one
    for _step in range(CHAIN_STEPS):
        further = False
        for index in range(stop - first):
            if places[index] == NULL:
                continue
            if load_i32(places[index]) != hashes[index]:
                places[index] = fetch_entry(file, load_i32(places[index] + ENTRY_PREVIOUS_AT))
                further |= places[index] != NULL
                continue
            at = load_i64(places[index] + ENTRY_PHY_OFFSET_AT)
            places[index] = NULL
            if at >= min_offset and log.find(at, &record, &readable) is not None and readable > 0:
                expect_read(record, min(readable, RECORD_BYTES))
        if not further:
            break
    return 0


cdef inline bytes_t fetch_entry(MappedIndex file, int32_t number) noexcept:
    """Where an entry lies that was asked for; NULL where there is none."""
    cdef bytes_t entry
    cdef int64_t at
    if not 0 < number < file.shape.entry_count:
        return NULL
    at = entry_at(&file.shape, number)
    if at + ENTRY_SIZE > file.hold.view.len:
        return NULL
    entry = <bytes_t>file.hold.view.buf + at
    expect_read(entry, ENTRY_SIZE)
    # every third entry reaches into the next cache line
    expect_read(entry + ENTRY_SIZE - 1, 1)
    return entry
