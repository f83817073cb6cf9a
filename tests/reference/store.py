"""A whole store read from its commit log alone; everything else is derived, or searched in full."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from .consume_queue import QueueKey, queue_files, queues_of, unit_of
from .index import IndexFile, IndexRule, build_index
from .records import TRANSACTION_ROLLBACK, Record
from .recovery import LogWalk, walk_log


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The file sizes of a store."""

    consume_queue_file: int
    slot_num: int
    entry_num: int


def read_files(directory: Path) -> dict[int, bytes]:
    """Read the files of a directory whose names are their first byte's position."""
    return {int(path.name): path.read_bytes() for path in sorted(directory.glob("[0-9]" * 20))}


class ReferenceStore:
    """Answers from the log's records, by looking at all of them."""

    def __init__(
        self, path: Path, sizes: Sizes, deleted_below: Mapping[str, int] | None = None
    ) -> None:
        """Read the log.

        Args:
            path: the store's directory.
            sizes: of its files.
            deleted_below: by topic that was deleted, the end of the log then; no record below it is
                in a queue.
        """
        self.sizes = sizes
        since = deleted_below or {}
        self.log_files = read_files(path / "commitlog")
        self.walk: LogWalk = walk_log(self.log_files)
        self._index: dict[IndexRule, list[IndexFile]] = {}
        self.records: list[Record] = self.walk.records
        self.queues: dict[QueueKey, dict[int, Record]] = queues_of(
            record for record in self.records if record.phy_offset >= since.get(record.topic, 0)
        )

    @property
    def min_phy_offset(self) -> int:
        """Log position of the first byte."""
        return min(self.log_files, default=0)

    @property
    def max_phy_offset(self) -> int:
        """Log position behind the last record."""
        return self.walk.end

    def min_queue_offset(self, topic: str, queue_id: int) -> int:
        """Offset of a queue's first message whose record is still there; 0 for no such queue."""
        return min(self.queues.get((topic, queue_id), {}), default=0)

    def max_queue_offset(self, topic: str, queue_id: int) -> int:
        """Offset that the queue's next message will have; 0 for no such queue."""
        return max(self.queues.get((topic, queue_id), {}), default=-1) + 1

    def get(self, topic: str, queue_id: int, offset: int) -> Record | None:
        """Give one message of a queue."""
        return self.queues.get((topic, queue_id), {}).get(offset)

    def queue(self, topic: str, queue_id: int) -> list[Record]:
        """Give all messages of a queue in order."""
        return [record for _, record in sorted(self.queues.get((topic, queue_id), {}).items())]

    def message_at(self, phy_offset: int) -> Record | None:
        """Give the record that begins at a log position."""
        return self._by_position.get(phy_offset)

    def query(self, topic: str, key: str, begin_ms: int = 0, end_ms: int = 2**63 - 1) -> list[int]:
        """Give the log positions of all records of a topic that carry a key, ascending."""
        return [
            record.phy_offset
            for record in self._by_key.get((topic, key), ())
            if begin_ms <= record.store_timestamp_ms <= end_ms
        ]

    @cached_property
    def _by_position(self) -> dict[int, Record]:
        return {record.phy_offset: record for record in self.records}

    @cached_property
    def _by_key(self) -> dict[tuple[str, str], list[Record]]:
        """The records that carry a key, by topic and key, in log order."""
        found: dict[tuple[str, str], list[Record]] = {}
        for record in self.records:
            if record.transaction != TRANSACTION_ROLLBACK:
                for key in {*record.keys, record.unique_key} - {None}:
                    found.setdefault((record.topic, key), []).append(record)
        return found

    def offset_by_time_lower(self, topic: str, queue_id: int, time_ms: int) -> int:
        """Give the first offset whose store time is at or after a time, else the maximum."""
        queue = self.queues.get((topic, queue_id), {})
        offsets = [o for o, record in queue.items() if record.store_timestamp_ms >= time_ms]
        return min(offsets, default=self.max_queue_offset(topic, queue_id))

    def offset_by_time_upper(self, topic: str, queue_id: int, time_ms: int) -> int:
        """Give the last offset whose store time is at or before a time, else the minimum."""
        queue = self.queues.get((topic, queue_id), {})
        offsets = [o for o, record in queue.items() if record.store_timestamp_ms <= time_ms]
        return max(offsets, default=self.min_queue_offset(topic, queue_id))

    def consume_queue_files(self) -> dict[str, bytes]:
        """Derive every consume-queue file: path below the store's directory, and bytes."""
        return {
            f"consumequeue/{topic}/{queue_id}/{start:020d}": data
            for (topic, queue_id), records in self.queues.items()
            for start, data in queue_files(
                {offset: unit_of(record) for offset, record in records.items()},
                self.sizes.consume_queue_file,
            ).items()
        }

    def index_files(self, rule: IndexRule) -> list[IndexFile]:
        """Derive the index files, oldest first."""
        if rule not in self._index:
            sizes = self.sizes
            self._index[rule] = build_index(self.records, sizes.slot_num, sizes.entry_num, rule)
        return self._index[rule]
