"""Streams whose batches have a limit, and that can stop at what there is: Spark 4.2 and later."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from rmqcore.scan import AnySelected, read
from rmqcore.scan.any_log import select
from rmqcore.spark.queue_lag import WALKED_A_QUEUE, Counts, QueueLag
from rmqcore.spark.rows_wanted import rows_wanted
from rmqcore.spark.stream import Offsets, RmqStreamReader, Tails
from rmqcore.spark.stream_start import STARTING, as_begun
from rmqcore.world import monotonic_s

#: Of no more queues than these all are asked, and the log is read once.
_ASKED_MAX = 64


class LimitedStreamReader(RmqStreamReader, SupportsTriggerAvailableNow):
    """A stream that follows ``maxBytesPerTrigger`` and ``maxOffsetsPerTrigger``."""

    takes_limits = True
    _target: Offsets | None = None
    #: where the logs ended when the stream began
    _began: Offsets | None = None
    #: the offsets of the batch that was planned last
    _batch: tuple[Offsets, Offsets] = ({}, {})
    #: of each log, what lies behind the batch
    _lags: dict[str, QueueLag] | None = None
    #: when a trigger was last let through; the first one always is
    _triggered_s = -math.inf

    def getDefaultReadLimit(self) -> ReadLimit:
        """The limit that the options set."""
        if self.options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self.options.max_bytes_per_trigger)
        if self.options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self.options.max_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Read up to what there is now, and nothing behind."""
        self._target = self.published({}, {})

    def latestOffset(  # type: ignore[override]
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        """The end of the next batch.

        Args:
            start: an offset of Spark's, where the batch begins.
            limit: of bytes or of rows; others are none.

        Returns:
            an offset of Spark's; ``start`` itself while too little has come.

        Raises:
            CorruptStoreError: the log is damaged.
        """
        first = self.offsets(start)
        self._began = start.get("latest", {})
        self.begun = as_begun(self.options, start.get(STARTING))
        tails: Tails = start.get("tails", {})
        ends = self.published(first, tails)
        # a log that the stream has not seen yet is read from its earliest record on
        first = {name: first.get(name, self._plans[name].start) for name in ends}
        self._latest = dict(ends)
        if self._is_to_wait(first, ends):
            return start
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
        self._batch = (first, dict(ends))
        facts = {name: value for name, value in start.items() if name in (STARTING, "latest")}
        return self.offset_of(ends, tails, facts)

    def _is_to_wait(self, first: Offsets, ends: Offsets) -> bool:
        """Whether a trigger is passed over because there are too few new messages yet."""
        least, now_s = self.options.min_offsets_per_trigger, monotonic_s()
        if least is None or self._target is not None:
            return False
        if now_s - self._triggered_s < self.options.max_trigger_delay_s:
            counts = (self._of(name, first[name], ends[name]) for name in ends)
            if sum(sum(log.queue_counts().values()) for log in counts) < least:
                return True
        self._triggered_s = now_s
        return False

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Where the logs end, for the progress report of the query, and what is behind it.

        ``bytes``: of log between the offsets of the batch, and of those that are read. ``lag``: by
        queue, how many messages there are behind the batch, as consume queues know it.
        """
        if not self._latest:
            return None
        first, ends = self._batch
        read = lag = 0
        queues: dict[str, dict[str, int]] = {}
        for name, end in ends.items():
            plan = self._plans[name]
            read += self._of(name, first[name], end).bytes
            behind = self._behind(name, end, plan.end) if end < plan.end else {}
            for (topic, queue_id), count in behind.items():
                of_topic = queues.setdefault(topic, {})
                of_topic[str(queue_id)] = of_topic.get(str(queue_id), 0) + count
                lag += count
        log = sum(ends[name] - first[name] for name in ends)
        found = self.offset_of(self._latest, {}, {})
        return found | {"bytes": {"log": log, "read": read}, "lag": queues, "messages_behind": lag}

    def _behind(self, name: str, low: int, high: int) -> Counts:
        """How many messages of each queue lie between two physical offsets of a log."""
        self._lags = {} if self._lags is None else self._lags
        if name not in self._lags:
            self._lags[name] = QueueLag(
                partial(self._counted, name),
                lambda low, high: Counter(self._of(name, low, high).queue_counts()),
                partial(self._cut_behind, name),
            )
        plan = self._plans[name]
        seen = plan.shown_topics((), services=False).seen
        return self._lags[name].between(low, high, plan.known_end, plan.queue_count, seen)

    def _cut_behind(self, name: str, start: int, size: int, high: int) -> int:
        return self._plans[name].cut_behind(start, size, high)

    def _counted(self, name: str, low: int, high: int) -> Counts:
        """The same by a look at every record; what is damaged is passed over."""
        found: Counts = Counter()
        columns = ("topic", "queue_id")
        for batch in self._rows(name, low, high, columns, 1 << 16, fail=False):
            groups = pa.table(batch).group_by(list(columns)).aggregate([([], "count_all")])
            topics, queue_ids, counts = (groups[at].to_pylist() for at in (*columns, "count_all"))
            found.update(dict(zip(zip(topics, queue_ids, strict=True), counts, strict=True)))
        return found

    def _of(self, name: str, low: int, high: int) -> AnySelected:
        """What is read of a log between two physical offsets."""
        began = (self._began or {}).get(name, 0)
        return self.selected(self._plans[name], low, high, self.choice, began=began)

    def _end_of_rows(self, name: str, start: int, end: int, row_max: int) -> tuple[int, int]:
        """Where this many of a log's chosen rows end, and how many there are up to there."""
        plan = self._plans[name]
        if self.options.include_uncommitted:
            return self._walked(name, start, end, row_max)
        near = start
        if plan.queue_count > _ASKED_MAX and start < end:
            near = plan.cut_behind(start, plan.queue_count * WALKED_A_QUEUE, end)
        reached, rows = self._walked(name, start, near, row_max)
        if rows == row_max:
            return reached, rows
        known = min(plan.trusted_end, end)
        if near < known:
            told = self._of(name, near, known).end_of_rows(row_max - rows)
            if told is not None:
                told_end, count = told
                if told_end is not None:
                    return told_end, rows + count
                near, rows = known, rows + count
        # what its writer has not given to consume queues yet
        reached, count = self._walked(name, near, end, row_max - rows)
        return reached, rows + count

    def _walked(self, name: str, start: int, end: int, row_max: int) -> tuple[int, int]:
        """As `_end_of_rows`, by a look at every record."""
        rows, batch_rows = 0, min(row_max, self.options.batch_rows)
        fail = self.options.fail_on_data_loss
        for batch in self._rows(
            name, start, end, ("phy_offset", "store_size"), batch_rows, fail=fail
        ):
            if rows + batch.num_rows >= row_max:
                last = row_max - rows - 1
                offset = batch.column("phy_offset")[last].as_py()
                return offset + batch.column("store_size")[last].as_py(), row_max
            rows += batch.num_rows
        return end, rows

    def _rows(
        self,
        name: str,
        start: int,
        end: int,
        columns: tuple[str, ...],
        batch_rows: int,
        *,
        fail: bool,
    ) -> Iterator[pa.RecordBatch]:
        """A log's chosen rows between two physical offsets, as consume queues count them.

        Tags and times make a batch smaller, and its end not later.
        """
        if start >= end:
            return
        plan = self._plans[name]
        wanted = rows_wanted(self.begun, plan, self.choice, None, (self._began or {}).get(name, 0))
        wanted.pop("tags", None)
        wanted.pop("begin_ms", None)
        wanted.pop("queue_times", None)
        on_damage = None if fail else lambda _: None
        for split in select(plan, wanted, start, end).splits():
            for found in read(split, columns, batch_rows=batch_rows, on_damage=on_damage, **wanted):
                yield pa.record_batch(found)
