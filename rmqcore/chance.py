"""The one place that draws by chance: ids that nobody can guess, and numbers that spread load.

A simulation draws in its place, see `follow`.
"""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random

#: what is drawn from instead, while there is one
_followed: list[random.Random] = []


def token_bytes(size: int) -> bytes:
    """Bytes that nobody can guess."""
    return _followed[0].randbytes(size) if _followed else os.urandom(size)


def token_hex(size: int) -> str:
    """Two hexadecimal digits, in lower case, for each of this many bytes that nobody can guess."""
    return token_bytes(size).hex()


def randrange(stop: int) -> int:
    """A number from 0 up to, but not, ``stop``; each as likely, and none a secret."""
    return (_followed[0] if _followed else _spread()).randrange(stop)


@cache
def _spread() -> random.Random:
    from random import Random  # noqa: PLC0415 - only brokers spread load

    return Random()  # noqa: S311 - no secret


def follow(source: random.Random | None) -> None:
    """Draw everything in this process from ``source`` from now on, None as always.

    For simulations: what such a source draws can be guessed.
    """
    _followed[:] = () if source is None else (source,)
