"""The reput pipeline's kernel: a region of the commit log becomes consume-queue units and keys.

`DispatchBatch.scan` walks whole records without the GIL and fills columns: per queue the 20-byte
units in order, and for the index one (hash, offset, time) triple a key. Python then appends each
queue's `QueueStretch` in one copy and inserts the keys in one call; no loop over records runs in
Python.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp
cimport cython

from rmqcore.native.base._hold cimport BufferHold
from rmqcore.native.format._bytes cimport RMQ_ASSERT, load_i64
from rmqcore.native.format._layout cimport *
from rmqcore.native.format._properties cimport Layout, Properties, next_item, read_properties
from rmqcore.native.format._record cimport (
    CHECK_BODY, CHECK_PROPERTY, NO_FILE, RecordHead, Slice, bytes_t, index_hash_of, java_hash_step,
    next_record, rmq_crc32_init,
)
from rmqcore.native.format._tags cimport DelayLevels, decimal, tags_code_of
from rmqcore.native.derive._units cimport (
    Group, Row, addressable, dispatches_to_many, java_hash_of, new_column, store_batch_unit,
    store_unit,
)

rmq_crc32_init()

# A record may carry 32,767 bytes of one-letter keys; its keys must fit into an empty batch.
cdef int32_t KEYS_A_RECORD_MAX = 16390
cdef int64_t INNER_BATCH_MAX = 32767
# A stretch is large enough when it has this many units for each queue: its caller spends 20 us
# on a queue, whatever the number of its units.
cdef int32_t UNITS_A_QUEUE = 64
# What a disk writes as a whole, or not at all.
cdef int32_t SECTOR = 512


cdef inline bint lacks_sector(bytes_t record, const RecordHead* head) noexcept nogil:
    """True when a sector's part of a record's properties is zeros: no CRC covers these."""
    cdef int32_t end = head.properties_at + head.properties_size, at, zero
    at = head.properties_at + (SECTOR - 1)
    at -= <int32_t>((head.phy_offset + at) % SECTOR)
    while at < end:
        zero = at
        while zero < min(at + SECTOR, end) and record[zero] == 0:
            zero += 1
        if zero == min(at + SECTOR, end):
            return True
        at += SECTOR
    return False


@cython.final
cdef class QueueStretch:
    """Units of one queue without a gap between them, as one scan of the log has them.

    Good until the batch scans again.

    Attributes:
        topic, queue_id: the queue.
        first_queue_offset: of the first message.
        units: memoryview, 20 bytes a record.
        inner_batch: some record of the queue's holds several messages.
        behind_gap: other units of the queue come before these in the batch.
    """

    cdef readonly str topic
    cdef readonly int32_t queue_id
    cdef readonly int64_t first_queue_offset
    cdef readonly object units
    cdef readonly bint inner_batch
    cdef readonly bint behind_gap
    cdef DispatchBatch batch
    cdef const Group* group
    cdef int32_t start
    cdef int32_t stop

    def since(self, int64_t phy_offset) -> QueueStretch | None:
        """The part of it whose records lie at a physical offset or behind; None for nothing."""
        cdef DispatchBatch batch = self.batch
        cdef int32_t at = self.start
        while at < self.stop and load_i64(batch.unit_at + UNIT_SIZE * <int64_t>at) < phy_offset:
            at += 1
        if at == self.start:
            return self
        if at == self.stop:
            return None
        batch.arrange()
        first = batch.rows[batch.row_at[at]].queue_offset
        return new_stretch(batch, self.group, self.topic, at, self.stop, first)

    def plain(self) -> list:
        """The units as a plain consume queue takes them: one a record, at its first message.

        Returns:
            (queue offset of the first, units) of each run of units that lie side by side: one run,
            unless records hold several messages.
        """
        cdef int32_t at
        if not self.inner_batch:
            return [(self.first_queue_offset, self.units)]
        self.batch.arrange()
        return [
            (self.batch.rows[self.batch.row_at[self.start + at]].queue_offset,
             self.units[UNIT_SIZE * at:UNIT_SIZE * (at + 1)])
            for at in range(self.stop - self.start)
        ]

    @property
    def batch_units(self) -> bytes:
        """The units as a batch consume queue takes them: 46 bytes a record."""
        cdef int32_t place
        cdef bytearray units = bytearray(BATCH_UNIT_SIZE * (self.stop - self.start))
        cdef uint8_t* unit = <uint8_t*>PyByteArray_AS_STRING(units)
        self.batch.arrange()
        for place in range(self.start, self.stop):
            store_batch_unit(unit, &self.batch.rows[self.batch.row_at[place]])
            unit += BATCH_UNIT_SIZE
        return bytes(units)


cdef QueueStretch new_stretch(
    DispatchBatch batch, const Group* group, str topic, int32_t start, int32_t stop,
    int64_t first_queue_offset,
):
    cdef QueueStretch stretch = QueueStretch.__new__(QueueStretch)
    stretch.batch = batch
    stretch.group = group
    stretch.topic = topic
    stretch.queue_id = group.queue_id
    stretch.first_queue_offset = first_queue_offset
    stretch.inner_batch = group.inner_batch
    stretch.behind_gap = start > group.first_row
    stretch.start = start
    stretch.stop = stop
    stretch.units = batch.units[UNIT_SIZE * <int64_t>start:UNIT_SIZE * <int64_t>stop]
    return stretch


@cython.final
cdef class DispatchBatch:
    """What one stretch of the commit log adds to consume queues and index.

    Args:
        row_count_max: units a scan may produce before it stops with CAPACITY.
        row_count_enough: units at which it stops when they belong to few queues: each one touches
            130 bytes of the batch, and longer stretches are no quicker then.
        delays_ms: delay of level 1, 2, … in milliseconds; decides the tags code of delayed
            messages.
        index_tags: also index ``topic#T#TAGS`` (RocketMQ 5.4 and later).
        multi_dispatch: fan out to light queues (LMQ).
        keys: gather keys; hashing them takes longer than all else.

    Attributes:
        row_count, group_count, key_count, record_count: units, queues, keys and records of the
            last scan.
        unaddressable_count: units left out because no queue can have their name or offset.
        end_offset: physical offset where the last scan stopped.
        store_timestamp: Unix time in milliseconds of its last record.
        key_hashes: memoryview of int32[n], of which the first ``key_count`` count; as
            `_index.index_hash`.
        key_offsets, key_timestamps: memoryviews of int64[n]; physical offset, which never falls,
            and store time of each key's record.

    Memory that no scan has come to is not touched, so that a batch takes no more than the longest
    stretch needs.

    Source: RocketMQ store/DefaultMessageStore.java, ReputMessageService.doReput and the
    dispatchers; store/MultiDispatchUtils.java.
    """

    cdef Row* rows
    cdef Group* groups
    cdef int32_t* table
    cdef uint32_t table_mask
    cdef readonly int32_t row_count
    cdef readonly int32_t group_count
    cdef readonly int32_t key_count
    cdef readonly int64_t record_count
    cdef readonly int64_t unaddressable_count
    cdef readonly int64_t end_offset
    cdef readonly int64_t store_timestamp
    cdef int32_t row_count_max
    cdef int32_t row_count_enough
    cdef int32_t key_count_max
    cdef public bint index_tags
    cdef bint multi_dispatch, keys
    cdef readonly object key_hashes
    cdef readonly object key_offsets
    cdef readonly object key_timestamps
    cdef int32_t* key_hash_at
    cdef int64_t* key_offset_at
    cdef int64_t* key_timestamp_at
    cdef int64_t* delays
    cdef Layout layout
    cdef DelayLevels levels
    cdef BufferHold hold
    cdef object units
    cdef uint8_t* unit_at
    cdef int32_t* row_at
    cdef bint arranged

    def __cinit__(self, *, int32_t row_count_max=32768, int32_t row_count_enough=0x7FFFFFFF,
                  delays_ms=(), bint index_tags=True, bint multi_dispatch=False, bint keys=True):
        cdef int32_t level
        row_count_max = max(row_count_max, KEYS_A_RECORD_MAX)
        self.row_count_max = row_count_max
        self.row_count_enough = max(1, row_count_enough)
        self.key_count_max = 4 * row_count_max
        self.index_tags = index_tags
        self.multi_dispatch = multi_dispatch
        self.keys = keys
        self.table_mask = 1
        while self.table_mask < 2 * <uint32_t>row_count_max:
            self.table_mask <<= 1
        self.rows = <Row*>malloc(row_count_max * sizeof(Row))
        self.groups = <Group*>malloc(row_count_max * sizeof(Group))
        self.table = <int32_t*>calloc(self.table_mask, sizeof(int32_t))
        self.delays = <int64_t*>malloc((len(delays_ms) + 1) * sizeof(int64_t))
        if not self.rows or not self.groups or not self.table or not self.delays:
            raise MemoryError
        self.table_mask -= 1
        for level in range(<int32_t>len(delays_ms)):
            self.delays[level] = delays_ms[level]
        self.levels.delays = self.delays
        self.levels.count = <int32_t>len(delays_ms)
        self.key_hashes = new_column(self.key_count_max, "i", <void**>&self.key_hash_at)
        self.key_offsets = new_column(self.key_count_max, "q", <void**>&self.key_offset_at)
        self.key_timestamps = new_column(self.key_count_max, "q", <void**>&self.key_timestamp_at)
        self.units = new_column(UNIT_SIZE * row_count_max, "B", <void**>&self.unit_at)

    def __dealloc__(self):
        free(self.rows)
        free(self.groups)
        free(self.table)
        free(self.delays)
        free(self.row_at)

    def clear(self) -> None:
        """Forget the last scan and release its buffer."""
        cdef int32_t index
        for index in range(self.group_count):
            self.table[self.groups[index].bucket] = 0
        self.row_count = self.group_count = self.key_count = 0
        self.record_count = self.unaddressable_count = 0
        self.arranged = False
        self.hold = None

    cdef uint32_t bucket_of(self, const Group* group) noexcept nogil:
        """The table's place for a queue: its own, or the empty one where it belongs."""
        cdef uint32_t bucket = <uint32_t>java_hash_of(group.topic, group.topic_size)
        cdef const Group* other
        bucket = (bucket * 31 + <uint32_t>group.queue_id) * 0x9E3779B1u
        bucket = (bucket >> 7) & self.table_mask
        while self.table[bucket]:
            other = &self.groups[self.table[bucket] - 1]
            if (
                other.queue_id == group.queue_id and other.topic_size == group.topic_size
                and memcmp(other.topic, group.topic, group.topic_size) == 0
            ):
                break
            bucket = (bucket + 1) & self.table_mask
        return bucket

    def scan(
        self, buffer, int64_t at, int64_t stop, *, int64_t base_offset, bint verify_crc=False,
        bint verify_crc_property=False, int64_t torn_since_ms=INT64_MAX,
    ) -> tuple:
        """Walk the records that lie wholly between ``at`` and ``stop``.

        Args:
            buffer: bytes of the commit log; held until the next scan or `clear`.
            at, stop: positions in the buffer.
            base_offset: physical offset of the buffer's first byte.
            verify_crc: compare each body with its CRC.
            verify_crc_property: demand and check the ``__CRC32#`` property instead.
            torn_since_ms: records that were stored then, or later, are damaged when their
                properties lack a sector.

        Returns:
            (position where it stopped, why: `Status` of _layout.pxd). OK: reached ``stop``; BLANK:
            at an end-of-file record; EMPTY: at zeros; CAPACITY: call again from there; negative:
            no good record is there.
        """
        cdef int status = OK
        cdef int checks = CHECK_PROPERTY if verify_crc_property else CHECK_BODY if verify_crc else 0
        cdef RecordHead head
        cdef bytes_t base
        self.clear()
        self.hold = BufferHold(buffer, None, base_offset)
        if at < 0 or stop < at or stop > self.hold.view.len:
            raise IndexError(f"{at} to {stop} lie outside the buffer")
        base = <bytes_t>self.hold.view.buf
        with nogil:
            while at < stop:
                status = next_record(
                    base + at, stop - at, base_offset + at, NO_FILE, checks, &head
                )
                if status == OK and head.store_timestamp >= torn_since_ms:
                    status = BAD_CRC if lacks_sector(base + at, &head) else OK
                if status == OK:
                    status = self.add_record(base + at, &head)
                if status != OK:
                    break
                self.record_count += 1
                self.store_timestamp = head.store_timestamp
                at += head.total_size
            self.end_offset = base_offset + at
            self.sort()
        return at, status

    cdef int add_record(self, bytes_t record, const RecordHead* head) noexcept nogil:
        """Add one record's units and keys; CAPACITY when they do not fit any more."""
        cdef Properties found
        cdef int32_t transaction = head.sys_flag & TRANSACTION_MASK
        cdef int64_t count = 1, base_offset = head.queue_offset
        cdef bint inner_batch = False
        if (
            self.row_count_max - self.row_count < KEYS_A_RECORD_MAX
            or self.key_count_max - self.key_count < KEYS_A_RECORD_MAX
        ) and (self.row_count > self.row_count_max - 1 - head.properties_size // 4
               or self.key_count > self.key_count_max - 3 - head.properties_size // 2):
            return CAPACITY
        if self.row_count >= max(self.row_count_enough, UNITS_A_QUEUE * self.group_count):
            return CAPACITY
        read_properties(
            &self.layout, record + head.properties_at, head.properties_size, &found
        )
        if self.keys and transaction != TRANSACTION_ROLLBACK:
            self.add_keys(record, head, &found)
        if transaction == 0 or transaction == TRANSACTION_COMMIT:
            if head.sys_flag & INNER_BATCH and found.inner_num.at and found.inner_base.at:
                inner_batch = True
                count = decimal(&found.inner_num)
                if count < 1 or count > INNER_BATCH_MAX:
                    count = 1
                base_offset = max(0, decimal(&found.inner_base))
            self.add_row(
                record + head.topic_at, head.topic_size, head.queue_id, base_offset,
                tags_code_of(&self.levels, record, head, &found.tags, &found.delay), head,
                <int32_t>count, inner_batch,
            )
            if (
                self.multi_dispatch and found.light_queues.at and found.light_offsets.at
                and dispatches_to_many(record + head.topic_at, head.topic_size)
            ):
                self.fan_out(record, head, &found)
        return OK

    cdef void add_row(
        self, bytes_t topic, int32_t topic_size, int32_t queue_id, int64_t queue_offset,
        int64_t tags_code, const RecordHead* head, int32_t message_count, bint inner_batch,
    ) noexcept nogil:
        cdef Group* group = &self.groups[self.group_count]
        cdef Row* row = &self.rows[self.row_count]
        cdef uint32_t bucket
        if not addressable(topic, topic_size, queue_id, queue_offset):
            self.unaddressable_count += 1
            return
        RMQ_ASSERT(self.row_count < self.row_count_max)
        group.topic = topic
        group.topic_size = topic_size
        group.queue_id = queue_id
        bucket = self.bucket_of(group)
        if self.table[bucket] == 0:
            self.group_count += 1
            self.table[bucket] = self.group_count
            group.bucket = bucket
            group.count = 0
            group.first_queue_offset = queue_offset
            group.next_queue_offset = queue_offset
            group.contiguous = True
            group.inner_batch = False
        group = &self.groups[self.table[bucket] - 1]
        if queue_offset != group.next_queue_offset:
            group.contiguous = False
        if inner_batch:
            group.inner_batch = True
        group.next_queue_offset = queue_offset + message_count
        group.count += 1
        row.phy_offset = head.phy_offset
        row.size = head.total_size
        row.tags_code = tags_code
        row.store_timestamp = head.store_timestamp
        row.queue_offset = queue_offset
        row.group = self.table[bucket] - 1
        row.message_count = message_count
        self.row_count += 1

    cdef void fan_out(
        self, bytes_t record, const RecordHead* head, const Properties* found
    ) noexcept nogil:
        """One more unit for each light queue that the record names; other queues get none by it."""
        cdef Slice names = found.light_queues, offsets = found.light_offsets, name, offset
        cdef int64_t tags_code = tags_code_of(
            &self.levels, record, head, &found.tags, &found.delay
        )
        cdef int64_t queue_offset
        while next_item(&names, 44, &name):
            if not next_item(&offsets, 44, &offset):
                break
            queue_offset = decimal(&offset)
            if queue_offset < 0 or name.size < 5 or memcmp(name.at, b"%LMQ%", 5) != 0:
                continue
            self.add_row(name.at, name.size, 0, queue_offset, tags_code, head, 1, False)

    cdef void add_key(self, int32_t hash, const RecordHead* head) noexcept nogil:
        RMQ_ASSERT(self.key_count < self.key_count_max)
        self.key_hash_at[self.key_count] = index_hash_of(hash)
        self.key_offset_at[self.key_count] = head.phy_offset
        self.key_timestamp_at[self.key_count] = head.store_timestamp
        self.key_count += 1

    cdef void add_keys(
        self, bytes_t record, const RecordHead* head, const Properties* found
    ) noexcept nogil:
        """UNIQ_KEY, each word of KEYS, then the tags, as RocketMQ's IndexService orders them."""
        cdef int32_t prefix = java_hash_step(
            java_hash_of(record + head.topic_at, head.topic_size), <bytes_t><const char*>b"#", 1
        )
        cdef Slice words = found.keys, word
        if found.unique_key.at:
            self.add_key(java_hash_step(prefix, found.unique_key.at, found.unique_key.size), head)
        if words.at:
            while next_item(&words, 32, &word):
                if word.size:
                    self.add_key(java_hash_step(prefix, word.at, word.size), head)
        if self.index_tags and found.tags.at:
            prefix = java_hash_step(prefix, <bytes_t><const char*>b"T#", 2)
            self.add_key(java_hash_step(prefix, found.tags.at, found.tags.size), head)

    cdef void sort(self) noexcept nogil:
        """Encode the units grouped by queue, each queue's in log order."""
        cdef int32_t index, place = 0
        cdef uint8_t* unit
        for index in range(self.group_count):
            self.groups[index].first_row = place
            place += self.groups[index].count
        RMQ_ASSERT(place == self.row_count)
        for index in range(self.row_count):
            unit = self.unit_at + UNIT_SIZE * <int64_t>self.groups[self.rows[index].group].first_row
            self.groups[self.rows[index].group].first_row += 1
            store_unit(unit, &self.rows[index])
        for index in range(self.group_count):
            self.groups[index].first_row -= self.groups[index].count

    cdef int arrange(self) except -1:
        """Find the row of each sorted unit; most scans do not need it."""
        cdef int32_t index
        cdef Group* group
        if self.arranged:
            return 0
        if self.row_at == NULL:
            self.row_at = <int32_t*>calloc(self.row_count_max, sizeof(int32_t))
            if self.row_at == NULL:
                raise MemoryError
        for index in range(self.row_count):
            group = &self.groups[self.rows[index].group]
            self.row_at[group.first_row] = index
            group.first_row += 1
        for index in range(self.group_count):
            self.groups[index].first_row -= self.groups[index].count
        self.arranged = True
        return 0

    def stretches(self) -> list:
        """What the last scan adds to each queue, cut where its queue offsets have a gap.

        Returns:
            list of QueueStretch; those of one queue follow each other, in log order.
        """
        cdef int32_t index, start, place, stop
        cdef Group* group
        cdef Row* row
        cdef list found = []
        for index in range(self.group_count):
            group = &self.groups[index]
            start, stop = group.first_row, group.first_row + group.count
            topic = group.topic[:group.topic_size].decode("utf-8", "replace")
            if group.contiguous:
                found.append(new_stretch(self, group, topic, start, stop, group.first_queue_offset))
                continue
            self.arrange()
            for place in range(start + 1, stop + 1):
                row = &self.rows[self.row_at[place - 1]]
                if place < stop and (
                    self.rows[self.row_at[place]].queue_offset
                    == row.queue_offset + row.message_count
                ):
                    continue
                row = &self.rows[self.row_at[start]]
                found.append(new_stretch(self, group, topic, start, place, row.queue_offset))
                start = place
        return found

    def __len__(self):
        return self.row_count
