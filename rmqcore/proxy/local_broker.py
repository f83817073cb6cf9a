"""`LocalBroker`: a broker in this process is the cluster."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from rmqcore.proxy.callers import Caller
from rmqcore.proxy.calls import Call
from rmqcore.proxy.cluster import (
    TEMPLATE_TOPIC,
    GroupView,
    TopicView,
    check_may_use,
    group_view,
    json_object,
    made_after,
    message_type_of,
    new_topic_fields,
    producers_body,
    queues_of,
)
from rmqcore.proxy.codes import Code, RefusedError, expect_success
from rmqcore.proxy.kept import Kept
from rmqcore.proxy.messages import MessageType
from rmqcore.remoting import RemotingCommand, RequestCode, ResponseCode
from rmqcore.remoting.local import LocalConnection, LocalServer

logger = logging.getLogger(__name__)

_CLIENT_ID: Final = "rmqcore-grpc"
#: What is known of a topic or a group counts for this long, then it is asked again.
_KEPT_S: Final = 1.0


class LocalBroker:
    """The broker of this process, which is asked without a socket.

    Args:
        server: what answers its requests; None while it does not serve.
        name: the broker's.
    """

    def __init__(self, server: Callable[[], LocalServer | None], name: Callable[[], str]) -> None:
        self._server = server
        self._name = name
        self._topics: Kept[TopicView] = Kept(_KEPT_S)
        self._groups: Kept[GroupView] = Kept(_KEPT_S)
        self._own: LocalConnection | None = None
        self._own_server: LocalServer | None = None
        self._asked: Callable[[str, RemotingCommand], None] | None = None

    def on_question(self, asked: Callable[[str, RemotingCommand], None]) -> None:
        """See `Cluster`."""
        self._asked = asked

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
        connection = LocalConnection(address, None if call is None else lambda: call.closed)
        account = caller.account if caller is not None else None
        return server.ask(connection, request, account)

    async def _asked_self(self, code: int, fields: dict[str, str]) -> RemotingCommand:
        answer = self.ask(self._name(), RemotingCommand(code, fields), None)
        return await answer if inspect.isawaitable(answer) else answer

    def known_topic(self, name: str) -> TopicView | None:
        """See `Cluster`."""
        return self._topics.get(name)

    def known_group(self, name: str) -> GroupView | None:
        """See `Cluster`."""
        return self._groups.get(name)

    async def topic(self, name: str) -> TopicView | None:
        """See `Cluster`."""
        known = self.known_topic(name)
        return known if known is not None else await self._look_up(name)

    async def _look_up(self, name: str) -> TopicView | None:
        answer = await self._asked_self(RequestCode.GET_TOPIC_CONFIG, {"topic": name})
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            self._topics.forget(name)
            return None
        config = json_object(expect_success(answer).body)
        queues = queues_of(self._name(), config)
        return self._topics.put(name, TopicView(name, message_type_of(config), (queues,)))

    async def topic_to_be(self, name: str) -> TopicView | None:
        """See `Cluster`."""
        return made_after(await self.topic(TEMPLATE_TOPIC), name)

    async def group(self, name: str) -> GroupView:
        """See `Cluster`."""
        known = self.known_group(name)
        if known is not None:
            return known
        answer = await self._asked_self(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": name})
        return self._groups.put(name, group_view(json_object(expect_success(answer).body)))

    async def make_topic(
        self, name: str, kind: MessageType | None, caller: Caller
    ) -> TopicView | None:
        """See `Cluster.make_topic`."""
        check_may_use(name, kind, caller)
        to_be = await self.topic_to_be(name)
        if to_be is None:
            return None
        fields = new_topic_fields(name, kind, to_be.brokers[0].write_count)
        expect_success(await self._asked_self(RequestCode.UPDATE_AND_CREATE_TOPIC, fields))
        return await self._look_up(name)

    async def register_producers(self, groups: Sequence[str]) -> None:
        """See `Cluster`."""
        server = self._server()
        if server is None:
            return
        if server is not self._own_server or self._own is None:
            self._own_server, self._own = server, LocalConnection("", None, self._question)
        body = producers_body(_CLIENT_ID, groups)
        answer = server.ask(self._own, RemotingCommand(RequestCode.HEART_BEAT, {}, body))
        done = await answer if inspect.isawaitable(answer) else answer
        if done.code != ResponseCode.SUCCESS:
            logger.warning("producers are not known to the broker: %s", done.remark)

    def _question(self, request: RemotingCommand) -> None:
        if self._asked is not None and request.code == RequestCode.CHECK_TRANSACTION_STATE:
            self._asked(self._name(), request)
