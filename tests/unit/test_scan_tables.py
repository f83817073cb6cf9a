"""Delta and Iceberg tables over exported files hold the messages of the log, also a second time."""

import json
import shutil
from pathlib import Path

import pytest

from rmqcore import open_store, scan, transfer
from rmqcore.errors import ConfigError, RmqCoreError
from rmqcore.lake import TableFollower
from rmqcore.scan import tables

pytestmark = pytest.mark.engine

pa = pytest.importorskip("pyarrow")

COLUMNS = ("topic", "queue_offset", "phy_offset", "store_timestamp", "keys", "body", "properties")


@pytest.fixture
def filled(store_path):
    """2,000 messages of two topics in several log files."""
    fill(store_path, 0, 2000)
    return store_path


def fill(path, start, stop):
    with open_store(path, mapped_file_size_commit_log=64 << 10) as store:
        for number in range(start, stop):
            store.put(f"T{number % 2}", b"%d" % number, keys=[f"k{number}"], properties={"a": "b"})


def delta_table(directory):
    deltalake = pytest.importorskip("deltalake")
    return deltalake.DeltaTable(str(directory)).to_pyarrow_table()


def iceberg_table(directory):
    sql = pytest.importorskip("pyiceberg.catalog.sql")
    catalog = sql.SqlCatalog(tables.ICEBERG_CATALOG, **tables.iceberg_properties(directory))
    try:
        return catalog.load_table(tables.ICEBERG_TABLE).scan().to_arrow()
    finally:
        catalog.close()


def delta_history(directory):
    deltalake = pytest.importorskip("deltalake")
    last = deltalake.DeltaTable(str(directory)).version()
    versions = range(last + 1)
    return [deltalake.DeltaTable(str(directory), n).to_pyarrow_table() for n in versions]


def iceberg_history(directory):
    sql = pytest.importorskip("pyiceberg.catalog.sql")
    catalog = sql.SqlCatalog(tables.ICEBERG_CATALOG, **tables.iceberg_properties(directory))
    try:
        table = catalog.load_table(tables.ICEBERG_TABLE)
        ids = [snapshot.snapshot_id for snapshot in table.snapshots()]
        return [table.scan(snapshot_id=one).to_arrow() for one in ids]
    finally:
        catalog.close()


HISTORIES = {"delta": delta_history, "iceberg": iceberg_history}
READERS = {"delta": delta_table, "iceberg": iceberg_table}


def rows_of(table):
    return table.select(COLUMNS).sort_by("phy_offset").to_pylist()


def rows_in_log(path, **selection):
    return rows_of(pa.table(scan.read_store(path, COLUMNS, **selection)))


def export(path, target, table_format, **settings):
    pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}[table_format])
    settings = {"columns": COLUMNS, "split_size": 64 << 10, **settings}
    return transfer.export_store(path, target, file_format=table_format, **settings)


@pytest.mark.tables
@pytest.mark.parametrize("table_format", tables.TABLE_FORMATS)
def test_a_table_is_the_log_also_after_the_store_has_grown(filled, tmp_path, table_format):
    parts = export(filled, tmp_path / "lake", table_format)
    assert len(parts) > 3
    assert rows_of(READERS[table_format](tmp_path / "lake")) == rows_in_log(filled)
    before = {part.file: (tmp_path / "lake" / part.file).read_bytes() for part in parts[:-1]}
    fill(filled, 2000, 2500)
    parts = export(filled, tmp_path / "lake", table_format)
    found = rows_of(READERS[table_format](tmp_path / "lake"))
    assert len(found) == 2500
    assert found == rows_in_log(filled)
    assert all((tmp_path / "lake" / name).read_bytes() == data for name, data in before.items())
    manifest = json.loads((tmp_path / "lake" / "_manifest.json").read_text())
    assert manifest["format"] == table_format
    assert [part["file"] for part in manifest["parts"]] == [part.file for part in parts]


@pytest.mark.tables
@pytest.mark.parametrize("table_format", tables.TABLE_FORMATS)
def test_a_table_has_what_the_manifest_names_and_no_other_file(filled, tmp_path, table_format):
    parts = export(filled, tmp_path / "lake", table_format)
    shutil.copy(tmp_path / "lake" / parts[0].file, tmp_path / "lake" / "part-other.parquet")
    export(filled, tmp_path / "lake", table_format, topics=["T1"])
    found = rows_of(READERS[table_format](tmp_path / "lake"))
    assert found == rows_in_log(filled, topics=["T1"])


