"""`TableFollower`: brings what a topic gets into a table, commit by commit."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import pyarrow as pa

from rmqcore.errors import ConfigError, RecordsGoneError, RmqCoreError
from rmqcore.files.objects import is_url
from rmqcore.lake.bodies import Bodies, refused_schema
from rmqcore.lake.sources import COLUMNS, Place, Progress, Source, Span, open_source
from rmqcore.lake.target import (
    MissedMessagesError,
    TableAccessError,
    TableChangedError,
    Target,
    TopicMadeAnewError,
)
from rmqcore.remoting import RemotingError
from rmqcore.scan.cluster import MessagesGoneError
from rmqcore.scan.mark import Mark
from rmqcore.scan.tables import TABLE_FORMATS, require_package
from rmqcore.world import monotonic_s, wall_clock_ms

#: The directory of rows whose bodies do not fit is the table's with this behind its name.
REFUSED: Final = "~dlq"
#: Names in a catalog have letters, digits and _ only, or some of their readers stumble.
REFUSED_NAME: Final = "_dlq"
#: A commit has at most this many messages, so that a table of months begins in many commits.
ROWS_MAX: Final = 1_000_000
#: A commit has about this many bytes at most, which are in memory together.
BYTES_MAX: Final = 256 << 20
#: States of a table that are older are forgotten; readers have so long for a query, in seconds.
KEEP_S: Final = 7 * 86_400.0
#: Behind messages that are gone the next round goes on, or says that they are missing.
_PASSING: Final = (RemotingError, TableChangedError, RecordsGoneError, MessagesGoneError)
_EXPIRE_EVERY_S: Final = 3600.0
_TYPES: Final = {
    "queue_id": pa.int32(),
    "queue_offset": pa.int64(),
    "store_timestamp": pa.timestamp("us", tz="UTC"),
    "born_timestamp": pa.timestamp("us", tz="UTC"),
    "properties": pa.map_(pa.string(), pa.string()),
}


@dataclass(frozen=True, slots=True)
class Round:
    """What one round has done.

    Attributes:
        rows: that the table got.
        refused: rows whose bodies do not fit, which the table beside it got.
        compacted: small files that were made one.
        behind: messages that the topic has, and the table has not yet.
    """

    rows: int
    refused: int
    compacted: int
    behind: int


class TableFollower:
    """A table that follows a topic.

    Args:
        source: a store's directory, or ``namesrv://host:port/topic``.
        table: the table's directory, or for Delta its URL; of a catalog ``namespace.table``.
        topic: which; None where the URL names it.
        table_format: ``delta`` or ``iceberg``.
        bodies: what becomes of bodies.
        storage_options: of object storage, as of an archive.
        catalog: that has an Iceberg table, as PyIceberg's ``load_catalog`` takes it; ``name`` is
            that of one of PyIceberg's configuration. None: it lies beside the table.
        allow_loss: go on behind messages that retention has deleted before they were read.

    Raises:
        ConfigError: an unknown format, no topic, no such catalog, or half a pair of keys.
        RmqCoreError: the format's package is not installed.

    Threads: one runs it; `run` may be ended by any.
    """

    def __init__(
        self,
        source: str | os.PathLike[str],
        table: str | os.PathLike[str],
        *,
        topic: str | None = None,
        table_format: str = "delta",
        bodies: Bodies | None = None,
        storage_options: Mapping[str, str] | None = None,
        catalog: Mapping[str, str] | None = None,
        allow_loss: bool = False,
    ) -> None:
        if table_format not in TABLE_FORMATS:
            raise ConfigError("format", table_format, f"one of {', '.join(TABLE_FORMATS)}")
        require_package(table_format)
        self._source: Source = open_source(source, topic)
        self._bodies = bodies or Bodies()
        self._allow_loss = allow_loss
        plain = pa.schema(
            [pa.field(name, _TYPES.get(name, pa.string())) for name in _names() if name != "body"]
        )
        good = plain
        for field in self._bodies.columns():
            good = good.append(field)
        refused = refused_schema(plain.append(pa.field("body", pa.binary())))
        # behind a slash the second table would lie inside, where expiring deletes its files
        place = os.fspath(table).rstrip("/")
        making = partial(_target, table_format, storage_options or {}, catalog)
        beside = place + (REFUSED if catalog is None else REFUSED_NAME)
        self._good = making(place, good, self._source.topic)
        self._refused = making(beside, refused, "refused")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing is held between rounds."""

    def run_once(self) -> Round:
        """Bring what the topic has got since the last commit, `ROWS_MAX` or `BYTES_MAX` at most.

        Raises:
            MissedMessagesError: retention was faster; nothing was committed.
            TableChangedError: another writer was faster; nothing was committed.
            StoreError, RemotingError: the source cannot be read.
        """
        there = self._source.spans()
        offsets = self._good.offsets()
        wanted = self._wanted(there, offsets)
        rows = refused = 0
        if wanted:
            found, wanted = self._source.read(wanted, BYTES_MAX)
            self._check_there(wanted)
            self._check_same(offsets)
            good, rest = self._bodies.apply(found)
            reached = {**offsets, **_places(found, wanted)}
            refused = self._put_aside(rest, reached)
            self._good.append(good, offsets, reached)
            rows, offsets = good.num_rows, reached
        else:
            self._check_same(offsets)
        now_s = wall_clock_ms() / 1000
        compacted = self._good.compact(now_s)
        if refused:
            compacted += self._refused.compact(now_s)
        behind = sum(
            span.stop - max(span.first, offsets.get(queue, Place(span.first)).offset)
            for queue, span in there.items()
        )
        return Round(rows, refused, compacted, max(0, behind))

    def run(
        self,
        every_s: float,
        stop: threading.Event,
        told: Callable[[Round], None] | None = None,
        failed: Callable[[RmqCoreError], None] | None = None,
    ) -> None:
        """Do rounds until an event is set: one every so many seconds, at once while it is behind.

        Args:
            every_s: seconds between two commits; a message is a row after that at the latest.
            stop: ends it.
            told: called after each round.
            failed: called with what a round has failed with that may pass: a broker that does not
                answer, another writer who was faster, messages that were deleted while they were
                read, storage that is away. None raises it, and storage that was never there is
                raised.

        Raises:
            MissedMessagesError: as `run_once`; to go on would lose messages.
        """
        expires_s, began = monotonic_s(), False
        while not stop.is_set():
            try:
                done = self.run_once()
                if monotonic_s() >= expires_s:
                    self.expire()
                    expires_s = monotonic_s() + _EXPIRE_EVERY_S
                began = True
            except (*_PASSING, TableAccessError) as error:
                # what was never reached is no place that is away for a moment
                if failed is None or (isinstance(error, TableAccessError) and not began):
                    raise
                failed(error)
                stop.wait(every_s)
                continue
            if told is not None:
                told(done)
            if not done.behind:
                stop.wait(every_s)

    def expire(self, keep_s: float = KEEP_S) -> None:
        """Forget states of both tables that are older than so many seconds, and their files."""
        # of rows that do not fit there may be none for long
        self._refused.compact(wall_clock_ms() / 1000)
        for target in (self._good, self._refused):
            target.expire(keep_s)

    def _wanted(self, there: dict[str, Span], offsets: Progress) -> dict[str, Span]:
        """What is to be read: of each queue its share, what is left over to the next round."""
        spans = {}
        for queue, (first, stop) in there.items():
            begin = offsets.get(queue, Place(first)).offset
            if begin < first:
                if not self._allow_loss:
                    raise _gone(queue, begin, first)
                begin = first
            if begin > stop:
                raise TopicMadeAnewError(
                    queue, f"ends at {stop}, and the table has its messages up to {begin}"
                )
            if begin < stop:
                spans[queue] = Span(begin, stop)
        whole = sum(stop - first for first, stop in spans.values())
        if whole <= ROWS_MAX:
            return spans
        # in shares of what each is behind, so that none waits for another
        return {
            queue: Span(first, first + max(1, (stop - first) * ROWS_MAX // whole))
            for queue, (first, stop) in spans.items()
        }

    def _check_there(self, wanted: dict[str, Span]) -> None:
        """Look that nothing was deleted while it was read."""
        there = self._source.spans()
        for queue, (first, _) in wanted.items():
            begin = there[queue].first if queue in there else first + 1
            if begin > first and not self._allow_loss:
                raise _gone(queue, first, begin)

    def _check_same(self, offsets: Progress) -> None:
        """Look that the last messages of the table are still those of the topic."""
        marks = {
            queue: (place.offset - 1, place.mark)
            for queue, place in offsets.items()
            if place.mark is not None
        }
        for queue in self._source.others(marks):
            number, _ = marks[queue]
            raise TopicMadeAnewError(queue, f"has another message {number} than the table")

    def _put_aside(self, rows: pa.Table, reached: Progress) -> int:
        """Commit rows that do not fit, in front of the table; a second time none."""
        if not rows.num_rows:
            return 0
        known = self._refused.offsets()
        new = [
            offset >= known.get(f"{broker}/{queue_id}", Place(0)).offset
            for broker, queue_id, offset in zip(
                rows.column("broker").to_pylist(),
                rows.column("queue_id").to_pylist(),
                rows.column("queue_offset").to_pylist(),
                strict=True,
            )
        ]
        rows = rows.filter(pa.array(new, pa.bool_()))
        if rows.num_rows:
            # a round that died had perhaps more of a queue
            furthest = {
                queue: max(known.get(queue, place), place) for queue, place in reached.items()
            }
            self._refused.append(rows, known, {**known, **furthest})
        return int(rows.num_rows)


def _names() -> list[str]:
    topic, *others = COLUMNS
    return [topic, "broker", *others]


def _places(rows: pa.Table, read: dict[str, Span]) -> Progress:
    """How far queues were read with these rows, which are in the order of each queue."""
    names = ["queue_offset", "store_timestamp", "phy_offset"]
    grouped = rows.group_by(["broker", "queue_id"], use_threads=False)
    lasts = grouped.aggregate([(name, "last") for name in names])
    found = {queue: Place(span.stop) for queue, span in read.items()}
    for row in lasts.to_pylist():
        queue, place = f"{row['broker']}/{row['queue_id']}", row["phy_offset_last"]
        if row["queue_offset_last"] == found[queue].offset - 1:
            time_ms = round(row["store_timestamp_last"].timestamp() * 1000)
            found[queue] = Place(found[queue].offset, Mark(time_ms, place))
    return found


def _target(
    table_format: str,
    options: Mapping[str, str],
    catalog: Mapping[str, str] | None,
    place: str,
    schema: pa.Schema,
    name: str,
) -> Target:
    if table_format == "delta":
        if catalog is not None:
            raise ConfigError("catalog", "delta", "none: a Delta table lies where its path says")
        from rmqcore.lake.delta_target import DeltaTarget  # noqa: PLC0415 - an extra

        return DeltaTarget(place, schema, options)
    from rmqcore.lake.iceberg_target import IcebergTarget  # noqa: PLC0415 - an extra

    if catalog is not None:
        return IcebergTarget.in_catalog(catalog, place, schema, options)
    if is_url(place):
        rule = "a directory; on object storage an Iceberg table needs a catalog, which names it"
        raise ConfigError("table", place, rule)
    return IcebergTarget.in_directory(Path(place), name, schema)


def _gone(queue: str, begin: int, first: int) -> MissedMessagesError:
    return MissedMessagesError(
        f"the messages {begin} to {first} of queue {queue} were deleted before the table got them; "
        "with allow_loss it goes on behind them"
    )
