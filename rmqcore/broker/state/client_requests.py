"""Requests of clients about themselves: heart-beats, leaving, group members, queue locks."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from rmqcore.broker.state.bodies import java_body
from rmqcore.broker.state.budgets import (
    GROUPS_OF_CLIENT,
    LOCKS_MAX,
    LOCKS_OF_CLIENT,
    USUAL_LOCKS,
    BudgetExceededError,
    check_name,
)
from rmqcore.broker.state.clients import Client, ConsumerGroup, Consumers, Producers
from rmqcore.broker.state.groups import Groups
from rmqcore.broker.state.subscription import Subscription
from rmqcore.broker.state.topics import Topics
from rmqcore.message import RETRY_PREFIX
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
from rmqcore.remoting.errors import RemotingClosedError
from rmqcore.remoting.json_body import objects_in, read_object
from rmqcore.remoting.permissions import account_of
from rmqcore.remoting.serves import serves
from rmqcore.world import monotonic_s, wall_clock_ms

_LOCKED_FOR_S: Final = 60.0


class ClientRequests:
    """Heart-beats and what hangs on them. Source: ClientManageProcessor."""

    def __init__(
        self, topics: Topics, groups: Groups, consumers: Consumers, producers: Producers
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._consumers = consumers
        self._producers = producers

    @serves(RequestCode.HEART_BEAT, needs=needs.heart_beat)
    def heart_beat(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Take in which groups a client belongs to."""
        body = read_object(request)
        client = Client(
            connection,
            str(body.get("clientID", "")),
            request.language,
            request.version,
            monotonic_s(),
            wall_clock_ms(),
            account_of(connection),
        )
        check_name("a clientID", client.client_id)
        if self._producers.is_of_another(client):
            return failure(ResponseCode.NO_PERMISSION, "the clientID is another account's client's")
        for entry in objects_in(body, "consumerDataSet", GROUPS_OF_CLIENT):
            try:
                self._take_consumer(client, entry)
            except BudgetExceededError:
                raise
            except RequestRefusedError:
                # one group that cannot be is not the others' fault
                continue
        for entry in objects_in(body, "producerDataSet", GROUPS_OF_CLIENT):
            if group := str(entry.get("groupName", "")):
                self._producers.register(group, client)
        return success()

    def _take_consumer(self, client: Client, entry: Mapping[str, Any]) -> None:
        name = str(entry.get("groupName", ""))
        group = self._groups.find(name)
        if group is None:
            return
        self._topics.for_group(RETRY_PREFIX + name, max(1, int(group.get("retryQueueNums", 1))))
        model = str(entry.get("messageModel", "CLUSTERING"))
        wanted = []
        for fields in objects_in(entry, "subscriptionDataSet"):
            try:
                wanted.append(Subscription.from_java(fields))
            except ValueError:
                continue
        self._consumers.register(
            name,
            client,
            consume_type=str(entry.get("consumeType", "CONSUME_PASSIVELY")),
            message_model=model,
            consume_from_where=str(entry.get("consumeFromWhere", "CONSUME_FROM_LAST_OFFSET")),
            subscriptions=wanted,
            notify=model != "BROADCASTING"
            and bool(group.get("notifyConsumerIdsChangedEnable", True)),
        )

    @serves(RequestCode.UNREGISTER_CLIENT, needs=needs.leave_group)
    def unregister(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Let a client go."""
        producer, consumer = request.text("producerGroup", ""), request.text("consumerGroup", "")
        if producer:
            self._producers.unregister(producer, connection)
        if consumer:
            self._consumers.unregister(consumer, connection, notify=True)
        return success()

    @serves(RequestCode.GET_CONSUMER_LIST_BY_GROUP, needs=needs.be_in_group)
    def list_consumers(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """The ids of a group's clients, by which they share the queues."""
        group = request.text("consumerGroup")
        found = self._consumers.find(group)
        if found is None:
            return failure(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {group}")
        return success(body=java_body({"consumerIdList": found.client_ids}))


class _Lock(NamedTuple):
    """Who has locked a queue, since when, and over which connection."""

    client_id: str
    since_s: float
    connection: Connection


class QueueLocks:
    """Which client of a group consumes a queue in order. Source: RebalanceLockManager."""

    def __init__(self) -> None:
        #: by group, by topic and queue id
        self._groups: dict[str, dict[tuple[str, int], _Lock]] = {}
        self._held: Counter[Connection] = Counter()

    @serves(RequestCode.LOCK_BATCH_MQ, needs=needs.lock_queues)
    def lock(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Lock queues for a client; the answer names those that it has now."""
        body = read_object(request)
        group, client_id = str(body.get("consumerGroup", "")), str(body.get("clientId", ""))
        check_name("a group's name", group)
        check_name("a clientId", client_id)
        now = monotonic_s()
        locked = []
        for queue in objects_in(body, "mqSet"):
            key = _key(queue)
            check_name("a topic's name", key[0])
            lock = self._groups.get(group, {}).get(key)
            if lock is None or lock.client_id == client_id or _is_over(lock, now):
                self._take(group, key, _Lock(client_id, now, connection))
                locked.append(queue)
        return success(body=java_body({"lockOKMQSet": locked}))

    def _take(self, group: str, key: tuple[str, int], lock: _Lock) -> None:
        former = self._groups.get(group, {}).get(key)
        if former is None or former.connection is not lock.connection:
            held = self._held[lock.connection]
            if held >= LOCKS_OF_CLIENT:
                raise BudgetExceededError("queues that one client locks", LOCKS_OF_CLIENT)
            if former is None and held >= USUAL_LOCKS and len(self) >= LOCKS_MAX:
                raise BudgetExceededError("queues that are locked", LOCKS_MAX)
        if former is not None:
            self._give_back(former)
        self._groups.setdefault(group, {})[key] = lock
        self._held[lock.connection] += 1

    @serves(RequestCode.UNLOCK_BATCH_MQ, needs=needs.lock_queues)
    def unlock(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Give queues back."""
        body = read_object(request)
        group, client_id = str(body.get("consumerGroup", "")), str(body.get("clientId", ""))
        locks = self._groups.get(group, {})
        for queue in objects_in(body, "mqSet"):
            lock = locks.get(_key(queue))
            if lock is not None and lock.client_id == client_id:
                self._give_back(locks.pop(_key(queue)))
        if not locks:
            self._groups.pop(group, None)
        return success()

    def __len__(self) -> int:
        return self._held.total()

    def _give_back(self, lock: _Lock) -> None:
        self._held[lock.connection] -= 1
        if not self._held[lock.connection]:
            del self._held[lock.connection]

    def drop_old(self) -> None:
        """Forget the locks that have run out; to be called now and then."""
        now = monotonic_s()
        for group, locks in list(self._groups.items()):
            for key in [key for key, lock in locks.items() if _is_over(lock, now)]:
                self._give_back(locks.pop(key))
            if not locks:
                del self._groups[group]

    def holds_any(self, group: str) -> bool:
        """Tell whether a client of the group holds a lock that has not run out."""
        now = monotonic_s()
        return any(not _is_over(lock, now) for lock in self._groups.get(group, {}).values())


def _is_over(lock: _Lock, now_s: float) -> bool:
    return now_s - lock.since_s > _LOCKED_FOR_S


class ConsumerNotices:
    """Tells every client of a group to share the queues anew (40), once for all that has changed.

    Else a thousand clients that come at the same moment were told half a million times.
    """

    def __init__(self) -> None:
        self._changed: dict[str, ConsumerGroup] = {}

    def __call__(self, group: ConsumerGroup) -> None:
        """Note that a group has changed; its clients are told when the event loop has a moment."""
        if not self._changed:
            asyncio.get_running_loop().call_soon(self._tell)
        self._changed[group.name] = group

    def _tell(self) -> None:
        changed, self._changed = self._changed, {}
        for group in changed.values():
            for connection in list(group.clients):
                command = RemotingCommand(
                    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group.name}
                )
                with contextlib.suppress(RemotingClosedError):
                    connection.notify(command)


def _key(queue: Mapping[str, Any]) -> tuple[str, int]:
    queue_id = queue.get("queueId", -1)
    return str(queue.get("topic", "")), queue_id if type(queue_id) is int else -1
