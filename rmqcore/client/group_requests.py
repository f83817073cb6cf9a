"""The requests of a consumer to brokers: offsets, locks, members, pulls, messages sent back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

from rmqcore.client.errors import BadAnswerError
from rmqcore.client.instance import ClientInstance, refusal
from rmqcore.client.results import MessageQueue
from rmqcore.client.route import objects, parse_object
from rmqcore.client.subscription import Subscription
from rmqcore.java.json import format_compact_java_json
from rmqcore.remoting import RemotingCommand, RemotingError, RequestCode, ResponseCode
from rmqcore.remoting.codes import MASTER_ID, PULL_SUBSCRIPTION, PULL_SUSPEND

logger = logging.getLogger(__name__)

#: A broker holds a pull that finds nothing for at most the first of these, and is given the second
#: to answer at all; milliseconds.
PULL_SUSPEND_MS = 15_000
PULL_TIMEOUT_MS = 30_000
#: A broker of rmqcore answers who gives a message back when its slaves have the copy, after 3 s at
#: the latest, and its disk, after 5 s, unless its settings say otherwise; whoever does not wait for
#: that has one copy more.
_GIVE_BACK_TIMEOUT_MS = 10_000
_PULL_COUNT = 32


class GroupRequests:
    """The requests of one consumer of a group."""

    def __init__(self, instance: ClientInstance, group: str) -> None:
        self._instance = instance
        self._group = group

    async def check(self, subscription: Subscription) -> None:
        """Ask whether an expression can be used (46). Source: checkClientInBroker.

        Raises:
            RequestRefusedError: it cannot; with code 3 by a broker that does not tell.
        """
        body = {
            "clientId": self._instance.client_id,
            "group": self._group,
            "subscriptionData": subscription.to_java(),
        }
        await self._instance.ask(
            self._instance.any_address(subscription.topic),
            RequestCode.CHECK_CLIENT_CONFIG,
            {},
            format_compact_java_json(body).encode(),
        )

    async def members(self, topic: str) -> list[str]:
        """The ids of the group's consumers (38)."""
        address = self._instance.any_address(topic)
        fields = {"consumerGroup": self._group}
        answer = await self._instance.invoke(
            address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, fields
        )
        if answer.code != ResponseCode.SUCCESS:
            raise refusal(answer, address)
        what = f"the consumers of {self._group}"
        listed = _parsed(answer.body, address, what).get("consumerIdList")
        return sorted(map(str, listed)) if isinstance(listed, list) else []

    async def stored_offset(self, queue: MessageQueue) -> int | None:
        """The offset that the group has committed (14); None when it has none."""
        address = self._instance.address_of(queue.broker_name, or_slave=True)
        fields = self._queue(queue) | {
            "consumerGroup": self._group,
            "setZeroIfNotFound": "false",
        }
        answer = await self._instance.invoke(address, RequestCode.QUERY_CONSUMER_OFFSET, fields)
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        if answer.code != ResponseCode.SUCCESS:
            raise refusal(answer, address)
        return answer.number("offset")

    async def max_offset(self, queue: MessageQueue) -> int:
        """The offset that the next message of a queue gets (30)."""
        return await self._offset(queue, RequestCode.GET_MAX_OFFSET, {})

    async def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The offset of the first message stored at a time or later (29).

        Args:
            queue: which; its master is asked, or a slave when there is none.
            timestamp_ms: Unix time.
        """
        fields = {"timestamp": str(timestamp_ms)}
        return await self._offset(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields)

    async def _offset(self, queue: MessageQueue, code: int, more: dict[str, str]) -> int:
        address = self._instance.address_of(queue.broker_name, or_slave=True)
        answer = await self._instance.ask(address, code, self._queue(queue) | more)
        return answer.number("offset")

    async def commit(self, queue: MessageQueue, offset: int, *, wait: bool) -> None:
        """Tell the broker how far the group is (15).

        Args:
            queue: which.
            offset: of the first message that the group has not done with.
            wait: for the broker's answer; else it is sent and may be lost.
        """
        address = self._instance.address_of(queue.broker_name, or_slave=True)
        fields = self._queue(queue) | {
            "consumerGroup": self._group,
            "commitOffset": str(offset),
        }
        if wait:
            await self._instance.ask(address, RequestCode.UPDATE_CONSUMER_OFFSET, fields)
        else:
            await self._instance.invoke_oneway(address, RequestCode.UPDATE_CONSUMER_OFFSET, fields)

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        subscription: Subscription,
        broker_id: int,
        consumed: int = 0,
    ) -> tuple[RemotingCommand, str]:
        """Pull from an offset on (11); the broker waits for messages when there are none.

        Args:
            queue: which.
            offset: of the first message that is wanted.
            subscription: which of the topic's messages are wanted.
            broker_id: of whom to ask: 0 is the master, others are slaves.
            consumed: offset of the first message that is not done with, -1 for none done with, and
                0 where nobody says; it is not committed: our broker wants it where it has to send a
                group back whose offset it does not know.
        """
        address = self._instance.address_of(queue.broker_name, broker_id, or_slave=True)
        fields = self._queue(queue) | {
            "consumerGroup": self._group,
            "queueOffset": str(offset),
            "maxMsgNums": str(_PULL_COUNT),
            "sysFlag": str(PULL_SUSPEND | PULL_SUBSCRIPTION),
            "commitOffset": str(consumed),
            "suspendTimeoutMillis": str(PULL_SUSPEND_MS),
            "subscription": subscription.expression,
            "subVersion": str(subscription.version),
            "expressionType": subscription.kind,
        }
        answer = await self._instance.invoke(
            address, RequestCode.PULL_MESSAGE, fields, timeout_ms=PULL_TIMEOUT_MS
        )
        return answer, address

    async def send_back(
        self,
        broker_name: str,
        phy_offset: int,
        delay_level: int,
        reconsume_max: int,
        origin: tuple[str, str],
    ) -> None:
        """Give a message back, to come again later (36).

        Args:
            broker_name: the broker that has it.
            phy_offset: where it is in its log.
            delay_level: 0 lets the broker choose, -1 makes it a dead letter.
            reconsume_max: tries after which it is one.
            origin: the id and topic that it was sent with.
        """
        fields = {
            "offset": str(phy_offset),
            "group": self._group,
            "delayLevel": str(delay_level),
            "originMsgId": origin[0],
            "originTopic": origin[1],
            "unitMode": "false",
            "maxReconsumeTimes": str(reconsume_max),
            "bname": broker_name,
        }
        address = self._instance.address_of(broker_name)
        timeout_ms = max(self._instance.timeout_ms, _GIVE_BACK_TIMEOUT_MS)
        await self._instance.ask(
            address, RequestCode.CONSUMER_SEND_MSG_BACK, fields, timeout_ms=timeout_ms
        )

    async def lock(self, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        """Lock queues for this consumer (41); returns the queues that are locked for it now."""
        parts = await asyncio.gather(
            *(self._lock(name, listed) for name, listed in _by_broker(queues).items())
        )
        return set().union(*parts)

    async def _lock(self, broker_name: str, queues: list[MessageQueue]) -> set[MessageQueue]:
        what = f"group {self._group}: the locks of {broker_name}"
        try:
            address = self._instance.address_of(broker_name)
            answer = await self._instance.ask(
                address, RequestCode.LOCK_BATCH_MQ, {}, self._lock_body(queues)
            )
            locked = objects(_parsed(answer.body, address, "the locks").get("lockOKMQSet"))
        except RemotingError as error:
            self._instance.troubles.note(what, error)
            return set()
        self._instance.troubles.end(what)
        names = {
            (entry.get("topic"), entry.get("brokerName"), entry.get("queueId")) for entry in locked
        }
        return {queue for queue in queues if tuple(queue) in names}

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        """Give locks back (42)."""
        for broker_name, listed in _by_broker(queues).items():
            try:
                address = self._instance.address_of(broker_name, MASTER_ID)
                await self._instance.ask(
                    address, RequestCode.UNLOCK_BATCH_MQ, {}, self._lock_body(listed)
                )
            except RemotingError as error:
                logger.warning("group %s: locks of %s: %s", self._group, broker_name, error)

    def _lock_body(self, queues: list[MessageQueue]) -> bytes:
        body = {
            "clientId": self._instance.client_id,
            "consumerGroup": self._group,
            "mqSet": [queue.to_java() for queue in queues],
            "onlyThisBroker": False,
        }
        return format_compact_java_json(body).encode()

    @staticmethod
    def _queue(queue: MessageQueue) -> dict[str, str]:
        return {
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "bname": queue.broker_name,
        }


def _parsed(body: bytes, address: str, what: str) -> dict[str, Any]:
    try:
        return parse_object(body)
    except ValueError as error:
        raise BadAnswerError(address, f"{what}: {error}") from error


def _by_broker(queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
    found: dict[str, list[MessageQueue]] = {}
    for queue in queues:
        found.setdefault(queue.broker_name, []).append(queue)
    return found
