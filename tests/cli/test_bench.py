"""A measurement says what it did, and leaves nothing behind."""

from collections import namedtuple

import pytest

from rmqcore import open_store
from rmqcore.cli import bench
from rmqcore.cli.exit_codes import ExitCode

pytestmark = pytest.mark.engine


def test_bench_measures_beside_the_disk_and_leaves_nothing(rmqcore, tmp_path):
    told = rmqcore("bench", "--dir", tmp_path, "--seconds", 0.01, "--size", 100, "--json").json
    assert told["directory"] == str(tmp_path.resolve())
    assert told["file_system"] != "?"
    names = [step["name"] for step in told["steps"]]
    assert [name.split()[0].strip(",:") for name in names] == [
        *("disk", "put", "put", "disk", "put", "get", "query", "disk")
    ]
    for step in told["steps"]:
        assert step["messages"] > 0
        assert step["size"] == step["messages"] * 100
        assert 0 < step["median_us"] <= step["p99_us"]
        assert f"{step['operations']:,}" in step["did"] or "read" in step["name"]
    assert list(tmp_path.iterdir()) == []
    text = " ".join(rmqcore("bench", "--dir", tmp_path, "--seconds", 0.01).stdout.split())
    assert "each with fdatasync" in text
    assert "times what the disk does alone" in text


def test_only_keys_are_asked_for_that_a_slow_disk_has_taken(tmp_path):
    with open_store(tmp_path / "s") as store:
        for number in range(3):
            store.put(bench._TOPIC, b"x" * 100, keys=f"k{number}")
        step = bench._queries(store, 100, 0.001)
    assert step.did == f"{step.operations:,} messages by one of 3 keys"
    assert step.messages == step.operations


def test_bench_wants_room(rmqcore, tmp_path, monkeypatch):
    usage = namedtuple("usage", "free")
    monkeypatch.setattr("rmqcore.cli.bench.disk_usage", lambda _: usage(1000))
    outcome = rmqcore("bench", "--dir", tmp_path)
    assert outcome.exit_code == ExitCode.USAGE
    assert "1000 B" in outcome.stderr
    monkeypatch.undo()
    assert rmqcore("bench", "--dir", tmp_path / "none").exit_code == ExitCode.SYSTEM
