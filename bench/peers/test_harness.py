"""The harness without Java: rmqcore's side works, and half a run never becomes a ratio."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import backends
import comparison
import limits
import neighbours
import report
import run
from rows import new_rows
from workers import Refusal, Worker

pytestmark = pytest.mark.process


@pytest.fixture
def worker(tmp_path):
    one = Worker("rmqcore", tmp_path)
    one.ask("open", dir=one.directory / "store", log=16 << 20, flush="ASYNC", warm=0)
    yield one
    one.ask("close")
    one.end()


def put(worker, **how):
    plain = {"topic": "T", "start": 0, "count": 640, "body": 64, "threads": 1, "queues": 4}
    return worker.ask("put", **plain | {"ready": 0} | how)


def test_what_is_put_is_verified_counted_and_found(worker):
    assert put(worker)["messages"] == 640
    batch = {"topic": "T", "start": 640, "count": 640, "body": 64}
    worker.ask("batch", **batch, encoded=1)
    assert worker.ask("verify", topic="T", body=64) == {"messages": 1280, "sum": 1280 * 1279 // 2}
    assert comparison.index_entries(worker.directory / "store") == 3 * 1280
    wanted = {"start": 0, "range": 1280, "count": 50, "seed": 1}
    assert worker.ask("query", topic="T", **wanted)["hits"] == 50
    assert worker.ask("get", topic="T", decode=0)["messages"] == 1280
    put(worker, start=1280, threads=3)
    put(worker, start=1920, ready=1)
    assert worker.ask("verify", topic="T", body=64)["messages"] == 2560


def test_another_body_than_was_put_is_refused(worker):
    put(worker, body=65)
    with pytest.raises(Refusal, match="is not what was put"):
        worker.ask("verify", topic="T", body=64)


def test_sides_that_did_different_work_are_refused():
    with pytest.raises(Refusal, match="hits of Java 2, of rmqcore 1"):
        comparison.Comparison._same_work("query", {"hits": 2}, {"hits": 1})


def test_a_copy_is_reserved_where_the_store_was(tmp_path):
    data, size = b"x" * 4096, 8 << 20
    for name in ("reserved", "sparse"):
        with (tmp_path / name).open("wb") as file:
            file.write(data)
            file.truncate(size)
            if name == "reserved":
                os.posix_fallocate(file.fileno(), 0, size)
        comparison._copy(str(tmp_path / name), str(tmp_path / f"copy of {name}"))
        assert (tmp_path / f"copy of {name}").read_bytes() == data + bytes(size - len(data))
    blocks = [(tmp_path / f"copy of {name}").stat().st_blocks for name in ("reserved", "sparse")]
    assert blocks[0] * 512 >= size > blocks[1] * 512


def test_a_short_disk_is_refused(tmp_path, monkeypatch):
    usage = run.shutil.disk_usage(tmp_path)._replace(free=1 << 30)
    monkeypatch.setattr(run.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(Refusal, match=r"1\.0 GiB free, 24 are needed"):
        run._check(tmp_path, quick=False)


def test_a_missing_peer_is_refused(monkeypatch):
    def version(package):
        raise neighbours.metadata.PackageNotFoundError(package)

    monkeypatch.setattr(neighbours.metadata, "version", version)
    with pytest.raises(Refusal, match="diskcache"):
        neighbours.check()


class StillPair:
    """Both sides without processes."""

    made = 0

    def __init__(self, directory):
        type(self).made += 1

    def end(self):
        """Nothing to end."""


def test_a_part_that_is_refused_costs_no_other_its_figures(tmp_path, monkeypatch, capsys):
    def good(self):
        self.rows["put"].pairs.append((1e6, 2e6))

    def busy(self):
        self.rows["query"].pairs.append((1e6, 2e6))
        raise Refusal("the machine is busy")

    for name in ("puts", "ready", "four_threads", "batches", "bodies_1k", "syncs"):
        monkeypatch.setattr(comparison.Comparison, f"_{name}", lambda self: None)
    for name in ("rolls", "cold", "lost", "killed"):
        monkeypatch.setattr(comparison.Comparison, f"_{name}", lambda self: None)
    monkeypatch.setattr(comparison.Comparison, "_reads", busy)
    monkeypatch.setattr(comparison.Comparison, "_memory", good)
    monkeypatch.setattr(comparison, "Pair", StillPair)
    monkeypatch.setattr(comparison.limits, "measure", lambda _: limits.Limits(1e9, 1e9))
    monkeypatch.setattr(run, "_check", lambda *_, **__: None)
    monkeypatch.setattr(run.neighbours, "measure", lambda *_, **__: [])
    monkeypatch.setattr(run.backends, "measure", lambda *_, **__: [])
    monkeypatch.setattr(run.Growth, "run", lambda self: ([], []))
    monkeypatch.setattr(report.Report, "write", lambda self: pytest.fail("written"))
    monkeypatch.setattr(sys, "argv", ["run.py", "--directory", str(tmp_path)])
    assert run.main() == 1
    said = capsys.readouterr()
    assert "| put, async flush, 1 thread | 1 M/s | 2 M/s |" in said.out
    assert "query by key" not in said.out
    assert "bench-peers: busy: no result: the machine is busy\n" in said.err
    assert StillPair.made == 2


def test_a_row_below_its_target_says_so():
    rows = new_rows()
    rows["put"].pairs = [(1e6, 5e6), (1e6, 7e6), (1e6, 5.5e6)]
    rows["query"].pairs = [(1e6, 4e6)]
    rows["memory"].pairs = [(200.0, 20.0)]
    measured = {name: row for name, row in rows.items() if row.pairs}
    found = report.Report({}, limits.Limits(1e9, 1e9), measured, [], [], [], [], [])
    tables = found.tables()
    assert "| 5.50 | 5.00 | 7.00 | 6 (aim 12) | **below** |" in tables
    assert "| 4.00 | 4.00 | 4.00 | 3 (aim 6) | reached |" in tables
    assert rows["memory"].ratio == 10


def test_a_backend_gives_what_it_was_given_and_its_rate(tmp_path):
    rate = backends._rate("FifoQueue", tmp_path, 50)
    assert rate > 0
    one = backends.Backend("queuelib", "FifoDiskQueue", "memory", 50, ("FifoQueue", 50))
    one.rates += [(100.0, 300.0), (100.0, 500.0), (100.0, 400.0)]
    assert (one.rate, one.our_rate, one.ratio) == (100.0, 400.0, 4.0)
    assert "| queuelib FifoDiskQueue | memory | 100 | FifoQueue | 400 | 4.0 |" in (
        report.backend_table([one])
    )
    assert not any(tmp_path.iterdir())
