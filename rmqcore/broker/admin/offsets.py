"""Administration of offsets: set back by time, copied, listed.

Source: RocketMQ broker/processor/AdminBrokerProcessor.java.
"""

from __future__ import annotations

import asyncio
from typing import Final

from rmqcore.broker.pop.order import PopOrder
from rmqcore.broker.state.bodies import QueueKey, java_body, queue_key
from rmqcore.broker.state.broker_state import BrokerState
from rmqcore.broker.state.masters_only import masters_only
from rmqcore.broker.state.topics import queue_ids
from rmqcore.java.json import parse_java_json
from rmqcore.remoting import (
    Connection,
    RemotingCommand,
    RemotingError,
    RequestCode,
    RequestRefusedError,
    ResponseCode,
    needs,
    success,
)
from rmqcore.remoting.errors import expect_written
from rmqcore.remoting.serves import serves

_CLIENT_TIMEOUT_MS: Final = 5000


class AdminOffsets:
    """Sets offsets back, copies and lists them."""

    def __init__(self, state: BrokerState, order: PopOrder) -> None:
        """Prepare to answer.

        Args:
            state: the broker's.
            order: what was handed out in order.
        """
        self._order = order
        self._store, self._config = state.store, state.config
        self._topics, self._groups = state.topics, state.groups
        self._consumers, self._offsets = state.consumers, state.offsets
        self._arrived = state.arrived

    @serves(RequestCode.GET_ALL_CONSUMER_OFFSET, needs=needs.ADMIN)
    def list_all(self, _: Connection, __: RemotingCommand) -> RemotingCommand:
        """The offsets of every group; for our slaves, which groups have to go on elsewhere."""
        # slaves send readers on, too
        told = self._offsets.resets.told()
        return success(body=self._store.consumer_offsets.told_text(told).encode())

    @serves(RequestCode.GET_ALL_DELAY_OFFSET, needs=needs.ADMIN)
    def list_delays(self, _: Connection, __: RemotingCommand) -> RemotingCommand:
        """How far the delivery of each delay level is."""
        return success(body=java_body({"offsetTable": self._store.delay_offsets()}))

    @serves(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, needs=needs.ADMIN)
    @masters_only(ResponseCode.SYSTEM_ERROR)
    async def reset(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Let a group go on at the offsets of a time; its pulls are told so, also those that wait.

        Raises:
            RequestRefusedError: there is no such topic, queue or group.
        """
        topic = self._topics.expect(request.text("topic"))
        group = request.text("group")
        self._groups.expect_for_client(group)
        timestamp_ms = request.number("timestamp", -1)
        only, given = request.number("queueId", -1, bits=32), request.number("offset", -1)
        queues = queue_ids(topic.read_queue_nums) if only < 0 else [only]
        table: dict[QueueKey, int] = {}
        targets: dict[int, int] = {}
        for queue_id in queues:
            if not 0 <= queue_id < topic.read_queue_nums:
                remark = f"topic {topic.topic_name} has no queue {queue_id}"
                raise RequestRefusedError(ResponseCode.INVALID_PARAMETER, remark)
            offset = self._target(
                topic.topic_name, queue_id, timestamp_ms, given if only >= 0 else -1
            )
            key = queue_key(self._config().broker_name, topic.topic_name, queue_id)
            table[key] = offset
            targets[queue_id] = offset
        for queue_id, offset in targets.items():
            self._offsets.commit(group, topic.topic_name, queue_id, offset)
            self._offsets.resets[group, topic.topic_name, queue_id] = offset
        try:
            with expect_written(f"offsets of {group}"):
                await asyncio.to_thread(self._store.consumer_offsets.persist)
                await asyncio.to_thread(self._offsets.resets.persist_resets)
        finally:
            # the offsets count, whatever the disk says: who waits at the end would hear of them
            # with the next message, or much later
            for queue_id in targets:
                self._arrived(topic.topic_name, queue_id)
        return success(body=java_body({"offsetTable": table}))

    def _target(self, topic: str, queue_id: int, timestamp_ms: int, given: int) -> int:
        least = self._store.min_queue_offset(topic, queue_id)
        most = self._store.max_queue_offset(topic, queue_id)
        if given >= 0:
            if not least <= given <= most:
                remark = f"Target offset {given} not in consume queue range [{least}-{most}]"
                raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, remark)
            return given
        if timestamp_ms < 0:
            return most
        return self._store.queue_offset_by_time(topic, queue_id, timestamp_ms)

    @serves(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, needs=needs.ADMIN)
    async def client_status(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """How far the clients of a group themselves say they are.

        Raises:
            RequestRefusedError: no consumer of the group is here; answers with code 206.
        """
        topic, name = request.text("topic"), request.text("group")
        wanted = request.text("clientAddr", "")
        group = self._consumers.find(name)
        if group is None:
            remark = f"No Any Consumer online in the consumer group: [{name}]"
            raise RequestRefusedError(ResponseCode.CONSUMER_NOT_ONLINE, remark)
        clients = [c for c in group.clients.values() if wanted in ("", c.client_id)]
        fields = {"topic": topic, "group": name}
        answers = await asyncio.gather(
            *(
                client.connection.invoke(
                    RemotingCommand(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, dict(fields)),
                    _CLIENT_TIMEOUT_MS,
                )
                for client in clients
            ),
            return_exceptions=True,
        )
        table: dict[str, object] = {}
        for client, answer in zip(clients, answers, strict=True):
            if isinstance(answer, RemotingError):
                continue
            if isinstance(answer, BaseException):
                raise answer
            table[client.client_id] = self._offsets_in(answer)
        return success(body=java_body({"consumerTable": table}))

    @staticmethod
    def _offsets_in(answer: RemotingCommand) -> dict[QueueKey, int]:
        """The ``messageQueueTable`` of a client's answer."""
        try:
            body = parse_java_json(bytes(answer.body).decode())
        except (UnicodeDecodeError, ValueError):
            return {}
        table = body.get("messageQueueTable") if isinstance(body, dict) else None
        offsets: dict[QueueKey, int] = {}
        if not isinstance(table, dict):
            return offsets
        for key, offset in table.items():
            try:
                queue = parse_java_json(key)
                place = queue_key(
                    str(queue["brokerName"]), str(queue["topic"]), int(queue["queueId"])
                )
                offsets[place] = int(offset)
            except (ValueError, KeyError, TypeError):
                continue
        return offsets

    @serves(RequestCode.CLONE_GROUP_OFFSET, needs=needs.ADMIN)
    async def clone(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Let a group begin where another one is."""
        source, target = request.text("srcGroup"), request.text("destGroup")
        given = request.text("topic", "")
        self._groups.expect_for_client(target)
        table = self._store.consumer_offsets
        for topic in sorted(t for t, g in table.pairs() if g == source and given in ("", t)):
            for queue_id, offset in table.queues(topic, source).items():
                self._offsets.commit(target, topic, queue_id, offset)
                self._offsets.resets.forget((target, topic, queue_id))
                # its acknowledgements would move the group on from there
                self._order.forget((topic, target, queue_id))
        with expect_written(f"offsets of {target}"):
            # first: what is known again after a kill would do so as well
            await asyncio.to_thread(self._order.persist)
            await asyncio.to_thread(table.persist)
        return success()
