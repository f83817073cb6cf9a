# The properties of a record that decide where it is dispatched to, and how, found in one pass.
# Inlined where they are used. No objects, no exceptions, no GIL.
from libc.stdint cimport int32_t
from libc.string cimport memchr, memset

from rmqcore._record cimport Slice, bytes_t, named, next_property

cdef struct Properties:
    Slice tags
    Slice keys
    Slice unique_key
    Slice delay
    Slice inner_num
    Slice inner_base
    Slice light_queues
    Slice light_offsets

cdef inline void read_properties(bytes_t at, int32_t size, Properties* found) noexcept nogil:
    cdef int32_t position = 0
    cdef Slice name, value
    memset(found, 0, sizeof(Properties))
    while next_property(at, size, &position, &name, &value):
        if named(&name, b"TAGS", 4):
            found.tags = value
        elif named(&name, b"KEYS", 4):
            found.keys = value
        elif named(&name, b"UNIQ_KEY", 8):
            found.unique_key = value
        elif named(&name, b"DELAY", 5):
            found.delay = value
        elif named(&name, b"INNER_NUM", 9):
            found.inner_num = value
        elif named(&name, b"INNER_BASE", 10):
            found.inner_base = value
        elif named(&name, b"INNER_MULTI_DISPATCH", 20):
            found.light_queues = value
        elif named(&name, b"INNER_MULTI_QUEUE_OFFSET", 24):
            found.light_offsets = value

cdef inline bint next_item(Slice* rest, int separator, Slice* item) noexcept nogil:
    """Split the next item off a separated list; False at its end."""
    cdef bytes_t found
    if rest.at == NULL or rest.size < 0:
        return False
    found = <bytes_t>memchr(rest.at, separator, rest.size)
    item.at = rest.at
    if found == NULL:
        item.size = rest.size
        rest.size = -1
    else:
        item.size = <int32_t>(found - rest.at)
        rest.at = found + 1
        rest.size -= item.size + 1
    return True
