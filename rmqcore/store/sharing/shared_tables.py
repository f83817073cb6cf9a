"""The tables of a shared store, topics and consumer offsets: each call is one of the handle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

from rmqcore.files.config_tables import TopicConfig

#: makes a call of `CALLS`: its row, the arguments, and those by name
Call = Callable[[str, tuple[Any, ...], dict[str, Any]], Any]


class SharedTopics:
    """A shared store's `TopicConfigTable`.

    Args:
        call: makes a call of the store.
    """

    def __init__(self, call: Call) -> None:
        self._call = call

    def get(self, topic: str) -> TopicConfig | None:
        """See `TopicConfigTable.get`."""
        return cast("TopicConfig | None", self._call("topics.get", (topic,), {}))

    def put(self, config: TopicConfig) -> None:
        """See `TopicConfigTable.put`."""
        self._call("topics.put", (config,), {})

    def remove(self, topic: str) -> bool:
        """See `TopicConfigTable.remove`."""
        return cast("bool", self._call("topics.remove", (topic,), {}))

    def persist(self) -> bool:
        """See `ConfigTable.persist`."""
        return cast("bool", self._call("topics.persist", (), {}))

    def __iter__(self) -> Iterator[TopicConfig]:
        return iter(self._call("topics.__iter__", (), {}))

    def __len__(self) -> int:
        return cast("int", self._call("topics.__len__", (), {}))


class SharedConsumerOffsets:
    """A shared store's `ConsumerOffsetTable`.

    Args:
        call: makes a call of the store.
    """

    def __init__(self, call: Call) -> None:
        self._call = call

    def get(self, topic: str, group: str, queue_id: int) -> int | None:
        """See `ConsumerOffsetTable.get`."""
        return cast("int | None", self._call("consumer_offsets.get", (topic, group, queue_id), {}))

    def commit(self, topic: str, group: str, queue_id: int, queue_offset: int) -> None:
        """See `ConsumerOffsetTable.commit`."""
        self._call("consumer_offsets.commit", (topic, group, queue_id, queue_offset), {})

    def queues(self, topic: str, group: str) -> dict[int, int]:
        """See `ConsumerOffsetTable.queues`."""
        return cast("dict[int, int]", self._call("consumer_offsets.queues", (topic, group), {}))

    def pairs(self) -> list[tuple[str, str]]:
        """See `ConsumerOffsetTable.pairs`."""
        return cast("list[tuple[str, str]]", self._call("consumer_offsets.pairs", (), {}))

    def remove(self, *, topic: str | None = None, group: str | None = None) -> int:
        """See `ConsumerOffsetTable.remove`."""
        settings = {"topic": topic, "group": group}
        return cast("int", self._call("consumer_offsets.remove", (), settings))

    def persist(self) -> bool:
        """See `ConfigTable.persist`."""
        return cast("bool", self._call("consumer_offsets.persist", (), {}))
