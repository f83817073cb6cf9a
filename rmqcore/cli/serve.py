"""``rmqcore serve``, ``broker`` and ``namesrv``: what RocketMQ's clients connect to."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import json
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol

import typer

from rmqcore.broker import Broker
from rmqcore.broker.admin.metrics import Metrics
from rmqcore.broker.admin.status_server import StatusServer
from rmqcore.broker.requests import NEEDS
from rmqcore.cli.grpc_port import grpc_server, proxy_servers
from rmqcore.cli.log_lines import write_log_lines
from rmqcore.cli.options import AsJson, ConfigFile, Settings, StorePath, parse_settings
from rmqcore.cli.web import BrokerPages, WebPort, WebWrite, pages_beside
from rmqcore.config import parse_broker_conf
from rmqcore.errors import ConfigError
from rmqcore.namesrv import NameServer, NamesrvConfig
from rmqcore.remoting import (
    AccessGate,
    Account,
    PortTakenError,
    TlsMode,
    admin_of,
    load_accounts,
    load_tls,
    run,
    split_address,
)
from rmqcore.world import monotonic_s, raise_limit

if TYPE_CHECKING:
    from rmqcore.proxy import GrpcServer

NAMESRV_PORT = 9876
BROKER_PORT = 10911
_PORTS: Final[dict[str, Any]] = {"min": 0, "max": 65535}
#: Sizes of a new store's files on a machine with little room, or for a try.
_SMALL_FILES: Final[dict[str, object]] = {
    "mappedFileSizeCommitLog": 64 << 20,
    "mappedFileSizeConsumeQueue": 6_000_000,
    "maxHashSlotNum": 100_000,
    "maxIndexNum": 400_000,
}
_BESIDE: Final = (
    "; a broker takes the port behind its own, too, and the one two below: "
    "ports of brokers on one machine are best ten apart"
)
#: A store that is still being opened is mentioned this often.
_TELL_EVERY_S: Final = 5.0

Host = Annotated[str, typer.Option("--host", help="the address to listen on")]
BrokerHost = Annotated[
    str | None,
    typer.Option(
        "--host",
        help="the address to listen on; without it brokerIP1, or 127.0.0.1; with --auth or "
        "--insecure bindAddress",
    ),
]
Insecure = Annotated[
    bool,
    typer.Option("--insecure", help="listen on an address that others reach, without accounts"),
]
Auth = Annotated[
    Path | None,
    typer.Option(
        "--auth",
        help="serve only signed requests of the accounts in this file, JSON under the names of "
        "plain_acl.yml",
    ),
]
TlsConfig = Annotated[
    Path | None,
    typer.Option("--tls-config", help="serve TLS, too, as this tls.properties of RocketMQ says"),
]
MetricsPort = Annotated[
    int | None,
    typer.Option(
        "--metrics-port",
        help="port of this machine for /metrics, /healthz and /readyz; 0: any that is free",
        **_PORTS,
    ),
]
Small = Annotated[
    bool,
    typer.Option("--small", help="a new store takes files of 64 MiB, 0.1 GiB in place of 1.4"),
]


NamesrvPort = Annotated[
    int,
    typer.Option("--namesrv-port", help="port of the name server; 0: any that is free", **_PORTS),
]
BrokerPort = Annotated[
    int | None, typer.Option("--port", help="port of the broker; 0: any that is free", **_PORTS)
]
GrpcPort = Annotated[
    int | None,
    typer.Option(
        "--grpc-port",
        help="port for gRPC, which RocketMQ 5's own clients speak; 8081 with the extra [grpc]; "
        "0: any that is free",
        **_PORTS,
    ),
]


class Server(Protocol):
    """What was started and can be stopped."""

    async def stop(self) -> None:
        """Answer what was taken, and close it."""


def serve(
    store: StorePath,
    config: ConfigFile = None,
    settings: Settings = None,
    host: BrokerHost = None,
    namesrv_port: NamesrvPort = NAMESRV_PORT,
    port: BrokerPort = None,
    grpc_port: GrpcPort = None,
    auth: Auth = None,
    insecure: Insecure = False,
    tls_config: TlsConfig = None,
    metrics_port: MetricsPort = None,
    small: Small = False,
    web_port: WebPort = None,
    web_write: WebWrite = False,
    as_json: AsJson = False,
) -> None:
    """Serve a store: a name server and a broker for RocketMQ's clients, until Ctrl-C.

    A new store takes RocketMQ's file sizes, or with --small others. Delayed messages are
    delivered, and old files are deleted as RocketMQ does.
    """
    began = monotonic_s()
    properties = _properties(config, settings, store if small else None)
    host = host or _listens_on(properties, to_others=insecure or auth is not None)
    accounts = _accounts(auth, host, insecure=insecure, registers=True)
    tls = load_tls(tls_config) if tls_config else None
    if tls is not None and tls.mode is TlsMode.ENFORCING and tls.client is None:
        rule = "true: nothing else than TLS is served, so the broker has to register with it"
        raise ConfigError("tls.enable", False, rule, str(tls_config))
    kept = store / "config" / "namesrv" / "kvConfig.json"
    name_server = NameServer(
        host,
        namesrv_port,
        NamesrvConfig(kv_config_path=str(kept)),
        tls=tls,
        gate=_gate(accounts),
    )

    def new_broker(own: str) -> tuple[Broker, GrpcServer | None]:
        others = str(properties.get("namesrvAddr") or "")
        properties["namesrvAddr"] = ";".join(filter(None, [own, others]))
        broker = Broker(store, _placed(properties, host, port), accounts=accounts, tls=tls)
        return broker, grpc_server(broker, store, host, grpc_port, accounts, tls)

    async def start() -> tuple[list[Server], dict[str, object]]:
        pages = pages_beside(web_port, accounts, write=web_write)
        return await _start_both(name_server, host, new_broker, metrics_port, pages)

    run(_until_signal(start, store, began, as_json=as_json))


def broker(
    store: StorePath,
    config: ConfigFile = None,
    settings: Settings = None,
    host: BrokerHost = None,
    port: Annotated[
        int | None, typer.Option("--port", help="the port, instead of listenPort", **_PORTS)
    ] = None,
    auth: Auth = None,
    insecure: Insecure = False,
    tls_config: TlsConfig = None,
    metrics_port: MetricsPort = None,
    small: Small = False,
    as_json: AsJson = False,
) -> None:
    """Serve a store as a broker that registers with the name servers of namesrvAddr."""
    began = monotonic_s()
    properties = _properties(config, settings, store if small else None)
    listens_on = host or _listens_on(properties, to_others=insecure or auth is not None)
    accounts = _accounts(auth, listens_on, insecure=insecure, registers=True)
    tls = load_tls(tls_config) if tls_config else None

    async def start() -> tuple[list[Server], dict[str, object]]:
        served = Broker(store, _placed(properties, listens_on, port), accounts=accounts, tls=tls)
        return await _start_broker(served, metrics_port)

    run(_until_signal(start, store, began, as_json=as_json))


def namesrv(
    port: Annotated[
        int | None, typer.Option("--port", help="the port; 0: any that is free", **_PORTS)
    ] = None,
    config: ConfigFile = None,
    host: Host = "127.0.0.1",
    auth: Auth = None,
    insecure: Insecure = False,
    tls_config: TlsConfig = None,
    as_json: AsJson = False,
) -> None:
    """Serve as a name server that RocketMQ's brokers register with."""
    began = monotonic_s()
    accounts = _accounts(auth, host, insecure=insecure, registers=False)
    loaded = NamesrvConfig.from_properties(parse_broker_conf(config) if config else {})
    tls = load_tls(tls_config) if tls_config else None

    async def start() -> tuple[list[Server], dict[str, object]]:
        served = NameServer(host, port, loaded, tls=tls, gate=_gate(accounts))
        await served.start()
        return [served], {"namesrv": f"{host}:{served.port}"}

    run(_until_signal(start, None, began, as_json=as_json))


