# Finds the properties of a record that decide how it is dispatched, or that have columns.
# Inlined where they are used. No objects, no exceptions, no GIL.
from libc.stdint cimport int32_t, uint8_t
from libc.string cimport memchr, memcmp, memcpy, memset

from rmqcore.native.format._bytes cimport same_layout
from rmqcore.native.format._record cimport (
    PropertyWalk, Slice, bytes_t, named, next_property, walk_properties,
)

cdef enum:
    LAYOUT_SIZE_MIN = 16
    LAYOUT_SIZE_MAX = 256
    PROPERTY_COUNT = 8
    # bytes of the shortest name that the timer wheel looks at
    TIMER_NAME_MIN = 12

cdef struct Properties:
    Slice tags
    Slice keys
    Slice unique_key
    Slice delay
    Slice inner_num
    Slice inner_base
    Slice light_queues
    Slice light_offsets

# What a property's name says to RocketMQ's timer wheel.
cdef enum TimerWord:
    NO_TIMER
    TIMER_ASKED              # deliver the message later
    TIMER_DONE               # that has taken place

cdef struct Place:
    int32_t at
    int32_t size             # 0: there is none

# Where the properties of the last record lay: a fast path. Most records have properties of the same
# names and sizes as the one before, and comparing is much faster than searching. All zero at first.
cdef struct Layout:
    int32_t size             # of a properties string that has the layout, 0 while none is known
    int32_t last_size        # of the properties string that was walked last
    Place places[PROPERTY_COUNT]         # in the order of `Properties`
    uint8_t text[LAYOUT_SIZE_MAX]
    uint8_t fixed[LAYOUT_SIZE_MAX]       # 0 where another string of this layout may differ

cdef inline TimerWord timer_word(const Slice* name) noexcept nogil:
    if name.size < TIMER_NAME_MIN or memcmp(name.at, b"TIMER_", 6) != 0:
        return NO_TIMER
    if named(name, b"TIMER_OUT_MS", 12):
        return TIMER_DONE
    if (
        named(name, b"TIMER_DELAY_SEC", 15) or named(name, b"TIMER_DELAY_MS", 14)
        or named(name, b"TIMER_DELIVER_MS", 16)
    ):
        return TIMER_ASKED
    return NO_TIMER

cdef inline bint asks_for_timer(bytes_t text, int32_t size) noexcept nogil:
    """True when a properties text asks for a later delivery that has not taken place."""
    cdef PropertyWalk walk = walk_properties(text, size)
    cdef Slice name, value
    cdef TimerWord word
    cdef bint asked = False
    while next_property(&walk, &name, &value):
        word = timer_word(&name)
        if word == TIMER_DONE:
            return False
        asked |= word == TIMER_ASKED
    return asked

cdef inline int32_t place_of(const Slice* name) noexcept nogil:
    """Which of `Properties` a name means; PROPERTY_COUNT for none."""
    if named(name, b"TAGS", 4):
        return 0
    if named(name, b"KEYS", 4):
        return 1
    if named(name, b"UNIQ_KEY", 8):
        return 2
    if named(name, b"DELAY", 5):
        return 3
    if named(name, b"INNER_NUM", 9):
        return 4
    if named(name, b"INNER_BASE", 10):
        return 5
    if named(name, b"INNER_MULTI_DISPATCH", 20):
        return 6
    if named(name, b"INNER_MULTI_QUEUE_OFFSET", 24):
        return 7
    return PROPERTY_COUNT

cdef inline void find_places(Layout* layout, bytes_t at, int32_t size) noexcept nogil:
    """Walk a properties string; of one size twice in a row, keep the layout."""
    cdef PropertyWalk walk = walk_properties(at, size)
    cdef Slice name, value
    cdef int32_t index, start
    cdef bint keep = size == layout.last_size and LAYOUT_SIZE_MIN <= size <= LAYOUT_SIZE_MAX
    layout.size = size if keep else 0
    layout.last_size = size
    memset(layout.places, 0, sizeof(layout.places))
    if keep:
        memcpy(layout.text, at, size)
        memset(layout.fixed, 0xFF, size)
    while next_property(&walk, &name, &value):
        start = <int32_t>(value.at - at)
        index = place_of(&name)
        if index < PROPERTY_COUNT:
            layout.places[index].at = start
            layout.places[index].size = value.size
        if keep:
            for index in range(value.size):
                if value.at[index] != 1:
                    layout.fixed[start + index] = 0

cdef inline void read_properties(
    Layout* layout, bytes_t at, int32_t size, Properties* found
) noexcept nogil:
    cdef Slice* slices = &found.tags
    cdef int32_t index
    if size != layout.size or size == 0 or not same_layout(at, layout.text, layout.fixed, size):
        find_places(layout, at, size)
    for index in range(PROPERTY_COUNT):
        slices[index].at = at + layout.places[index].at if layout.places[index].size else NULL
        slices[index].size = layout.places[index].size

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
