"""Addresses ``rmqcore:///path`` of stores, as kombu's and Celery's settings have them."""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote, urlsplit

from rmqcore.errors import ConfigError

_RULE: Final = (
    "the store's directory: rmqcore:///var/queue, or rmqcore://./queue for one below the working "
    "directory"
)


def path_of(address: str) -> Path:
    """The directory that an address names, absolute.

    Args:
        address: ``rmqcore:///path`` from the root, ``rmqcore://./path`` or ``rmqcore://../path``
            from the working directory; ``%XX`` is the byte.

    Raises:
        ConfigError: it names none, or a host, an account or options.
    """
    parts = urlsplit(address)
    if parts.query or parts.fragment:
        rule = f"{_RULE}; options go into broker_transport_options, a ? of a path is %3F, a # %23"
        raise ConfigError("address", address, rule)
    path = unquote(parts.path)
    if parts.netloc in {".", ".."} and path.strip("/"):
        return Path(f"{parts.netloc}{path}").absolute()
    if parts.netloc:
        asked = unquote(f"{parts.netloc}{path}")
        rule = f"{_RULE}; did you mean rmqcore:///{asked} or rmqcore://./{asked}?"
        raise ConfigError("address", address, rule)
    if not path.strip("/"):
        raise ConfigError("address", address, _RULE)
    # more slashes in front are one, as in any path but that of POSIX's second kind
    return Path(f"/{path.lstrip('/')}")


def address_of(path: Path) -> str:
    """The address of a directory."""
    return f"rmqcore://{quote(str(path))}"
