"""The handlers of the name server's requests: header and body in, answer out.

All but four are plain functions: a key is written to the disk, and a large registration is read,
in another thread. What the same broker says meanwhile waits for that.

Source: DefaultRequestProcessor, ClientRequestProcessor.
"""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any
from weakref import WeakValueDictionary

from rmqcore.errors import ConfigError
from rmqcore.java.json import format_compact_java_json
from rmqcore.java.properties import parse_properties
from rmqcore.namesrv.kv_config import ORDER_TOPIC_CONFIG, KVConfig
from rmqcore.namesrv.namesrv_config import NamesrvConfig
from rmqcore.namesrv.register_body import (
    is_larger,
    parse_object,
    read_data_version,
    read_queue_data,
    read_register_body,
)
from rmqcore.namesrv.route_data import BrokerRegistration, BrokerTopics
from rmqcore.namesrv.route_table import RouteTable
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
from rmqcore.remoting.codes import VERSION_4_9_4
from rmqcore.remoting.errors import expect_written
from rmqcore.remoting.serves import serves

#: A registration that has more bytes, unpacked, is read in another thread.
READ_AT_ONCE = 64 * 1024
#: Names of clusters, brokers, addresses and topics have at most this many characters.
NAME_SIZE_MAX = 255
#: The body of any other request of a broker has at most this many bytes.
BODY_SIZE_MAX = READ_AT_ONCE
#: When requests of this many bytes wait for another thread, the next one is refused; each counts
#: `_REQUEST_SIZE` beside its body.
HELD_SIZE_MAX = 64 * 1024 * 1024
_REQUEST_SIZE = 4096
#: A text of settings has at most this many bytes.
CONFIG_SIZE_MAX = 64 * 1024
_FAQ = "\nSee http://rocketmq.apache.org/docs/faq/ for further details."


