"""The values that callers give and get: queues, results of sends, SQL conditions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from rmqcore.remoting.codes import ResponseCode


class MessageQueue(NamedTuple):
    """One queue of a topic on one broker. Source: MessageQueue."""

    topic: str
    broker_name: str
    queue_id: int

    def to_java(self) -> dict[str, object]:
        """The fields of RocketMQ's ``MessageQueue``."""
        return {"brokerName": self.broker_name, "queueId": self.queue_id, "topic": self.topic}


class SendStatus(IntEnum):
    """What a broker says of a message that it has stored. Source: SendStatus."""

    SEND_OK = ResponseCode.SUCCESS
    FLUSH_DISK_TIMEOUT = ResponseCode.FLUSH_DISK_TIMEOUT
    FLUSH_SLAVE_TIMEOUT = ResponseCode.FLUSH_SLAVE_TIMEOUT
    SLAVE_NOT_AVAILABLE = ResponseCode.SLAVE_NOT_AVAILABLE


class TransactionState(IntEnum):
    """What becomes of a message that was sent in a transaction. Source: LocalTransactionState.

    UNKNOWN lets the broker ask again later.
    """

    UNKNOWN = 0
    COMMIT = 8
    ROLLBACK = 12


@dataclass(frozen=True, slots=True)
class SendResult:
    """Where a message is. Source: SendResult.

    Attributes:
        message_id: the id that the producer gave it (UNIQ_KEY); of a batch all of them, with
            commas between.
        topic, broker_name, queue_id: the queue.
        queue_offset: its number in the queue; of a batch that of the first, of a delayed message
            and of one in a transaction that in the queue where it waits.
        offset_message_id: the id that says where it is stored; of a batch all of them.
        status: whether the disk and the slave have confirmed it, where the broker waits for them.
        transaction_id: of a message in a transaction; None for others.
        transaction_state: what became of the transaction; None for other messages.
    """

    message_id: str
    topic: str
    broker_name: str
    queue_id: int
    queue_offset: int
    offset_message_id: str
    status: SendStatus = SendStatus.SEND_OK
    transaction_id: str | None = None
    transaction_state: TransactionState | None = None

    @property
    def message_queue(self) -> MessageQueue:
        """The queue."""
        return MessageQueue(self.topic, self.broker_name, self.queue_id)
