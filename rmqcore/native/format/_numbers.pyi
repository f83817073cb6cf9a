from typing import Final

UNIT_SIZE: Final[int]
BATCH_UNIT_SIZE: Final[int]
FILLER_SIZE: Final[int]
CHECKPOINT_SIZE: Final[int]
SMALLEST_RECORD_SIZE: Final[int]

class SysFlag:
    COMPRESSED: Final[int]
    MULTI_TAGS: Final[int]
    TRANSACTION_PREPARED: Final[int]
    TRANSACTION_COMMIT: Final[int]
    TRANSACTION_MASK: Final[int]
    HOSTS_V6: Final[int]
    NEED_UNWRAP: Final[int]
    INNER_BATCH: Final[int]
