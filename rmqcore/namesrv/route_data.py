"""The plain data of routes, and its JSON on the wire."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rmqcore.remoting.codes import PERM_WRITE

#: bits of a topic's system flag. Source: TopicSysFlag
FLAG_UNIT = 1
FLAG_UNIT_SUB = 2


@dataclass(frozen=True, slots=True)
class TopicsVersion:
    """Which state of its topics a broker has told; equal when all three are."""

    counter: int = 0
    state_version: int = 0
    timestamp_ms: int = 0

    def to_wire(self) -> dict[str, int]:
        """The members as they are sent."""
        return {
            "counter": self.counter,
            "stateVersion": self.state_version,
            "timestamp": self.timestamp_ms,
        }


@dataclass(slots=True)
class QueueData:
    """The queues of one topic on one broker."""

    broker_name: str
    read_queue_count: int
    write_queue_count: int
    perm: int
    topic_sys_flag: int = 0

    @property
    def writable(self) -> bool:
        """Tell whether producers may send to these queues."""
        return bool(self.perm & PERM_WRITE)

    def to_wire(self) -> dict[str, object]:
        """The members as they are sent."""
        return {
            "brokerName": self.broker_name,
            "perm": self.perm,
            "readQueueNums": self.read_queue_count,
            "topicSysFlag": self.topic_sys_flag,
            "writeQueueNums": self.write_queue_count,
        }


@dataclass(slots=True)
class BrokerData:
    """The addresses of one broker: id 0 is the master, others are slaves."""

    cluster: str
    broker_name: str
    addrs: dict[int, str] = field(default_factory=dict)
    zone_name: str | None = None
    enable_acting_master: bool = False

    def to_wire(self, addrs: dict[int, str] | None = None) -> dict[str, object]:
        """The members as they are sent, with these addresses instead of its own."""
        shown = self.addrs if addrs is None else addrs
        return {
            "brokerAddrs": dict(sorted(shown.items())),
            "brokerName": self.broker_name,
            "cluster": self.cluster,
            "enableActingMaster": self.enable_acting_master,
            "zoneName": self.zone_name,
        }


@dataclass(frozen=True, slots=True)
class RegisteredTopic:
    """One topic as a broker registers it."""

    read_queue_count: int
    write_queue_count: int
    perm: int
    topic_sys_flag: int = 0

    def queues_of(self, broker_name: str, perm: int) -> QueueData:
        """Make what a route says of the topic on one broker.

        Args:
            broker_name: of the broker.
            perm: 4 to read, 2 to write, 6 for both; the broker's own may be less than the topic's.
        """
        return QueueData(
            broker_name,
            self.read_queue_count,
            self.write_queue_count,
            perm,
            self.topic_sys_flag,
        )


@dataclass(frozen=True, slots=True)
class BrokerTopics:
    """The body of a registration.

    Attributes:
        data_version: of the topics.
        topics: by name.
        filter_servers: a legacy; normally empty.
        mappings: of static topics, by topic: as it was received, to be given out again.
    """

    data_version: TopicsVersion = TopicsVersion()
    topics: dict[str, RegisteredTopic] = field(default_factory=dict)
    filter_servers: tuple[str, ...] = ()
    mappings: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistration:
    """What a broker says of itself when it registers.

    Attributes:
        timeout_ms: of silence, after which it is forgotten; None for the usual one.
        enable_acting_master: None from releases that do not know it.
    """

    cluster: str
    broker_name: str
    broker_addr: str
    broker_id: int
    ha_server_addr: str
    timeout_ms: int | None = None
    enable_acting_master: bool | None = None
    zone_name: str | None = None
    content: BrokerTopics = BrokerTopics()
