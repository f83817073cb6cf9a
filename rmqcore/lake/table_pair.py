"""`TablePair`: a table, and the one beside it for rows whose bodies do not fit."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from rmqcore.errors import ConfigError
from rmqcore.files.objects import is_url
from rmqcore.lake.bodies import FIRST_MS, LAST_MS, Bodies, refused_schema
from rmqcore.lake.sources import COLUMNS, Place, Progress, Span
from rmqcore.lake.target import (
    NUMBER,
    MissedMessagesError,
    TableChangedError,
    Target,
    TopicMadeAnewError,
)
from rmqcore.scan.mark import Mark
from rmqcore.scan.tables import TABLE_FORMATS, check_table_path, require_package
from rmqcore.world import wall_clock_ms

#: The directory of rows whose bodies do not fit is the table's with this behind its name.
REFUSED: Final = "~dlq"
#: Names in a catalog have letters, digits and _ only, or some of their readers stumble.
REFUSED_NAME: Final = "_dlq"
#: States of a table that are older are forgotten; readers have so long for a query, in seconds.
KEEP_S: Final = 7 * 86_400.0
EXPIRE_EVERY_S: Final = 3600.0
_TYPES: Final = {
    "queue_id": pa.int32(),
    "queue_offset": pa.int64(),
    "store_timestamp": pa.timestamp("us", tz="UTC"),
    "born_timestamp": pa.timestamp("us", tz="UTC"),
    "properties": pa.map_(pa.string(), pa.string()),
}


class TablePair:
    """A table and the one beside it.

    Args:
        table: the table's directory, or for Delta its URL; of a catalog ``namespace.table``.
        topic: whose messages are the rows.
        table_format: ``delta`` or ``iceberg``.
        bodies: what becomes of bodies.
        storage_options: of object storage.
        catalog: that has an Iceberg table; None: it lies beside the table.

    Raises:
        ConfigError: an unknown format, a path that no table can have, no such catalog, or half a
            pair of keys.
        RmqCoreError: the format's package is not installed.
    """

    def __init__(
        self,
        table: str | os.PathLike[str],
        *,
        topic: str,
        table_format: str,
        bodies: Bodies | None,
        storage_options: Mapping[str, str] | None,
        catalog: Mapping[str, str] | None,
    ) -> None:
        if table_format not in TABLE_FORMATS:
            raise ConfigError("format", table_format, f"one of {', '.join(TABLE_FORMATS)}")
        require_package(table_format)
        self._bodies = bodies or Bodies()
        good = plain_schema()
        for field in self._bodies.columns():
            good = good.append(field)
        refused = refused_schema(plain_schema().append(pa.field("body", pa.binary())))
        # behind a slash the second table would lie inside, where expiring deletes its files
        place = os.fspath(table).rstrip("/")
        if catalog is None and not is_url(place):
            check_table_path(place)
            # of a Delta table in a:b the package would take a for a scheme
            place = str(Path(place).absolute())
        making = partial(_target, table_format, storage_options or {}, catalog, topic)
        beside = place + (REFUSED if catalog is None else REFUSED_NAME)
        self.good = making(place, good, topic)
        self.refused = making(beside, refused, "refused")

    def put(self, rows: pa.Table, since: Progress, reached: Progress) -> tuple[int, int]:
        """Commit rows, those that do not fit in front of the table; how many of each.

        Args:
            rows: with a body.
            since: how far the table said that queues were read.
            reached: how far they are read with these.

        Raises:
            MissedMessagesError: the rows come from a store's directory, and those of before from
                brokers, or the other way round: the table has perhaps the same messages.
            TopicMadeAnewError: the table beside has rows of another topic of the name.
            TableChangedError: another writer was faster.
        """
        if len({queue.startswith("/") for queue in reached}) > 1:
            raise MissedMessagesError(
                "the table has rows of a store's directory and is to get rows of brokers, or the "
                "other way round, which may be the same messages; give them a table of their own"
            )
        good, rest = self._bodies.apply(_with_times_that_are_shown(rows))
        refused = self._put_aside(rest, reached)
        self.good.append(good, since, reached)
        return int(good.num_rows), refused

    def compact(self, *, beside: bool) -> int:
        """Make one of many small files; how many were. ``beside``: of the other table, too."""
        made = 0
        for target in (self.good, self.refused) if beside else (self.good,):
            # another does it meanwhile: the rows are there, and the next round looks again
            with suppress(TableChangedError):
                made += target.compact(wall_clock_ms() / 1000)
        return made

    def expire(self, keep_s: float) -> None:
        """Forget states of both tables that are older than so many seconds, and their files."""
        # of rows that do not fit there may be none for long
        with suppress(TableChangedError):
            self.refused.compact(wall_clock_ms() / 1000)
        for target in (self.good, self.refused):
            # who is faster may forget them as well, or the next time does
            with suppress(TableChangedError):
                target.expire(keep_s)

    def _put_aside(self, rows: pa.Table, reached: Progress) -> int:
        """Commit rows that do not fit, in front of the table; a second time none."""
        if not rows.num_rows:
            return 0
        known = self.refused.offsets()
        _check_beside(rows, known)
        # A round that died had perhaps more of a queue, and another schema, which fewer fitted or
        # more: what of these is in the table only its rows tell.
        may_have = any(
            offset < known.get(f"{broker}/{queue_id}", Place(0)).offset
            for broker, queue_id, offset in zip(
                *(rows.column(name).to_pylist() for name in NUMBER), strict=True
            )
        )
        furthest = {queue: max(known.get(queue, place), place) for queue, place in reached.items()}
        return self.refused.append(rows, known, {**known, **furthest}, may_have=may_have)


def _with_times_that_are_shown(rows: pa.Table) -> pa.Table:
    """Rows without times of birth, which any producer may choose, that no reader of tables shows.

    The package that writes a table, or those that read it, fail with one, or miss rows beside it.
    """
    name = "born_timestamp"
    times = rows.column(name)
    kind = _TYPES[name]
    first, last = (pa.scalar(time_ms * 1000, kind) for time_ms in (FIRST_MS, LAST_MS))
    is_shown = pc.and_(pc.greater_equal(times, first), pc.less_equal(times, last))
    if pc.all(is_shown).as_py():
        return rows
    shown = pc.if_else(is_shown, times, pa.scalar(None, kind))
    return rows.set_column(rows.schema.get_field_index(name), pa.field(name, kind), shown)


def plain_schema() -> pa.Schema:
    """The columns of a row but for its body."""
    return pa.schema(
        [pa.field(name, _TYPES.get(name, pa.string())) for name in _names() if name != "body"]
    )


def _names() -> list[str]:
    topic, *others = COLUMNS
    return [topic, "broker", *others]


def _check_beside(rows: pa.Table, known: Progress) -> None:
    """Refuse rows that the table beside seems to have, and that came behind what it has.

    It may be ahead, by a round that died; or it is what was left of a topic that was made anew.
    """
    for queue, place in known.items():
        if place.mark is None:
            continue
        broker, _, queue_id = queue.rpartition("/")
        mine = pc.and_(
            pc.equal(rows.column("broker"), broker),
            pc.equal(rows.column("queue_id"), int(queue_id)),
        )
        mine = pc.and_(mine, pc.less(rows.column("queue_offset"), place.offset))
        had = rows.filter(mine)
        time = pa.scalar(place.mark.store_timestamp_ms * 1000, _TYPES["store_timestamp"])
        later = pc.or_(
            pc.greater(had.column("store_timestamp"), time),
            pc.greater(had.column("phy_offset"), place.mark.phy_offset),
        )
        if pc.any(later).as_py():
            raise TopicMadeAnewError(queue, "is not that of the rows that did not fit before")


def places_of(rows: pa.Table, read: dict[str, Span]) -> Progress:
    """How far queues were read with these rows, which are in the order of each queue.

    Args:
        rows: with the columns ``broker``, ``queue_id``, ``queue_offset``, ``store_timestamp``,
            ``phy_offset``.
        read: by queue, what was read of it; a queue without rows has no mark.
    """
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
    topic: str,
    place: str,
    schema: pa.Schema,
    name: str,
) -> Target:
    if table_format == "delta":
        if catalog is not None:
            raise ConfigError("catalog", "delta", "none: a Delta table lies where its path says")
        from rmqcore.lake.delta_target import DeltaTarget  # noqa: PLC0415 - an extra

        return DeltaTarget(place, topic, schema, options)
    from rmqcore.lake.iceberg_target import IcebergTarget  # noqa: PLC0415 - an extra

    if catalog is not None:
        return IcebergTarget.in_catalog(catalog, place, topic, schema, options)
    if is_url(place):
        rule = "a directory; on object storage an Iceberg table needs a catalog, which names it"
        raise ConfigError("table", place, rule)
    return IcebergTarget.in_directory(Path(place), name, topic, schema)
