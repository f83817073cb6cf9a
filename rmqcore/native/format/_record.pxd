# Kernels over one record, inlined where they are used. No objects, no exceptions, no GIL.
# A record is read only through `read_head`, which checks every length against the bytes there are.
#
# A record, big-endian; docs/format/commit-log.md explains it, and a test compares both tables:
#
#    0  i32    total_size
#    4  i32    magic
#    8  i32    body_crc
#   12  i32    queue_id
#   16  i32    flag
#   20  i64    queue_offset
#   28  i64    phy_offset
#   36  i32    sys_flag
#   40  i64    born_timestamp
#   48  bytes  born_host                     8, or 20 with BORN_HOST_V6
#    .  i64    store_timestamp
#    .  bytes  store_host                    8, or 20 with STORE_HOST_V6
#    .  i32    reconsume_times
#    .  i64    prepared_transaction_offset
#    .  i32    body_size
#    .  bytes  body
#    .  i8     topic_size                    i16 in version 2
#    .  UTF-8  topic
#    .  i16    properties_size
#    .  UTF-8  properties
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from rmqcore.native.format._bytes cimport (
    RMQ_ASSERT, copy_text, load_i16, load_i32, load_i64, lowest_bit, separators, store_i16,
    store_i32, store_i64,
)
from rmqcore.native.format._layout cimport *

cdef extern from "_crc32.h" nogil:
    uint32_t rmq_crc32(uint32_t crc, const uint8_t* data, size_t size) noexcept
    uint32_t rmq_crc32_by_table(uint32_t crc, const uint8_t* data, size_t size) noexcept
    void rmq_crc32_init() noexcept
    const char* rmq_crc32_name

ctypedef const uint8_t* bytes_t

cdef struct RecordHead:
    int32_t total_size
    int32_t magic
    int32_t body_crc
    int32_t queue_id
    int32_t flag
    int32_t sys_flag
    int64_t queue_offset
    int64_t phy_offset
    int64_t born_timestamp
    int64_t store_timestamp
    int64_t prepared_transaction_offset
    int32_t reconsume_times
    # positions and sizes inside the record
    int32_t born_host_size
    int32_t store_host_at
    int32_t store_host_size
    int32_t body_at
    int32_t body_size
    int32_t topic_at
    int32_t topic_size
    int32_t properties_at
    int32_t properties_size

# A property value inside a record; at is NULL when it has none.
cdef struct Slice:
    bytes_t at
    int32_t size

cdef inline uint32_t java_crc32(bytes_t data, size_t size) noexcept nogil:
    return rmq_crc32(0, data, size) & 0x7FFFFFFF

cdef inline int read_head(bytes_t p, int64_t available, RecordHead* head) noexcept nogil:
    """Fill `head` from the record at `p`, of which `available` bytes may be read.

    OK, BLANK (only total_size and magic are set), EMPTY, TRUNCATED, BAD_MAGIC or BAD_SIZE.
    """
    cdef int64_t at
    cdef int32_t topic_width
    if available < BLANK_SIZE_MIN:
        return TRUNCATED
    head.total_size = load_i32(p)
    head.magic = load_i32(p + MAGIC_AT)
    if head.total_size == 0 and head.magic == 0:
        return EMPTY
    if head.magic == MAGIC_BLANK:
        if head.total_size < BLANK_SIZE_MIN:
            return BAD_SIZE
        return BLANK if head.total_size <= available else TRUNCATED
    if head.magic != MAGIC_V1 and head.magic != MAGIC_V2:
        return BAD_MAGIC
    if head.total_size < RECORD_SIZE_MIN:
        return BAD_SIZE
    if head.total_size > available:
        return TRUNCATED
    head.body_crc = load_i32(p + BODY_CRC_AT)
    head.queue_id = load_i32(p + QUEUE_ID_AT)
    head.flag = load_i32(p + FLAG_AT)
    head.queue_offset = load_i64(p + QUEUE_OFFSET_AT)
    head.phy_offset = load_i64(p + PHY_OFFSET_AT)
    head.sys_flag = load_i32(p + SYS_FLAG_AT)
    head.born_timestamp = load_i64(p + BORN_TIMESTAMP_AT)
    head.born_host_size = HOST_V6_SIZE if head.sys_flag & BORN_HOST_V6 else HOST_V4_SIZE
    head.store_host_size = HOST_V6_SIZE if head.sys_flag & STORE_HOST_V6 else HOST_V4_SIZE
    topic_width = 1 if head.magic == MAGIC_V1 else 2
    if head.total_size < FIXED_SIZE + head.born_host_size + head.store_host_size + topic_width + 2:
        return BAD_SIZE
    at = BORN_HOST_AT + head.born_host_size
    head.store_timestamp = load_i64(p + at)
    head.store_host_at = <int32_t>(at + 8)
    at += 8 + head.store_host_size
    head.reconsume_times = load_i32(p + at)
    head.prepared_transaction_offset = load_i64(p + at + 4)
    head.body_size = load_i32(p + at + 12)
    head.body_at = <int32_t>(at + 16)
    at += 16
    # what is left for body, topic with its length, and properties with theirs
    if head.body_size < 0 or head.body_size > head.total_size - at - topic_width - 2:
        return BAD_SIZE
    at += head.body_size
    if topic_width == 1:
        head.topic_size = p[at]
    else:
        head.topic_size = load_i16(p + at)
    at += topic_width
    head.topic_at = <int32_t>at
    if head.topic_size < 0 or head.topic_size > head.total_size - at - 2:
        return BAD_SIZE
    at += head.topic_size
    head.properties_size = load_i16(p + at)
    head.properties_at = <int32_t>(at + 2)
    if head.properties_size < 0 or at + 2 + head.properties_size != head.total_size:
        return BAD_SIZE
    RMQ_ASSERT(head.properties_at + head.properties_size <= available)
    return OK

