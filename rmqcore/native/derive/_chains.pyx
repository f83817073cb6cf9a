"""Checking the hash chains of an index file, piece by piece.

Entries are in the order of their insertion, so each must lead to the entry before it in its slot,
and each slot to its last one. That is checked in one pass with one number a slot.
"""

from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc, free
cimport cython

from rmqcore.native.format._bytes cimport load_i32
from rmqcore.native.base._hold cimport BufferHold
from rmqcore.native.format._layout cimport *
from rmqcore.native.format._record cimport bytes_t


@cython.final
cdef class ChainCheck:
    """One pass over one index file: call `entries` for all entries, then `slots` for all slots.

    Args:
        slot_count: hash slots of the file.
        found_max: how many wrong places are named; the others are only counted.

    Attributes:
        wrong_entries, wrong_slots: numbers of those that are wrong, the first ones.
        wrong_count: all of them.
        used_slots: slots that lead to an entry.
    """

    cdef int32_t* newest
    cdef int32_t slot_count
    cdef int64_t found_max
    cdef readonly list wrong_entries
    cdef readonly list wrong_slots
    cdef readonly int64_t wrong_count
    cdef readonly int64_t used_slots

    def __cinit__(self, int32_t slot_count, *, int64_t found_max=16):
        if slot_count < 1:
            raise ValueError(f"{slot_count} slots")
        self.slot_count = slot_count
        self.found_max = found_max
        self.wrong_entries = []
        self.wrong_slots = []
        self.newest = <int32_t*>calloc(slot_count, sizeof(int32_t))
        if self.newest == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.newest)

    def entries(self, buffer, int32_t first) -> None:
        """Take in the entries from number ``first`` on, 20 bytes each."""
        cdef BufferHold hold = BufferHold(buffer)
        cdef bytes_t base = <bytes_t>hold.view.buf
        cdef int64_t index
        cdef int32_t key_hash, slot
        for index in range(hold.view.len // ENTRY_SIZE):
            key_hash = load_i32(base + index * ENTRY_SIZE + ENTRY_HASH_AT)
            slot = key_hash % self.slot_count if key_hash >= 0 else -1
            if slot < 0 or (
                load_i32(base + index * ENTRY_SIZE + ENTRY_PREVIOUS_AT) != self.newest[slot]
            ):
                self.wrong_count += 1
                if self.wrong_count <= self.found_max:
                    self.wrong_entries.append(first + index)
            if slot >= 0:
                self.newest[slot] = <int32_t>(first + index)

    def slots(self, buffer, int32_t first) -> None:
        """Take in the slots from number ``first`` on, 4 bytes each, after all entries."""
        cdef BufferHold hold = BufferHold(buffer)
        cdef bytes_t base = <bytes_t>hold.view.buf
        cdef int64_t index
        cdef int64_t count = hold.view.len // SLOT_SIZE
        if first < 0 or count > self.slot_count - first:
            raise IndexError(f"slots {first} to {first + count} of {self.slot_count}")
        for index in range(count):
            if self.newest[first + index]:
                self.used_slots += 1
            if load_i32(base + index * SLOT_SIZE) != self.newest[first + index]:
                self.wrong_count += 1
                if self.wrong_count <= self.found_max:
                    self.wrong_slots.append(first + index)
