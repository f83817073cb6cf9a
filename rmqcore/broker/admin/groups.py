"""Administration of groups: created, deleted, who is connected, how far they are.

Source: RocketMQ broker/processor/AdminBrokerProcessor.java.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from rmqcore.broker.admin.stored_time import stored_ms
from rmqcore.broker.state.bodies import QueueKey, java_body, queue_key
from rmqcore.broker.state.broker_state import BrokerState
from rmqcore.broker.state.clients import Client
from rmqcore.broker.state.topics import queue_ids
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
from rmqcore.remoting.errors import expect_written
from rmqcore.remoting.json_body import LIST_SIZE_MAX, objects_in, read_object
from rmqcore.remoting.serves import serves


class AdminGroups:
    """Changes and lists groups, and says who is connected and how far each is."""

    def __init__(self, state: BrokerState, forget_group: Callable[[str], Awaitable[None]]) -> None:
        """Prepare to answer.

        Args:
            state: the broker's.
            forget_group: forgets what a group has consumed, on the disk, too.
        """
        self._forget_group = forget_group
        self._store, self._config = state.store, state.config
        self._topics, self._groups = state.topics, state.groups
        self._consumers, self._producers = state.consumers, state.producers

    # ---- the groups

    @serves(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, needs=needs.ADMIN)
    async def update(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Create a group, or change it."""
        await self._groups.file.expect_saved(self._put(read_object(request)))
        return success()

    @serves(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, needs=needs.ADMIN)
    async def update_several(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """As 200, for the groups in the body."""
        entries = objects_in(read_object(request, LIST_SIZE_MAX), "groupConfigList")
        await self._groups.file.expect_saved(*[self._put(fields) for fields in entries])
        return success()

    def _put(self, fields: Mapping[str, Any]) -> str:
        name = fields.get("groupName")
        if not isinstance(name, str) or not name:
            raise RequestRefusedError(ResponseCode.INVALID_PARAMETER, "groupName is missing")
        self._groups.put(name, fields)
        return name

    @serves(RequestCode.DELETE_SUBSCRIPTIONGROUP, needs=needs.ADMIN)
    async def delete(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Forget a group and, if asked for, what it has consumed."""
        name = request.text("groupName")
        self._groups.check_not_own(name)
        self._groups.remove(name)
        if request.boolean("cleanOffset") or request.boolean("removeOffset"):
            with expect_written(f"offsets of {name}"):
                await self._forget_group(name)
        await self._groups.file.expect_saved(name)
        return success()

    @serves(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, needs=needs.ADMIN)
    def list_all(self, _: Connection, __: RemotingCommand) -> RemotingCommand:
        """Every group."""
        table = self._groups.table
        groups = {name: table.get(name) for name in table.names()}
        body = {
            "dataVersion": table.data_version.to_java(),
            "forbiddenTable": table.forbidden(),
            "subscriptionGroupTable": groups,
            **table.told_begin(),
        }
        return success({"totalGroupNum": str(len(groups))}, java_body(body))

    @serves(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, needs=needs.ADMIN)
    def get(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """One group."""
        return success(body=java_body(self._groups.expect(request.text("group"))))

    @serves(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, needs=needs.ADMIN)
    async def forbid(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Forbid a topic to a group, or allow it again; without a wish tell which it is."""
        group, topic = request.text("group"), request.text("topic")
        if "readable" in request.ext_fields:
            self._groups.set_readable(group, topic, request.boolean("readable"))
            await self._groups.file.expect_saved(group)
        body = {
            "group": group,
            "readable": self._groups.table.may_read(group, topic),
            "topic": topic,
        }
        return success(body=java_body(body), remark="")

    # ---- who is connected

    @serves(RequestCode.GET_CONSUMER_CONNECTION_LIST, needs=needs.ADMIN)
    def consumers(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """The consumers of a group that are connected."""
        name = request.text("consumerGroup")
        group = self._consumers.find(name)
        if group is None:
            remark = f"the consumer group[{name}] not online"
            return failure(ResponseCode.CONSUMER_NOT_ONLINE, remark)
        body = {
            "connectionSet": _connections(group.clients.values()),
            "consumeFromWhere": group.consume_from_where,
            "consumeType": group.consume_type,
            "messageModel": group.message_model,
            "subscriptionTable": {t: s.to_java() for t, s in sorted(group.subscriptions.items())},
        }
        return success(body=java_body(body))

    @serves(RequestCode.GET_PRODUCER_CONNECTION_LIST, needs=needs.ADMIN)
    def producers(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """The producers of a group that are connected."""
        name = request.text("producerGroup")
        clients = self._producers.groups.get(name)
        if not clients:
            remark = f"the producer group[{name}] not exist"
            return failure(ResponseCode.SYSTEM_ERROR, remark)
        return success(body=java_body({"connectionSet": _connections(clients.values())}))

    @serves(RequestCode.GET_ALL_PRODUCER_INFO, needs=needs.ADMIN)
    def all_producers(self, _: Connection, __: RemotingCommand) -> RemotingCommand:
        """Every producer that is connected."""
        data = {
            name: [
                {
                    "clientId": client.client_id,
                    "language": client.language.name,
                    "lastUpdateTimestamp": client.seen_ms,
                    "remoteIP": client.connection.remote_address,
                    "version": client.version,
                }
                for client in clients.values()
            ]
            for name, clients in self._producers.groups.items()
        }
        return success(body=java_body({"data": data}))

    @serves(RequestCode.QUERY_TOPICS_BY_CONSUMER, needs=needs.ADMIN)
    def topics_of(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """The topics of which a group has consumed."""
        group = request.text("group")
        return success(body=java_body({"topicList": self._consumed_topics(group)}))

    @serves(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, needs=needs.ADMIN)
    def subscription_of(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """What a group wants of a topic."""
        group, topic = request.text("group"), request.text("topic")
        found = self._consumers.find(group)
        subscription = found.subscriptions.get(topic) if found else None
        fields = subscription.to_java() if subscription else None
        return success(body=java_body({"group": group, "subscriptionData": fields, "topic": topic}))

    # ---- how far they are

    @serves(RequestCode.GET_CONSUME_STATS, needs=needs.ADMIN)
    def progress(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """How far a group is, queue by queue."""
        group = request.text("consumerGroup")
        topic = request.text("topic", "")
        listed = [part for part in request.text("topicList", "").split(";") if part]
        wanted = [topic] if topic else listed or self._consumed_topics(group)
        table: dict[QueueKey, dict[str, object]] = {}
        online = self._consumers.find(group)
        for name in wanted:
            if online is not None and not topic and name not in online.subscriptions:
                continue
            table.update(self._progress_of(group, name))
        return success(body=java_body({"consumeTps": 0.0, "offsetTable": table}))

    def _progress_of(self, group: str, topic: str) -> dict[QueueKey, dict[str, object]]:
        config = self._topics.get(topic)
        if config is None:
            return {}
        table: dict[QueueKey, dict[str, object]] = {}
        for queue_id in queue_ids(config.read_queue_nums):
            end = self._store.max_queue_offset(topic, queue_id)
            consumed = self._store.consumer_offsets.get(topic, group, queue_id) or 0
            table[queue_key(self._config().broker_name, topic, queue_id)] = {
                "brokerOffset": end,
                "consumerOffset": consumed,
                "lastTimestamp": stored_ms(self._store, topic, queue_id, consumed - 1, 0),
                "pullOffset": consumed,
            }
        return table

    @serves(RequestCode.GET_BROKER_CONSUME_STATS, needs=needs.ADMIN)
    def all_progress(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """How far every group is; its queues in order if asked for."""
        ordered = request.boolean("isOrder")
        listed, total = [], 0
        for name in self._groups.table.names():
            entries = []
            for topic in self._consumed_topics(name):
                config = self._topics.get(topic)
                if config is None or (ordered and not config.order):
                    continue
                table = self._progress_of(name, topic)
                entries.append({"consumeTps": 0.0, "offsetTable": table})
                total += sum(
                    int(str(each["brokerOffset"])) - int(str(each["consumerOffset"]))
                    for each in table.values()
                )
            listed.append({name: entries})
        body = {
            "brokerAddr": self._config().address,
            "consumeStatsList": listed,
            "totalDiff": total,
            "totalInflightDiff": 0,
        }
        return success(body=java_body(body))

    def _consumed_topics(self, group: str) -> list[str]:
        return sorted(t for t, g in self._store.consumer_offsets.pairs() if g == group)


def _connections(clients: Any) -> list[dict[str, object]]:
    by_id: dict[str, Client] = {client.client_id: client for client in clients}
    return [by_id[each].to_java() for each in sorted(by_id)]