cdef inline int check_body_crc(bytes_t p, const RecordHead* head) noexcept nogil:
    if head.body_size == 0:
        return OK
    RMQ_ASSERT(head.body_at + head.body_size < head.total_size)
    return OK if <int32_t>java_crc32(p + head.body_at, head.body_size) == head.body_crc else BAD_CRC

# What `next_record` compares beside the lengths and the offset.
cdef enum:
    CHECK_BODY = 1
    CHECK_PROPERTY = 2
    # nothing is known of the file that the bytes are from
    NO_FILE = -1

cdef inline int next_record(
    bytes_t p, int64_t available, int64_t phy_offset, int64_t file_end, int checks,
    RecordHead* head,
) noexcept nogil:
    """Tell what lies at `p`, at `phy_offset` of the log; `available` bytes may be read.

    OK: a whole record that names this offset and stands up to `checks`. BLANK: the end-of-file
    record, which reaches to `file_end`. EMPTY: zeros. PARTIAL: what may be read does not tell yet,
    the file has more; `head.total_size` bytes do. Negative: damage.

    With NO_FILE, BLANK is what fits into the bytes there are, and what goes on is TRUNCATED.
    """
    cdef int status = read_head(p, available, head)
    if status == OK:
        if head.phy_offset != phy_offset:
            return BAD_OFFSET
        if checks & CHECK_PROPERTY:
            return OK if check_crc_property(p, head) == OK else BAD_CRC
        return check_body_crc(p, head) if checks & CHECK_BODY else OK
    if file_end != NO_FILE and (status == BLANK or status == TRUNCATED):
        return what_goes_on(p, available, phy_offset, file_end - phy_offset, head)
    return status

cdef inline int what_goes_on(
    bytes_t p, int64_t available, int64_t phy_offset, int64_t left, RecordHead* head
) noexcept nogil:
    """The status of what goes on behind the readable bytes, in a file with `left` more bytes."""
    if available >= BLANK_SIZE_MIN:
        if head.magic == MAGIC_BLANK:
            return BLANK if head.total_size == left else BAD_SIZE
        if head.total_size > left:
            return TRUNCATED
    if available >= RECORD_HEAD_SIZE:
        head.store_timestamp = load_i64(
            p + BORN_HOST_AT
            + (HOST_V6_SIZE if load_i32(p + SYS_FLAG_AT) & BORN_HOST_V6 else HOST_V4_SIZE)
        )
        return PARTIAL if load_i64(p + PHY_OFFSET_AT) == phy_offset else BAD_OFFSET
    head.total_size = <int32_t>min(RECORD_HEAD_SIZE, left)
    return PARTIAL if head.total_size > available else TRUNCATED

# A walk over the pairs of a properties string.
cdef struct PropertyWalk:
    bytes_t text
    int32_t size
    int32_t start            # where the next pair begins
    int32_t window           # where the 64 bytes begin of which `ahead` speaks
    uint64_t ahead           # a bit for each separator in there that has not been looked at

cdef inline PropertyWalk walk_properties(bytes_t text, int32_t size) noexcept nogil:
    return PropertyWalk(text, size, 0, 0, separators(text, min(64, size)))

