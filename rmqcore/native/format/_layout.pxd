# Every offset, size and magic number on disk: docs/format/*.md explains them, and a test compares
# those tables with _codec.LAYOUT, which is built from these. Bytes unless the name says otherwise.

cdef enum:
    # docs/format/commit-log.md; fields behind the born host have no fixed position
    TOTAL_SIZE_AT = 0
    MAGIC_AT = 4
    BODY_CRC_AT = 8
    QUEUE_ID_AT = 12
    FLAG_AT = 16
    QUEUE_OFFSET_AT = 20
    PHY_OFFSET_AT = 28
    SYS_FLAG_AT = 36
    BORN_TIMESTAMP_AT = 40
    BORN_HOST_AT = 48

    HOST_V4_SIZE = 8
    HOST_V6_SIZE = 20
    # all fields but the hosts, the body, the topic and properties with their lengths
    FIXED_SIZE = 72
    RECORD_SIZE_MIN = 91
    # from the start of a record to behind its store time, with the longer of the born hosts: every
    # record has more bytes
    RECORD_HEAD_SIZE = 76
    BLANK_SIZE_MIN = 8
    CRC_PROPERTY_SIZE = 20
    PROPERTIES_SIZE_MAX = 32767
    TOPIC_SIZE_V1_MAX = 127
    TOPIC_SIZE_MAX = 255
    # what a record may weigh beyond its body (MessageExtEncoder)
    RECORD_OVERHEAD_MAX = 65536

    # docs/format/batch-body.md
    BATCH_ITEM_SIZE_MIN = 22

    # docs/format/consume-queue.md
    UNIT_SIZE = 20
    UNIT_PHY_OFFSET_AT = 0
    UNIT_SIZE_AT = 8
    UNIT_TAGS_CODE_AT = 12
    FILLER_SIZE = 0x7FFFFFFF
    BATCH_UNIT_SIZE = 46
    BATCH_UNIT_TIMESTAMP_AT = 20
    BATCH_UNIT_BASE_AT = 28
    BATCH_UNIT_COUNT_AT = 36
    BATCH_UNIT_COMPACTED_AT = 38
    BATCH_UNIT_RESERVED_AT = 42
    EXT_UNIT_SIZE_MIN = 20
    EXT_SIZE_AT = 0
    EXT_TAGS_CODE_AT = 2
    EXT_TIMESTAMP_AT = 10
    EXT_BIT_MAP_SIZE_AT = 18

    # docs/format/index-file.md
    INDEX_HEADER_SIZE = 40
    INDEX_BEGIN_TIMESTAMP_AT = 0
    INDEX_END_TIMESTAMP_AT = 8
    INDEX_BEGIN_PHY_OFFSET_AT = 16
    INDEX_END_PHY_OFFSET_AT = 24
    INDEX_SLOT_COUNT_AT = 32
    INDEX_COUNT_AT = 36
    SLOT_SIZE = 4
    ENTRY_SIZE = 20
    ENTRY_HASH_AT = 0
    ENTRY_PHY_OFFSET_AT = 4
    ENTRY_TIME_DIFF_AT = 12
    ENTRY_PREVIOUS_AT = 16
    # seconds; a limit, not a time
    TIME_DIFF_MAX = 0x7FFFFFFF

    # docs/format/checkpoint.md
    CHECKPOINT_SIZE = 4096
    CHECKPOINT_PHYSIC_AT = 0
    CHECKPOINT_LOGICS_AT = 8
    CHECKPOINT_INDEX_AT = 16
    CHECKPOINT_MASTER_FLUSHED_AT = 24
    CHECKPOINT_CONFIRM_AT = 32

cdef enum:
    # signed, as Java prints them
    MAGIC_V1 = -626843481
    MAGIC_V2 = -626843477
    MAGIC_BLANK = -875286124

cdef enum SysFlag:
    COMPRESSED = 0x1
    MULTI_TAGS = 0x2
    TRANSACTION_PREPARED = 0x4
    TRANSACTION_COMMIT = 0x8
    TRANSACTION_ROLLBACK = 0xC
    TRANSACTION_MASK = 0xC
    BORN_HOST_V6 = 0x10
    STORE_HOST_V6 = 0x20
    NEED_UNWRAP = 0x40
    INNER_BATCH = 0x80
    COMPRESSION_MASK = 0x700
    COMPRESSION_LZ4 = 0x100
    COMPRESSION_ZSTD = 0x200
    COMPRESSION_ZLIB = 0x300

# What a kernel answers: 0 or more is good, negatives name the failure.
cdef enum Status:
    OK = 0
    BLANK = 1             # the end-of-file record
    EMPTY = 2             # zeros: nothing was written here yet
    CAPACITY = 3          # the caller's arrays are full; call again from where it stopped
    PARTIAL = 4           # goes on behind what may be read, and the file has it
    TRUNCATED = -1        # fewer bytes than the record declares
    BAD_MAGIC = -2
    BAD_SIZE = -3         # lengths of the parts do not add up
    BAD_CRC = -4
    BAD_OFFSET = -5       # the record says it lies somewhere else
    OUT_OF_BOUNDS = -6
