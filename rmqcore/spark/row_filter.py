"""Choosing rows by what the decoder itself cannot choose them by, on whole Arrow columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from rmqcore.spark.options import EARLIEST, LATEST, QueueOffsets, ReadOptions
from rmqcore.spark.topic_choice import HIDDEN, ShownTopics


@dataclass(frozen=True, slots=True)
class RowFilter:
    """What a row has to satisfy: all of it.

    Attributes:
        shown: from which physical offset on a topic's rows are shown.
        tags: one of these.
        first_offsets: rows of these queues begin at these queue offsets.
        end_offsets: rows of these queues end before these queue offsets.
        latest_phy_offset: where "latest" of ``first_offsets`` is.
        first_phy_offset, end_phy_offset: rows begin at the one, and before the other.
    """

    shown: ShownTopics
    tags: tuple[str, ...] | None
    first_offsets: QueueOffsets
    end_offsets: QueueOffsets
    latest_phy_offset: int
    first_phy_offset: int | None
    end_phy_offset: int | None

    @classmethod
    def of(cls, options: ReadOptions, shown: ShownTopics, latest_phy_offset: int = 0) -> RowFilter:
        """The filter that options ask for."""
        starts, ends = options.starting_offsets, options.ending_offsets
        return cls(
            shown,
            options.tags,
            () if starts is None or isinstance(starts, str) else starts,
            () if ends is None or isinstance(ends, str) else ends,
            latest_phy_offset,
            options.starting_phy_offset,
            options.ending_phy_offset,
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that the filter looks at."""
        wanted = [] if self.shown.all_shown else ["topic", "queue_id", "phy_offset"]
        wanted += ["tags"] if self.tags else []
        if self.first_offsets or self.end_offsets:
            wanted += ["topic", "queue_id", "queue_offset", "phy_offset"]
        if self.first_phy_offset is not None or self.end_phy_offset is not None:
            wanted += ["phy_offset"]
        return tuple(dict.fromkeys(wanted))

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of a batch that satisfy it."""
        if not self.columns:
            return batch
        import pyarrow.compute as pc  # noqa: PLC0415 - takes long, and most readers filter nothing

        masks = [] if self.shown.all_shown else self._topic_masks(batch)
        if self.tags is not None:
            masks.append(pc.is_in(batch.column("tags"), pa.array(self.tags, pa.string())))
        for topic, queue_id, offset in self.first_offsets:
            if offset == LATEST:
                masks.append(
                    self._bounded(batch, topic, queue_id, "phy_offset", self.latest_phy_offset)
                )
            elif offset != EARLIEST:
                masks.append(self._bounded(batch, topic, queue_id, "queue_offset", offset))
        for topic, queue_id, offset in self.end_offsets:
            if offset != LATEST:
                masks.append(self._bounded(batch, topic, queue_id, "queue_offset", offset, pc.less))
        if self.first_phy_offset is not None:
            masks.append(pc.greater_equal(batch.column("phy_offset"), self.first_phy_offset))
        if self.end_phy_offset is not None:
            masks.append(pc.less(batch.column("phy_offset"), self.end_phy_offset))
        for mask in masks[1:]:
            masks[0] = pc.and_(masks[0], mask)
        return batch.filter(masks[0]) if masks else batch

    def _topic_masks(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """None for a batch of which every row's topic is shown."""
        import pyarrow.compute as pc  # noqa: PLC0415 - as above

        masks = []
        topics, places = batch.column("topic"), batch.column("phy_offset")
        firsts = {topic: self.shown.first(topic) for topic in pc.unique(topics).to_pylist()}
        hidden = [topic for topic, first in firsts.items() if first == HIDDEN]
        if hidden:
            masks.append(pc.invert(pc.is_in(topics, pa.array(hidden, pa.string()))))
        begin = places[0].as_py() if len(places) else HIDDEN
        for topic, first in firsts.items():
            if begin < first < HIDDEN:
                shown = pc.greater_equal(places, first)
                masks.append(pc.or_(pc.not_equal(topics, topic), shown))
            read = self.shown.queues_read(topic)
            if read:
                queues = batch.column("queue_id")
                of_them = pc.is_in(queues, pa.array(read, queues.type))
                masks.append(pc.invert(pc.and_(pc.equal(topics, topic), of_them)))
            for queue_id, first_of_queue in self.shown.begins(topic).items():
                if begin < first_of_queue:
                    masks.append(
                        self._bounded(batch, topic, queue_id, "phy_offset", first_of_queue)
                    )
        return masks

    @staticmethod
    def _bounded(
        batch: pa.RecordBatch,
        topic: str,
        queue_id: int,
        column: str,
        offset: int,
        compare: Callable[[pa.Array, int], pa.Array] | None = None,
    ) -> pa.Array:
        """True for rows of other queues, and for rows of this one that the comparison accepts."""
        import pyarrow.compute as pc  # noqa: PLC0415 - as above

        other = pc.or_(
            pc.not_equal(batch.column("topic"), topic),
            pc.not_equal(batch.column("queue_id"), queue_id),
        )
        return pc.or_(other, (compare or pc.greater_equal)(batch.column(column), offset))
