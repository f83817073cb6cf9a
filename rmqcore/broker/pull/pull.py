"""Pulling: messages of one queue from an offset on, at once or when they come.

Source: RocketMQ broker/processor/PullMessageProcessor.java, DefaultPullMessageResultHandler.java.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from rmqcore.broker.pull._direct_pulls import DirectPulls
from rmqcore.broker.pull.cold_reads import ColdReads
from rmqcore.broker.pull.fetch import (
    FetchResult,
    Found,
    PullRange,
    fetch,
    in_front_of_damage,
)
from rmqcore.broker.pull.waiting import WaitingPull, WaitingPulls
from rmqcore.broker.state.broker_state import BrokerState
from rmqcore.broker.state.budgets import BudgetExceededError
from rmqcore.broker.state.settings import BrokerConfig
from rmqcore.broker.state.subscription import Subscription
from rmqcore.errors import CorruptStoreError, StoreError
from rmqcore.files.consume_queue import UNIT
from rmqcore.files.queue_damage import log_has_it
from rmqcore.message import GetMessageResult
from rmqcore.remoting import (
    Connection,
    RemotingCommand,
    RequestCode,
    RequestRefusedError,
    ResponseCode,
    failure,
    needs,
)
from rmqcore.remoting.codec import DirectAnswers
from rmqcore.remoting.codes import PERM_READ, PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PULL_SUSPEND
from rmqcore.remoting.serves import serves
from rmqcore.status import GetMessageStatus

logger = logging.getLogger(__name__)

_COUNT_MAX: Final = 1024
#: Records up to these bytes are copied behind their answer; more go out as slices of the log.
_COPIED_MAX: Final = 64 << 10
_MEMORY_SIZE: Final = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

_STATUS_CODES: Final = {
    GetMessageStatus.FOUND: ResponseCode.SUCCESS,
    GetMessageStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetMessageStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetMessageStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetMessageStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
    GetMessageStatus.OFFSET_RESET: ResponseCode.PULL_OFFSET_MOVED,
}
_EMPTY: Final = frozenset(
    {GetMessageStatus.NO_MATCHED_LOGIC_QUEUE, GetMessageStatus.NO_MESSAGE_IN_QUEUE}
)


class PullRequest(NamedTuple):
    """The header of a pull."""

    group: str
    topic: str
    queue_id: int
    queue_offset: int
    max_messages: int
    flags: int
    commit_offset: int
    suspend_ms: int
    subscription: str | None
    expression_type: str | None
    version: int

    @property
    def message_count(self) -> int:
        """How many messages are answered with at most."""
        return max(1, min(_COUNT_MAX, self.max_messages))

    @property
    def place(self) -> tuple[str, str, int]:
        """Group, topic and queue."""
        return self.group, self.topic, self.queue_id

    def range_of(self, subscription: Subscription) -> PullRange:
        """What is read for it."""
        offset, count = max(0, self.queue_offset), self.message_count
        return PullRange(self.topic, self.queue_id, offset, count, subscription)

    @property
    def commits(self) -> bool:
        """Tell whether it brings an offset that the group has consumed up to."""
        return bool(self.flags & PULL_COMMIT_OFFSET)

    @classmethod
    def of(cls, request: RemotingCommand) -> PullRequest:
        """Read a header.

        Raises:
            RequestRefusedError: a field is missing or no number; answers with code 1.
        """
        fields = request.ext_fields
        return cls(
            request.text("consumerGroup"),
            request.text("topic"),
            request.number("queueId", bits=32),
            request.number("queueOffset"),
            request.number("maxMsgNums"),
            request.number("sysFlag"),
            request.number("commitOffset", 0),
            max(0, request.number("suspendTimeoutMillis", 0)),
            fields.get("subscription"),
            fields.get("expressionType"),
            request.number("subVersion", 0),
        )


class PullMessages:
    """Answers pulls, or lets them wait for what comes."""

    def __init__(
        self,
        state: BrokerState,
        waiting: WaitingPulls,
        cold: ColdReads,
        follows: Callable[[], bool] = lambda: False,
    ) -> None:
        """Prepare to answer.

        Args:
            state: the broker's.
            waiting: where pulls wait.
            cold: has the disk read before.
            follows: tells whether a slave is connected to its master.
        """
        self._store, self._config = state.store, state.config
        self._topics, self._groups = state.topics, state.groups
        self._consumers, self._offsets = state.consumers, state.offsets
        self._traffic = state.traffic
        self._waiting = waiting
        self._cold = cold
        self._follows = follows
        self._monotonic_s = state.world.monotonic_s

    def direct_answers(self) -> DirectAnswers:
        """What answers plain pulls without a processor, see `RemotingServer.direct`."""
        return DirectPulls(self._find_directly, _COPIED_MAX).answer

    @serves(RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE, needs=needs.consume)
    def pull(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand | None] | None:
        """Messages of one queue; waits for the next one when asked to.

        The disk is read in another thread.

        Args:
            connection: answers later, where a request waits.
            request: header of 11; see `PullRequest`.

        Returns:
            None: it is answered later.

        Raises:
            RequestRefusedError: a field is not what it should be, or group or topic is refused.
        """
        wanted = PullRequest.of(request)
        asked = wanted.range_of(self._checked(wanted))
        if not self._offsets.may_move(wanted.place) and not self._cold.is_cached(asked):
            if wanted.commits:
                self._commit(wanted)
            return self._pull_cold(connection, request, wanted, asked)
        return self._pull(connection, request, wanted, asked)

    async def _pull_cold(
        self,
        connection: Connection,
        request: RemotingCommand,
        wanted: PullRequest,
        cold: PullRange,
    ) -> RemotingCommand | None:
        await self._cold.fetch(connection, cold)
        if connection.closed:
            return None
        # it was committed before; and what was allowed then may be forbidden or gone
        wanted = wanted._replace(flags=wanted.flags & ~PULL_COMMIT_OFFSET)
        asked = wanted.range_of(self._checked(wanted))
        return self._pull(connection, request, wanted, asked)

    def _pull(
        self,
        connection: Connection,
        request: RemotingCommand,
        wanted: PullRequest,
        asked: PullRange,
    ) -> RemotingCommand | None:
        result = self._look(connection, wanted, asked)
        is_moved = result.status is GetMessageStatus.OFFSET_RESET
        if wanted.commits and not (
            is_moved or self._offsets.is_ahead(wanted.place, connection, wanted.commit_offset)
        ):
            self._commit(wanted)
        if result.code == ResponseCode.PULL_NOT_FOUND and wanted.flags & PULL_SUSPEND:
            self._wait(connection, request, wanted, asked.subscription)
            return None
        return self._answer(wanted, result)

    def _find_directly(self, *values: Any) -> GetMessageResult | None:
        """What a plain pull finds, see `DirectPulls`; None: look at it closer."""
        wanted, config = PullRequest(*values), self._config()
        if config.slave_read_enable or config.is_slave or self._offsets.may_move(wanted.place):
            return None
        if wanted.queue_offset < 0:
            return None
        try:
            subscription = self._checked(wanted)
            if not subscription.by_tags:
                return None
            result = self._cold.get_cached(wanted.range_of(subscription))
        except Exception:  # noqa: BLE001 - whatever it is, the processor meets it, too, and says so
            return None
        if (
            result is None
            or result.status is not GetMessageStatus.FOUND
            or result.buffer_total_size > _COPIED_MAX
        ):
            return None
        if wanted.commits:
            self._commit(wanted)
        size = result.buffer_total_size
        self._traffic.add_fetched(wanted.topic, wanted.group, len(result), size)
        return result

    def _commit(self, wanted: PullRequest) -> None:
        """Take the offset that a pull brings along; a slave none, nobody one behind the queue."""
        if self._config().is_slave:
            return
        end = self._store.max_queue_offset(wanted.topic, wanted.queue_id)
        if 0 <= wanted.commit_offset <= end:
            # what cannot be kept is no reason to hand nothing out
            with contextlib.suppress(BudgetExceededError):
                self._offsets.commit(*wanted.place, wanted.commit_offset)

    def _wait(
        self,
        connection: Connection,
        request: RemotingCommand,
        wanted: PullRequest,
        subscription: Subscription,
    ) -> None:
        config = self._config()
        timeout_ms = wanted.suspend_ms
        if not config.long_polling_enable:
            timeout_ms = config.short_polling_time_mills

        deadline = self._monotonic_s() + timeout_ms / 1000
        # what somebody sends along is not kept for as long as it waits
        request.body, request.ext_fields = b"", {}
        text_size = len(wanted.subscription or "") + len(wanted.expression_type or "")

        def wait(pull: PullRequest) -> None:
            queue = (pull.topic, pull.queue_id)
            held = WaitingPull(connection, queue, lambda arrived: wake(pull, arrived), text_size)
            if not self._waiting.add(held, max(0.0, deadline - self._monotonic_s())):
                # answered with no message, a client would pull again at once, and for ever
                remark = "too many pulls of this client wait, or of long expressions"
                connection.answer(request, failure(ResponseCode.SYSTEM_BUSY, remark))

        def wake(pull: PullRequest, arrived: bool) -> None:
            if connection.closed:
                return
            answer = waits_at = None
            try:
                self._groups.expect_readable(pull.group, pull.topic)
                result = self._look(connection, pull, pull.range_of(subscription))
                if arrived:
                    waits_at = _where_to_wait(pull, result)
                if waits_at is None:
                    answer = self._answer(pull, result)
            except RequestRefusedError as error:
                answer = RemotingCommand(error.code, {}, b"", error.remark)
            except StoreError as error:
                logger.warning("a pull that waits cannot be answered: %s", error)
                answer = failure(ResponseCode.SYSTEM_ERROR, "the queue cannot be read now")
            except Exception:
                logger.exception("a pull that waits cannot be answered")
                answer = failure(ResponseCode.SYSTEM_ERROR, "the pull failed; the log says why")
            if answer is not None:
                connection.answer(request, answer)
            elif waits_at is not None:
                wait(pull._replace(queue_offset=waits_at))

        wait(wanted)

    # ---- checks

    def _checked(self, wanted: PullRequest) -> Subscription:
        config = self._config()
        if config.is_slave and not config.slave_read_enable:
            remark = "[REJECTREQUEST]this broker is a slave, and slaveReadEnable is false"
            raise RequestRefusedError(ResponseCode.SYSTEM_BUSY, remark)
        if not config.broker_permission & PERM_READ:
            raise _forbidden(f"the broker[{config.broker_ip1}] pulling message is forbidden", 1)
        group = self._groups.expect_for_client(wanted.group)
        if not group.get("consumeEnable", True):
            raise _forbidden(f"subscription group no permission, {wanted.group}", 2)
        topic = self._topics.expect_served(wanted.topic)
        if not topic.perm & PERM_READ:
            raise _forbidden(f"the topic[{wanted.topic}] pulling message is forbidden", 3)
        if not 0 <= wanted.queue_id < topic.read_queue_nums:
            remark = (
                f"queueId[{wanted.queue_id}] is illegal, topic:[{wanted.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_nums}]"
            )
            raise RequestRefusedError(ResponseCode.INVALID_PARAMETER, remark)
        self._groups.expect_readable(wanted.group, wanted.topic)
        if wanted.flags & PULL_SUBSCRIPTION:
            found = Subscription.of(wanted.topic, wanted.subscription, wanted.expression_type)
        else:
            found = self._subscribed(wanted, bool(group.get("consumeBroadcastEnable", True)))
        found.check_allowed(config)
        return found

    def _subscribed(self, wanted: PullRequest, broadcast_allowed: bool) -> Subscription:
        """The subscription that the group's heart-beats have told."""
        consumers = self._consumers.find(wanted.group)
        if consumers is None:
            raise RequestRefusedError(
                ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's group info not exist"
            )
        if consumers.broadcasting and not broadcast_allowed:
            raise _forbidden(f"the consumer group[{wanted.group}] can not consume by broadcast", 4)
        found = consumers.subscriptions.get(wanted.topic)
        if found is None:
            raise RequestRefusedError(
                ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's subscription not exist"
            )
        if found.version < wanted.version:
            raise RequestRefusedError(
                ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest"
            )
        return found

    # ---- looking

    def _look(self, connection: Connection, wanted: PullRequest, asked: PullRange) -> FetchResult:
        """What is there now."""
        moved_to, reads_all = None, False
        if self._offsets.may_move(wanted.place):
            # kept until a pull is from there: an answer may be lost
            group = self._consumers.find(wanted.group)
            reads_all = group is not None and group.broadcasting
            moved_to = self._offsets.moved_to(
                wanted.place,
                wanted.queue_offset,
                connection,
                self._consumed(wanted),
                reads_all=reads_all,
            )
        config = self._config()
        if moved_to is not None:
            moved = self._moved(wanted, moved_to, GetMessageStatus.OFFSET_RESET)
            if config.is_slave and self._follows():
                # to its master, which takes no offset of the group before it has told it so
                code = ResponseCode.PULL_RETRY_IMMEDIATELY
                return moved._replace(code=code, next_queue_offset=wanted.queue_offset)
            if reads_all:
                # told that its offset has moved, a client of 4.9 that keeps its offsets itself
                # begins again where its file says, for ever
                return moved._replace(code=ResponseCode.PULL_RETRY_IMMEDIATELY)
            return moved
        if wanted.queue_offset < 0 and self._store.max_queue_offset(*wanted.place[1:]) > 0:
            first = self._store.min_queue_offset(*wanted.place[1:])
            moved = self._moved(wanted, first, GetMessageStatus.OFFSET_TOO_SMALL)
            return self._of_slave(wanted, moved) if config.is_slave else moved
        max_bytes = config.max_transfer_bytes_on_message_in_memory
        try:
            found = in_front_of_damage(lambda one: fetch(self._store, one, max_bytes), asked)
        except CorruptStoreError as error:
            place = f"from offset {wanted.queue_offset} on, the first message of queue "
            place += f"{wanted.queue_id} of {wanted.topic} that is wanted"
            remark = (
                f"{place} is damaged: `rmqcore verify` says which, `rmqcore doctor plan` what a "
                "repair saves; a group whose offset is reset behind it goes on"
            )
            if log_has_it(self._store, error):
                remark = f"{place} is in the log, and the queue's file does not lead to it: "
                remark += "a start of the broker derives the file again"
            raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, remark) from error
        if found.status not in _EMPTY:
            code = _STATUS_CODES[found.status]
        elif wanted.queue_offset != 0:
            code = ResponseCode.PULL_OFFSET_MOVED
        else:
            code = ResponseCode.PULL_NOT_FOUND
        result = FetchResult(
            code,
            found.status,
            self._following(connection, wanted, found),
            found.min_queue_offset,
            found.max_queue_offset,
            found if found.status is GetMessageStatus.FOUND else None,
        )
        return self._of_slave(wanted, result) if config.is_slave else result

    def _following(self, connection: Connection, wanted: PullRequest, found: Found) -> int:
        """Where a client goes on; so far it has been given the queue.

        The offset of one that is behind the end of its queue is of what was there before. Where its
        group has one, which another client has committed, or itself, there may be messages behind
        that which nobody was given.
        """
        offset = found.next_queue_offset
        if found.status is GetMessageStatus.OFFSET_OVERFLOW_BADLY:
            group, topic, queue_id = wanted.place
            committed = self._store.consumer_offsets.get(topic, group, queue_id)
            offset = offset if committed is None else min(committed, offset)
        if self._shares(wanted.group):
            self._offsets.note_given(wanted.place, connection, offset)
        return offset

    def _shares(self, group_name: str) -> bool:
        """Whether the clients of a group are sent messages, each those of its own queues."""
        group = self._consumers.find(group_name)
        if group is None or group.broadcasting:
            return False
        return group.consume_type == "CONSUME_PASSIVELY"

    def _consumed(self, wanted: PullRequest) -> int | None:
        """The first message that a client has not consumed, as it says itself; None: nothing.

        Those that consumers are sent tell it with each pull, and drop what they have not consumed
        when they are sent elsewhere: -1 is nothing. Others tell 0, and so does one of them that has
        begun with the queue.

        Source: DefaultMQPushConsumerImpl, pullMessage.
        """
        if wanted.commit_offset != 0:
            return max(0, wanted.commit_offset)
        return 0 if self._shares(wanted.group) else None

    def _of_slave(self, wanted: PullRequest, result: FetchResult) -> FetchResult:
        """What is there on a slave, who may not have all that its master has, nor still have it.

        With a master, whoever finds nothing here goes back to it, and begins where it is: the
        master knows where the queue begins. Without one, a reader that is ahead of this slave
        waits; RocketMQ lets it ask again and again.
        """
        if result.found is not None:
            return result
        ahead = result.status in _EMPTY or result.status is GetMessageStatus.OFFSET_OVERFLOW_BADLY
        follows = self._follows()
        if ahead or (follows and result.status is not GetMessageStatus.NO_MATCHED_MESSAGE):
            result = result._replace(next_queue_offset=wanted.queue_offset)
        if follows:
            return result._replace(code=ResponseCode.PULL_RETRY_IMMEDIATELY)
        return result._replace(code=ResponseCode.PULL_NOT_FOUND) if ahead else result

    def _moved(self, wanted: PullRequest, offset: int, status: GetMessageStatus) -> FetchResult:
        """What lets a client go on at another offset."""
        least = self._store.min_queue_offset(wanted.topic, wanted.queue_id)
        most = self._store.max_queue_offset(wanted.topic, wanted.queue_id)
        return FetchResult(_STATUS_CODES[status], status, offset, least, most)

    # ---- answering

    def _answer(self, wanted: PullRequest, result: FetchResult) -> RemotingCommand:
        """The answer to a pull, of what was found for it; the messages count as fetched."""
        fields = {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": str(result.next_queue_offset),
            "minOffset": str(result.min_queue_offset),
            "maxOffset": str(result.max_queue_offset),
        }
        answer = RemotingCommand(result.code, fields, b"", result.status.name)
        if result.found is not None:
            parts = answer.parts = result.found.slices()
            size = sum(map(len, parts))
            self._traffic.add_fetched(wanted.topic, wanted.group, len(result.found), size)
            config = self._config()
            if config.slave_read_enable:
                fields["suggestWhichBrokerId"] = self._next_broker(wanted, result, config)
        return answer

    def _next_broker(self, wanted: PullRequest, result: FetchResult, config: BrokerConfig) -> str:
        """The id of the broker that the next pull should go to.

        A reader that is so far behind that the disk would be read goes to a slave.

        Source: DefaultMessageStore, getMessage (suggestPullingFromSlave).
        """
        group = self._groups.expect_for_client(wanted.group)
        last = max(0, result.next_queue_offset - 1)
        unit = self._store.read_units(wanted.topic, wanted.queue_id, last, 1)
        if not unit:
            return "0"
        phy_offset, _, _ = UNIT.unpack(unit)
        behind = self._store.max_phy_offset - phy_offset
        in_memory = _MEMORY_SIZE * config.access_message_in_memory_max_ratio // 100
        chosen = "whichBrokerWhenConsumeSlowly" if behind > in_memory else "brokerId"
        usual = int(behind > in_memory)
        return str(group.get(chosen, usual))


def _where_to_wait(pull: PullRequest, result: FetchResult) -> int | None:
    """The queue offset at which a pull waits on that something has woken; None: it is answered."""
    if result.code == ResponseCode.PULL_NOT_FOUND:
        return pull.queue_offset
    # the filter takes none of what has come: wait for what comes behind it
    return result.next_queue_offset if result.is_at_end else None


def _forbidden(remark: str, kind: int) -> RequestRefusedError:
    return RequestRefusedError(ResponseCode.NO_PERMISSION, f"{remark} (forbiddenType {kind})")