@pytest.mark.tables
@pytest.mark.parametrize("table_format", tables.TABLE_FORMATS)
def test_an_empty_store_is_an_empty_table(store_path, tmp_path, table_format):
    open_store(store_path).close()
    assert export(store_path, tmp_path / "lake", table_format) == []
    table = READERS[table_format](tmp_path / "lake")
    assert table.num_rows == 0
    assert set(table.column_names) == set(COLUMNS)


@pytest.mark.tables
@pytest.mark.parametrize("table_format", tables.TABLE_FORMATS)
def test_a_table_keeps_the_states_that_exports_of_before_have_made(filled, tmp_path, table_format):
    lake, states = tmp_path / "lake", [rows_in_log(filled)]
    export(filled, lake, table_format)
    export(filled, lake, table_format)
    fill(filled, 2000, 2500)
    for settings in ({}, {"topics": ["T1"]}, {"topics": ["T1"], "columns": COLUMNS[:4]}):
        export(filled, lake, table_format, **settings)
        states.append(rows_in_log(filled, topics=settings.get("topics")))
    assert [rows_of(state) for state in HISTORIES[table_format](lake)[:3]] == states[:3]
    last = HISTORIES[table_format](lake)[-1]
    assert last.column_names == list(COLUMNS[:4])
    assert last.num_rows == 1250


COMMITS = {
    "delta": ("deltalake", "DeltaTable", "create_write_transaction"),
    "iceberg": ("pyiceberg.catalog.sql", "SqlCatalog", "commit_table"),
}


@pytest.mark.tables
@pytest.mark.parametrize("table_format", tables.TABLE_FORMATS)
def test_of_two_exports_at_a_time_one_is_told_and_no_row_is_there_twice(
    store_path, tmp_path, monkeypatch, table_format
):
    module, of, name = COMMITS[table_format]
    kind, target = getattr(pytest.importorskip(module), of), tmp_path / "lake"
    commit = getattr(kind, name)
    fill(store_path, 0, 0)
    export(store_path, target, table_format)

    def commit_behind_another(*args, **settings):
        monkeypatch.undo()
        fill(store_path, 1000, 2000)
        export(store_path, target, table_format)
        return commit(*args, **settings)

    fill(store_path, 0, 1000)
    monkeypatch.setattr(kind, name, commit_behind_another)
    with pytest.raises(RmqCoreError, match="export again"):
        export(store_path, target, table_format)
    assert rows_of(READERS[table_format](target)) == rows_in_log(store_path)


@pytest.mark.tables
@pytest.mark.parametrize("table_format", tables.TABLE_FORMATS)
def test_of_two_exports_at_a_time_none_writes_over_a_file_of_the_other(
    store_path, tmp_path, monkeypatch, table_format
):
    rename, target = Path.rename, tmp_path / "lake"

    def rename_behind_another(path, place):
        if not path.name.startswith(".part"):
            return rename(path, place)
        monkeypatch.undo()
        fill(store_path, 1000, 2000)
        export(store_path, target, table_format, split_size=1 << 20)
        return rename(path, place)

    fill(store_path, 0, 1000)
    monkeypatch.setattr(Path, "rename", rename_behind_another)
    export(store_path, target, table_format, split_size=1 << 20)
    states = [state.num_rows for state in HISTORIES[table_format](target)]
    assert states[-2:] == [2000, 1000]


@pytest.mark.tables
def test_a_table_that_follows_a_topic_is_no_export_s(filled, tmp_path):
    pytest.importorskip("deltalake")
    TableFollower(filled, tmp_path / "lake", topic="T1").run_once()
    with pytest.raises(RmqCoreError, match="directory of its own"):
        export(filled, tmp_path / "lake", "delta")
    assert delta_table(tmp_path / "lake").num_rows == 1000


@pytest.mark.parametrize("table_format", tables.TABLE_FORMATS)
def test_without_the_package_nothing_is_written(filled, tmp_path, monkeypatch, table_format):
    package = {"delta": "deltalake", "iceberg": "pyiceberg.catalog.sql"}[table_format]
    monkeypatch.setitem(__import__("sys").modules, package, None)
    with pytest.raises(RmqCoreError, match=rf"rmqcore\[{table_format}\]"):
        transfer.export_store(filled, tmp_path / "lake", file_format=table_format)
    assert not (tmp_path / "lake").exists()


def test_an_unknown_format_is_refused(filled, tmp_path):
    with pytest.raises(ConfigError, match="one of jsonl, parquet, delta, iceberg"):
        transfer.export_store(filled, tmp_path / "lake", file_format="hudi")
    assert not (tmp_path / "lake").exists()
