"""docs/spark.md: its blocks run in order and print what stands below them; its tables are whole."""

import contextlib
import io
import random
import re
from pathlib import Path

import pytest

from rmqcore import open_store

pytestmark = pytest.mark.peers

pytest.importorskip("pyspark")

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"
BLOCK = re.compile(r"```python\n(.*?)```\n(?:\n```\n(.*?)```\n)?", re.DOTALL)


def text():
    return PAGE.read_text("utf-8")


def section(title):
    return re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", text(), re.DOTALL | re.MULTILINE)[1]


def fill(path):
    """The store of the page: 30,000 messages of two topics."""
    chance = random.Random(5)
    with open_store(path, mapped_file_size_commit_log=1 << 20) as store:
        for number in range(30_000):
            store.put(
                "Orders" if chance.random() < 2 / 3 else "Payments",
                f"{chance.randrange(10**6) / 100} EUR, order {number % 5000}".encode(),
                queue_id=number % 4,
                keys=[f"order-{number % 5000}"],
                tags=chance.choice(["new", "paid"]),
            )


def shown(spark, root, monkeypatch):
    """(what a block prints, what the page says that it prints) for each block."""
    monkeypatch.setattr("rmqcore.spark.session.local_session", lambda: spark)
    fill(root / "data" / "store")
    names = {}
    for code, below in BLOCK.findall(text()):
        beside = "".join(f"{line}\n" for line in re.findall(r"print\(.*\)  # (.*)", code))
        printed = io.StringIO()
        placed = re.sub(r'"/(data|lake)/', rf'"{root}/\1/', code)
        with contextlib.redirect_stdout(printed):
            exec(compile(placed, str(PAGE), "exec"), names)
        for query in spark.streams.active:
            query.processAllAvailable()
            query.stop()
        yield printed.getvalue(), beside + below


def lines_of(text):
    return [line for line in text.splitlines() if line and not line.startswith("only show")]


def test_every_block_runs_and_prints_what_is_below_it(spark, tmp_path, monkeypatch):
    pytest.importorskip("deltalake")
    pytest.importorskip("pyiceberg")
    count = 0
    for printed, said in shown(spark, tmp_path, monkeypatch):
        assert lines_of(printed) == lines_of(said)
        count += bool(said)
    assert count >= 3


def test_the_block_of_the_readme_runs(spark, tmp_path, capsys):
    fill(tmp_path / "orders.store")
    readme = (PAGE.parents[1] / "README.md").read_text("utf-8")
    (code,) = re.findall(r"^## In Spark\n\n```python\n(.*?)```", readme, re.DOTALL | re.MULTILINE)
    exec(code.replace("orders.store", str(tmp_path / "orders.store")), {"spark": spark})
    assert "|  Orders| new|10048|" in capsys.readouterr().out


def test_the_table_of_options_is_whole():
    from rmqcore.spark.options import _READ, _WRITE

    rows = re.findall(r"^\| (`.*?) \|", section("Options"), re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert named == {*_READ, "broker"}
    append = section("Append to a store")
    assert [name for name in _WRITE if name not in append and name != "config"] == []


def test_the_table_of_functions_and_commands_is_whole():
    from rmqcore import spark
    from rmqcore.cli.spark import app

    jobs = section("Whole stores")
    commands = {command.name for command in app.registered_commands}
    assert set(re.findall(r"`rmqcore spark (\w+) STORE", text())) == commands
    named = set(re.findall(r"`(\w+)`", "\n".join(re.findall(r"^\| (.*?) \|", jobs, re.MULTILINE))))
    assert named <= set(spark.__all__)
    functions = {name for name in spark.__all__ if name.islower()} - named
    assert [name for name in functions if name not in text()] == []


def test_the_table_of_columns_is_whole():
    from rmqcore.scan import DEFAULT_COLUMNS, FULL_COLUMNS, LIGHT_COLUMNS

    sets = dict(re.findall(r"^\| `(light|default|full)` \| (.*) \|", text(), re.MULTILINE))
    assert tuple(sets["light"].split(", ")) == LIGHT_COLUMNS
    light, more = sets["default"].split("; ")
    assert light == "light without tags_code"
    assert set(DEFAULT_COLUMNS) == {*LIGHT_COLUMNS, *more.split(", ")} - {"tags_code"}
    _, more = sets["full"].split("; ")
    assert set(FULL_COLUMNS) == {*DEFAULT_COLUMNS, "tags_code", *more.split(", ")}
