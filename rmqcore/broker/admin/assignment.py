"""Which client of a group gets which queues, and whether it pulls or pops, if the broker decides.

Source: RocketMQ broker/processor/QueryAssignmentProcessor.java.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from rmqcore.broker.pop.waiting import ANY_QUEUE
from rmqcore.broker.state.bodies import java_body
from rmqcore.broker.state.broker_state import BrokerState
from rmqcore.files.request_mode_table import POP, PULL
from rmqcore.java.json import parse_java_json
from rmqcore.message import RETRY_PREFIX
from rmqcore.remoting import (
    Connection,
    RemotingClient,
    RemotingCommand,
    RemotingError,
    RequestCode,
    RequestRefusedError,
    ResponseCode,
    needs,
    success,
)
from rmqcore.remoting.codes import PERM_READ
from rmqcore.remoting.json_body import objects_in, read_object
from rmqcore.remoting.serves import serves

logger = logging.getLogger(__name__)

_ROUTE_KEPT_S: Final = 30.0
_ROUTE_TIMEOUT_MS: Final = 3000
_ROUTES_MAX: Final = 10_000
_QUEUES_MAX: Final = 65_536


class Queue(NamedTuple):
    """A queue of a broker; sorted as every client sorts them."""

    topic: str
    broker_name: str
    queue_id: int


class Assignment:
    """Shares queues out among the clients of a group, and keeps which groups pop which topics.

    Args:
        state: the broker's.
        client: asks the name servers.
    """

    def __init__(self, state: BrokerState, client: RemotingClient) -> None:
        self._config, self._topics = state.config, state.topics
        self._groups, self._consumers = state.groups, state.consumers
        self._modes = state.modes
        self._client = client
        self._monotonic_s = state.world.monotonic_s
        #: by topic: when it was asked for, and its queues
        self._routes: dict[str, tuple[float, list[Queue]]] = {}

    # ---- requests 401, 402: whether a group pulls a topic or pops it

    @serves(RequestCode.SET_MESSAGE_REQUEST_MODE, needs=needs.ADMIN)
    async def set_mode(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Let a group pull a topic, or pop it.

        Raises:
            RequestRefusedError: topic, group, mode or share is none, or it cannot be written.
        """
        body = read_object(request)
        topic, group = str(body.get("topic", "")), str(body.get("consumerGroup", ""))
        mode, share = body.get("mode", PULL), body.get("popShareQueueNum", 0)
        if topic.startswith(RETRY_PREFIX):
            remark = "retry topic is not allowed to set mode"
            raise RequestRefusedError(ResponseCode.NO_PERMISSION, remark)
        self._topics.expect(topic)
        self._groups.expect_for_client(group)
        if mode not in (PULL, POP) or type(share) is not int:
            remark = "mode is PULL or POP, popShareQueueNum a number"
            raise RequestRefusedError(ResponseCode.INVALID_PARAMETER, remark)
        await self._modes.put(topic, group, str(mode), share)
        return success()

    @serves(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, needs=needs.ADMIN)
    def list_modes(self, _: Connection, __: RemotingCommand) -> RemotingCommand:
        """Which groups pull and which pop, as it stands in the file."""
        return success(body=self._modes.table.to_text().encode())

    # ---- request 400: the queues of one client

    @serves(RequestCode.QUERY_ASSIGNMENT, needs=needs.share_queues)
    async def assign(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """The queues of one client; an empty object changes nothing for it."""
        body = read_object(request)
        topic, name = str(body.get("topic", "")), str(body.get("consumerGroup", ""))
        client_id, strategy = str(body.get("clientId", "")), str(body.get("strategyName", "AVG"))
        queues = sorted(await self._route(topic))
        share_out = _STRATEGIES.get(strategy)
        group = self._consumers.find(name)
        if not queues or share_out is None:
            return success(body=b"{}")
        retried = topic.startswith(RETRY_PREFIX)
        mode, share = (PULL, 0) if retried else self._modes.table.get(topic, name)
        if body.get("messageModel") == "BROADCASTING":
            mine = queues
        elif group is None or client_id not in group.client_ids:
            return success(body=b"{}")
        elif mode == POP:
            mine = _popped_by(queues, group.client_ids, client_id, share, share_out)
        else:
            mine = share_out(queues, group.client_ids.index(client_id), len(group.client_ids))
        assignments = [
            {
                "messageQueue": {
                    "brokerName": queue.broker_name,
                    "queueId": queue.queue_id,
                    "topic": queue.topic,
                },
                "mode": mode,
            }
            for queue in mine
        ]
        return success(body=java_body({"messageQueueAssignments": assignments}))

    async def _route(self, topic: str) -> list[Queue]:
        """The queues of a topic in all brokers, as a name server tells; at worst our own."""
        now = self._monotonic_s()
        asked_at, queues = self._routes.get(topic, (0.0, []))
        if queues and now - asked_at < _ROUTE_KEPT_S:
            return queues
        for address in self._config().name_servers:
            command = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
            try:
                answer = await self._client.invoke(address, command, _ROUTE_TIMEOUT_MS)
                told = _queues_in(topic, bytes(answer.body)) if answer.code == 0 else []
            except (RemotingError, ValueError) as error:
                logger.info("%s tells no route: %s", address, error)
                continue
            if told:
                if len(self._routes) >= _ROUTES_MAX:
                    self._routes.clear()
                self._routes[topic] = (now, told)
                return told
        own = self._topics.get(topic)
        if own is None or not own.perm & PERM_READ:
            return []
        return _queues(topic, self._config().broker_name, own.read_queue_nums)


def _queues_in(topic: str, body: bytes) -> list[Queue]:
    """The readable queues of a route; raises ValueError when it is none."""
    route = parse_java_json(body.decode())
    if not isinstance(route, Mapping):
        raise ValueError("no route")  # noqa: TRY004 - the text is wrong, not a type
    found: list[Queue] = []
    for data in objects_in(route, "queueDatas"):
        count, perm = data.get("readQueueNums", 0), data.get("perm", 0)
        if type(count) is int and type(perm) is int and perm & PERM_READ:
            found += _queues(topic, str(data.get("brokerName", "")), count)
    return found


def _queues(topic: str, broker_name: str, count: int) -> list[Queue]:
    return [Queue(topic, broker_name, n) for n in range(max(0, min(count, _QUEUES_MAX)))]


def _on_average(queues: Sequence[Queue], index: int, clients: int) -> list[Queue]:
    """Neighbours stay together. Source: AllocateMessageQueueAveragely."""
    each, more = divmod(len(queues), clients)
    start = index * each + min(index, more)
    return list(queues[start : start + each + (index < more)])


def _by_circle(queues: Sequence[Queue], index: int, clients: int) -> list[Queue]:
    """One after the other. Source: AllocateMessageQueueAveragelyByCircle."""
    return list(queues[index::clients])


_STRATEGIES: Final = {"AVG": _on_average, "AVG_BY_CIRCLE": _by_circle}


def _popped_by(
    queues: Sequence[Queue],
    clients: Sequence[str],
    client_id: str,
    share: int,
    share_out: Callable[[Sequence[Queue], int, int], list[Queue]],
) -> list[Queue]:
    """The queues that a client pops: all of each broker, or its own and its next neighbours'."""
    count, index = len(clients), list(clients).index(client_id)
    if share <= 0 or share >= count - 1:
        names = sorted({queue.broker_name for queue in queues})
        return [Queue(queues[0].topic, name, ANY_QUEUE) for name in names]
    if count > len(queues):
        return [queues[index % len(queues)]]
    mine: list[Queue] = []
    for n in range(share + 1):
        mine += share_out(queues, (index + n) % count, count)
    return mine
