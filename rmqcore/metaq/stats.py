"""What a MetaQ broker counts, and the text of its ``stats`` command."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from enum import StrEnum

from rmqcore.metaq.manager import MessageStoreManager
from rmqcore.version import __version__

HELP = {
    "*EMPTY*": "Broker information.",
    "help": "This list.",
    "topics": "Partitions, messages and bytes of every topic.",
    "offsets": "Smallest and largest offset of every partition.",
    "realtime": "Counts of the topics with stat=true since the start or the last reset.",
    "reset": "Set those counts to zero.",
    "config": "The configuration file.",
    "<topic>": "One topic.",
}


class Count(StrEnum):
    """What is counted. Source: MetaQ StatConstants.java."""

    PUT = "cmd_put"
    GET = "cmd_get"
    OFFSET = "cmd_offset"
    GET_MISS = "get_miss"
    PUT_FAILED = "put_failed"
    MESSAGE_SIZE = "message_size"


class StatsManager:
    """Counters of one broker; used from the server's one thread.

    Attributes:
        connections: clients connected now.

    Source: MetaQ StatsManager.java.
    """

    def __init__(self, manager: MessageStoreManager) -> None:
        self._manager = manager
        self._started = time.monotonic()
        self._totals: Counter[Count] = Counter()
        self._topics: dict[str, Counter[Count]] = {}
        self.connections = 0

    def count(self, what: Count, topic: str, number: int = 1) -> None:
        """Add to a total, and to the topic's own count when its configuration asks for it."""
        self._totals[what] += number
        if self._manager.config.topic_config(topic).stat:
            self._topics.setdefault(topic, Counter())[what] += number

    def text(self, item: str) -> str:
        """Answer one ``stats`` command."""
        match item.strip():
            case "":
                lines = self._broker()
            case "topics":
                lines = [self._topic_line(topic) for topic in self._manager.all_topics()]
            case "offsets":
                lines = [
                    f"{s.topic} part {s.partition} min_offset {s.min_offset} "
                    f"max_offset {s.max_offset}"
                    for s in self._manager.all_stores()
                ]
            case "realtime":
                totals: Counter[Count] = Counter()
                for counts in self._topics.values():
                    totals.update(counts)
                lines = [f"realtime_{what.removeprefix('cmd_')} {totals[what]}" for what in Count]
            case "help":
                lines = [f"{name} {meaning}" for name, meaning in HELP.items()]
            case "reset":
                self._topics.clear()
                lines = ["reset ok"]
            case topic:
                lines = self._one_topic(topic)
        return "".join(f"{line}\r\n" for line in ("STATS", *lines, "END"))

    def _broker(self) -> list[str]:
        config = self._manager.config
        values = {
            "pid": os.getpid(),
            "broker_id": config.system.broker_id,
            "port": config.system.server_port,
            "uptime": int(time.monotonic() - self._started),
            "version": __version__,
            "slave": "false",
            "curr_connections": self.connections,
            "threads": threading.active_count(),
            **{what.value: self._totals[what] for what in Count if what != Count.MESSAGE_SIZE},
            "total_messages": self._manager.total_message_count(),
            "topics": len(self._manager.all_topics()),
            "config_checksum": config.config_file_checksum,
        }
        return [f"{name} {value}" for name, value in values.items()]

    def _topic_line(self, topic: str) -> str:
        stores = self._manager.stores.get(topic)
        if not stores:
            return f"{topic} *Empty*"
        own = self._manager.config.topic_config(topic)
        return (
            f"{topic} partitions {len(stores)} "
            f"message_count {sum(s.message_count for s in stores.values())} "
            f"message_bytes {sum(s.size_in_bytes for s in stores.values())} "
            f"accept_publish {str(own.accept_publish).lower()} "
            f"accept_subscribe {str(own.accept_subscribe).lower()}"
        )

    def _one_topic(self, topic: str) -> list[str]:
        stores = self._manager.stores.get(topic, {})
        counts = self._topics.get(topic, Counter())
        known = 0 if stores else 2 if topic in self._manager.config.topics else 1
        return [
            topic,
            f"resultCode {known}",
            f"partitions {len(stores)}",
            f"message_count {sum(s.message_count for s in stores.values())}",
            f"bytes {sum(s.size_in_bytes for s in stores.values())}",
            *(f"topic_realtime_{what.removeprefix('cmd_')} {counts[what]}" for what in Count),
        ]
