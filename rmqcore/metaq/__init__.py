"""MetaQ (Metamorphosis), the broker before RocketMQ: its store, opened, written and served.

A partition is a directory of segment files; an offset is a byte position in them. `MessageStore`
is one partition, `MessageStoreManager` all of a broker's, `MetaServer` speaks the text protocol.
`rmqcore.transfer.metaq` moves everything into a RocketMQ store. Guide: docs/metaq.md.

Needs the extra ``[metaq]`` for its schedules. Never opens a store of RocketMQ.

Floor: beside, on errors, `status`, `version` and the native code's lowest rooms.
"""

from rmqcore.metaq._segment_tail import Location
from rmqcore.metaq.client import MetaClient, ResultError, SendResult
from rmqcore.metaq.delete_policy import (
    ArchiveDeletePolicy,
    DeletePolicy,
    DiscardDeletePolicy,
    parse_delete_policy,
)
from rmqcore.metaq.errors import (
    IllegalTopicError,
    InvalidChecksumError,
    MissingSegmentError,
    OffsetTooSmallError,
    UnstorableRecordError,
    WrongPartitionError,
)
from rmqcore.metaq.file_message_set import (
    FileMessageSet,
    MessageSet,
    SegmentFile,
    SegmentRecovery,
)
from rmqcore.metaq.manager import MessageStoreManager
from rmqcore.metaq.message import (
    IdWorker,
    Message,
    Verdict,
    decode_messages,
    encode_data,
    split_data,
)
from rmqcore.metaq.message_store import MessageStore
from rmqcore.metaq.meta_config import MetaConfig
from rmqcore.metaq.segments import Hole, Segment
from rmqcore.metaq.server import MetaServer
from rmqcore.metaq.settings import SystemConfig, TopicConfig, ZkConfig
from rmqcore.metaq.transaction import (
    AddMsgLocation,
    decode_locations,
    encode_locations,
    replay_transaction,
)
from rmqcore.world import World

__all__ = [
    "AddMsgLocation",
    "ArchiveDeletePolicy",
    "DeletePolicy",
    "DiscardDeletePolicy",
    "FileMessageSet",
    "Hole",
    "IdWorker",
    "IllegalTopicError",
    "InvalidChecksumError",
    "Location",
    "Message",
    "MessageSet",
    "MessageStore",
    "MessageStoreManager",
    "MetaClient",
    "MetaConfig",
    "MetaServer",
    "MissingSegmentError",
    "OffsetTooSmallError",
    "ResultError",
    "Segment",
    "SegmentFile",
    "SegmentRecovery",
    "SendResult",
    "SystemConfig",
    "TopicConfig",
    "UnstorableRecordError",
    "Verdict",
    "World",
    "WrongPartitionError",
    "ZkConfig",
    "decode_locations",
    "decode_messages",
    "encode_data",
    "encode_locations",
    "parse_delete_policy",
    "replay_transaction",
    "split_data",
]
