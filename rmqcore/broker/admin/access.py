"""Facts for access control: topic and group of a request, and settings that stay secret."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from rmqcore.errors import CorruptStoreError
from rmqcore.files.consume_queue import SCHEDULE_TOPIC
from rmqcore.files.service_topics import HALF_TOPIC
from rmqcore.files.timer_check import TIMER_TOPIC
from rmqcore.store.protocol import MessageStore

#: words in the names of settings that stay secret, RocketMQ's own and its plug-ins'
_SECRET: Final = re.compile(
    "secret|passw|credential|access_?key|token|authentication_?user|private_?key", re.IGNORECASE
)


def topic_lookup(store: MessageStore) -> Callable[[int], str | None]:
    """Tell the topic of the message at a physical offset, as its producer named it."""

    def topic_at(phy_offset: int) -> str | None:
        try:
            found = store.message_at(phy_offset) if phy_offset >= 0 else None
        except CorruptStoreError:
            return None
        if found is None:
            return None
        waits = found.topic in (SCHEDULE_TOPIC, HALF_TOPIC, TIMER_TOPIC)
        return found.properties.get("REAL_TOPIC", found.topic) if waits else found.topic

    return topic_at


def is_secret(name: str) -> bool:
    """Tell whether a setting is one that nobody is told."""
    return _SECRET.search(name) is not None
