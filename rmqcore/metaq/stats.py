"""What a MetaQ broker counts, and the text of its ``stats`` command."""

from __future__ import annotations

import os
import threading
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

from rmqcore.metaq.manager import MessageStoreManager, matches
from rmqcore.metaq.meta_config import TOPICS
from rmqcore.version import __version__

HELP = {
    "*EMPTY*": "Returns broker info.",
    "help": "Returns help menu.",
    "topics": "Returns topics statistics detail info.",
    "offsets": "Returns partitions detail info.",
    "realtime": "Returns realtime statistics detail info.",
    "config": "Returns broker's config file content.",
}
_RESET_EVERY_S = 1800
#: The setting of this many topics is remembered, of others it is read again: a client may name any
#: number.
_MAX_WATCHED = 10_000
_TRANSACTIONS = ("tx_begin", "tx_xa_begin", "tx_commit", "tx_rollback")


class Count(StrEnum):
    """What is counted. Source: MetaQ StatConstants.java."""

    PUT = "cmd_put"
    GET = "cmd_get"
    OFFSET = "cmd_offset"
    GET_MISS = "get_miss"
    PUT_FAILED = "put_failed"
    MESSAGE_SIZE = "message_size"


_COMMANDS = (Count.PUT, Count.GET, Count.OFFSET)
_FAILURES = (Count.GET_MISS, Count.PUT_FAILED)


@dataclass(slots=True)
class Counted:
    """One thing that happened to one topic since the last reset.

    Attributes:
        events: how often.
        value: the sum of what came with them.
    """

    events: int = 0
    value: int = 0


class StatsManager:
    """Counters of one broker; used from the server's one thread.

    Attributes:
        connections: clients connected now.

    Source: MetaQ StatsManager.java, MetaStatLog.java.
    """

    def __init__(self, manager: MessageStoreManager) -> None:
        self._manager = manager
        self._monotonic_s = manager.world.monotonic_s
        self._started = self._reset_at = self._monotonic_s()
        self._totals: Counter[Count] = Counter()
        self._topics: dict[Count, dict[str, Counted]] = {}
        self._watched: dict[str, bool] = {}
        manager.config.add_property_change_listener(TOPICS, self._watched.clear)
        self.connections = 0

    def count(self, what: Count, topic: str, events: int = 1, value: int | None = None) -> None:
        """Add to a total, and to the topic's own count when its configuration asks for it.

        Args:
            what: what happened.
            topic: to which topic.
            events: how often.
            value: what came with them in sum; None: one each.
        """
        self._totals[what] += events
        if self._watches(topic):
            self._forget_old()
            counted = self._topics.setdefault(what, {}).setdefault(topic, Counted())
            counted.events += events
            counted.value += events if value is None else value

    def text(self, item: str) -> str:
        """Answer one ``stats`` command."""
        match item.strip():
            case "":
                lines = self._broker()
            case "topics":
                lines = self._all_topics()
            case "offsets":
                lines = [
                    f"{s.topic} part {s.partition} min_offset {s.min_offset} "
                    f"max_offset {s.max_offset}"
                    for s in self._manager.all_stores()
                ]
            case "realtime":
                lines = [f"realtime_{_short(what)} {self._realtime(what)}" for what in Count]
            case "help":
                lines = [f"{name} {meaning}" for name, meaning in HELP.items()]
            case "reset":
                self._reset()
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
            "uptime": int(self._monotonic_s() - self._started),
            "version": __version__,
            "slave": "false",
            "curr_connections": self.connections,
            "threads": threading.active_count(),
            **{what.value: self._totals[what] for what in _COMMANDS},
            **dict.fromkeys(_TRANSACTIONS, 0),
            **{what.value: self._totals[what] for what in _FAILURES},
            "total_messages": self._manager.total_message_count(),
            "topics": len(self._manager.all_topics()),
            "config_checksum": config.config_file_checksum,
        }
        return [f"{name} {value}" for name, value in values.items()]

    def _all_topics(self) -> list[str]:
        empty = [t for t in self._manager.config.topics if not self._manager.stores.get(t)]
        lines = [self._topic_line(topic) for topic in sorted(self._manager.stores)]
        return [*lines, *(f"{topic} *Empty*" for topic in empty)]

    def _topic_line(self, topic: str) -> str:
        stores = self._manager.stores[topic]
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
        known = 0 if stores else 2 if topic in self._manager.config.topics else 1
        return [
            topic,
            f"resultCode {known}",
            f"partitions {len(stores)}",
            f"message_count {sum(s.message_count for s in stores.values())}",
            f"bytes {sum(s.size_in_bytes for s in stores.values())}",
            *(f"topic_realtime_{_short(what)} {self._realtime(what, topic)}" for what in Count),
        ]

    def _watches(self, topic: str) -> bool:
        """Tell whether a topic, or a configured name that matches it, has stat=true."""
        watched = self._watched.get(topic)
        if watched is None:
            config = self._manager.config
            watched = config.topic_config(topic).stat or any(
                own.stat and "*" in name and matches(name, topic)
                for name, own in config.topics.items()
            )
            if len(self._watched) < _MAX_WATCHED:
                self._watched[topic] = watched
        return watched

    def _realtime(self, what: Count, topic: str | None = None) -> str:
        """One count in MetaQ's words: events, values, averages, seconds since the reset."""
        self._forget_old()
        topics = self._topics.get(what)
        if topics is None:
            return "null"
        if topic is not None and topic not in topics:
            return f"Invalid keyTwo:{topic}"
        chosen = topics.values() if topic is None else [topics[topic]]
        events, value = sum(c.events for c in chosen), sum(c.value for c in chosen)
        seconds = int(self._monotonic_s() - self._reset_at)
        each = _decimal(value / events) if events else "invalid"
        rate = _decimal(events / seconds) if seconds else "invalid"
        return (
            f"Count={events},Value={value},Value/Count={each},"
            f"Count/Duration={rate},Duration={seconds}"
        )

    def _forget_old(self) -> None:
        if self._monotonic_s() - self._reset_at > _RESET_EVERY_S:
            self._reset()

    def _reset(self) -> None:
        """Begin to count anew; what has been counted once stays known."""
        for topics in self._topics.values():
            for counted in topics.values():
                counted.events = counted.value = 0
        self._reset_at = self._monotonic_s()


def _short(what: Count) -> str:
    return what.removeprefix("cmd_")


def _decimal(number: float) -> str:
    """A number as Java's pattern ``#.##`` writes it."""
    return f"{number:.2f}".rstrip("0").rstrip(".")
