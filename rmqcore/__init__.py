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
    OwnerLostError,
    OwnerTimeoutError,
    PutMessageError,
    RepairUnfinishedError,
    RmqCoreError,
    RowIllegalError,
    StoreClosedError,
    StoreError,
    StoreForkedError,
    StoreLockedError,
    StoreNotFoundError,
    StoreNotWritableError,
)
from rmqcore.files.store_trace import TraceRow
from rmqcore.message import (
    EXPIRES_MS,
    GetMessageResult,
    Lease,
    Message,
    MessageExt,
    PutMessageResult,
    QueryMessageResult,
    QueueLag,
    ReceivedMessage,
    Sql,
)
from rmqcore.recovery.report import RecoveryProgress, RecoveryReport
from rmqcore.status import (
    BoundaryType,
    Durability,
    GetMessageStatus,
    PutMessageStatus,
)
from rmqcore.store.consumer import Consumer
from rmqcore.store.message_store import DefaultMessageStore
from rmqcore.store.opening import open_store
from rmqcore.store.parts.general_reads import QueryExplanation
from rmqcore.store.parts.put_columns_result import PutColumnsResult
from rmqcore.store.protocol import MessageStore
from rmqcore.store.read_only_store import ReadOnlyMessageStore
from rmqcore.store.sharing import open_shared
from rmqcore.version import __version__

logging.getLogger("rmqcore").addHandler(logging.NullHandler())

__all__ = [
    "EXPIRES_MS",
    "ArgumentError",
    "BoundaryType",
    "BrokerRole",
    "ConfigError",
    "ConfigWarning",
    "Consumer",
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
    "Lease",
    "Message",
    "MessageExt",
    "MessageIllegalError",
    "MessageStore",
    "OnCorruption",
    "OwnerLostError",
    "OwnerTimeoutError",
    "PutColumnsResult",
    "PutMessageError",
    "PutMessageResult",
    "PutMessageStatus",
    "QueryExplanation",
    "QueryMessageResult",
    "QueueLag",
    "ReadOnlyMessageStore",
    "ReceivedMessage",
    "RecoveryProgress",
    "RecoveryReport",
    "RepairUnfinishedError",
    "RmqCoreError",
    "RowIllegalError",
    "Sql",
    "StoreClosedError",
    "StoreConfig",
    "StoreError",
    "StoreForkedError",
    "StoreLockedError",
    "StoreNotFoundError",
    "StoreNotWritableError",
    "TraceRow",
    "__version__",
    "open_shared",
    "open_store",
]
