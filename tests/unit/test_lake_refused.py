"""The table beside: what does not fit is in it once, whatever schema was there before."""

import sys
import zlib
from functools import partial

import pytest

import rmqcore
from rmqcore.errors import RmqCoreError
from rmqcore.lake import Bodies, Round, TableFollower, follower, sources
from rmqcore.lake.bodies import Field
from rmqcore.lake.target import lacking

pa = pytest.importorskip("pyarrow")
deltalake = pytest.importorskip("deltalake")
catalogs = pytest.importorskip("pyiceberg.catalog.sql")
from rmqcore.scan.tables import iceberg_properties  # noqa: E402 - behind the packages it is for

pytestmark = pytest.mark.engine

SIZES = {"mapped_file_size_commit_log": 1 << 16, "mapped_file_size_consume_queue": 2000}
NUMBERS = Bodies("json", (Field("id", "long", required=True),))
TEXTS = Bodies("json", (Field("id", "string", required=True),))
NAMED = Bodies("json", (Field("id", "long", required=True), Field("name", "string", True)))


@pytest.fixture(params=["delta", "iceberg"])
def following(request, tmp_path):
    """Makes followers of the topic T of a store, all of one table."""
    made = partial(
        TableFollower,
        tmp_path / "store",
        tmp_path / "table",
        topic="T",
        table_format=request.param,
    )
    made.offsets = lambda: offsets_of(tmp_path / "table", request.param, "T")
    made.refused = lambda: offsets_of(tmp_path / "table~dlq", request.param, "refused")
    made.put = partial(put, tmp_path / "store")
    return made


def put(path, *bodies):
    with rmqcore.open_store(path, **SIZES) as store:
        for body in bodies:
            store.put("T", body)


def put_compressed(path, *bodies):
    """Messages that say of themselves that they are compressed."""
    flags = pa.array([1] * len(bodies), pa.int32())
    with rmqcore.open_store(path, **SIZES) as store:
        store.put_columns(pa.table({"body": bodies, "sys_flag": flags}), topic="T")


def offsets_of(table, table_format, name):
    """The queue offsets of a table's rows, each as often as it is there."""
    if table_format == "delta":
        found = deltalake.DeltaTable(str(table)).to_pyarrow_table()
    else:
        catalog = catalogs.SqlCatalog("rmqcore", **iceberg_properties(table))
        found = catalog.load_table(f"rmq.{name}").scan().to_arrow()
        catalog.close()
    return sorted(found.column("queue_offset").to_pylist())


def test_a_schema_that_the_table_refuses_puts_nothing_aside(following):
    following.put(b'{"id": 0}')
    following(bodies=NUMBERS).run_once()
    following.put(b'{"id": 1}', b'{"id": "two"}')
    with pytest.raises(RmqCoreError, match="the column id has the type int64, and not"):
        following(bodies=TEXTS).run_once()
    following(bodies=NUMBERS).run_once()
    assert (following.offsets(), following.refused()) == ([0, 1], [2])


@pytest.mark.parametrize("bodies", [Bodies(), NUMBERS], ids=lambda bodies: bodies.kind)
def test_a_body_that_does_not_decompress_stops_no_table(following, tmp_path, bodies, monkeypatch):
    monkeypatch.setattr(follower, "BYTES_MAX", 1)
    following.put(b'{"id": 0}')
    put_compressed(tmp_path / "store", zlib.compress(b'{"id": 1}'), b"no zlib", b"no zlib")
    following.put(b'{"id": 4}')
    while following(bodies=bodies).run_once().behind:
        pass
    assert (following.offsets(), following.refused()) == ([0, 1, 4], [2, 3])
    following.put(b'{"id": 5}')
    assert following(bodies=bodies).run_once().rows == 1


def test_few_stored_bytes_beside_what_does_not_decompress_are_not_read_all_at_once(
    following, tmp_path, monkeypatch
):
    """Bodies of zeros by the gigabyte go into a megabyte of the log, and into no memory."""
    size = 1 << 20
    monkeypatch.setattr(follower, "BYTES_MAX", size)
    monkeypatch.setattr(sources, "_PLAIN_BYTES", size)
    put_compressed(tmp_path / "store", b"no zlib", *[zlib.compress(bytes(size))] * 4)
    assert following().run_once() == Round(rows=1, refused=1, compacted=0, behind=3)
    while following().run_once().behind:
        pass
    assert (following.offsets(), following.refused()) == ([1, 2, 3, 4], [0])


def test_what_does_not_decompress_is_aside_as_it_is_stored(tmp_path):
    put_compressed(tmp_path / "store", zlib.compress(b"one"), b"no zlib", b"")
    TableFollower(tmp_path / "store", tmp_path / "table", topic="T").run_once()
    good, empty = deltalake.DeltaTable(tmp_path / "table").to_pyarrow_table().to_pylist()
    (refused,) = deltalake.DeltaTable(tmp_path / "table~dlq").to_pyarrow_table().to_pylist()
    assert (good["body"], empty["body"], refused["body"]) == (b"one", b"", b"no zlib")
    assert refused["error"].startswith("the body does not decompress: zlib")


@pytest.mark.parametrize("later", [(), (b'{"id": 5}',)])
def test_what_a_stricter_schema_refuses_behind_a_round_that_died_is_put_aside(
    following, monkeypatch, later
):
    following.put(b'{"id": 0, "name": "n"}', b'{"id": 1}', b"2", b'{"id": 3, "name": "n"}', b"4")
    first = following(bodies=NUMBERS)

    def die(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(first._tables.good, "append", die)
    with pytest.raises(KeyboardInterrupt):
        first.run_once()
    following.put(*later)
    aside = [1, 2, 4, *range(5, 5 + len(later))]
    for dies_again in (True, False):
        again = following(bodies=NAMED)
        if dies_again:
            monkeypatch.setattr(again._tables.good, "append", die)
            with pytest.raises(KeyboardInterrupt):
                again.run_once()
        else:
            again.run_once()
        assert following.refused() == aside
    assert following.offsets() == [0, 3]


def test_only_rows_near_those_that_come_again_are_asked_for(following, monkeypatch):
    following.put(*[b"x"] * 5)
    first = following(bodies=NUMBERS)

    def die(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(first._tables.good, "append", die)
    with pytest.raises(KeyboardInterrupt):
        first.run_once()
    looked_at = []

    def counted(rows, there):
        looked_at.append(there.num_rows)
        return lacking(rows, there)

    monkeypatch.setattr(sys.modules[type(first._tables.refused).__module__], "lacking", counted)
    monkeypatch.setattr(follower, "ROWS_MAX", 2)
    again = following(bodies=NUMBERS)
    while again.run_once().behind:
        pass
    assert looked_at == [2, 2, 1]
    assert following.refused() == [0, 1, 2, 3, 4]
