"""From options to ranges of queues: what one batch, or one trigger of a stream, pulls."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from rmqcore.client import MessageQueue
from rmqcore.config import StoreConfig
from rmqcore.errors import ConfigError, StoreError
from rmqcore.remoting import RemotingError
from rmqcore.scan.cluster import Cluster, QueueRange, read_range
from rmqcore.scan.cluster.ranges import cut_ranges, packed_ranges
from rmqcore.scan.cluster.topology import Marks, Offsets, Queues
from rmqcore.scan.mark import ANOTHER
from rmqcore.scan.selection import Selection
from rmqcore.spark.cluster_options import ClusterOptions, of_queues
from rmqcore.spark.options import EARLIEST, LATEST, ReadOptions, unknown
from rmqcore.spark.reading import HOLDS_BODY, arranged
from rmqcore.spark.runner import freeze_worker
from rmqcore.spark.schema import BROKER
from rmqcore.spark.topic_choice import TopicChoice

_log = logging.getLogger(__name__)

#: A task pulls this many messages.
_PIECE_COUNT = 1_000_000
#: A task pulls no fewer messages where there are more: that is a second or two of work, beside
#: which the cost of a task weighs little.
_PIECE_COUNT_MIN = 200_000
#: messages of many queues that one task pulls: what it costs anyway is as much work
_PACKED_COUNT = 50_000
_DELAYS_MS = StoreConfig().delay_levels_ms
_TIME_MIN, _TIME_MAX = -(2**63), 2**63 - 1


class TimedRange(NamedTuple):
    """A range of one queue, and the store times of its rows, both included."""

    range: QueueRange
    begin_ms: int
    end_ms: int


class ClusterPartition(InputPartition):
    """What one task pulls.

    Attributes:
        ranges: stretches of queues of one broker, one after the other.
    """

    def __init__(self, ranges: tuple[TimedRange, ...]) -> None:
        super().__init__(", ".join(str(one.range) for one in ranges))
        self.ranges = ranges

    def __repr__(self) -> str:
        return f"ClusterPartition({self.value})"


def read_cluster_partition(
    partition: InputPartition, schema: pa.Schema, options: ClusterOptions
) -> Iterator[pa.RecordBatch]:
    """The rows of one partition.

    Args:
        partition: a `ClusterPartition`; anything else is what Spark makes up when there is none.
        schema: of the batches.
        options: of the reader.

    Raises:
        MessagesGoneError, CorruptRecordError: with ``failOnDataLoss``; the text has the queue.
        RemotingError: the broker does not answer, or will not.
    """
    if not isinstance(partition, ClusterPartition):
        return
    freeze_worker()
    for one in partition.ranges:
        yield from _rows_of(one, schema, options)


def _rows_of(
    one: TimedRange, schema: pa.Schema, options: ClusterOptions
) -> Iterator[pa.RecordBatch]:
    read = options.read
    names = [name for name in schema.names if name != BROKER] or ["phy_offset"]
    selection: Selection = {"begin_ms": one.begin_ms, "end_ms": one.end_ms}
    if read.tags is not None:
        selection["tags"] = read.tags
    batches = read_range(
        options.access,
        one.range,
        names,
        group=options.pulling_group,
        verify_crc=read.verify_crc == "fail"
        or (read.verify_crc is None and not HOLDS_BODY.isdisjoint(names)),
        plain_bodies=read.decompress_body,
        batch_rows=read.batch_rows,
        batch_bytes=read.batch_bytes,
        delays_ms=_DELAYS_MS,
        fail_on_loss=read.fail_on_data_loss,
        **selection,
    )
    for columns_read in batches:
        yield arranged(pa.record_batch(columns_read), schema, one.range.queue.broker_name)


class ClusterPlan:
    """The queues that options choose, as they are now.

    Args:
        cluster: is asked.
        options: of the reader.

    Raises:
        RemotingError: no name server answers.
    """

    def __init__(self, cluster: Cluster, options: ClusterOptions) -> None:
        self.cluster = cluster
        self.options = options
        self.choice = TopicChoice.of(options.read)
        self.queues: Queues = {
            queue: addresses
            for queue, addresses in cluster.queues(self._topics()).items()
            if (ids := self.choice.queues_of(queue.topic)) is None or queue.queue_id in ids
        }

    def _topics(self) -> list[str]:
        """The topics that are chosen: named ones as they are, a pattern's out of all."""
        if self.choice.names is not None:
            return list(self.choice.names)
        return [topic for topic in self.cluster.topics() if topic in self.choice]

    def check_names(self) -> None:
        """Name in a warning what nothing matches."""
        there = {queue.topic for queue in self.queues}
        for topic in sorted(set(self.choice.names or ()) - there):
            _log.warning("nothing matches %s", unknown("topic", topic, self.cluster.topics()))
        if self.choice.pattern is not None and not there:
            _log.warning(
                "nothing matches subscribePattern=%r, which has to match the whole name of a topic",
                self.choice.pattern,
            )

    def starts(self, begins: Offsets, ends: Offsets, *, default: str) -> Offsets:
        """Where each queue is read from.

        Args:
            begins: where the queues begin.
            ends: where they end.
            default: "earliest" or "latest", where the options say nothing.

        Raises:
            ConfigError: offsets or times of a queue that there is not.
            StoreError: with ``failOnDataLoss``, offsets that were deleted or are not there yet.
        """
        options = self.options
        said = options.starting_offsets
        by_time = options.starting_times is not None or options.read.starting_timestamp is not None
        if said is None:
            said = "earliest" if by_time else default
        found = dict(ends if said == "latest" else begins)
        if isinstance(said, tuple):
            found |= self._said("startingOffsets", said, begins, ends)
        # of the millisecond before, as a broker may name any message of one; rows are looked at
        times = {queue: max(0, time_ms - 1) for queue, time_ms in self.begin_times().items()}
        found |= self._offsets_at(times, begins, ends)
        self._check_nothing_then(found, ends)
        return found

    def stops(self, begins: Offsets, ends: Offsets) -> Offsets:
        """Up to where each queue is read by a batch; errors as those of `starts`."""
        found = dict(ends)
        if isinstance(self.options.ending_offsets, tuple):
            found |= self._said("endingOffsets", self.options.ending_offsets, begins, ends)
        for queue, offset in self._offsets_at(self.end_times(), begins, ends).items():
            # which may be the last one before the time; rows are looked at
            found[queue] = min(found[queue], offset + 1)
        return found

    def begin_times(self) -> dict[MessageQueue, int]:
        """From which store time on each queue has rows; those of which nothing is said are not."""
        options = self.options
        return self._times(
            "startingOffsetsByTimestamp", options.starting_times, options.read.starting_timestamp
        )

    def end_times(self) -> dict[MessageQueue, int]:
        """Before which store time each queue has rows."""
        options = self.options
        return self._times(
            "endingOffsetsByTimestamp", options.ending_times, options.read.ending_timestamp
        )

    def marks(self, offsets: Offsets, away: dict[str, RemotingError] | None = None) -> Marks:
        """As `Cluster.marks`, for the group of the options."""
        return self.cluster.marks(self.queues, offsets, self.options.pulling_group, away)

    def partitions(self, starts: Offsets, stops: Offsets, lasts: Marks) -> list[ClusterPartition]:
        """Ranges of queues, cut for parallel tasks; `lasts` are the marks in front of ``stops``.

        Args:
            starts: queue offset to begin at, by queue.
            stops: queue offset to end before, by queue; a queue without one is left out.
            lasts: mark of the last message in front of it, by queue.
        """
        begin_ms, end_ms = self.begin_times(), self.end_times()
        ranges = [
            QueueRange(queue, self.queues[queue], starts[queue], stops[queue], lasts.get(queue))
            for queue in sorted(stops)
        ]
        total = sum(one.count for one in ranges)
        size, least = piece_count(self.options.read, total), self.options.read.min_partitions or 1
        together = min(_PACKED_COUNT, size, total // least)
        return [
            ClusterPartition(
                tuple(
                    TimedRange(
                        one,
                        begin_ms.get(one.queue, _TIME_MIN),
                        end_ms.get(one.queue, _TIME_MAX) - 1,
                    )
                    for one in pack
                )
            )
            for pack in packed_ranges(cut_ranges(ranges, size, least), together)
        ]

    def lost(self, text: str) -> None:
        """Tell that something that is asked for is not there.

        Raises:
            StoreError: with ``failOnDataLoss``.
        """
        if self.options.read.fail_on_data_loss:
            raise StoreError(f"{text}; set failOnDataLoss=false to read what is there")
        _log.warning("%s (failOnDataLoss=false)", text)

    def _said(
        self,
        name: str,
        numbers: tuple[tuple[str, str | None, int, int], ...],
        begins: Offsets,
        ends: Offsets,
    ) -> Offsets:
        found = {}
        for queue, offset in of_queues(name, numbers, self.queues).items():
            first, end = begins[queue], ends[queue]
            where = f"{name} of {'/'.join(map(str, queue))} is {offset}"
            if offset in (EARLIEST, LATEST):
                found[queue] = first if offset == EARLIEST else end
                continue
            # nothing is in front of number 0: a range that ends there lacks nothing
            if offset < first and not (name == "endingOffsets" and offset == 0):
                self.lost(f"{where}, but it begins at {first}; what was before has been deleted")
            if offset > end:
                self.lost(f"{where}, but it ends at {end}")
            found[queue] = min(max(offset, first), end)
        return found

    def _times(
        self,
        name: str,
        numbers: tuple[tuple[str, str | None, int, int], ...] | None,
        for_all: int | None,
    ) -> dict[MessageQueue, int]:
        found = {} if for_all is None else dict.fromkeys(self.queues, for_all)
        return found | of_queues(name, numbers or (), self.queues)

    def _offsets_at(
        self, times_ms: dict[MessageQueue, int], begins: Offsets, ends: Offsets
    ) -> Offsets:
        found = self.cluster.offsets_at(self.queues, times_ms)
        return {
            queue: min(max(offset, begins[queue]), ends[queue]) for queue, offset in found.items()
        }

    def _check_nothing_then(self, starts: Offsets, ends: Offsets) -> None:
        """Kafka's rule: a time behind which a queue has nothing is an error, unless told so."""
        if self.options.read.starting_times_strategy == "latest":
            return
        numbers = self.options.starting_times or ()
        for queue, time_ms in of_queues("startingOffsetsByTimestamp", numbers, self.queues).items():
            # brokers of 4.9 name the last message where none is of that time or later
            last = QueueRange(queue, self.queues[queue], ends[queue] - 1, ends[queue])
            if starts[queue] >= ends[queue] or (
                starts[queue] == last.first and not self._has_rows(last, time_ms)
            ):
                raise ConfigError(
                    f"startingOffsetsByTimestamp of {'/'.join(map(str, queue))}",
                    time_ms,
                    "nothing was stored then or later; startingOffsetsByTimestampStrategy=latest "
                    "waits for what comes",
                )

    def _has_rows(self, range: QueueRange, begin_ms: int) -> bool:
        """Whether some message of a range was stored at a time or later."""
        options, columns = self.options, ("queue_offset",)
        group = options.pulling_group
        found = read_range(options.access, range, columns, group=group, begin_ms=begin_ms)
        return any(batch.num_rows for batch in found)


def cluster_batch_partitions(options: ClusterOptions) -> list[ClusterPartition]:
    """What a batch reads, cut for parallel tasks.

    Raises:
        ConfigError: an option that only a stream has, one that no batch can follow, or offsets of
            a queue that there is not.
        StoreError: with ``failOnDataLoss``, offsets that were deleted or are not there yet.
        RemotingError: a name server or broker does not answer, or will not.
    """
    _check_batch(options)
    with Cluster(options.access) as cluster:
        plan = ClusterPlan(cluster, options)
        plan.check_names()
        begins, ends = cluster.begins(plan.queues), cluster.ends(plan.queues)
        starts = plan.starts(begins, ends, default="earliest")
        stops = plan.stops(begins, ends)
        return plan.partitions(starts, stops, known_marks(plan.marks(stops)))


def known_marks(marks: Marks) -> Marks:
    """Those of messages."""
    return {queue: mark for queue, mark in marks.items() if mark != ANOTHER}


def piece_count(read: ReadOptions, total: int) -> int:
    """Messages that a task should pull when there are ``total`` of them.

    Args:
        read: options of the reader.
        total: messages of all queues.
    """
    if read.max_partition_records is not None:
        return read.max_partition_records
    if read.slots is not None:
        return min(max(-(-total // read.slots), _PIECE_COUNT_MIN), _PIECE_COUNT)
    return _PIECE_COUNT


def _check_batch(options: ClusterOptions) -> None:
    for name, value in (
        ("maxOffsetsPerTrigger", options.read.max_offsets_per_trigger),
        ("minOffsetsPerTrigger", options.read.min_offsets_per_trigger),
    ):
        if value is not None:
            raise ConfigError(name, value, "only a stream has triggers: use spark.readStream")
    starts, ends = options.starting_offsets, options.ending_offsets
    if starts == "latest" or LATEST in _named(starts):
        raise ConfigError("startingOffsets", starts, "latest, -1, is empty; only for streams")
    if ends == "earliest" or EARLIEST in _named(ends):
        raise ConfigError("endingOffsets", ends, "earliest, -2, is empty")


def _named(offsets: str | Iterable[tuple[str, str | None, int, int]] | None) -> set[int]:
    return set() if offsets is None or isinstance(offsets, str) else {o for *_, o in offsets}
