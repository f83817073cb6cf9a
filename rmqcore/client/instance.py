"""`ClientInstance`: the connections, routes and heart-beats of one producer, consumer or admin."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from collections.abc import Callable, Iterable, Mapping, Sequence

from rmqcore.arguments import text
from rmqcore.chance import token_bytes
from rmqcore.client.errors import (
    BadAnswerError,
    ClientClosedError,
    ClientForkedError,
    ClientMisusedError,
    NoRouteError,
)
from rmqcore.client.names import check_time
from rmqcore.client.route import TopicRoute, parse_route
from rmqcore.client.troubles import Troubles
from rmqcore.client.unique_id import UniqueIds
from rmqcore.errors import ArgumentError
from rmqcore.java.json import format_compact_java_json
from rmqcore.remoting import (
    AclSigner,
    ClientSettings,
    Processor,
    RemotingClient,
    RemotingCommand,
    RemotingError,
    RemotingTimeoutError,
    RequestCode,
    RequestRefusedError,
    ResponseCode,
    split_address,
)
from rmqcore.remoting.codes import MASTER_ID
from rmqcore.remoting.sockets import local_address
from rmqcore.world import REAL, World

AUTO_CREATE_TOPIC = "TBW102"
#: A topic that a client's first message creates gets at most this many queues.
_NEW_TOPIC_QUEUES = 4
#: A heart-beat is sent, and the routes are looked up, this often.
HEART_BEAT_INTERVAL_S = 30.0
#: Brokers that know nothing of this client are looked for this often.
_MEET_INTERVAL_S = 1.0
DEFAULT_TIMEOUT_MS = 3000.0
#: A broker has this long to answer a good-bye; without an answer it forgets the client by itself.
_GOOD_BYE_TIMEOUT_MS = 1000.0


class ClientInstance:
    """What producers, consumers and admins have in common.

    Source: MQClientInstance, MQClientAPIImpl.

    Attributes:
        world: its clock; time-outs and pauses are the event loop's.
        client_id: the name under which brokers know this client.
        timeout_ms: of each request, unless the caller says otherwise.
        remoting: the connections; None before `start`.
        ids: makes the ids of messages.
        routes: by topic, those that were asked for.
        on_routes: called after a route has changed.
        troubles: what fails of what goes on by itself.
    """

    def __init__(
        self,
        kind: str,
        namesrv_addr: str | Sequence[str],
        *,
        acl: AclSigner | None = None,
        tls: ssl.SSLContext | None = None,
        timeout_ms: float = DEFAULT_TIMEOUT_MS,
        beat: Callable[[], Mapping[str, object]] | None = None,
        world: World = REAL,
    ) -> None:
        """Prepare an instance; `start` uses the event loop.

        Args:
            kind: what it belongs to, for errors: producer, consumer, admin.
            namesrv_addr: addresses of the name servers, in one text with ``;`` between or several.
            acl: signs each request.
            tls: trust for TLS; None connects without.
            timeout_ms: of each request.
            beat: what the heart-beats say of this client; None sends none.
            world: its clock.

        Raises:
            ArgumentError: an address is not host:port, or the time no number.
        """
        try:
            listed = namesrv_addr.split(";") if isinstance(namesrv_addr, str) else namesrv_addr
            self.name_servers = [each.strip() for each in listed if each.strip()]
            hosts = [split_address(address) for address in self.name_servers]
        except (ValueError, TypeError, AttributeError):
            hosts = []
        if not hosts:
            raise ArgumentError(
                "namesrv_addr",
                namesrv_addr,
                "host:port, with ; between several, and ports up to 65535",
            )
        self.world = world
        self._host = local_address(*split_address(self.name_servers[0]))
        self._choose_name()
        self.timeout_ms = check_time("timeout_ms", timeout_ms)
        self.remoting: RemotingClient | None = None
        self.routes: dict[str, TopicRoute] = {}
        self.on_routes: Callable[[], None] | None = None
        self.troubles = Troubles()
        self._kind = kind
        self._acl = acl
        self._tls = tls
        self._beat = beat
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._known: set[str] = set()
        self._strangers = asyncio.Event()

    def _choose_name(self) -> None:
        """Be another than all clients of all processes; a fork would copy the name."""
        self._pid = os.getpid()
        self.client_id = f"{self._host}@{self._pid}#{int.from_bytes(token_bytes(8))}"
        self.ids = UniqueIds(self._host, self.world.clock_ms)

    async def start(self, processors: Mapping[int, Processor] | None = None) -> None:
        """Begin to look after routes and heart-beats.

        Args:
            processors: for what brokers ask, by request code.

        Raises:
            ClientForkedError, ClientMisusedError: it is open already, elsewhere.
        """
        if self.remoting is not None:
            self.check()
            return
        if self._pid != os.getpid():
            self._choose_name()
        self._loop = asyncio.get_running_loop()
        self._strangers = asyncio.Event()
        self.remoting = RemotingClient(
            settings=ClientSettings(tls=self._tls),
            processors=dict(processors or {}),
            sign=None if self._acl is None else self._acl.sign,
            # a broker does not know a client that comes again over another connection
            on_close=lambda address, _: self._known.discard(address),
        )
        self._task = self._loop.create_task(self._look_after())

    async def close(self, groups: Mapping[str, str] | None = None) -> None:
        """Tell the brokers good-bye and close every connection; in a forked child nothing.

        Args:
            groups: fields of UNREGISTER_CLIENT: ``producerGroup``, ``consumerGroup``.

        Raises:
            ClientMisusedError: it is another event loop's.
        """
        remoting, task = self.remoting, self._task
        if remoting is None or not self.is_here():
            return
        if task is not None:
            self._task = None
            task.cancel()
            await asyncio.wait([task])
        if groups:
            fields = {"clientID": self.client_id, **groups}
            await asyncio.gather(
                *(
                    self._try(address, RequestCode.UNREGISTER_CLIENT, fields)
                    for address in sorted(self._known)
                )
            )
        self.remoting = None
        await remoting.close()

    def is_here(self) -> bool:
        """Tell whether it is open; not when the parent process or an ended loop has opened it.

        Raises:
            ClientMisusedError: it is another event loop's.
        """
        gone = self._loop is None or self._loop.is_closed() or self._pid != os.getpid()
        if self.remoting is None or gone:
            return False
        self.check()
        return True

    def check(self) -> RemotingClient:
        """The connections, for a caller that may use them.

        Raises:
            ClientClosedError: the client is not open.
            ClientForkedError: it is the parent's of this process.
            ClientMisusedError: it is another event loop's.
        """
        if self.remoting is None:
            raise ClientClosedError(self._kind)
        if self._pid != os.getpid():
            raise ClientForkedError(self._kind, self._pid)
        if asyncio.get_running_loop() is not self._loop:
            reason = "it belongs to another event loop; open one for each loop"
            raise ClientMisusedError(self._kind, reason)
        return self.remoting

    # ---- asking -----------------------------------------------------------------------------

    async def invoke(
        self,
        address: str,
        code: int,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        timeout_ms: float | None = None,
    ) -> RemotingCommand:
        """Ask a broker or name server; returns its answer whatever code that has.

        Args:
            address: ``host:port`` of whom is asked.
            code: what is asked, of `RequestCode`.
            fields: of the request's header, text by name.
            body: of the request, as it goes over the network.
            timeout_ms: how long to wait for the answer; None as the client was made.

        Raises:
            ArgumentError: the address or a field is no str.
            RemotingError: there is no answer.
            ClientClosedError, ClientForkedError, ClientMisusedError: see `check`.
        """
        text("address", address)
        command = RemotingCommand(int(code), _fields(fields), body)
        return await self.check().invoke(
            address, command, self.timeout_ms if timeout_ms is None else timeout_ms
        )

    async def ask(
        self,
        address: str,
        code: int,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        timeout_ms: float | None = None,
    ) -> RemotingCommand:
        """As `invoke`, for what has to succeed.

        Args:
            address: see `invoke`.
            code: see `invoke`.
            fields: see `invoke`.
            body: see `invoke`.
            timeout_ms: see `invoke`.

        Raises:
            RequestRefusedError: the answer has another code than success.
        """
        answer = await self.invoke(address, code, fields, body, timeout_ms)
        if answer.code != ResponseCode.SUCCESS:
            raise refusal(answer, address)
        return answer

    async def invoke_oneway(
        self, address: str, code: int, fields: Mapping[str, str], body: bytes = b""
    ) -> None:
        """Send what gets no answer.

        Args:
            address: ``host:port`` of whom it goes to.
            code: what it is, of `RequestCode`.
            fields: of the request's header, text by name.
            body: of the request, as it goes over the network.

        Raises:
            RemotingError: it could not be sent.
        """
        command = RemotingCommand(int(code), _fields(fields), body)
        await self.check().invoke_oneway(address, command, self.timeout_ms)

    async def ask_name_server(
        self, code: int, fields: Mapping[str, str] | None = None
    ) -> tuple[RemotingCommand, str]:
        """Ask the name server that answered last, the others when it does not.

        Each of them gets its share of the time, so that one which hangs leaves some to the others.

        Args:
            code: what is asked, of `RequestCode`.
            fields: of the request's header, text by name.

        Returns:
            the answer, whatever code it has, and whose it is.

        Raises:
            RemotingError: none of them answers; that of the last one.
        """
        last: RemotingError | None = None
        share_ms = self.timeout_ms / max(1, len(self.name_servers))
        for address in list(self.name_servers):
            try:
                answer = await self.invoke(address, code, fields, timeout_ms=share_ms)
            except (ClientClosedError, ClientForkedError, ClientMisusedError):
                raise
            except RemotingError as error:
                last = error
                continue
            if self.name_servers[0] != address:
                self.name_servers.remove(address)
                self.name_servers.insert(0, address)
            return answer, address
        raise last or NoRouteError("name server", "there is none")

    async def _try(self, address: str, code: int, fields: Mapping[str, str]) -> None:
        with contextlib.suppress(RemotingError):
            await self.invoke(address, code, fields, timeout_ms=_GOOD_BYE_TIMEOUT_MS)

    # ---- routes -----------------------------------------------------------------------------

    async def fetch_route(self, topic: str) -> TopicRoute | None:
        """Ask for the route of a topic; None when there is none.

        Raises:
            RemotingError: no name server answers, or one refuses.
            BadAnswerError: a name server's answer is no route.
        """
        fields = {"topic": topic, "acceptStandardJsonOnly": "true"}
        answer, address = await self.ask_name_server(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        if answer.code != ResponseCode.SUCCESS:
            raise refusal(answer, address)
        try:
            return parse_route(answer.body)
        except ValueError as error:
            raise BadAnswerError(address, f"the route of {topic}: {error}") from error

    async def update_route(self, topic: str, *, create: bool = False) -> TopicRoute | None:
        """Ask for the route of a topic and keep it; an old one stays when there is none now.

        Args:
            topic: the topic.
            create: where there is none, its next message creates it: keep the route of the topic
                by which that is done, too, which says where brokers are now.

        Raises:
            RemotingError: no name server answers, or one refuses.
        """
        route, kept = await self.fetch_route(topic), self.routes.get(topic)
        if route is None and create:
            template = await self.update_route(AUTO_CREATE_TOPIC)
            if not (kept and kept.to_write(topic)):
                route = template and template.limited(_NEW_TOPIC_QUEUES)
        if route is None:
            return kept
        changed = kept != route
        # the last one is the one that was told last
        self.routes.pop(topic, None)
        self.routes[topic] = route
        if changed:
            self._strangers.set()
            if self.on_routes is not None:
                self.on_routes()
        return route

    def address_of(
        self, broker_name: str, broker_id: int = MASTER_ID, *, or_slave: bool = False
    ) -> str:
        """The address of a broker; the master's when there is none with this id.

        It is the one that was told last: the route of a topic that is gone stays as it was.

        Args:
            broker_name: of master and slaves.
            broker_id: the one that is asked for.
            or_slave: take a slave when the master is gone.

        Raises:
            NoRouteError: no route names it.
        """
        for route in reversed(self.routes.values()):
            by_id = route.brokers.get(broker_name)
            if by_id:
                address = by_id.get(broker_id) or by_id.get(MASTER_ID)
                if address is None and or_slave:
                    address = by_id[min(by_id)]
                if address is not None:
                    return address
        raise NoRouteError(broker_name, "the name servers know no address of this broker")

    def any_address(self, topic: str) -> str:
        """The address of one broker of a topic.

        Raises:
            NoRouteError: there is none.
        """
        route = self.routes.get(topic)
        if route is None or not route.addresses:
            raise NoRouteError(topic, "the name servers know no broker of this topic")
        return route.addresses[0]

    # ---- what goes on by itself -------------------------------------------------------------

    async def heart_beat(self, addresses: Iterable[str] | None = None) -> None:
        """Tell brokers that this client lives, all of the routes unless told which."""
        if self._beat is None:
            return
        if addresses is None:
            addresses = sorted({a for route in self.routes.values() for a in route.addresses})
        body = format_compact_java_json({"clientID": self.client_id, **self._beat()}).encode()
        await asyncio.gather(*(self._beat_at(address, body) for address in addresses))

    async def meet_new_brokers(self) -> bool:
        """Send a heart-beat to the brokers that got none yet; True when there were any."""
        new = {a for route in self.routes.values() for a in route.addresses} - self._known
        if new:
            await self.heart_beat(sorted(new))
        return bool(new & self._known)

    def meet(self, address: str) -> None:
        """A broker was used: it gets a heart-beat soon, if it had none over this connection."""
        if address not in self._known:
            self._strangers.set()

    async def _beat_at(self, address: str, body: bytes) -> None:
        what = f"the heart-beat to {address}"
        try:
            await self.ask(address, RequestCode.HEART_BEAT, {}, body)
        except Exception as error:  # noqa: BLE001 - nothing ends the heart-beats unsaid
            self._known.discard(address)
            self.troubles.note(what, error)
        else:
            self._known.add(address)
            self.troubles.end(what)

    async def _look_after(self) -> None:
        """Send heart-beats: to a broker when it is first used, to all every half a minute."""
        time = asyncio.get_running_loop().time
        due_s = time() + HEART_BEAT_INTERVAL_S
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(due_s):
                    await self._strangers.wait()
            self._strangers.clear()
            if time() < due_s:
                await self.meet_new_brokers()
            else:
                due_s = time() + HEART_BEAT_INTERVAL_S
                await self._look_at_routes()
                await self.heart_beat()
            await asyncio.sleep(_MEET_INTERVAL_S)

    async def _look_at_routes(self) -> None:
        for topic in list(self.routes):
            what = f"the route of {topic}"
            try:
                await self.update_route(topic)
            except Exception as error:  # noqa: BLE001 - as of the heart-beats
                self.troubles.note(what, error)
            else:
                self.troubles.end(what)


class RequestDeadline:
    """How much of a time-out is left, by the clock of the loop that runs when it is made."""

    def __init__(self, timeout_ms: float) -> None:
        self.timeout_ms = timeout_ms
        self._time = asyncio.get_running_loop().time
        self._end_s = self._time() + timeout_ms / 1000

    @property
    def rest_ms(self) -> float:
        """Milliseconds that are left, 0 at least."""
        return max(0.0, (self._end_s - self._time()) * 1000)

    def check(self, address: str, code: int) -> None:
        """Raise when nothing is left.

        Args:
            address: who was asked, for the error.
            code: what was asked, for the error.

        Raises:
            RemotingTimeoutError: it is so.
        """
        if self.rest_ms <= 0:
            raise RemotingTimeoutError(address, int(code), self.timeout_ms)


def _fields(fields: Mapping[str, str] | None) -> dict[str, str]:
    """Header fields; what somebody gave as a name has to be a str."""
    return {name: text(name, value) for name, value in (fields or {}).items()}


def refusal(answer: RemotingCommand, address: str) -> RequestRefusedError:
    """The error that an answer means.

    Args:
        answer: with another code than success.
        address: ``host:port`` of whose it is.
    """
    return RequestRefusedError(answer.code, answer.remark or "", address)
