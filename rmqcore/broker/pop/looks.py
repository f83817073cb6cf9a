"""What tells whether there is something to pop, and hands nothing out.

Source: RocketMQ broker/processor/PeekMessageProcessor.java, NotificationProcessor.java,
PollingInfoProcessor.java.
"""

from __future__ import annotations

from rmqcore.broker.pop.answers import FOUND, NOTHING_FOUND, bytes_max, empty_answer
from rmqcore.broker.pop.later import AnsweredLater
from rmqcore.broker.pop.receipts import retry_topic_of
from rmqcore.broker.pop.request import PopRequest
from rmqcore.broker.pop.request_checks import check_request
from rmqcore.broker.pop.retried import comes_again_for
from rmqcore.broker.pop.waiting import WaitingPops
from rmqcore.broker.state.broker_state import BrokerState
from rmqcore.broker.state.topics import queue_ids
from rmqcore.remoting import (
    Connection,
    RemotingCommand,
    RequestCode,
    RequestRefusedError,
    ResponseCode,
    needs,
)
from rmqcore.remoting.command import Buffer
from rmqcore.remoting.serves import serves


class PopLooks:
    """Peeks and notifications.

    Args:
        state: the broker's.
        waiting: where POPs and notifications wait.
        later: lets notifications wait there.
    """

    def __init__(self, state: BrokerState, waiting: WaitingPops, later: AnsweredLater) -> None:
        self._state = state
        self._store, self._topics = state.store, state.topics
        self._clock_ms, self._monotonic_s = state.world.clock_ms, state.world.monotonic_s
        self._waiting, self._later = waiting, later

    def _wanted(self, request: RemotingCommand) -> PopRequest:
        wanted = PopRequest.of(request, self._monotonic_s())
        check_request(self._state, wanted)
        return wanted

    # ---- request 200052: peek

    @serves(RequestCode.PEEK_MESSAGE, needs=needs.consume)
    def peek(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """What the next pop would hand out, which stays where it is."""
        try:
            wanted = self._wanted(request)
        except RequestRefusedError as error:
            return empty_answer(error.code, error.remark)
        left, parts, rest = max(1, wanted.count), list[Buffer](), 0
        left_bytes = bytes_max(self._state.config())
        places = [(wanted.topic, queue_id) for queue_id in self._later.queues(wanted)]
        for topic, queue_id in [*places, *self._retry_places(wanted)]:
            start = self._peeked_position(wanted, topic, queue_id)
            count = 0
            if left > 0 and left_bytes > 0:
                result = self._store.get_message(
                    topic, queue_id, start, max_messages=left, max_bytes=left_bytes
                )
                if topic == wanted.topic:
                    records: list[Buffer] = list(result.slices())
                else:
                    again = [each for each in result.messages if comes_again_for(wanted, each)]
                    records = [each.record for each in again]
                count = len(records)
                parts.extend(records)
                left_bytes -= sum(map(len, records))
            left -= count
            rest += max(0, self._store.max_queue_offset(topic, queue_id) - start - count)
        code = ResponseCode.SUCCESS if parts else ResponseCode.PULL_NOT_FOUND
        answer = empty_answer(code, FOUND if parts else NOTHING_FOUND)
        answer.ext_fields["restNum"] = str(rest)
        answer.parts = parts
        return answer

    def _retry_places(self, wanted: PopRequest) -> list[tuple[str, int]]:
        topic = self._topics.get(retry_topic_of(wanted.group, wanted.topic))
        if topic is None or topic.topic_name == wanted.topic:
            return []
        return [(topic.topic_name, queue_id) for queue_id in queue_ids(topic.read_queue_nums)]

    def _peeked_position(self, wanted: PopRequest, topic: str, queue_id: int) -> int:
        stored = self._store.consumer_offsets.get(topic, wanted.group, queue_id)
        return max(self._store.min_queue_offset(topic, queue_id), stored or 0)

    # ---- requests 200054, 200055: notification, and how many wait

    @serves(RequestCode.NOTIFICATION, needs=needs.consume)
    def notification(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | None:
        """Tell whether there is something to pop, now or within a time.

        Args:
            connection: answers later, where a request waits.
            request: header of 200054; see `PopRequest`.

        Returns:
            None: it is answered later.

        Raises:
            RequestRefusedError: a field is not what it should be, or group or topic is refused.
        """
        wanted = self._wanted(request)
        return self._notified(connection, request, wanted, arrived=True)

    def _notified(
        self, connection: Connection, request: RemotingCommand, wanted: PopRequest, *, arrived: bool
    ) -> RemotingCommand | None:
        if self._has_some(wanted):
            return _notice(has_some=True)
        if not arrived or wanted.poll_ms <= 0:
            return _notice()

        def look(arrived: bool) -> RemotingCommand | None:
            return self._notified(connection, request, wanted, arrived=arrived)

        if self._later.add(connection, request, wanted, look, takes=False):
            return None
        return _notice(full=True)

    def _has_some(self, wanted: PopRequest) -> bool:
        queues = self._later.queues(wanted)
        if wanted.ordered:
            now_ms = self._clock_ms()
            queues = [each for each in queues if self._later.due_ms(wanted, each) <= now_ms]
        places = [(wanted.topic, queue_id) for queue_id in queues]
        return any(
            self._peeked_position(wanted, *place) < self._store.max_queue_offset(*place)
            for place in [*places, *self._retry_places(wanted)]
        )

    @serves(RequestCode.POLLING_INFO, needs=needs.consume)
    def polling_info(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """How many POPs wait for exactly this."""
        wanted = self._wanted(request)
        count = self._waiting.waiting((wanted.topic, wanted.group, wanted.queue_id))
        return RemotingCommand(ResponseCode.SUCCESS, {"pollingNum": str(count)})


def _notice(*, has_some: bool = False, full: bool = False) -> RemotingCommand:
    fields = {"hasMsg": str(has_some).lower(), "pollingFull": str(full).lower()}
    return RemotingCommand(ResponseCode.SUCCESS, fields)
