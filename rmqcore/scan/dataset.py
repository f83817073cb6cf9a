"""A store as a dataset of pyarrow: columns and filters reach the decoder, splits are fragments.

What takes a ``pyarrow.dataset.Dataset`` takes this: DuckDB by the variable's name, Polars, Ray.
"""

from __future__ import annotations

import html
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from rmqcore.config import StoreConfig
from rmqcore.native.columns._columns import ColumnDecoder
from rmqcore.scan.any_log import open_any_log, select
from rmqcore.scan.log_walk import Damage
from rmqcore.scan.lost_records import say_what_is_lost
from rmqcore.scan.plan import SPLIT_SIZE
from rmqcore.scan.predicates import columns_in, pushed_down
from rmqcore.scan.read import DEFAULT_COLUMNS, read
from rmqcore.scan.selection import Selection, reusable
from rmqcore.scan.shown_topics import shown
from rmqcore.scan.split import Split

_Columns = list[str] | dict[str, Any] | None
_OnDamage = Callable[[Damage], None] | None


class Scanned:
    """What can be scanned: a dataset, or a part of one; a subclass says of which parts."""

    _columns: tuple[str, ...]
    _filter: pc.Expression | None
    _plain_bodies: bool
    _on_damage: _OnDamage = None

    @property
    def schema(self) -> pa.Schema:
        """Names and types of the columns."""
        return pa.schema(ColumnDecoder(self._columns, row_max=1).take())

    def _parts(self, selection: Selection) -> Iterator[tuple[Split, Selection]]:
        raise NotImplementedError

    def _both(self, filter: pc.Expression | None) -> pc.Expression | None:
        if self._filter is None or filter is None:
            return filter if self._filter is None else self._filter
        return self._filter & filter

    def _wanted(self, columns: _Columns, filter: pc.Expression | None) -> tuple[str, ...]:
        """The columns that a projection and a filter look at."""
        looked_at = set() if filter is None else columns_in(filter, self._columns)
        for name in self._columns if columns is None else columns:
            one = columns[name] if isinstance(columns, dict) else name
            if isinstance(one, str) and one not in self._columns:
                raise KeyError(f"no column {one!r}: there are {', '.join(self._columns)}")
            looked_at |= {one} if isinstance(one, str) else columns_in(one, self._columns)
        return tuple(name for name in self._columns if name in looked_at) or ("phy_offset",)

    def scanner(
        self,
        columns: _Columns = None,
        filter: pc.Expression | None = None,
        batch_size: int = 1 << 14,
        **_settings: Any,
    ) -> ds.Scanner:
        """A scanner that decodes only the columns and records that are asked for.

        Args:
            columns: names, or expressions by name; None for all.
            filter: an expression over the columns.
            batch_size: rows of a batch, at most.
            **_settings: what scanners of files take; without meaning here.
        """
        whole = self._both(filter)
        names = self._wanted(columns, whole)
        decoded = pa.schema(ColumnDecoder(names, row_max=1).take())
        batches = self._batches(names, whole, max(1, batch_size))
        given = list(self._columns) if columns is None else columns
        return ds.Scanner.from_batches(batches, schema=decoded, columns=given, filter=whole)

    def _batches(
        self, names: tuple[str, ...], filter: pc.Expression | None, batch_rows: int
    ) -> Iterator[pa.RecordBatch]:
        for split, selection in self._parts(pushed_down(filter)):
            for batch in self._read(split, names, batch_rows, selection):
                yield pa.record_batch(batch)

    def _read(
        self, split: Split, names: tuple[str, ...], batch_rows: int, selection: Selection
    ) -> Any:
        return read(
            split,
            names,
            batch_rows=batch_rows,
            plain_bodies=self._plain_bodies,
            verify_crc="body" in names or "record" in names,
            on_damage=self._on_damage,
            **selection,
        )

    def to_batches(self, **settings: Any) -> Iterator[pa.RecordBatch]:
        """The rows as record batches; arguments as those of `scanner`."""
        yield from self.scanner(**settings).to_batches()

    def to_table(
        self,
        columns: _Columns = None,
        filter: pc.Expression | None = None,
        **settings: Any,
    ) -> pa.Table:
        """The rows as one table, decoded with all cores; arguments as those of `scanner`.

        Args:
            columns: see `scanner`.
            filter: see `scanner`.
            settings: see `scanner`.
        """
        if columns is not None and not columns:
            # tables without columns lose their rows where they are put together
            return self.to_table({"one": pc.scalar(True)}, filter, **settings).select([])
        whole = self._both(filter)
        names = self._wanted(columns, whole)
        decoded = pa.schema(ColumnDecoder(names, row_max=1).take())
        parts = list(self._parts(pushed_down(whole)))
        given = list(self._columns) if columns is None else columns

        def table(part: tuple[Split, Selection]) -> pa.Table:
            batches = map(pa.record_batch, self._read(part[0], names, 1 << 14, part[1]))
            scanner = ds.Scanner.from_batches(batches, schema=decoded, columns=given, filter=whole)
            return scanner.to_table()

        if not parts:
            empty: Iterator[pa.RecordBatch] = iter(())
            return ds.Scanner.from_batches(empty, schema=decoded, columns=given).to_table()
        with ThreadPoolExecutor(min(len(parts), os.cpu_count() or 1)) as pool:
            return pa.concat_tables(pool.map(table, parts))

    def count_rows(self, filter: pc.Expression | None = None, **_settings: Any) -> int:
        """How many rows there are."""
        found: int = self.to_table(columns={"one": pc.scalar(True)}, filter=filter).num_rows
        return found

    def head(self, num_rows: int, **settings: Any) -> pa.Table:
        """The first rows; arguments as those of `scanner`.

        Args:
            num_rows: how many at most.
            settings: see `scanner`.
        """
        return self.scanner(**settings).head(num_rows)


