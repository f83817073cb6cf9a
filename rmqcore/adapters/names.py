"""Topic names for other programs' queues: any text gets one of its own, readable if possible."""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import Final

from rmqcore.files.config_tables import TOPIC_NAME_MAX

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
    text = name.encode("utf-8", "surrogatepass")
    encoded = _OTHER.sub(lambda match: b"%%%02X" % match[0][0], text)
    topic = f"{program}-{encoded.decode()}"
    if len(topic) <= TOPIC_NAME_MAX:
        return topic
    digest = hashlib.blake2b(topic.encode(), digest_size=_DIGEST_SIZE).hexdigest()
    return f"{topic[: TOPIC_NAME_MAX - 1 - len(digest)]}|{digest}"
