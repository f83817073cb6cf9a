"""POP: hands out messages of any queue of a topic, each for a time, whichever consumer asks.

Source: RocketMQ broker/processor/PopMessageProcessor.java, NotificationProcessor.java,
PeekMessageProcessor.java, PollingInfoProcessor.java.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from rmqcore.broker.pop.checkpoints import Checkpoints
from rmqcore.broker.pop.order import PopOrder
from rmqcore.broker.pop.past_damage import read_past_damage
from rmqcore.broker.pop.receipts import (
    COUNT_MAX,
    NORMAL,
    ORDERED,
    RETRY,
    REVIVE_QUEUES,
    Checkpoint,
    retry_topic_of,
)
from rmqcore.broker.pop.request import PopRequest, passed_ms
from rmqcore.broker.pop.retried import as_of_topic, comes_again_for
from rmqcore.broker.pop.waiting import WaitingPop, WaitingPops
from rmqcore.broker.pull.cold_reads import ColdReads
from rmqcore.broker.pull.fetch import Found, PullRange, fetch
from rmqcore.broker.state.broker_state import BrokerState
from rmqcore.broker.state.masters_only import masters_only
from rmqcore.broker.state.pop_scan import QueueScan
from rmqcore.broker.state.queued import number_in
from rmqcore.broker.state.subscription import Subscription
from rmqcore.errors import CorruptStoreError, StoreError
from rmqcore.files.config_tables import DERIVED_TOPIC_NAME_MAX
from rmqcore.message import MessageExt
from rmqcore.remoting import (
    Connection,
    RemotingCommand,
    RequestCode,
    RequestRefusedError,
    ResponseCode,
    needs,
)
from rmqcore.remoting.codes import PERM_READ
from rmqcore.remoting.command import Buffer
from rmqcore.remoting.serves import serves
from rmqcore.status import GetMessageStatus

logger = logging.getLogger(__name__)

#: A pop has the disk read this often, when others take what was read for it; then it reads it
#: itself, on the event loop.
_FETCHES_MAX: Final = 8
_NOTHING: Final = "NO_MESSAGE_IN_QUEUE"
_FOUND: Final = "FOUND"


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
    """Pops and peeks, and what tells whether there is something to pop.

    Args:
        state: the broker's.
        waiting: where POPs wait.
        checkpoints, order: what is handed out, in no order and in order.
        cold: has the disk read before.
    """

    def __init__(
        self,
        state: BrokerState,
        waiting: WaitingPops,
        checkpoints: Checkpoints,
        order: PopOrder,
        cold: ColdReads,
    ) -> None:
        self._store, self._config = state.store, state.config
        self._topics, self._groups = state.topics, state.groups
        self._offsets, self._traffic = state.offsets, state.traffic
        self._passed_over = state.passed_over
        self._waiting = waiting
        self._checkpoints = checkpoints
        self._order = order
        self._cold = cold
        self._turn = 0
        self._clock_ms, self._monotonic_s = state.world.clock_ms, state.world.monotonic_s

    # ---- request 200050: pop

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
                return _empty(ResponseCode.POLLING_TIMEOUT, "the request came too late")
            self._check(wanted)
        except RequestRefusedError as error:
            return _empty(error.code, error.remark)
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
                self._check(wanted)
            except RequestRefusedError as error:
                return _empty(error.code, error.remark)
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
            return _empty(ResponseCode.POLLING_TIMEOUT, _NOTHING)

        def wake(again: bool) -> None:
            _answer_later(
                connection,
                request,
                lambda: self._pop_again(connection, request, wanted, arrived=again),
            )

        if self._let_wait(connection, request, wanted, wake):
            return None
        return _empty(ResponseCode.POLLING_FULL, _NOTHING)

    def _pop_again(
        self, connection: Connection, request: RemotingCommand, wanted: PopRequest, *, arrived: bool
    ) -> RemotingCommand | None:
        """As `_pop_or_wait`, unless the topic was forbidden to the group meanwhile."""
        self._groups.expect_readable(wanted.group, wanted.topic)
        return self._pop_or_wait(connection, request, wanted, arrived=arrived)

    def _let_wait(
        self,
        connection: Connection,
        request: RemotingCommand,
        wanted: PopRequest,
        wake: Callable[[bool], None],
        *,
        takes: bool = True,
    ) -> bool:
        """Let a request wait if it may; in order, also for what was handed out to come again."""
        # what somebody sends along is not kept for as long as it waits
        request.body, request.ext_fields = b"", {}
        key, again_s = (wanted.topic, wanted.group, wanted.queue_id), None
        if wanted.ordered:
            now_ms = self._clock_ms()
            times = [self._due_ms(wanted, queue_id) - now_ms for queue_id in self._queues(wanted)]
            again_s = min((time / 1000 for time in times if time > 0), default=None)
        held = WaitingPop(connection, key, wake, wanted.text_size, takes)
        return self._waiting.add(held, wanted.left_s(self._monotonic_s()), again_s)

    def _check(self, wanted: PopRequest) -> None:
        config = self._config()
        _check_readable(config.broker_permission, f"the broker[{config.broker_ip1}]")
        if wanted.count > COUNT_MAX:
            remark = f"the pop message's num is greater than {COUNT_MAX}"
            raise RequestRefusedError(ResponseCode.INVALID_PARAMETER, remark)
        if not config.timer_wheel_enable:
            remark = "pop message is forbidden because timerWheelEnable is false"
            raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, remark)
        topic = self._topics.expect(wanted.topic)
        _check_readable(topic.perm, f"the topic[{wanted.topic}]")
        if wanted.queue_id >= topic.read_queue_nums:
            remark = (
                f"queueId[{wanted.queue_id}] is illegal, topic:[{wanted.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_nums}]"
            )
            raise RequestRefusedError(ResponseCode.INVALID_PARAMETER, remark)
        group = self._groups.expect_for_client(wanted.group)
        if not group.get("consumeEnable", True):
            remark = f"subscription group no permission, {wanted.group}"
            raise RequestRefusedError(ResponseCode.NO_PERMISSION, remark)
        self._groups.expect_readable(wanted.group, wanted.topic)
        self._offsets.expect_room(wanted.topic, wanted.group, max(0, wanted.queue_id))
        retry_topic = retry_topic_of(wanted.group, wanted.topic)
        self._topics.expect_room(retry_topic)
        if len(retry_topic) > DERIVED_TOPIC_NAME_MAX:
            remark = f"group and topic are too long together: nothing of {wanted.topic} comes again"
            raise RequestRefusedError(ResponseCode.INVALID_PARAMETER, remark)
        wanted.subscription.check_allowed(config)

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
            keys = [(wanted.topic, wanted.group, queue_id) for queue_id in self._queues(wanted)]
            pop_time_ms = self._order.pop_time_ms(keys, pop_time_ms)
        found = _Popped(
            pop_time_ms,
            self._turn % REVIVE_QUEUES,
            max(1, wanted.count),
            self._bytes_max,
            cold=cold,
        )
        topic, group = self._topics.expect(wanted.topic), self._groups.expect(wanted.group)
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
        answer = RemotingCommand(ResponseCode.SUCCESS, fields, b"", _FOUND)
        answer.parts = found.parts
        return answer

    @property
    def _bytes_max(self) -> int:
        """Bytes of records behind which an answer takes no further one."""
        return max(1, self._config().max_transfer_bytes_on_message_in_memory)

    def _queues(self, wanted: PopRequest) -> list[int]:
        """The queues that a request asks for."""
        if wanted.queue_id >= 0:
            return [wanted.queue_id]
        return list(range(self._topics.expect(wanted.topic).read_queue_nums))

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
        if wanted.ordered and self._due_ms(wanted, queue_id) > found.pop_time_ms:
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

    def _due_ms(self, wanted: PopRequest, queue_id: int) -> int:
        """Until when a queue waits for what was handed out in order, Unix time."""
        key = (wanted.topic, wanted.group, queue_id)
        if self._offsets.resets.get((wanted.group, wanted.topic, queue_id)) is not None:
            self._order.forget(key)
        most = self._store.max_queue_offset(wanted.topic, queue_id)
        return self._order.due_ms(key, wanted.attempt_id, most)

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
        start = least
        if wanted.from_last and flag == NORMAL and not self._offsets.is_young(topic, queue_id):
            start = max(least, most - 1)
        self._store.consumer_offsets.commit(topic, wanted.group, queue_id, start)
        return start, most

    # ---- request 200052: peek

    @serves(RequestCode.PEEK_MESSAGE, needs=needs.consume)
    def peek(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """What the next pop would hand out, which stays where it is."""
        try:
            wanted = PopRequest.of(request, self._monotonic_s())
            self._check(wanted)
        except RequestRefusedError as error:
            return _empty(error.code, error.remark)
        left, parts, rest = max(1, wanted.count), list[Buffer](), 0
        left_bytes = self._bytes_max
        places = [(wanted.topic, queue_id) for queue_id in self._queues(wanted)]
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
        answer = _empty(code, _FOUND if parts else _NOTHING)
        answer.ext_fields["restNum"] = str(rest)
        answer.parts = parts
        return answer

    def _retry_places(self, wanted: PopRequest) -> list[tuple[str, int]]:
        topic = self._topics.get(retry_topic_of(wanted.group, wanted.topic))
        if topic is None or topic.topic_name == wanted.topic:
            return []
        return [(topic.topic_name, queue_id) for queue_id in range(topic.read_queue_nums)]

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
        wanted = PopRequest.of(request, self._monotonic_s())
        self._check(wanted)
        return self._notified(connection, request, wanted, arrived=True)

    def _notified(
        self, connection: Connection, request: RemotingCommand, wanted: PopRequest, *, arrived: bool
    ) -> RemotingCommand | None:
        if self._has_some(wanted):
            return _notice(has_some=True)
        if not arrived or wanted.poll_ms <= 0:
            return _notice()

        def wake(again: bool) -> None:
            _answer_later(
                connection,
                request,
                lambda: self._notified(connection, request, wanted, arrived=again),
            )

        if self._let_wait(connection, request, wanted, wake, takes=False):
            return None
        return _notice(full=True)

    def _has_some(self, wanted: PopRequest) -> bool:
        if wanted.ordered:
            now_ms = self._clock_ms()
            queues = [each for each in self._queues(wanted) if self._due_ms(wanted, each) <= now_ms]
        else:
            queues = self._queues(wanted)
        places = [(wanted.topic, queue_id) for queue_id in queues]
        return any(
            self._peeked_position(wanted, *place) < self._store.max_queue_offset(*place)
            for place in [*places, *self._retry_places(wanted)]
        )

    @serves(RequestCode.POLLING_INFO, needs=needs.consume)
    def polling_info(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """How many POPs wait for exactly this."""
        wanted = PopRequest.of(request, self._monotonic_s())
        self._check(wanted)
        count = self._waiting.waiting((wanted.topic, wanted.group, wanted.queue_id))
        return RemotingCommand(ResponseCode.SUCCESS, {"pollingNum": str(count)})


def _answer_later(
    connection: Connection,
    request: RemotingCommand,
    look: Callable[[], RemotingCommand | None],
) -> None:
    """Answer a request that has waited, unless `look` lets it wait on; it fails by itself."""
    if connection.closed:
        return
    try:
        answer = look()
    except RequestRefusedError as error:
        answer = _empty(error.code, error.remark)
    except StoreError as error:
        logger.warning("a request that waits cannot be answered: %s", error)
        answer = _empty(ResponseCode.SYSTEM_ERROR, "the store does not take it now")
    except Exception:
        logger.exception("a request that waits cannot be answered")
        answer = _empty(ResponseCode.SYSTEM_ERROR, "the request failed; the log says why")
    if answer is not None:
        connection.answer(request, answer)


def _check_readable(permission: int, what: str) -> None:
    if not permission & PERM_READ:
        remark = f"{what} pop message is forbidden"
        raise RequestRefusedError(ResponseCode.NO_PERMISSION, remark)


def _empty(code: int, remark: str) -> RemotingCommand:
    """An answer without messages; clients want the numbers all the same."""
    fields = dict.fromkeys(("popTime", "invisibleTime", "reviveQid", "restNum"), "0")
    return RemotingCommand(code, fields, b"", remark)


def _notice(*, has_some: bool = False, full: bool = False) -> RemotingCommand:
    fields = {"hasMsg": str(has_some).lower(), "pollingFull": str(full).lower()}
    return RemotingCommand(ResponseCode.SUCCESS, fields)
