"""Choosing rows by what the decoder itself cannot choose them by, on whole Arrow columns."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from rmqcore.spark.options import EARLIEST, LATEST, QueueOffsets, ReadOptions


@dataclass(frozen=True, slots=True)
class RowFilter:
    """What a row has to satisfy: all of it.

    Attributes:
        topic_pattern: a regular expression that the whole topic matches.
        tags: one of these.
        first_offsets: rows of these queues begin at these queue offsets.
        end_offsets: rows of these queues end before these queue offsets.
        first_phy_offset, end_phy_offset: rows begin at the one, and before the other.
    """

    topic_pattern: str | None
    tags: tuple[str, ...] | None
    first_offsets: QueueOffsets
    end_offsets: QueueOffsets
    first_phy_offset: int | None
    end_phy_offset: int | None

    @classmethod
    def of(cls, options: ReadOptions) -> RowFilter:
        """The filter that options ask for."""
        starts, ends = options.starting_offsets, options.ending_offsets
        return cls(
            options.topic_pattern,
            options.tags,
            () if starts is None or isinstance(starts, str) else starts,
            () if ends is None or isinstance(ends, str) else ends,
            options.starting_phy_offset,
            options.ending_phy_offset,
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that the filter looks at."""
        wanted = ["topic"] if self.topic_pattern else []
        wanted += ["tags"] if self.tags else []
        if self.first_offsets or self.end_offsets:
            wanted += ["topic", "queue_id", "queue_offset"]
        if self.first_phy_offset is not None or self.end_phy_offset is not None:
            wanted += ["phy_offset"]
        return tuple(dict.fromkeys(wanted))

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of a batch that satisfy it."""
        if not self.columns:
            return batch
        import pyarrow.compute as pc  # noqa: PLC0415 - takes long, and most readers filter nothing

        masks = []
        if self.topic_pattern is not None:
            matches = re.compile(self.topic_pattern).fullmatch
            topics = pc.unique(batch.column("topic"))
            chosen = pa.array([t for t in topics.to_pylist() if matches(t)], pa.string())
            masks.append(pc.is_in(batch.column("topic"), chosen))
        if self.tags is not None:
            masks.append(pc.is_in(batch.column("tags"), pa.array(self.tags, pa.string())))
        for topic, queue_id, offset in self.first_offsets:
            if offset != EARLIEST:
                masks.append(self._bounded(batch, topic, queue_id, offset, pc.greater_equal))
        for topic, queue_id, offset in self.end_offsets:
            if offset != LATEST:
                masks.append(self._bounded(batch, topic, queue_id, offset, pc.less))
        if self.first_phy_offset is not None:
            masks.append(pc.greater_equal(batch.column("phy_offset"), self.first_phy_offset))
        if self.end_phy_offset is not None:
            masks.append(pc.less(batch.column("phy_offset"), self.end_phy_offset))
        for mask in masks[1:]:
            masks[0] = pc.and_(masks[0], mask)
        return batch.filter(masks[0]) if masks else batch

    @staticmethod
    def _bounded(
        batch: pa.RecordBatch,
        topic: str,
        queue_id: int,
        offset: int,
        compare: Callable[[pa.Array, int], pa.Array],
    ) -> pa.Array:
        """True for rows of other queues, and for rows of this one that the comparison accepts."""
        import pyarrow.compute as pc  # noqa: PLC0415 - as above

        other = pc.or_(
            pc.not_equal(batch.column("topic"), topic),
            pc.not_equal(batch.column("queue_id"), queue_id),
        )
        return pc.or_(other, compare(batch.column("queue_offset"), offset))
