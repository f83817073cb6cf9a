"""Routes: which brokers have a topic's queues, as name servers tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rmqcore.client.results import MessageQueue
from rmqcore.java.json import parse_java_json
from rmqcore.remoting.codes import MASTER_ID, PERM_READ, PERM_WRITE

#: A route that says that one broker has more queues than this is refused as damaged.
_QUEUES_MAX = 65_536


@dataclass(frozen=True, slots=True)
class QueueData:
    """The queues that one broker has of a topic. Source: QueueData."""

    broker_name: str
    read_queue_count: int
    write_queue_count: int
    perm: int


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """The brokers of a topic. Source: TopicRouteData.

    Attributes:
        brokers: broker name -> broker id (0 is the master) -> `host:port`.
        queues: by broker.
        clusters: broker name -> cluster.
    """

    brokers: dict[str, dict[int, str]] = field(default_factory=dict)
    queues: tuple[QueueData, ...] = ()
    clusters: dict[str, str] = field(default_factory=dict)

    def to_write(self, topic: str) -> list[MessageQueue]:
        """The queues that messages can be sent to, broker by broker."""
        return [
            MessageQueue(topic, data.broker_name, queue_id)
            for data in self.queues
            if data.perm & PERM_WRITE and MASTER_ID in self.brokers.get(data.broker_name, {})
            for queue_id in range(data.write_queue_count)
        ]

    def to_read(self, topic: str) -> list[MessageQueue]:
        """The queues that messages are consumed from, sorted."""
        return sorted(
            MessageQueue(topic, data.broker_name, queue_id)
            for data in self.queues
            if data.perm & PERM_READ and self.brokers.get(data.broker_name)
            for queue_id in range(data.read_queue_count)
        )

    @property
    def addresses(self) -> list[str]:
        """Every broker, masters and slaves."""
        return [address for by_id in self.brokers.values() for address in by_id.values()]

    def limited(self, queue_count: int) -> TopicRoute:
        """The route that a topic gets whose first message creates it."""
        queues = tuple(
            QueueData(
                data.broker_name,
                min(queue_count, data.read_queue_count),
                min(queue_count, data.read_queue_count),
                data.perm,
            )
            for data in self.queues
        )
        return TopicRoute(self.brokers, queues, self.clusters)


def parse_route(body: bytes) -> TopicRoute:
    """Read the body of an answer to 105.

    Raises:
        ValueError: it is no route.
    """
    value = parse_object(body)
    brokers, clusters = {}, {}
    for entry in objects(value.get("brokerDatas")):
        name = str(entry.get("brokerName", ""))
        brokers[name] = parse_addresses(entry.get("brokerAddrs"))
        clusters[name] = str(entry.get("cluster", ""))
    queues = tuple(
        QueueData(
            str(entry.get("brokerName", "")),
            _count(entry.get("readQueueNums")),
            _count(entry.get("writeQueueNums")),
            _count(entry.get("perm")),
        )
        for entry in objects(value.get("queueDatas"))
    )
    return TopicRoute(brokers, queues, clusters)


def parse_addresses(value: object) -> dict[int, str]:
    """Broker id -> address, of a broker's ``brokerAddrs``.

    Raises:
        ValueError: it is none.
    """
    if not isinstance(value, Mapping):
        raise ValueError("brokerAddrs is no JSON object")  # noqa: TRY004 - the text is wrong
    return {int(number): str(address) for number, address in value.items()}


def parse_object(body: bytes) -> dict[str, Any]:
    """Read a body that is one JSON object.

    Raises:
        ValueError: it is none.
    """
    value = parse_java_json(bytes(body).decode())
    if not isinstance(value, dict):
        raise ValueError("the body is no JSON object")  # noqa: TRY004 - the text is wrong
    return value


def objects(value: object) -> list[dict[str, Any]]:
    """The objects of a list; what is none is passed over."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value <= _QUEUES_MAX:
        raise ValueError(f"{value!r} is no number of queues")
    return value
