"""`Admin`: topics, groups, offsets and brokers, as RocketMQ's mqadmin has them."""

from __future__ import annotations

import difflib
import ssl
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from rmqcore._codec import decode_message_id
from rmqcore.arguments import text, whole_number
from rmqcore.client.errors import BadAnswerError, GroupNotFoundError, NoRouteError
from rmqcore.client.instance import AUTO_CREATE_TOPIC, ClientInstance
from rmqcore.client.received import decode_messages
from rmqcore.client.results import MessageQueue
from rmqcore.client.route import TopicRoute, objects, parse_addresses, parse_object
from rmqcore.errors import ArgumentError
from rmqcore.java.json import format_compact_java_json, parse_java_json
from rmqcore.java.properties import format_property, parse_properties
from rmqcore.message import RETRY_PREFIX, ReceivedMessage
from rmqcore.remoting import AclSigner, RemotingCommand, RequestCode, ResponseCode
from rmqcore.remoting.codes import MASTER_ID

_TIMEOUT_MS = 5000.0
_FOREVER_MS = 2**63 - 1
_COUNT_MAX = 64


@dataclass(frozen=True, slots=True)
class BrokerAddresses:
    """One broker name of a cluster. Source: BrokerData."""

    cluster: str
    broker_name: str
    addresses: dict[int, str]


@dataclass(frozen=True, slots=True)
class QueueStats:
    """Where a queue begins and ends. Source: TopicOffset."""

    queue: MessageQueue
    min_offset: int
    max_offset: int
    last_update_ms: int


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """How far a group is in a queue. Source: OffsetWrapper."""

    queue: MessageQueue
    broker_offset: int
    consumer_offset: int
    last_timestamp_ms: int

    @property
    def lag(self) -> int:
        """Messages that the group has not consumed."""
        return self.broker_offset - self.consumer_offset


@dataclass(frozen=True, slots=True)
class ClientConnection:
    """A client of a group that is connected. Source: Connection."""

    client_id: str
    address: str
    language: str
    version: int


