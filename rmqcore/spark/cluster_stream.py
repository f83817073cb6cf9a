"""Following a running cluster: what each micro-batch of a stream pulls.

An offset of the stream is, by topic, broker and queue, the queue offset up to which it has read. A
topic, queue or broker that an offset does not have yet is read from its earliest message on; one
that the name servers do not know at the moment keeps its place. A place goes back only where
``failOnDataLoss`` is false and a topic was made anew, which is then read as a new one: beside each
place is the `Mark` of the message in front of it, which another message of its number has not.
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
from rmqcore.scan.cluster.topology import Marks, Offsets
from rmqcore.scan.mark import Mark
from rmqcore.spark.cluster_options import ClusterOptions
from rmqcore.spark.cluster_planning import (
    ClusterPartition,
    ClusterPlan,
    known_marks,
    read_cluster_partition,
)
from rmqcore.spark.stream_start import STARTING, cluster_as_begun, cluster_start_of

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
        self._marks: Marks = {}
        self._away: frozenset[str] = frozenset()

    def initialOffset(self) -> dict[str, Any]:
        """Where a stream without a checkpoint begins."""
        with Cluster(self.options.access) as cluster:
            plan = ClusterPlan(cluster, self.options)
            plan.check_names()
            begins, ends = cluster.begins(plan.queues), cluster.ends(plan.queues)
            starts = plan.starts(begins, ends, default="latest")
            found = offset_of(starts, plan.marks(starts))
        return found | {STARTING: cluster_start_of(self.options)}

    def latestOffset(self) -> dict[str, Any]:
        """The end of the next batch."""
        self._latest = self.published(self._latest, self._marks)
        self._marks = self.marks_at(self._latest, {}, {})
        return offset_of(self._latest, self._marks)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[ClusterPartition]:
        """What lies between two offsets, cut for parallel tasks.

        Args:
            start: an offset of Spark's, from `offset_of`: where the batch begins.
            end: the same, where it ends.

        Raises:
            RemotingError: a broker does not answer.
            StoreError: with ``failOnDataLoss``: what the batch has to read is gone.
        """
        first, last = offsets_of(start), offsets_of(end)
        read, told = marks_of(start), marks_of(end)
        begun = cluster_as_begun(self.options, end.get(STARTING))
        with Cluster(self.options.access) as cluster:
            plan = ClusterPlan(cluster, begun)
            moved = {
                queue: stop
                for queue, stop in last.items()
                if first.get(queue) != stop or (queue in read and read[queue] != told.get(queue))
            }
            there = {queue: stop for queue, stop in moved.items() if queue in plan.queues}
            begins = cluster.begins({queue: plan.queues[queue] for queue in there})
            anew = _others(plan, {queue: first.get(queue, 0) for queue in there}, read)
            since = _others(plan, there, told)
        for queue in sorted(moved.keys() - there.keys()):
            if queue.topic in plan.choice:
                plan.lost(f"{_name(queue)}: no broker that a name server knows has this queue")
        for queue in sorted(since):
            plan.lost(f"{_name(queue)}: the topic was made anew since the batch was planned")
            del there[queue]  # it is the next batch's, from its first message on
        starts = {
            queue: self._start_of(plan, queue, first.get(queue), begins[queue])
            for queue in there
            if first.get(queue, 0) <= there[queue] and queue not in anew
        }
        # made anew, and so read whole: `published` has told
        starts = begins | starts
        return plan.partitions(starts, there, told)

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

    def published(self, start: Offsets, read: Marks, *, complete: bool = False) -> Offsets:
        """Where the queues end now, those that the stream knows and new ones; never before start.

        Args:
            start: where the stream is; without queues of a topic that was made anew, when this
                ends.
            read: of the messages in front of that.
            complete: a broker that does not answer is an error; else its queues keep their places.
        """
        away: dict[str, RemotingError] = {}
        with Cluster(self.options.access) as cluster:
            plan = ClusterPlan(cluster, self.options)
            ends = cluster.ends(plan.queues, None if complete else away)
            same = {
                queue: start[queue]
                for queue in ends.keys() & start.keys()
                if start[queue] <= ends[queue] and queue.broker_name not in cluster.followed
            }
            anew = _others(plan, same, read, None if complete else away)
        for broker in sorted(away.keys() - self._away):
            _log.warning("broker %s: %s; the stream goes on without it", broker, away[broker])
        self._away = frozenset(away)
        for queue, end in ends.items():
            here = start.get(queue, 0)
            if end < here and queue.broker_name in cluster.followed:
                ends[queue] = here
            elif end < here:
                plan.lost(f"{_name(queue)} ends at {end}, before {here} where the stream is")
        for queue in sorted(anew):
            plan.lost(
                f"{_name(queue)}: the message at {start[queue] - 1} is another one, as the "
                "topic was made anew"
            )
            del start[queue]
        return start | ends

    def marks_at(self, offsets: Offsets, known: Offsets, read: Marks) -> Marks:
        """The marks in front of offsets; those in front of ``known`` are ``read``.

        Args:
            offsets: by queue.
            known: offsets whose marks are known, by queue.
            read: those marks, by queue.

        Raises:
            RemotingError: a broker does not answer.
        """
        found = {q: mark for q, mark in read.items() if known.get(q, -1) == offsets.get(q)}
        others = {q: at for q, at in offsets.items() if q not in found}
        with Cluster(self.options.access) as cluster:
            queues = cluster.queues(sorted({queue.topic for queue in others}))
            group = self.options.pulling_group
            return found | known_marks(cluster.marks(queues, others, group, {}))

    def begins_of_new(self, ends: Mapping[MessageQueue, int], start: Offsets) -> Offsets:
        """Where each queue is read from: a new one from its earliest message on.

        Args:
            ends: queue offset where the batch ends, by queue.
            start: queue offset where it begins, for queues that are known.

        Raises:
            RemotingError: a broker does not answer.
        """
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


def offset_of(offsets: Offsets, marks: Marks) -> dict[str, Any]:
    """Queue offsets as an offset of Spark's: by topic, broker and queue.

    Args:
        offsets: by queue.
        marks: of the last message in front of each, by queue; those that nobody knows are left out.

    Returns:
        JSON for a checkpoint, which `offsets_of` and `marks_of` read.
    """
    texts = {queue: [*mark] for queue, mark in known_marks(marks).items() if queue in offsets}
    return {"version": _VERSION, "queues": by_topic(offsets), "marks": by_topic(texts)}


def by_topic(values: Mapping[MessageQueue, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    """Values of queues by topic, broker and queue."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for queue, value in sorted(values.items()):
        brokers = found.setdefault(queue.topic, {})
        brokers.setdefault(queue.broker_name, {})[str(queue.queue_id)] = value
    return found


