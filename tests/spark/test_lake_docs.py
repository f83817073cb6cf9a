"""docs/lake.md: the blocks of a running cluster run in order and print what stands below them."""

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rmqcore.cli.app import app

pytestmark = pytest.mark.peers

pytest.importorskip("pyspark")

PAGE = Path(__file__).parents[2] / "docs" / "lake.md"
BLOCK = re.compile(r"```(python)?\n(.*?)```\n(?:\n```\n(.*?)```\n)?", re.DOTALL)
#: bytes of a Parquet file are its library's
SIZE = re.compile(r"[\d.]+ [KM]iB")


def section(title):
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE.read_text("utf-8"), re.M | re.S)
    return found[1]


def commands_of(block):
    """(command, what the page says that it prints) for each line behind a prompt."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        line, _, said = part.partition("\n")
        yield shlex.split(line)[1:], said


def test_the_blocks_of_a_running_cluster_print_what_is_below_them(
    spark, tmp_path, rocketmq_broker, monkeypatch
):
    monkeypatch.setattr("rmqcore.spark.session.local_session", lambda: spark)
    text = section("A running cluster").replace("127.0.0.1:9876", rocketmq_broker.namesrv_addr)
    text = text.replace("/lake/", f"{tmp_path}/lake/")
    names, count = {}, 0
    for is_python, code, below in BLOCK.findall(text):
        if is_python:
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(code, str(PAGE), "exec"), names)
            beside = "".join(f"{line}\n" for line in re.findall(r"print\(.*\)  # (.*)", code))
            assert printed.getvalue().split() == (beside + below).split()
            count += bool(beside or below)
        for command, said in commands_of(code):
            done = CliRunner().invoke(app, command)
            assert SIZE.sub("", done.output).split() == SIZE.sub("", said).split()
            count += 1
    assert count == 7
