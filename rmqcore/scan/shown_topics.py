"""From which physical offset on the records of a topic are messages of it, and shown as such."""

from __future__ import annotations

import functools
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self

from rmqcore.files.deleted_topics import DELETED_TOPICS_NAME, DeletedTopics
from rmqcore.files.service_topics import is_service_topic
from rmqcore.files.store_dir import StoreDir
from rmqcore.scan.selection import HIDDEN, Selection

if TYPE_CHECKING:
    from collections.abc import Iterable


class TopicSource(Protocol):
    """What knows the topics of a log."""

    def shown_topics(self, named: Iterable[str], *, services: bool) -> ShownTopics:
        """What is shown of each topic; see `ShownTopics`.

        Args:
            named: topics that somebody has asked for by name; those are shown whatever they are.
            services: also show the topics of RocketMQ's own services.
        """


#: These files say which topics there are, and which were deleted.
_TABLES = ("topics.json", DELETED_TOPICS_NAME)
_Signature = tuple[tuple[int, int, int], ...]


class ShownTopics:
    """What is shown of each topic of a store.

    Of a topic that was deleted what came later; of a topic of a broker's own services nothing,
    unless it is named.

    Args:
        directory: of the store.
        named: topics that are asked for by name.
        services: show the topics of a broker's services, too.

    Attributes:
        seen: differs when topics have come or gone; of where no directory is, nothing.
    """

    seen: _Signature = ()

    def __init__(
        self, directory: StoreDir, named: Iterable[str] = (), *, services: bool = False
    ) -> None:
        self.seen = _signature(directory)
        deleted = _deleted_topics(directory.path, directory.commit_log, self.seen)
        # of a store that is written, a topic may be newer than the list of them
        self._set(deleted, named, services, directory.is_locked())

    @classmethod
    def of(
        cls, deleted: DeletedTopics, named: Iterable[str], *, services: bool, is_written: bool
    ) -> Self:
        """What is shown where no directory is.

        Args:
            deleted: topics that were deleted.
            named: as for the class.
            services: as for the class.
            is_written: a topic may be newer than the list of them.
        """
        found = cls.__new__(cls)
        found._set(deleted, named, services, is_written)
        return found

    def _set(
        self, deleted: DeletedTopics, named: Iterable[str], services: bool, is_written: bool
    ) -> None:
        self._named = frozenset(named)
        self._services = services
        self._deleted = deleted
        self._is_written = is_written

    def rule(self, topic: str) -> tuple[int, dict[int, int]]:
        """The `TopicRule` of the store."""
        if is_service_topic(topic) and not (self._services or topic in self._named):
            return HIDDEN, {}
        gone = 0 if self._is_written else self._deleted.gone_below(topic)
        if gone >= HIDDEN:
            return HIDDEN, {}
        first = max(gone, self._deleted.since(topic))
        # a topic that RocketMQ has deleted and made again begins with offset 0 in each queue
        begins = self._deleted.begins(topic)
        return first, {queue_id: max(first, begin) for queue_id, begin in begins.items()}


def shown(log: TopicSource, selection: Selection) -> Selection:
    """A selection that leaves out what is not shown, where it has no rule of its own.

    Args:
        log: whose tables of topics decide.
        selection: what the caller selects.
    """
    if "topic_rule" in selection:
        return selection
    services = selection.get("uncommitted", False)
    topics = log.shown_topics(selection.get("topics") or (), services=services)
    return {**selection, "topic_rule": topics.rule}


def _signature(directory: StoreDir) -> _Signature:
    """Changes whenever one of the tables is written anew."""
    found = []
    for name in _TABLES:
        with suppress(OSError):
            status = (directory.config / name).stat()
            found.append((status.st_ino, status.st_size, status.st_mtime_ns))
    return tuple(found)


@functools.lru_cache(maxsize=8)
def _deleted_topics(path: Path, commit_log: Path, _signature: _Signature) -> DeletedTopics:
    """What tables say; read once by a worker that has many tasks of one store."""
    return DeletedTopics(StoreDir(path, str(commit_log))).load()
