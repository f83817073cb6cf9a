"""Streams whose batches have a limit, and that can stop at what there is: Spark 4.2 and later."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from rmqcore.scan import read
from rmqcore.spark.planning import LogPartition
from rmqcore.spark.stream import Offsets, RmqStreamReader


class LimitedStreamReader(RmqStreamReader, SupportsTriggerAvailableNow):
    """A stream that follows ``maxBytesPerTrigger`` and ``maxOffsetsPerTrigger``."""

    takes_limits = True
    _target: Offsets | None = None

    def getDefaultReadLimit(self) -> ReadLimit:
        """The limit that the options set."""
        if self.options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self.options.max_bytes_per_trigger)
        if self.options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self.options.max_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Read up to what there is now, and nothing behind."""
        self._target = self.published({})

    def latestOffset(  # type: ignore[override]
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        """The end of the next batch."""
        first = self.offsets(start)
        ends = self.published(first)
        # a log that the stream has not seen yet is read from its earliest record on
        first = {name: first.get(name, self._plans[name].start) for name in ends}
        self._latest = dict(ends)
        if self._target is not None:
            ends = {name: max(first[name], min(ends[name], self._target[name])) for name in ends}
        backlog = sum(ends[name] - first[name] for name in ends)
        if isinstance(limit, ReadMaxBytes) and limit.max_bytes < backlog:
            for name, end in ends.items():
                # each log gets the share that it has of what is to be read
                share = max(1, limit.max_bytes * (end - first[name]) // backlog)
                if first[name] < end:
                    ends[name] = self._plans[name].cut_behind(first[name], share, end)
        if isinstance(limit, ReadMaxRows):
            left = limit.max_rows
            # the log with the least backlog first: what it leaves of its share is for the others
            for name in sorted(ends, key=lambda name: ends[name] - first[name]):
                # at least one row, or a log that others outrun would never be read
                share = max(1, -(-left * (ends[name] - first[name]) // max(1, backlog)))
                backlog -= ends[name] - first[name]
                ends[name], rows = self._end_of_rows(name, first[name], ends[name], share)
                left -= rows
        return self.offset_of(ends, start.get("latest", {}))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Where the logs end, for the progress report of the query."""
        return self.offset_of(self._latest, {}) if self._latest else None

    def _end_of_rows(self, name: str, start: int, end: int, row_max: int) -> tuple[int, int]:
        """Where so many of a log's chosen rows end, and how many there are up to there."""
        rows = 0
        if start >= end:
            return end, 0
        partition = LogPartition(self._plans[name].split(start, end), name, self.choice)
        chosen = partition.row_filter(self.options)
        columns = tuple(dict.fromkeys(("phy_offset", "store_size", *chosen.columns)))
        batches = read(
            partition.split,
            columns,
            topics=self.options.topics,
            queue_ids=self.options.queue_ids,
            begin_ms=self.options.starting_timestamp,
            uncommitted=self.options.include_uncommitted,
            batch_rows=min(row_max, self.options.batch_rows),
            on_damage=None if self.options.fail_on_data_loss else lambda _: None,
        )
        for columns_read in batches:
            batch = chosen.apply(pa.record_batch(columns_read))
            if rows + batch.num_rows >= row_max:
                last = row_max - rows - 1
                offset = batch.column("phy_offset")[last].as_py()
                return offset + batch.column("store_size")[last].as_py(), row_max
            rows += batch.num_rows
        return end, rows
