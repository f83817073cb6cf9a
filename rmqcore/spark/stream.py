"""Following a live store: what each micro-batch of a stream reads.

An offset of the stream is the physical offset up to which each log has been read, and of which
topics and queues. It never passes the last good record: a batch that Spark plans again is the same
batch. Where the next offset has more topics, queues or logs, theirs are read from the earliest on.
An offset goes back only where ``failOnDataLoss`` is false and a log was cut and has gone on, or
another has its place, which is then read as a new one: beside each physical offset is a checksum of
what lies in front of it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from rmqcore.errors import ConfigError, StoreError
from rmqcore.scan import AnyLog, AnySelected, select
from rmqcore.spark.options import LATEST, ReadOptions, named_offsets
from rmqcore.spark.planning import LogPartition, archive_state_of, open_plan, split_size
from rmqcore.spark.reading import read_partition
from rmqcore.spark.rows_wanted import rows_wanted
from rmqcore.spark.selection import check_ranges, check_selection
from rmqcore.spark.stream_start import STARTING, as_begun, start_of
from rmqcore.spark.topic_choice import TopicChoice

#: The only log has this name in an offset, so that a checkpoint still fits when the store is
#: moved.
_ONLY = "log"
#: The versions of offsets that are read; the first knew no topics.
_VERSIONS = (1, 2)
_log = logging.getLogger(__name__)
#: broker -> physical offset
Offsets = dict[str, int]
#: broker -> checksum of what lies in front of a physical offset
Tails = dict[str, int]


class RmqStreamReader(DataSourceStreamReader):
    """A stream with one batch for all there is: Spark 4.0 and 4.1 know no limits.

    Args:
        options: of the reader.
        schema: of the batches.
    """

    takes_limits = False

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        _check_stream(options, takes_limits=self.takes_limits)
        self.options = options
        #: with the start that the query had
        self.begun = options
        self.schema = schema
        self.stores = dict(options.stores) if options.show_broker else {_ONLY: options.stores[0][1]}
        self._plans: dict[str, AnyLog] = {}
        self._latest: Offsets = {}
        self._tails: Tails = {}
        self.choice = TopicChoice.of(options)

    def initialOffset(self) -> dict[str, Any]:
        """Where a stream without a checkpoint begins."""
        first = {broker: self._first(broker) for broker in self.stores}
        check_selection(self.options, self._plans.values())
        check_ranges(self.options, self._plans.values())
        facts: dict[str, Any] = {STARTING: start_of(self.options)}
        if named_offsets(self.options.starting_offsets):
            facts["latest"] = {broker: plan.end for broker, plan in self._plans.items()}
        return self.offset_of(first, {}, facts)

    def latestOffset(self) -> dict[str, Any]:
        """The end of the next batch."""
        self._latest = self.published(self._latest, self._tails)
        found = self.offset_of(self._latest, self._tails, {})
        self._tails = found["tails"]
        return found

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[LogPartition]:
        """What lies between two offsets, cut for parallel tasks.

        Args:
            start: an offset of Spark's, where the batch begins.
            end: an offset of Spark's, where it ends.

        Raises:
            CorruptStoreError: the log is damaged.
            StoreError: with ``failOnDataLoss``: what the batch has to read is gone.
        """
        first, last = self.offsets(start), self.offsets(end)
        self.begun = as_begun(self.options, end.get(STARTING))
        told: Tails = end.get("tails", {})
        row_max = self.options.max_partition_records
        latest: Offsets = end.get("latest", {})
        old, new = self._choice_of(start), self._choice_of(end) or self.choice
        for broker in sorted(last):
            plan = self._plan(broker, last[broker])
            if self._is_another(broker, plan, last[broker], told):
                del last[broker]  # it is the next batch's, from its earliest record on
            elif (low := first.get(broker, 0)) > last[broker]:
                self._lost(broker, f"the log ended at {last[broker]}, before {low}, when planned")
                del first[broker]
            elif self._is_another(broker, plan, low, start.get("tails", {})):
                del first[broker]
        size = split_size(self.options, sum(last[name] - first.get(name, 0) for name in last))
        found: list[LogPartition] = []
        for broker in last:
            plan = self._plans[broker]
            low = first.get(broker, plan.start)
            stretches: list[tuple[int, int, TopicChoice | None]] = [
                (*self._still_there(plan, broker, low, last[broker]), None)
            ]
            if broker in first and old is not None and old != new:
                stretches.append((plan.start, min(low, plan.end), old))
            found += [
                LogPartition(
                    split,
                    self._name(broker),
                    new,
                    besides,
                    latest.get(broker, 0),
                    archive_state=archive_state_of(plan),
                    starting=end.get(STARTING),
                )
                for low, high, besides in stretches
                if low < high
                for split in self.selected(
                    plan, low, high, new, besides, began=latest.get(broker, 0)
                ).splits(size, row_max)
            ]
        return found

    def selected(
        self,
        plan: AnyLog,
        low: int,
        high: int,
        choice: TopicChoice,
        besides: TopicChoice | None = None,
        *,
        began: int = 0,
    ) -> AnySelected:
        """What is read between two physical offsets of a log, where records begin.

        Args:
            plan: the log.
            low: the first.
            high: behind the last.
            choice: the topics and queues that are read.
            besides: those whose rows have been read before; None for none.
            began: where the log ended when the stream began, if that is noted.
        """
        return select(plan, rows_wanted(self.begun, plan, choice, besides, began), low, high)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition."""
        return read_partition(partition, self.schema, self.options)

    # ---- offsets

    def offsets(self, offset: dict[str, Any]) -> Offsets:
        """The physical offsets in one of Spark's.

        Raises:
            ConfigError: a checkpoint of other stores, or of a later version.
        """
        places: Any = offset.get("phy_offset")
        tails = offset.get("tails", {})
        if (
            offset.get("version") not in _VERSIONS
            or not (_are_numbers(places) and _are_numbers(tails))
            or not places.keys() <= self.stores.keys()
        ):
            raise ConfigError(
                "checkpointLocation",
                offset,
                f"expected the checkpoint of a stream over {', '.join(self.stores)}",
            )
        return dict(places)

    def offset_of(self, offsets: Offsets, tails: Tails, facts: dict[str, Any]) -> dict[str, Any]:
        """Physical offsets as an offset of Spark's.

        Args:
            offsets: up to which each log is read.
            tails: of what lay in front of there, for a log that does not reach so far any more.
            facts: of when the stream began, which all its offsets have: ``starting``, see
                `start_of`, and if the options name offsets ``latest``, where the logs ended.
        """
        told = {}
        for broker, end in offsets.items():
            plan = self._plans[broker]
            tail = plan.tail_at(end) if end <= plan.end else tails.get(broker)
            if tail is not None:
                told[broker] = tail
        found = {
            "version": _VERSIONS[-1],
            "phy_offset": dict(offsets),
            "tails": told,
            **self.choice.to_json(),
        }
        return found | facts

    def _choice_of(self, offset: dict[str, Any]) -> TopicChoice | None:
        """The topics and queues up to an offset; None for one of the first version.

        One that knows no queues was of those that are asked for now.
        """
        if "topics" not in offset:
            return None
        now = self.choice.to_json()
        return TopicChoice.from_json(offset["topics"], offset.get("queues", now["queues"]))

    def published(self, start: Offsets, tails: Tails) -> Offsets:
        """Where the logs end now; never before ``start``.

        Args:
            start: where the stream is; without a log that is another one, when this ends.
            tails: of what lies in front of that.
        """
        ends = {}
        for broker, path in self.stores.items():
            known = self._plans.get(broker)
            if known is None or not known.is_current():
                self._plans[broker] = open_plan(path, self.options, known)
            if self._is_another(broker, self._plans[broker], start.get(broker, 0), tails):
                del start[broker]
            end, low = self._plans[broker].end, start.get(broker, 0)
            if end < low:
                self._lost(broker, f"the log ends at {end}, before {low} where the stream is")
            ends[broker] = max(end, low)
        return ends

    def _first(self, broker: str) -> int:
        plan = self._plans[broker] = open_plan(self.stores[broker], self.options)
        if self.options.starting_phy_offset is not None:
            wanted = min(max(self.options.starting_phy_offset, plan.start), plan.end)
            return max(plan.start, plan.file_start(wanted))
        if (
            self.options.starting_offsets in (None, "latest")
            and self.options.starting_timestamp is None
            and self.options.starting_times is None
        ):
            return plan.end
        return plan.start

    def _plan(self, broker: str, end: int) -> AnyLog:
        """The log, looked at again when what is known of it does not reach to ``end``."""
        plan = self._plans.get(broker)
        if plan is None or plan.end < end:
            plan = self._plans[broker] = open_plan(self.stores[broker], self.options, plan)
        return plan

    def _is_another(self, broker: str, plan: AnyLog, phy_offset: int, tails: Tails) -> bool:
        """Whether a log has other records in front of a place than the stream has read."""
        here = plan.tail_at(phy_offset) if broker in tails and phy_offset <= plan.end else None
        if here is None or here == tails[broker]:
            return False
        what = f"the log has other records before {phy_offset} than the stream has read"
        self._lost(broker, f"{what}: it was cut and has gone on, or is another store's")
        return True

    def _name(self, broker: str) -> str:
        return broker if self.options.show_broker else self.options.stores[0][0]

    def _still_there(self, plan: AnyLog, broker: str, low: int, high: int) -> tuple[int, int]:
        if low < plan.start:
            self._lost(
                broker, f"the log begins at {plan.start}, {low} and what follows has been deleted"
            )
        if high > plan.end:
            self._lost(broker, f"the log ends at {plan.end}, before {high} where the stream is")
        return max(low, plan.start), min(high, plan.end)

    def _lost(self, broker: str, what: str) -> None:
        text = f"{self.stores[broker]}: {what}"
        if self.options.fail_on_data_loss:
            raise StoreError(f"{text}; set failOnDataLoss=false to go on with what is left")
        _log.warning("%s (failOnDataLoss=false)", text)


def _are_numbers(told: Any) -> bool:
    return isinstance(told, dict) and all(type(number) is int for number in told.values())


def _check_stream(options: ReadOptions, *, takes_limits: bool) -> None:
    for name, value in (
        ("endingOffsets", options.ending_offsets),
        ("endingPhyOffset", options.ending_phy_offset),
        ("endingTimestamp", options.ending_timestamp),
        ("endingOffsetsByTimestamp", options.ending_times),
    ):
        if value is not None:
            raise ConfigError(name, value, "a stream does not end: use spark.read")
    for name, limit in (
        ("maxBytesPerTrigger", options.max_bytes_per_trigger),
        ("maxOffsetsPerTrigger", options.max_offsets_per_trigger),
        ("minOffsetsPerTrigger", options.min_offsets_per_trigger),
    ):
        if limit is not None and not takes_limits:
            raise ConfigError(name, limit, "limits need Spark 4.2 or later")
    if LATEST in named_offsets(options.starting_offsets) and not takes_limits:
        raise ConfigError("startingOffsets", LATEST, "latest of one queue needs Spark 4.2 or later")
