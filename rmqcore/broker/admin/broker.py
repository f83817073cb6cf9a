"""Administration of the broker itself: settings, statistics, housekeeping; and of its clients.

Source: RocketMQ broker/processor/AdminBrokerProcessor.java.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from rmqcore.broker.state.bodies import java_body
from rmqcore.broker.state.broker_state import BrokerState
from rmqcore.broker.state.budgets import SETTINGS_SIZE_MAX, BudgetExceededError
from rmqcore.broker.state.clients import Client
from rmqcore.broker.state.settings import is_secret
from rmqcore.broker.state.subscription import Subscription
from rmqcore.config import to_broker_conf
from rmqcore.errors import ConfigError
from rmqcore.files.consume_queue import UNIT
from rmqcore.java.properties import format_property, parse_properties
from rmqcore.remoting import (
    Connection,
    RemotingCommand,
    RemotingTimeoutError,
    RequestCode,
    RequestRefusedError,
    ResponseCode,
    failure,
    needs,
    success,
)
from rmqcore.remoting.acl import unsigned
from rmqcore.remoting.errors import RemotingClosedError
from rmqcore.remoting.json_body import read_object
from rmqcore.remoting.serves import serves

_CLIENT_TIMEOUT_MS: Final = 10_000
_UNITS_MAX: Final = 1000
#: These settings mean nothing here, but ``mqadmin exportConfigs`` of 4.9 fails without them.
_OF_OTHERS: Final = {"filterServerNums": "0", "traceOn": "true", "useTLS": "false"}


class AdminBroker:
    """Changes settings, cleans up, says what was counted, and asks clients on behalf of others.

    Args:
        state: the broker's.
        change: applies new settings, or raises ConfigError and applies none.
    """

    def __init__(self, state: BrokerState, change: Callable[[Mapping[str, str]], None]) -> None:
        self._store, self._config = state.store, state.config
        self._topics, self._consumers = state.topics, state.consumers
        self._rates = state.rates
        self._change = change

    # ---- settings

    @serves(RequestCode.UPDATE_BROKER_CONFIG, needs=needs.ADMIN)
    def update(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Change settings that may change while the broker runs: all of them, or none.

        Raises:
            BudgetExceededError: the body is too large.
        """
        if len(request.body) > SETTINGS_SIZE_MAX:
            raise BudgetExceededError("bytes of settings", SETTINGS_SIZE_MAX)
        try:
            properties = parse_properties(bytes(request.body).decode())
            self._change(properties)
        except UnicodeDecodeError:
            return failure(ResponseCode.SYSTEM_ERROR, "the body is no text")
        except ConfigError as error:
            return failure(ResponseCode.NO_PERMISSION, str(error))
        return success()

    @serves(RequestCode.GET_BROKER_CONFIG, needs=needs.ADMIN)
    def get(self, _: Connection, __: RemotingCommand) -> RemotingCommand:
        """The settings, as a properties text; secrets are left out."""
        store = to_broker_conf(self._store.config, path=self._store.path.resolve(), every=True)
        lines = {**_OF_OTHERS, **parse_properties(store)}
        lines.update(self._config().as_properties())
        told = [name for name in sorted(lines) if not is_secret(name)]
        text = "".join(format_property(name, lines[name]) + "\n" for name in told)
        version = java_body(self._topics.table.data_version.to_java()).decode()
        return success({"version": version}, text.encode())

    @serves(RequestCode.CHECK_CLIENT_CONFIG, needs=needs.check_expression)
    def check_client(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Tell a consumer whether its expression can be used."""
        fields = read_object(request).get("subscriptionData")
        try:
            wanted = Subscription.from_java(fields if isinstance(fields, dict) else {})
        except ValueError as error:
            return failure(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error))
        wanted.check_allowed(self._config())
        return success()

    # ---- housekeeping

    @serves(
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
        RequestCode.CLEAN_UNUSED_TOPIC,
        RequestCode.DELETE_EXPIRED_COMMITLOG,
        needs=needs.ADMIN,
    )
    async def clean(self, _: Connection, __: RemotingCommand) -> RemotingCommand:
        """Delete now what retention would delete, whatever the hour."""
        await asyncio.to_thread(self._store.delete_expired_files)
        return success()

    @serves(RequestCode.VIEW_BROKER_STATS_DATA, needs=needs.ADMIN)
    def statistics(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Sums and rates of one topic, of one group at one topic, or of the broker."""
        name, key = request.text("statsName"), request.text("statsKey")
        told = self._rates.of(name, key)
        if told is not None:
            return success(body=java_body(told))
        return failure(ResponseCode.SYSTEM_ERROR, f"The stats <{name}> <{key}> not exist")

    @serves(RequestCode.QUERY_CONSUME_QUEUE, needs=needs.ADMIN)
    def units(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Units of a consume queue, as they are in its file."""
        topic, queue_id = request.text("topic"), request.number("queueId", bits=32)
        first, count = request.number("index"), request.number("count")
        count = max(0, min(_UNITS_MAX, count))
        least = self._store.min_queue_offset(topic, queue_id)
        most = self._store.max_queue_offset(topic, queue_id)
        if most == 0:
            return failure(ResponseCode.SYSTEM_ERROR, f"{queue_id}@{topic[:255]} is not exist!")
        raw = self._store.read_units(topic, queue_id, max(first, least), count)
        data = [
            {"eval": True, "physicOffset": offset, "physicSize": size, "tagsCode": code}
            for offset, size, code in UNIT.iter_unpack(raw)
        ]
        group = self._consumers.find(request.text("consumerGroup", ""))
        subscription = group.subscriptions.get(topic) if group else None
        body = {
            "maxQueueIndex": most,
            "minQueueIndex": least,
            "queueData": data,
            "subscriptionData": subscription.to_java() if subscription else None,
        }
        return success(body=java_body(body))

    # ---- asking clients

    def _client(self, request: RemotingCommand) -> Client:
        name, client_id = request.text("consumerGroup"), request.text("clientId")
        group = self._consumers.find(name)
        for client in group.clients.values() if group else ():
            if client.client_id == client_id:
                return client
        remark = f"The Consumer <{name}> <{client_id}> not online"
        raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, remark)

    @serves(RequestCode.GET_CONSUMER_RUNNING_INFO, needs=needs.ADMIN)
    async def running_info(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """What a consumer says of itself."""
        client = self._client(request)
        command = RemotingCommand(
            RequestCode.GET_CONSUMER_RUNNING_INFO, unsigned(request.ext_fields), request.body
        )
        return await self._forward(client, command)

    @serves(RequestCode.CONSUME_MESSAGE_DIRECTLY, needs=needs.ADMIN)
    async def consume_directly(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Let one consumer consume one message."""
        client = self._client(request)
        fields = {**unsigned(request.ext_fields), "brokerName": self._config().broker_name}
        found = self._store.message_by_id(request.text("msgId", ""))
        if found is None:
            unique_key, topic = request.text("msgId", ""), request.text("topic", "")
            hits = self._store.query_message(topic, unique_key, max_messages=1).messages
            found = hits[0] if hits else None
        if found is None:
            return failure(ResponseCode.SYSTEM_ERROR, "there is no message with this msgId")
        command = RemotingCommand(RequestCode.CONSUME_MESSAGE_DIRECTLY, fields, bytes(found.record))
        return await self._forward(client, command)

    @staticmethod
    async def _forward(client: Client, command: RemotingCommand) -> RemotingCommand:
        try:
            answer = await client.connection.invoke(command, _CLIENT_TIMEOUT_MS)
        except RemotingTimeoutError:
            remark = f"consumer <{client.client_id}> did not answer in time"
            return failure(ResponseCode.CONSUME_MSG_TIMEOUT, remark)
        except RemotingClosedError:
            remark = f"consumer <{client.client_id}> has gone"
            return failure(ResponseCode.SYSTEM_ERROR, remark)
        return RemotingCommand(answer.code, answer.ext_fields, answer.body, answer.remark)
