"""A certificate of the server's own, for clients that use TLS unless they are told not to.

Java, Go, C++ and C# do, and trust any certificate; Python's client verifies, and trusts this one
when it is given the file: ``GRPC_DEFAULT_SSL_ROOTS_FILE_PATH=.../certificate.pem``.
"""

from __future__ import annotations

import ipaddress
import os
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from rmqcore.remoting import Tls, TlsMode

CERTIFICATE: Final = "certificate.pem"
KEY: Final = "key.pem"
_DAYS: Final = 3650
#: A certificate that ends in fewer days is made anew.
_DAYS_LEFT_MIN: Final = 30


def own_tls(folder: Path, hosts: tuple[str, ...], now_ms: int) -> Tls:
    """Serve TLS beside plain connections with a certificate that is made for want of a good one.

    Args:
        folder: where certificate and key are kept, the key for its owner alone.
        hosts: names and addresses that clients call the server by.
        now_ms: Unix time in milliseconds; one that ends soon is made anew.

    Raises:
        OSError: the files cannot be read or written.
    """
    certificate, key = folder / CERTIFICATE, folder / KEY
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    if not _is_good(certificate, key, hosts, now):
        _make(certificate, key, hosts, now)
    context = _context(certificate, key)
    context.set_alpn_protocols(["h2"])
    return Tls(TlsMode.PERMISSIVE, context)


def _context(certificate: Path, key: Path) -> ssl.SSLContext:
    """What shows a certificate; a key that needs a password is none: nobody is asked for it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key, "")
    return context


def _is_good(certificate: Path, key: Path, hosts: tuple[str, ...], now: datetime) -> bool:
    """Tell whether a certificate is there with its key, is not about to end, and has all names."""
    from cryptography import x509  # noqa: PLC0415 - an extra

    # a pipe holds whoever opens it
    if not certificate.is_file() or not key.is_file():
        return False
    try:
        _context(certificate, key)
        found = x509.load_pem_x509_certificate(certificate.read_bytes())
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ssl.SSLError, ValueError, x509.ExtensionNotFound):
        return False
    there = {str(name.value) for name in names}
    left = found.not_valid_after_utc - now
    return set(hosts) <= there and left > timedelta(days=_DAYS_LEFT_MIN)


def _make(certificate: Path, key: Path, hosts: tuple[str, ...], now: datetime) -> None:
    from cryptography import x509  # noqa: PLC0415 - an extra
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415
    from cryptography.x509.oid import NameOID  # noqa: PLC0415

    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "rmqcore")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=_DAYS))
        .add_extension(x509.SubjectAlternativeName([_san(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(private, hashes.SHA256())
    )
    certificate.parent.mkdir(parents=True, exist_ok=True)
    private_pem = private.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    _write(key, private_pem, 0o600)
    _write(certificate, made.public_bytes(serialization.Encoding.PEM), 0o644)


def _san(host: str) -> Any:
    from cryptography import x509  # noqa: PLC0415 - an extra

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write(path: Path, data: bytes, mode: int) -> None:
    """Write a file that nobody sees half of."""
    beside = path.with_suffix(".tmp")
    beside.unlink(missing_ok=True)
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with open(descriptor, "wb") as file:
        file.write(data)
    beside.replace(path)
