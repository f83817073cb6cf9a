"""SendMessage, EndTransaction, RecallMessage.

Source: RocketMQ proxy/grpc/v2/producer/SendMessageActivity.java, transaction/
EndTransactionActivity.java, producer/RecallMessageActivity.java.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from typing import Final

from rmqcore.message import decode_message_id
from rmqcore.proxy.callers import Caller
from rmqcore.proxy.calls import Call
from rmqcore.proxy.cluster import Cluster, TopicView
from rmqcore.proxy.codes import (
    OK,
    Code,
    RefusedError,
    code_of,
    expect_success,
    status,
    status_of_all,
)
from rmqcore.proxy.incoming import Incoming, incoming
from rmqcore.proxy.messages import (
    MessageType,
    TransactionResolution,
    TransactionSource,
    V2Message,
    v2_class,
)
from rmqcore.proxy.names import topic_name
from rmqcore.proxy.queue_choice import QueueChoice, SlowBrokers
from rmqcore.proxy.transaction_id import TransactionId
from rmqcore.remoting import RemotingCommand, RequestCode
from rmqcore.remoting.codes import VERSION_5_0_0

_Response: Final = v2_class("SendMessageResponse")
_Entry: Final = v2_class("SendResultEntry")
_EndResponse: Final = v2_class("EndTransactionResponse")
_RecallResponse: Final = v2_class("RecallMessageResponse")
#: One request has at most this many messages.
_BATCH_MAX: Final = 1024
#: After so many of them others are served.
_AT_ONCE: Final = 32
_COMMIT: Final = 8
_ROLLBACK: Final = 12
_RESOLUTIONS: Final = {
    TransactionResolution.COMMIT: _COMMIT,
    TransactionResolution.ROLLBACK: _ROLLBACK,
}
_HANDLE_WORDS: Final = 5
_SEND_TIMEOUT_MS: Final = 3000
#: By these codes a broker says that a message is stored, though not as safely as it was asked to.
_STORED: Final = (
    Code.OK,
    Code.MASTER_PERSISTENCE_TIMEOUT,
    Code.SLAVE_PERSISTENCE_TIMEOUT,
    Code.HA_NOT_AVAILABLE,
)


class ProducerCalls:
    """What producers call.

    Args:
        cluster: the brokers.
        clock_ms: Unix time in milliseconds.
        monotonic_s: seconds of a clock that never steps back.
    """

    def __init__(
        self, cluster: Cluster, clock_ms: Callable[[], int], monotonic_s: Callable[[], float]
    ) -> None:
        self._cluster = cluster
        self._clock_ms = clock_ms
        self._choice, self._slow = QueueChoice(), SlowBrokers(monotonic_s)

    # ---- SendMessage

    def send(
        self, call: Call, caller: Caller, request: V2Message
    ) -> V2Message | Awaitable[V2Message]:
        """Store messages, each with an entry in the answer, in their order.

        Args:
            call: of the client.
            caller: who it is.
            request: a ``SendMessageRequest``, with 1 to `_BATCH_MAX` messages of one topic.

        Raises:
            RefusedError: a message is none, or the broker refuses the only one.
        """
        count = len(request.messages)
        if not 0 < count <= _BATCH_MAX:
            raise RefusedError(Code.BAD_REQUEST, f"{count} messages; 1 to {_BATCH_MAX} a request")
        topic = topic_name(request.messages[0].topic)
        if count > 1:
            return self._send_several(caller, request, topic)
        message = incoming(request.messages[0], topic, self._clock_ms)
        view = self._cluster.known_topic(topic)
        if view is None:
            return self._send_later(caller, message, topic)
        answer, broker_name = self._asked(caller, message, view)
        if isinstance(answer, RemotingCommand):
            return _response([_entry_of(message, answer, broker_name)])
        return self._await_one(message, answer, broker_name)

    async def _send_later(self, caller: Caller, message: Incoming, topic: str) -> V2Message:
        view = await self._view(topic, message.kind, caller)
        return _response([await self._send_one(caller, message, view)])

    @staticmethod
    async def _await_one(
        message: Incoming, answer: Awaitable[RemotingCommand], broker_name: str
    ) -> V2Message:
        return _response([_entry_of(message, await answer, broker_name)])

    async def _send_several(self, caller: Caller, request: V2Message, topic: str) -> V2Message:
        """Send one after the other, so that they keep their order."""
        if any(topic_name(message.topic) != topic for message in request.messages):
            raise RefusedError(Code.BAD_REQUEST, "the messages of a request have one topic")
        entries: list[V2Message] = []
        for each in request.messages:
            if len(entries) % _AT_ONCE == _AT_ONCE - 1:
                # others have their turn, too
                await asyncio.sleep(0)
            try:
                message = incoming(each, topic, self._clock_ms)
                view = await self._view(topic, message.kind, caller)
                entries.append(await self._send_one(caller, message, view))
            except RefusedError as error:
                message_id = each.system_properties.message_id
                refused = status(error.code, error.reason)
                entries.append(_Entry(status=refused, message_id=message_id))
        return _response(entries)

    async def _send_one(self, caller: Caller, message: Incoming, view: TopicView) -> V2Message:
        answer, broker_name = self._asked(caller, message, view)
        done = answer if isinstance(answer, RemotingCommand) else await answer
        return _entry_of(message, done, broker_name)

    async def _view(self, topic: str, kind: MessageType, caller: Caller) -> TopicView:
        """The topic of a message, made if it may be, with the message's type."""
        view = await self._cluster.topic(topic)
        if view is None:
            view = await self._cluster.make_topic(topic, kind, caller)
        if view is None:
            raise RefusedError(Code.TOPIC_NOT_FOUND, f"there is no topic {topic}")
        return view

    def _asked(
        self, caller: Caller, message: Incoming, view: TopicView
    ) -> tuple[RemotingCommand | Awaitable[RemotingCommand], str]:
        """Hand a message to the broker of its queue."""
        if not view.accepts_type(message.kind):
            reason = (
                f"the topic {view.name} takes {view.message_type} messages, and this is a "
                f"{message.kind.name} message"
            )
            raise RefusedError(Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, reason)
        if not view.to_write:
            raise RefusedError(Code.FORBIDDEN, f"the topic {view.name} has no queue to write to")
        slow = self._slow.among(view.brokers) if self._slow else ()
        broker_name, queue_id = self._choice.place(
            view.name, view.to_write, message.sharding_key, slow
        )
        code = RequestCode.SEND_MESSAGE_V2
        fields = message.fields(view.name, queue_id)
        fields["n"] = broker_name
        request = RemotingCommand(code, fields, message.body)
        # an older broker would deliver a message at once that is due later
        since = VERSION_5_0_0 if message.kind is MessageType.DELAY else 0
        answer = self._cluster.ask(
            broker_name, request, caller, timeout_ms=_SEND_TIMEOUT_MS, since=since
        )
        if not isinstance(answer, RemotingCommand):
            answer = self._slow.answer_of(broker_name, answer)
        return answer, broker_name

    # ---- EndTransaction

    async def end(self, call: Call, caller: Caller, request: V2Message) -> V2Message:
        """Commit a transaction's message, or roll it back.

        Args:
            call: of the client.
            caller: who it is.
            request: an ``EndTransactionRequest``: the transaction's id, commit or rollback.

        Raises:
            RefusedError: resolution or id is none, or the broker refuses.
        """
        topic = topic_name(request.topic)
        resolution = _RESOLUTIONS.get(request.resolution)
        if resolution is None:
            raise RefusedError(Code.BAD_REQUEST, "the resolution is neither commit nor rollback")
        half = TransactionId.parse(request.transaction_id)
        from_check = request.source == TransactionSource.SOURCE_SERVER_CHECK
        fields = {
            "topic": topic,
            "producerGroup": topic,
            "tranStateTableOffset": str(half.queue_offset),
            "commitLogOffset": str(half.phy_offset),
            "commitOrRollback": str(resolution),
            "fromTransactionCheck": str(from_check).lower(),
            "msgId": request.message_id,
            "transactionId": request.message_id,
            "bname": half.broker_name,
        }
        command = RemotingCommand(RequestCode.END_TRANSACTION, fields)
        answer = self._cluster.ask(half.broker_name, command, caller)
        expect_success(answer if isinstance(answer, RemotingCommand) else await answer)
        return _EndResponse(status=OK)

    # ---- RecallMessage

    async def recall(self, call: Call, caller: Caller, request: V2Message) -> V2Message:
        """Take a message back that has still to be delivered.

        Args:
            call: of the client.
            caller: who it is.
            request: a ``RecallMessageRequest``, with the handle that the send was answered with.

        Raises:
            RefusedError: the handle is none, or the broker refuses.
        """
        topic = topic_name(request.topic)
        broker_name = _broker_of(request.recall_handle)
        fields = {
            "producerGroup": topic,
            "topic": topic,
            "recallHandle": request.recall_handle,
            "bname": broker_name,
        }
        command = RemotingCommand(RequestCode.RECALL_MESSAGE, fields)
        answer = self._cluster.ask(broker_name, command, caller)
        done = expect_success(answer if isinstance(answer, RemotingCommand) else await answer)
        return _RecallResponse(status=OK, message_id=done.ext_fields.get("msgId", ""))


