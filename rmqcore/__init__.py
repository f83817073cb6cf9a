"""The RocketMQ storage engine for Python: embed it, serve it, or open it in Spark."""

import logging

from rmqcore.config import BrokerRole, FlushDiskType, OnCorruption, StoreConfig
from rmqcore.errors import (
    ArgumentError,
    ConfigError,
    ConfigWarning,
    CorruptCheckpointError,
    CorruptConfigFileError,
    CorruptConsumeQueueError,
    CorruptIndexError,
    CorruptRecordError,
    CorruptStoreError,
    DiskFullError,
    FlushTimeoutError,
    MessageIllegalError,
    PutMessageError,
    RmqCoreError,
    StoreClosedError,
    StoreError,
    StoreForkedError,
    StoreLockedError,
    StoreNotFoundError,
    StoreNotWritableError,
)
from rmqcore.message import (
    GetMessageResult,
    Message,
    MessageExt,
    PutMessageResult,
    QueryMessageResult,
)
from rmqcore.recovery.report import RecoveryProgress, RecoveryReport
from rmqcore.status import (
    BoundaryType,
    Durability,
    GetMessageStatus,
    PutMessageStatus,
)
from rmqcore.store.general_reads import QueryExplanation
from rmqcore.store.message_store import DefaultMessageStore
from rmqcore.store.opening import open_store
from rmqcore.store.protocol import MessageStore
from rmqcore.store.read_only_store import ReadOnlyMessageStore
from rmqcore.version import __version__

logging.getLogger("rmqcore").addHandler(logging.NullHandler())

__all__ = [
    "ArgumentError",
    "BoundaryType",
    "BrokerRole",
    "ConfigError",
    "ConfigWarning",
    "CorruptCheckpointError",
    "CorruptConfigFileError",
    "CorruptConsumeQueueError",
    "CorruptIndexError",
    "CorruptRecordError",
    "CorruptStoreError",
    "DefaultMessageStore",
    "DiskFullError",
    "Durability",
    "FlushDiskType",
    "FlushTimeoutError",
    "GetMessageResult",
    "GetMessageStatus",
    "Message",
    "MessageExt",
    "MessageIllegalError",
    "MessageStore",
    "OnCorruption",
    "PutMessageError",
    "PutMessageResult",
    "PutMessageStatus",
    "QueryExplanation",
    "QueryMessageResult",
    "ReadOnlyMessageStore",
    "RecoveryProgress",
    "RecoveryReport",
    "RmqCoreError",
    "StoreClosedError",
    "StoreConfig",
    "StoreError",
    "StoreForkedError",
    "StoreLockedError",
    "StoreNotFoundError",
    "StoreNotWritableError",
    "__version__",
    "open_store",
]
