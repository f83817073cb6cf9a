"""The ports for gRPC that `rmqcore serve` and `rmqcore proxy` open."""

from __future__ import annotations

import ipaddress
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rmqcore.broker import Broker
from rmqcore.errors import ConfigError
from rmqcore.remoting import Account, Tls
from rmqcore.world import wall_clock_ms

if TYPE_CHECKING:
    from rmqcore.proxy import GrpcServer, RemoteCluster

GRPC_PORT: Final = 8081
_HERE: Final = ("localhost", "127.0.0.1", "::1")
_WITHOUT: Final = "not without the extra: pip install 'rmqcore[grpc]'"


def grpc_server(
    broker: Broker,
    store: Path,
    host: str,
    port: int | None,
    accounts: Mapping[str, Account] | None,
    tls: Tls | None,
) -> GrpcServer | None:
    """What serves a broker over gRPC, on a port of its own and on the broker's.

    Args:
        broker: not started yet.
        store: its directory, where a certificate is kept that is made for want of another one.
        host: where it listens.
        port: as asked for; None opens `GRPC_PORT` where the extra is installed, or any that is
            free where the broker's own port is.
        accounts: who is served; None serves everybody.
        tls: its certificate; None makes one.

    Returns:
        what is started after the broker; None without the extra.

    Raises:
        ConfigError: a port was asked for, and the extra is not installed.
        OSError: the certificate cannot be kept.
    """
    try:
        from rmqcore.proxy import GrpcServer, LocalBroker, Service  # noqa: PLC0415 - an extra
        from rmqcore.proxy.certificate import own_tls  # noqa: PLC0415 - an extra
    except ImportError as error:
        if port is None:
            return None
        raise ConfigError("grpc-port", port, _WITHOUT) from error
    cluster = LocalBroker(lambda: broker.local, lambda: broker.config.broker_name)
    service = Service(cluster, accounts)
    broker.http2 = service.new_connection
    if tls is None:
        tls = own_tls(store / "config" / "grpc", (*_HERE, *_named(host)), wall_clock_ms())
    if port is None:
        port = 0 if broker.config.listen_port == 0 else GRPC_PORT
    return GrpcServer(service, host, port, tls=tls)


def proxy_servers(
    namesrv: str,
    host: str,
    port: int | None,
    accounts: Mapping[str, Account] | None,
    tls: Tls | None,
    kept: Path | None,
) -> tuple[RemoteCluster, GrpcServer]:
    """What serves brokers elsewhere over gRPC.

    Args:
        namesrv: addresses of their name servers, separated by ``;``.
        host: where it listens.
        port: on which port; None is `GRPC_PORT`.
        accounts: who is served; None serves everybody.
        tls: its certificate, and how brokers are called; None makes a certificate.
        kept: where such a one is kept; None makes another one at each start.

    Raises:
        ConfigError: the extra is not installed.
        OSError: the certificate cannot be kept.
    """
    try:
        from rmqcore.proxy import GrpcServer, RemoteCluster, Service  # noqa: PLC0415 - an extra
        from rmqcore.proxy.certificate import own_tls  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ConfigError("proxy", "", _WITHOUT) from error
    cluster = RemoteCluster(namesrv, accounts, tls)
    if tls is None and kept is not None:
        tls = own_tls(kept, (*_HERE, *_named(host)), wall_clock_ms())
    elif tls is None:
        with tempfile.TemporaryDirectory() as folder:
            tls = own_tls(Path(folder), (*_HERE, *_named(host)), wall_clock_ms())
    port = GRPC_PORT if port is None else port
    return cluster, GrpcServer(Service(cluster, accounts), host, port, tls=tls)


def _named(host: str) -> tuple[str, ...]:
    """The address, where it is one that clients call."""
    return () if host in _HERE or ipaddress.ip_address(host).is_unspecified else (host,)