class Admin:
    """Administers a cluster; every request has a time-out.

    Source: DefaultMQAdminExt.
    """

    def __init__(
        self,
        namesrv_addr: str | Sequence[str],
        *,
        timeout_ms: float = _TIMEOUT_MS,
        acl: AclSigner | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Prepare an admin; ``async with`` opens it.

        Args:
            namesrv_addr: name servers: `host:port`, with ``;`` between several.
            timeout_ms: of each request.
            acl: signs the requests.
            tls: trust for TLS; None connects without.

        Raises:
            ArgumentError: an address is not host:port.
        """
        self._instance = ClientInstance(
            "admin", namesrv_addr, acl=acl, tls=tls, timeout_ms=timeout_ms
        )

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Open the admin; ``async with`` does it."""
        await self._instance.start()

    async def close(self) -> None:
        """Close the connections."""
        await self._instance.close()

    # ---- clusters and brokers ---------------------------------------------------------------

    async def clusters(self) -> list[BrokerAddresses]:
        """Every broker that is registered (106).

        Raises:
            BadAnswerError: the name server's answer is none.
        """
        answer, address = await self._name_server(RequestCode.GET_BROKER_CLUSTER_INFO)
        table = _object(answer, address).get("brokerAddrTable")
        try:
            return [
                BrokerAddresses(
                    str(entry.get("cluster", "")), name, parse_addresses(entry.get("brokerAddrs"))
                )
                for name, entry in sorted(dict(table or {}).items())
            ]
        except (ValueError, TypeError, AttributeError) as error:
            raise BadAnswerError(address, f"the clusters: {error}") from error

    async def broker_config(self, broker_addr: str) -> dict[str, str]:
        """A broker's settings under RocketMQ's names (26)."""
        answer = await self._instance.ask(broker_addr, RequestCode.GET_BROKER_CONFIG)
        return parse_properties(answer.body.decode("utf-8", "replace"))

    async def update_broker_config(self, broker_addr: str, settings: Mapping[str, str]) -> None:
        """Change settings of a broker while it runs (25).

        Args:
            broker_addr: `host:port`.
            settings: RocketMQ's names and values.

        Raises:
            RequestRefusedError: one of them may not change.
        """
        text = "".join(format_property(name, value) + "\n" for name, value in settings.items())
        await self._instance.ask(broker_addr, RequestCode.UPDATE_BROKER_CONFIG, {}, text.encode())

    async def runtime_info(self, broker_addr: str) -> dict[str, str]:
        """A broker's figures under RocketMQ's names (28)."""
        answer = await self._instance.ask(broker_addr, RequestCode.GET_BROKER_RUNTIME_INFO)
        table = _object(answer, broker_addr).get("table")
        return {name: str(value) for name, value in dict(table or {}).items()}

    async def ha_status(self, broker_addr: str) -> dict[str, Any]:
        """How far a master's slaves are, or a slave, under RocketMQ's names (907).

        Brokers of 4.x do not tell.
        """
        answer = await self._instance.ask(broker_addr, RequestCode.GET_BROKER_HA_STATUS)
        return _object(answer, broker_addr)

    async def set_write_permission(self, broker_name: str, allowed: bool) -> int:
        """Let a broker's topics be written, or not, at every name server (327, 205).

        Args:
            broker_name: name of the broker's group, as in a route.
            allowed: whether producers may write.

        Returns:
            how many topics it concerned.

        Raises:
            RequestRefusedError: a name server refuses.
        """
        code = RequestCode.WIPE_WRITE_PERM_OF_BROKER
        field = "wipeTopicCount"
        if allowed:
            code, field = RequestCode.ADD_WRITE_PERM_OF_BROKER, "addTopicCount"
        answers = [
            await self._instance.ask(address, code, {"brokerName": broker_name})
            for address in self._instance.name_servers
        ]
        return max(answer.number(field, 0) for answer in answers)

    # ---- topics -----------------------------------------------------------------------------

    async def topics(self) -> list[str]:
        """The names of all topics (206), system topics and retry topics included."""
        code = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
        answer, address = await self._name_server(code)
        return sorted(map(str, _object(answer, address).get("topicList") or []))

    async def route(self, topic: str) -> TopicRoute:
        """Which brokers have a topic's queues (105).

        Raises:
            NoRouteError: none.
        """
        route = await self._instance.fetch_route(topic)
        if route is None:
            raise NoRouteError(topic, "the name servers know no broker of this topic")
        return route

    async def topic_stats(self, topic: str) -> list[QueueStats]:
        """Where each queue of a topic begins and ends (202)."""
        found = []
        for address in _masters(await self.route(topic)):
            answer = await self._instance.ask(
                address, RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic}
            )
            for queue, entry in _by_queue(_object(answer, address).get("offsetTable"), address):
                numbers = [_number(entry, name, address) for name in _TOPIC_OFFSET]
                found.append(QueueStats(queue, *numbers))
        return sorted(found, key=lambda each: each.queue)

    async def create_topic(
        self,
        topic: str,
        *,
        queues: int = 8,
        perm: int = 6,
        order: bool = False,
        attributes: str = "",
        brokers: Iterable[str] | None = None,
    ) -> None:
        """Create a topic, or change it (17).

        Args:
            topic: 1 to 127 letters, digits, %, |, _ and -.
            queues: how many queues each broker has of it.
            perm: 4 to read, 2 to write, added up.
            order: whether it is an order topic.
            attributes: such as ``+message.type=DELAY``.
            brokers: addresses; None for all masters.

        Raises:
            RequestRefusedError: the name is no topic's, or the broker's own.
        """
        fields = {
            "topic": topic,
            "defaultTopic": AUTO_CREATE_TOPIC,
            "readQueueNums": str(whole_number("queues", queues)),
            "writeQueueNums": str(whole_number("queues", queues)),
            "perm": str(whole_number("perm", perm)),
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "true" if order else "false",
        }
        if attributes:
            fields["attributes"] = attributes
        for address in await self._masters(brokers):
            await self._instance.ask(address, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic at every broker and every name server (215, 216)."""
        for entry in await self.clusters():
            for address in entry.addresses.values():
                code = RequestCode.DELETE_TOPIC_IN_BROKER
                await self._instance.ask(address, code, {"topic": topic})
        for address in self._instance.name_servers:
            code = RequestCode.DELETE_TOPIC_IN_NAMESRV
            await self._instance.ask(address, code, {"topic": topic})

    async def topic_groups(self, topic: str) -> list[str]:
        """The groups that consume a topic, or have (300)."""
        found: set[str] = set()
        for address in _masters(await self.route(topic)):
            answer = await self._instance.ask(
                address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": topic}
            )
            found.update(map(str, _object(answer, address).get("groupList") or []))
        return sorted(found)

    # ---- groups -----------------------------------------------------------------------------

    async def groups(self) -> dict[str, dict[str, Any]]:
        """Every group's settings under RocketMQ's names, of all masters together (201)."""
        found: dict[str, dict[str, Any]] = {}
        for address in await self._masters(None):
            code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
            answer = await self._instance.ask(address, code)
            found |= dict(_object(answer, address).get("subscriptionGroupTable") or {})
        return dict(sorted(found.items()))

    async def create_group(
        self,
        group: str,
        *,
        retry_max_times: int = 16,
        retry_queues: int = 1,
        broadcast: bool = True,
        brokers: Iterable[str] | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        """Create a group, or change it (200).

        Args:
            group: 1 to 120 letters, digits, %, |, _ and -.
            retry_max_times: how often a message comes again.
            retry_queues: queues of its retry topic.
            broadcast: whether its consumers may be broadcast to.
            brokers: addresses; None for all masters.
            settings: further ones under RocketMQ's names, such as ``{"consumeEnable": False}``.
        """
        fields = {
            "groupName": text("group", group),
            "consumeEnable": True,
            "consumeFromMinEnable": True,
            "consumeBroadcastEnable": broadcast,
            "retryQueueNums": whole_number("retry_queues", retry_queues),
            "retryMaxTimes": whole_number("retry_max_times", retry_max_times),
            "brokerId": 0,
            "whichBrokerWhenConsumeSlowly": 1,
            "notifyConsumerIdsChangedEnable": True,
            **(settings or {}),
        }
        body = format_compact_java_json(fields).encode()
        for address in await self._masters(brokers):
            code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
            await self._instance.ask(address, code, {}, body)

    async def delete_group(self, group: str, *, offsets: bool = True) -> None:
        """Delete a group at every master (207).

        Args:
            group: its name; one that is not there is nothing to do.
            offsets: also forget what it has consumed.
        """
        clean = "true" if offsets else "false"
        fields = {"groupName": group, "cleanOffset": clean, "removeOffset": clean}
        for address in await self._masters(None):
            await self._instance.ask(address, RequestCode.DELETE_SUBSCRIPTIONGROUP, fields)

    async def set_read_permission(
        self, group: str, topic: str, allowed: bool, *, brokers: Iterable[str] | None = None
    ) -> None:
        """Let a group read a topic, or forbid it (353); brokers of 4.x cannot.

        Args:
            group: its name; it need not exist.
            topic: likewise.
            allowed: whether it may.
            brokers: addresses; None for all masters.
        """
        fields = {"group": group, "topic": topic, "readable": "true" if allowed else "false"}
        for address in await self._masters(brokers):
            await self._instance.ask(address, RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, fields)

    async def consumer_progress(self, group: str, topic: str | None = None) -> list[QueueProgress]:
        """How far a group is, queue by queue (208).

        Args:
            group: its name.
            topic: only this one; None for all that it has consumed, its retry topic included.

        Raises:
            GroupNotFoundError: no broker knows the group.
            NoRouteError: no broker has the topic.
        """
        fields = {"consumerGroup": group}
        if topic is None:
            masters = await self._masters_of(RETRY_PREFIX + text("group", group))
        else:
            fields["topic"] = topic
            masters = _masters(await self.route(topic))
        found = []
        for address in masters:
            answer = await self._instance.ask(address, RequestCode.GET_CONSUME_STATS, fields)
            for queue, entry in _by_queue(_object(answer, address).get("offsetTable"), address):
                numbers = [_number(entry, name, address) for name in _OFFSET_WRAPPER]
                found.append(QueueProgress(queue, *numbers))
        if not any(each.consumer_offset for each in found):
            await self._expect_group(group)
        return sorted(found, key=lambda each: each.queue)

    async def consumers(self, group: str) -> list[ClientConnection]:
        """The consumers of a group that are connected (203)."""
        code = RequestCode.GET_CONSUMER_CONNECTION_LIST
        topic = RETRY_PREFIX + text("group", group)
        return await self._connections(code, {"consumerGroup": group}, topic)

    async def producers(self, group: str, topic: str) -> list[ClientConnection]:
        """The producers of a group that are connected to a topic's brokers (204).

        Args:
            group: name of the producers' group.
            topic: topic whose brokers are asked.

        Returns:
            each connection once; an empty list when a broker knows no such producer.

        Raises:
            RemotingError: a broker does not answer.
        """
        code = RequestCode.GET_PRODUCER_CONNECTION_LIST
        return await self._connections(code, {"producerGroup": group}, topic)

    async def _connections(
        self, code: RequestCode, fields: dict[str, str], topic: str
    ) -> list[ClientConnection]:
        found = {}
        for address in await self._masters_of(topic):
            answer = await self._instance.invoke(address, code, fields)
            if answer.code != ResponseCode.SUCCESS:
                continue
            for entry in objects(_object(answer, address).get("connectionSet")):
                client_id = str(entry.get("clientId", ""))
                found[client_id] = ClientConnection(
                    client_id,
                    str(entry.get("clientAddr", "")),
                    str(entry.get("language", "")),
                    _number(entry, "version", address),
                )
        return [found[name] for name in sorted(found)]

    async def reset_offsets(
        self, group: str, topic: str, timestamp_ms: int, *, force: bool = True
    ) -> dict[MessageQueue, int]:
        """Let a group go on at the messages of a time (222); its consumers take it at once.

        Brokers of 4.9 want one of them to be connected, and refuse as long as a queue of the topic
        has no offset of the group.

        Args:
            group: its name.
            topic: which.
            timestamp_ms: Unix time; -1 for the end, 0 for the beginning.
            force: also where the group is behind already.

        Returns:
            the offset of each queue.
        """
        fields = {
            "group": group,
            "topic": topic,
            "timestamp": str(timestamp_ms),
            "isForce": "true" if force else "false",
            "queueId": "-1",
        }
        found: dict[MessageQueue, int] = {}
        for address in await self._masters_of(topic):
            code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
            answer = await self._instance.ask(address, code, fields)
            table = _object(answer, address).get("offsetTable")
            for queue, offset in _by_queue(table, address):
                found[queue] = int(offset)
        return dict(sorted(found.items()))

    # ---- messages ---------------------------------------------------------------------------

    async def message_by_id(self, offset_message_id: str) -> ReceivedMessage:
        """The message that a broker's id names (33).

        Raises:
            ArgumentError: it is no such id.
            RequestRefusedError: there is no such message.
            BadAnswerError: the broker's answer has no message.
        """
        try:
            address, phy_offset = decode_message_id(text("offset_message_id", offset_message_id))
        except ValueError as error:
            raise ArgumentError(
                "offset_message_id", offset_message_id, "32 or 56 hexadecimal digits"
            ) from error
        code = RequestCode.VIEW_MESSAGE_BY_ID
        answer = await self._instance.ask(address, code, {"offset": str(phy_offset)})
        found = decode_messages(answer.body)
        if not found:
            raise BadAnswerError(address, "a message without a body")
        return ReceivedMessage(found[0])

    async def messages_by_key(
        self,
        topic: str,
        key: str,
        *,
        unique: bool = False,
        count: int = _COUNT_MAX,
        begin_ms: int = 0,
        end_ms: int = _FOREVER_MS,
    ) -> list[ReceivedMessage]:
        """The messages of a topic that carry a key (12), newest first.

        Args:
            topic: which.
            key: one of KEYS, or the producer's id.
            unique: it is the latter.
            count: so many at most; a broker answers with 64.
            begin_ms: of the store time, Unix milliseconds.
            end_ms: likewise.
        """
        fields = {
            "topic": topic,
            "key": key,
            "maxNum": str(whole_number("count", count)),
            "beginTimestamp": str(whole_number("begin_ms", begin_ms)),
            "endTimestamp": str(whole_number("end_ms", end_ms)),
        }
        if unique:
            fields["_UNIQUE_KEY_QUERY"] = "true"
        route, found = await self.route(topic), []
        names = {by_id.get(MASTER_ID): name for name, by_id in route.brokers.items()}
        for address in _masters(route):
            answer = await self._instance.invoke(address, RequestCode.QUERY_MESSAGE, fields)
            if answer.code != ResponseCode.SUCCESS:
                continue
            found += [
                ReceivedMessage(stored, names.get(address, ""))
                for stored in decode_messages(answer.body)
                if stored.has_key(topic, key)
            ]
        found.sort(key=lambda message: message.store_timestamp_ms, reverse=True)
        return found[:count]

    # ---- how ------------------------------------------------------------------------------

    async def _name_server(self, code: RequestCode) -> tuple[RemotingCommand, str]:
        answer, address = await self._instance.ask_name_server(code)
        if answer.code != ResponseCode.SUCCESS:
            answer = await self._instance.ask(address, code)
        return answer, address

    async def _expect_group(self, group: str) -> None:
        known = await self.groups()
        if group not in known:
            near = difflib.get_close_matches(group, known, n=1)
            raise GroupNotFoundError(group, *near)

    async def _masters(self, brokers: Iterable[str] | None) -> list[str]:
        if brokers is not None:
            return list(brokers)
        found = [
            entry.addresses[MASTER_ID]
            for entry in await self.clusters()
            if MASTER_ID in entry.addresses
        ]
        if not found:
            raise NoRouteError("clusters", "no broker is registered")
        return found

    async def _masters_of(self, topic: str) -> list[str]:
        """The masters of a topic; all of them where the topic is not known."""
        route = await self._instance.fetch_route(topic)
        return _masters(route) if route is not None else await self._masters(None)


_TOPIC_OFFSET = ("minOffset", "maxOffset", "lastUpdateTimestamp")
_OFFSET_WRAPPER = ("brokerOffset", "consumerOffset", "lastTimestamp")


def _masters(route: TopicRoute) -> list[str]:
    return [by_id[MASTER_ID] for by_id in route.brokers.values() if MASTER_ID in by_id]


def _object(answer: RemotingCommand, address: str) -> dict[str, Any]:
    try:
        return parse_object(answer.body)
    except ValueError as error:
        raise BadAnswerError(address, str(error)) from error


def _by_queue(table: object, address: str) -> list[tuple[MessageQueue, Any]]:
    """The entries of a JSON object whose keys are queues."""
    found = []
    try:
        for key, value in dict(table or {}).items():  # type: ignore[call-overload]
            queue = parse_java_json(key)
            name = MessageQueue(
                str(queue["topic"]), str(queue["brokerName"]), int(queue["queueId"])
            )
            found.append((name, value))
    except (ValueError, TypeError, KeyError) as error:
        raise BadAnswerError(address, f"a table of queues: {error}") from error
    return found


def _number(entry: object, name: str, address: str) -> int:
    value = entry.get(name, 0) if isinstance(entry, Mapping) else None
    if type(value) is not int:
        raise BadAnswerError(address, f"{name}={value!r} is no number")
    return value
