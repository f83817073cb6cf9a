"""Recall: a sender takes a timer message back before it is delivered.

Source: RocketMQ broker/processor/RecallMessageProcessor.java.
"""

from __future__ import annotations

from typing import Final

from rmqcore.broker.state.broker_state import BrokerState
from rmqcore.broker.timer.recall_handle import RecallHandle
from rmqcore.broker.timer.timer import TimerMessages
from rmqcore.errors import MessageIllegalError, StoreError
from rmqcore.message import Message
from rmqcore.remoting import (
    Connection,
    RemotingCommand,
    RequestCode,
    RequestRefusedError,
    ResponseCode,
    failure,
    needs,
    success,
)
from rmqcore.remoting.codes import PERM_WRITE
from rmqcore.remoting.serves import serves
from rmqcore.status import PutMessageStatus

_TAG: Final = "_RECALL_TAG_"
_STORED: Final = (
    PutMessageStatus.PUT_OK,
    PutMessageStatus.FLUSH_DISK_TIMEOUT,
    PutMessageStatus.FLUSH_SLAVE_TIMEOUT,
    PutMessageStatus.SLAVE_NOT_AVAILABLE,
)


class RecallMessages:
    """Takes timer messages back.

    Args:
        state: the broker's.
        timer: holds the message, and takes it off when it meets the marker.
    """

    def __init__(self, state: BrokerState, timer: TimerMessages) -> None:
        self._store, self._config = state.store, state.config
        self._topics, self._arrived = state.topics, state.arrived
        self._timer = timer
        self._clock_ms = state.world.clock_ms

    @serves(RequestCode.RECALL_MESSAGE, needs=needs.publish)
    async def recall(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Take a timer message back by its handle; with `recallMessageEnable=true`.

        The answer to its send has named the handle.

        Args:
            connection: of the producer; says the born host of the record that takes it back.
            request: header of 370: ``topic``, ``recallHandle`` and ``producerGroup``.

        Raises:
            RequestRefusedError: it is not allowed, topic or handle is refused, or nothing can be
                stored.
        """
        topic = request.text("topic")
        self._check_allowed()
        self._topics.expect(topic)
        handle = RecallHandle.parse(request.text("recallHandle"))
        self._check(handle, topic)
        properties = {
            "TAGS": _TAG,
            "TIMER_DEL_UNIQKEY": handle.unique_key,
            "UNIQ_KEY": handle.unique_key,
            "TIMER_DELIVER_MS": str(handle.due_ms),
            "BORN_TIMESTAMP": str(self._clock_ms()),
        }
        if group := request.text("producerGroup", ""):
            properties["PGROUP"] = group
        born_host = connection.remote_address
        try:
            marker = Message(topic, b"0", properties=properties, born_host=born_host)
            marker = self._timer.timed(marker)
            receipt = await self._store.put_message_async(marker)
        except (MessageIllegalError, StoreError) as error:
            remark = "recall failed, execute error"
            raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, remark) from error
        if receipt.status not in _STORED:
            return failure(ResponseCode.SYSTEM_ERROR, "recall failed, execute error")
        self._arrived(marker.topic, marker.queue_id)
        return success({"MSG_REGION": self._config().region_id, "msgId": handle.unique_key})

    def _check_allowed(self) -> None:
        config = self._config()
        if not config.recall_message_enable:
            remark = "recall failed, operation is forbidden"
            raise RequestRefusedError(ResponseCode.NO_PERMISSION, remark)
        remark = "recall failed, broker service not available"
        if config.is_slave:
            raise RequestRefusedError(ResponseCode.SLAVE_NOT_AVAILABLE, remark)
        writable = config.broker_permission & PERM_WRITE
        if not writable and not config.allow_recall_when_broker_not_writeable:
            raise RequestRefusedError(ResponseCode.SERVICE_NOT_AVAILABLE, remark)

    def _check(self, handle: RecallHandle, topic: str) -> None:
        config = self._config()
        if handle.topic != topic:
            raise _refused("recall failed, topic not match")
        if handle.broker_name != config.broker_name:
            raise _refused("recall failed, broker service not available")
        left_ms = handle.due_ms - self._clock_ms()
        if not 0 < left_ms < config.timer_max_delay_sec * 1000:
            raise _refused("recall failed, timestamp invalid")
        if not self._timer.may_wait(handle):
            raise _refused("recall failed, the message is delivered")


def _refused(remark: str) -> RequestRefusedError:
    return RequestRefusedError(ResponseCode.ILLEGAL_OPERATION, remark)
