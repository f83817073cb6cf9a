"""`Cluster`: what name servers and brokers say of topics, queues and offsets."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final, Self

from rmqcore.client import MessageQueue, NoRouteError
from rmqcore.client.errors import BadAnswerError
from rmqcore.client.instance import refusal
from rmqcore.client.received import decode_messages
from rmqcore.client.route import parse_object, parse_route
from rmqcore.files.service_topics import is_service_topic
from rmqcore.remoting import RemotingCommand, RemotingError, RequestCode, ResponseCode
from rmqcore.remoting.codes import PULL_SUBSCRIPTION
from rmqcore.scan.cluster.access import Access
from rmqcore.scan.cluster.link import BrokerLink
from rmqcore.scan.cluster.ranges import QueueRange
from rmqcore.scan.mark import ANOTHER, Mark

_log = logging.getLogger(__name__)

#: addresses of a broker by queue, the master's first
Queues = dict[MessageQueue, tuple[str, ...]]
Offsets = dict[MessageQueue, int]
Marks = dict[MessageQueue, Mark]
#: the group of RocketMQ's own tools, which every broker has
TOOLS_GROUP: Final = "TOOLS_CONSUMER"
_NOBODY: Final = frozenset({ResponseCode.TOPIC_NOT_EXIST})
#: A broker that answers a pull with one of these has given no message: whether the one at a mark is
#: still the same is not checked this time.
_NOTHING_PULLED: Final = frozenset(
    {
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.FLOW_CONTROL,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)


class Cluster:
    """Asks name servers and brokers, over connections that it keeps until it is closed.

    Args:
        access: where, and as whom.

    Attributes:
        followed: brokers for which a slave has answered last; it may not have got there yet.
    """

    def __init__(self, access: Access) -> None:
        self.followed: set[str] = set()
        self._access = access
        self._name_servers = access.name_servers
        self._links: dict[str, BrokerLink] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        for link in self._links.values():
            link.close()
        self._links.clear()

    # ---- name servers -----------------------------------------------------------------------

    def topics(self) -> list[str]:
        """The topics whose messages are somebody's: those of brokers' own services left out."""
        command = RemotingCommand(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        (answer,), address = self._ask_first(self._name_servers, [command])
        if answer.code != ResponseCode.SUCCESS:
            raise refusal(answer, address)
        names = _object(answer, address).get("topicList") or []
        return sorted(name for name in map(str, names) if not is_service_topic(name))

    def queues(self, topics: Iterable[str]) -> Queues:
        """The queues that can be read, of every broker; none of a topic that nobody knows.

        Raises:
            RemotingError: no name server answers, or one refuses.
            BadAnswerError: a name server's answer is no route.
        """
        found: Queues = {}
        topics = list(topics)
        commands = [
            RemotingCommand(
                RequestCode.GET_ROUTEINFO_BY_TOPIC,
                {"topic": topic, "acceptStandardJsonOnly": "true"},
            )
            for topic in topics
        ]
        answers, address = self._ask_first(self._name_servers, commands)
        for topic, answer in zip(topics, answers, strict=True):
            if answer.code in _NOBODY:
                continue
            if answer.code != ResponseCode.SUCCESS:
                raise refusal(answer, address)
            try:
                route = parse_route(answer.body)
            except ValueError as error:
                raise BadAnswerError(address, f"the route of {topic}: {error}") from error
            for queue in route.to_read(topic):
                by_id = route.brokers[queue.broker_name]
                found[queue] = tuple(by_id[number] for number in sorted(by_id))
        return found

    # ---- brokers ----------------------------------------------------------------------------

    def begins(self, queues: Queues) -> Offsets:
        """The offset of the first message that each queue still has (31)."""
        return self._offsets(RequestCode.GET_MIN_OFFSET, queues, {})

    def ends(self, queues: Queues, away: dict[str, RemotingError] | None = None) -> Offsets:
        """The offset that the next message of each queue gets (30).

        Args:
            queues: which.
            away: gets brokers that do not answer, and why; their queues are left out. None raises.
        """
        return self._offsets(RequestCode.GET_MAX_OFFSET, queues, {}, away)

    def offsets_at(self, queues: Queues, times_ms: Mapping[MessageQueue, int]) -> Offsets:
        """The first message stored at a time or later (29).

        Brokers of 4.9 name any of the messages of that millisecond; where there are none, the
        nearest one, be it the one before.

        Args:
            queues: those that there are, with the addresses of their brokers.
            times_ms: a Unix time for each queue that is asked about.
        """
        more = {queue: {"timestamp": str(time_ms)} for queue, time_ms in times_ms.items()}
        chosen = {queue: queues[queue] for queue in times_ms}
        return self._offsets(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, chosen, more)

    def marks(
        self,
        queues: Queues,
        offsets: Mapping[MessageQueue, int],
        group: str = TOOLS_GROUP,
        away: dict[str, RemotingError] | None = None,
    ) -> Marks:
        """What tells the message in front of an offset from others of its number (11).

        Args:
            queues: those of others are passed over.
            offsets: behind the messages.
            group: the consumer group that brokers check permissions for.
            away: as for `ends`.

        Returns:
            those of messages that are there; `ANOTHER` where a broker sends a group that had read
            a deleted topic to the beginning of the one that was made since.
        """
        places = {queue: at - 1 for queue, at in offsets.items() if at > 0 and queue in queues}
        answers = self._pull_each(queues, places, group, away)
        back = {queue: sent_back(places[queue], answer) for queue, answer in answers.items()}
        if sent := {queue: at for queue, at in back.items() if at > 0}:
            # a group that may have read what is lost is let on when it has been there
            self._pull_each(queues, sent, group, away)
            again = {queue: places[queue] for queue in sent}
            answers |= self._pull_each(queues, again, group, away)
        found = {}
        for queue, answer in answers.items():
            at = places[queue]
            if answer.code == ResponseCode.PULL_OFFSET_MOVED:
                if answer.number("nextBeginOffset", at + 1) <= at:
                    found[queue] = ANOTHER
                continue
            messages = decode_messages(answer.body) if answer.code == ResponseCode.SUCCESS else []
            for message in messages:
                # of a record that holds a batch the number is that of its first message
                if message.queue_offset <= at:
                    found[queue] = Mark(message.store_timestamp_ms, message.phy_offset)
        return found

    def _pull_each(
        self,
        queues: Queues,
        places: Mapping[MessageQueue, int],
        group: str,
        away: dict[str, RemotingError] | None,
    ) -> dict[MessageQueue, RemotingCommand]:
        """The answers to a pull of one message of each queue."""
        more = {queue: pull_fields(group, at, 1) for queue, at in places.items()}
        asked = {queue: queues[queue] for queue in places}
        pull = RequestCode.PULL_MESSAGE
        return dict(self._ask_brokers(pull, asked, more, away, _NOTHING_PULLED))

    def commit(self, group: str, queues: Queues, offsets: Mapping[MessageQueue, int]) -> None:
        """Tell brokers how far a group is (15), where they still have the queue.

        Args:
            group: whose progress it is.
            queues: those that there are, with the addresses of their brokers.
            offsets: of each queue, that of the first message that the group has not done with.
        """
        more = {
            queue: {"consumerGroup": group, "commitOffset": str(offset)}
            for queue, offset in offsets.items()
            if queue in queues
        }
        chosen = {queue: queues[queue] for queue in more}
        for _ in self._ask_brokers(RequestCode.UPDATE_CONSUMER_OFFSET, chosen, more, None):
            pass

    def ranges(self, topics: Iterable[str]) -> list[QueueRange]:
        """All that the queues of topics have now.

        Raises:
            NoRouteError: no broker has a topic.
        """
        topics = list(topics)
        queues = self.queues(topics)
        for topic in set(topics) - {queue.topic for queue in queues}:
            raise NoRouteError(topic, "the name servers know no broker of this topic")
        begins, ends = self.begins(queues), self.ends(queues)
        marks = self.marks(queues, ends)
        return [
            QueueRange(queue, queues[queue], begins[queue], ends[queue], marks.get(queue))
            for queue in sorted(queues)
        ]

    # ---- how --------------------------------------------------------------------------------

    def _offsets(
        self,
        code: int,
        queues: Queues,
        more: Mapping[MessageQueue, Mapping[str, str]],
        away: dict[str, RemotingError] | None = None,
    ) -> Offsets:
        return {
            queue: max(0, answer.number("offset"))
            for queue, answer in self._ask_brokers(code, queues, more, away)
        }

    def _ask_brokers(
        self,
        code: int,
        queues: Queues,
        more: Mapping[MessageQueue, Mapping[str, str]],
        away: dict[str, RemotingError] | None,
        passing: frozenset[int] = frozenset(),
    ) -> list[tuple[MessageQueue, RemotingCommand]]:
        """Ask each broker about its queues, many at a time; which answers beside success count."""
        by_broker: dict[tuple[str, ...], list[MessageQueue]] = {}
        for queue, addresses in queues.items():
            by_broker.setdefault(addresses, []).append(queue)
        found = []
        for addresses, listed in by_broker.items():
            commands = [
                RemotingCommand(code, queue_fields(queue) | dict(more.get(queue, {})))
                for queue in listed
            ]
            try:
                answers, address = self._ask_first(addresses, commands)
            except RemotingError as error:
                if away is None:
                    raise
                away[listed[0].broker_name] = error
                continue
            (self.followed.discard if address == addresses[0] else self.followed.add)(
                listed[0].broker_name
            )
            for queue, answer in zip(listed, answers, strict=True):
                if answer.code != ResponseCode.SUCCESS and answer.code not in passing:
                    raise refusal(answer, address)
                found.append((queue, answer))
        return found

    def _ask_first(
        self, addresses: Iterable[str], commands: list[RemotingCommand]
    ) -> tuple[list[RemotingCommand], str]:
        """The answers of the first address that gives any."""
        last: RemotingError | None = None
        for address in addresses:
            try:
                if address not in self._links:
                    self._links[address] = BrokerLink(address, self._access)
                return list(self._links[address].ask_all(commands)), address
            except RemotingError as error:
                last = error
                link = self._links.pop(address, None)
                if link is not None:
                    link.close()
        raise last or NoRouteError("broker", "it has no address")


def sent_back(asked: int, answer: RemotingCommand) -> int:
    """Where a broker sends a group that asks for a message which is there; -1: nowhere.

    Args:
        asked: queue offset that was asked for.
        answer: of a pull.
    """
    following = answer.number("nextBeginOffset", -1)
    moved = answer.code == ResponseCode.PULL_OFFSET_MOVED
    return following if moved and following <= asked < answer.number("maxOffset", 0) else -1


def queue_fields(queue: MessageQueue) -> dict[str, str]:
    """The fields of a request that name a queue."""
    return {"topic": queue.topic, "queueId": str(queue.queue_id), "bname": queue.broker_name}


def pull_fields(group: str, first: int, count: int) -> dict[str, str]:
    """The fields of a pull that holds no message for anybody, but for those of its queue.

    Args:
        group: under which to pull; nothing is committed for it.
        first: queue offset of the first message.
        count: messages at most.
    """
    return {
        "consumerGroup": group,
        "sysFlag": str(PULL_SUBSCRIPTION),
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
        "queueOffset": str(first),
        "maxMsgNums": str(count),
    }


def _object(answer: RemotingCommand, address: str) -> dict[str, Any]:
    try:
        return parse_object(answer.body)
    except ValueError as error:
        raise BadAnswerError(address, str(error)) from error
