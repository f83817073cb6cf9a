"""Sizes and bits of the format for Python; `_layout.pxd` is where they are declared."""

from rmqcore.native.format cimport _layout

UNIT_SIZE = _layout.UNIT_SIZE
BATCH_UNIT_SIZE = _layout.BATCH_UNIT_SIZE
FILLER_SIZE = _layout.FILLER_SIZE
CHECKPOINT_SIZE = _layout.CHECKPOINT_SIZE
BATCH_ITEM_SIZE_MIN = _layout.BATCH_ITEM_SIZE_MIN
PROPERTIES_SIZE_MAX = _layout.PROPERTIES_SIZE_MAX
# with a topic of one character, the shortest that is accepted
SMALLEST_RECORD_SIZE = _layout.RECORD_SIZE_MIN + 1


class SysFlag:
    """Bits of a message's ``sys_flag``. Source: RocketMQ common/sysflag/MessageSysFlag.java."""

    COMPRESSED = _layout.COMPRESSED
    MULTI_TAGS = _layout.MULTI_TAGS
    TRANSACTION_PREPARED = _layout.TRANSACTION_PREPARED
    TRANSACTION_COMMIT = _layout.TRANSACTION_COMMIT
    TRANSACTION_ROLLBACK = _layout.TRANSACTION_ROLLBACK
    TRANSACTION_MASK = _layout.TRANSACTION_MASK
    HOSTS_V6 = _layout.BORN_HOST_V6 | _layout.STORE_HOST_V6
    NEED_UNWRAP = _layout.NEED_UNWRAP
    INNER_BATCH = _layout.INNER_BATCH
    COMPRESSION_MASK = _layout.COMPRESSION_MASK
    COMPRESSION_LZ4 = _layout.COMPRESSION_LZ4
    COMPRESSION_ZSTD = _layout.COMPRESSION_ZSTD
    COMPRESSION_ZLIB = _layout.COMPRESSION_ZLIB
