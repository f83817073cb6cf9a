"""What lies in the retry topics that a pop looks into, and how it is handed out."""

from __future__ import annotations

from rmqcore._codec import encode_record
from rmqcore.broker.pop.receipts import Checkpoint, Receipt
from rmqcore.broker.pop.request import PopRequest
from rmqcore.errors import MessageIllegalError
from rmqcore.message import MessageExt, copy_to
from rmqcore.remoting.command import Buffer


def comes_again_for(wanted: PopRequest, stored: MessageExt) -> bool:
    """Tell whether what lies in the retry topic of a pop came there from the topic that it pops.

    Other groups and topics may have that retry topic, too: that of `a` and `b_c` is that of `a_b`
    and `c`, and of whoever pulls as `a_b_c`.

    Args:
        wanted: the pop.
        stored: a message of its retry topic.
    """
    group = stored.properties.get("ORIGIN_GROUP")
    if group is not None:
        return group == wanted.group
    return stored.properties.get("RETRY_TOPIC", wanted.topic) == wanted.topic


def as_of_topic(
    topic: str, stored: MessageExt, checkpoint: Checkpoint, flag: int, broker_name: str
) -> Buffer:
    """A message that comes again as one of its topic, with its receipt among the properties.

    One without room for a receipt comes as it is stored; clients know by its retry topic how to
    make the receipt, as for a broker of RocketMQ's with ``popResponseReturnActualRetryTopic``.

    Args:
        topic: that it comes again as.
        stored: the message as it lies in the retry topic.
        checkpoint: of the pop that hands it out.
        flag: which kind of retry topic it lies in, as receipts say.
        broker_name: of this broker.

    Returns:
        the record.
    """
    receipt = Receipt(
        checkpoint.start_offset,
        checkpoint.pop_time_ms,
        checkpoint.invisible_ms,
        checkpoint.revive_queue,
        flag,
        broker_name,
        stored.queue_id,
        stored.queue_offset,
    )
    properties = {**stored.properties, "POP_CK": str(receipt)}
    message = copy_to(topic, stored.queue_id, stored, properties, store_host=stored.store_host)
    try:
        return encode_record(
            message,
            queue_offset=stored.queue_offset,
            phy_offset=stored.phy_offset,
            store_timestamp_ms=stored.store_timestamp_ms,
        )
    except MessageIllegalError:
        return stored.record
