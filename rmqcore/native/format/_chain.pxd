# Kernels over the hash chains of one index file, inlined where they are used.
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from rmqcore.native.format._bytes cimport RMQ_ASSERT, load_i32, load_i64, observe_i32
from rmqcore.native.format._layout cimport *
from rmqcore.native.format._record cimport bytes_t

cdef extern from "<unistd.h>" nogil:
    ssize_t pread(int fd, void* into, size_t size, int64_t at)


cdef struct Geometry:
    int32_t slot_count
    int32_t entry_count


cdef inline int64_t entry_at(const Geometry* shape, int32_t number) noexcept nogil:
    RMQ_ASSERT(0 <= number <= shape.entry_count)
    return INDEX_HEADER_SIZE + <int64_t>SLOT_SIZE * shape.slot_count + <int64_t>ENTRY_SIZE * number


cdef inline int32_t time_diff(int64_t begin, int64_t store_timestamp) noexcept nogil:
    """Whole seconds from the time that a file counts from, 0 for none yet, to a key's."""
    if begin <= 0 or store_timestamp < begin:
        return 0
    return <int32_t>min((store_timestamp - begin) / 1000, <int64_t>TIME_DIFF_MAX)


cdef struct Source:
    # mapped bytes, or a file that is read with pread
    bytes_t base
    int64_t size
    int fd


cdef inline int read_bytes(
    const Source* source, int64_t at, uint8_t* into, int32_t size
) noexcept nogil:
    if at < 0 or at > source.size - size:
        return 0
    if source.base != NULL:
        memcpy(into, source.base + at, size)
        return 1
    return pread(source.fd, into, size, at) == size


cdef struct Walk:
    int64_t steps
    int64_t matches
    bint broken


cdef inline int64_t walk(
    const Source* source, const Geometry* shape, int32_t key_hash, int64_t begin, int64_t end,
    int64_t* found, int64_t found_max, int64_t steps_max, Walk* report,
) noexcept nogil:
    """Collect physical offsets of entries with this hash, newest first; how many there are.

    Of entries of one record, one behind the other, the first: its keys may have the same hash. A
    report of ``steps_max`` steps says that there may be more.
    """
    cdef uint8_t word[4]
    cdef uint8_t header[INDEX_HEADER_SIZE]
    cdef uint8_t entry[ENTRY_SIZE]
    cdef int32_t count, number, previous, diff
    cdef int64_t count_found = 0, time, place
    if not read_bytes(
        source, INDEX_HEADER_SIZE + <int64_t>SLOT_SIZE * (key_hash % shape.slot_count), word, 4
    ):
        report.broken = True
        return 0
    number = observe_i32(word)
    # the slot before the count: what was added in between is then counted, and nothing is missed
    if not read_bytes(source, 0, header, INDEX_HEADER_SIZE):
        report.broken = True
        return 0
    count = max(1, observe_i32(header + INDEX_COUNT_AT))
    if count > shape.entry_count:
        report.broken = True
        return 0
    while (
        0 < number <= count and number < shape.entry_count and count_found < found_max
        and report.steps < steps_max
    ):
        report.steps += 1
        if not read_bytes(source, entry_at(shape, number), entry, ENTRY_SIZE):
            report.broken = True
            break
        diff = load_i32(entry + ENTRY_TIME_DIFF_AT)
        previous = load_i32(entry + ENTRY_PREVIOUS_AT)
        if load_i32(entry) == key_hash:
            # whole seconds; the first entry's and clamped ones say nothing about the time
            time = load_i64(header) + <int64_t>diff * 1000
            if number == 1 or diff <= 0 or diff == TIME_DIFF_MAX or (
                time <= end and time + 999 >= begin
            ):
                place = load_i64(entry + ENTRY_PHY_OFFSET_AT)
                if count_found == 0 or found[count_found - 1] != place:
                    found[count_found] = place
                    count_found += 1
        if previous >= number:
            # every link leads to an older entry, so a chain cannot turn in a circle
            report.broken = True
            break
        number = previous
    RMQ_ASSERT(report.steps <= count)
    report.matches = count_found
    return count_found
