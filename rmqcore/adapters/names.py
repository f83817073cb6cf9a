"""Topic names for other programs' queues: any text gets one of its own, readable if possible."""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import Final

from rmqcore.files.config_tables import TOPIC_NAME_MAX
from rmqcore.files.service_topics import TABLE_PREFIX

_OTHER: Final = re.compile(rb"[^a-zA-Z0-9_-]")
_DIGEST_SIZE: Final = 16


@lru_cache(maxsize=4096)
def topic_of(program: str, name: str) -> str:
    """The topic of a queue of another program.

    Bytes other than letters, digits, ``_`` and ``-`` become ``%XX``. A name that is too long for a
    topic is cut and ends with ``|`` and a digest.

    Args:
        program: what its topics begin with.
        name: the queue's name there.
    """
    return _short(program, name, TOPIC_NAME_MAX)


@lru_cache(maxsize=4096)
def table_of(program: str, name: str) -> str:
    """The table of keys and values of a queue of another program: as its topic, and some shorter.

    Args:
        program: what its tables begin with.
        name: the queue's name there.
    """
    return _short(program, name, TOPIC_NAME_MAX - len(TABLE_PREFIX))


def _short(program: str, name: str, size_max: int) -> str:
    text = name.encode("utf-8", "surrogatepass")
    encoded = _OTHER.sub(lambda match: b"%%%02X" % match[0][0], text)
    whole = f"{program}-{encoded.decode()}"
    if len(whole) <= size_max:
        return whole
    digest = hashlib.blake2b(whole.encode(), digest_size=_DIGEST_SIZE).hexdigest()
    return f"{whole[: size_max - 1 - len(digest)]}|{digest}"