cdef inline int next_property(PropertyWalk* walk, Slice* name, Slice* value) noexcept nogil:
    """Step to the next pair that Java would accept; 0 at the end.

    A pair is `name 0x01 value 0x02`, the last separator may be missing; a pair with an empty name
    or an empty value is passed over.
    """
    cdef int32_t start, split = -1, stop
    while walk.start < walk.size:
        if walk.ahead != 0:
            stop = walk.window + lowest_bit(walk.ahead)
            walk.ahead &= walk.ahead - 1
            if walk.text[stop] == 1:
                if split < 0:
                    split = stop
                continue
        elif walk.size - walk.window > 64:
            walk.window += 64
            walk.ahead = separators(walk.text + walk.window, min(64, walk.size - walk.window))
            continue
        else:
            stop = walk.size
        start = walk.start
        walk.start = stop + 1
        if start < split < stop - 1:
            name.at = walk.text + start
            name.size = split - start
            value.at = walk.text + split + 1
            value.size = stop - split - 1
            return 1
        split = -1
    return 0

cdef inline int named(const Slice* name, const char* wanted, int32_t size) noexcept nogil:
    return name.size == size and memcmp(name.at, wanted, size) == 0

cdef inline void write_crc_property(uint8_t* record, int32_t total_size) noexcept nogil:
    """Fill the 20 bytes kept free at the end of the record: ten digits, least significant first.

    The CRC covers the size word, which need not be in its place yet.
    """
    cdef uint8_t* at = record + total_size - CRC_PROPERTY_SIZE
    cdef uint8_t size_word[4]
    cdef uint32_t crc
    cdef int digit
    RMQ_ASSERT(total_size >= RECORD_SIZE_MIN + CRC_PROPERTY_SIZE)
    store_i32(size_word, total_size)
    crc = rmq_crc32(0, size_word, 4)
    crc = rmq_crc32(crc, record + 4, total_size - CRC_PROPERTY_SIZE - 4) & 0x7FFFFFFF
    memcpy(at, b"__CRC32#\x01", 9)
    for digit in range(10):
        at[9 + digit] = <uint8_t>(48 + crc % 10)
        crc = crc // 10
    at[19] = 2

cdef inline int check_crc_property(bytes_t p, const RecordHead* head) noexcept nogil:
    """OK or BAD_CRC for a record that ends in its CRC property; EMPTY when it has none."""
    cdef bytes_t at = p + head.total_size - CRC_PROPERTY_SIZE
    cdef int64_t value = 0
    cdef int digit
    if head.properties_size < CRC_PROPERTY_SIZE:
        return EMPTY
    if memcmp(at, b"__CRC32#\x01", 9) != 0 or at[19] != 2:
        return EMPTY
    for digit in range(9, -1, -1):
        if at[9 + digit] < 48 or at[9 + digit] > 57:
            return BAD_CRC
        value = value * 10 + (at[9 + digit] - 48)
    return OK if value == java_crc32(p, head.total_size - CRC_PROPERTY_SIZE) else BAD_CRC

cdef inline int32_t java_hash_step(int32_t hash, bytes_t text, int32_t size) noexcept nogil:
    """Java's String.hashCode of UTF-8 text, continued from `hash`.

    Non-BMP characters count as two UTF-16 units; a malformed sequence counts as U+FFFD for each
    maximal part of it, as Java's decoder replaces it.
    """
    cdef uint32_t h = <uint32_t>hash
    cdef int32_t at = 0
    cdef uint32_t point, low, high
    cdef int32_t more
    while at < size:
        if size - at >= 4 and (text[at] | text[at + 1] | text[at + 2] | text[at + 3]) < 0x80:
            # four bytes a step: the multiplications of a step do not depend on each other
            h = (
                923521 * h + 29791 * <uint32_t>text[at] + 961 * <uint32_t>text[at + 1]
                + 31 * <uint32_t>text[at + 2] + text[at + 3]
            )
            at += 4
            continue
        if text[at] < 0x80:
            h = 31 * h + text[at]
            at += 1
            continue
        point = text[at]
        low = 0x80
        high = 0xBF
        more = 0
        if 0xC2 <= point <= 0xDF:
            more = 1
            point &= 0x1F
        elif 0xE0 <= point <= 0xEF:
            more = 2
            if point == 0xE0:
                low = 0xA0
            point &= 0x0F
        elif 0xF0 <= point <= 0xF4:
            more = 3
            if point == 0xF0:
                low = 0x90
            elif point == 0xF4:
                high = 0x8F
            point &= 0x07
        else:
            point = 0xFFFD
        at += 1
        while more > 0:
            if at >= size or text[at] < low or text[at] > high:
                point = 0xFFFD
                break
            point = (point << 6) | (text[at] & 0x3F)
            low = 0x80
            high = 0xBF
            at += 1
            more -= 1
        if 0xD800 <= point <= 0xDFFF:
            # an encoded surrogate is one malformed character
            point = 0xFFFD
        if point >= 0x10000:
            h = 31 * h + (0xD7C0 + (point >> 10))
            h = 31 * h + (0xDC00 + (point & 0x3FF))
        else:
            h = 31 * h + point
    return <int32_t>h

