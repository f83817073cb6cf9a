"""Delta and Iceberg tables over the Parquet files of an export, which stay where they lie.

A table has the files that it is given, and nothing else of the directory. What it had before is
replaced in one commit, so that its history stays: a file that is in it never changes.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

from rmqcore.errors import ConfigError, RmqCoreError
from rmqcore.world import wall_clock_ms

T = TypeVar("T")

TABLE_FORMATS = ("delta", "iceberg")
#: The directories of table formats; readers of Parquet files pass over both because of their first
#: character.
DELTA_LOG, ICEBERG_HOME = "_delta_log", "_iceberg"
ICEBERG_CATALOG, ICEBERG_TABLE = "rmqcore", "rmq.messages"
#: (name in the directory, rows)
TableFile = tuple[str, int]
#: Readers of tables take these in a path for parts of a URL, and look elsewhere or nowhere.
_TAKEN_FOR_URL = re.compile(r"[\x00-\x1f\x7f%?#\[\]|^\\]")


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


def check_table_path(directory: str | os.PathLike[str]) -> None:
    """Refuse a directory, before anything is written, whose path no table can have.

    Args:
        directory: of the table; the directories that it is in count as well.

    Raises:
        ConfigError: its path has a character that is a part of a URL.
    """
    path = str(Path(directory).absolute())
    if found := _TAKEN_FOR_URL.search(path):
        rule = f"a path without {found[0]!r}, which readers of tables take for a part of a URL"
        raise ConfigError("table", path, rule)


def make_table(table_format: str, directory: Path, schema: Any, files: Sequence[TableFile]) -> None:
    """Make a table of Parquet files, or let one of before have these and no others.

    One that has them already gets no commit.

    Args:
        table_format: one of `TABLE_FORMATS`.
        directory: of the files, and of the table.
        schema: of every file, for pyarrow.
        files: that the table has.

    Raises:
        RmqCoreError: the table that is there is another's, or another commits meanwhile.
    """
    make = _make_delta if table_format == "delta" else _make_iceberg
    make(directory.absolute(), schema, files)


def iceberg_properties(directory: str | os.PathLike[str]) -> dict[str, str]:
    """What PyIceberg's ``SqlCatalog`` takes to open the catalog beside exported files."""
    home = Path(directory).absolute() / ICEBERG_HOME
    # a location is taken as it stands: nobody decodes what as_uri() encodes
    return {"uri": f"sqlite:///{home}/catalog.db", "warehouse": f"file://{home}"}


def tried_once(table: Any) -> Any:
    """Let no commit of a table be tried again, in this process, when another was faster.

    PyIceberg would put the same rows behind those of the other.

    Args:
        table: of PyIceberg, as it was loaded.

    Returns:
        the table.
    """
    properties = {**table.metadata.properties, "commit.retry.num-retries": "0"}
    table.metadata = table.metadata.model_copy(update={"properties": properties})
    return table


def in_any_text(table: Any, work: Callable[[], T]) -> T:
    """Do what writes a table of PyIceberg, once more without bounds where texts have none.

    PyIceberg writes down bounds of what a file holds. It cuts texts to sixteen characters and
    counts the last one up, which fails behind U+D7FF.

    Args:
        table: as it was loaded.
        work: writes files, or takes some into the table; nothing is left of it where it fails.

    Returns:
        what ``work`` returns.
    """
    try:
        return work()
    except UnicodeEncodeError:
        _leave_out_bounds(table)
        return work()


def _leave_out_bounds(table: Any) -> None:
    """Let PyIceberg, in this process, write down no bounds of what the next commit's files hold."""
    metrics = "write.metadata.metrics."
    # its owner may ask for bounds of single columns
    properties = {k: v for k, v in table.metadata.properties.items() if not k.startswith(metrics)}
    properties[f"{metrics}default"] = "counts"
    table.metadata = table.metadata.model_copy(update={"properties": properties})


