"""QueryAssignment and ReceiveMessage.

Source: RocketMQ proxy/grpc/v2/consumer/ReceiveMessageActivity.java; proxy/processor/
ConsumerProcessor.java.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from rmqcore.proxy.callers import Caller
from rmqcore.proxy.calls import Call
from rmqcore.proxy.cluster import Cluster, GroupView, TopicView, check_may_use
from rmqcore.proxy.codes import OK, Code, RefusedError, expect_success, status
from rmqcore.proxy.messages import Assignment, V2Message, v2_class
from rmqcore.proxy.names import copied_name, group_name, topic_name
from rmqcore.proxy.outgoing import Body, bodies_of, is_packed, outgoing, timestamp
from rmqcore.proxy.popped import Popped, popped_of
from rmqcore.proxy.receiving import Wanted
from rmqcore.proxy.renewal import Renewals
from rmqcore.proxy.routes import checked_endpoints, queue_message
from rmqcore.proxy.settling import SettlingCalls
from rmqcore.remoting import RemotingCommand, RequestCode, ResponseCode

logger = logging.getLogger(__name__)

_AssignmentResponse: Final = v2_class("QueryAssignmentResponse")
_ReceiveResponse: Final = v2_class("ReceiveMessageResponse")
_RECEIVE_OK: Final = _ReceiveResponse(status=OK).SerializeToString()

#: A broker elsewhere has this long to answer a POP after the POP's own time is over.
_POP_LATE_MS: Final = 5_000
#: For this long at most an answer is waited for that nobody waits for any more.
_POP_KEPT_MS: Final = 60_000
#: What could not be delivered is kept from others for this long only.
_RETURNED_MS: Final = 1
_FROM_LAST: Final = 1


class ConsumerCalls:
    """What consumers call that are handed messages.

    Args:
        cluster: the brokers.
        renewals: keeps for clients what they still work on.
        settling: is done with what is not handed out.
        note: called with who has something kept, so that it is known when that one goes.
        clock_ms: Unix time in milliseconds.
    """

    def __init__(
        self,
        cluster: Cluster,
        renewals: Renewals,
        settling: SettlingCalls,
        note: Callable[[Caller], None],
        clock_ms: Callable[[], int],
    ) -> None:
        self._cluster = cluster
        self._note = note
        self._clock_ms = clock_ms
        self._renewals = renewals
        self._settling = settling
        #: set when the server stops: nobody waits any more
        self._stopping: asyncio.Event = asyncio.Event()
        self._turn = 0

    def stop(self) -> None:
        """Answer those who wait for messages, as if their time were over."""
        self._stopping.set()

    # ---- QueryAssignment

    async def assignment(self, call: Call, caller: Caller, request: V2Message) -> V2Message:
        """Where a consumer receives from: any queue of each broker; in order, every queue.

        Args:
            call: of the client.
            caller: who it is.
            request: a ``QueryAssignmentRequest``: topic, group, endpoints that answers name.

        Raises:
            RefusedError: topic or group is none, or has no queue to read from, or the endpoints are
                too long.
        """
        topic, group = topic_name(request.topic), group_name(request.group)
        named, endpoints = copied_name(request.topic), checked_endpoints(request.endpoints)
        check_may_use(topic, None, caller)
        view = await self._view(topic, caller)
        group_view = await self._cluster.group(group, caller, view.to_read)
        assignments = []
        for broker in view.brokers:
            any_queue = range(-1, 0) if broker.readable else range(0)
            queues = range(broker.readable) if group_view.ordered else any_queue
            for queue_id in queues:
                queue = queue_message(named, view, broker, queue_id, endpoints)
                assignments.append(Assignment(message_queue=queue))
        if not assignments:
            raise RefusedError(Code.FORBIDDEN, f"the topic {topic} has no queue to read from")
        return _AssignmentResponse(status=OK, assignments=assignments)

    async def _view(self, topic: str, caller: Caller, broker_name: str = "") -> TopicView:
        view = await self._cluster.topic_on(topic, broker_name)
        if view is None:
            view = await self._cluster.make_topic(topic, None, caller)
        if view is None:
            raise RefusedError(Code.TOPIC_NOT_FOUND, f"there is no topic {topic}")
        return view

    # ---- ReceiveMessage

    def receive(self, call: Call, caller: Caller, request: V2Message) -> Awaitable[None] | None:
        """Hand messages out: their status, themselves, the time.

        Args:
            call: gets the answer, which is several messages.
            caller: who it is.
            request: a ``ReceiveMessageRequest``.

        Returns:
            None: all was sent.

        Raises:
            RefusedError: a field is not what it should be, or the broker refuses.
        """
        wanted = Wanted.of(call, request, asyncio.get_running_loop().time())
        # of the request, which may be large, nothing else is kept while it waits
        named = copied_name(request.message_queue.topic)
        if wanted.renews:
            self._note(caller)
        view = self._cluster.known_topic(wanted.topic)
        if view is None or not (wanted.broker_name == "" or wanted.broker_name in view.to_read):
            return self._receive(call, caller, named, wanted)
        broker_name = self._broker_of(wanted, view)
        group = self._cluster.known_group(wanted.group, broker_name)
        if group is None:
            return self._receive(call, caller, named, wanted, broker_name)
        asked = self._ask(call, caller, wanted, group, broker_name)
        if not isinstance(asked, RemotingCommand):
            return self._receive_later(call, caller, named, wanted, group, broker_name, asked)
        popped = _popped_of(asked, broker_name)
        if any(
            self._is_left_out(wanted, group, each) or is_packed(each.message) for each in popped
        ):
            return self._hand_out_some(call, caller, named, wanted, group, popped)
        self._hand_out(call, caller, named, wanted, popped)
        return None

    async def _receive(
        self, call: Call, caller: Caller, named: V2Message, wanted: Wanted, broker_name: str = ""
    ) -> None:
        """As `receive`, of a group that has to be looked up; without a broker's name its topic."""
        if not broker_name:
            view = await self._view(wanted.topic, caller, wanted.broker_name)
            broker_name = self._broker_of(wanted, view)
        group = await self._cluster.group(wanted.group, caller, [broker_name])
        asked = self._ask(call, caller, wanted, group, broker_name)
        if isinstance(asked, RemotingCommand):
            popped = _popped_of(asked, broker_name)
            await self._hand_out_some(call, caller, named, wanted, group, popped)
        else:
            await self._receive_later(call, caller, named, wanted, group, broker_name, asked)

    async def _receive_later(
        self,
        call: Call,
        caller: Caller,
        named: V2Message,
        wanted: Wanted,
        group: GroupView,
        broker_name: str,
        asked: Awaitable[RemotingCommand],
    ) -> None:
        """As `receive`, of a broker that does not answer at once."""
        answer = await self._while_waited_for(call, caller, wanted, broker_name, asked)
        popped = [] if answer is None else _popped_of(answer, broker_name)
        await self._hand_out_some(call, caller, named, wanted, group, popped)

    async def _hand_out_some(
        self,
        call: Call,
        caller: Caller,
        named: V2Message,
        wanted: Wanted,
        group: GroupView,
        popped: list[Popped],
    ) -> None:
        """Hand out those of what was popped that the group wants, while the client is there."""
        if not call.closed:
            popped = await self._deliverable(caller, wanted, group, popped)
        bodies: list[Body] = []
        if any(is_packed(each.message) for each in popped):
            bodies = await asyncio.to_thread(bodies_of, [each.message for each in popped])
        # also when it has gone meanwhile
        if call.closed:
            await self._return(caller, wanted, popped)
        elif bodies:
            self._hand_out(call, caller, named, wanted, popped[: len(bodies)], bodies)
            # the rest has no room beside them
            await self._return(caller, wanted, popped[len(bodies) :])
        else:
            self._hand_out(call, caller, named, wanted, popped)

    def _hand_out(
        self,
        call: Call,
        caller: Caller,
        named: V2Message,
        wanted: Wanted,
        deliverable: list[Popped],
        bodies: Sequence[Body] = (),
    ) -> None:
        if not deliverable:
            none = status(Code.MESSAGE_NOT_FOUND, "no new message")
            call.send(_ReceiveResponse(status=none).SerializeToString())
            return
        answers = [_RECEIVE_OK]
        renews = wanted.renews and self._is_noted(caller)
        for each, body in itertools.zip_longest(deliverable, bodies):
            handle = str(each.handle)
            if renews:
                self._renewals.add(caller, wanted.group, wanted.topic, handle, each.handle)
            message = outgoing(
                each.message,
                named,
                handle=handle,
                invisible_ms=each.handle.invisible_ms,
                tries=each.tries,
                body=body,
            )
            answers.append(_ReceiveResponse(message=message).SerializeToString())
        now = timestamp(self._clock_ms())
        answers.append(_ReceiveResponse(delivery_timestamp=now).SerializeToString())
        call.send(*answers)

    def _is_noted(self, caller: Caller) -> bool:
        """Note who gets messages, which may have said meanwhile that it ends; False without room.

        What is kept for a client that nobody knows would be kept for hours.
        """
        try:
            self._note(caller)
        except RefusedError as error:
            logger.info("messages of client %r are not kept: %s", caller.client_id, error)
            return False
        return True

    def _ask(
        self, call: Call, caller: Caller, wanted: Wanted, group: GroupView, broker_name: str
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        """What a broker hands out now, or while the call may wait."""
        fields = {
            "consumerGroup": wanted.group,
            "topic": wanted.topic,
            # of any queue: a client may ask one that is empty while another one is not
            "queueId": "-1",
            "maxMsgNums": str(wanted.count),
            "invisibleTime": str(wanted.invisible_ms),
            "pollTime": str(wanted.poll_ms),
            "bornTime": str(self._clock_ms()),
            "initMode": str(_FROM_LAST),
            "expType": "SQL92" if wanted.by_sql else "TAG",
            "exp": wanted.expression,
            "order": str(group.ordered).lower(),
            "bname": broker_name,
        }
        if wanted.attempt_id:
            fields["attemptId"] = wanted.attempt_id
        request = RemotingCommand(RequestCode.POP_MESSAGE, fields)
        # what it hands out when nobody waits any more is given back
        kept_ms = min(wanted.invisible_ms, _POP_KEPT_MS)
        timeout_ms = wanted.poll_ms + _POP_LATE_MS + kept_ms
        return self._cluster.ask(broker_name, request, caller, call=call, timeout_ms=timeout_ms)

    async def _while_waited_for(
        self,
        call: Call,
        caller: Caller,
        wanted: Wanted,
        broker_name: str,
        asked: Awaitable[RemotingCommand],
    ) -> RemotingCommand | None:
        """Wait for a broker's answer; None when nobody waits for it any more.

        What is handed out nevertheless is given back when it comes.

        Raises:
            RefusedError: it does not answer in time.
        """
        popping = asyncio.ensure_future(asked)
        gone = asyncio.ensure_future(call.gone())
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            first, timeout_s = asyncio.FIRST_COMPLETED, (wanted.poll_ms + _POP_LATE_MS) / 1000
            await asyncio.wait({popping, gone, stopping}, timeout=timeout_s, return_when=first)
            too_late = not (gone.done() or stopping.done())
        finally:
            stopping.cancel()
            gone.cancel()
        if popping.done():
            return popping.result()
        self._renewals.work_on(self._return_later(caller, wanted, broker_name, popping))
        if too_late:
            reason = f"broker {broker_name} has not answered in {timeout_s} s"
            raise RefusedError(Code.PROXY_TIMEOUT, reason)
        return None

    async def _return_later(
        self,
        caller: Caller,
        wanted: Wanted,
        broker_name: str,
        popping: asyncio.Future[RemotingCommand],
    ) -> None:
        try:
            answer = await popping
        except RefusedError:
            return
        if answer.code == ResponseCode.SUCCESS:
            await self._return(caller, wanted, popped_of(answer, broker_name))

    async def _return(self, caller: Caller, wanted: Wanted, popped: list[Popped]) -> None:
        """Let others have what nobody waits for any more, without counting an attempt.

        One that the broker does not let go now comes again at its time, and holds up no other.
        """
        for each in popped:
            try:
                await self._renewals.change(
                    caller, wanted.group, wanted.topic, each.handle, _RETURNED_MS, suspend=True
                )
            except RefusedError as error:
                logger.info("group %s: a message comes again later: %s", wanted.group, error)

    def _broker_of(self, wanted: Wanted, view: TopicView) -> str:
        names = view.to_read
        if wanted.broker_name:
            if wanted.broker_name not in names:
                reason = f"broker {wanted.broker_name} has no queue of {view.name} to read from"
                raise RefusedError(Code.FORBIDDEN, reason)
            return wanted.broker_name
        if not names:
            reason = f"the topic {view.name} has no queue to read from"
            raise RefusedError(Code.FORBIDDEN, reason)
        self._turn += 1
        return names[self._turn % len(names)]

    async def _deliverable(
        self, caller: Caller, wanted: Wanted, group: GroupView, popped: list[Popped]
    ) -> list[Popped]:
        """Those of what was popped that the group wants, and has not been given too often.

        One that the broker does not let go now comes again at its time, and holds up no other; in
        order, none behind it is handed out.
        """
        found = []
        for each in popped:
            if not self._is_left_out(wanted, group, each):
                found.append(each)
                continue
            try:
                await self._leave_out(caller, wanted, group, each)
            except RefusedError as error:
                logger.warning("group %s: a message comes again: %s", wanted.group, error)
                if group.ordered:
                    break
        return found

    async def _leave_out(
        self, caller: Caller, wanted: Wanted, group: GroupView, popped: Popped
    ) -> None:
        """Be done with a message that is not handed out: a dead letter, or of no use here."""
        name, topic, handle, message = wanted.group, wanted.topic, popped.handle, popped.message
        if popped.tries >= group.attempt_max:
            await self._settling.bury_one(caller, name, topic, handle, message, group.attempt_max)
        else:
            await self._settling.acknowledge_one(caller, name, topic, handle)

    @staticmethod
    def _is_left_out(wanted: Wanted, group: GroupView, popped: Popped) -> bool:
        """Tell whether a message was given too often, or is not wanted.

        Brokers of RocketMQ compare the hash of tags alone.
        """
        if popped.tries >= group.attempt_max:
            return True
        return wanted.tags is not None and popped.message.tags not in wanted.tags


def _popped_of(answer: RemotingCommand, broker_name: str) -> list[Popped]:
    """What a broker has handed out; nothing where it found none in time."""
    if answer.code in (ResponseCode.POLLING_TIMEOUT, ResponseCode.PULL_NOT_FOUND):
        return []
    return popped_of(expect_success(answer), broker_name)
