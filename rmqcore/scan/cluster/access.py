"""`Access`: which name servers are asked, and as whom."""

from __future__ import annotations

import os
import re
import ssl
from dataclasses import dataclass, field

from rmqcore.errors import ArgumentError, ConfigError
from rmqcore.remoting import AclSigner, split_address

_URL = re.compile(r"namesrv(s?):/{1,2}([^/]+)/([^/?#]+)/?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How a cluster is reached; a plain value, which other processes may be sent.

    Attributes:
        namesrv_addr: `host:port`, with ``;`` between several.
        access_key, secret_key: of the user that signs requests; None for none. Never in a text.
        tls: connect with TLS.
        tls_trust_cert_path: certificates that are trusted, PEM; None: what the system trusts.
        timeout_ms: for a connection, and for an answer.
    """

    namesrv_addr: str
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    tls: bool = False
    tls_trust_cert_path: str | None = None
    timeout_ms: float = 10_000.0

    @property
    def name_servers(self) -> list[str]:
        """Their addresses.

        Raises:
            ArgumentError: one is not host:port, or has credentials.
        """
        if "@" in self.namesrv_addr:
            rule = (
                "no credentials in an address: accessKey and secretKey, or ROCKETMQ_ACCESS_KEY and "
            )
            raise ArgumentError("namesrv_addr", "...@...", rule + "ROCKETMQ_SECRET_KEY")
        found = [each.strip() for each in self.namesrv_addr.split(";") if each.strip()]
        try:
            for address in found:
                split_address(address)
        except ValueError:
            found = []
        if not found:
            rule = "host:port, with ; between several"
            raise ArgumentError("namesrv_addr", self.namesrv_addr, rule)
        return found

    def signer(self) -> AclSigner | None:
        """What signs requests; None for nobody.

        Raises:
            ConfigError: one of the keys is missing.
        """
        if self.access_key is None and self.secret_key is None:
            return None
        if self.access_key is None or self.secret_key is None:
            raise ConfigError("accessKey", "...", "accessKey and secretKey belong together")
        return AclSigner(self.access_key, self.secret_key, strict=True)

    def trust(self) -> ssl.SSLContext | None:
        """What TLS trusts; None connects without.

        Raises:
            ConfigError: no certificates are there.
        """
        if not self.tls:
            return None
        try:
            return ssl.create_default_context(cafile=self.tls_trust_cert_path)
        except (OSError, ssl.SSLError) as error:
            rule = f"expected a file of certificates in PEM: {error}"
            raise ConfigError("tlsTrustCertPath", self.tls_trust_cert_path, rule) from None


def parse_namesrv_url(
    url: str | os.PathLike[str], *, access_key: str | None = None, secret_key: str | None = None
) -> tuple[Access, str]:
    """The cluster and the topic of ``namesrv://host:port;host:port/topic``.

    Args:
        url: ``namesrvs://`` connects with TLS. What `Path` makes of either is taken, too.
        access_key: of the user that signs requests; None: ``ROCKETMQ_ACCESS_KEY`` of the
            environment, if it is there.
        secret_key: likewise, ``ROCKETMQ_SECRET_KEY``.

    Raises:
        ArgumentError: it is no such text.
    """
    found = _URL.fullmatch(os.fspath(url))
    if found is None:
        rule = "namesrv://host:port/topic, with ; between several hosts"
        raise ArgumentError("url", os.fspath(url), rule)
    access = Access(
        namesrv_addr=found[2],
        access_key=access_key or os.environ.get("ROCKETMQ_ACCESS_KEY"),
        secret_key=secret_key or os.environ.get("ROCKETMQ_SECRET_KEY"),
        tls=bool(found[1]),
    )
    access.name_servers  # noqa: B018 - what is wrong with them is said now
    return access, found[3]