class NamesrvRequests:
    """The processors of a name server over its tables."""

    def __init__(self, routes: RouteTable, kv: KVConfig, clock: Callable[[], float]) -> None:
        self._routes = routes
        self._kv = kv
        self._clock = clock
        self._started_s = clock()
        #: locked while a key is written: changes are saved one after the other
        self._keeping = asyncio.Lock()
        #: bytes of what waits for another thread
        self._held_size = 0
        #: locked while a large registration is read
        self._reading = asyncio.Lock()
        #: by cluster and address, of the brokers of which a registration is read: what they say
        #: next waits for it. Kept by those who wait.
        self._turns: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    @property
    def config(self) -> NamesrvConfig:
        """The settings in force."""
        return self._routes.config

    # ---- of brokers -------------------------------------------------------------------------

    @serves(RequestCode.REGISTER_BROKER, needs=needs.ADMIN)
    def register_broker(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        """Take a broker's topics; tell it its master and the order configuration.

        Args:
            connection: of the broker; when it closes, the broker is forgotten.
            request: header and body of 103.

        Raises:
            RequestRefusedError: the body is none, or more would be kept than there is room for.
        """
        compressed = request.boolean("compressed")
        key = request.text("clusterName"), request.text("brokerAddr")
        turn = self._turns.get(key)
        if turn is None and is_larger(request.body, READ_AT_ONCE, compressed=compressed):
            turn = self._turns[key] = asyncio.Lock()
        if turn is not None:
            return self._register_in_turn(connection, request, turn)
        return self._register(connection, request, _content(request))

    async def _register_in_turn(
        self, connection: Connection, request: RemotingCommand, turn: asyncio.Lock
    ) -> RemotingCommand:
        """What takes its time to be read is read in another thread, one behind the other."""
        with self._within_limit(len(request.body)):
            async with turn, self._reading:
                content = await asyncio.to_thread(_content, request)
                if connection.closed:
                    return failure(ResponseCode.SYSTEM_ERROR, "the broker has gone meanwhile")
                return self._register(connection, request, content)

    def _register(
        self, connection: Connection, request: RemotingCommand, content: BrokerTopics
    ) -> RemotingCommand:
        crc = request.number("bodyCrc32", 0)
        if crc and crc != zlib.crc32(request.body) & 0x7FFFFFFF:
            return failure(ResponseCode.SYSTEM_ERROR, "crc32 not match")
        fields = request.ext_fields
        said = BrokerRegistration(
            cluster=_name(request, "clusterName"),
            broker_name=_name(request, "brokerName"),
            broker_addr=_name(request, "brokerAddr"),
            broker_id=_broker_id(request),
            ha_server_addr=request.text("haServerAddr")[:NAME_SIZE_MAX],
            timeout_ms=_timeout_ms(request),
            enable_acting_master=(
                request.boolean("enableActingMaster") if "enableActingMaster" in fields else None
            ),
            zone_name=fields.get("__ZONE_NAME", "")[:NAME_SIZE_MAX] or None,
            content=content,
        )
        result = self._routes.register(said, connection)
        if result is None:
            return failure(ResponseCode.SYSTEM_ERROR, "register broker failed")
        answer = success()
        if result.master_addr:
            answer.ext_fields = {
                "haServerAddr": result.ha_server_addr,
                "masterAddr": result.master_addr,
            }
        if self.config.return_order_topic_config_to_broker:
            order = self._kv.namespace(ORDER_TOPIC_CONFIG)
            if order is not None:
                answer.body = _json({"table": order})
        return answer

    @serves(RequestCode.UNREGISTER_BROKER, needs=needs.ADMIN)
    def unregister_broker(
        self, _: Connection, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        """Forget a broker's address."""
        _broker_id(request)
        place = request.text("clusterName"), request.text("brokerAddr")
        turn = self._turns.get(place)
        if turn is not None:
            return self._unregister_in_turn(*place, request.text("brokerName"), turn)
        self._routes.unregister(*place, request.text("brokerName"))
        return success()

    async def _unregister_in_turn(
        self, cluster: str, broker_addr: str, broker_name: str, turn: asyncio.Lock
    ) -> RemotingCommand:
        with self._within_limit(0):
            async with turn:
                self._routes.unregister(cluster, broker_addr, broker_name)
        return success()

    @serves(RequestCode.QUERY_DATA_VERSION, needs=needs.ADMIN)
    def query_data_version(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Tell whether a broker's topics have changed since it has told them; it is alive."""
        cluster, addr = request.text("clusterName"), request.text("brokerAddr")
        version = read_data_version(_small_object(request))
        changed = self._routes.has_changed(cluster, addr, version)
        self._routes.heard_of(cluster, addr)
        known = self._routes.data_version(cluster, addr)
        body = b"" if known is None else _json(known.to_wire())
        return success({"changed": "true" if changed else "false"}, body)

    @serves(RequestCode.BROKER_HEARTBEAT, needs=needs.ADMIN)
    def broker_heartbeat(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Note that a broker is alive."""
        self._routes.heard_of(request.text("clusterName"), request.text("brokerAddr"))
        return success()

    @serves(RequestCode.GET_BROKER_MEMBER_GROUP, needs=needs.ADMIN)
    def get_broker_member_group(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Tell a broker's addresses."""
        group = self._routes.group(request.text("clusterName"), request.text("brokerName"))
        return success(body=_json({"brokerMemberGroup": group}))

    @serves(RequestCode.REGISTER_TOPIC_IN_NAMESRV, needs=needs.ADMIN)
    def register_topic(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Add one topic's queues on brokers that are known."""
        topic = _name(request, "topic")
        queues = _small_object(request).get("queueDatas") if request.body else None
        if isinstance(queues, list):
            self._routes.add_queues(topic, [read_queue_data(each) for each in queues])
        return success()

    @contextlib.contextmanager
    def _within_limit(self, size: int) -> Iterator[None]:
        """Count what waits for its turn in another thread.

        Raises:
            RequestRefusedError: too much waits; answers with code 2, after which others try again.
        """
        if self._held_size + size > HELD_SIZE_MAX:
            remark = f"too much waits to be read and kept: {HELD_SIZE_MAX} bytes at most"
            raise RequestRefusedError(ResponseCode.SYSTEM_BUSY, remark)
        self._held_size += size + _REQUEST_SIZE
        try:
            yield
        finally:
            self._held_size -= size + _REQUEST_SIZE

    # ---- of clients -------------------------------------------------------------------------

    @serves(RequestCode.GET_ROUTEINFO_BY_TOPIC, needs=needs.any_account)
    def get_route(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Tell where a topic's queues are."""
        config = self.config
        if config.need_wait_for_service and (
            self._clock() - self._started_s < config.wait_for_service_s
        ):
            return failure(ResponseCode.SYSTEM_ERROR, "name server not ready")
        topic = request.text("topic")
        route = self._routes.route(topic)
        if route is None:
            remark = f"No topic route info in name server for the topic: {topic}{_FAQ}"
            return failure(ResponseCode.TOPIC_NOT_EXIST, remark)
        if config.order_message_enable:
            route["orderTopicConf"] = self._kv.get(ORDER_TOPIC_CONFIG, topic)
        standard = request.version >= VERSION_4_9_4 or request.boolean("acceptStandardJsonOnly")
        return success(body=_json(dict(sorted(route.items())), quote_keys=standard))

    @serves(RequestCode.GET_BROKER_CLUSTER_INFO, needs=needs.ADMIN)
    def get_clusters(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Tell all brokers and clusters."""
        return success(body=_json(self._routes.clusters()))

    @serves(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, needs=needs.ADMIN)
    def get_all_topics(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Tell all topics."""
        if not self.config.enable_all_topic_list:
            return failure(ResponseCode.SYSTEM_ERROR, "disable")
        return success(body=_json({"topicList": self._routes.topics()}))

    @serves(RequestCode.GET_TOPICS_BY_CLUSTER, needs=needs.ADMIN)
    def get_topics_by_cluster(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Tell a cluster's topics."""
        return self._topic_list(self._routes.topics_of(request.text("cluster")))

    @serves(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, needs=needs.ADMIN)
    def get_system_topics(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Tell the topics that clusters and brokers are, and a broker to ask for more."""
        topics, broker_addr = self._routes.system_topics()
        return self._topic_list(topics, broker_addr)

    @serves(RequestCode.GET_UNIT_TOPIC_LIST, needs=needs.ADMIN)
    def get_unit_topics(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Tell the topics of units."""
        return self._topic_list(self._routes.unit_topics())

    @serves(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST, needs=needs.ADMIN)
    def get_unit_sub_topics(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Tell the topics that units subscribe."""
        return self._topic_list(self._routes.unit_sub_topics())

    @serves(RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, needs=needs.ADMIN)
    def get_unit_sub_only_topics(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Tell the topics that units subscribe and that are not theirs."""
        return self._topic_list(self._routes.unit_sub_only_topics())

    def _topic_list(self, topics: list[str], broker_addr: str | None = None) -> RemotingCommand:
        if not self.config.enable_topic_list:
            return failure(ResponseCode.SYSTEM_ERROR, "disable")
        return success(body=_json({"brokerAddr": broker_addr, "topicList": topics}))

    # ---- of operators -----------------------------------------------------------------------

    @serves(RequestCode.PUT_KV_CONFIG, needs=needs.ADMIN)
    async def put_kv(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Set a key."""
        namespace, key, value = map(request.text, ("namespace", "key", "value"))
        size = len(namespace) + len(key) + len(value)
        with self._within_limit(size):
            async with self._keeping:
                with expect_written(f"the value of {key}"):
                    await asyncio.to_thread(self._kv.put, namespace, key, value)
        return success()

    @serves(RequestCode.GET_KV_CONFIG, needs=needs.ADMIN)
    def get_kv(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Tell a key's value."""
        namespace, key = request.text("namespace"), request.text("key")
        value = self._kv.get(namespace, key)
        if value is None:
            remark = f"No config item, Namespace: {namespace} Key: {key}"
            return failure(ResponseCode.QUERY_NOT_FOUND, remark)
        return success({"value": value})

    @serves(RequestCode.DELETE_KV_CONFIG, needs=needs.ADMIN)
    async def delete_kv(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Remove a key."""
        namespace, key = request.text("namespace"), request.text("key")
        with self._within_limit(len(namespace) + len(key)):
            async with self._keeping:
                with expect_written(f"the deletion of {key}"):
                    await asyncio.to_thread(self._kv.delete, namespace, key)
        return success()

    @serves(RequestCode.GET_KVLIST_BY_NAMESPACE, needs=needs.ADMIN)
    def get_kv_list(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Tell all keys and values of a namespace."""
        namespace = request.text("namespace")
        entries = self._kv.namespace(namespace)
        if entries is None:
            remark = f"No config item, Namespace: {namespace}"
            return failure(ResponseCode.QUERY_NOT_FOUND, remark)
        return success(body=_json({"table": entries}))

    @serves(RequestCode.WIPE_WRITE_PERM_OF_BROKER, needs=needs.ADMIN)
    def wipe_write_perm(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Let nobody send to a broker."""
        count = self._routes.wipe_write_perm(request.text("brokerName"))
        return success({"wipeTopicCount": str(count)})

    @serves(RequestCode.ADD_WRITE_PERM_OF_BROKER, needs=needs.ADMIN)
    def add_write_perm(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Let everybody send to a broker."""
        count = self._routes.add_write_perm(request.text("brokerName"))
        return success({"addTopicCount": str(count)})

    @serves(RequestCode.DELETE_TOPIC_IN_NAMESRV, needs=needs.ADMIN)
    def delete_topic(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Forget a topic, in one cluster or in all."""
        cluster = request.ext_fields.get("clusterName") or None
        self._routes.delete_topic(request.text("topic"), cluster)
        return success()

    @serves(RequestCode.UPDATE_NAMESRV_CONFIG, needs=needs.ADMIN)
    def update_config(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Change settings that are dynamic: none of them is a path, nothing is written."""
        if len(request.body) > CONFIG_SIZE_MAX:
            remark = f"nothing was changed: the body has to have {CONFIG_SIZE_MAX} bytes at most"
            return failure(ResponseCode.NO_PERMISSION, remark)
        try:
            changes = parse_properties(request.body.decode("utf-8", "replace"))
            self._routes.config = self.config.changed(changes)
        except ConfigError as error:
            remark = f"nothing was changed: {error.field} has to be {error.rule}"
            return failure(ResponseCode.NO_PERMISSION, remark)
        return success()

    @serves(RequestCode.GET_NAMESRV_CONFIG, needs=needs.ADMIN)
    def get_config(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Tell the settings, none of which is a path."""
        return success(body=self.config.to_properties().encode())


def _content(request: RemotingCommand) -> BrokerTopics:
    """The topics of a registration.

    Raises:
        RequestRefusedError: the body is not what a broker sends; answers with code 1.
    """
    return read_register_body(
        request.body, request.version, compressed=request.boolean("compressed")
    )


def _name(request: RemotingCommand, field: str) -> str:
    value = request.text(field)
    if not value.strip() or len(value) > NAME_SIZE_MAX:
        remark = f"the header field {field} is empty, or above {NAME_SIZE_MAX} characters"
        raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, remark)
    return value


def _small_object(request: RemotingCommand) -> dict[str, Any]:
    if len(request.body) > BODY_SIZE_MAX:
        remark = f"a body of {len(request.body)} bytes: {BODY_SIZE_MAX} at most"
        raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, remark)
    return parse_object(request.body)


def _broker_id(request: RemotingCommand) -> int:
    number = request.number("brokerId")
    if number < 0:
        raise RequestRefusedError(
            ResponseCode.SYSTEM_ERROR, "the header field brokerId has to be 0 or more"
        )
    return number


def _timeout_ms(request: RemotingCommand) -> int | None:
    if "heartbeatTimeoutMillis" not in request.ext_fields:
        return None
    timeout_ms = request.number("heartbeatTimeoutMillis")
    if timeout_ms <= 0:
        raise RequestRefusedError(
            ResponseCode.SYSTEM_ERROR, "the header field heartbeatTimeoutMillis has to be above 0"
        )
    return timeout_ms


def _json(value: object, *, quote_keys: bool = False) -> bytes:
    return format_compact_java_json(value, quote_keys=quote_keys).encode("utf-8", "replace")
