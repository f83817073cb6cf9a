"""`Replies`: the callers that wait for a reply to a request message."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from rmqcore._codec import decode_properties, decode_record, encode_record
from rmqcore.client.instance import RequestDeadline
from rmqcore.client.outgoing import Outgoing
from rmqcore.errors import RmqCoreError
from rmqcore.message import Message, ReceivedMessage
from rmqcore.native.format._numbers import SysFlag
from rmqcore.remoting import (
    Connection,
    RemotingCommand,
    RemotingTimeoutError,
    RequestCode,
    RequestRefusedError,
    ResponseCode,
    success,
)


class ExpectedReply:
    """One reply that is waited for."""

    def __init__(self) -> None:
        self.future: asyncio.Future[ReceivedMessage] = asyncio.get_running_loop().create_future()

    async def wait(self, topic: str, deadline: RequestDeadline) -> ReceivedMessage:
        """Wait until it is there.

        Args:
            topic: of the request, for the error.
            deadline: when nobody waits any more.

        Raises:
            RemotingTimeoutError: it did not come in time.
        """
        done, _ = await asyncio.wait([self.future], timeout=deadline.rest_ms / 1000)
        if not done:
            code = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
            raise RemotingTimeoutError(f"the consumer of {topic}", code, deadline.timeout_ms)
        return self.future.result()


class Replies:
    """The requests of one producer that wait for their replies. Source: RequestFutureHolder."""

    def __init__(self) -> None:
        self._waiting: dict[str, ExpectedReply] = {}

    @contextlib.contextmanager
    def expect(
        self, message: Outgoing, client_id: str, timeout_ms: float
    ) -> Iterator[ExpectedReply]:
        """Let a message ask for a reply, as long as the context lasts.

        Args:
            message: the request, which gets what a consumer needs for its reply.
            client_id: of the client that the broker passes the reply to.
            timeout_ms: how long the reply is waited for.
        """
        name, reply = message.ask_for_reply(client_id, timeout_ms), ExpectedReply()
        self._waiting[name] = reply
        try:
            yield reply
        finally:
            del self._waiting[name]

    def deliver(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """326: a broker passes a reply on. Source: ClientRemotingProcessor, receiveReplyMessage.

        Raises:
            RequestRefusedError: the reply is no message.
        """
        properties = decode_properties(request.text("properties", "").encode())
        reply = self._waiting.get(properties.get("CORRELATION_ID", ""))
        if reply is None:
            return success(remark="nobody waits for this reply")
        message = Message(
            request.text("topic"),
            request.body,
            queue_id=max(0, request.number("queueId", 0)),
            properties=properties,
            flag=request.number("flag", 0),
            sys_flag=request.number("sysFlag", 0) & ~SysFlag.HOSTS_V6,
            born_timestamp_ms=request.number("bornTimestamp", 0),
            reconsume_times=request.number("reconsumeTimes", 0),
        )
        stored_ms = request.number("storeTimestamp", 0)
        try:
            record = encode_record(
                message, queue_offset=0, phy_offset=0, store_timestamp_ms=stored_ms
            )
        except (RmqCoreError, ValueError) as error:
            remark = "the reply is no message"
            raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, remark) from error
        if not reply.future.done():
            reply.future.set_result(ReceivedMessage(decode_record(record)))
        return success()
