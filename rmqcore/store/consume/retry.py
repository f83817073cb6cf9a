"""Messages that a consumer could not handle, as they are stored once more.

A record whose properties leave no room for those of a retry, which names the topic and says where
the message waits, becomes a dead letter: that can do without them.

Source: RocketMQ broker/processor/AbstractSendMessageProcessor.java, consumerSendMsgBack.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rmqcore.config import StoreConfig
from rmqcore.message import (
    DEAD_LETTER_PREFIX,
    LIGHT_QUEUES,
    RETRY_PREFIX,
    Lease,
    Message,
    MessageExt,
    copy_to,
)
from rmqcore.native.format._numbers import SysFlag
from rmqcore.store.consume.lease_request import Damaged

_FIRST_LEVEL: Final = 3
_REASON_MAX: Final = 1000
#: A dead letter for a damaged record needs fewer bytes than this beside its body, which is the
#: record: for its topic and the properties that say what is wrong with it.
_LETTER_HEAD_SIZE: Final = 8192


def first_retry_level(reconsume_times: int) -> int:
    """The delay level of the next try after this many; each waits longer than the one before."""
    return _FIRST_LEVEL + reconsume_times


def retry_ms(item: MessageExt | Damaged, lease: Lease, levels_ms: Sequence[int]) -> int:
    """How long the next try waits, milliseconds, where no delayed messages are delivered.

    Args:
        item: what was handed out; of what cannot be read nobody knows earlier tries.
        lease: under which it was; its attempts count.
        levels_ms: milliseconds of each delay level, the first one first; the last one holds for all
            above.
    """
    before = 0 if isinstance(item, Damaged) else item.reconsume_times
    level = first_retry_level(before + lease.attempt)
    return levels_ms[min(level, len(levels_ms)) - 1]


def sent_again(
    stored: MessageExt,
    topic: str,
    *,
    queue_id: int,
    delay_level: int,
    reconsume_times: int,
    wait: bool,
) -> Message:
    """What is put for a message that comes again, or is a dead letter.

    Args:
        stored: the message.
        topic: its group's retry or dead-letter topic.
        queue_id: queue of that topic.
        delay_level: when it comes; 0 is at once.
        reconsume_times: how often it was handed out by then.
        wait: whether the put waits for the disk where the store does.

    A put of what is to be tried again raises MessageIllegalError when its properties have no room
    for a retry's; a dead letter always has.
    """
    properties = dict(stored.properties)
    # the message is in its light queues already
    properties.pop(LIGHT_QUEUES, None)
    if _is_a_producers(stored) or "RETRY_TOPIC" not in properties:
        properties["RETRY_TOPIC"] = stored.topic
    properties["WAIT"] = "true" if wait else "false"
    properties.setdefault("ORIGIN_MESSAGE_ID", stored.message_id)
    properties["DELAY"] = str(delay_level)
    is_dead = topic.startswith(DEAD_LETTER_PREFIX)
    if not is_dead:
        # in a retry topic it says whose POP hands the message out again: none does
        properties.pop("ORIGIN_GROUP", None)
    return copy_to(
        topic,
        queue_id,
        stored,
        properties,
        spare=("RETRY_TOPIC", "DELAY") if is_dead else (),
        # retry and dead-letter topics list single messages: a batch is the body of one
        sys_flag=stored.sys_flag & ~(SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP),
        reconsume_times=reconsume_times,
        wait_store_msg_ok=wait,
    )


def _is_a_producers(stored: MessageExt) -> bool:
    """Tell whether a producer has written the properties of a message.

    Its group has written what lies in the group's own topics, but for what POP copies there from
    others. By `RETRY_TOPIC` consumers take a message for one of another topic.
    """
    if stored.topic.startswith(RETRY_PREFIX):
        popped_by = stored.properties.get("ORIGIN_GROUP")
        return popped_by is not None and stored.topic != RETRY_PREFIX + popped_by
    return not stored.topic.startswith(DEAD_LETTER_PREFIX)


def damaged_letter(topic: str, item: Damaged, lease: Lease, config: StoreConfig) -> Message:
    """What is put into a dead-letter topic for a message that cannot be read.

    Args:
        topic: the group's dead-letter topic.
        item: what is left of the message, and why it cannot be read.
        lease: under which it was handed out; says where it lies.
        config: the store's; of the body as much is kept as its limits allow.
    """
    in_a_file = max(0, config.mapped_file_size_commit_log - _LETTER_HEAD_SIZE)
    body_max = min(config.effective_max_message_size, in_a_file)
    properties = {
        "RETRY_TOPIC": lease.topic,
        "DAMAGED": item.reason[:_REASON_MAX],
        "DAMAGED_AT": f"{lease.topic}/{lease.queue_id}@{lease.queue_offset}",
    }
    return Message(topic, item.body[:body_max], properties=properties)
