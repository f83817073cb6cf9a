"""`AdminQuestions`: what an administrator asks a consumer: its state, or to consume a message."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Mapping
from typing import Final

from rmqcore.client.assigned import AssignedQueue
from rmqcore.client.assignment import Assignment
from rmqcore.client.instance import ClientInstance
from rmqcore.client.received import decode_messages
from rmqcore.client.results import MessageQueue
from rmqcore.errors import CorruptRecordError
from rmqcore.java.json import format_compact_java_json
from rmqcore.message import ReceivedMessage
from rmqcore.remoting import (
    Connection,
    Processor,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    failure,
    success,
)

#: A message that is not acknowledged within this is answered as failed: brokers wait 10 s for the
#: answer.
_SETTLED_WITHIN_S: Final = 8.0
_VERSION: Final = "V5_3_3"
_CONSUMED: Final = "CR_SUCCESS"
_GIVEN_BACK: Final = "CR_LATER"


class SingleMessage(AssignedQueue):
    """One message beside all queues, handed out because an administrator wants it consumed.

    Attributes:
        result: what became of it, in RocketMQ's word; set once.
    """

    def __init__(self, queue: MessageQueue, offset: int, clock_ms: Callable[[], int]) -> None:
        super().__init__(queue, offset, clock_ms)
        self.result: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def settle(self, message: ReceivedMessage, generation: int) -> bool:
        """The message is done with.

        Args:
            message: see `AssignedQueue.settle`.
            generation: see `AssignedQueue.settle`.
        """
        self._end(_CONSUMED)
        return super().settle(message, generation)

    def give_back(self) -> None:
        """The message could not be consumed now; it does not come again by this."""
        self._end(_GIVEN_BACK)

    def drop(self) -> None:
        """Hand it out no more; no queue's lock is held for it."""
        super().drop()
        self.in_hand = None

    def _end(self, result: str) -> None:
        if not self.result.done():
            self.result.set_result(result)


class AdminQuestions:
    """Requests 307 and 309.

    Source: ClientRemotingProcessor, DefaultMQPushConsumerImpl.consumerRunningInfo.

    Attributes:
        processors: for what is asked.
    """

    def __init__(
        self,
        instance: ClientInstance,
        assignment: Assignment,
        *,
        orderly: bool,
        offer: Callable[[AssignedQueue], None],
    ) -> None:
        """Prepare to answer.

        Args:
            instance: the consumer's.
            assignment: its queues.
            orderly: whether queues are consumed in order.
            offer: lets a queue's messages be handed out.
        """
        self.processors: dict[int, Processor] = {
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._consume_directly,
        }
        self._assignment = assignment
        self._name_servers = instance.name_servers
        self._clock_ms = instance.world.clock_ms
        self._orderly = orderly
        self._offer = offer
        self._started_ms = self._clock_ms()

    def _running_info(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """307: queues, subscriptions and settings; the tasks' stacks when asked for."""
        said = self._assignment.to_java()
        queues = {
            tuple(queue.to_java().items()): self._progress(assigned)
            for queue, assigned in self._assignment.queues.items()
        }
        info: dict[str, object] = {
            "jstack": _stacks() if request.boolean("jstackEnable") else None,
            "mqPopTable": {},
            "mqTable": queues,
            "properties": {
                "PROP_CLIENT_VERSION": _VERSION,
                "PROP_CONSUMEORDERLY": str(self._orderly).lower(),
                "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
                "PROP_CONSUME_TYPE": said["consumeType"],
                "PROP_NAMESERVER_ADDR": ";".join(self._name_servers),
                "PROP_THREADPOOL_CORE_SIZE": "1",
            },
            "statusTable": {},
            "subscriptionSet": said["subscriptionDataSet"],
            "userConsumerInfo": {},
        }
        return success(body=format_compact_java_json(info).encode())

    def _progress(self, assigned: AssignedQueue) -> Mapping[str, object]:
        """The fields of ``ProcessQueueInfo``."""
        least, most, count, size = assigned.cached
        return {
            "cachedMsgCount": count,
            "cachedMsgMaxOffset": most,
            "cachedMsgMinOffset": least,
            "cachedMsgSizeInMiB": size >> 20,
            "commitOffset": assigned.commit_offset,
            "droped": assigned.dropped,
            "lastConsumeTimestamp": assigned.settled_ms,
            # a share of queues in order is what this consumer has locked
            "lastLockTimestamp": self._clock_ms() if self._orderly else 0,
            "lastPullTimestamp": assigned.pulled_ms,
            "locked": self._orderly,
            "transactionMsgCount": 0,
            "transactionMsgMaxOffset": 0,
            "transactionMsgMinOffset": 0,
            "tryUnlockTimes": 0,
        }

    async def _consume_directly(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """309: hand one message out now, and tell whether it was settled."""
        try:
            messages = decode_messages(bytes(request.body))
        except CorruptRecordError:
            messages = []
        if len(messages) != 1:
            return failure(ResponseCode.SYSTEM_ERROR, "the body is not one message")
        (message,) = messages
        queue = MessageQueue(message.topic, request.text("brokerName", ""), message.queue_id)
        single = SingleMessage(queue, message.queue_offset, self._clock_ms)
        single.add(messages, message.queue_offset + 1)
        self._offer(single)
        time = asyncio.get_running_loop().time
        began_s = time()
        try:
            async with asyncio.timeout(_SETTLED_WITHIN_S):
                result = await single.result
        except TimeoutError:
            remark = f"the message was not settled within {_SETTLED_WITHIN_S:.0f} s"
            return failure(ResponseCode.CONSUME_MSG_TIMEOUT, remark)
        finally:
            single.drop()
        told = {
            "autoCommit": True,
            "consumeResult": result,
            "order": self._orderly,
            "spentTimeMills": int((time() - began_s) * 1000),
        }
        return success(body=format_compact_java_json(told).encode())


def _stacks() -> str:
    """Where each task of the event loop stands."""
    text = io.StringIO()
    for task in asyncio.all_tasks():
        task.print_stack(file=text)
    return text.getvalue()
