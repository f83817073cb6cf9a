"""A store asked in SQL: topics are tables, and nothing else is within reach."""

import pytest
from cli.test_failures import run_without

from rmqcore import open_store
from rmqcore.cli.exit_codes import ExitCode

pytestmark = pytest.mark.engine


@pytest.fixture
def orders(store_path):
    with open_store(store_path, mapped_file_size_commit_log=1 << 20) as store:
        for number in range(6):
            body = b'{"id": %d, "euro": %d.5}' % (number, number)
            store.put("Orders", body, tags=f"t{number % 2}", queue_id=number % 2)
        store.put("Odd-1", b"\xff\x00")
    return store_path


def test_topics_are_tables_and_messages_has_all(rmqcore, orders):
    query = "select tags, count(*) n, sum(cast(text->>'$.euro' as double)) from Orders group by all"
    asked = rmqcore("sql", orders, f"{query} order by tags", "--json")
    assert [list(row.values()) for row in asked.json_lines] == [["t0", 3, 7.5], ["t1", 3, 10.5]]
    every = rmqcore("sql", orders, "select topic, count(*) from messages group by 1 order by 1")
    assert [line.split() for line in every.stdout.splitlines()[2:4]] == [
        ["Odd-1", "1"],
        ["Orders", "6"],
    ]
    assert rmqcore("sql", orders, 'select count(*) n from "Odd-1"', "--json").json == {"n": 1}
    piped = rmqcore("sql", orders, "--json", stdin="select max(queue_offset) m from Orders")
    assert piped.json == {"m": 2}


def test_values_of_every_kind_are_printed(rmqcore, orders):
    query = 'select body, text, properties, store_timestamp, 1.5::decimal(4,2) d from "Odd-1"'
    row = rmqcore("sql", orders, query, "--json").json
    assert (row["body_base64"], row["text"], row["properties"], row["d"]) == ("/wA=", None, {}, 1.5)
    assert row["store_timestamp"].startswith("20")
    text = rmqcore("sql", orders, query).stdout
    assert "\\xff\\x00" in text


def test_rows_end_at_the_count_and_none_is_a_finding(rmqcore, orders):
    some = rmqcore("sql", orders, "select 1 from Orders", "-n", 2, "--json")
    assert (len(some.json_lines), some.stderr) == (2, "the first 2 rows; -n 0 prints all\n")
    exact = rmqcore("sql", orders, "select 1 from Orders", "-n", 6)
    assert exact.stderr == ""
    assert len(rmqcore("sql", orders, "select 1 from Orders", "-n", 0, "--json").json_lines) == 6
    none = rmqcore("sql", orders, "select 1 from Orders where tags = 'none'")
    assert none.exit_code == ExitCode.FINDINGS


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("select * from Ordrs", "no topic Ordrs is here; did you mean Orders?"),
        ("selec", "syntax error"),
        ("select cast(text as int) from Orders", "Conversion Error"),
        ("select * from orders_of_this_process", "no topic orders_of_this_process is here"),
        ("copy (select 1) to 'x.csv'", "disabled by configuration"),
        ("select * from 'x.csv'", "x.csv"),
        ("delete from Orders", ""),
        (" ", "there is none"),
    ],
)
def test_what_cannot_be_asked_is_one_line(rmqcore, orders, tmp_path, monkeypatch, query, said):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    outcome = rmqcore("sql", orders, query)
    assert outcome.exit_code == ExitCode.USAGE
    assert said in outcome.stderr
    assert outcome.stderr.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_files_are_within_reach_where_that_is_asked_for(rmqcore, orders, tmp_path):
    (tmp_path / "names.csv").write_text("tag,name\nt0,new\nt1,paid\n")
    query = (
        f"select name, count(*) n from Orders join '{tmp_path}/names.csv' on tag = tags group by 1"
    )
    rows = rmqcore("sql", orders, f"{query} order by 1", "--files", "--json").json_lines
    assert rows == [{"name": "new", "n": 3}, {"name": "paid", "n": 3}]


@pytest.mark.process
def test_without_the_extra_it_is_named(orders):
    (asked,) = run_without(["duckdb"], ["sql", str(orders), "select 1"])
    assert (asked.exit_code, asked.stderr) == (2, "rmqcore: sql needs pip install 'rmqcore[sql]'\n")