def offsets_of(offset: dict[str, Any]) -> Offsets:
    """The queue offsets in one of Spark's.

    Raises:
        ConfigError: a checkpoint of a stream over directories, or of a later version.
    """
    if offset.get("version") != _VERSION or "queues" not in offset:
        raise ConfigError(
            "checkpointLocation", offset, "expected the checkpoint of a stream over a cluster"
        )
    return _by_queue(offset["queues"])


def marks_of(offset: dict[str, Any]) -> Marks:
    """The marks in one of Spark's offsets; none in one of before they were noted."""
    return {queue: Mark(*told) for queue, told in _by_queue(offset.get("marks", {})).items()}


def _by_queue(values: dict[str, Any]) -> dict[MessageQueue, Any]:
    return {
        MessageQueue(topic, broker, int(queue_id)): value
        for topic, brokers in values.items()
        for broker, queues in brokers.items()
        for queue_id, value in queues.items()
    }


def _others(
    plan: ClusterPlan,
    offsets: Offsets,
    marks: Marks,
    away: dict[str, RemotingError] | None = None,
) -> set[MessageQueue]:
    """Queues whose message in front of an offset is another than a mark says."""
    wanted = {queue: at for queue, at in offsets.items() if queue in marks}
    return {queue for queue, mark in plan.marks(wanted, away).items() if mark != marks[queue]}


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
