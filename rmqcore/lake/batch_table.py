"""`BatchTable`: a table that gets the batches of a Spark stream, each row once."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from rmqcore.errors import ConfigError
from rmqcore.lake.bodies import Bodies
from rmqcore.lake.sources import Place, Progress, Span
from rmqcore.lake.table_pair import EXPIRE_EVERY_S, KEEP_S, TablePair, places_of, plain_schema
from rmqcore.lake.target import NUMBER, THERE, TopicMadeAnewError
from rmqcore.world import monotonic_s

#: What a batch has to have: which message a row is, and what is in it.
_NEEDED: Final = ("topic", "queue_id", "queue_offset", "phy_offset", "store_timestamp", "body")
#: The columns of a row's `Mark`.
MARK: Final = ("store_timestamp", "phy_offset")
_OTHER: Final = "has another message {} than the table"


class BatchTable:
    """A table of the rows of a stream over ``format("rmq")``, for its ``foreachBatch``.

    As that of a `TableFollower`, which may go on with it: how far each queue is stands in the
    table's own commits. So a batch that Spark gives again, after a kill or with a checkpoint that
    was lost, has no row twice. Its rows are in the driver's memory: `maxOffsetsPerTrigger` says how
    many.

    Args:
        table: the table's directory, or for Delta its URL; of a catalog ``namespace.table``.
        topic: whose messages the batches have.
        table_format: ``delta`` or ``iceberg``.
        bodies: what becomes of bodies.
        storage_options: of object storage, as of an archive.
        catalog: that has an Iceberg table, as for `TableFollower`.

    Raises:
        ConfigError: an unknown format, no such catalog, or half a pair of keys.
        RmqCoreError: the format's package is not installed.

    Threads: one at a time.
    """

    def __init__(
        self,
        table: str | os.PathLike[str],
        *,
        topic: str,
        table_format: str = "delta",
        bodies: Bodies | None = None,
        storage_options: Mapping[str, str] | None = None,
        catalog: Mapping[str, str] | None = None,
    ) -> None:
        self._topic = topic
        self._tables = TablePair(
            table,
            topic=topic,
            table_format=table_format,
            bodies=bodies,
            storage_options=storage_options,
            catalog=catalog,
        )
        self._expires_s = monotonic_s()

    def write(self, frame: Any, batch_id: int = 0) -> None:
        """Commit the rows of a batch that the table does not have yet.

        It has what lies in front of the last row of a queue: batches go in the order of each queue.
        Rows that it has are compared with its own.

        Args:
            frame: Spark's, or a table of pyarrow; with the columns ``topic queue_id queue_offset
                phy_offset store_timestamp body``, others of a table are empty where it lacks them.
            batch_id: Spark's; rows tell by themselves whether the table has them.

        Raises:
            ConfigError: a column is missing, a row says not which message it is, or is another
                topic's.
            TopicMadeAnewError: rows are of a topic that was made anew, or of a log that was cut.
            TableChangedError: another writer was faster; nothing was committed.
        """
        rows = self._rows(frame if isinstance(frame, pa.Table) else frame.toArrow())
        known = self._tables.good.offsets()
        had, rows = _told_apart(rows, known)
        if had.num_rows:
            self._check_same(had)
        if rows.num_rows:
            _, refused = self._tables.put(rows, known, {**known, **_reached(rows)})
            self._tables.compact(beside=bool(refused))
        if monotonic_s() >= self._expires_s:
            self._tables.expire(KEEP_S)
            self._expires_s = monotonic_s() + EXPIRE_EVERY_S

    def _check_same(self, rows: pa.Table) -> None:
        """Refuse rows that have the number of a row of the table, and are another message.

        Times tell: what takes the place of a message that a log has lost is stored later.
        """
        told = rows.select(THERE)
        for target in (self._tables.good, self._tables.refused):
            there = target.near(rows).cast(told.schema)
            both = there.join(told, [*NUMBER], join_type="inner", right_suffix="_now")
            is_other = pc.not_equal(both.column(THERE[-1]), both.column(f"{THERE[-1]}_now"))
            _refuse(both.filter(is_other), _OTHER)

    def _rows(self, given: pa.Table) -> pa.Table:
        """Rows with the columns of a table, in the order of each queue."""
        for name in _NEEDED:
            if name not in given.column_names:
                raise ConfigError("columns", given.column_names, f"{name} among them")
            if name != "body" and given.column(name).null_count:
                raise ConfigError(f"column {name}", None, "a value in each row")
        others = set(pc.unique(given.column("topic")).to_pylist()) - {self._topic}
        if others:
            rule = f"rows of {self._topic} only; a topic has a table of its own"
            raise ConfigError("topic", sorted(map(str, others))[0], rule)
        wanted = plain_schema().append(pa.field("phy_offset", pa.int64()))
        wanted = wanted.append(pa.field("body", pa.binary()))
        columns = {}
        for field in wanted:
            if field.name in given.column_names:
                columns[field.name] = given.column(field.name).cast(field.type)
            else:
                empty = "" if field.name == "broker" else None
                columns[field.name] = pa.array([empty] * given.num_rows, field.type)
        order = [(name, "ascending") for name in ("broker", "queue_id", "queue_offset")]
        return _once(pa.table(columns, wanted).sort_by(order))


def _once(rows: pa.Table) -> pa.Table:
    """Rows in the order of each queue, those that come several times once."""
    if rows.num_rows < 2:
        return rows
    before, behind = rows.slice(0, rows.num_rows - 1), rows.slice(1)
    is_again = _are_equal(before, behind, NUMBER)
    is_other = pc.and_(is_again, pc.invert(_are_equal(before, behind, MARK)))
    _refuse(behind.filter(is_other), "has two messages {}")
    return pa.concat_tables([rows.slice(0, 1), behind.filter(pc.invert(is_again))])


def _are_equal(some: pa.Table, others: pa.Table, names: tuple[str, ...]) -> pa.ChunkedArray:
    """Which rows have the same in all these columns."""
    found = (pc.equal(some.column(name), others.column(name)) for name in names)
    return functools.reduce(pc.and_, found)


def _told_apart(rows: pa.Table, known: Progress) -> tuple[pa.Table, pa.Table]:
    """Rows with the numbers of those that a table has, and rows that it does not have.

    Raises:
        TopicMadeAnewError: they are not of the log that the table's are of: this has another
            message by the number of the table's last one, or has the numbers in another order.
    """
    names = pc.binary_join_element_wise(
        rows.column("broker"), rows.column("queue_id").cast(pa.string()), "/"
    )
    queues = names.combine_chunks().dictionary_encode()
    places = [known.get(queue, Place(0)) for queue in queues.dictionary.to_pylist()]
    at = pa.array([place.offset for place in places], pa.int64()).take(queues.indices)
    marks = {
        name: pa.array([place.mark and place.mark[field] for place in places], pa.int64())
        for field, name in enumerate(MARK)
    }
    time_ms, end = (marks[name].take(queues.indices) for name in MARK)
    number, lies_at = rows.column("queue_offset"), rows.column("phy_offset")
    is_known = pc.less(number, at)
    is_last = pc.equal(number, pc.subtract(at, 1))
    is_marked = pc.and_(
        pc.equal(lies_at, end),
        pc.equal(rows.column("store_timestamp").cast(pa.int64()), pc.multiply(time_ms, 1000)),
    )
    is_other = pc.or_(
        pc.and_(is_last, pc.invert(is_marked)),
        pc.xor(is_known, pc.less_equal(lies_at, end)),
    )
    # of a queue without a mark nothing tells
    _refuse(rows.filter(pc.fill_null(is_other, False)), _OTHER)
    return rows.filter(is_known), rows.filter(pc.invert(is_known))


def _refuse(rows: pa.Table, detail: str) -> None:
    """Refuse rows of another topic, or of another log, if there are any."""
    if rows.num_rows:
        row = rows.slice(0, 1).to_pylist()[0]
        queue = f"{row['broker']}/{row['queue_id']}"
        raise TopicMadeAnewError(queue, detail.format(row["queue_offset"]))


def _reached(rows: pa.Table) -> Progress:
    lasts = rows.group_by(["broker", "queue_id"]).aggregate([("queue_offset", "max")])
    spans = {
        f"{row['broker']}/{row['queue_id']}": Span(0, row["queue_offset_max"] + 1)
        for row in lasts.to_pylist()
    }
    return places_of(rows, spans)
