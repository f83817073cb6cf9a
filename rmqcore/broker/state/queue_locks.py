"""`QueueLocks`: which client of a group consumes a queue in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from rmqcore.broker.state.bodies import java_body
from rmqcore.broker.state.budgets import (
    LOCKS_MAX,
    LOCKS_OF_CLIENT,
    RESERVED_LOCKS,
    BudgetExceededError,
    check_name,
)
from rmqcore.remoting import Connection, RemotingCommand, RequestCode, needs, success
from rmqcore.remoting.json_body import objects_in, read_object
from rmqcore.remoting.serves import serves
from rmqcore.remoting.turns import Turns

#: A lock that was not renewed for this long is another client's for the asking.
_LOCKED_FOR_S: Final = 60.0


class _Lock(NamedTuple):
    """Who has locked a queue, since when, and over which connection."""

    client_id: str
    since_s: float
    connection: Connection


class QueueLocks:
    """Which client of a group consumes a queue in order. Source: RebalanceLockManager."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        #: by group, by topic and queue id
        self._groups: dict[str, dict[tuple[str, int], _Lock]] = {}
        self._held: Counter[Connection] = Counter()

    @serves(RequestCode.LOCK_BATCH_MQ, needs=needs.lock_queues)
    async def lock(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Lock queues for a client; the answer names those that it has now.

        Of very many queues others are served in between.

        Args:
            connection: of the client; how much it may lock is counted by it.
            request: its body: ``consumerGroup``, ``clientId`` and ``mqSet``, a list of queues, as
                JSON.

        Raises:
            RequestRefusedError: the body is none, or a name is too long.
        """
        body = read_object(request)
        group, client_id = str(body.get("consumerGroup", "")), str(body.get("clientId", ""))
        check_name("a group's name", group)
        check_name("a clientId", client_id)
        now, turns = self._monotonic_s(), Turns()
        locked = []
        for queue in objects_in(body, "mqSet"):
            await turns.next_entry()
            key = _key(queue)
            check_name("a topic's name", key[0])
            lock = self._groups.get(group, {}).get(key)
            if lock is None or lock.client_id == client_id or _is_over(lock, now):
                self._acquire(group, key, _Lock(client_id, now, connection))
                locked.append(queue)
        return success(body=java_body({"lockOKMQSet": locked}))

    def _acquire(self, group: str, key: tuple[str, int], lock: _Lock) -> None:
        former = self._groups.get(group, {}).get(key)
        if former is None or former.connection is not lock.connection:
            held = self._held[lock.connection]
            if held >= LOCKS_OF_CLIENT:
                raise BudgetExceededError("queues that one client locks", LOCKS_OF_CLIENT)
            if former is None and held >= RESERVED_LOCKS and len(self) >= LOCKS_MAX:
                raise BudgetExceededError("queues that are locked", LOCKS_MAX)
        if former is not None:
            self._release(former)
        self._groups.setdefault(group, {})[key] = lock
        self._held[lock.connection] += 1

    @serves(RequestCode.UNLOCK_BATCH_MQ, needs=needs.lock_queues)
    async def unlock(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Give queues back."""
        body, turns = read_object(request), Turns()
        group, client_id = str(body.get("consumerGroup", "")), str(body.get("clientId", ""))
        for queue in objects_in(body, "mqSet"):
            await turns.next_entry()
            locks = self._groups.get(group, {})
            lock = locks.get(_key(queue))
            if lock is not None and lock.client_id == client_id:
                self._release(locks.pop(_key(queue)))
                if not locks:
                    del self._groups[group]
        return success()

    def __len__(self) -> int:
        return self._held.total()

    def _release(self, lock: _Lock) -> None:
        self._held[lock.connection] -= 1
        if not self._held[lock.connection]:
            del self._held[lock.connection]

    def drop_old(self) -> None:
        """Forget the locks that have run out; to be called now and then."""
        now = self._monotonic_s()
        for group, locks in list(self._groups.items()):
            for key in [key for key, lock in locks.items() if _is_over(lock, now)]:
                self._release(locks.pop(key))
            if not locks:
                del self._groups[group]

    def holders(self, group: str) -> dict[tuple[str, int], str]:
        """By topic and queue id, the client that has locked it; may be called on any thread."""
        now = self._monotonic_s()
        locks = list(self._groups.get(group, {}).items())
        return {key: lock.client_id for key, lock in locks if not _is_over(lock, now)}

    def holds_any(self, group: str) -> bool:
        """Tell whether a client of the group holds a lock that has not run out."""
        now = self._monotonic_s()
        return any(not _is_over(lock, now) for lock in self._groups.get(group, {}).values())


def _is_over(lock: _Lock, now_s: float) -> bool:
    return now_s - lock.since_s > _LOCKED_FOR_S


def _key(queue: Mapping[str, Any]) -> tuple[str, int]:
    queue_id = queue.get("queueId", -1)
    return str(queue.get("topic", "")), queue_id if type(queue_id) is int else -1