def proxy(
    namesrv: Annotated[
        str,
        typer.Option("--namesrv", help="the name servers of the brokers: host:port;host:port"),
    ],
    port: Annotated[
        int | None, typer.Option("--port", help="the port, 8081; 0: any that is free", **_PORTS)
    ] = None,
    host: Host = "127.0.0.1",
    auth: Auth = None,
    insecure: Insecure = False,
    tls_config: TlsConfig = None,
    certificates: Annotated[
        Path | None,
        typer.Option(
            "--certificates",
            help="where the server's own certificate is kept; without it, and without "
            "--tls-config, there is another one at each start",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Serve brokers elsewhere to RocketMQ 5's own clients, over gRPC; needs the extra [grpc]."""
    began = monotonic_s()
    _check_name_servers(namesrv, "namesrv")
    accounts = _accounts(auth, host, insecure=insecure, registers=False)
    tls = load_tls(tls_config) if tls_config else None

    async def start() -> tuple[list[Server], dict[str, object]]:
        cluster, server = proxy_servers(namesrv, host, port, accounts, tls, certificates)
        await server.start()
        return [server, cluster], {"grpc": f"{host}:{server.port}"}

    run(_until_signal(start, None, began, as_json=as_json))


async def _start_both(
    name_server: NameServer,
    host: str,
    new_broker: Callable[[str], tuple[Broker, GrpcServer | None]],
    metrics_port: int | None,
    new_pages: Callable[[Broker], BrokerPages | None],
) -> tuple[list[Server], dict[str, object]]:
    """Start a name server, a broker that registers with it, its port for gRPC, and its pages."""
    await name_server.start()
    servers: list[Server] = [name_server]
    facts: dict[str, object] = {"namesrv": f"{host}:{name_server.port}"}
    try:
        broker, grpc = new_broker(str(facts["namesrv"]))
        pages = new_pages(broker)
        if pages is not None:
            servers.insert(0, pages)
        started, more = await _start_broker(broker, metrics_port)
        servers, facts = [*servers[:-1], *started, name_server], facts | more
        if grpc is not None:
            await grpc.start()
            servers.insert(0, grpc)
            facts["grpc"] = f"{host}:{grpc.port}"
        if pages is not None:
            facts["web"] = pages.start()
    except BaseException:
        for server in servers:
            await server.stop()
        raise
    return servers, facts


async def _start_broker(
    broker: Broker, metrics_port: int | None
) -> tuple[list[Server], dict[str, object]]:
    """Start a broker and, before it, the port that tells how far that is."""
    if metrics_port is None:
        await _opened(broker)
        return [broker], {"broker": broker.address}
    metrics = Metrics(lambda: broker.managers)
    status = StatusServer("127.0.0.1", metrics_port, broker.state, metrics)
    await status.start()
    try:
        await _opened(broker)
    except BaseException:
        await status.stop()
        raise
    facts: dict[str, object] = {"broker": broker.address, "metrics": f"127.0.0.1:{status.port}"}
    return [broker, status], facts


async def _opened(broker: Broker) -> None:
    """Start a broker; while its store is being opened for long, say on stderr how far that is."""
    starting = asyncio.ensure_future(broker.start())
    try:
        while not (await asyncio.wait([starting], timeout=_TELL_EVERY_S))[0]:
            _, facts = broker.state()
            if "done" in facts:
                far = f"{facts['phase']}, {facts['done']:,} of {facts['total']:,}"
                typer.echo(f"rmqcore: opening {broker.path}: {far}", err=True)
    except BaseException:
        starting.cancel()
        await asyncio.wait([starting])
        raise
    await starting


def _properties(
    config: Path | None, settings: list[str] | None, small: Path | None
) -> dict[str, object]:
    """The settings of a file and of the command line; of the path ``small`` a new store's files."""
    given = {**(parse_broker_conf(config) if config else {}), **parse_settings(settings)}
    _check_name_servers(str(given.get("namesrvAddr") or ""), "namesrvAddr")
    # an existing store has its sizes, which stay
    return given if small is None or (small / "commitlog").exists() else _SMALL_FILES | given


def _check_name_servers(addresses: str, name: str) -> None:
    """Refuse, before anything is started, an address that could never be reached.

    Raises:
        ConfigError: one is not host:port.
    """
    for address in filter(None, map(str.strip, addresses.split(";"))):
        try:
            split_address(address)
        except ValueError as error:
            raise ConfigError(name, addresses, str(error)) from error


def _listens_on(properties: dict[str, object], *, to_others: bool) -> str:
    """Where a broker listens that was not told: ``bindAddress`` only where others may reach it.

    RocketMQ writes ``bindAddress=0.0.0.0``, its default, into every configuration that it tells.
    """
    names = ("bindAddress", "brokerIP1") if to_others else ("brokerIP1",)
    given = (str(properties.get(name) or "") for name in names)
    return next(filter(None, given), "127.0.0.1")


def _placed(properties: dict[str, object], host: str, port: int | None) -> dict[str, object]:
    """The settings with the address that the command line gives."""
    placed = {"brokerIP1": host, "listenPort": BROKER_PORT, **properties, "bindAddress": host}
    if port is not None:
        placed["listenPort"] = port
    return placed


def _accounts(
    auth: Path | None, host: str, *, insecure: bool, registers: bool
) -> dict[str, Account] | None:
    """Who is served; None: everybody, on an address that nobody else reaches or by request.

    Raises:
        ConfigError: the address or the file is not what it should be.
    """
    try:
        address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError as error:
        raise ConfigError("host", host, "an IP address of this machine") from error
    if not address.is_loopback and not insecure and auth is None:
        rule = "others reach this address, so give --auth or say --insecure; or a loopback address"
        raise ConfigError("host", host, rule)
    if auth is None:
        return None
    accounts = load_accounts(auth)
    if registers and admin_of(accounts) is None:
        rule = "a file with an administrator, in whose name the broker registers"
        raise ConfigError("auth", str(auth), rule)
    return accounts


def _gate(accounts: dict[str, Account] | None) -> AccessGate | None:
    return None if accounts is None else AccessGate(accounts, NEEDS)


async def _until_signal(
    start: Callable[[], Awaitable[tuple[list[Server], dict[str, object]]]],
    store: Path | None,
    began: float,
    *,
    as_json: bool,
) -> None:
    """Start, say so in one line, and stop in order at SIGINT or SIGTERM; warnings go to stderr."""
    write_log_lines()
    raise_limit()
    loop, asked = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, asked.set)
    try:
        servers, facts = await start()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            advice = "end what listens there, or give another port (0: any that is free)"
            if not isinstance(error, PortTakenError):
                raise OSError(error.errno, f"{error.strerror}; {advice}") from error
            error.add_note(f"{advice}{_BESIDE if error.use else ''}")
        raise
    elapsed_ms = round((monotonic_s() - began) * 1000)
    if as_json:
        facts |= {"store": str(store) if store else None, "ready_ms": elapsed_ms}
        typer.echo(json.dumps(facts))
    else:
        places = ", ".join(f"{name} {place}" for name, place in facts.items())
        on = f" on {store}" if store else ""
        typer.echo(f"{places}{on}: ready in {elapsed_ms} ms; Ctrl-C ends it")
    try:
        await asked.wait()
    finally:
        for server in servers:
            await server.stop()
