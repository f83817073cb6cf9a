"""`Assignment`: which queues a consumer has, and the pulls that fill them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from operator import attrgetter
from typing import Any, Literal, TypeAlias

from rmqcore.client.assigned import AssignedQueue, allocate
from rmqcore.client.errors import BadAnswerError
from rmqcore.client.group_requests import GroupRequests
from rmqcore.client.instance import ClientInstance, refusal
from rmqcore.client.received import decode_messages
from rmqcore.client.results import MessageQueue
from rmqcore.client.route import parse_object
from rmqcore.client.subscription import Subscription
from rmqcore.java.json import format_compact_java_json, parse_java_json
from rmqcore.message import RETRY_PREFIX
from rmqcore.remoting import (
    Connection,
    Processor,
    RemotingCommand,
    RemotingError,
    RequestCode,
    RequestRefusedError,
    ResponseCode,
    success,
)

logger = logging.getLogger(__name__)

Start: TypeAlias = Literal["first", "last"] | int

_REBALANCE_INTERVAL_S = 20.0
#: A topic without a route may be created at any moment: this is the first pause between two looks
#: for it, and each is twice the one before, up to `_LOOK_AGAIN_S_MOST`.
_LOOK_AGAIN_S = 0.02
_LOOK_AGAIN_S_MOST = 1.0
_COMMIT_INTERVAL_S = 5.0
#: A pull that failed is followed by this pause.
_PULL_PAUSE_S = 1.0
_FLOW_CONTROL_PAUSE_S = 0.02
_NOTHING_YET = frozenset({ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY})
_CONSUME_FROM = {"first": "CONSUME_FROM_FIRST_OFFSET", "last": "CONSUME_FROM_LAST_OFFSET"}


class Assignment:
    """The queues of one consumer.

    Source: RebalanceImpl, RebalancePushImpl, DefaultMQPushConsumerImpl.

    Attributes:
        queues: those that it has now.
        processors: for what brokers ask a consumer.
    """

    def __init__(
        self,
        instance: ClientInstance,
        requests: GroupRequests,
        subscriptions: Mapping[str, Subscription],
        *,
        group: str,
        start: Start,
        broadcasting: bool,
        orderly: bool,
        prefetch: int,
        unacked_max: int,
        on_messages: Callable[[AssignedQueue], None],
    ) -> None:
        self.queues: dict[MessageQueue, AssignedQueue] = {}
        self.processors: dict[int, Processor] = {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._members_changed,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._reset,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._status,
        }
        self._instance = instance
        self._troubles = instance.troubles
        self._requests = requests
        self._subscriptions = subscriptions
        self._group = group
        self._start = start
        self._broadcasting = broadcasting
        self._orderly = orderly
        self._prefetch = prefetch
        self._unacked_max = unacked_max
        self._on_messages = on_messages
        self._wanted = asyncio.Event()
        #: queues that there were when the consumer started
        self._at_start: frozenset[MessageQueue] = frozenset()
        self._tasks: list[asyncio.Task[None]] = []
        #: what is done with queues that are left: to its end, whoever has begun it
        self._leaving: set[asyncio.Task[None]] = set()
        #: the pause in front of the next sharing
        self._soon: asyncio.TimerHandle | None = None

    def to_java(self) -> dict[str, object]:
        """What heart-beats say of the consumer. Source: ConsumerData."""
        begin = _CONSUME_FROM.get(str(self._start), "CONSUME_FROM_TIMESTAMP")
        return {
            "consumeFromWhere": begin,
            "consumeType": "CONSUME_PASSIVELY",
            "groupName": self._group,
            "messageModel": "BROADCASTING" if self._broadcasting else "CLUSTERING",
            "subscriptionDataSet": [each.to_java() for each in self._subscriptions.values()],
            "unitMode": False,
        }

    async def start(self) -> None:
        """Join the group, and have the first share of the queues.

        Raises:
            RequestRefusedError: a broker cannot use an expression.
            RemotingError: no name server answers.
        """
        self._wanted, self._soon = asyncio.Event(), None
        self._instance.on_routes = self._wanted.set
        await self._update_routes()
        routes = self._instance.routes
        self._at_start = frozenset(
            queue
            for topic in self._subscriptions
            if topic in routes
            for queue in routes[topic].to_read(topic)
        )
        await self._check_expressions()
        await self._instance.meet_new_brokers()
        await self._rebalance()
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._balance()), loop.create_task(self._commit_often())]

    async def _check_expressions(self) -> None:
        """Ask about those in SQL92, of topics that have a route; pulls tell about the others."""
        for subscription in self._subscriptions.values():
            if not subscription.by_sql or subscription.topic not in self._instance.routes:
                continue
            try:
                await self._requests.check(subscription)
            except RequestRefusedError as error:
                if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    raise
            except RemotingError as error:
                logger.warning("group %s: %s: %s", self._group, subscription.topic, error)

    async def stop(self) -> None:
        """Leave all queues, and commit how far they were consumed."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._tasks = []
        await self._leave(list(self.queues))
        if self._leaving:
            # those that `_balance` was about to leave
            await asyncio.wait(self._leaving)

    # ---- rebalance --------------------------------------------------------------------------

    def _members_changed(self, _: Connection, request: RemotingCommand) -> None:
        """40: another consumer has come or gone."""
        self._wanted.set()

    async def _balance(self) -> None:
        look_again_s = _LOOK_AGAIN_S
        while True:
            missing = any(topic not in self._instance.routes for topic in self._subscriptions)
            try:
                async with asyncio.timeout(look_again_s if missing else _REBALANCE_INTERVAL_S):
                    await self._wanted.wait()
            except TimeoutError:
                look_again_s = min(2 * look_again_s, _LOOK_AGAIN_S_MOST)
            self._wanted.clear()
            what = f"group {self._group}: the share of queues"
            try:
                if missing:
                    await self._update_routes()
                await self._instance.meet_new_brokers()
                await self._rebalance()
            except Exception as error:  # noqa: BLE001 - nothing ends the sharing of queues unsaid
                self._troubles.note(what, error)
                self._balance_soon()
            else:
                self._troubles.end(what)

    def _balance_soon(self) -> None:
        """Share the queues again after a pause: once for all that asked for it in the pause."""
        if self._soon is None:
            self._soon = asyncio.get_running_loop().call_later(_PULL_PAUSE_S, self._balance_now)

    def _balance_now(self) -> None:
        self._soon = None
        self._wanted.set()

    async def _update_routes(self) -> None:
        for topic in self._subscriptions:
            if topic not in self._instance.routes:
                await self._instance.update_route(topic)

    async def _rebalance(self) -> None:
        """Take the queues that are this consumer's now, leave those that are not."""
        share: set[MessageQueue] = set()
        for topic in self._subscriptions:
            share.update(await self._share_of(topic))
        await self._leave([queue for queue in self.queues if queue not in share])
        new = sorted(share - self.queues.keys())
        if self._orderly and not self._broadcasting:
            locked = await self._requests.lock(sorted(share))
            await self._leave([queue for queue in self.queues if queue not in locked])
            new = [queue for queue in new if queue in locked]
            if locked != share:
                self._balance_soon()
        by_broker = groupby(new, key=attrgetter("topic", "broker_name"))
        await asyncio.gather(*(self._join_all(list(queues)) for _, queues in by_broker))

    async def _share_of(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic that this consumer gets; without an answer its present ones."""
        route = self._instance.routes.get(topic)
        if route is None:
            return []
        queues = route.to_read(topic)
        if self._broadcasting:
            return queues
        what = f"group {self._group}: the consumers of {topic}"
        try:
            members = await self._requests.members(topic)
        except RemotingError as error:
            # code 1: the broker has seen no consumer; it may have refused the heart-beat
            unseen = getattr(error, "code", None) == ResponseCode.SYSTEM_ERROR
            self._troubles.note(what, error, is_passing=unseen)
            self._balance_soon()
            return [queue for queue in self.queues if queue.topic == topic]
        self._troubles.end(what)
        return allocate(queues, members, self._instance.client_id)

    async def _join_all(self, queues: list[MessageQueue]) -> None:
        """Join the queues of one topic and broker: first one by itself, then the others together.

        RocketMQ loses offsets when the first commits of a group for a topic come at the same time:
        each of them makes the table that holds the others.
        """
        rest = iter(queues)
        for queue in rest:
            if await self._join(queue):
                break
        await asyncio.gather(*(self._join(queue) for queue in rest))

    async def _join(self, queue: MessageQueue) -> bool:
        """Begin with a queue; whether the broker has an offset of the group for its topic now."""
        what = f"group {self._group}: where {queue} begins"
        try:
            offset, is_stored = await self._first_offset(queue)
        except RemotingError as error:
            self._troubles.note(what, error)
            self._balance_soon()
            return False
        self._troubles.end(what)
        assigned = AssignedQueue(
            queue,
            offset,
            self._instance.world.clock_ms,
            prefetch=self._prefetch,
            unacked_max=self._unacked_max,
        )
        # RocketMQ hands requests to many threads: one that is not waited for may come after the
        # last commit of a consumer that ends soon, and the group would begin anew
        has_one = is_stored or await self._commit(assigned, wait=True)
        self.queues[queue] = assigned
        assigned.task = asyncio.get_running_loop().create_task(self._pull_on(assigned))
        return has_one

    async def _first_offset(self, queue: MessageQueue) -> tuple[int, bool]:
        """Where to begin, and whether the broker says so; a queue that is new is read whole."""
        if not self._broadcasting:
            stored = await self._requests.stored_offset(queue)
            if stored is not None:
                # brokers of 4.9 say 0 where nothing is stored, too
                return stored, stored > 0
        is_new = queue not in self._at_start or queue.topic.startswith(RETRY_PREFIX)
        if self._start == "first" or is_new:
            return 0, False
        if self._start == "last":
            return await self._requests.max_offset(queue), False
        return await self._requests.offset_at(queue, int(self._start)), False

    async def _leave(self, queues: list[MessageQueue]) -> None:
        left = [self.queues.pop(queue) for queue in queues]
        for assigned in left:
            assigned.drop()
            self._troubles.end(self._pull_of(assigned))
        if not left:
            return
        leaving = asyncio.get_running_loop().create_task(self._give_up(left))
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)
        await asyncio.shield(leaving)

    async def _give_up(self, left: list[AssignedQueue]) -> None:
        """Commit how far queues were consumed that are left, and let others have them."""
        tasks = [assigned.task for assigned in left if assigned.task is not None]
        if tasks:
            await asyncio.wait(tasks)
        await asyncio.gather(*(self._commit(assigned, wait=True) for assigned in left))
        if self._orderly and not self._broadcasting:
            # a message that is still worked on keeps its queue's lock, until it is settled
            free = [each.queue for each in left if each.in_hand is None]
            await self._requests.unlock(free if self._tasks else [each.queue for each in left])

    # ---- pulling ----------------------------------------------------------------------------

    async def _pull_on(self, assigned: AssignedQueue) -> None:
        """Pull, again and again, as long as the queue is this consumer's."""
        subscription = self._subscriptions[assigned.queue.topic]
        while not assigned.dropped:
            await assigned.room()
            try:
                answer, address = await self._requests.pull(
                    assigned.queue,
                    assigned.next_offset,
                    subscription,
                    assigned.broker_id,
                    0 if self._broadcasting else assigned.commit_offset or -1,
                )
                await self._accept_pulled(assigned, answer, address, subscription)
                self._troubles.end(self._pull_of(assigned))
            except Exception as error:  # noqa: BLE001 - nothing ends the pull of a queue unsaid
                self._troubles.note(self._pull_of(assigned), error)
                assigned.broker_id = 0
                await self._after_failure(error, assigned.queue.topic)

    def _pull_of(self, assigned: AssignedQueue) -> str:
        return f"group {self._group}: the pull of {assigned.queue}"

    async def _after_failure(self, error: Exception, topic: str) -> None:
        """Pause; and ask for another route when the broker cannot be reached."""
        if isinstance(error, RequestRefusedError):
            busy = error.code == ResponseCode.FLOW_CONTROL
            await asyncio.sleep(_FLOW_CONTROL_PAUSE_S if busy else _PULL_PAUSE_S)
            return
        await asyncio.sleep(_PULL_PAUSE_S)
        what = f"the route of {topic}"
        try:
            await self._instance.update_route(topic)
        except Exception as failure:  # noqa: BLE001 - as of the pull
            self._troubles.note(what, failure)
        else:
            self._troubles.end(what)
        # a broker that comes again does not know this consumer
        self._balance_soon()

    async def _accept_pulled(
        self,
        assigned: AssignedQueue,
        answer: RemotingCommand,
        address: str,
        subscription: Subscription,
    ) -> None:
        """Take what a pull has brought. Source: PullCallback of DefaultMQPushConsumerImpl."""
        code = answer.code
        if code not in (ResponseCode.SUCCESS, ResponseCode.PULL_OFFSET_MOVED, *_NOTHING_YET):
            raise refusal(answer, address)
        following = answer.number("nextBeginOffset")
        if following < 0:
            raise BadAnswerError(address, f"nextBeginOffset={following}")
        if code == ResponseCode.PULL_OFFSET_MOVED:
            logger.info("%s goes on at %d: %s", assigned.queue, following, answer.remark)
            assigned.restart(following)
            await self._commit(assigned, wait=False)
            return
        assigned.broker_id = answer.number("suggestWhichBrokerId", 0)
        if code != ResponseCode.SUCCESS:
            still = following == assigned.next_offset
            assigned.add((), following)
            if still and code == ResponseCode.PULL_RETRY_IMMEDIATELY:
                await asyncio.sleep(_FLOW_CONTROL_PAUSE_S)
            return
        messages = decode_messages(answer.body)
        assigned.add([each for each in messages if subscription.wants(each)], following)
        self._on_messages(assigned)

    # ---- offsets ----------------------------------------------------------------------------

    async def _commit_often(self) -> None:
        """Commit every few seconds, also what has not changed: a broker may have lost it."""
        while True:
            await asyncio.sleep(_COMMIT_INTERVAL_S)
            by_broker: dict[str, list[AssignedQueue]] = {}
            for assigned in self.queues.values():
                by_broker.setdefault(assigned.queue.broker_name, []).append(assigned)
            await asyncio.gather(*map(self._commit_at_broker, by_broker.values()))

    async def _commit_at_broker(self, queues: Iterable[AssignedQueue]) -> None:
        """Commit one after the other; what a broker does not take comes the next time."""
        for assigned in queues:
            # another consumer may have been given it since, and be farther
            is_here = self.queues.get(assigned.queue) is assigned
            if is_here and not await self._commit(assigned, wait=False):
                return

    async def _commit(self, assigned: AssignedQueue, *, wait: bool) -> bool:
        """Tell how far the group is; whether that went well."""
        if self._broadcasting:
            return True
        what = f"group {self._group}: the offset of {assigned.queue}"
        try:
            await self._requests.commit(assigned.queue, assigned.commit_offset, wait=wait)
        except RemotingError as error:
            self._troubles.note(what, error)
            return False
        self._troubles.end(what)
        return True

    async def _reset(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """220: an administrator sets the offsets."""
        for queue, offset in offset_table(request.body).items():
            assigned = self.queues.get(queue)
            if assigned is not None:
                # a pull that a broker holds at the old offset is given up
                if assigned.task is not None:
                    assigned.task.cancel()
                assigned.restart(offset)
                assigned.task = asyncio.get_running_loop().create_task(self._pull_on(assigned))
                await self._commit(assigned, wait=False)
        return success()

    def _status(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """221: an administrator asks for the offsets."""
        topic = request.text("topic", "")
        entries = (
            f"{format_compact_java_json(queue.to_java())}:{assigned.commit_offset}"
            for queue, assigned in self.queues.items()
            if topic in ("", queue.topic)
        )
        return success(body=('{"messageQueueTable":{' + ",".join(entries) + "}}").encode())


def offset_table(body: bytes) -> dict[MessageQueue, int]:
    """The offsets by queue in a body ``{"offsetTable":{queue:offset}}``.

    Raises:
        RequestRefusedError: there are none in it; answers with code 1.
    """
    try:
        table: dict[str, Any] = parse_object(body).get("offsetTable") or {}
        found = {}
        for key, offset in table.items():
            queue = parse_java_json(key)
            name = MessageQueue(str(queue["topic"]), str(queue["brokerName"]), queue["queueId"])
            found[name] = max(0, int(offset))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        remark = "the body holds no offsets of queues"
        raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, remark) from error
    return found
