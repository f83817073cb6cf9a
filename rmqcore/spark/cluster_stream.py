"""Following a running cluster: what each micro-batch of a stream pulls.

An offset of the stream is, by topic, broker and queue, the queue offset up to which it has read. A
topic, queue or broker that an offset does not have yet is read from its earliest message on; one
that the name servers do not know at the moment keeps its place. A place goes back only where
``failOnDataLoss`` is false and a topic was made anew, which is then read as a new one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from rmqcore.client import MessageQueue
from rmqcore.errors import ConfigError
from rmqcore.remoting import RemotingError
from rmqcore.scan.cluster import Cluster
from rmqcore.scan.cluster.topology import Offsets
from rmqcore.spark.cluster_options import ClusterOptions
from rmqcore.spark.cluster_planning import ClusterPartition, ClusterPlan, read_cluster_partition

_VERSION = 1
_log = logging.getLogger(__name__)


class ClusterStreamReader(DataSourceStreamReader):
    """A stream with one batch for all there is: Spark 4.0 and 4.1 know no limits.

    Args:
        options: of the reader.
        schema: of the batches.
    """

    takes_limits = False

    def __init__(self, options: ClusterOptions, schema: pa.Schema) -> None:
        _check_stream(options, takes_limits=self.takes_limits)
        self.options = options
        self.schema = schema
        self._latest: Offsets = {}
        self._away: frozenset[str] = frozenset()

    def initialOffset(self) -> dict[str, Any]:
        """Where a stream without a checkpoint begins."""
        with Cluster(self.options.access) as cluster:
            plan = ClusterPlan(cluster, self.options)
            plan.check_names()
            begins, ends = cluster.begins(plan.queues), cluster.ends(plan.queues)
            return offset_of(plan.starts(begins, ends, default="latest"))

    def latestOffset(self) -> dict[str, Any]:
        """The end of the next batch."""
        self._latest = self.published(self._latest)
        return offset_of(self._latest)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[ClusterPartition]:
        """What lies between two offsets, cut for parallel tasks."""
        first, last = offsets_of(start), offsets_of(end)
        with Cluster(self.options.access) as cluster:
            plan = ClusterPlan(cluster, self.options)
            moved = {queue: stop for queue, stop in last.items() if first.get(queue) != stop}
            there = {queue: stop for queue, stop in moved.items() if queue in plan.queues}
            chosen = {queue: plan.queues[queue] for queue in there}
            begins = cluster.begins(chosen)
        for queue in sorted(moved.keys() - there.keys()):
            if queue.topic in plan.choice:
                plan.lost(f"{_name(queue)}: no broker that a name server knows has this queue")
        starts = {
            queue: self._start_of(plan, queue, first.get(queue), begins[queue])
            for queue in there
            if first.get(queue, 0) <= there[queue]
        }
        # made anew, and so read whole: `published` has told
        starts = begins | starts
        return plan.partitions(starts, there)

    def commit(self, end: dict[str, Any]) -> None:
        """Tell the brokers how far ``groupId`` is; nothing without it."""
        if self.options.group_id is None:
            return
        offsets = offsets_of(end)
        try:
            with Cluster(self.options.access) as cluster:
                queues = cluster.queues(sorted({queue.topic for queue in offsets}))
                cluster.commit(self.options.group_id, queues, offsets)
        except RemotingError as error:
            # the checkpoint has the truth; the next commit tells it again
            _log.warning("the progress of group %s: %s", self.options.group_id, error)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition."""
        return read_cluster_partition(partition, self.schema, self.options)

    # ---- offsets

    def published(self, start: Offsets, *, complete: bool = False) -> Offsets:
        """Where the queues end now, those that the stream knows and new ones; never before start.

        Args:
            start: where the stream is.
            complete: a broker that does not answer is an error; else its queues keep their places.
        """
        away: dict[str, RemotingError] = {}
        with Cluster(self.options.access) as cluster:
            plan = ClusterPlan(cluster, self.options)
            ends = cluster.ends(plan.queues, None if complete else away)
        for broker in sorted(away.keys() - self._away):
            _log.warning("broker %s: %s; the stream goes on without it", broker, away[broker])
        self._away = frozenset(away)
        for queue, end in ends.items():
            here = start.get(queue, 0)
            if end < here and queue.broker_name in cluster.followed:
                ends[queue] = here
            elif end < here:
                plan.lost(f"{_name(queue)} ends at {end}, before {here} where the stream is")
        return start | ends

    def begins_of_new(self, ends: Mapping[MessageQueue, int], start: Offsets) -> Offsets:
        """Where each queue is read from: a new one from its earliest message on."""
        new = ends.keys() - start.keys()
        if not new:
            return start
        with Cluster(self.options.access) as cluster:
            queues = cluster.queues(sorted({queue.topic for queue in new}))
            return start | cluster.begins({q: queues[q] for q in new if q in queues})

    def _start_of(
        self, plan: ClusterPlan, queue: MessageQueue, start: int | None, begin: int
    ) -> int:
        if start is None:
            return begin
        if start < begin:
            plan.lost(f"{_name(queue)} begins at {begin}; {start} and what follows were deleted")
        return max(start, begin)


def offset_of(offsets: Offsets) -> dict[str, Any]:
    """Queue offsets as an offset of Spark's: by topic, broker and queue."""
    found: dict[str, dict[str, dict[str, int]]] = {}
    for queue, offset in sorted(offsets.items()):
        brokers = found.setdefault(queue.topic, {})
        brokers.setdefault(queue.broker_name, {})[str(queue.queue_id)] = offset
    return {"version": _VERSION, "queues": found}


def offsets_of(offset: dict[str, Any]) -> Offsets:
    """The queue offsets in one of Spark's.

    Raises:
        ConfigError: a checkpoint of a stream over directories, or of a later version.
    """
    if offset.get("version") != _VERSION or "queues" not in offset:
        raise ConfigError(
            "checkpointLocation", offset, "expected the checkpoint of a stream over a cluster"
        )
    return {
        MessageQueue(topic, broker, int(queue_id)): number
        for topic, brokers in offset["queues"].items()
        for broker, queues in brokers.items()
        for queue_id, number in queues.items()
    }


def _name(queue: MessageQueue) -> str:
    return "/".join(map(str, queue))


def _check_stream(options: ClusterOptions, *, takes_limits: bool) -> None:
    for name, value in (
        ("endingOffsets", options.ending_offsets),
        ("endingTimestamp", options.read.ending_timestamp),
        ("endingOffsetsByTimestamp", options.ending_times),
    ):
        if value is not None:
            raise ConfigError(name, value, "a stream does not end: use spark.read")
    for name, limit in (
        ("maxOffsetsPerTrigger", options.read.max_offsets_per_trigger),
        ("minOffsetsPerTrigger", options.read.min_offsets_per_trigger),
    ):
        if limit is not None and not takes_limits:
            raise ConfigError(name, limit, "limits need Spark 4.2 or later")
