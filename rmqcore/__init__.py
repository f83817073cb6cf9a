"""The RocketMQ storage engine for Python: embed it, serve it, or open it in Spark."""

import logging
from importlib import import_module
from typing import TYPE_CHECKING

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
from rmqcore.status import (
    BoundaryType,
    Durability,
    GetMessageStatus,
    PutMessageStatus,
)
from rmqcore.version import __version__

if TYPE_CHECKING:
    from rmqcore.config import BrokerRole, FlushDiskType, OnCorruption, StoreConfig
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
    from rmqcore.store.consumer import Consumer
    from rmqcore.store.message_store import DefaultMessageStore
    from rmqcore.store.opening import open_store
    from rmqcore.store.parts.general_reads import QueryExplanation
    from rmqcore.store.parts.put_columns_result import PutColumnsResult
    from rmqcore.store.protocol import MessageStore
    from rmqcore.store.read_only_store import ReadOnlyMessageStore
    from rmqcore.store.sharing import open_shared
    from rmqcore.store.sharing.queue import Queue

logging.getLogger("rmqcore").addHandler(logging.NullHandler())

#: Names by the module that has them; it is imported when the first of them is asked for.
_NAMES = {
    "config": "BrokerRole FlushDiskType OnCorruption StoreConfig",
    "files.store_trace": "TraceRow",
    "message": "EXPIRES_MS GetMessageResult Lease Message MessageExt PutMessageResult "
    "QueryMessageResult QueueLag ReceivedMessage Sql",
    "recovery.report": "RecoveryProgress RecoveryReport",
    "store.consumer": "Consumer",
    "store.message_store": "DefaultMessageStore",
    "store.opening": "open_store",
    "store.parts.general_reads": "QueryExplanation",
    "store.parts.put_columns_result": "PutColumnsResult",
    "store.protocol": "MessageStore",
    "store.read_only_store": "ReadOnlyMessageStore",
    "store.sharing": "open_shared",
    "store.sharing.queue": "Queue",
}
_PLACES = {name: module for module, names in _NAMES.items() for name in names.split()}

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
    "Queue",
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

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """A name of `__all__` that nobody has asked for yet."""
        if name not in _PLACES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            value = getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
        except ModuleNotFoundError as error:
            if str(error.name).startswith(f"{__name__}."):
                error.add_note(
                    f"The sources in {__path__[0]} are not compiled for this Python: run "
                    "`pip install .` in the clone, or leave its directory (docs/install.md)."
                )
            raise
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        """Every name, imported yet or not."""
        return sorted({*globals(), *__all__})
