"""PullMessage, UpdateOffset, GetOffset, QueryOffset, which Apache's proxy does not answer.

A client that pulls chooses queues and offsets by itself; the group's offset is what it says.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable
from typing import Final

from rmqcore.errors import CorruptRecordError
from rmqcore.message import MessageExt, light_numbers
from rmqcore.proxy.callers import Caller
from rmqcore.proxy.calls import Call
from rmqcore.proxy.cluster import Cluster
from rmqcore.proxy.codes import OK, Code, RefusedError, code_of, expect_success, status
from rmqcore.proxy.messages import FilterType, QueryOffsetPolicy, V2Message, v2_class
from rmqcore.proxy.names import copied_name, group_name, topic_name
from rmqcore.proxy.outgoing import Body, bodies_of, duration_ms, is_packed, outgoing
from rmqcore.proxy.popped import messages_of
from rmqcore.proxy.receiving import BATCH_MAX, EXPRESSION_MAX, POLL_MS_MAX
from rmqcore.remoting import RemotingCommand, RequestCode, ResponseCode
from rmqcore.remoting.codes import PULL_SUBSCRIPTION, PULL_SUSPEND

_PullResponse: Final = v2_class("PullMessageResponse")
_UpdateResponse: Final = v2_class("UpdateOffsetResponse")
_GetResponse: Final = v2_class("GetOffsetResponse")
_QueryResponse: Final = v2_class("QueryOffsetResponse")
_PULL_LATE_MS: Final = 5_000
_BEFORE_DEADLINE_MS: Final = 500
_NONE: Final = (
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)


def _number_in(topic: str, message: MessageExt) -> int:
    """The number of a message in the queue that it was pulled from, which may be a light one."""
    numbers = (number for name, number in light_numbers(message) if name == topic)
    return next(numbers, message.queue_offset)


class OffsetCalls:
    """What clients call that know where they are.

    Args:
        cluster: the brokers.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def pull(self, call: Call, caller: Caller, request: V2Message) -> Awaitable[None]:
        """Send a queue's messages from an offset on, and the offset behind them.

        Args:
            call: gets the answer, which is several messages.
            caller: who it is.
            request: a ``PullMessageRequest``; nothing of it is kept while the pull waits.

        Raises:
            RefusedError: a field is none. So does what is awaited, where the broker refuses.
        """
        wait_ms, fields = self._wanted(call, request)
        broker_name, offset = request.message_queue.broker.name, request.offset
        named = copied_name(request.message_queue.topic)
        command = RemotingCommand(RequestCode.PULL_MESSAGE, fields)
        timeout_ms = wait_ms + _PULL_LATE_MS
        asked = self._cluster.ask(broker_name, command, caller, call=call, timeout_ms=timeout_ms)
        return self._send_pulled(call, named, offset, asked)

    @staticmethod
    async def _send_pulled(
        call: Call,
        named: V2Message,
        offset: int,
        asked: RemotingCommand | Awaitable[RemotingCommand],
    ) -> None:
        """Send what a pull (11) was answered with."""
        answer = asked if isinstance(asked, RemotingCommand) else await asked
        if answer.code not in _NONE:
            expect_success(answer)
        try:
            messages = messages_of([answer.body, *answer.parts])
        except CorruptRecordError as error:
            raise RefusedError(Code.INTERNAL_SERVER_ERROR, str(error)) from error
        following = answer.number("nextBeginOffset", offset)
        none = status(Code.MESSAGE_NOT_FOUND, answer.remark or "no new message")
        call.send(_PullResponse(status=OK if messages else none).SerializeToString())
        bodies: list[Body] = []
        if any(map(is_packed, messages)):
            bodies = await asyncio.to_thread(bodies_of, messages)
            if len(bodies) < len(messages):
                # the rest has no room beside them
                following = _number_in(topic_name(named), messages[len(bodies)])
                messages = messages[: len(bodies)]
        for message, body in itertools.zip_longest(messages, bodies):
            sent = outgoing(message, named, body=body)
            call.send(_PullResponse(message=sent).SerializeToString())
            if body is not None:
                # others have their turn: it may be large
                await asyncio.sleep(0)
        call.send(_PullResponse(next_offset=following).SerializeToString())

    def _wanted(self, call: Call, request: V2Message) -> tuple[int, dict[str, str]]:
        """For how long a pull may wait, ms, and its header: as long as its client lets it."""
        queue, chosen = request.message_queue, request.filter_expression
        if request.offset < 0:
            raise RefusedError(Code.ILLEGAL_OFFSET, "an offset is 0 or more")
        if len(chosen.expression) > EXPRESSION_MAX:
            raise RefusedError(Code.ILLEGAL_FILTER_EXPRESSION, "the expression is too long")
        left_ms = call.left_s(asyncio.get_running_loop().time()) * 1000 - _BEFORE_DEADLINE_MS
        wait_ms = max(0, min(duration_ms(request.long_polling_timeout), POLL_MS_MAX))
        wait_ms = max(0, round(min(wait_ms, left_ms)))
        return wait_ms, self._queue(queue) | {
            "consumerGroup": group_name(request.group),
            "queueOffset": str(request.offset),
            "maxMsgNums": str(max(1, min(request.batch_size, BATCH_MAX))),
            "sysFlag": str((PULL_SUSPEND if wait_ms else 0) | PULL_SUBSCRIPTION),
            "commitOffset": "0",
            "suspendTimeoutMillis": str(wait_ms),
            "subscription": chosen.expression or "*",
            "subVersion": "0",
            "expressionType": "SQL92" if chosen.type == FilterType.SQL else "TAG",
        }

    async def update(self, call: Call, caller: Caller, request: V2Message) -> V2Message:
        """Set how far a group is in a queue.

        Args:
            call: of the client.
            caller: who it is.
            request: an ``UpdateOffsetRequest``; its offset is 0 or more.

        Raises:
            RefusedError: the offset is none, or the broker refuses.
        """
        if request.offset < 0:
            raise RefusedError(Code.ILLEGAL_OFFSET, "an offset is 0 or more")
        fields = {
            "consumerGroup": group_name(request.group),
            "commitOffset": str(request.offset),
        }
        await self._asked(caller, request, RequestCode.UPDATE_CONSUMER_OFFSET, fields)
        return _UpdateResponse(status=OK)

    async def get(self, call: Call, caller: Caller, request: V2Message) -> V2Message:
        """Tell how far a group is in a queue.

        Args:
            call: of the client.
            caller: who it is.
            request: a ``GetOffsetRequest``.

        Raises:
            RefusedError: the group has no offset there, or the broker refuses.
        """
        fields = {"consumerGroup": group_name(request.group), "setZeroIfNotFound": "false"}
        answer = await self._asked(caller, request, RequestCode.QUERY_CONSUMER_OFFSET, fields)
        return _GetResponse(status=OK, offset=answer.number("offset"))

    async def query(self, call: Call, caller: Caller, request: V2Message) -> V2Message:
        """Tell where a queue begins or ends, or what was stored first from a time on.

        Args:
            call: of the client.
            caller: who it is.
            request: a ``QueryOffsetRequest``; its timestamp is looked at to the millisecond.

        Raises:
            RefusedError: the timestamp is missing, or the broker refuses.
        """
        policy, fields = request.query_offset_policy, dict[str, str]()
        if policy == QueryOffsetPolicy.TIMESTAMP:
            stamp = request.timestamp
            if not request.HasField("timestamp") or stamp.seconds < 0:
                raise RefusedError(Code.BAD_REQUEST, "the policy TIMESTAMP needs a timestamp")
            fields["timestamp"] = str(stamp.seconds * 1000 + stamp.nanos // 1_000_000)
            code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        elif policy == QueryOffsetPolicy.END:
            code = RequestCode.GET_MAX_OFFSET
        else:
            code = RequestCode.GET_MIN_OFFSET
        answer = await self._asked(caller, request, code, fields)
        return _QueryResponse(status=OK, offset=answer.number("offset"))

    async def _asked(
        self, caller: Caller, request: V2Message, code: int, fields: dict[str, str]
    ) -> RemotingCommand:
        queue = request.message_queue
        command = RemotingCommand(code, self._queue(queue) | fields)
        asked = self._cluster.ask(queue.broker.name, command, caller)
        answer = asked if isinstance(asked, RemotingCommand) else await asked
        if code_of(answer) is Code.OFFSET_NOT_FOUND:
            raise RefusedError(Code.OFFSET_NOT_FOUND, answer.remark or "")
        return expect_success(answer)

    @staticmethod
    def _queue(queue: V2Message) -> dict[str, str]:
        if queue.id < 0 or not queue.broker.name:
            raise RefusedError(Code.BAD_REQUEST, "the queue has no number, or no broker")
        return {
            "topic": topic_name(queue.topic),
            "queueId": str(queue.id),
            "bname": queue.broker.name,
        }
