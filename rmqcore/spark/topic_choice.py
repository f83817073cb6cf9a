"""Which topics and queues a reader has chosen."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from rmqcore.errors import ConfigError
from rmqcore.spark.options import ReadOptions


@dataclass(frozen=True, slots=True)
class TopicChoice:
    """The topics that options name, these, those that match, or all; and the queues of each.

    Attributes:
        names: None for no list.
        pattern: a regular expression that the whole name matches; None for none.
        queue_ids: of each topic, in their order; None for all.
        assigned: topics and the queue ids of each, in their order; None where all topics have
            ``queue_ids``.
    """

    names: tuple[str, ...] | None = None
    pattern: str | None = None
    queue_ids: tuple[int, ...] | None = None
    assigned: tuple[tuple[str, tuple[int, ...]], ...] | None = None

    @classmethod
    def of(cls, options: ReadOptions) -> TopicChoice:
        """What options choose."""
        queue_ids = options.queue_ids
        if options.assign is not None:
            return cls(tuple(topic for topic, _ in options.assign), None, None, options.assign)
        return cls(
            options.topics,
            options.topic_pattern,
            None if queue_ids is None else tuple(sorted(queue_ids)),
        )

    @classmethod
    def from_json(cls, topics: Any, queues: Any) -> TopicChoice:
        """What `to_json` has made.

        Args:
            topics: a list of names, a pattern, or None for all.
            queues: ids by topic, a list of ids, or None for all.

        Raises:
            ConfigError: it is something else.
        """
        queue_ids = None
        if isinstance(queues, dict) and all(map(_are_ids, queues.values())):
            assigned = tuple((topic, tuple(ids)) for topic, ids in sorted(queues.items()))
            return cls(tuple(sorted(queues)), None, None, assigned)
        if _are_ids(queues):
            queue_ids = tuple(queues)
        elif queues is not None:
            raise ConfigError("checkpointLocation", queues, "expected ids of queues")
        if topics is None or isinstance(topics, str):
            return cls(None, topics, queue_ids)
        if isinstance(topics, list) and all(isinstance(name, str) for name in topics):
            return cls(tuple(topics), None, queue_ids)
        raise ConfigError("checkpointLocation", topics, "expected names of topics, or a pattern")

    def to_json(self) -> dict[str, Any]:
        """``topics``: names as a list, or a pattern; ``queues``: ids as a list, or by topic.

        None for all.
        """
        if self.assigned is not None:
            return {
                "topics": sorted(self.names or ()),
                "queues": {topic: list(ids) for topic, ids in self.assigned},
            }
        return {
            "topics": self.pattern if self.names is None else sorted(self.names),
            "queues": None if self.queue_ids is None else list(self.queue_ids),
        }

    def __contains__(self, topic: str) -> bool:
        if self.names is not None:
            return topic in self.names
        return self.pattern is None or re.fullmatch(self.pattern, topic) is not None

    def queues_of(self, topic: str) -> tuple[int, ...] | None:
        """Ids of the queues of a topic that is chosen; None for all."""
        return self.queue_ids if self.assigned is None else dict(self.assigned).get(topic, ())


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(each) is int for each in value)
