# Every offset, size and magic number on disk: docs/format/*.md explains them, and a test compares
# those tables with _codec.LAYOUT, which is built from these. Bytes unless the name says otherwise.

cdef enum:
    # docs/format/commit-log.md; each field begins where the one before it ends, behind the born
    # host at no fixed place
    TOTAL_SIZE_AT = 0
    MAGIC_AT = TOTAL_SIZE_AT + 4
    BODY_CRC_AT = MAGIC_AT + 4
    QUEUE_ID_AT = BODY_CRC_AT + 4
    FLAG_AT = QUEUE_ID_AT + 4
    QUEUE_OFFSET_AT = FLAG_AT + 4
    PHY_OFFSET_AT = QUEUE_OFFSET_AT + 8
    SYS_FLAG_AT = PHY_OFFSET_AT + 8
    BORN_TIMESTAMP_AT = SYS_FLAG_AT + 4
    BORN_HOST_AT = BORN_TIMESTAMP_AT + 8

    # address, port
    HOST_V4_SIZE = 4 + 4
    HOST_V6_SIZE = 16 + 4
    # store time, reconsume times, prepared transaction offset, body size: all fields but the hosts,
    # the body, the topic and properties with their sizes
    FIXED_SIZE = BORN_HOST_AT + 8 + 4 + 8 + 4
    # two hosts, the sizes of topic and properties
    RECORD_SIZE_MIN = FIXED_SIZE + 2 * HOST_V4_SIZE + 1 + 2
    # from the start of a record to behind its store time, with the longer of the born hosts: every
    # record has more bytes
    RECORD_HEAD_SIZE = BORN_HOST_AT + HOST_V6_SIZE + 8
    # total size, magic
    BLANK_SIZE_MIN = 4 + 4
    # __CRC32#, a separator, ten digits, a separator
    CRC_PROPERTY_SIZE = 8 + 1 + 10 + 1
    PROPERTIES_SIZE_MAX = (1 << 15) - 1
    TOPIC_SIZE_V1_MAX = (1 << 7) - 1
    TOPIC_SIZE_MAX = (1 << 8) - 1
    # what a record may weigh beyond its body (MessageExtEncoder)
    RECORD_OVERHEAD_MAX = 64 * 1024

    # docs/format/batch-body.md: total size, magic, body CRC, flag, sizes of body and properties
    BATCH_ITEM_SIZE_MIN = 4 + 4 + 4 + 4 + 4 + 2

    # docs/format/consume-queue.md
    UNIT_PHY_OFFSET_AT = 0
    UNIT_SIZE_AT = UNIT_PHY_OFFSET_AT + 8
    UNIT_TAGS_CODE_AT = UNIT_SIZE_AT + 4
    UNIT_SIZE = UNIT_TAGS_CODE_AT + 8
    FILLER_SIZE = 0x7FFFFFFF
    # a unit of a batch goes on behind the fields of a unit
    BATCH_UNIT_TIMESTAMP_AT = UNIT_SIZE
    BATCH_UNIT_BASE_AT = BATCH_UNIT_TIMESTAMP_AT + 8
    BATCH_UNIT_COUNT_AT = BATCH_UNIT_BASE_AT + 8
    BATCH_UNIT_COMPACTED_AT = BATCH_UNIT_COUNT_AT + 2
    BATCH_UNIT_RESERVED_AT = BATCH_UNIT_COMPACTED_AT + 4
    BATCH_UNIT_SIZE = BATCH_UNIT_RESERVED_AT + 4
    EXT_SIZE_AT = 0
    EXT_TAGS_CODE_AT = EXT_SIZE_AT + 2
    EXT_TIMESTAMP_AT = EXT_TAGS_CODE_AT + 8
    EXT_BIT_MAP_SIZE_AT = EXT_TIMESTAMP_AT + 8
    EXT_UNIT_SIZE_MIN = EXT_BIT_MAP_SIZE_AT + 2

    # docs/format/index-file.md
    INDEX_BEGIN_TIMESTAMP_AT = 0
    INDEX_END_TIMESTAMP_AT = INDEX_BEGIN_TIMESTAMP_AT + 8
    INDEX_BEGIN_PHY_OFFSET_AT = INDEX_END_TIMESTAMP_AT + 8
    INDEX_END_PHY_OFFSET_AT = INDEX_BEGIN_PHY_OFFSET_AT + 8
    INDEX_SLOT_COUNT_AT = INDEX_END_PHY_OFFSET_AT + 8
    INDEX_COUNT_AT = INDEX_SLOT_COUNT_AT + 4
    INDEX_HEADER_SIZE = INDEX_COUNT_AT + 4
    SLOT_SIZE = 4
    ENTRY_HASH_AT = 0
    ENTRY_PHY_OFFSET_AT = ENTRY_HASH_AT + 4
    ENTRY_TIME_DIFF_AT = ENTRY_PHY_OFFSET_AT + 8
    ENTRY_PREVIOUS_AT = ENTRY_TIME_DIFF_AT + 4
    ENTRY_SIZE = ENTRY_PREVIOUS_AT + 4
    # seconds; a limit, not a time
    TIME_DIFF_MAX = 0x7FFFFFFF

    # docs/format/checkpoint.md
    CHECKPOINT_SIZE = 4096
    CHECKPOINT_PHYSIC_AT = 0
    CHECKPOINT_LOGICS_AT = CHECKPOINT_PHYSIC_AT + 8
    CHECKPOINT_INDEX_AT = CHECKPOINT_LOGICS_AT + 8
    CHECKPOINT_MASTER_FLUSHED_AT = CHECKPOINT_INDEX_AT + 8
    CHECKPOINT_CONFIRM_AT = CHECKPOINT_MASTER_FLUSHED_AT + 8

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
