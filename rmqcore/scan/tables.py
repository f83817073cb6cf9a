"""Delta and Iceberg tables over the Parquet files of an export, which stay where they lie.

A table has the files that it is given, and nothing else of the directory. It is described afresh
each time: a file of the same name may have grown since.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rmqcore.errors import RmqCoreError

TABLE_FORMATS = ("delta", "iceberg")
#: The directories of table formats; readers of Parquet files pass over both because of their first
#: character.
DELTA_LOG, ICEBERG_HOME = "_delta_log", "_iceberg"
ICEBERG_CATALOG, ICEBERG_TABLE = "rmqcore", "rmq.messages"
#: (name in the directory, rows)
TableFile = tuple[str, int]


def require_package(table_format: str) -> None:
    """Refuse before anything is written when the format's package is not there.

    Raises:
        RmqCoreError: it is not installed.
    """
    try:
        if table_format == "delta":
            import deltalake  # noqa: F401, PLC0415 - an extra
        else:
            import pyiceberg.catalog.sql  # noqa: F401, PLC0415 - an extra
    except ImportError:
        hint = f"pip install 'rmqcore[{table_format}]'"
        raise RmqCoreError(f"tables of the format {table_format} need: {hint}") from None


def make_table(table_format: str, directory: Path, schema: Any, files: Sequence[TableFile]) -> None:
    """Describe Parquet files as a table.

    Args:
        table_format: one of `TABLE_FORMATS`.
        directory: of the files, and of the table.
        schema: of every file, for pyarrow.
        files: that the table has.
    """
    make = _make_delta if table_format == "delta" else _make_iceberg
    make(directory.absolute(), schema, files)


def iceberg_properties(directory: str | os.PathLike[str]) -> dict[str, str]:
    """What PyIceberg's ``SqlCatalog`` takes to open the catalog beside exported files."""
    home = Path(directory).absolute() / ICEBERG_HOME
    return {"uri": f"sqlite:///{home / 'catalog.db'}", "warehouse": home.as_uri()}


def _make_delta(directory: Path, schema: Any, files: Sequence[TableFile]) -> None:
    from deltalake import Schema  # noqa: PLC0415 - an extra
    from deltalake.transaction import (  # noqa: PLC0415 - an extra
        AddAction,
        create_table_with_add_actions,
    )

    def action(name: str, rows: int) -> AddAction:
        facts = (directory / name).stat()
        stats = json.dumps({"numRecords": rows})
        return AddAction(name, facts.st_size, {}, facts.st_mtime_ns // 1_000_000, True, stats)

    shutil.rmtree(directory / DELTA_LOG, ignore_errors=True)
    create_table_with_add_actions(
        str(directory), Schema.from_arrow(schema), [action(*file) for file in files]
    )


def _make_iceberg(directory: Path, schema: Any, files: Sequence[TableFile]) -> None:
    from pyiceberg.catalog.sql import SqlCatalog  # noqa: PLC0415 - an extra

    home = directory / ICEBERG_HOME
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    catalog = SqlCatalog(ICEBERG_CATALOG, **iceberg_properties(directory))
    try:
        catalog.create_namespace(ICEBERG_TABLE.partition(".")[0])
        location = (home / "messages").as_uri()
        table = catalog.create_table(ICEBERG_TABLE, schema=schema, location=location)
        if files:
            table.add_files([(directory / name).as_uri() for name, _ in files])
    finally:
        catalog.close()
