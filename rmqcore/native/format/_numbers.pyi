from typing import Final

UNIT_SIZE: Final[int]
BATCH_UNIT_SIZE: Final[int]
FILLER_SIZE: Final[int]
CHECKPOINT_SIZE: Final[int]
BATCH_ITEM_SIZE_MIN: Final[int]
PROPERTIES_SIZE_MAX: Final[int]
SMALLEST_RECORD_SIZE: Final[int]

class SysFlag:
    COMPRESSED: Final[int]
    MULTI_TAGS: Final[int]
    TRANSACTION_PREPARED: Final[int]
    TRANSACTION_COMMIT: Final[int]
    TRANSACTION_ROLLBACK: Final[int]
    TRANSACTION_MASK: Final[int]
    HOSTS_V6: Final[int]
    NEED_UNWRAP: Final[int]
    INNER_BATCH: Final[int]
    COMPRESSION_MASK: Final[int]
    COMPRESSION_LZ4: Final[int]
    COMPRESSION_ZSTD: Final[int]
    COMPRESSION_ZLIB: Final[int]
