"""`LocalBroker`: a broker in this process is the cluster."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final

from rmqcore.chance import token_hex
from rmqcore.proxy.callers import Caller
from rmqcore.proxy.calls import Call
from rmqcore.proxy.cluster import (
    GroupView,
    TopicView,
    group_view,
    json_object,
    message_type_of,
    queues_of,
)
from rmqcore.proxy.codes import Code, RefusedError, expect_success
from rmqcore.proxy.kept_views import KeptViews
from rmqcore.proxy.named_producers import NamedProducers, parts_of
from rmqcore.remoting import RemotingCommand, RequestCode, ResponseCode
from rmqcore.remoting.local import LocalConnection, LocalServer
from rmqcore.world import REAL, World

logger = logging.getLogger(__name__)

#: What is known of a topic or a group counts for this long, then it is asked again.
_KEPT_S: Final = 1.0


class LocalBroker(KeptViews):
    """The broker of this process, which is asked without a socket.

    Args:
        server: what answers its requests; None while it does not serve.
        name: the broker's.
        world: its clocks.
    """

    def __init__(
        self,
        server: Callable[[], LocalServer | None],
        name: Callable[[], str],
        *,
        world: World = REAL,
    ) -> None:
        super().__init__(_KEPT_S, _KEPT_S, world)
        self._server = server
        self._name = name
        self._clock_ms = world.clock_ms
        #: nobody else takes this id, by which it would be told what others have sent
        self._client_id = f"rmqcore-grpc-{token_hex(8)}"
        #: the producers that the broker was told of, in parts, each over a connection of its own
        self._own: list[NamedProducers] = []
        self._own_server: LocalServer | None = None

    def ask(
        self,
        broker_name: str,
        request: RemotingCommand,
        caller: Caller | None,
        *,
        call: Call | None = None,
        timeout_ms: float = 3000,
        since: int = 0,
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        """See `Cluster.ask`."""
        server = self._server()
        if server is None or broker_name != self._name():
            raise RefusedError(Code.INTERNAL_SERVER_ERROR, f"broker {broker_name} is not here now")
        address = caller.address if caller is not None else ""
        gone, owner = (None, None) if call is None else (lambda: call.closed, call.owner)
        connection = LocalConnection(address, gone, owner=owner)
        account = caller.account if caller is not None else None
        return server.ask(connection, request, account)

    def clock_ms(self, broker_name: str) -> int:
        """See `Cluster`; it is the same process."""
        return self._clock_ms()

    def _seen(self) -> Collection[str]:
        return (self._name(),)

    async def ask_clock_ms(self, broker_name: str) -> int:
        """See `Cluster`."""
        return self._clock_ms()

    async def topic_on(self, name: str, broker_name: str) -> TopicView | None:
        """See `Cluster.topic_on`; there is one broker."""
        return await self.topic(name)

    async def _ask_as_own(
        self, broker_name: str, code: int, fields: dict[str, str]
    ) -> RemotingCommand:
        answer = self.ask(broker_name, RemotingCommand(code, fields), None)
        return await answer if inspect.isawaitable(answer) else answer

    async def _look_up(self, name: str) -> TopicView | None:
        answer = await self._ask_as_own(self._name(), RequestCode.GET_TOPIC_CONFIG, {"topic": name})
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            self._topics.forget(name)
            return None
        config = json_object(expect_success(answer).body)
        queues = queues_of(self._name(), config)
        return self._topics.put(name, TopicView(name, message_type_of(config), (queues,)))

    async def _ordered_elsewhere(self, name: str, but: Sequence[str]) -> GroupView | None:
        return None

    async def _group_of(self, name: str, _: Sequence[str]) -> GroupView:
        code = RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG
        answer = await self._ask_as_own(self._name(), code, {"group": name})
        return group_view(json_object(expect_success(answer).body))

    async def register_producers(self, groups: Sequence[str]) -> None:
        """See `Cluster`."""
        server = self._server()
        if server is None:
            return
        if server is not self._own_server:
            self._own_server, self._own = server, []
        # what is left over has nothing to name any more
        parts = parts_of(groups)
        for number in range(max(len(parts), len(self._own))):
            if number == len(self._own):
                self._own.append(self._new_producers(server))
            await self._own[number].name(parts[number] if number < len(parts) else ())
            # the broker answers on this event loop
            await asyncio.sleep(0)

    def _new_producers(self, server: LocalServer) -> NamedProducers:
        connection = LocalConnection("", None, self._question)

        def ask(request: RemotingCommand) -> RemotingCommand | Awaitable[RemotingCommand]:
            nonlocal connection
            if connection.closed:
                # for too long the broker had heard nothing
                connection = LocalConnection("", None, self._question)
            return server.ask(connection, request)

        return NamedProducers(self._client_id, ask)

    def _question(self, request: RemotingCommand) -> None:
        if self._asked is not None and request.code == RequestCode.CHECK_TRANSACTION_STATE:
            self._asked(self._name(), request)
