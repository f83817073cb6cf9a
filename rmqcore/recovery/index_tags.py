"""Which rule wrote an existing index: RocketMQ 5.4 and later also index a message's tags."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rmqcore._index import index_hash
from rmqcore.derived.index_service import IndexService
from rmqcore.errors import CorruptRecordError

if TYPE_CHECKING:
    from rmqcore.native.format._message_ext import MessageExt

_ENTRIES_LOOKED_AT = 1024


def index_has_tags(index: IndexService, message_at: Callable[[int], MessageExt | None]) -> bool:
    """True when most tagged messages have an entry ``topic#T#TAGS``, or when nothing tells.

    Args:
        index: the index.
        message_at: finds the message at a physical offset.

    Source: RocketMQ store/index/IndexService.java, buildIndex (5.5.0 and 4.9.7).
    """
    votes = 0
    for file in reversed(index.files):
        last = file.header.index_count - 1
        hashes: dict[int, set[int]] = {}
        for number in range(last, max(0, last - _ENTRIES_LOOKED_AT), -1):
            key_hash, phy_offset, _, _ = file.entry(number)
            hashes.setdefault(phy_offset, set()).add(key_hash)
        # the newest and the oldest record may have entries in a neighbouring file
        for phy_offset in sorted(hashes)[1:-1]:
            try:
                message = message_at(phy_offset)
            except CorruptRecordError:
                continue
            if message is not None and message.tags:
                filed = index_hash(f"{message.topic}#T#{message.tags}") in hashes[phy_offset]
                votes += 1 if filed else -1
        if votes:
            break
    return votes >= 0
