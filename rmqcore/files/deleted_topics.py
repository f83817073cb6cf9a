"""Deleted topics: which records of the log belong to one, and so to no queue any more.

Deleting a topic removes its queues; its records stay in the log until they expire. Whatever is
derived from the log again must leave them out. Three things tell:

- rmqcore writes down the end of the log when it deletes a topic: records below are deleted;
- a topic that RocketMQ has deleted is missing in its ``topics.json``; where that was lost and its
  backup is read, also one that has come since; in a slave's, one that has come with the log, and
  not yet with the table; and one that was put here, into the store of a broker, before an end that
  was not in order, which may have taken its queues;
- a topic that was made again counts its queue offsets from 0 again: the last run of offsets that
  begins with 0 is the queue's, and the queue's own first unit says where that is. What it says of
  the topic's other queues tells `rmqcore.native.derive.runs.TopicRuns`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from rmqcore.errors import CorruptConfigFileError, CorruptRecordError
from rmqcore.files.config_file import ConfigFile, sealed, unsealed
from rmqcore.files.config_tables import BROKERS_OWN, TopicConfigTable
from rmqcore.files.mapped_file_queue import numbered_files
from rmqcore.files.store_dir import subdirectories
from rmqcore.files.store_mark import StoreMark
from rmqcore.files.unit_file import UNIT_HEAD
from rmqcore.java.json import format_java_json, parse_java_json
from rmqcore.native.format._numbers import FILLER_SIZE
from rmqcore.world import wall_clock_ms

if TYPE_CHECKING:
    from pathlib import Path

    from rmqcore.files.batch_consume_queue import StoredQueue
    from rmqcore.files.commit_log import CommitLog
    from rmqcore.files.store_dir import StoreDir

DELETED_TOPICS_NAME = "deletedTopics.json"
#: No record lies here.
_NOWHERE = 2**63 - 1
#: Where a topic was deleted whose deletion does not count any more: below all records.
_UNDONE = 0
#: Topics with these names are never in that table, or are made with their first message.
_UNLISTED_PREFIXES = ("%LMQ%", "%RETRY%", "%DLQ%", "rmq_sys_", "RMQ_SYS_", "SCHEDULE_TOPIC_")


class DeletedTopics:
    """Knows from which physical offset on the records of a topic belong to its queues.

    Args:
        directory: of the store; its files are read, at `load`.

    Durability: disk when `delete` returns.
    """

    def __init__(self, directory: StoreDir) -> None:
        self._directory = directory
        self._file = ConfigFile(directory.config / DELETED_TOPICS_NAME, _decoded)
        self._deleted_at: dict[str, int] = {}
        self._listed: frozenset[str] | None = None
        self._lists_all = False
        #: True for the store of a broker that takes over its master's topics
        self.is_slaves = False
        self._left_from = _NOWHERE
        self._has_queues: dict[str, bool] = {}

    def load(self, *, clean_shutdown: bool | None = None) -> DeletedTopics:
        """Read what there is.

        Args:
            clean_shutdown: whether the store was closed in order; None: as its directory says.

        Returns:
            itself.

        Raises:
            CorruptConfigFileError: what was deleted cannot be read any more.
        """
        self._deleted_at = self._file.load() or {}
        self._listed = self._table_of_a_broker()
        if clean_shutdown is None:
            clean_shutdown = not self._directory.was_aborted
        self._left_from = _NOWHERE if clean_shutdown or self._listed is None else self._marked_end()
        self._has_queues.clear()
        return self

    def _marked_end(self) -> int:
        """Where the log ended when all queues were last on the disk, behind any that is unknown."""
        mark = StoreMark(self._directory)
        mark.load()
        return mark.log_end if mark.is_known else _NOWHERE

    def discard_unfinished(self) -> None:
        """Remove what a kill has left of a `delete`; only for the store's writer."""
        self._file.discard_unfinished()

    def _table_of_a_broker(self) -> frozenset[str] | None:
        """The topics of a broker's ``topics.json``; None when there is none, or it is not whole."""
        self.is_slaves = False
        with suppress(CorruptConfigFileError):
            table = TopicConfigTable(self._directory.config, clock=wall_clock_ms)
            self.is_slaves, self._lists_all = table.follows, table.is_whole
            names = frozenset(entry.topic_name for entry in table)
            if names.intersection(BROKERS_OWN):
                return names
        return None

    def begins(self, topic: str) -> dict[int, int]:
        """By queue of a topic that begins with its number 0, where that record lies.

        What lies before belongs to a topic of that name which RocketMQ has deleted; nothing is
        told of stores that no broker has run.
        """
        if self._listed is None:
            return {}
        root = self._directory.consume_queue / topic
        found = {
            int(name): first_record(root / name)
            for name in subdirectories(root)
            if name.isascii() and name.isdigit()
        }
        return {queue_id: offset for queue_id, offset in found.items() if offset is not None}

    def since(self, topic: str) -> int:
        """Physical offset from which records of a topic that was deleted here count; or 0."""
        return self._deleted_at.get(topic, 0)

    def is_gone(self, topic: str, phy_offset: int = 0) -> bool:
        """True for a record of a topic that RocketMQ has deleted: see `gone_below`.

        Args:
            topic: the record's.
            phy_offset: where it lies.
        """
        return phy_offset < self.gone_below(topic)

    def gone_below(self, topic: str) -> int:
        """Physical offset below which records are of a topic that RocketMQ has deleted.

        No queue of it is left, and no broker knows it. A topic that has queues, or that a broker
        never lists, is not judged by that; nor is what has come since this engine opened a store
        that was not closed in order: its queues may never have been on the disk.

        Returns:
            0 for a topic that is not judged, or has queues.
        """
        gone = self.is_unlisted(topic) and not self._had_queues(topic)
        return self._left_from if gone else 0

    def counts_from(self, topic: str) -> int:
        """Physical offset from which records of a topic count, whoever has deleted it."""
        return max(self.since(topic), self.gone_below(topic))

    def is_unlisted(self, topic: str) -> bool:
        """True for a topic that a broker's table of topics would have, and has not."""
        return (
            self._listed is not None
            and self._lists_all
            and not self.is_slaves
            and topic not in self._listed
            and topic not in self._deleted_at
            and not topic.startswith(_UNLISTED_PREFIXES)
        )

    def _had_queues(self, topic: str) -> bool:
        """True when the topic had a queue with a file when it was first asked for."""
        known = self._has_queues.get(topic)
        if known is None:
            known = self._has_queues[topic] = any(
                numbered_files(root / topic / name)
                for root in self._roots()
                for name in subdirectories(root / topic)
            )
        return known

    def lacks_files(self, key: tuple[str, int]) -> bool:
        """True for a (topic, queue id) of which no file is there."""
        topic, queue_id = key
        return not any(numbered_files(root / topic / str(queue_id)) for root in self._roots())

    def _roots(self) -> tuple[Path, Path]:
        return self._directory.consume_queue, self._directory.batch_consume_queue

    def topics(self) -> dict[str, int]:
        """Topics that were deleted here, with the end of the log at that time."""
        return dict(self._deleted_at)

    def delete(self, deleted_at: Mapping[str, int], log_start: int = 0) -> None:
        """Write down that records of topics below a physical offset are deleted, or of none.

        Args:
            deleted_at: by name the end of the log at that moment; records from there on are of a
                new topic. A later deletion of a topic takes the place of this one.
            log_start: where the log begins: what was deleted before there is forgotten, so that a
                program which deletes topics for ever has as many of them as the log.

        Raises:
            OSError: it could not be written; nothing has changed.
        """
        kept = {name: at for name, at in self._deleted_at.items() if at > log_start}
        self._store({**kept, **deleted_at})

    def fit(self, log_start: int, log_end: int, *, deriving: bool) -> None:
        """Forget what the log has no more, and let no note speak of what is still to be put.

        Args:
            log_start: physical offset of the log's first byte.
            log_end: physical offset behind its last one.
            deriving: whether queues are being derived that are not on the disk yet: that a
                deletion counts no more is known until they are.

        Raises:
            OSError: it could not be written.
        """
        fitted = {
            topic: min(offset, log_end)
            for topic, offset in self._deleted_at.items()
            if offset > log_start or (deriving and offset == _UNDONE)
        }
        if fitted != self._deleted_at:
            self._store(fitted)

    def is_of_longer(self, log_end: int) -> bool:
        """Whether a topic was deleted when the log was longer than this."""
        return any(at > log_end for at in self._deleted_at.values())

    def undo_behind(self, log_end: int) -> None:
        """Let nothing count as deleted that was when the log was longer than this.

        The broker's table does not list these topics any more, and is not to be believed in that.

        Raises:
            OSError: it could not be written.
        """
        self._store({t: at if at <= log_end else _UNDONE for t, at in self._deleted_at.items()})

    def _store(self, deleted_at: dict[str, int]) -> None:
        text = format_java_json({"deletedTopics": dict(sorted(deleted_at.items()))})
        self._directory.check_there()
        self._file.store(sealed(text))
        self._deleted_at = deleted_at


