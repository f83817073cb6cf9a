"""How many descriptors this process may have, and how many of them are for connections.

Stores take at most half of them (`rmqcore.files.mapped_file.OpenFiles`), connections most of the
other half; what is left is for directories, logs and the connections that this process makes.
"""

from __future__ import annotations

import resource
from contextlib import suppress

#: Connections that were accepted get this part of every limit of descriptors.
_SHARE = 3 / 8


def raise_limit() -> None:
    """Let this process have as many descriptors as it may give itself, as servers do."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # a container may forbid it
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def connections_allowed() -> int | None:
    """How many connections all servers of this process may accept together; None for no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else max(8, int(soft * _SHARE))
