"""The writer that the demonstration kills: ``python -m demo.writer STORE SIZE``.

Puts the corpus into queues of its own and says after every few puts, and behind the last, how many
have returned.
"""

from __future__ import annotations

import struct
import sys
from typing import BinaryIO

from demo.corpus import QUEUES, Corpus
from rmqcore import open_store

ACKNOWLEDGED = struct.Struct("<q")
_ACKNOWLEDGE_EVERY = 100


def write(path: str, size_max: int, acknowledged: BinaryIO) -> None:
    """Put the corpus; the store is open until the process is killed, or its standard input ends."""
    count = 0
    with open_store(path) as store:
        for entries in Corpus(size_max):
            for entry in entries:
                store.put(
                    entry.topic,
                    entry.body,
                    queue_id=QUEUES + entry.queue_id,
                    tags=entry.tags,
                    keys=entry.key,
                )
                count += 1
                if count % _ACKNOWLEDGE_EVERY == 0:
                    acknowledged.write(ACKNOWLEDGED.pack(count))
        acknowledged.write(ACKNOWLEDGED.pack(count))
        sys.stdin.read()


if __name__ == "__main__":
    with open(sys.stdout.fileno(), "wb", buffering=0, closefd=False) as pipe:
        write(sys.argv[1], int(sys.argv[2]), pipe)
