"""Replies: what a consumer answers, passed on to the producer that has asked.

Source: RocketMQ broker/processor/ReplyMessageProcessor.java.
"""

from __future__ import annotations

import inspect
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

from rmqcore._codec import decode_properties
from rmqcore.broker.send._send_request import SendRequest
from rmqcore.broker.send.send import check_body
from rmqcore.broker.state.broker_state import BrokerState
from rmqcore.broker.state.masters_only import masters_only
from rmqcore.native.format._numbers import PROPERTIES_SIZE_MAX
from rmqcore.remoting import (
    Connection,
    RemotingCommand,
    RemotingError,
    RequestCode,
    ResponseCode,
    needs,
)
from rmqcore.remoting.serves import serves

logger = logging.getLogger(__name__)

_PUSH_TIMEOUT_MS: Final = 3000.0
#: Each property of a text of properties ends with this character.
_END: Final = "\x02"
#: A client that is brought more bytes of replies than this, and does not say that it has them, is
#: brought no more; nor beyond the sum for all clients one that is brought more than the last.
_BROUGHT_MAX: Final = 64 << 20
_BROUGHT_TOTAL_MAX: Final = 256 << 20
_BROUGHT_ALWAYS: Final = 1 << 20
_NOT_STORED: Final = {"msgId": "0", "queueOffset": "0"}

#: Stores a message as a plain send does.
Store = Callable[[Connection, RemotingCommand], RemotingCommand | Awaitable[RemotingCommand]]


class ReplyMessages:
    """Passes replies on.

    Args:
        state: the broker's.
        store: stores a reply as a plain send does.
    """

    def __init__(self, state: BrokerState, store: Store) -> None:
        self._config, self._topics = state.config, state.topics
        self._producers = state.producers
        self._store = store
        #: bytes of replies that clients have not said to have, by their connections
        self._brought: Counter[Connection] = Counter()
        self._clock_ms = state.world.clock_ms

    @serves(RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2, needs=needs.publish)
    @masters_only(ResponseCode.SERVICE_NOT_AVAILABLE)
    async def reply(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Pass a reply on to who waits for it; the answer says whether that one has it.

        Args:
            connection: of the consumer.
            request: header of 324 or 325, as of a send; its body is the answer.

        Raises:
            RequestRefusedError: the topic cannot be sent to, or the message is too large.
        """
        wanted = SendRequest(request)
        check_body(request)
        self._topics.check_sendable(wanted.topic)
        topic = self._topics.for_send(
            wanted.topic, wanted.default_topic, wanted.default_queue_count
        )
        queue_id = self._topics.queue_for_send(topic, wanted.queue_id)
        request.ext_fields["queueId"] = str(queue_id)
        why_not = await self._push(connection, request, wanted, queue_id)
        config = self._config()
        fields = {"MSG_REGION": config.region_id, "TRACE_ON": "true", "queueId": str(queue_id)}
        code = ResponseCode.SUCCESS if why_not is None else ResponseCode.SYSTEM_ERROR
        answer = RemotingCommand(code, fields | _NOT_STORED, b"", why_not)
        if config.store_reply_message_enable:
            stored = self._store(connection, request)
            done = await stored if inspect.isawaitable(stored) else stored
            for name in ("msgId", "queueOffset"):
                if name in done.ext_fields:
                    fields[name] = done.ext_fields[name]
            answer.ext_fields = {**_NOT_STORED, **fields}
        return answer

    async def _push(
        self, connection: Connection, request: RemotingCommand, wanted: SendRequest, queue_id: int
    ) -> str | None:
        """Bring a reply to the producer; None when it has it, else why not."""
        text = wanted.properties_text
        properties = decode_properties(text.encode("utf-8", "replace"))
        client_id = properties.get("REPLY_TO_CLIENT")
        if client_id is None:
            return "reply message properties[REPLY_TO_CLIENT] is null"
        asking = self._producers.by_client_id(client_id)
        if asking is None:
            return f"push reply message fail, channel of <{client_id}> not found."
        now_ms = self._clock_ms()
        pushed = f"{text.rstrip(_END)}{_END}PUSH_REPLY_TIME\x01{now_ms}{_END}"
        if len(pushed.encode("utf-8", "replace")) > PROPERTIES_SIZE_MAX:
            pushed = text
        fields = {
            "bornHost": connection.remote_address,
            "storeHost": self._config().address,
            "storeTimestamp": str(now_ms),
            "producerGroup": wanted.group,
            "topic": wanted.topic,
            "defaultTopic": wanted.default_topic,
            "defaultTopicQueueNums": str(wanted.default_queue_count),
            "queueId": str(queue_id),
            "sysFlag": str(wanted.sys_flag),
            "bornTimestamp": str(wanted.born_timestamp_ms),
            "flag": str(wanted.flag),
            "properties": pushed,
            "reconsumeTimes": str(wanted.reconsume_times),
            "unitMode": "false",
        }
        push = RemotingCommand(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, fields, request.body)
        size = len(push.body)
        if not self._may_bring(asking, size):
            return f"push reply message to {client_id} fail, it does not take others."
        self._brought[asking] += size
        # it counts as brought: its answer may come behind what the connection reads no more
        connection.count_worked(-size)
        try:
            answer = await asking.invoke(push, _PUSH_TIMEOUT_MS)
        except RemotingError as error:
            logger.warning("%r: a reply for %r: %s", asking, client_id, error)
            return f"push reply message to {client_id} fail."
        finally:
            connection.count_worked(size)
            self._brought[asking] -= size
            if not self._brought[asking]:
                del self._brought[asking]
        if answer.code != ResponseCode.SUCCESS:
            return f"push reply message to {client_id} failed with code {answer.code}"
        return None

    def _may_bring(self, asking: Connection, size: int) -> bool:
        """Tell whether a reply has room beside those that are under way."""
        own = self._brought[asking]
        few = own <= _BROUGHT_ALWAYS or self._brought.total() + size <= _BROUGHT_TOTAL_MAX
        return few and own + size <= _BROUGHT_MAX
