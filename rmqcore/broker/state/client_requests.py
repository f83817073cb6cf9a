"""Requests of clients about themselves: heart-beats, leaving, group members."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator, Mapping
from typing import Any, Final

from rmqcore.broker.state.bodies import java_body
from rmqcore.broker.state.broker_state import BrokerState
from rmqcore.broker.state.budgets import (
    GROUPS_OF_CLIENT,
    BudgetExceededError,
    check_name,
)
from rmqcore.broker.state.clients import Client
from rmqcore.broker.state.subscription import Subscription
from rmqcore.message import RETRY_PREFIX
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
from rmqcore.remoting.json_body import objects_in, read_object
from rmqcore.remoting.permissions import account_of
from rmqcore.remoting.serves import serves
from rmqcore.remoting.turns import Turns

#: The attribute of a connection that is done when what its client asked for last is.
_LAST: Final = "client request"


class ClientRequests:
    """Heart-beats and what hangs on them. Source: ClientManageProcessor."""

    def __init__(self, state: BrokerState) -> None:
        self._topics, self._groups = state.topics, state.groups
        self._consumers, self._producers = state.consumers, state.producers
        self._world = state.world

    @serves(RequestCode.HEART_BEAT, needs=needs.heart_beat)
    def heart_beat(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        """Take in which groups a client belongs to.

        Of very many groups others are served in between.

        Args:
            connection: of the client.
            request: its body: ``clientID``, ``consumerDataSet`` and ``producerDataSet`` as JSON.

        Raises:
            RequestRefusedError: the body is none, a name is too long, or the clientID is that of
                another account's client. So does what is awaited.
            BudgetExceededError: clients would keep too much. So does what is awaited.
        """
        body = read_object(request)
        client = Client(
            connection,
            str(body.get("clientID", "")),
            request.language,
            request.version,
            self._world.monotonic_s(),
            self._world.clock_ms(),
            account_of(connection),
        )
        check_name("a clientID", client.client_id)
        return self._in_order(connection, self._register(client, body))

    def _in_order(
        self, connection: Connection, steps: Iterator[None]
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        """Work through what a client asks for, behind what it has asked for before."""
        turns, former = Turns(), connection.attributes.get(_LAST)
        if former is None:
            for _ in steps:
                if turns.is_over:
                    break
            else:
                return success()
        done = asyncio.get_running_loop().create_future()
        connection.attributes[_LAST] = done
        return self._go_on(connection, steps, turns, former, done)

    @staticmethod
    async def _go_on(
        connection: Connection,
        steps: Iterator[None],
        turns: Turns,
        former: asyncio.Future[None] | None,
        done: asyncio.Future[None],
    ) -> RemotingCommand:
        try:
            if former is not None:
                await former
            while True:
                await turns.next_entry()
                # a client that has gone meanwhile is in no group any more
                if connection.closed or next(steps, True):
                    return success()
        finally:
            done.set_result(None)
            if connection.attributes.get(_LAST) is done:
                del connection.attributes[_LAST]

    def _register(self, client: Client, body: Mapping[str, Any]) -> Iterator[None]:
        """Take the groups of a heart-beat in; others may be served behind each."""
        self._expect_own(client)
        for entry in objects_in(body, "consumerDataSet", GROUPS_OF_CLIENT):
            try:
                self._register_consumer(client, entry)
            except BudgetExceededError:
                raise
            except RequestRefusedError:
                # one group that cannot be is not the others' fault
                continue
            yield
        for entry in objects_in(body, "producerDataSet", GROUPS_OF_CLIENT):
            if group := str(entry.get("groupName", "")):
                self._expect_own(client)
                self._producers.register(group, client)
            yield

    def _expect_own(self, client: Client) -> None:
        if self._producers.is_of_another(client):
            remark = "the clientID is another account's client's"
            raise RequestRefusedError(ResponseCode.NO_PERMISSION, remark)

    def _register_consumer(self, client: Client, entry: Mapping[str, Any]) -> None:
        name = str(entry.get("groupName", ""))
        group = self._groups.find(name)
        if group is None:
            return
        self._topics.for_group(RETRY_PREFIX + name, max(1, int(group.get("retryQueueNums", 1))))
        model = str(entry.get("messageModel", "CLUSTERING"))
        wanted = []
        for fields in objects_in(entry, "subscriptionDataSet"):
            try:
                wanted.append(Subscription.from_java(fields))
            except ValueError:
                continue
        self._consumers.register(
            name,
            client,
            consume_type=str(entry.get("consumeType", "CONSUME_PASSIVELY")),
            message_model=model,
            consume_from_where=str(entry.get("consumeFromWhere", "CONSUME_FROM_LAST_OFFSET")),
            subscriptions=wanted,
            notify=model != "BROADCASTING"
            and bool(group.get("notifyConsumerIdsChangedEnable", True)),
        )

    @serves(RequestCode.UNREGISTER_CLIENT, needs=needs.leave_group)
    def unregister(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        """Let a client go; a heart-beat of before that is not done with brings it back in no group.

        Args:
            connection: of the client.
            request: header ``producerGroup`` and ``consumerGroup``; one that is missing stays.
        """
        producer, consumer = request.text("producerGroup", ""), request.text("consumerGroup", "")
        return self._in_order(connection, self._leave(connection, producer, consumer))

    def _leave(self, connection: Connection, producer: str, consumer: str) -> Iterator[None]:
        if producer:
            self._producers.unregister(producer, connection)
        if consumer:
            self._consumers.unregister(consumer, connection, notify=True)
        yield

    @serves(RequestCode.GET_CONSUMER_LIST_BY_GROUP, needs=needs.be_in_group)
    def list_consumers(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """The ids of a group's clients, by which they share the queues."""
        group = request.text("consumerGroup")
        found = self._consumers.find(group)
        if found is None:
            return failure(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {group}")
        return success(body=java_body({"consumerIdList": found.client_ids}))
