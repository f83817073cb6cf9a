"""Topics and groups of a broker's own services; what is in them is for no consumer.

Source: RocketMQ common/topic/TopicValidator.java, common/KeyBuilder.java and
store/timer/TimerMessageStore.java.
"""

from __future__ import annotations

from typing import Final

from rmqcore.files.consume_queue import SCHEDULE_TOPIC

HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
#: the same with transactions in RocksDB, from 5.5 on
ROCKSDB_HALF_TOPICS: Final = (
    "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
    "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC",
)
CHECK_MAX_TIME_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
#: The broker's own topics begin with this: the timer's queue, the logs of what POP has handed out.
SYSTEM_PREFIX: Final = "rmq_sys_"
#: The logs of what POP has handed out: this, and the cluster's name.
REVIVE_PREFIX: Final = f"{SYSTEM_PREFIX}REVIVE_LOG_"
#: The broker's own groups: their offsets say which half messages are decided, and what POP has
#: handed out that is done with.
TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"
REVIVE_GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"
#: The topics of tables of keys and values begin with this.
TABLE_PREFIX: Final = "%KV%"
_NAMES: Final = frozenset(
    (SCHEDULE_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, *ROCKSDB_HALF_TOPICS, CHECK_MAX_TIME_TOPIC)
)


def is_service_topic(topic: str) -> bool:
    """True where delayed and half messages wait, and where services note what they have done."""
    return topic in _NAMES or topic.startswith(SYSTEM_PREFIX)
