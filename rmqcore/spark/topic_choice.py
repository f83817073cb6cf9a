"""Which topics and queues a reader has chosen, and from where on their rows are shown."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from rmqcore.errors import ConfigError
from rmqcore.files.deleted_topics import DeletedTopics
from rmqcore.files.service_topics import is_service_topic
from rmqcore.files.store_dir import StoreDir, subdirectories
from rmqcore.spark.options import ReadOptions

#: the physical offset that no record has
HIDDEN = 2**63 - 1


@dataclass(frozen=True, slots=True)
class TopicChoice:
    """The topics that options name, these, those that match, or all; and the queues of each.

    Attributes:
        names: None for no list.
        pattern: a regular expression that the whole name matches; None for none.
        queue_ids: in their order; None for all.
    """

    names: tuple[str, ...] | None = None
    pattern: str | None = None
    queue_ids: tuple[int, ...] | None = None

    @classmethod
    def of(cls, options: ReadOptions) -> TopicChoice:
        """What options choose."""
        queue_ids = options.queue_ids
        return cls(
            options.topics,
            options.topic_pattern,
            None if queue_ids is None else tuple(sorted(queue_ids)),
        )

    @classmethod
    def from_json(cls, topics: Any, queues: Any) -> TopicChoice:
        """What `to_json` has made.

        Raises:
            ConfigError: it is something else.
        """
        queue_ids = None
        if isinstance(queues, list) and all(type(each) is int for each in queues):
            queue_ids = tuple(queues)
        elif queues is not None:
            raise ConfigError("checkpointLocation", queues, "expected ids of queues")
        if topics is None or isinstance(topics, str):
            return cls(None, topics, queue_ids)
        if isinstance(topics, list) and all(isinstance(name, str) for name in topics):
            return cls(tuple(topics), None, queue_ids)
        raise ConfigError("checkpointLocation", topics, "expected names of topics, or a pattern")

    def to_json(self) -> dict[str, Any]:
        """``topics``: names as a list, or a pattern; ``queues``: ids as a list. None for all."""
        return {
            "topics": self.pattern if self.names is None else sorted(self.names),
            "queues": None if self.queue_ids is None else list(self.queue_ids),
        }

    def __contains__(self, topic: str) -> bool:
        if self.names is not None:
            return topic in self.names
        return self.pattern is None or re.fullmatch(self.pattern, topic) is not None


class ShownTopics:
    """From which physical offset on the rows of a topic are shown.

    A topic that was deleted shows what came later; topics of a broker's own services show nothing
    unless they are named, or uncommitted records are asked for.

    Attributes:
        all_shown: surely nothing that is chosen is hidden.

    Args:
        directory: of the store.
        choice: the topics that are chosen.
        besides: topics and queues whose rows have been read.
        services: show the topics of a broker's services, too.
    """

    def __init__(
        self,
        directory: StoreDir,
        choice: TopicChoice,
        *,
        besides: TopicChoice | None = None,
        services: bool = False,
    ) -> None:
        self._choice = choice
        self._besides = besides
        self._services = services
        self._deleted = DeletedTopics(directory).load()
        # of a store that is written, a topic may be newer than the list of them
        self._is_written = directory.is_locked()
        self._first: dict[str, int] = {}
        self._begins: dict[str, dict[int, int]] = {}
        queues = subdirectories(directory.consume_queue)
        #: nothing has to be looked at: names are chosen where records are decoded
        self.all_shown = (
            choice.pattern is None
            and besides is None
            and not self._is_written
            and self._deleted.is_certain_of_none
            and bool(queues)
            and not any(map(is_service_topic, queues))
        )

    def first(self, topic: str) -> int:
        """The physical offset; `HIDDEN` for none, 0 for the log's begin."""
        found = self._first.get(topic)
        if found is None:
            found = self._first[topic] = self._looked_up(topic)
        return found

    def queues_read(self, topic: str) -> tuple[int, ...]:
        """Ids of the queues of a topic whose rows have been read, where others have not."""
        if self._besides is None or topic not in self._besides:
            return ()
        return self._besides.queue_ids or ()

    def begins(self, topic: str) -> dict[int, int]:
        """By queue id, the physical offset from which on its rows are shown, where it is another.

        Of a topic that RocketMQ has deleted and made again.
        """
        found = self._begins.get(topic)
        if found is None:
            found = self._begins[topic] = self._deleted.begins(topic)
        return found

    def _looked_up(self, topic: str) -> int:
        besides = self._besides
        read_whole = besides is not None and besides.queue_ids is None and topic in besides
        if topic not in self._choice or read_whole:
            return HIDDEN
        named = self._choice.names is not None
        if is_service_topic(topic) and not (named or self._services):
            return HIDDEN
        if not self._is_written and self._deleted.is_gone(topic):
            return HIDDEN
        return self._deleted.since(topic)
