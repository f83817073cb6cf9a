"""Which rule wrote an existing index: RocketMQ 5.4 and later also index a message's tags.

Floor: F6; imports services.index_service, files.commit_log, _index.
"""

from __future__ import annotations

from rmqcore._index import index_hash
from rmqcore.errors import CorruptRecordError
from rmqcore.files.commit_log import CommitLog
from rmqcore.services.index_service import IndexService

_ENTRIES_LOOKED_AT = 1024


def index_has_tags(index: IndexService, log: CommitLog) -> bool:
    """True when tagged messages have an entry ``topic#T#TAGS``, or when nothing tells.

    Source: RocketMQ store/index/IndexService.java, buildIndex (5.5.0 and 4.9.7).
    """
    for file in reversed(index.files):
        last = file.header.index_count - 1
        hashes: dict[int, set[int]] = {}
        for number in range(last, max(0, last - _ENTRIES_LOOKED_AT), -1):
            key_hash, phy_offset, _, _ = file.entry(number)
            hashes.setdefault(phy_offset, set()).add(key_hash)
        # the newest and the oldest record may have entries in a neighbouring file
        for phy_offset in sorted(hashes)[1:-1]:
            try:
                message = log.message_at(phy_offset)
            except CorruptRecordError:
                continue
            if message is not None and message.tags:
                return index_hash(f"{message.topic}#T#{message.tags}") in hashes[phy_offset]
    return True
