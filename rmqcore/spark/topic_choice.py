"""Which topics a reader has chosen, and from where on their rows are shown."""

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
    """The topics that options name: these, those that match, or all.

    Attributes:
        names: None for no list.
        pattern: a regular expression that the whole name matches; None for none.
    """

    names: tuple[str, ...] | None = None
    pattern: str | None = None

    @classmethod
    def of(cls, options: ReadOptions) -> TopicChoice:
        """What options choose."""
        return cls(options.topics, options.topic_pattern)

    @classmethod
    def from_json(cls, found: Any) -> TopicChoice:
        """What `to_json` has made.

        Raises:
            ConfigError: it is something else.
        """
        if found is None or isinstance(found, str):
            return cls(None, found)
        if isinstance(found, list) and all(isinstance(name, str) for name in found):
            return cls(tuple(found))
        raise ConfigError("checkpointLocation", found, "expected names of topics, or a pattern")

    def to_json(self) -> Any:
        """Names as a list, a pattern as a text, None for all."""
        return self.pattern if self.names is None else sorted(self.names)

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
        besides: topics whose rows have been read.
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

    def begins(self, topic: str) -> dict[int, int]:
        """By queue id, the physical offset from which on its rows are shown, where it is another.

        Of a topic that RocketMQ has deleted and made again.
        """
        found = self._begins.get(topic)
        if found is None:
            found = self._begins[topic] = self._deleted.begins(topic)
        return found

    def _looked_up(self, topic: str) -> int:
        if topic not in self._choice or (self._besides is not None and topic in self._besides):
            return HIDDEN
        named = self._choice.names is not None
        if is_service_topic(topic) and not (named or self._services):
            return HIDDEN
        if not self._is_written and self._deleted.is_gone(topic):
            return HIDDEN
        return self._deleted.since(topic)
