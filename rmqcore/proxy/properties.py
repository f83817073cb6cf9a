"""The properties of a message that are RocketMQ's own, so that no user sets or sees them.

Source: RocketMQ common/message/MessageConst.java.
"""

from __future__ import annotations

from typing import Final

BORN_HOST: Final = "__BORNHOST"
DELIVER_MS: Final = "TIMER_DELIVER_MS"
DLQ_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"
DLQ_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
IMMUNITY_S: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
KEYS: Final = "KEYS"
LITE_TOPIC: Final = "__LITE_TOPIC"
MESSAGE_GROUP: Final = "__SHARDINGKEY"
PRIORITY: Final = "_SYS_MSG_PRIORITY_"
PRODUCER_GROUP: Final = "PGROUP"
TAGS: Final = "TAGS"
TRACE_CONTEXT: Final = "TRACE_CONTEXT"
TRANSACTION: Final = "TRAN_MSG"
UNIQUE_KEY: Final = "UNIQ_KEY"
#: Properties that say when a delayed message is to come.
DELAYS: Final = ("DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", DELIVER_MS)

RESERVED: Final = frozenset(
    {
        BORN_HOST,
        DELIVER_MS,
        DLQ_MESSAGE_ID,
        DLQ_TOPIC,
        IMMUNITY_S,
        KEYS,
        LITE_TOPIC,
        MESSAGE_GROUP,
        PRIORITY,
        PRODUCER_GROUP,
        TAGS,
        TRACE_CONTEXT,
        TRANSACTION,
        UNIQUE_KEY,
        "1ST_POP_TIME",
        "ARRIVE_TIME",
        "BATCH_UNIQ_ID",
        "BORN_TIMESTAMP",
        "BUYER_ID",
        "CLUSTER",
        "CONSUME_START_TIME",
        "CORRECTION_FLAG",
        "CORRELATION_ID",
        "CRC32#",
        "DELAY",
        "DUP_INFO",
        "EXTEND_UNIQ_INFO",
        "INNER_BASE",
        "INNER_MULTI_DISPATCH",
        "INNER_MULTI_QUEUE_OFFSET",
        "INNER_NUM",
        "INSTANCE_ID",
        "MAX_OFFSET",
        "MAX_RECONSUME_TIMES",
        "MIN_OFFSET",
        "MQ2_FLAG",
        "MSG_REGION",
        "MSG_TYPE",
        "ORIGIN_GROUP",
        "ORIGIN_MESSAGE_ID",
        "POP_CK",
        "POP_CK_OFFSET",
        "PUSH_REPLY_TIME",
        "REAL_QID",
        "REAL_TOPIC",
        "RECONSUME_TIME",
        "REDIRECT",
        "REPLY_TO_CLIENT",
        "RETRY_TOPIC",
        "TIMER_DELAY_LEVEL",
        "TIMER_DELAY_MS",
        "TIMER_DELAY_SEC",
        "TIMER_DEL_UNIQKEY",
        "TIMER_DEQUEUE_MS",
        "TIMER_ENQUEUE_MS",
        "TIMER_OUT_MS",
        "TIMER_ROLL_TIMES",
        "TRACE_ON",
        "TRANSACTION_CHECK_TIMES",
        "TRANSACTION_PREPARED_QUEUE_OFFSET",
        "TRANSFER_FLAG",
        "TTL",
        "WAIT",
        "__CRC32#",
        "__transactionId__",
    }
)
