"""The route table: registered brokers, their topics, and when each was last heard of.

- All of it is in memory and used from one thread; nothing here waits.
- A topic's queues are known by broker name, a broker's life by cluster and address.
- A broker without any address is in no table.

Source: RouteInfoManager.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rmqcore.namesrv.namesrv_config import NamesrvConfig
from rmqcore.namesrv.route_data import (
    FLAG_UNIT,
    FLAG_UNIT_SUB,
    BrokerData,
    BrokerRegistration,
    QueueData,
    TopicsVersion,
)
from rmqcore.remoting import RequestRefusedError, ResponseCode
from rmqcore.remoting.codes import MASTER_ID, PERM_READ, PERM_WRITE

#: A broker that says nothing for this long is forgotten, unless it has asked for another time.
EXPIRED_TIME_MS = 120_000
#: A registration beyond this number of addresses, or of those over one connection, is refused.
BROKERS_MAX = 4096
BROKERS_OF_CONNECTION = 64
#: A broker with more topics is refused, and so is one with which all brokers' topics together are
#: more than `TOPICS_MAX`.
TOPICS_OF_BROKER = 100_000
TOPICS_MAX = 1_000_000
FILTERS_MAX = 64
#: Brokers may map this many static topics; a mapping has at most `MAPPING_SIZE_MAX` bytes.
MAPPINGS_MAX = 4096
MAPPING_SIZE_MAX = 16 << 10
#: A topic's name has at most this many characters.
TOPIC_SIZE_MAX = 255
#: The brokers of a group find each other by topics of these names, which are therefore shown as
#: they are.
_SYNC_BROKER_MEMBER = "rmq_sys_SYNC_BROKER_MEMBER_"


@dataclass(slots=True)
class BrokerLive:
    """What is known of one address's life.

    Attributes:
        connection: the broker's, whatever identifies it; when it is closed, the broker is gone.
        heard_s: when, by the table's clock.
    """

    broker_name: str
    broker_id: int
    heard_s: float
    timeout_ms: int
    data_version: TopicsVersion
    connection: object
    ha_server_addr: str


@dataclass(frozen=True, slots=True)
class RegisterResult:
    """What a broker is told about its master; empty when there is nothing to tell."""

    ha_server_addr: str = ""
    master_addr: str = ""


@dataclass(frozen=True, slots=True)
class MinBrokerIdChanged:
    """The lowest id of a broker has changed: what its addresses are to be told.

    Attributes:
        addrs: of the broker, by id.
        offline_addr: of the one that has gone; None when one has come.
        ha_server_addr: of the one with the lowest id; None when it is not known.
    """

    broker_name: str
    addrs: dict[int, str]
    offline_addr: str | None
    ha_server_addr: str | None


class RouteTable:
    """The tables of a name server."""

    def __init__(
        self,
        clock: Callable[[], float],
        config: NamesrvConfig,
        on_min_broker_id_changed: Callable[[MinBrokerIdChanged], None] | None = None,
    ) -> None:
        """Make empty tables.

        Args:
            clock: seconds that never step back.
            config: may be replaced: `config` is read at each request.
            on_min_broker_id_changed: told when the configuration asks for it.
        """
        self.config = config
        self._clock = clock
        self._on_min_changed = on_min_broker_id_changed
        self._queues: dict[str, dict[str, QueueData]] = {}
        self._brokers: dict[str, BrokerData] = {}
        self._clusters: dict[str, set[str]] = {}
        self._live: dict[tuple[str, str], BrokerLive] = {}
        self._filters: dict[tuple[str, str], tuple[str, ...]] = {}
        self._mappings: dict[str, dict[str, dict[str, object]]] = {}
        #: the topics of each broker, and how many those are in all
        self._topics: dict[str, set[str]] = {}
        self._topic_count = 0

    # ---- what brokers say -------------------------------------------------------------------

    def register(self, said: BrokerRegistration, connection: object) -> RegisterResult | None:
        """Take what a broker says of itself.

        Args:
            said: its names, address, id and topics.
            connection: that it came by; whatever is the same for the same one.

        Returns:
            What it is told; None when it is refused: a single topic, and no full registration
            before it.

        Raises:
            RequestRefusedError: more would be kept than there is room for, and nothing has changed;
                answers with code 1.

        Source: RouteInfoManager, registerBroker.
        """
        self._expect_room(said, connection)
        former = self._live.get((said.cluster, said.broker_addr))
        if former is not None and former.broker_name != said.broker_name:
            self.unregister(said.cluster, said.broker_addr, former.broker_name)
        broker = self._brokers.get(said.broker_name)
        first = broker is None or said.broker_id not in broker.addrs
        if first and len(said.content.topics) == 1:
            return None
        if broker is None:
            broker = BrokerData(said.cluster, said.broker_name)
            self._brokers[said.broker_name] = broker
        self._clusters.setdefault(said.cluster, set()).add(said.broker_name)
        broker.enable_acting_master = bool(said.enable_acting_master)
        broker.zone_name = said.zone_name
        min_changed = said.broker_id < min(broker.addrs, default=MASTER_ID)
        for other in [i for i, addr in broker.addrs.items() if addr == said.broker_addr]:
            if other != said.broker_id:
                del broker.addrs[other]
        key = said.cluster, said.broker_addr
        if self._is_outdated(broker, said):
            self._live.pop(key, None)
            self._filters.pop(key, None)
            return RegisterResult()
        broker.addrs[said.broker_id] = said.broker_addr
        self._update_topics(broker, said, first)
        self._live[key] = BrokerLive(
            said.broker_name,
            said.broker_id,
            self._clock(),
            EXPIRED_TIME_MS if said.timeout_ms is None else said.timeout_ms,
            said.content.data_version,
            connection,
            said.ha_server_addr,
        )
        if said.content.filter_servers:
            self._filters[key] = said.content.filter_servers
        else:
            self._filters.pop(key, None)
        if min_changed:
            self._notify_min_changed(broker, None)
        return self._about_master(broker, said.broker_id)

    def _expect_room(self, said: BrokerRegistration, connection: object) -> None:
        """Refuse a registration above one of the bounds."""
        key = said.cluster, said.broker_addr
        if key not in self._live:
            if len(self._live) >= BROKERS_MAX:
                raise _too_many("brokers", BROKERS_MAX)
            others = sum(live.connection is connection for live in self._live.values())
            if others >= BROKERS_OF_CONNECTION:
                raise _too_many("brokers over one connection", BROKERS_OF_CONNECTION)
        self._expect_room_for(said.broker_name, said.content.topics)
        if len(said.content.filter_servers) > FILTERS_MAX:
            raise _too_many("filter servers", FILTERS_MAX)
        mappings = said.content.mappings
        new = sum(said.broker_name not in self._mappings.get(topic, ()) for topic in mappings)
        if new and sum(map(len, self._mappings.values())) + new > MAPPINGS_MAX:
            raise _too_many("static topics", MAPPINGS_MAX)
        if any(len(str(info)) > MAPPING_SIZE_MAX for info in mappings.values()):
            raise _too_many("bytes of a static topic", MAPPING_SIZE_MAX)

    def _expect_room_for(self, broker_name: str, topics: Iterable[str]) -> None:
        new = 0
        for topic in topics:
            if len(topic) > TOPIC_SIZE_MAX:
                raise _too_many("characters of a topic's name", TOPIC_SIZE_MAX)
            new += broker_name not in self._queues.get(topic, ())
        if new and len(self._topics.get(broker_name, ())) + new > TOPICS_OF_BROKER:
            raise _too_many("topics of a broker", TOPICS_OF_BROKER)
        if new and self._topic_count + new > TOPICS_MAX:
            raise _too_many("topics of all brokers", TOPICS_MAX)

    def _set_queues(self, topic: str, queues: QueueData) -> None:
        name, table = queues.broker_name, self._queues.setdefault(topic, {})
        self._topic_count += name not in table
        self._topics.setdefault(name, set()).add(topic)
        table[name] = queues

    def _is_outdated(self, broker: BrokerData, said: BrokerRegistration) -> bool:
        """Tell whether the id belongs to another address that is in a later term."""
        holder = broker.addrs.get(said.broker_id)
        if holder is None or holder == said.broker_addr:
            return False
        live = self._live.get((said.cluster, holder))
        version = said.content.data_version
        return live is not None and live.data_version.state_version > version.state_version

    def _update_topics(self, broker: BrokerData, said: BrokerRegistration, first: bool) -> None:
        """Bring the queues level with what a master, or the first of its slaves, has told."""
        stands_in = (
            said.enable_acting_master is not None
            and said.broker_id != MASTER_ID
            and said.broker_id == min(broker.addrs)
        )
        if said.broker_id != MASTER_ID and not stands_in:
            return
        content, name = said.content, broker.broker_name
        changed = first or self.has_changed(said.cluster, said.broker_addr, content.data_version)
        if self.config.delete_topic_with_broker_registration and not content.mappings:
            for topic in self._topics.get(name, set()) - content.topics.keys():
                self._remove_queues(topic, [name])
        for topic, settings in content.topics.items():
            if changed or name not in self._queues.get(topic, ()):
                perm = settings.perm
                if stands_in and broker.enable_acting_master:
                    perm &= ~PERM_WRITE
                self._set_queues(topic, settings.queues_of(name, perm))
        if changed:
            for topic, info in content.mappings.items():
                self._mappings.setdefault(topic, {})[name] = info

    def _about_master(self, broker: BrokerData, broker_id: int) -> RegisterResult:
        master_addr = broker.addrs.get(MASTER_ID)
        if broker_id == MASTER_ID or master_addr is None:
            return RegisterResult()
        live = self._live.get((broker.cluster, master_addr))
        if live is None:
            return RegisterResult()
        return RegisterResult(live.ha_server_addr, master_addr)

    def unregister(self, cluster: str, broker_addr: str, broker_name: str) -> None:
        """Forget one address; with its last, the broker and all its queues.

        Another broker that has the address lives on: without that it would never expire.

        Source: RouteInfoManager, unRegisterBroker.

        Args:
            cluster: of the broker.
            broker_addr: ``host:port``; one that is not there is nothing to do.
            broker_name: of the broker.
        """
        live = self._live.get((cluster, broker_addr))
        if live is not None and live.broker_name == broker_name:
            del self._live[cluster, broker_addr]
            self._filters.pop((cluster, broker_addr), None)
        broker = self._brokers.get(broker_name)
        if broker is None:
            return
        ids = [number for number, addr in broker.addrs.items() if addr == broker_addr]
        lowest = min(broker.addrs, default=None)
        for number in ids:
            del broker.addrs[number]
        if not broker.addrs:
            self._drop_broker(broker)
            return
        if ids and broker.enable_acting_master and MASTER_ID not in broker.addrs:
            for topic in self._topics.get(broker_name, ()):
                self._queues[topic][broker_name].perm &= ~PERM_WRITE
        if lowest in ids:
            self._notify_min_changed(broker, broker_addr)

    def _drop_broker(self, broker: BrokerData) -> None:
        name = broker.broker_name
        self._brokers.pop(name, None)
        for cluster in [each for each, names in self._clusters.items() if name in names]:
            self._clusters[cluster].discard(name)
            if not self._clusters[cluster]:
                del self._clusters[cluster]
        # a broker may map a topic without having registered queues of it
        mapped = {topic for topic, brokers in self._mappings.items() if name in brokers}
        for topic in self._topics.get(name, set()) | mapped:
            self._remove_queues(topic, [name])

    def _remove_queues(self, topic: str, broker_names: Iterable[str]) -> None:
        queues = self._queues.get(topic, {})
        for name in broker_names:
            if queues.pop(name, None) is not None:
                self._topic_count -= 1
                self._topics[name].discard(topic)
                if not self._topics[name]:
                    del self._topics[name]
            self._mappings.get(topic, {}).pop(name, None)
        if not queues:
            self._queues.pop(topic, None)
        if not self._mappings.get(topic, True):
            del self._mappings[topic]

    def _notify_min_changed(self, broker: BrokerData, offline_addr: str | None) -> None:
        if self._on_min_changed is None or not self.config.notify_min_broker_id_changed:
            return
        live = self._live.get((broker.cluster, broker.addrs[min(broker.addrs)]))
        ha_server_addr = live.ha_server_addr if live is not None else None
        self._on_min_changed(
            MinBrokerIdChanged(broker.broker_name, dict(broker.addrs), offline_addr, ha_server_addr)
        )

    def heard_of(self, cluster: str, broker_addr: str) -> None:
        """Note that a broker is there; a broker that has not registered stays unknown.

        Args:
            cluster: of the broker.
            broker_addr: ``host:port``.
        """
        live = self._live.get((cluster, broker_addr))
        if live is not None:
            live.heard_s = self._clock()

    def data_version(self, cluster: str, broker_addr: str) -> TopicsVersion | None:
        """The state of its topics that a broker has told last; None when it is not known.

        Args:
            cluster: of the broker.
            broker_addr: ``host:port``.
        """
        live = self._live.get((cluster, broker_addr))
        return live.data_version if live is not None else None

    def has_changed(self, cluster: str, broker_addr: str, version: TopicsVersion) -> bool:
        """Tell whether a broker's state is another than the one it has told, or that is unknown.

        Args:
            cluster: of the broker.
            broker_addr: ``host:port``.
            version: of the broker's topics now.
        """
        return self.data_version(cluster, broker_addr) != version

    def connection_closed(self, connection: object) -> list[str]:
        """Forget the brokers whose connection it was; return their addresses."""
        gone = [key for key, live in self._live.items() if live.connection is connection]
        return self._forget(gone)

    def expire(self) -> list[BrokerLive]:
        """Forget the brokers that have been silent for too long; return them."""
        now_s = self._clock()
        gone = {
            key: live
            for key, live in self._live.items()
            if live.heard_s + live.timeout_ms / 1000 < now_s
        }
        self._forget(list(gone))
        return list(gone.values())

    def _forget(self, keys: list[tuple[str, str]]) -> list[str]:
        for cluster, broker_addr in keys:
            live = self._live.get((cluster, broker_addr))
            if live is not None:
                self.unregister(cluster, broker_addr, live.broker_name)
        return [broker_addr for _, broker_addr in keys]

    # ---- what clients ask -------------------------------------------------------------------

    def route(self, topic: str) -> dict[str, object] | None:
        """A topic's brokers and queues, as they are sent; None when there are none.

        Source: RouteInfoManager, pickupTopicRouteData.
        """
        queues = self._queues.get(topic)
        if not queues:
            return None
        brokers = [self._brokers[name] for name in queues if name in self._brokers]
        if not brokers:
            return None
        filters = {
            addr: list(self._filters[broker.cluster, addr])
            for broker in brokers
            for addr in broker.addrs.values()
            if (broker.cluster, addr) in self._filters
        }
        return {
            "brokerDatas": [
                each.to_wire(self._shown_addrs(topic, each, queues[each.broker_name]))
                for each in brokers
            ],
            "filterServerTable": filters,
            "queueDatas": [each.to_wire() for each in queues.values()],
            "topicQueueMappingByBroker": self._mappings.get(topic),
        }

    def _shown_addrs(self, topic: str, broker: BrokerData, queues: QueueData) -> dict[int, str]:
        """The addresses of a broker; of one without master the lowest slave in its place."""
        stands_in = (
            self.config.support_acting_master
            and broker.enable_acting_master
            and MASTER_ID not in broker.addrs
            and not queues.writable
            and not topic.startswith(_SYNC_BROKER_MEMBER)
        )
        if not stands_in:
            return broker.addrs
        lowest = min(broker.addrs)
        others = {number: addr for number, addr in broker.addrs.items() if number != lowest}
        return {MASTER_ID: broker.addrs[lowest]} | others

    def clusters(self) -> dict[str, object]:
        """All brokers and clusters, as they are sent."""
        return {
            "brokerAddrTable": {name: each.to_wire() for name, each in self._brokers.items()},
            "clusterAddrTable": {name: sorted(each) for name, each in self._clusters.items()},
        }

    def group(self, cluster: str, broker_name: str) -> dict[str, object]:
        """The addresses of one broker, as they are sent; none when it is not known.

        Args:
            cluster: of the broker, which is sent as it is given.
            broker_name: of the broker.
        """
        broker = self._brokers.get(broker_name)
        addrs = broker.addrs if broker is not None else {}
        return {
            "brokerAddrs": dict(sorted(addrs.items())),
            "brokerName": broker_name,
            "cluster": cluster,
        }

    def topics(self) -> list[str]:
        """All topics."""
        return list(self._queues)

    def topics_of(self, cluster: str) -> list[str]:
        """The topics that have queues on a broker of a cluster."""
        names = self._clusters.get(cluster, set())
        return [topic for topic, queues in self._queues.items() if not names.isdisjoint(queues)]

    def unit_topics(self) -> list[str]:
        """The topics of units."""
        return self._topics_with(lambda flag: bool(flag & FLAG_UNIT))

    def unit_sub_topics(self) -> list[str]:
        """The topics that units subscribe."""
        return self._topics_with(lambda flag: bool(flag & FLAG_UNIT_SUB))

    def unit_sub_only_topics(self) -> list[str]:
        """The topics that units subscribe and that are not of a unit themselves."""
        return self._topics_with(lambda flag: flag & (FLAG_UNIT | FLAG_UNIT_SUB) == FLAG_UNIT_SUB)

    def _topics_with(self, wanted: Callable[[int], bool]) -> list[str]:
        return [
            topic
            for topic, queues in self._queues.items()
            if wanted(next(iter(queues.values())).topic_sys_flag)
        ]

    def system_topics(self) -> tuple[list[str], str | None]:
        """The names of clusters and brokers, which are topics, too; and any broker's address."""
        names = [*self._clusters]
        for members in self._clusters.values():
            names += sorted(members)
        addrs = (addr for broker in self._brokers.values() for addr in broker.addrs.values())
        return names, next(addrs, None)

    # ---- what operators ask -----------------------------------------------------------------

    def wipe_write_perm(self, broker_name: str) -> int:
        """Let no producer send to a broker until it tells other topics; return how many topics."""
        return self._change_perm(broker_name, lambda perm: perm & ~PERM_WRITE)

    def add_write_perm(self, broker_name: str) -> int:
        """Let producers send to all topics of a broker; return how many."""
        return self._change_perm(broker_name, lambda _: PERM_READ | PERM_WRITE)

    def _change_perm(self, broker_name: str, change: Callable[[int], int]) -> int:
        topics = self._topics.get(broker_name, ())
        for topic in topics:
            queues = self._queues[topic][broker_name]
            queues.perm = change(queues.perm)
        return len(topics)

    def add_queues(self, topic: str, queues: Iterable[QueueData]) -> None:
        """Add or replace queues of a topic on the brokers that are known.

        Args:
            topic: by name; it is made when it is new.
            queues: one of each broker; those of unknown brokers are passed over.

        Raises:
            RequestRefusedError: there is no room for one of them; answers with code 1.

        Source: RouteInfoManager, registerTopic.
        """
        for each in queues:
            if each.broker_name in self._brokers:
                self._expect_room_for(each.broker_name, [topic])
                self._set_queues(topic, each)

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Forget a topic, on the brokers of one cluster or on all.

        Args:
            topic: by name; one that is not there is nothing to do.
            cluster: of the brokers that have lost it; None for all.
        """
        names = self._queues.get(topic, {}) if cluster is None else self._clusters.get(cluster, ())
        self._remove_queues(topic, list(names))


def _too_many(what: str, most: int) -> RequestRefusedError:
    return RequestRefusedError(ResponseCode.SYSTEM_ERROR, f"too many {what}: {most} at most")
