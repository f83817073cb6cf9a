"""POP: hands out messages of any queue of a topic, each for a time, whichever consumer asks.

Source: RocketMQ broker/processor/PopMessageProcessor.java.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from rmqcore.broker.pop.answers import FOUND, NOTHING_FOUND, bytes_max, empty_answer
from rmqcore.broker.pop.checkpoints import Checkpoints
from rmqcore.broker.pop.later import AnsweredLater
from rmqcore.broker.pop.order import PopOrder
from rmqcore.broker.pop.past_damage import read_past_damage
from rmqcore.broker.pop.receipts import (
    NORMAL,
    ORDERED,
    RETRY,
    REVIVE_QUEUES,
    Checkpoint,
    retry_topic_of,
)
from rmqcore.broker.pop.request import PopRequest, passed_ms
from rmqcore.broker.pop.request_checks import check_request
from rmqcore.broker.pop.retried import as_of_topic, comes_again_for
from rmqcore.broker.pop.waiting import WaitingPops
from rmqcore.broker.pull.cold_reads import ColdReads
from rmqcore.broker.pull.fetch import Found, PullRange, fetch
from rmqcore.broker.state.broker_state import BrokerState
from rmqcore.broker.state.masters_only import masters_only
from rmqcore.broker.state.pop_scan import QueueScan
from rmqcore.broker.state.queued import number_in
from rmqcore.broker.state.subscription import Subscription
from rmqcore.errors import CorruptStoreError
from rmqcore.message import RETRY_PREFIX, MessageExt
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
from rmqcore.status import GetMessageStatus

logger = logging.getLogger(__name__)

#: A pop has the disk read this often, when others take what was read for it; then it reads it
#: itself, on the event loop.
_FETCHES_MAX: Final = 8


@dataclass(slots=True)
class _Popped:
    """What one pop collects."""

    pop_time_ms: int
    revive_queue: int
    left: int
    left_bytes: int
    starts: list[str] = field(default_factory=list)
    offsets: list[str] = field(default_factory=list)
    parts: list[Buffer] = field(default_factory=list)
    counts: list[str] = field(default_factory=list)
    rest: int = 0
    #: whether a filter has not looked at all of a queue
    unseen: bool = False
    #: what was passed over, since the disk would have to be read for it; None reads it
    cold: list[PullRange] | None = None


class PopMessages:
    """Hands messages out, at once or when there are some.

    Args:
        state: the broker's.
        waiting, later: where POPs wait, and what answers them then.
        checkpoints, order: what is handed out, in no order and in order.
        cold: has the disk read before.
    """

    def __init__(
        self,
        state: BrokerState,
        waiting: WaitingPops,
        later: AnsweredLater,
        checkpoints: Checkpoints,
        order: PopOrder,
        cold: ColdReads,
    ) -> None:
        self._state = state
        self._store, self._config = state.store, state.config
        self._topics, self._groups = state.topics, state.groups
        self._offsets, self._traffic = state.offsets, state.traffic
        self._passed_over = state.passed_over
        self._waiting, self._later = waiting, later
        self._checkpoints = checkpoints
        self._order = order
        self._cold = cold
        self._turn = 0
        self._clock_ms, self._monotonic_s = state.world.clock_ms, state.world.monotonic_s

    @serves(RequestCode.POP_MESSAGE, needs=needs.consume)
    @masters_only(ResponseCode.NO_PERMISSION)
    def pop(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand | None] | None:
        """Hand messages out, or wait for some.

        The disk is read in another thread.

        Args:
            connection: answers later, where a request waits.
            request: header of 200050; see `PopRequest`.

        Returns:
            None: it is answered later.
        """
        try:
            wanted = self._wanted(connection, request)
            if wanted.too_late:
                return empty_answer(ResponseCode.POLLING_TIMEOUT, "the request came too late")
            check_request(self._state, wanted)
            self._checkpoints.expect_room(wanted.group)
        except RequestRefusedError as error:
            return empty_answer(error.code, error.remark)
        cold: list[PullRange] = []
        answer = self._popped(wanted, cold)
        if answer is None and cold:
            return self._pop_cold(connection, request, wanted, cold[0])
        return answer or self._wait(connection, request, wanted, arrived=True)

    def _wanted(self, connection: Connection, request: RemotingCommand) -> PopRequest:
        born_ms = request.number("bornTime", 0)
        passed = passed_ms(connection, born_ms, self._clock_ms())
        return PopRequest.of(request, self._monotonic_s(), passed)

    async def _pop_cold(
        self,
        connection: Connection,
        request: RemotingCommand,
        wanted: PopRequest,
        asked: PullRange,
    ) -> RemotingCommand | None:
        for _ in range(_FETCHES_MAX):
            await self._cold.fetch(connection, asked)
            if connection.closed:
                return None
            try:
                check_request(self._state, wanted)
                self._checkpoints.expect_room(wanted.group)
            except RequestRefusedError as error:
                return empty_answer(error.code, error.remark)
            cold: list[PullRange] = []
            answer = self._popped(wanted, cold)
            if answer is not None or not cold:
                break
            # others have taken what was fetched
            asked = cold[0]
        else:
            answer = self._popped(wanted)
        return answer or self._wait(connection, request, wanted, arrived=True)

    def _pop_or_wait(
        self, connection: Connection, request: RemotingCommand, wanted: PopRequest, *, arrived: bool
    ) -> RemotingCommand | None:
        return self._popped(wanted) or self._wait(connection, request, wanted, arrived=arrived)

    def _wait(
        self, connection: Connection, request: RemotingCommand, wanted: PopRequest, *, arrived: bool
    ) -> RemotingCommand | None:
        """Let a request wait for which there is nothing now."""
        if not arrived or wanted.poll_ms <= 0:
            return empty_answer(ResponseCode.POLLING_TIMEOUT, NOTHING_FOUND)

        def look(arrived: bool) -> RemotingCommand | None:
            return self._pop_again(connection, request, wanted, arrived=arrived)

        if self._later.add(connection, request, wanted, look):
            return None
        return empty_answer(ResponseCode.POLLING_FULL, NOTHING_FOUND)

    def _pop_again(
        self, connection: Connection, request: RemotingCommand, wanted: PopRequest, *, arrived: bool
    ) -> RemotingCommand | None:
        """As `_pop_or_wait`, unless the group may not have the topic, or no more, meanwhile."""
        self._groups.expect_readable(wanted.group, wanted.topic)
        self._checkpoints.expect_room(wanted.group)
        return self._pop_or_wait(connection, request, wanted, arrived=arrived)

    def _popped(
        self, wanted: PopRequest, cold: list[PullRange] | None = None
    ) -> RemotingCommand | None:
        """What is there now, handed out; None when nothing is.

        Args:
            wanted: the request.
            cold: gets what the disk would have to be read for, which is passed over; without it
                the disk is read.
        """
        self._turn += 1
        retry_topic = retry_topic_of(wanted.group, wanted.topic)
        pop_time_ms = self._checkpoints.pop_time_ms(wanted.topic, retry_topic)
        if wanted.ordered:
            queues = self._later.queues(wanted)
            keys = [(wanted.topic, wanted.group, queue_id) for queue_id in queues]
            pop_time_ms = self._order.pop_time_ms(keys, pop_time_ms)
        found = _Popped(
            pop_time_ms,
            self._turn % REVIVE_QUEUES,
            max(1, wanted.count),
            bytes_max(self._config()),
            cold=cold,
        )
        topic, group = self._topics.expect_served(wanted.topic), self._groups.expect(wanted.group)
        scan = QueueScan.of(topic, group, self._config(), ordered=wanted.ordered)
        if scan.retries_first:
            self._pop_retries(wanted, found, scan)
        one = [wanted.queue_id] if wanted.queue_id >= 0 else None
        for queue_id in one or scan.queues(topic.read_queue_nums):
            self._pop_queue(wanted, found, wanted.topic, queue_id, NORMAL)
        if not scan.retries_first:
            # in order, too: what was handed out in none before the group had one comes again here
            again = replace(wanted, ordered=False) if wanted.ordered else wanted
            self._pop_retries(again, found, scan)
        if not found.starts:
            if found.unseen:
                key = (wanted.topic, wanted.group, wanted.queue_id)
                asyncio.get_running_loop().call_soon(self._waiting.wake_one, key)
            return None
        fields = {
            "popTime": str(found.pop_time_ms),
            "invisibleTime": str(wanted.invisible_ms),
            "reviveQid": str(ORDERED if wanted.ordered else found.revive_queue),
            "restNum": str(found.rest),
            "startOffsetInfo": ";".join(found.starts),
            "msgOffsetInfo": ";".join(found.offsets),
        }
        if wanted.ordered:
            fields["orderCountInfo"] = ";".join(found.counts)
        if found.rest:
            self._waiting.wake_one((wanted.topic, wanted.group, wanted.queue_id))
        answer = RemotingCommand(ResponseCode.SUCCESS, fields, b"", FOUND)
        answer.parts = found.parts
        return answer

    def _pop_retries(self, wanted: PopRequest, found: _Popped, scan: QueueScan) -> None:
        topic = self._topics.get(retry_topic_of(wanted.group, wanted.topic))
        if topic is not None and topic.topic_name != wanted.topic:
            for queue_id in scan.queues(topic.read_queue_nums):
                self._pop_queue(wanted, found, topic.topic_name, queue_id, RETRY)

    def _pop_queue(
        self, wanted: PopRequest, found: _Popped, topic: str, queue_id: int, flag: int
    ) -> None:
        """Hand out what a queue has; the group's offset moves on with it."""
        if topic in self._topics.being_deleted:
            return
        if wanted.ordered and self._later.due_ms(wanted, queue_id) > found.pop_time_ms:
            return
        start, most = self._position(wanted, topic, queue_id, flag)
        following = reached = start
        if found.left > 0 and found.left_bytes > 0 and start < most:
            subscription = Subscription(topic) if flag == RETRY else wanted.subscription
            asked = PullRange(topic, queue_id, start, found.left, subscription)
            try:
                first, result, messages = self._read(asked, found)
            except CorruptStoreError:
                logger.exception("queue %d of %s cannot be popped", queue_id, topic)
                return
            if first != start:
                start = first
                self._store.consumer_offsets.commit(topic, wanted.group, queue_id, start)
            if result is None:
                if found.cold is not None:
                    found.cold.append(asked._replace(queue_offset=start))
                found.unseen |= found.cold is None
                found.rest += most - start
                return
            if flag == RETRY:
                messages = [each for each in messages if comes_again_for(wanted, each)]
            following = reached = result.next_queue_offset
            most = result.max_queue_offset
            if result.status is GetMessageStatus.FOUND and messages:
                checkpoint = Checkpoint(
                    topic,
                    wanted.group,
                    queue_id,
                    start,
                    found.pop_time_ms,
                    wanted.invisible_ms,
                    [number_in((topic, queue_id), message) for message in messages],
                    found.revive_queue,
                )
                if wanted.ordered:
                    found.counts += self._order.hand_out(
                        (topic, wanted.group, queue_id),
                        checkpoint.open_offsets,
                        found.pop_time_ms,
                        wanted.invisible_ms,
                        wanted.attempt_id,
                    )
                    following = start
                else:
                    self._checkpoints.add(checkpoint)
                records = self._add(found, checkpoint, flag, result, messages, wanted.topic)
                size = sum(map(len, records))
                self._traffic.add_fetched(topic, wanted.group, len(messages), size)
            if following != start:
                self._store.consumer_offsets.commit(topic, wanted.group, queue_id, following)
        found.rest += max(0, most - reached)
        found.unseen |= start < reached < most

    def _read(self, asked: PullRange, found: _Popped) -> tuple[int, Found | None, list[MessageExt]]:
        """See `read_past_damage`."""

        def get(asked: PullRange) -> Found | None:
            return self._get(asked, found.left_bytes, found.cold is None)

        return read_past_damage(get, asked, self._store, self._passed_over)

    def _get(self, asked: PullRange, max_bytes: int, may_wait: bool) -> Found | None:
        """What there is of a range; None where the disk has to be read, and must not be."""
        topic, queue_id, offset, count, subscription = asked
        if subscription.by_tags and subscription.tags is None:
            result = self._store.get_cached(topic, queue_id, offset, count, max_bytes)
            if result is not None:
                return result
        if not (may_wait or self._cold.is_cached(asked)):
            return None
        return fetch(self._store, asked, max_bytes)

    def _add(
        self,
        found: _Popped,
        checkpoint: Checkpoint,
        flag: int,
        result: Found,
        messages: Sequence[MessageExt],
        topic: str,
    ) -> list[Buffer]:
        """Put what a queue gave into the answer; the records."""
        offsets = ",".join(map(str, checkpoint.open_offsets))
        place = f"{flag} {checkpoint.queue_id}"
        found.starts.append(f"{place} {checkpoint.start_offset}")
        found.offsets.append(f"{place} {offsets}")
        if flag == NORMAL:
            records: list[Buffer] = list(result.slices())
        else:
            name = self._config().broker_name
            records = [as_of_topic(topic, each, checkpoint, flag, name) for each in messages]
        found.parts.extend(records)
        found.left -= len(records)
        found.left_bytes -= sum(map(len, records))
        return records

    def _position(
        self, wanted: PopRequest, topic: str, queue_id: int, flag: int
    ) -> tuple[int, int]:
        """Where the next pop of a queue begins, and where the queue ends.

        A new group's place is kept at once.
        """
        self._offsets.resets.forget((wanted.group, topic, queue_id))
        least, most = self._store.queue_bounds(topic, queue_id)
        stored = self._store.consumer_offsets.get(topic, wanted.group, queue_id)
        if stored is not None and stored >= 0:
            return max(least, min(stored, most)), most
        start, again = least, topic.startswith(RETRY_PREFIX)
        if wanted.from_last and not again and not self._offsets.is_young(topic, queue_id):
            start = max(least, most - 1)
        self._store.consumer_offsets.commit(topic, wanted.group, queue_id, start)
        return start, most