class StoreFragment(Scanned):
    """The part of a `StoreDataset` that is one split; good to be sent to another process.

    Attributes:
        split: what it reads.
        partition_expression: what holds for all of its rows.
    """

    def __init__(self, dataset: StoreDataset, split: Split) -> None:
        self._dataset = dataset
        self._columns = dataset._columns
        self._filter = dataset._filter
        self._plain_bodies = dataset._plain_bodies
        self._on_damage = dataset._on_damage
        self.split = split
        self.partition_expression = pc.scalar(True)
        self.physical_schema = dataset.schema

    def _parts(self, selection: Selection) -> Iterator[tuple[Split, Selection]]:
        yield self.split, self._dataset._selection_with(selection)

    def __repr__(self) -> str:
        return f"StoreFragment({self.split.start} to {self.split.end})"


class ScannedDataset(Scanned, ds.Dataset):  # type: ignore[misc]
    """A dataset that is read anew by each scan; a subclass says how it is pickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        raise NotImplementedError

    def filter(self, expression: pc.Expression) -> Self:
        """The same messages, of them those for which an expression holds."""
        again, given = self.__reduce__()
        found: Self = again(*given)
        found._filter = self._both(expression)
        return found

    @property
    def partition_expression(self) -> pc.Expression:
        """What holds for all rows."""
        return pc.scalar(True)

    def take(self, indices: Any, **settings: Any) -> pa.Table:
        """Rows by their numbers; arguments as those of `scanner`.

        Args:
            indices: numbers of rows from 0 on, in the order of `to_table`.
            settings: see `scanner`.
        """
        return self.to_table(**settings).take(indices)

    def sort_by(self, sorting: Any, **settings: Any) -> ds.InMemoryDataset:
        """The rows in another order, in memory.

        Args:
            sorting: a column, or (column, "ascending" or "descending") of several.
            settings: see `to_table`.
        """
        return ds.InMemoryDataset(self.to_table(**settings).sort_by(sorting))

    def join(self, right_dataset: Any, *keys: Any, **settings: Any) -> ds.InMemoryDataset:
        """The rows joined with those of another dataset, in memory; as ``Table.join``.

        Args:
            right_dataset: what has `to_table`.
            keys: columns that must be the same, and further arguments of ``Table.join``.
            settings: further ones by name.
        """
        joined = self.to_table().join(right_dataset.to_table(), *keys, **settings)
        return ds.InMemoryDataset(joined)

    def join_asof(self, *_given: Any, **_settings: Any) -> ds.InMemoryDataset:
        """Not there: make tables and join them."""
        raise NotImplementedError("join tables: dataset.to_table().join_asof(...)")

    def replace_schema(self, schema: pa.Schema) -> Self:
        """Not there: the columns of a store have the types that they have."""
        raise NotImplementedError("cast tables: dataset.to_table().cast(...)")


class StoreDataset(ScannedDataset):
    """The messages of a store as they were when this was made; read anew by each scan.

    Args:
        store_path: the store's directory; or an archive, by its URL or its directory.
        columns: names out of `rmqcore.scan.COLUMNS`; None for the usual ones.
        config: settings of the store, as for `open_store`.
        plain_bodies: decompress bodies that are stored compressed.
        split_size: bytes of log that a fragment reads.
        selection: which messages; see `rmqcore.scan.Selection`.
        archive: of the store, as for `rmqcore.scan.open_any_log`.
        storage_options: of the archive, as for `rmqcore.scan.open_any_log`; ``repr`` has none.
        on_damage: called for each damaged place, which is passed over; None raises there. One that
            can be pickled where the dataset is to be.
    """

    def __init__(
        self,
        store_path: str | os.PathLike[str],
        columns: Iterable[str] | None = None,
        *,
        config: StoreConfig | str | Path | None = None,
        plain_bodies: bool = False,
        split_size: int = SPLIT_SIZE,
        selection: Selection | None = None,
        archive: str | None = None,
        storage_options: Mapping[str, str] | None = None,
        on_damage: _OnDamage = None,
    ) -> None:
        self._path = os.fspath(store_path)
        self._above = archive, dict(storage_options or {})
        self._columns = DEFAULT_COLUMNS if columns is None else tuple(columns)
        self._config = config
        self._plain_bodies = plain_bodies
        self._on_damage = on_damage
        self._split_size = split_size
        self._selection = reusable(selection or {})
        self._filter = None
        self._log = open_any_log(
            store_path, config=config, archive=archive, storage_options=storage_options
        )
        say_what_is_lost(self._log)
        self._end = self._log.end
        # raises now what is wrong with the columns
        self.schema  # noqa: B018

    def __reduce__(self) -> tuple[Any, ...]:
        given = (self._path, self._columns, self._config, self._plain_bodies, self._split_size)
        above = self._above
        return _again, (*given, self._selection, above, self._on_damage, self._end, self._filter)

    def _selection_with(self, pushed: Selection) -> Selection:
        """What was chosen from the beginning, and what a filter narrows it to."""
        found: dict[str, Any] = dict(shown(self._log, self._selection))
        for name, value in cast("dict[str, Any]", pushed).items():
            if name not in found:
                found[name] = value
            elif name in ("topics", "queue_ids", "tags"):
                found[name] = tuple(one for one in found[name] if one in set(value))
            elif name.startswith("begin"):
                found[name] = max(found[name], value)
            elif name.startswith("end"):
                found[name] = min(found[name], value)
        return cast("Selection", found)

    def _parts(self, selection: Selection) -> Iterator[tuple[Split, Selection]]:
        wanted = self._selection_with(selection)
        log = select(self._log, wanted, end=self._end)
        for split in log.splits(self._split_size):
            yield split, wanted

    def get_fragments(self, filter: pc.Expression | None = None) -> Iterator[StoreFragment]:
        """The parts that can be read beside each other.

        Args:
            filter: leave out parts that have no row for it.
        """
        for split, _ in self._parts(pushed_down(self._both(filter))):
            yield StoreFragment(self, split)

    def __repr__(self) -> str:
        size = self._end - self._log.start
        return f"StoreDataset({self._path!r}, {size} bytes of log: {', '.join(self._columns)})"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{html.escape(one.name)}</td><td>{html.escape(str(one.type))}</td></tr>"
            for one in self.schema
        )
        return (
            f"<p><b>StoreDataset</b> {html.escape(self._path)}: "
            f"{self._end - self._log.start:,} bytes of log</p>"
            "<table><thead><tr><th>column</th><th>type</th></tr></thead>"
            f"<tbody>{rows}</tbody></table>"
        )


def _again(
    path: str,
    columns: tuple[str, ...],
    config: StoreConfig | str | Path | None,
    plain_bodies: bool,
    split_size: int,
    selection: Selection,
    above: tuple[str | None, dict[str, str]],
    on_damage: _OnDamage,
    end: int,
    filter: pc.Expression | None,
) -> StoreDataset:
    """A dataset as it was, in another process perhaps."""
    found = StoreDataset(
        path,
        columns,
        config=config,
        plain_bodies=plain_bodies,
        split_size=split_size,
        selection=selection,
        archive=above[0],
        storage_options=above[1],
        on_damage=on_damage,
    )
    found._end = min(end, found._end)
    found._filter = filter
    return found