def first_record(queue: Path) -> int | None:
    """Where the record with number 0 of a queue lies, None when its unit is not there.

    Args:
        queue: directory of the queue.
    """
    with suppress(FileNotFoundError), (queue / f"{0:020d}").open("rb") as file:
        unit = file.read(UNIT_HEAD.size)
        if len(unit) == UNIT_HEAD.size:
            phy_offset, size = UNIT_HEAD.unpack(unit)
            return phy_offset if 0 < size < FILLER_SIZE else None
    return None


def goes_on_across(queue: StoredQueue, phy_offset: int, log: CommitLog) -> bool:
    """True for a queue whose numbers go on from in front of a deletion to behind it.

    The log has to agree: a unit may have rotted.

    Args:
        queue: of the topic.
        phy_offset: where the log ended when the topic was deleted.
        log: which the queue is of.
    """
    first = queue.unit_at(queue.min_offset)
    if first is None or first[0] >= phy_offset or queue.end_phy_offset <= phy_offset:
        return False
    try:
        message = log.message_at(first[0])
    except CorruptRecordError:
        return False
    if message is None:
        return False
    named = message.topic, message.queue_id, message.queue_offset
    return named == (queue.topic, queue.queue_id, queue.min_offset)


def _decoded(text: str) -> dict[str, int]:
    told = deletions_told(unsealed(text))
    if told is None:
        raise ValueError("there are no deletedTopics")
    return told


def deletions_told(text: str) -> dict[str, int] | None:
    """The member ``deletedTopics`` of an object: by topic a physical offset; None for none.

    Raises:
        ValueError: the text or the member is no such.
    """
    content = parse_java_json(text)
    if not isinstance(content, dict) or "deletedTopics" not in content:
        return None
    topics = content["deletedTopics"]
    if not isinstance(topics, dict):
        raise ValueError("deletedTopics is no object")  # noqa: TRY004 - the text is wrong
    for topic, offset in topics.items():
        if type(offset) is not int or offset < 0:
            raise ValueError(f"{topic}: {offset!r} is no offset")
    return topics
