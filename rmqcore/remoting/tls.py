"""TLS as RocketMQ's `tls.properties` describes it: who is served, and how others are called.

    tls.server.mode=enforcing            permissive (unless given), enforcing or disabled
    tls.server.certPath=broker.pem       with tls.server.keyPath, tls.server.keyPassword
    tls.server.trustCertPath=ca.pem      with tls.server.authClient=true: who may call
    tls.enable=true                      call others with TLS, too
    tls.client.trustCertPath=ca.pem      with tls.client.authServer=true: whom to call
    tls.client.certPath, .keyPath, .keyPassword

Source: RocketMQ remoting/netty/TlsSystemConfig.java, TlsHelper.java.
"""

from __future__ import annotations

import functools
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final

from rmqcore.errors import ConfigError
from rmqcore.java.properties import properties_by_line, read_properties
from rmqcore.remoting.renewed_context import RenewedContext

_NAMES: Final = frozenset(
    {
        "tls.enable",
        "tls.test.mode.enable",
        "tls.server.mode",
        "tls.server.need.client.auth",
        "tls.server.authClient",
        *(f"tls.server.{name}" for name in ("certPath", "keyPath", "keyPassword", "trustCertPath")),
        "tls.client.authServer",
        *(f"tls.client.{name}" for name in ("certPath", "keyPath", "keyPassword", "trustCertPath")),
    }
)


class TlsMode(Enum):
    """Who is served when there is a certificate. Source: TlsMode."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


@dataclass(frozen=True, slots=True)
class Tls:
    """How a server is called, and how it calls others.

    Attributes:
        mode: who is served.
        server: the certificate it shows; None when TLS is disabled.
        client: trust and certificate for its own calls; None when those are plain.
    """

    mode: TlsMode = TlsMode.DISABLED
    server: ssl.SSLContext | None = field(default=None, repr=False)
    client: ssl.SSLContext | None = field(default=None, repr=False)


def load_tls(path: Path) -> Tls:
    """Read RocketMQ's `tls.properties`; paths in it that are not absolute begin at its directory.

    Raises:
        ConfigError: a name is not known, a certificate is missing or no certificate.
        OSError: the file, or one that it names, cannot be read.
    """
    given = {}
    for name, value, line in properties_by_line(read_properties(path)):
        if name.startswith("tls.") and name not in _NAMES:
            rule = f"no such setting; there are {', '.join(sorted(_NAMES))}"
            raise ConfigError(name, value, rule, f"{path}:{line}")
        given[name] = value.strip()
    if given.get("tls.test.mode.enable", "false").lower() != "false":
        rule = "false: no certificate is made up; name one with tls.server.certPath"
        raise ConfigError("tls.test.mode.enable", given["tls.test.mode.enable"], rule, str(path))
    mode = _mode(given, path)
    return Tls(
        mode,
        None if mode is TlsMode.DISABLED else _server_context(given, path),
        _client_context(given, path) if given.get("tls.enable", "").lower() == "true" else None,
    )


def _mode(given: Mapping[str, str], path: Path) -> TlsMode:
    text = given.get("tls.server.mode", TlsMode.PERMISSIVE.value)
    try:
        return TlsMode(text.lower())
    except ValueError as error:
        rule = "disabled, permissive or enforcing"
        raise ConfigError("tls.server.mode", text, rule, str(path)) from error


def _server_context(given: Mapping[str, str], path: Path) -> ssl.SSLContext:
    fill = functools.partial(_fill_server, given, path)
    return RenewedContext.filled(ssl.PROTOCOL_TLS_SERVER, fill, _files(given, "tls.server", path))


def _fill_server(given: Mapping[str, str], path: Path, context: ssl.SSLContext) -> None:
    if "tls.server.certPath" not in given:
        rule = "a certificate for the server, or tls.server.mode=disabled"
        raise ConfigError("tls.server.certPath", None, rule, str(path))
    _show_certificate(context, given, "tls.server", path)
    # clients of HTTP/2 ask for it by name; those of RocketMQ's own protocol ask for none
    context.set_alpn_protocols(["h2"])
    if given.get("tls.server.authClient", "").lower() == "true":
        context.verify_mode = ssl.CERT_REQUIRED
        _trust(context, given, "tls.server", path)
    wanted = given.get("tls.server.need.client.auth", "none").lower()
    if wanted not in ("none", "optional", "require"):
        rule = "none, optional or require"
        raise ConfigError("tls.server.need.client.auth", wanted, rule, str(path))
    if wanted != "none" and context.verify_mode is ssl.CERT_NONE:
        rule = "none; or tls.server.authClient=true, without which nothing is checked"
        raise ConfigError("tls.server.need.client.auth", wanted, rule, str(path))
    if wanted == "optional":
        context.verify_mode = ssl.CERT_OPTIONAL


def _client_context(given: Mapping[str, str], path: Path) -> ssl.SSLContext:
    fill = functools.partial(_fill_client, given, path)
    return RenewedContext.filled(ssl.PROTOCOL_TLS_CLIENT, fill, _files(given, "tls.client", path))


def _fill_client(given: Mapping[str, str], path: Path, context: ssl.SSLContext) -> None:
    is_checked = given.get("tls.client.authServer", "").lower() == "true"
    # brokers are called by their numbers, and who has a certificate of one's own authority is one's
    # own; what the system trusts has certificates for everybody
    context.check_hostname = is_checked and "tls.client.trustCertPath" not in given
    if is_checked:
        _trust(context, given, "tls.client", path)
    else:
        context.verify_mode = ssl.CERT_NONE
    if "tls.client.certPath" in given:
        _show_certificate(context, given, "tls.client", path)


def _show_certificate(
    context: ssl.SSLContext, given: Mapping[str, str], prefix: str, path: Path
) -> None:
    certificate = _file(given, f"{prefix}.certPath", path)
    key = _file(given, f"{prefix}.keyPath", path) if f"{prefix}.keyPath" in given else None
    try:
        context.load_cert_chain(certificate, key, given.get(f"{prefix}.keyPassword", ""))
    except ssl.SSLError as error:
        rule = f"a certificate and its private key, in PEM: {error.reason or error}"
        raise ConfigError(f"{prefix}.certPath", str(certificate), rule, str(path)) from error


def _trust(context: ssl.SSLContext, given: Mapping[str, str], prefix: str, path: Path) -> None:
    """Trust the certificates of a file; without one, what the system trusts."""
    if f"{prefix}.trustCertPath" not in given:
        context.load_default_certs()
        return
    trusted = _file(given, f"{prefix}.trustCertPath", path)
    try:
        context.load_verify_locations(trusted)
    except ssl.SSLError as error:
        rule = f"certificates in PEM: {error.reason or error}"
        raise ConfigError(f"{prefix}.trustCertPath", str(trusted), rule, str(path)) from error


def _files(given: Mapping[str, str], prefix: str, path: Path) -> list[Path]:
    """The files that one side reads."""
    names = (f"{prefix}.{name}" for name in ("certPath", "keyPath", "trustCertPath"))
    return [path.parent / given[name] for name in names if name in given]


def _file(given: Mapping[str, str], name: str, path: Path) -> Path:
    """A file that a setting names.

    Raises:
        FileNotFoundError: there is none.
    """
    found = path.parent / given[name]
    found.open("rb").close()
    return found
