"""A store is a dataset to whatever takes one, and decodes only what it is asked for."""

import datetime as dt
import pickle

import pytest

import rmqcore
from rmqcore.scan.predicates import columns_in, pushed_down

pytestmark = pytest.mark.engine

pa = pytest.importorskip("pyarrow")
pc = pytest.importorskip("pyarrow.compute")
field = pc.field
COUNT = 12_000
T = dt.datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=dt.UTC)
T_MS = int(T.timestamp() * 1000)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("dataset") / "store"
    with rmqcore.open_store(path, mapped_file_size_commit_log=1 << 20) as opened:
        for number in range(COUNT):
            opened.put(
                f"T{number % 4}",
                b"%0100d" % number,
                queue_id=number % 3,
                tags=f"tag{number % 2}",
                keys=[f"k{number}", "all"],
            )
        yield opened


@pytest.fixture
def dataset(store):
    return store.arrow_dataset()


# ---- filters


@pytest.mark.logic
@pytest.mark.parametrize(
    ("expression", "selection"),
    [
        (None, {}),
        (field("topic") == 'a"b\\c', {"topics": ('a"b\\c',)}),
        (field("topic") == "A) and (tags == ", {"topics": ("A) and (tags == ",)}),
        (pc.scalar("A") == field("topic"), {"topics": ("A",)}),
        ((field("topic") == "A") & (field("queue_id") >= 3), {"topics": ("A",)}),
        ((field("topic") == "A") | (field("topic") == "B"), {"topics": ("A", "B")}),
        ((field("topic") == "A") | (field("body") == b"x"), {}),
        (field("topic").isin(["x", "y"]), {"topics": ("x", "y")}),
        (field("queue_id").isin([1, 2]) & (field("queue_id") == 2), {"queue_ids": (2,)}),
        (field("topic").isin(['x" ] [ "', "y"]), {}),
        (field("tags").isin(["p"]), {}),
        (~(field("topic") == "A") & (field("queue_id") == 2), {"queue_ids": (2,)}),
        (
            (field("topic") == "a") & (field("tags").is_null() | (field("tags") == "x")),
            {"topics": ("a",)},
        ),
        (pc.starts_with(field("topic"), "a and (b") & (field("tags") == "x"), {"tags": ("x",)}),
        (
            (pc.if_else(field("topic") == "A", 1, 2) == 1) & (field("queue_id") == 1),
            {"queue_ids": (1,)},
        ),
        (field("keys") == "k1 k2", {"keys": ("k1",)}),
        (field("unique_key") == "u", {"unique_keys": ("u",)}),
        (
            (field("phy_offset") > 5) & (field("phy_offset") <= 9),
            {"begin_phy_offset": 5, "end_phy_offset": 10},
        ),
        (field("phy_offset") + 1 > 5, {}),
        (
            (field("store_timestamp") >= T) & (field("store_timestamp") < T),
            {"begin_ms": T_MS, "end_ms": T_MS},
        ),
        (field("store_timestamp") == T, {"begin_ms": T_MS, "end_ms": T_MS}),
        ((field("topic") == "A") & (field("topic") == "B"), {"topics": ()}),
        (field("topic") != "A", {}),
        (field("topic") == b"T1", {"topics": ("5431", "T1")}),
        (field("topic").isin([b"T1"]) & (field("topic") == "T1"), {"topics": ("T1",)}),
        (field("tags") == b"\xff", {"tags": ("FF",)}),
        ((field("tags") == "a\ufffd") | (field("tags") == "b"), {}),
        ((field("keys") == "k\ufffd") & (field("unique_key") == "\ufffd"), {}),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_told_to_the_decoder_holds_for_every_row_of_a_filter(expression, selection):
    assert pushed_down(expression) == selection


FILTERS = [
    field("topic") == "T1",
    (field("topic") == "T1") & (field("tags") == "tag1"),
    field("topic").isin(["T1", "T3"]) & (field("queue_id") != 1),
    (field("keys") == "k77 all") | (field("keys") == "k78 all"),
    field("phy_offset") < 100_000,
    (field("tags") == "tag0") | (field("queue_id") == 2),
    ~(field("topic") == "T1"),
    field("keys").is_null(),
    field("topic") == b"T1",
    field("topic").isin([b"T1"]) & (field("topic") == "T1"),
    field("topic").isin(['T1" ] [ "', "T2"]),
    field("tags") == b"tag1",
    field("keys") == b"k77 all",
    field(0) == "T1",
    pc.match_substring(field("keys"), "k11"),
    field("store_timestamp") < dt.datetime(2020, 1, 1, tzinfo=dt.UTC),
]


@pytest.mark.parametrize("expression", FILTERS, ids=str)
def test_a_filter_answers_as_it_does_on_the_whole_table(dataset, expression):
    whole = dataset.to_table()
    assert whole.num_rows == COUNT
    wanted = whole.filter(expression)
    assert dataset.to_table(filter=expression) == wanted
    assert pa.Table.from_batches(dataset.to_batches(filter=expression), wanted.schema) == wanted
    assert dataset.count_rows(filter=expression) == wanted.num_rows
    assert dataset.filter(expression).to_table() == wanted
    light = dataset.to_table(columns=["queue_id", "topic"], filter=expression)
    assert light == wanted.select(["queue_id", "topic"])


def test_a_filter_finds_what_is_no_utf8_as_it_is_shown(tmp_path):
    with rmqcore.open_store(tmp_path / "store") as store:
        store.put("T", b"one", tags="tagX", keys=["keyX", "other"])
        log = next((tmp_path / "store" / "commitlog").iterdir())
    log.write_bytes(log.read_bytes().replace(b"tagX", b"tag\xff").replace(b"keyX", b"key\xff"))
    with rmqcore.open_store(tmp_path / "store", mode="r") as reader:
        dataset = reader.arrow_dataset()
        for name, text in (("tags", "tag\ufffd"), ("keys", "key\ufffd other")):
            assert dataset.to_table(filter=field(name) == text)["body"].to_pylist() == [b"one"]


def test_only_what_is_looked_at_is_decoded(dataset):
    def decoded(columns, expression=None):
        return dataset._wanted(columns, expression)

    assert decoded(["topic"]) == ("topic",)
    assert decoded(["topic"], field("keys") == "x") == ("topic", "keys")
    assert decoded({"n": field("queue_id") + 1}) == ("queue_id",)
    assert decoded([]) == ("phy_offset",)
    with pytest.raises(KeyError, match="no column 'nothing'"):
        dataset.scanner(columns=["nothing"])
    assert columns_in(field("topic") == "body", ("topic", "body", "keys")) == {"topic", "body"}


def test_projections_may_compute(dataset):
    found = dataset.to_table(
        columns={"n": pc.add(field("queue_id"), 1)}, filter=field("topic") == "T0"
    )
    assert sorted(set(found["n"].to_pylist())) == [1, 2, 3]
    by_number = dataset.to_table(columns={"n": field(1)}, filter=field(0) == "T0")
    assert by_number["n"] == dataset.to_table(filter=field("topic") == "T0")["queue_id"]


def test_what_is_scanned_twice_is_there_twice(dataset):
    assert dataset.to_table() == dataset.to_table()
    assert dataset.scanner().to_table().num_rows == dataset.scanner().count_rows() == COUNT


def test_a_dataset_holds_what_there_was(store_path):
    with rmqcore.open_store(store_path) as opened:
        opened.put("T", b"before")
        dataset = opened.arrow_dataset()
        opened.put("T", b"after")
        assert dataset.to_table()["body"].to_pylist() == [b"before"]
        assert opened.arrow_dataset().count_rows() == 2
        again = pickle.loads(pickle.dumps(dataset.filter(field("topic") == "T")))
        assert again.to_table()["body"].to_pylist() == [b"before"]


def test_fragments_hold_each_row_once(store):
    from rmqcore.scan.dataset import StoreDataset

    dataset = StoreDataset(store.path, split_size=200_000)
    fragments = [pickle.loads(pickle.dumps(one)) for one in dataset.get_fragments()]
    assert len(fragments) > 5
    assert pa.concat_tables(one.to_table() for one in fragments) == dataset.to_table()
    for expression in FILTERS:
        parts = list(dataset.get_fragments(filter=expression))
        assert sum(part.count_rows(filter=expression) for part in parts) == dataset.count_rows(
            filter=expression
        )


def test_a_selection_narrows_all_that_follows(store):
    dataset = store.arrow_dataset(["topic", "queue_id"], topics=["T1", "T2"], queue_ids=[0])
    assert dataset.count_rows() == COUNT // 4 // 3 * 2
    assert dataset.count_rows(filter=field("topic") == "T1") == COUNT // 4 // 3
    assert dataset.count_rows(filter=field("topic") == "T0") == 0
    with pytest.raises(ValueError, match="different names"):
        store.arrow_dataset(["nothing"])
    with pytest.raises(TypeError):
        store.arrow_dataset(topic="T1").to_table()


def test_heads_takes_and_what_is_not_there(dataset):
    assert dataset.head(3, columns=["queue_offset"]).num_rows == 3
    assert dataset.take([5, 7])["body"].to_pylist() == [b"%0100d" % n for n in (5, 7)]
    assert dataset.to_table(columns=[]).shape == (COUNT, 0)
    assert dataset.to_table(columns=[], filter=field("topic") == "T1").shape == (COUNT // 4, 0)
    assert dataset.sort_by("keys").head(1)["keys"].to_pylist() == ["k0 all"]
    for call in (lambda: dataset.replace_schema(dataset.schema), dataset.join_asof):
        with pytest.raises(NotImplementedError):
            call()


def test_a_reader_and_a_closed_store(store_path):
    with rmqcore.open_store(store_path) as opened:
        opened.put("T", b"x")
    with rmqcore.open_store(store_path, mode="r") as reader:
        assert reader.arrow_dataset().count_rows() == 1
    with pytest.raises(rmqcore.StoreClosedError):
        opened.arrow_dataset()


def test_a_notebook_names_a_queue_that_cannot_be_read_beside_the_others(store_path):
    with rmqcore.open_store(store_path) as store:
        for topic, queue_id in (("T", 0), ("T", 1), ("U", 0)):
            store.put(topic, b"x", queue_id=queue_id)
            store.put(topic, b"y", queue_id=queue_id)
    with (store_path / "consumequeue/T/1" / f"{0:020d}").open("r+b") as queue:
        queue.write(b"\xff" * 40)
    with rmqcore.open_store(store_path, mode="r") as reader:
        shown = reader._repr_html_()
    assert "<td>T</td><td>2</td><td>2 and queue 1, which cannot be read</td>" in shown
    assert "<td>U</td><td>1</td><td>2</td>" in shown


def test_notebooks_show_stores_results_and_datasets(store, dataset):
    assert "<td>T1</td><td>3</td><td>3,000</td>" in store._repr_html_()
    assert "store_timestamp" in dataset._repr_html_()
    with rmqcore.open_store(store.path, mode="r") as reader:
        assert "<td>T2</td>" in reader._repr_html_()
    for result in (store.get_message("T1", 1, 0), store.query_message("T1", "k1")):
        assert "<td>tag1</td><td>k1 all</td>" in result._repr_html_()


# ---- others that take it


def test_duckdb_takes_it_by_the_name_of_the_variable(dataset):
    duckdb = pytest.importorskip("duckdb")
    asked = """
        SELECT topic, count(*), min(keys) FROM dataset WHERE tags = 'tag1' AND topic <> 'T3'
        GROUP BY ALL ORDER BY ALL
    """
    assert duckdb.sql(asked).fetchall() == [("T1", 3000, "k1 all")]
    assert duckdb.sql("SELECT count(*) FROM dataset").fetchall() == [(COUNT,)]
    assert duckdb.sql("SELECT count(*) FROM dataset").fetchall() == [(COUNT,)]
    asked = "SELECT count(*) FROM dataset WHERE topic IN ('T1', 'T2') AND queue_id = 1"
    assert duckdb.sql(asked).fetchall() == [(2000,)]


def test_polars_scans_it(store):
    pl = pytest.importorskip("polars")
    lazy = store.scan_polars()
    assert lazy.select(pl.len()).collect().item() == COUNT
    assert lazy.collect().height == COUNT
    for predicate, count in (
        (pl.col("topic") == "T1", 3000),
        ((pl.col("topic") == "T1") & (pl.col("queue_id") >= 1), 2000),
        ((pl.col("topic") == "T1") | (pl.col("tags") == "tag0"), 9000),
        (pl.col("topic").is_in(["T1", "T2"]), 6000),
        (pl.col("keys") == "k5 all", 1),
        (pl.col("store_timestamp") < dt.datetime(2020, 1, 1, tzinfo=dt.UTC), 0),
        (pl.col("topic") != "T1", 9000),
    ):
        found = lazy.filter(predicate).select("queue_offset", "topic").collect()
        assert (found.height, found.columns) == (count, ["queue_offset", "topic"])
    assert lazy.head(7).collect().height == 7
    assert lazy.filter(pl.col("topic") == "T2").head(5).collect()["topic"].to_list() == ["T2"] * 5
    assert store.scan_polars(["topic"], topics=["T3"]).collect().height == 3000
    # a head in front of a filter, which Polars hands over together
    first = lazy.select("topic", "queue_offset").head(50)
    wanted = first.collect().filter(pl.col("topic") == "T2")
    found = first.filter(pl.col("topic") == "T2").collect()
    assert 0 < found.height < 50
    assert found.equals(wanted)


@pytest.mark.logic
def test_what_polars_says_of_a_predicate_reaches_the_decoder():
    pl = pytest.importorskip("polars")
    from rmqcore.scan.polars_source import _narrowed

    predicate = (pl.col("topic") == "A") & (pl.col("queue_id") == 3) & pl.col("tags").is_in(["x"])
    assert pushed_down(_narrowed(predicate)) == {"topics": ("A",), "queue_ids": (3,)}
    assert pushed_down(_narrowed(pl.col("store_timestamp") >= T)) == {"begin_ms": T_MS}
    assert pushed_down(_narrowed((pl.col("topic") == "A") | pl.col("tags").is_null())) == {}