def _make_delta(directory: Path, schema: Any, files: Sequence[TableFile]) -> None:
    from deltalake import CommitProperties, DeltaTable, Schema  # noqa: PLC0415 - an extra
    from deltalake.exceptions import CommitFailedError, DeltaError  # noqa: PLC0415 - an extra
    from deltalake.transaction import (  # noqa: PLC0415 - an extra
        AddAction,
        RemoveAction,
        create_table_with_add_actions,
    )

    def added(name: str, rows: int) -> AddAction:
        facts = (directory / name).stat()
        stats = json.dumps({"numRecords": rows})
        return AddAction(name, facts.st_size, {}, facts.st_mtime_ns // 1_000_000, True, stats)

    place, columns = str(directory), Schema.from_arrow(schema)
    # whoever commits between has perhaps added the same rows
    once = CommitProperties(max_commit_retries=0)
    try:
        if not DeltaTable.is_deltatable(place):
            actions: list[Any] = [added(*file) for file in files]
            create_table_with_add_actions(place, columns, actions, commit_properties=once)
            return
        table = DeltaTable(place)
        if table.metadata().partition_columns:
            raise _others_table(directory)
        had: list[dict[str, Any]] = _rows(table.get_add_actions(flatten=True))
        sizes = {unquote(file["path"]): file["size_bytes"] for file in had}
        if table.schema() != columns:
            actions = [added(*file) for file in files]
            table.create_write_transaction(actions, "overwrite", columns, commit_properties=once)
            return
        names, now_ms = {name for name, _ in files}, wall_clock_ms()
        actions = [added(*file) for file in files if file[0] not in sizes]
        actions += [
            RemoveAction(file["path"], True, now_ms, file["size_bytes"], {})
            for file in had
            if unquote(file["path"]) not in names
        ]
        if actions:
            table.create_write_transaction(actions, "append", columns, commit_properties=once)
    except CommitFailedError as error:
        raise _changed_meanwhile(directory) from error
    except DeltaError as error:
        raise RmqCoreError(f"{directory}: {error}") from error


def _rows(found: Any) -> list[dict[str, Any]]:
    import pyarrow as pa  # noqa: PLC0415 - an extra

    rows: list[dict[str, Any]] = pa.table(found).to_pylist()
    return rows


def _make_iceberg(directory: Path, schema: Any, files: Sequence[TableFile]) -> None:
    from pyiceberg.catalog.sql import SqlCatalog  # noqa: PLC0415 - an extra
    from pyiceberg.exceptions import (  # noqa: PLC0415 - an extra
        CommitFailedException,
        NamespaceAlreadyExistsError,
    )

    home = directory / ICEBERG_HOME
    home.mkdir(exist_ok=True)
    catalog = SqlCatalog(ICEBERG_CATALOG, **iceberg_properties(directory))
    try:
        with suppress(NamespaceAlreadyExistsError):
            catalog.create_namespace(ICEBERG_TABLE.partition(".")[0])
        location = f"file://{home}/messages"
        table = catalog.create_table_if_not_exists(ICEBERG_TABLE, schema=schema, location=location)
        places = [f"file://{directory / name}" for name, _ in files]
        in_any_text(tried_once(table), lambda: _fit_iceberg(table, schema, places))
    except CommitFailedException as error:
        raise _changed_meanwhile(directory) from error
    finally:
        catalog.close()


def _fit_iceberg(table: Any, schema: Any, places: Sequence[str]) -> None:
    """Let an Iceberg table have these columns and files, in one commit."""
    from pyiceberg.io.pyarrow import parquet_files_to_data_files  # noqa: PLC0415 - an extra

    had = {task.file.file_path: task.file for task in table.scan().plan_files()}
    gone = [file for place, file in had.items() if place not in set(places)]
    new = [place for place in places if place not in had]
    columns = set(table.schema().as_arrow().names)
    with table.transaction() as commit:
        if columns != set(schema.names):
            with commit.update_schema(allow_incompatible_changes=True) as update:
                for name in sorted(columns - set(schema.names)):
                    update.delete_column(name)
                update.union_by_name(schema)
        if new and not gone:
            commit.add_files(new)
        elif gone:
            if (mapping := "schema.name-mapping.default") not in commit.table_metadata.properties:
                names = commit.table_metadata.schema().name_mapping.model_dump_json()
                commit.set_properties({mapping: names})
            with commit.update_snapshot().overwrite() as files:
                for file in gone:
                    files.delete_data_file(file)
                for file in parquet_files_to_data_files(table.io, commit.table_metadata, iter(new)):
                    files.append_data_file(file)


def _changed_meanwhile(directory: Path) -> RmqCoreError:
    return RmqCoreError(
        f"{directory}: another has committed to the table meanwhile, and nothing of this export is "
        "in it; export again"
    )


def _others_table(directory: Path) -> RmqCoreError:
    return RmqCoreError(
        f"{directory}: a table is there that no export has made; give the export a directory of "
        "its own"
    )
