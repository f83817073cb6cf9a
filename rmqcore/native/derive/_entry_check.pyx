"""Checking the entries of one index file against the keys that the log has.

An index file is a function of its keys: each entry follows from its key, from the time of the
first one, and from the entry before it in the same slot; header and slots follow from all of them.
One pass in log order, with one number a slot, tells how far a file is what its keys make it.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free
cimport cython

from rmqcore.native.format._bytes cimport expect_read, load_i32, load_i64, store_i32, store_i64
from rmqcore.native.format._chain cimport Geometry, entry_at, time_diff
from rmqcore.native.base._hold cimport BufferHold
from rmqcore.native.format._layout cimport *
from rmqcore.native.format._record cimport bytes_t

from rmqcore.errors import CorruptIndexError

cdef enum:
    # prefetch distance: slots lie all over the table, so each is fetched some keys ahead
    KEYS_AHEAD = 16
    # entry 0, right behind the slots, is never used: its words are zero, as those of an empty slot
    ENTRY_0_WORDS = ENTRY_SIZE // SLOT_SIZE


@cython.final
cdef class EntryCheck:
    """One pass over one index file.

    Args:
        buffer: writable bytes of the whole file; held.
        slot_count, entry_count: its geometry; at most ``entry_count - 1`` entries.
        by_header: believe the header's number of entries and its times; else entries count as far
            as they agree with the keys.
        before_ms: store time of the last key of the file before, 0 for none: the first entry's
            time counts from there. Not compared with ``by_header``.

    Attributes:
        next_entry: number of the entry that is looked at next, from 1.
        limit: number behind the last one.

    Raises:
        CorruptIndexError: the buffer's size contradicts the geometry.

    Layout: docs/format/index-file.md.
    """

    cdef BufferHold hold
    cdef uint8_t* base
    cdef Geometry shape
    cdef int32_t* newest
    cdef bint by_header
    cdef int64_t before_time, begin_time, end_time, begin_offset, end_offset
    cdef int32_t used_slots
    cdef readonly int32_t next_entry
    cdef readonly int32_t limit

    def __cinit__(
        self, buffer, int32_t slot_count, int32_t entry_count, *, bint by_header,
        int64_t before_ms=0,
    ):
        self.hold = BufferHold(buffer)
        if self.hold.view.readonly:
            raise ValueError("the bytes of an index file that is checked are writable")
        self.shape.slot_count = slot_count
        self.shape.entry_count = entry_count
        if slot_count < 1 or entry_count < 2 or (
            entry_at(&self.shape, entry_count) != self.hold.view.len
        ):
            raise CorruptIndexError(
                "index file", -1,
                f"{self.hold.view.len} bytes are not a header, {slot_count} slots and "
                f"{entry_count} entries",
            )
        self.base = <uint8_t*>self.hold.view.buf
        self.next_entry = 1
        self.limit = entry_count
        self.by_header = by_header
        self.before_time = before_ms
        if by_header:
            self.limit = min(entry_count, max(1, load_i32(self.base + INDEX_COUNT_AT)))
            self.begin_time = load_i64(self.base + INDEX_BEGIN_TIMESTAMP_AT)
            self.end_time = load_i64(self.base + INDEX_END_TIMESTAMP_AT)
        self.newest = <int32_t*>calloc(slot_count + ENTRY_0_WORDS, sizeof(int32_t))
        if self.newest == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.newest)

    cdef bint link(self, const uint8_t* entry, int32_t key_hash, int64_t phy_offset) noexcept nogil:
        """Accept an entry when it leads to the one before it in its slot."""
        cdef int32_t* slot = &self.newest[key_hash % self.shape.slot_count]
        if load_i32(entry + ENTRY_PREVIOUS_AT) != slot[0]:
            return False
        self.used_slots += slot[0] == 0
        slot[0] = self.next_entry
        if self.next_entry == 1:
            self.begin_offset = phy_offset
        self.end_offset = phy_offset
        self.next_entry += 1
        return True

    cdef bint follows(
        self, int32_t key_hash, int64_t phy_offset, int64_t store_timestamp
    ) noexcept nogil:
        """Accept the next entry when it is that of a key."""
        cdef const uint8_t* entry = self.base + entry_at(&self.shape, self.next_entry)
        cdef bint first = self.next_entry == 1
        cdef int64_t begin = self.before_time if first else self.begin_time
        if (
            load_i32(entry + ENTRY_HASH_AT) != key_hash
            or load_i64(entry + ENTRY_PHY_OFFSET_AT) != phy_offset
            or not (first and self.by_header)
            and load_i32(entry + ENTRY_TIME_DIFF_AT) != time_diff(begin, store_timestamp)
            or not self.link(entry, key_hash, phy_offset)
        ):
            return False
        if first:
            self.begin_time = store_timestamp
        self.end_time = store_timestamp
        return True

    def compare(
        self, key_hashes, phy_offsets, store_timestamps_ms, Py_ssize_t start, Py_ssize_t stop
    ) -> int:
        """Accept the next entries as long as they are those of the keys ``start`` to ``stop``.

        Args:
            key_hashes: int32[n], as `_index.index_hash` computes them, native byte order.
            phy_offsets, store_timestamps_ms: int64[n].

        Returns:
            How many are; fewer than asked for means that the file ends or contradicts them.

        Raises:
            IndexError: a column is shorter than ``stop``.
        """
        cdef BufferHold hashes = BufferHold(key_hashes)
        cdef BufferHold offsets = BufferHold(phy_offsets)
        cdef BufferHold times = BufferHold(store_timestamps_ms)
        cdef const int32_t* hash_at = <const int32_t*>hashes.view.buf
        cdef const int64_t* offset_at = <const int64_t*>offsets.view.buf
        cdef const int64_t* time_at = <const int64_t*>times.view.buf
        cdef Py_ssize_t at = start
        if start < 0 or stop < start or stop > min(
            hashes.view.len // 4, min(offsets.view.len // 8, times.view.len // 8)
        ):
            raise IndexError(f"entries {start} to {stop} lie outside the columns")
        with nogil:
            while at < stop and self.next_entry < self.limit:
                if at < stop - KEYS_AHEAD:
                    expect_read(
                        <bytes_t>&self.newest[
                            max(0, hash_at[at + KEYS_AHEAD]) % self.shape.slot_count
                        ], 4,
                    )
                # a negative hash is no hash; `_index.put_keys` files it as 0
                if not self.follows(max(0, hash_at[at]), offset_at[at], time_at[at]):
                    break
                at += 1
        return at - start

    def pass_over(self, int64_t below) -> bool:
        """Accept the next entries of records that lie below a physical offset, without their keys.

        Returns:
            False when one contradicts the entries before it.
        """
        cdef const uint8_t* entry
        cdef int32_t key_hash
        cdef int64_t phy_offset
        cdef bint good = True
        with nogil:
            while self.next_entry < self.limit:
                entry = self.base + entry_at(&self.shape, self.next_entry)
                key_hash = load_i32(entry + ENTRY_HASH_AT)
                phy_offset = load_i64(entry + ENTRY_PHY_OFFSET_AT)
                if phy_offset >= below:
                    break
                good = (
                    key_hash >= 0 and phy_offset >= self.end_offset
                    and self.link(entry, key_hash, phy_offset)
                )
                if not good:
                    break
        return good

    def fits(self) -> bool:
        """True when all entries are accepted, and header and slots are those that they make.

        The number of used slots is not compared: no reader uses it.
        """
        cdef const uint8_t* slots = self.base + INDEX_HEADER_SIZE
        cdef int64_t slot
        cdef int32_t odd = 0
        cdef bint good
        with nogil:
            good = (
                self.next_entry == self.limit
                and load_i64(self.base + INDEX_BEGIN_TIMESTAMP_AT) == self.begin_time
                and load_i64(self.base + INDEX_END_TIMESTAMP_AT) == self.end_time
                and load_i64(self.base + INDEX_BEGIN_PHY_OFFSET_AT) == self.begin_offset
                and load_i64(self.base + INDEX_END_PHY_OFFSET_AT) == self.end_offset
            )
            for slot in range(self.shape.slot_count + ENTRY_0_WORDS):
                odd |= load_i32(slots + SLOT_SIZE * slot) ^ self.newest[slot]
        return good and odd == 0

    def mend(self) -> None:
        """Write header and slots for the accepted entries; what lies behind them is free again."""
        cdef uint8_t* slots = self.base + INDEX_HEADER_SIZE
        cdef int64_t slot
        with nogil:
            for slot in range(self.shape.slot_count + ENTRY_0_WORDS):
                # written only where it differs, so that a page that is right stays clean
                if load_i32(slots + SLOT_SIZE * slot) != self.newest[slot]:
                    store_i32(slots + SLOT_SIZE * slot, self.newest[slot])
            store_i64(self.base + INDEX_BEGIN_TIMESTAMP_AT, self.begin_time)
            store_i64(self.base + INDEX_END_TIMESTAMP_AT, self.end_time)
            store_i64(self.base + INDEX_BEGIN_PHY_OFFSET_AT, self.begin_offset)
            store_i64(self.base + INDEX_END_PHY_OFFSET_AT, self.end_offset)
            store_i32(self.base + INDEX_SLOT_COUNT_AT, self.used_slots)
            store_i32(self.base + INDEX_COUNT_AT, self.next_entry)
