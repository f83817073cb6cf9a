"""What a POP has handed out: the messages of its answer, each with its handle.

Source: RocketMQ client/impl/MQClientAPIImpl.java, processPopResponse; ExtraInfoUtil.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from rmqcore.errors import CorruptRecordError
from rmqcore.message import MessageExt
from rmqcore.native.format._message_ext import message_from
from rmqcore.proxy.codes import Code, RefusedError
from rmqcore.proxy.receipts import NORMAL, ReceiptHandle
from rmqcore.remoting import RemotingCommand, RequestRefusedError
from rmqcore.remoting.command import Buffer

_RECEIPT: Final = "POP_CK"


class Popped(NamedTuple):
    """One message that was handed out.

    Attributes:
        message: as it is stored.
        handle: by which it is acknowledged.
        tries: how often it was handed out before.
    """

    message: MessageExt
    handle: ReceiptHandle
    tries: int


def popped_of(answer: RemotingCommand, broker_name: str) -> list[Popped]:
    """The messages of an answer to 200050.

    Args:
        answer: of the broker: header of 200050, messages in its body.
        broker_name: that handles name.

    Raises:
        RefusedError: the answer contradicts itself.
    """
    starts: dict[tuple[int, int], int] = {}
    try:
        for part in filter(None, answer.text("startOffsetInfo", "").split(";")):
            kind, queue_id, start = map(int, part.split(" "))
            starts[kind, queue_id] = start
        order = list(_order(answer.text("msgOffsetInfo", "")))
        messages = messages_of([answer.body, *answer.parts])
        told = _tries_of(answer.text("orderCountInfo", ""))
        pop_time_ms, invisible_ms = answer.number("popTime"), answer.number("invisibleTime")
        revive_queue = answer.number("reviveQid")
        return [
            Popped(
                message,
                _handle_of(
                    message,
                    ReceiptHandle(
                        starts[kind, queue_id],
                        pop_time_ms,
                        invisible_ms,
                        revive_queue,
                        kind,
                        broker_name,
                        queue_id,
                        offset,
                        message.phy_offset,
                    ),
                ),
                _tries(message, told, (kind, queue_id, offset)),
            )
            for message, (kind, queue_id, offset) in zip(messages, order, strict=True)
        ]
    except (ValueError, KeyError, CorruptRecordError, RequestRefusedError) as error:
        reason = f"broker {broker_name} has answered a POP with what is none: {error}"
        raise RefusedError(Code.INTERNAL_SERVER_ERROR, reason) from error


def _order(text: str) -> Iterator[tuple[int, int, int]]:
    """Kind of topic, queue and offset of each message, in their order."""
    for part in filter(None, text.split(";")):
        kind, queue_id, offsets = part.split(" ")
        for offset in offsets.split(","):
            yield int(kind), int(queue_id), int(offset)


def _tries_of(text: str) -> dict[tuple[int, str], int]:
    """How often the messages of an ordered POP came before: their records do not say it.

    Args:
        text: for messages ``kind qoQUEUE%OFFSET count``, for the others of a queue ``kind QUEUE
            count``, separated by ``;``; empty for a POP in no order.
    """
    found = {}
    for part in filter(None, text.split(";")):
        kind, where, count = part.split(" ")
        found[int(kind), where] = int(count)
    return found


def _tries(
    message: MessageExt, told: dict[tuple[int, str], int], place: tuple[int, int, int]
) -> int:
    """How often a message came before.

    Args:
        message: as it is stored.
        told: see `_tries_of`.
        place: kind of topic, queue and offset.
    """
    if not told:
        return message.reconsume_times
    kind, queue_id, offset = place
    of_queue = told.get((kind, str(queue_id)), 0)
    tries = told.get((kind, f"qo{queue_id}%{offset}"), of_queue)
    return tries if tries > 0 else message.reconsume_times


def messages_of(buffers: Sequence[Buffer]) -> list[MessageExt]:
    """The messages of the records in buffers; their checksums are not compared.

    Raises:
        CorruptRecordError: there is something else in one.
    """
    found = []
    for buffer in buffers:
        at, size = 0, len(buffer)
        while at < size:
            message = message_from(buffer, at, check_crc=False)
            if message.store_size <= 0:
                raise CorruptRecordError("", at, "a record without a size")
            found.append(message)
            at += message.store_size
    return found


def _handle_of(message: MessageExt, handle: ReceiptHandle) -> ReceiptHandle:
    """The handle of a message, which its own receipt says where it has one."""
    text = message.properties.get(_RECEIPT)
    if text is None or handle.kind == NORMAL:
        return handle
    try:
        own = ReceiptHandle.parse(text)
    except RefusedError:
        return handle
    return ReceiptHandle(
        own.start_offset,
        own.pop_time_ms,
        own.invisible_ms,
        own.revive_queue,
        own.kind,
        handle.broker_name,
        own.queue_id,
        own.queue_offset,
        message.phy_offset,
    )
