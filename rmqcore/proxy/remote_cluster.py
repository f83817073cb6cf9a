"""`RemoteCluster`: the brokers that name servers know, Java's included, asked over the network."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from rmqcore.chance import token_hex
from rmqcore.proxy.callers import Caller
from rmqcore.proxy.calls import Call
from rmqcore.proxy.cluster import (
    TEMPLATE_TOPIC,
    BrokerQueues,
    GroupView,
    TopicView,
    clock_of,
    group_view,
    json_object,
    message_type_of,
    queues_of,
)
from rmqcore.proxy.codes import Code, RefusedError, expect_success
from rmqcore.proxy.kept_views import KeptViews
from rmqcore.proxy.name_cache import NameCache
from rmqcore.proxy.named_producers import NamedProducers
from rmqcore.remoting import (
    Account,
    ClientSettings,
    Connection,
    RemotingClient,
    RemotingCommand,
    RemotingConnectError,
    RemotingError,
    RemotingTimeoutError,
    RequestCode,
    RequestRefusedError,
    ResponseCode,
    Tls,
    admin_of,
)
from rmqcore.remoting.codes import MASTER_ID
from rmqcore.world import REAL, World

logger = logging.getLogger(__name__)

#: A route, and what is known of a group, counts for this long, then it is asked again.
_ROUTE_KEPT_S: Final = 30.0
_GROUP_KEPT_S: Final = 5.0
#: A broker that takes nothing, such as one whose disk is full, is looked for elsewhere this often.
_LOOKED_FOR_EVERY_S: Final = 1.0
#: A broker has gone for good that no name server has named for so long, and that has answered
#: nothing, where they were asked at least as often as the second says.
_GONE_AFTER_S: Final = 600.0
_MISSED_EVERY_S: Final = 60.0
_NO_BROKER: Final = "the name servers know no broker"
#: A broker tells so of a topic or a group; one that is busy, say, tells nothing of it. One that is
#: not to tell a proxy whose accounts have no administrator never will.
_TELLING: Final = (
    ResponseCode.SUCCESS,
    ResponseCode.NO_PERMISSION,
    ResponseCode.TOPIC_NOT_EXIST,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
)


class RemoteCluster(KeptViews):
    """Brokers elsewhere.

    Args:
        namesrv: addresses of name servers, ``host:port``, separated by ``;``.
        accounts: who is served, by access key. Each request to a broker is signed with the account
            of the caller, so brokers see who asks; the proxy's own requests with the first
            administrator's. None signs nothing.
        tls: how brokers and name servers are called.
        world: its clocks.
    """

    def __init__(
        self,
        namesrv: str,
        accounts: Mapping[str, Account] | None = None,
        tls: Tls | None = None,
        *,
        world: World = REAL,
    ) -> None:
        super().__init__(_ROUTE_KEPT_S, _GROUP_KEPT_S, world)
        self._servers = [each.strip() for each in namesrv.split(";") if each.strip()]
        self._own = admin_of(accounts or {})
        self._client_id = f"rmqcore-grpc-{token_hex(4)}"
        self._client = RemotingClient(settings=ClientSettings(tls=tls.client if tls else None))
        self._client.register(RequestCode.CHECK_TRANSACTION_STATE, self._question)
        self._addresses: dict[str, str] = {}
        #: brokers that are in the route of a topic that was asked for
        self._routed: set[str] = set()
        #: whether name servers have said which brokers there are
        self._asked_for_all = False
        #: by broker, the producers that it was told of
        self._producers: dict[str, NamedProducers] = {}
        #: of which release each address is, as its last answer says
        self._versions: dict[str, int] = {}
        self._clock_ms, self._monotonic_s = world.clock_ms, world.monotonic_s
        #: by address, what its clock has shown last, and when, by the monotonic one
        self._clocks: dict[str, tuple[int, float]] = {}
        #: by name, brokers that are being asked for their clock
        self._clocks_asked: dict[str, asyncio.Task[None]] = {}
        #: by address, from when on it is asked anew where a broker is
        self._looked_for: dict[str, float] = {}
        #: held by who looks for brokers that are not known, and from when on the next one does
        self._looking: asyncio.Lock = asyncio.Lock()
        self._look_from_s = -math.inf
        #: the masters that name servers have named last
        self._masters: Mapping[str, str] = {}
        #: by name, since when name servers do not name a broker, and when they were asked last
        self._missing: dict[str, tuple[float, float]] = {}
        #: topics that were looked up anew a moment ago, as a client knows a broker of theirs
        self._anew: NameCache[bool] = NameCache(_LOOKED_FOR_EVERY_S, world.monotonic_s)
        self._anew_now: dict[str, asyncio.Task[TopicView | None]] = {}

    async def stop(self) -> None:
        """Close the connections to brokers and name servers."""
        await self._client.close()

    def ask(
        self,
        broker_name: str,
        request: RemotingCommand,
        caller: Caller | None,
        *,
        call: Call | None = None,
        timeout_ms: float = 3000,
        since: int = 0,
    ) -> Awaitable[RemotingCommand]:
        """See `Cluster.ask`."""
        address = self._addresses.get(broker_name)
        if address is None:
            return self._ask_unknown(broker_name, request, caller, timeout_ms, since)
        account = self._own if caller is None else caller.account
        if since and self._versions.get(address, -1) < since:
            return self._invoke_since(since, address, request, account, timeout_ms)
        return self._invoke(address, request, account, timeout_ms)

    def clock_ms(self, broker_name: str) -> int | None:
        """See `Cluster`: no later than it is there, as what it says is on its way."""
        seen = self._clocks.get(self._addresses.get(broker_name, ""))
        if seen is None:
            return None
        shown_ms, at_s = seen
        return shown_ms + int((self._monotonic_s() - at_s) * 1000)

    async def ask_clock_ms(self, broker_name: str) -> int:
        """See `Cluster`; who asks while the broker is being asked waits for the same answer."""
        asked = self._clocks_asked.get(broker_name)
        if asked is None:
            asked = asyncio.get_running_loop().create_task(self._see_clock(broker_name))
            self._clocks_asked[broker_name] = asked
            asked.add_done_callback(lambda _: self._clocks_asked.pop(broker_name))
        # who asks may go, and others wait for the same
        await asyncio.shield(asked)
        now_ms = self.clock_ms(broker_name)
        return self._clock_ms() if now_ms is None else now_ms

    async def _see_clock(self, broker_name: str) -> None:
        """Note what the clock of a broker shows, which it says to the second (28).

        Raises:
            RefusedError: there is no such broker, or it does not answer.
        """
        answer = await self._ask_as_own(broker_name, RequestCode.GET_BROKER_RUNTIME_INFO, {})
        if answer.code not in _TELLING:
            return
        now_ms = clock_of(json_object(answer.body)) if answer.code == ResponseCode.SUCCESS else None
        shown_ms = self._clock_ms() if now_ms is None else now_ms
        self._clocks[self._addresses[broker_name]] = shown_ms, self._monotonic_s()

    async def _ask_unknown(
        self,
        broker_name: str,
        request: RemotingCommand,
        caller: Caller | None,
        timeout_ms: float,
        since: int,
    ) -> RemotingCommand:
        """Ask a broker that has to be looked up: a client may know it for longer than this proxy.

        Raises:
            RefusedError: name servers know none of its name, or it does not answer.
        """
        await self._look_for(lambda: broker_name in self._addresses)
        if broker_name not in self._addresses:
            raise _not_known(broker_name)
        return await self.ask(broker_name, request, caller, timeout_ms=timeout_ms, since=since)

    async def _look_for(self, is_found: Callable[[], bool]) -> None:
        """Look for brokers where one is not found, and nobody has looked a moment ago.

        Raises:
            RefusedError: no name server answers.
        """
        async with self._looking:
            if not is_found() and self._monotonic_s() >= self._look_from_s:
                try:
                    await self._note_all()
                finally:
                    self._look_from_s = self._monotonic_s() + _LOOKED_FOR_EVERY_S

    async def _invoke_since(
        self,
        since: int,
        address: str,
        request: RemotingCommand,
        account: Account | None,
        timeout_ms: float,
    ) -> RemotingCommand:
        """Ask an address that may be too old, or that no one has asked yet.

        Raises:
            RefusedError: it is of an older release, or does not answer.
        """
        # whatever it answers, it says of which release it is
        command = RemotingCommand(RequestCode.GET_TOPIC_CONFIG, {"topic": TEMPLATE_TOPIC})
        version = (await self._invoke(address, command, self._own, timeout_ms)).version
        if version < since:
            reason = f"the broker {address} is of an older RocketMQ, which knows no such message"
            raise RefusedError(Code.VERSION_UNSUPPORTED, reason)
        return await self._invoke(address, request, account, timeout_ms)

    async def _invoke(
        self, address: str, request: RemotingCommand, account: Account | None, timeout_ms: float
    ) -> RemotingCommand:
        """Ask an address.

        Raises:
            RefusedError: it does not answer.
        """
        if account is not None:
            account.signer.sign(request)
        try:
            answer = await self._client.invoke(address, request, timeout_ms)
        except RemotingTimeoutError as error:
            raise RefusedError(Code.PROXY_TIMEOUT, str(error)) from error
        except RemotingError as error:
            if isinstance(error, RemotingConnectError):
                self._forget(address)
            raise RefusedError(Code.INTERNAL_SERVER_ERROR, str(error)) from error
        self._versions[address] = answer.version
        if self._missing:
            self._note_here(name for name, at in self._addresses.items() if at == address)
        if request.code == RequestCode.POP_MESSAGE and answer.code == ResponseCode.SUCCESS:
            with suppress(RequestRefusedError):
                # what is no number is refused by who reads the rest of the answer
                self._clocks[address] = answer.number("popTime"), self._monotonic_s()
        if answer.code == ResponseCode.SERVICE_NOT_AVAILABLE:
            # so a slave answers that was the master
            self._forget(address)
        return answer

    def _forget(self, address: str) -> None:
        """Ask anew where the topics of a broker are that takes nothing: it may have moved."""
        self._versions.pop(address, None)
        now_s = self._monotonic_s()
        if now_s < self._looked_for.get(address, now_s):
            return
        waiting = {known: at_s for known, at_s in self._looked_for.items() if now_s < at_s}
        self._looked_for = waiting | {address: now_s + _LOOKED_FOR_EVERY_S}
        gone = {name for name, known in self._addresses.items() if known == address}
        self._topics.outdate_all(
            lambda topic: any(broker.broker_name in gone for broker in topic.brokers)
        )

    # ---- topics and groups

    async def topic_on(self, name: str, broker_name: str) -> TopicView | None:
        """See `Cluster.topic_on`: a broker that was away is back sooner than topics are asked."""
        view = await self.topic(name)
        if view is None or broker_name == "" or broker_name in view.to_read:
            return view
        looking = self._anew_now.get(name)
        if looking is None and self._anew.get(name) is None:
            self._anew.put(name, True)
            looking = asyncio.get_running_loop().create_task(self._look_up(name))
            self._anew_now[name] = looking
            looking.add_done_callback(lambda _: self._anew_now.pop(name))
        if looking is not None:
            # who asks may go, and others wait for the same
            view = await asyncio.shield(looking)
        if view is not None and broker_name not in view.to_read:
            await self._look_for(lambda: False)
            if broker_name not in self._masters:
                raise _not_known(broker_name)
        return view

    async def _look_up(self, name: str) -> TopicView | None:
        try:
            route = await self._route(name)
        except RefusedError as error:
            known = self._topics.last(name)
            if known is None:
                raise
            logger.warning(
                "no name server answers; topic %s is taken to be as it was: %s", name, error
            )
            return self._topics.put(name, known)
        if route is None:
            told = await self._as_told(name)
            if told is None:
                self._topics.forget(name)
                return None
            return self._topics.put(name, told)
        brokers = self._brokers_of(route)
        if not brokers:
            # a slave that takes a master's place is looked for at once
            reason = f"the masters of the brokers of topic {name} are away"
            raise RefusedError(Code.INTERNAL_SERVER_ERROR, reason)
        view = TopicView(name, await self._message_type(name, brokers), brokers)
        return self._topics.put(name, view)

    async def _as_told(self, name: str) -> TopicView | None:
        """A topic as the brokers have it that had it last; None where none of them has it.

        A name server that was just started may not know them yet. While one is away its topics are
        not made anew on others, where messages in order would come to other queues, and the next
        sender would say what the topic takes.

        Raises:
            RefusedError: one is away.
        """
        known, found = self._topics.last(name), []
        for broker in known.brokers if known is not None else ():
            where, code = broker.broker_name, RequestCode.GET_TOPIC_CONFIG
            try:
                answer = await self._ask_as_own(where, code, {"topic": name})
            except RefusedError:
                await self._look_for(lambda: False)
                if where in self._addresses:
                    raise
                # it has gone for good
                continue
            if answer.code not in _TELLING:
                expect_success(answer)
            elif answer.code == ResponseCode.SUCCESS:
                config = json_object(answer.body)
                found.append((queues_of(where, config), message_type_of(config)))
        message_type = next((said for _, said in found if said), "")
        return TopicView(name, message_type, tuple(each for each, _ in found)) if found else None

    async def topic_to_be(self, name: str) -> TopicView | None:
        """See `Cluster`.

        Raises:
            RefusedError: no name server answers, or knows a broker: the topic may be one of those.
        """
        view = await super().topic_to_be(name)
        if view is None:
            await self._look_for(lambda: False)
            if not self._masters:
                raise RefusedError(Code.INTERNAL_SERVER_ERROR, _NO_BROKER)
        return view

    async def _route(self, name: str) -> Mapping[str, Any] | None:
        """The route of a topic (105); None when there is none.

        Raises:
            RefusedError: no name server answers.
        """
        answer = await self._ask_name_server(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": name})
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        return json_object(expect_success(answer).body)

    async def _ask_name_server(self, code: int, fields: dict[str, str]) -> RemotingCommand:
        """What the first name server says that answers.

        Raises:
            RefusedError: none does.
        """
        last = RefusedError(Code.INTERNAL_SERVER_ERROR, "no name server is named")
        for address in list(self._servers):
            try:
                return await self._invoke(address, RemotingCommand(code, fields), self._own, 3000)
            except RefusedError as error:
                last = error
                # the one that answers is asked first from now on
                self._servers.append(self._servers.pop(0))
        raise last

    async def _names(self) -> list[str]:
        """The brokers that are known: all that there were when name servers were asked first.

        Those of the topics that clients use are the first: others may be of another cluster, which
        knows nothing of their groups.

        Raises:
            RefusedError: none is known, and no name server says which there are.
        """
        if not (self._asked_for_all and self._addresses):
            try:
                await self._note_all()
            except RefusedError:
                if not self._addresses:
                    raise
            else:
                self._asked_for_all = bool(self._addresses)
        return sorted(self._addresses, key=lambda name: name not in self._routed)

    async def _note_all(self) -> None:
        """Note where the masters of all brokers are (106).

        Raises:
            RefusedError: no name server answers.
        """
        answer = await self._ask_name_server(RequestCode.GET_BROKER_CLUSTER_INFO, {})
        brokers = json_object(expect_success(answer).body).get("brokerAddrTable")
        self._masters = self._note_masters(
            list(brokers.values()) if isinstance(brokers, dict) else []
        )
        self._let_go()

    def _let_go(self) -> None:
        """Let brokers go that have gone for good: what they had may be made on others."""
        now_s = self._monotonic_s()
        for name in set(self._addresses).difference(self._masters):
            since_s, last_s = self._missing.get(name, (now_s, now_s))
            if now_s - last_s > _MISSED_EVERY_S:
                since_s = now_s
            self._missing[name] = since_s, now_s
            if now_s - since_s >= _GONE_AFTER_S:
                logger.warning("broker %s has gone for good", name)
                address = self._addresses.pop(name)
                self._routed.discard(name)
                for known in (self._missing, self._producers):
                    known.pop(name, None)
                for told in (self._versions, self._clocks):
                    told.pop(address, None)

    def _note_here(self, names: Iterable[str]) -> None:
        for name in list(names):
            self._missing.pop(name, None)

    def _brokers_of(self, route: Mapping[str, Any]) -> tuple[BrokerQueues, ...]:
        """The brokers of a route that have a master; their addresses are noted."""
        masters = self._note_masters(route.get("brokerDatas"))
        self._routed.update(masters)
        return tuple(
            queues_of(name, entry)
            for entry in _objects(route.get("queueDatas"))
            if (name := str(entry.get("brokerName", ""))) in masters
        )

    def _note_masters(self, brokers: object) -> dict[str, str]:
        """Note where the masters of brokers are; these addresses, by name."""
        masters = {}
        for entry in _objects(brokers):
            addresses = entry.get("brokerAddrs")
            address = addresses.get(str(MASTER_ID)) if isinstance(addresses, dict) else None
            if isinstance(address, str):
                masters[str(entry.get("brokerName", ""))] = address
        self._addresses |= masters
        self._note_here(masters)
        return masters

    async def _message_type(self, name: str, brokers: Sequence[BrokerQueues]) -> str:
        """What a topic takes, as one of its brokers says; empty of one that does not know.

        Raises:
            RefusedError: none tells, and none has told before.
        """
        having = {each.broker_name for each in brokers}
        # those that have told nothing last are the last
        names = [each for each in self._addresses if each in having]
        try:
            answer = await self._ask_any(names, RequestCode.GET_TOPIC_CONFIG, {"topic": name})
        except RefusedError:
            known = self._topics.last(name)
            if known is None:
                raise
            return known.message_type
        if answer.code != ResponseCode.SUCCESS:
            return ""
        return message_type_of(json_object(answer.body))

    def _seen(self) -> Collection[str]:
        return list(self._addresses)

    async def _ask_as_own(
        self, broker_name: str, code: int, fields: dict[str, str]
    ) -> RemotingCommand:
        return await self.ask(broker_name, RemotingCommand(code, fields), None)

    async def _ask_any(
        self, broker_names: Sequence[str], code: int, fields: dict[str, str]
    ) -> RemotingCommand:
        """Ask brokers one after the other, until one tells.

        Args:
            broker_names: at least one.
            code: of the request.
            fields: its header.

        Raises:
            RefusedError: none does.
        """
        for name in broker_names:
            try:
                answer = await self._ask_as_own(name, code, fields)
                return answer if answer.code in _TELLING else expect_success(answer)
            except RefusedError as error:
                last = error
                if name in self._addresses:
                    # it is asked last from now on
                    self._addresses[name] = self._addresses.pop(name)
        raise last

    async def _group_of(self, name: str, broker_names: Sequence[str]) -> GroupView:
        """A group that no broker knows yet is as brokers make it.

        Raises:
            RefusedError: no broker tells: it may be an ordered one.
        """
        known = await self._names()
        # those that have told nothing last are the last
        names = [each for each in known if each in broker_names] if broker_names else known
        return await self._group_on(names, name)

    async def _group_on(self, names: Sequence[str], name: str) -> GroupView:
        if not names:
            raise RefusedError(Code.INTERNAL_SERVER_ERROR, _NO_BROKER)
        code = RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG
        answer = await self._ask_any(names, code, {"group": name})
        if answer.code == ResponseCode.SUCCESS and answer.body:
            return group_view(json_object(answer.body))
        return GroupView()

    async def _ordered_elsewhere(self, name: str, but: Sequence[str]) -> GroupView | None:
        with suppress(RefusedError):
            others = [each for each in await self._names() if each not in but]
            view = await self._group_on(others if but else (), name)
            return view if view.ordered else None
        return None

    # ---- transactions

    async def register_producers(self, groups: Sequence[str]) -> None:
        """See `Cluster`."""
        if groups:
            try:
                await self._names()
            except RefusedError as error:
                logger.info("which brokers there are is not known: %s", error)
        if self._missing:
            with suppress(RefusedError):
                await self._look_for(lambda: False)
        for name in self._addresses:
            if name not in self._producers:
                self._producers[name] = self._new_producers(name)
        await asyncio.gather(*(each.name(groups) for each in self._producers.values()))

    def _new_producers(self, broker_name: str) -> NamedProducers:
        return NamedProducers(self._client_id, lambda request: self.ask(broker_name, request, None))

    def _question(self, connection: Connection, request: RemotingCommand) -> None:
        if self._asked is None:
            return
        named = request.ext_fields.get("bname")
        if named is None:
            address = connection.remote_address
            named = next((k for k, v in self._addresses.items() if v == address), None)
        if named is not None:
            self._asked(named, request)


def _not_known(broker_name: str) -> RefusedError:
    reason = f"broker {broker_name} is not known to the name servers"
    return RefusedError(Code.INTERNAL_SERVER_ERROR, reason)


def _objects(value: object) -> list[dict[str, Any]]:
    """The objects of a list; what is none is passed over."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
