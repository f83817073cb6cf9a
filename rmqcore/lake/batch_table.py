"""`BatchTable`: a table that gets the batches of a Spark stream, each row once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from rmqcore.errors import ConfigError
from rmqcore.lake.bodies import Bodies
from rmqcore.lake.sources import Place, Progress, Span
from rmqcore.lake.table_pair import EXPIRE_EVERY_S, KEEP_S, TablePair, places_of, plain_schema
from rmqcore.lake.target import TopicMadeAnewError
from rmqcore.world import monotonic_s

#: What a batch has to have: which message a row is, and what is in it.
_NEEDED: Final = ("topic", "queue_id", "queue_offset", "phy_offset", "store_timestamp", "body")
_OFFSET_MAX: Final = (1 << 63) - 1


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

        Args:
            frame: Spark's, or a table of pyarrow; with the columns ``topic queue_id queue_offset
                phy_offset store_timestamp body``, others of a table are empty where it lacks them.
            batch_id: Spark's; rows tell by themselves whether the table has them.

        Raises:
            ConfigError: a column is missing, or a row is another topic's.
            TopicMadeAnewError: rows are of a topic that was made anew.
            TableChangedError: another writer was faster; nothing was committed.
        """
        rows = self._rows(frame if isinstance(frame, pa.Table) else frame.toArrow())
        known = self._tables.good.offsets()
        rows = _new_rows(rows, known)
        if rows.num_rows:
            _, refused = self._tables.put(rows, known, {**known, **_reached(rows)})
            self._tables.compact(beside=bool(refused))
        if monotonic_s() >= self._expires_s:
            self._tables.expire(KEEP_S)
            self._expires_s = monotonic_s() + EXPIRE_EVERY_S

    def _rows(self, given: pa.Table) -> pa.Table:
        """Rows with the columns of a table, in the order of each queue."""
        for name in _NEEDED:
            if name not in given.column_names:
                raise ConfigError("columns", given.column_names, f"{name} among them")
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
        return pa.table(columns, wanted).sort_by(order)


def _new_rows(rows: pa.Table, known: Progress) -> pa.Table:
    """Rows that a table does not have."""
    names = pc.binary_join_element_wise(
        rows.column("broker"), rows.column("queue_id").cast(pa.string()), "/"
    )
    queues = names.combine_chunks().dictionary_encode()
    places = [known.get(queue, Place(0)) for queue in queues.dictionary.to_pylist()]
    ends = [place.mark.phy_offset if place.mark else _OFFSET_MAX for place in places]
    at = pa.array([place.offset for place in places], pa.int64()).take(queues.indices)
    end = pa.array(ends, pa.int64()).take(queues.indices)
    is_known = pc.less(rows.column("queue_offset"), at)
    anew = rows.filter(pc.and_(is_known, pc.greater(rows.column("phy_offset"), end)))
    if anew.num_rows:
        row = anew.slice(0, 1).to_pylist()[0]
        raise TopicMadeAnewError(
            f"{row['broker']}/{row['queue_id']}",
            f"has another message {row['queue_offset']} than the table",
        )
    return rows.filter(pc.invert(is_known))


def _reached(rows: pa.Table) -> Progress:
    lasts = rows.group_by(["broker", "queue_id"]).aggregate([("queue_offset", "max")])
    spans = {
        f"{row['broker']}/{row['queue_id']}": Span(0, row["queue_offset_max"] + 1)
        for row in lasts.to_pylist()
    }
    return places_of(rows, spans)
