"""Streams over a cluster whose batches have a limit, and that can stop: Spark 4.2 and later."""

from __future__ import annotations

import math
from typing import Any

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from rmqcore.scan.cluster.topology import Offsets
from rmqcore.spark.cluster_stream import (
    ClusterStreamReader,
    by_topic,
    marks_of,
    offset_of,
    offsets_of,
)
from rmqcore.spark.stream_start import STARTING
from rmqcore.world import monotonic_s


class LimitedClusterStreamReader(ClusterStreamReader, SupportsTriggerAvailableNow):
    """A stream that follows ``maxOffsetsPerTrigger`` and ``minOffsetsPerTrigger``."""

    takes_limits = True
    _target: Offsets | None = None
    #: the end of the batch that was planned last
    _batch_end: Offsets | None = None
    #: when a trigger was not passed over; the first never is
    _triggered_s = -math.inf

    def getDefaultReadLimit(self) -> ReadLimit:
        """The limit that the options set."""
        if self.options.read.max_offsets_per_trigger is not None:
            return ReadMaxRows(self.options.read.max_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Read up to what there is now, and nothing behind."""
        self._target = self.published({}, {}, complete=True)

    def latestOffset(  # type: ignore[override]
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        """The end of the next batch.

        Args:
            start: an offset of Spark's, where the batch begins.
            limit: of rows; others are none.

        Returns:
            an offset of Spark's; ``start`` itself while too little has come.

        Raises:
            RemotingError: a broker does not answer.
        """
        known, read = offsets_of(start), marks_of(start)
        ends = self.published(known, read, complete=self._target is not None)
        self._latest = dict(ends)
        if self._target is not None:
            # what has come since, and the queues that have, are for another query
            ends = {
                # one that ends before its place was made anew, and is read whole
                queue: min(end, max(known.get(queue, 0), self._target.get(queue, 0)))
                for queue, end in ends.items()
                if queue in known or queue in self._target
            }
        first = self.begins_of_new(ends, known)
        if self._target is None:
            # where one begins whose route was lost just now the next trigger knows
            ends = {queue: end for queue, end in ends.items() if queue in first}
        first = {queue: min(first.get(queue, end), end) for queue, end in ends.items()}
        if self._waits(first, ends):
            return start
        if isinstance(limit, ReadMaxRows):
            ends = shared(first, ends, limit.max_rows)
        self._batch_end = ends
        begun = {STARTING: start[STARTING]} if STARTING in start else {}
        return offset_of(ends, self.marks_at(ends, known, read)) | begun

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Where the queues end, for the progress report of the query, and what is behind it.

        ``lag``: by topic, broker and queue, how many messages there are behind the batch.
        """
        if self._batch_end is None:
            return None
        lag = {
            queue: end - self._batch_end.get(queue, 0)
            for queue, end in self._latest.items()
            if end > self._batch_end.get(queue, 0)
        }
        found = offset_of(self._latest, {})
        return found | {"lag": by_topic(lag), "messages_behind": sum(lag.values())}

    def _waits(self, first: Offsets, ends: Offsets) -> bool:
        """Whether a trigger is passed over because there are too few new messages yet."""
        least, now_s = self.options.read.min_offsets_per_trigger, monotonic_s()
        if least is None or self._target is not None:
            return False
        count = sum(end - first[queue] for queue, end in ends.items())
        if now_s - self._triggered_s < self.options.read.max_trigger_delay_s and count < least:
            return True
        self._triggered_s = now_s
        return False


def shared(first: Offsets, ends: Offsets, row_max: int) -> Offsets:
    """Where a batch with a limit ends: each queue has the share that it has of the backlog.

    Args:
        first: where the queues are read from.
        ends: up to where they could be.
        row_max: of all together; at least one of each queue that has any, or one that others
            outrun would never be read.
    """
    found = {}
    left = row_max
    backlog = sum(end - first[queue] for queue, end in ends.items())
    # the queue with the least backlog first: what it leaves of its share is for the others
    for queue in sorted(ends, key=lambda queue: ends[queue] - first[queue]):
        size = ends[queue] - first[queue]
        share = min(size, max(1, left * size // max(1, backlog)))
        found[queue] = first[queue] + share
        left, backlog = max(0, left - share), backlog - size
    return found
