"""Options of the commands that speak to brokers, instead of opening a store."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Annotated

import typer

from rmqcore.client import AclSigner

NameServer = Annotated[
    str,
    typer.Option(
        "--namesrv", "-n", envvar="NAMESRV_ADDR", help="name servers: host:port;host:port"
    ),
]
AccessKey = Annotated[
    str | None,
    typer.Option("--access-key", envvar="ROCKETMQ_ACCESS_KEY", help="user that signs requests"),
]
SecretKey = Annotated[
    str | None,
    typer.Option(
        "--secret-key",
        envvar="ROCKETMQ_SECRET_KEY",
        help="the user's secret; better given by the environment, which others do not see",
    ),
]
Tls = Annotated[
    bool, typer.Option("--tls", help="connect with TLS, trusting what the system trusts")
]

DEFAULT_NAME_SERVER = "127.0.0.1:9876"


@dataclass(frozen=True, slots=True)
class Credentials:
    """How to be let in."""

    acl: AclSigner | None
    tls: ssl.SSLContext | None


def access(access_key: str | None, secret_key: str | None, tls: bool) -> Credentials:
    """The signer and the trust that the options ask for.

    Args:
        access_key: of the account; None for none.
        secret_key: of the account; None for none.
        tls: trust the authorities that this machine trusts; False connects without TLS.

    Raises:
        typer.BadParameter: one of the keys is missing.
    """
    if (access_key is None) != (secret_key is None):
        raise typer.BadParameter("--access-key and --secret-key belong together")
    signer = None
    if access_key is not None and secret_key is not None:
        signer = AclSigner(access_key, secret_key, strict=True)
    return Credentials(signer, ssl.create_default_context() if tls else None)