cdef inline int32_t index_hash_of(int32_t java_hash) noexcept nogil:
    """abs() as RocketMQ's index takes it: the one value without a positive twin becomes 0."""
    if java_hash == -2147483648:
        return 0
    return -java_hash if java_hash < 0 else java_hash

# All fields of a record except its properties.
cdef struct RecordFields:
    bytes_t topic
    bytes_t body
    bytes_t born_host
    bytes_t store_host
    int32_t topic_size
    int32_t body_size
    int32_t born_host_size
    int32_t store_host_size
    int32_t properties_size
    int32_t queue_id
    int32_t flag
    int32_t sys_flag
    int32_t reconsume_times
    int64_t queue_offset
    int64_t phy_offset
    int64_t born_timestamp
    int64_t store_timestamp
    int64_t prepared_transaction_offset

cdef inline int64_t record_size(const RecordFields* fields) noexcept nogil:
    """Bytes the record takes. Source: RocketMQ store/MessageExtEncoder.java, calMsgLength."""
    return (
        <int64_t>FIXED_SIZE + fields.born_host_size + fields.store_host_size + fields.body_size
        + (1 if fields.topic_size <= TOPIC_SIZE_V1_MAX else 2) + fields.topic_size
        + 2 + fields.properties_size
    )

cdef inline void copy_host(uint8_t* to, bytes_t host, int32_t size) noexcept nogil:
    """Both sizes are known to the compiler, which copies by one or two words then."""
    if size == HOST_V4_SIZE:
        memcpy(to, host, HOST_V4_SIZE)
    else:
        memcpy(to, host, HOST_V6_SIZE)

cdef inline uint8_t* write_fields(uint8_t* p, const RecordFields* fields) noexcept nogil:
    """Write all but the size word and the properties; returns where the properties begin."""
    cdef uint8_t* at = p + BORN_HOST_AT
    cdef int32_t sys_flag = fields.sys_flag & ~(BORN_HOST_V6 | STORE_HOST_V6)
    if fields.born_host_size == HOST_V6_SIZE:
        sys_flag |= BORN_HOST_V6
    if fields.store_host_size == HOST_V6_SIZE:
        sys_flag |= STORE_HOST_V6
    RMQ_ASSERT(fields.born_host_size == HOST_V4_SIZE or fields.born_host_size == HOST_V6_SIZE)
    RMQ_ASSERT(fields.store_host_size == HOST_V4_SIZE or fields.store_host_size == HOST_V6_SIZE)
    RMQ_ASSERT(fields.queue_offset >= 0)
    RMQ_ASSERT(fields.body_size >= 0)
    RMQ_ASSERT(1 <= fields.topic_size <= TOPIC_SIZE_MAX)
    RMQ_ASSERT(0 <= fields.properties_size <= PROPERTIES_SIZE_MAX)
    store_i32(p + MAGIC_AT, MAGIC_V1 if fields.topic_size <= TOPIC_SIZE_V1_MAX else MAGIC_V2)
    store_i32(p + QUEUE_ID_AT, fields.queue_id)
    store_i32(p + FLAG_AT, fields.flag)
    store_i64(p + QUEUE_OFFSET_AT, fields.queue_offset)
    store_i64(p + PHY_OFFSET_AT, fields.phy_offset)
    store_i32(p + SYS_FLAG_AT, sys_flag)
    store_i64(p + BORN_TIMESTAMP_AT, fields.born_timestamp)
    copy_host(at, fields.born_host, fields.born_host_size)
    at += fields.born_host_size
    store_i64(at, fields.store_timestamp)
    copy_host(at + 8, fields.store_host, fields.store_host_size)
    at += 8 + fields.store_host_size
    store_i32(at, fields.reconsume_times)
    store_i64(at + 4, fields.prepared_transaction_offset)
    store_i32(at + 12, fields.body_size)
    at += 16
    memcpy(at, fields.body, fields.body_size)
    # the CRC is of the copy: it is in the cache, and the caller's buffer may be changed meanwhile
    store_i32(p + BODY_CRC_AT, <int32_t>java_crc32(at, fields.body_size))
    at += fields.body_size
    if fields.topic_size <= TOPIC_SIZE_V1_MAX:
        at[0] = <uint8_t>fields.topic_size
        at += 1
    else:
        store_i16(at, <int16_t>fields.topic_size)
        at += 2
    copy_text(at, fields.topic, fields.topic_size)
    at += fields.topic_size
    store_i16(at, <int16_t>fields.properties_size)
    RMQ_ASSERT(at + 2 + fields.properties_size == p + record_size(fields))
    return at + 2
