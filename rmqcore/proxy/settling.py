"""AckMessage, ChangeInvisibleDuration, dead letters: what becomes of messages handed out.

Source: RocketMQ proxy/grpc/v2/consumer/AckMessageActivity.java,
ChangeInvisibleDurationActivity.java; proxy/grpc/v2/producer/ForwardMessageToDLQActivity.java;
proxy/processor/ConsumerProcessor.java, ProducerProcessor.java.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Final

from rmqcore.message import MessageExt
from rmqcore.proxy.burials import Burials
from rmqcore.proxy.callers import Caller
from rmqcore.proxy.calls import Call
from rmqcore.proxy.cluster import Cluster
from rmqcore.proxy.codes import OK, Code, RefusedError, expect_success, status, status_of_all
from rmqcore.proxy.messages import V2Message, v2_class
from rmqcore.proxy.names import group_name, topic_name
from rmqcore.proxy.outgoing import duration_ms
from rmqcore.proxy.receipts import ReceiptHandle
from rmqcore.proxy.receiving import INVISIBLE_MS_MAX
from rmqcore.proxy.renewal import Renewals
from rmqcore.remoting import RemotingCommand, RequestCode, ResponseCode

_AckResponse: Final = v2_class("AckMessageResponse")
_AckEntry: Final = v2_class("AckMessageResultEntry")
_ChangeResponse: Final = v2_class("ChangeInvisibleDurationResponse")
_DeadResponse: Final = v2_class("ForwardMessageToDeadLetterQueueResponse")

_ACKS_MAX: Final = 1024
#: After so many acknowledgements others have their turn.
_AT_ONCE: Final = 16
#: A broker answers for a dead letter when its slaves have it, after 3 s at the latest, and its
#: disk, after 5 s, unless its settings say otherwise; whoever waits less makes one more.
_BURIAL_TIMEOUT_MS: Final = 10_000
#: So many dead letters are known whose messages could not be acknowledged.
_BURIED_MAX: Final = 10_000


class SettlingCalls:
    """What consumers call for messages that they were handed.

    Args:
        cluster: the brokers.
        renewals: keeps for clients what they still work on.
    """

    def __init__(self, cluster: Cluster, renewals: Renewals) -> None:
        self._cluster = cluster
        self._renewals, self._burials = renewals, Burials(renewals.work_on)
        #: dead letters that are stored, and whose messages are not acknowledged, the latest last
        self._buried: dict[tuple[str, str, str, int, int, int], None] = {}

    # ---- AckMessage

    def acknowledge(
        self, call: Call, caller: Caller, request: V2Message
    ) -> V2Message | Awaitable[V2Message]:
        """Be done with messages; each has an entry in the answer.

        Args:
            call: of the client.
            caller: who it is.
            request: an ``AckMessageRequest``, with 1 to `_ACKS_MAX` entries.

        Raises:
            RefusedError: topic or group is none, or there are more entries.
        """
        if not 0 < len(request.entries) <= _ACKS_MAX:
            raise RefusedError(Code.BAD_REQUEST, f"1 to {_ACKS_MAX} entries a request")
        group, topic = group_name(request.group), topic_name(request.topic)
        done: list[V2Message] = []
        for entry in request.entries:
            given = entry.receipt_handle
            if len(done) == _AT_ONCE or self._renewals.is_kept(caller, group, given):
                return self._acknowledge_rest(caller, request, done, None)
            try:
                handle = ReceiptHandle.parse(given)
                now_ms = self._cluster.clock_ms(handle.broker_name)
                if now_ms is None:
                    return self._acknowledge_rest(caller, request, done, None)
                handle.expect_open(now_ms)
                answer = self._ask_to_acknowledge(caller, group, topic, handle)
                if not isinstance(answer, RemotingCommand):
                    return self._acknowledge_rest(caller, request, done, answer)
                _expect_known(answer)
                done.append(OK)
            except RefusedError as error:
                done.append(status(error.code, error.reason))
        return _acknowledged(request, done)

    async def _acknowledge_rest(
        self,
        caller: Caller,
        request: V2Message,
        done: list[V2Message],
        asked: Awaitable[RemotingCommand] | None,
    ) -> V2Message:
        """Go on with entries that have to be waited for.

        Args:
            caller: who makes the call.
            request: its message.
            done: what the first entries have come to.
            asked: gives the broker's answer to the next one; None: it was not asked yet.
        """
        group, topic = group_name(request.group), topic_name(request.topic)
        for entry in request.entries[len(done) :]:
            if done and len(done) % _AT_ONCE == 0:
                await asyncio.sleep(0)
            try:
                if asked is None:
                    given = entry.receipt_handle
                    async with self._renewals.settled(caller, group, given) as handle:
                        await self.acknowledge_one(caller, group, topic, handle)
                else:
                    first, asked = asked, None
                    _expect_known(await first)
                done.append(OK)
            except RefusedError as error:
                done.append(status(error.code, error.reason))
        return _acknowledged(request, done)

    def _ask_to_acknowledge(
        self, caller: Caller, group: str, topic: str, handle: ReceiptHandle
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        command = RemotingCommand(RequestCode.ACK_MESSAGE, handle.fields(group, topic))
        return self._cluster.ask(handle.broker_name, command, caller)

    async def acknowledge_one(
        self, caller: Caller, group: str, topic: str, handle: ReceiptHandle
    ) -> None:
        """Be done with one message.

        Args:
            caller: in whose name.
            group: that was handed it.
            topic: that it was asked for.
            handle: of the message.

        Raises:
            RefusedError: the broker does not know the handle, or does not answer.
        """
        answer = self._ask_to_acknowledge(caller, group, topic, handle)
        _expect_known(answer if isinstance(answer, RemotingCommand) else await answer)

    # ---- ChangeInvisibleDuration

    async def change(self, call: Call, caller: Caller, request: V2Message) -> V2Message:
        """Hand a message out again at another time; its new handle is in the answer.

        Args:
            call: of the client.
            caller: who it is.
            request: a ``ChangeInvisibleDurationRequest``; the duration is 12 hours at most.

        Raises:
            RefusedError: duration or handle is none, or the broker refuses.
        """
        group, topic = group_name(request.group), topic_name(request.topic)
        invisible_ms = duration_ms(request.invisible_duration)
        if not 0 < invisible_ms <= INVISIBLE_MS_MAX:
            reason = f"more than 0 and up to {INVISIBLE_MS_MAX // 1000} s"
            raise RefusedError(Code.ILLEGAL_INVISIBLE_TIME, reason)
        async with self._renewals.settled(caller, group, request.receipt_handle) as handle:
            changed = await self._renewals.change(
                caller, group, topic, handle, invisible_ms, suspend=request.suspend
            )
        return _ChangeResponse(status=OK, receipt_handle=str(changed))

    # ---- ForwardMessageToDeadLetterQueue

    async def bury(self, call: Call, caller: Caller, request: V2Message) -> V2Message:
        """Make a message a dead letter of its group, once, however often a client asks for it.

        Args:
            call: of the client.
            caller: who it is.
            request: a ``ForwardMessageToDeadLetterQueueRequest``.

        Raises:
            RefusedError: the handle is none, or the broker refuses.
        """
        key = caller.client[0], group_name(request.group), request.receipt_handle
        await self._burials.once(key, lambda: self._bury_given(caller, request))
        return _DeadResponse(status=OK)

    async def _bury_given(self, caller: Caller, request: V2Message) -> None:
        group, topic = group_name(request.group), topic_name(request.topic)
        most = max(1, request.max_delivery_attempts)
        async with self._renewals.settled(caller, group, request.receipt_handle) as handle:
            await self.bury_one(caller, group, topic, handle, None, most, request.message_id)

    async def bury_one(
        self,
        caller: Caller,
        group: str,
        topic: str,
        handle: ReceiptHandle,
        message: MessageExt | None,
        attempt_max: int,
        message_id: str = "",
    ) -> None:
        """Store one message as a dead letter, once, and be done with it then.

        Args:
            caller: in whose name.
            group: that was handed it.
            topic: that it was asked for.
            handle: of the message.
            message: itself; None where the client names it.
            attempt_max: how often the group is given a message, for the broker to compare.
            message_id: that the client names it by.

        Raises:
            RefusedError: the handle does not tell where it is, or the broker refuses.

        Source: ConsumerSendMsgBackRequestHeader with delayLevel -1, as ProducerProcessor,
        forwardMessageToDeadLetterQueue.
        """
        if handle.phy_offset < 0:
            reason = "the receipt handle does not tell where the message is"
            raise RefusedError(Code.INVALID_RECEIPT_HANDLE, reason)
        popped_from = handle.topic_of(group, topic)
        place = handle.queue_id, handle.queue_offset, handle.phy_offset
        key = (group, handle.broker_name, popped_from, *place)
        if key not in self._buried:
            fields = {
                "offset": str(handle.phy_offset),
                "group": group,
                "delayLevel": "-1",
                "originMsgId": message_id or (message.message_id if message is not None else ""),
                "originTopic": popped_from,
                "unitMode": "false",
                "maxReconsumeTimes": str(attempt_max - 1),
                "bname": handle.broker_name,
            }
            command = RemotingCommand(RequestCode.CONSUMER_SEND_MSG_BACK, fields)
            answer = self._cluster.ask(
                handle.broker_name, command, caller, timeout_ms=_BURIAL_TIMEOUT_MS
            )
            expect_success(answer if isinstance(answer, RemotingCommand) else await answer)
            if len(self._buried) >= _BURIED_MAX:
                del self._buried[next(iter(self._buried))]
            self._buried[key] = None
        await self.acknowledge_one(caller, group, topic, handle)
        self._buried.pop(key, None)


def _acknowledged(request: V2Message, done: list[V2Message]) -> V2Message:
    """The answer to an AckMessage, of what each of its entries has come to."""
    entries = [
        _AckEntry(message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=each)
        for entry, each in zip(request.entries, done, strict=True)
    ]
    return _AckResponse(status=status_of_all(entries), entries=entries)


def _expect_known(answer: RemotingCommand) -> None:
    """Expect that a broker knows a receipt.

    Raises:
        RefusedError: it does not, or something else is wrong.
    """
    if answer.code == ResponseCode.MESSAGE_ILLEGAL:
        raise RefusedError(Code.INVALID_RECEIPT_HANDLE, answer.remark or "")
    expect_success(answer)