def _entry_of(message: Incoming, answer: RemotingCommand, broker_name: str) -> V2Message:
    """What a broker's answer to a send says of the message."""
    code = code_of(answer)
    fields = answer.ext_fields
    if code not in _STORED or "msgId" not in fields:
        refused = status(code, answer.remark or "")
        return _Entry(status=refused, message_id=message.message_id)
    entry = _Entry(
        status=OK if code is Code.OK else status(code),
        message_id=message.message_id,
        offset=int(fields.get("queueOffset", "0")),
    )
    if "recallHandle" in fields:
        entry.recall_handle = fields["recallHandle"]
    if message.kind is MessageType.TRANSACTION:
        phy_offset = decode_message_id(fields["msgId"])[1]
        entry.transaction_id = str(TransactionId(broker_name, phy_offset, entry.offset))
    return entry


def _response(entries: list[V2Message]) -> V2Message:
    return _Response(status=status_of_all(entries), entries=entries)


def _broker_of(handle: str) -> str:
    """The broker that a recall handle names.

    Raises:
        RefusedError: it is none.

    Source: RocketMQ common/producer/RecallMessageHandle.java.
    """
    try:
        padded = handle + "=" * (-len(handle) % 4)
        words = base64.b64decode(padded, b"-_", validate=True).decode().split(" ")
    except ValueError:
        words = []
    if len(words) < _HANDLE_WORDS or not words[2]:
        raise RefusedError(Code.BAD_REQUEST, "the text is no recall handle")
    return words[2]
