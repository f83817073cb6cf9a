"""``rmqcore.spark.read``: a frame of a store's messages, with partitions that fit the session."""

from __future__ import annotations

import os
from collections.abc import Iterable

from pyspark.sql import DataFrame, SparkSession

from rmqcore.spark.runner import slots_of
from rmqcore.spark.session import check_workers


def read(
    spark: SparkSession,
    path: str | os.PathLike[str],
    *,
    columns: str | Iterable[str] | None = None,
    **options: object,
) -> DataFrame:
    """A frame of what the store holds at this moment.

    Args:
        spark: the session; it need not know the format yet.
        path: the store's directory, or ``namesrv://host:port/topic``.
        columns: "light", "default", "full", or names.
        **options: of the format, by their names: ``topics=["A", "B"]``, ``verifyCrc="flag"``.

    Raises:
        SparkMissingError: the session's workers run a Python without rmqcore.
    """
    check_workers(spark)
    given = {"slots": slots_of(spark), **options}
    if columns is not None:
        given["columns"] = columns
    texts = {name: _text(value) for name, value in given.items()}
    return spark.read.format("rmq").options(**texts).load(os.fspath(path))


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Iterable) and not isinstance(value, str):
        return ",".join(str(part) for part in value)
    return str(value)
