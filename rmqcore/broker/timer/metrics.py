"""`TimerMetrics`: how many timer messages wait, topic by topic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rmqcore.files.config_tables import DataVersion


@dataclass(slots=True)
class _Count:
    """What waits of one topic, and when that has changed last, Unix time in milliseconds."""

    count: int = 0
    changed_ms: int = 0


class TimerMetrics:
    """The counts of request 61. Source: RocketMQ store/timer/TimerMetrics.java."""

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        """Begin without any.

        Args:
            clock_ms: Unix time in milliseconds.
        """
        self._clock_ms = clock_ms
        self._topics: dict[str, _Count] = {}
        self._version = DataVersion()

    def add(self, topic: str, step: int) -> None:
        """Count a change of what waits of a topic.

        Args:
            topic: that they are sent to.
            step: how many more wait, negative for fewer.
        """
        entry = self._topics.setdefault(topic, _Count())
        entry.count += step
        entry.changed_ms = now_ms = self._clock_ms()
        if not entry.count:
            del self._topics[topic]
        self._version = self._version.next(now_ms)

    def to_java(self) -> dict[str, object]:
        """The body of the answer."""
        counts = {
            topic: {"count": entry.count, "timeStamp": entry.changed_ms}
            for topic, entry in sorted(self._topics.items())
        }
        return {"dataVersion": self._version.to_java(), "timingCount": counts}
