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
from rmqcore.broker.pull.cold_reads import ColdReads, Stretch
from rmqcore.broker.pull.hold import HeldPull, PullHold
from rmqcore.broker.pull.matching import SCANNED_MAX, Matched, get_matching
from rmqcore.broker.state.broker_state import BrokerState
from rmqcore.broker.state.budgets import BudgetExceededError
from rmqcore.broker.state.settings import BrokerConfig
from rmqcore.broker.state.subscription import Subscription
from rmqcore.errors import CorruptStoreError, RmqCoreError, StoreError
from rmqcore.files.consume_queue import UNIT
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
from rmqcore.world import monotonic_s

logger = logging.getLogger(__name__)

_COUNT_MAX: Final = 1024
#: bytes of records that are copied behind an answer; more go out as slices of the log
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
_NONE_MATCHED: Final = GetMessageStatus.NO_MATCHED_MESSAGE.name
_RESET: Final = GetMessageStatus.OFFSET_RESET.name
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

    def stretch(self, subscription: Subscription) -> Stretch:
        """What is read for it."""
        offset, count = max(0, self.queue_offset), self.message_count
        return Stretch(self.topic, self.queue_id, offset, count, subscription)

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
    """Requests 11 and 361."""

    def __init__(
        self,
        state: BrokerState,
        hold: PullHold,
        cold: ColdReads,
        follows: Callable[[], bool] = lambda: False,
    ) -> None:
        """Prepare to answer.

        Args:
            state: the broker's.
            hold: where pulls wait.
            cold: has the disk read before.
            follows: tells whether a slave is connected to its master.
        """
        self._store, self._config = state.store, state.config
        self._topics, self._groups = state.topics, state.groups
        self._consumers, self._offsets = state.consumers, state.offsets
        self._traffic = state.traffic
        self._hold = hold
        self._cold = cold
        self._follows = follows

    def direct_answers(self) -> DirectAnswers:
        """What answers plain pulls without a processor, see `RemotingServer.direct`."""
        return DirectPulls(self._find_directly, _COPIED_MAX).answer

    @serves(RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE, needs=needs.consume)
    def pull(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand | None] | None:
        """Messages of one queue; waits for the next one when asked to.

        The disk is read in another thread.
        """
        wanted = PullRequest.of(request)
        subscription = self._checked(wanted)
        stretch = wanted.stretch(subscription)
        if wanted.place not in self._offsets.resets and not self._cold.is_cached(stretch):
            if wanted.commits:
                self._commit(wanted)
            return self._pull_cold(connection, request, wanted, stretch)
        return self._pull(connection, request, wanted, subscription)

    async def _pull_cold(
        self, connection: Connection, request: RemotingCommand, wanted: PullRequest, cold: Stretch
    ) -> RemotingCommand | None:
        await self._cold.fetch(connection, cold)
        if connection.closed:
            return None
        # it was committed before; and what was allowed then may be forbidden or gone
        wanted = wanted._replace(flags=wanted.flags & ~PULL_COMMIT_OFFSET)
        return self._pull(connection, request, wanted, self._checked(wanted))

    def _pull(
        self,
        connection: Connection,
        request: RemotingCommand,
        wanted: PullRequest,
        subscription: Subscription,
    ) -> RemotingCommand | None:
        answer = self._look(wanted, subscription)
        if wanted.commits and answer.remark != _RESET:
            self._commit(wanted)
        if answer.code == ResponseCode.PULL_NOT_FOUND and wanted.flags & PULL_SUSPEND:
            self._wait(connection, request, wanted, subscription)
            return None
        return answer

    def _find_directly(self, *values: Any) -> GetMessageResult | None:
        """What a plain pull finds, see `DirectPulls`; None: look at it closer."""
        wanted, config = PullRequest(*values), self._config()
        if config.slave_read_enable or config.is_slave or wanted.place in self._offsets.resets:
            return None
        if wanted.queue_offset < 0:
            return None
        try:
            subscription = self._checked(wanted)
            if not subscription.by_tags:
                return None
            result = self._cold.get_cached(wanted.stretch(subscription))
        except RmqCoreError:
            # the processor is refused the same, and says so
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

        deadline = monotonic_s() + timeout_ms / 1000
        # what somebody sends along is not kept for as long as it waits
        request.body, request.ext_fields = b"", {}
        text_size = len(wanted.subscription or "") + len(wanted.expression_type or "")

        def wait(pull: PullRequest) -> None:
            queue = (pull.topic, pull.queue_id)
            held = HeldPull(connection, queue, lambda arrived: wake(pull, arrived), text_size)
            if not self._hold.hold(held, max(0.0, deadline - monotonic_s())):
                # answered with no message, a client would pull again at once, and for ever
                remark = "too many pulls of this client wait, or of long expressions"
                connection.answer(request, failure(ResponseCode.SYSTEM_BUSY, remark))

        def wake(pull: PullRequest, arrived: bool) -> None:
            if connection.closed:
                return
            try:
                self._groups.expect_readable(pull.group, pull.topic)
                answer = self._look(pull, subscription)
            except RequestRefusedError as error:
                answer = RemotingCommand(error.code, {}, b"", error.remark)
            except StoreError as error:
                logger.warning("a pull that waits cannot be answered: %s", error)
                answer = failure(ResponseCode.SYSTEM_ERROR, "the queue cannot be read now")
            except Exception:
                logger.exception("a pull that waits cannot be answered")
                answer = failure(ResponseCode.SYSTEM_ERROR, "the pull failed; the log says why")
            if arrived and answer.code == ResponseCode.PULL_NOT_FOUND:
                wait(pull)
            elif arrived and _looked_at_all(answer):
                # the filter takes none of what has come: wait for what comes behind it
                wait(pull._replace(queue_offset=int(answer.ext_fields["nextBeginOffset"])))
            else:
                connection.answer(request, answer)

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
        topic = self._topics.expect(wanted.topic)
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

    def _look(self, wanted: PullRequest, subscription: Subscription) -> RemotingCommand:
        """What is there now."""
        reset = self._offsets.resets.pop(wanted.place, None)
        if reset is not None:
            return self._moved(wanted, reset, GetMessageStatus.OFFSET_RESET)
        config = self._config()
        if wanted.queue_offset < 0 and self._store.max_queue_offset(*wanted.place[1:]) > 0:
            first = self._store.min_queue_offset(*wanted.place[1:])
            return self._moved(wanted, first, GetMessageStatus.OFFSET_TOO_SMALL)
        result: GetMessageResult | Matched
        try:
            if subscription.by_tags:
                result = self._get_by_tags(wanted, subscription, config)
            else:
                result = get_matching(
                    self._store,
                    wanted.topic,
                    wanted.queue_id,
                    max(0, wanted.queue_offset),
                    subscription.condition,
                    max_messages=wanted.message_count,
                    max_bytes=config.max_transfer_bytes_on_message_in_memory,
                )
        except CorruptStoreError as error:
            remark = "a record of this queue is damaged; `rmqcore verify` says which"
            raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, remark) from error
        status = result.status
        if status in _EMPTY:
            code = (
                ResponseCode.PULL_OFFSET_MOVED
                if wanted.queue_offset != 0
                else ResponseCode.PULL_NOT_FOUND
            )
        else:
            code = _STATUS_CODES[status]
        answer = RemotingCommand(
            code,
            _positions(result.next_queue_offset, result.min_queue_offset, result.max_queue_offset),
            b"",
            status.name,
        )
        if status is GetMessageStatus.FOUND:
            parts = answer.parts = result.slices()
            size = sum(map(len, parts))
            self._traffic.add_fetched(wanted.topic, wanted.group, len(result), size)
        if config.slave_read_enable:
            self._suggest(answer, wanted, config)
        return self._of_slave(answer, wanted, status) if config.is_slave else answer

    def _get_by_tags(
        self, wanted: PullRequest, subscription: Subscription, config: BrokerConfig
    ) -> GetMessageResult:
        return self._store.get_message(
            wanted.topic,
            wanted.queue_id,
            max(0, wanted.queue_offset),
            max_messages=wanted.message_count,
            max_bytes=config.max_transfer_bytes_on_message_in_memory,
            tags=subscription.tags,
            max_scanned=max(SCANNED_MAX, wanted.message_count),
        )

    def _suggest(self, answer: RemotingCommand, wanted: PullRequest, config: BrokerConfig) -> None:
        """Say which broker the next pull should go to.

        A reader that is so far behind that the disk would be read goes to a slave.

        Source: DefaultMessageStore, getMessage (suggestPullingFromSlave).
        """
        if answer.code != ResponseCode.SUCCESS:
            return
        group = self._groups.expect_for_client(wanted.group)
        last = int(answer.ext_fields["nextBeginOffset"]) - 1
        unit = self._store.read_units(wanted.topic, wanted.queue_id, max(0, last), 1)
        if not unit:
            return
        phy_offset, _, _ = UNIT.unpack(unit)
        behind = self._store.max_phy_offset - phy_offset
        in_memory = _MEMORY_SIZE * config.access_message_in_memory_max_ratio // 100
        chosen = "whichBrokerWhenConsumeSlowly" if behind > in_memory else "brokerId"
        usual = int(behind > in_memory)
        answer.ext_fields["suggestWhichBrokerId"] = str(group.get(chosen, usual))

    def _of_slave(
        self, answer: RemotingCommand, wanted: PullRequest, status: GetMessageStatus
    ) -> RemotingCommand:
        """What a slave answers, who may not have all that its master has.

        With a master, whoever finds nothing here goes back to it. Without one, a reader that is
        ahead of this slave waits; RocketMQ lets it ask again and again.
        """
        if answer.code == ResponseCode.SUCCESS:
            return answer
        ahead = status in _EMPTY or status is GetMessageStatus.OFFSET_OVERFLOW_BADLY
        if ahead:
            answer.ext_fields["nextBeginOffset"] = str(wanted.queue_offset)
        if self._follows():
            answer.code = ResponseCode.PULL_RETRY_IMMEDIATELY
        elif ahead:
            answer.code = ResponseCode.PULL_NOT_FOUND
        return answer

    def _moved(self, wanted: PullRequest, offset: int, status: GetMessageStatus) -> RemotingCommand:
        """The answer that lets a client go on at another offset."""
        least = self._store.min_queue_offset(wanted.topic, wanted.queue_id)
        most = self._store.max_queue_offset(wanted.topic, wanted.queue_id)
        fields = _positions(offset, least, most)
        return RemotingCommand(_STATUS_CODES[status], fields, b"", status.name)


def _positions(following: int, least: int, most: int) -> dict[str, str]:
    return {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": str(following),
        "minOffset": str(least),
        "maxOffset": str(most),
    }


def _looked_at_all(answer: RemotingCommand) -> bool:
    """Tell whether nothing matched up to the end of the queue."""
    fields = answer.ext_fields
    return answer.remark == _NONE_MATCHED and fields["nextBeginOffset"] == fields["maxOffset"]


def _forbidden(remark: str, kind: int) -> RequestRefusedError:
    return RequestRefusedError(ResponseCode.NO_PERMISSION, f"{remark} (forbiddenType {kind})")
