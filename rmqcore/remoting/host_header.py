"""The Host of an HTTP request: the name by which a port was asked for.

A page elsewhere can reach a port of this machine by a name of its own that leads here (DNS
rebinding), and read what it answers. Its requests have that name as their Host.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

#: The names of this machine for itself.
LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_HOST: Final = re.compile(r"(?P<name>\[[0-9a-fA-F:]+\]|[0-9a-zA-Z.-]+)(:(?P<port>[0-9]{1,5}))?")
_PORT_MAX: Final = 65535


def is_named(host: str, names: Collection[str] = LOOPBACK_NAMES) -> bool:
    """Tell whether the Host of a request is one of a server's names, with any port or none.

    Args:
        host: value of the header.
        names: in small letters; IPv6 addresses without brackets.
    """
    found = _HOST.fullmatch(host)
    if found is None or int(found["port"] or 0) > _PORT_MAX:
        return False
    return found["name"].strip("[]").lower() in names
