"""A store as a lazy frame of Polars: columns, filters and a head reach the decoder."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from typing import Any

import polars as pl
import pyarrow.compute as pc
from polars.io.plugins import register_io_source

from rmqcore.scan.dataset import StoreDataset

_COMPARISONS = {
    "Eq": lambda one, other: one == other,
    "Gt": lambda one, other: one > other,
    "GtEq": lambda one, other: one >= other,
    "Lt": lambda one, other: one < other,
    "LtEq": lambda one, other: one <= other,
}
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_TIMES = ("Date", "Time", "Duration")
_UNITS = {"Milliseconds": 1000, "Microseconds": 1}


def lazy_frame(dataset: StoreDataset) -> pl.LazyFrame:
    """A lazy frame of a dataset's rows, which are read anew by each collect.

    Args:
        dataset: of a store.
    """
    schema = pl.from_arrow(dataset.schema.empty_table()).schema

    def batches(
        with_columns: list[str] | None,
        predicate: pl.Expr | None,
        n_rows: int | None,
        batch_size: int | None,
    ) -> Iterator[pl.DataFrame]:
        # a head is one of the rows before they are filtered
        narrows = predicate is not None and n_rows is None
        scanner = dataset.scanner(
            columns=with_columns,
            filter=_narrowed(predicate) if narrows else None,
            batch_size=batch_size or 1 << 14,
        )
        left = n_rows
        for batch in scanner.to_batches():
            frame = pl.DataFrame(batch)
            if left is not None:
                frame = frame.head(left)
                left -= frame.height
            # rows that Arrow could not filter are filtered here
            yield frame if predicate is None else frame.filter(predicate)
            if left == 0:
                return

    return register_io_source(batches, schema=schema)


def _narrowed(predicate: pl.Expr) -> pc.Expression | None:
    """An Arrow filter that holds wherever a predicate does, perhaps elsewhere, too."""
    try:
        return _expression(json.loads(predicate.meta.serialize(format="json")))
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, pl.exceptions.PolarsError):
        # how Polars writes down a predicate is its own affair
        return None


def _expression(node: Any) -> pc.Expression | None:
    if not (isinstance(node, dict) and len(node) == 1 and "BinaryExpr" in node):
        return None
    left, name, right = (node["BinaryExpr"][part] for part in ("left", "op", "right"))
    if name in ("And", "Or"):
        one, other = _expression(left), _expression(right)
        if name == "Or":
            return None if one is None or other is None else one | other
        if one is not None and other is not None:
            return one & other
        return other if one is None else one
    compare = _COMPARISONS.get(name)
    sides = [_side(left), _side(right)]
    if compare is None or any(side is None for side in sides):
        return None
    return compare(*sides)


def _side(node: dict[str, Any]) -> pc.Expression | None:
    """A column or a constant."""
    if "Column" in node:
        return pc.field(node["Column"])
    ((kind, value),) = node["Literal"].popitem()[1].items()
    if kind == "Datetime" and value[2] == {"inner": "UTC"}:
        moment = _EPOCH + dt.timedelta(microseconds=value[0] * _UNITS[value[1]])
        return pc.scalar(moment)
    return pc.scalar(value) if type(value) in (str, int) and kind not in _TIMES else None
