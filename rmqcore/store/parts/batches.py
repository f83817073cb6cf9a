"""What is put: copies of stored messages, and lists of messages as one batch."""

from __future__ import annotations

from collections.abc import Iterable

from rmqcore._codec import decode_batch, encode_batch, shares_queue
from rmqcore.errors import ArgumentError, MessageIllegalError
from rmqcore.message import LIGHT_QUEUES, BatchSettings, Message, MessageExt, copy_to
from rmqcore.native.format._numbers import SysFlag
from rmqcore.services.delay_schedule import requested_delay_level


def as_message(stored: MessageExt) -> Message:
    """What would have to be put to store a copy of a stored message."""
    return copy_to(
        stored.topic,
        stored.queue_id,
        stored,
        stored.properties,
        prepared_transaction_offset=stored.prepared_transaction_offset,
    )


def alone_for_light_queues(batch: Message) -> Message | None:
    """The only message of a batch, when it names light queues: by itself it gets numbers there."""
    body = bytes(batch.body)
    if LIGHT_QUEUES.encode() not in body:
        return None
    messages = decode_batch(body, topic=batch.topic)
    if len(messages) != 1:
        return None
    alone = messages[0]
    for name in BatchSettings.__annotations__:
        setattr(alone, name, getattr(batch, name))
    return alone


def listed(messages: object) -> list[Message]:
    """The messages of a batch; refuses what is none.

    Raises:
        ArgumentError: it is no iterable of messages.
    """
    rule = "several Message objects, or an encoded batch body"
    if not isinstance(messages, Iterable) or isinstance(messages, str | Message):
        raise ArgumentError("messages", messages, rule)
    listed = list(messages)
    for number, message in enumerate(listed):
        if not isinstance(message, Message):
            raise ArgumentError(f"messages[{number}]", message, "a Message")
    return listed


def encoded_batch(
    messages: list[Message], topic: str | None, queue_id: int
) -> tuple[bytes, str | None, int]:
    """A list of messages as a batch body, with the queue that they share.

    Args:
        messages: one or more, all of one queue; none delayed, none of a transaction.
        topic: theirs, once more, or None.
        queue_id: where they go; 0 leaves it to the first message.

    Returns:
        the batch's body, the topic and the queue id.

    Raises:
        MessageIllegalError: there is none, or one that cannot be put with the others.
    """
    if not messages:
        raise MessageIllegalError("a batch has one message or more")
    if not shares_queue(messages):
        _check_batch(messages)
    first = messages[0]
    if topic not in (None, first.topic):
        raise MessageIllegalError(f"topic={topic!r}, but the messages go to {first.topic!r}")
    return encode_batch(messages), first.topic, queue_id or first.queue_id


def _check_batch(messages: list[Message]) -> None:
    """Refuse what cannot be put as one batch, naming the message."""
    first = messages[0]
    for number, message in enumerate(messages):
        if (message.topic, message.queue_id) != (first.topic, first.queue_id):
            raise MessageIllegalError(
                f"message {number} of the batch goes to {message.topic}/{message.queue_id}, the "
                f"first to {first.topic}/{first.queue_id}; a batch has one queue"
            )
        if requested_delay_level(message) > 0 or message.sys_flag & SysFlag.TRANSACTION_MASK:
            raise MessageIllegalError(
                f"message {number} of the batch is delayed or transactional; put it by itself"
            )
