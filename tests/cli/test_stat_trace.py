"""stat --trace: a store's last events, whoever has it open or had it last."""

import errno
import os

import pytest
from children import die, run_child

from rmqcore import open_store

pytestmark = pytest.mark.engine

FIELDS = {
    *("number", "time_ms", "thread", "event", "log_end", "flushed", "dispatched", "count"),
    "words",
}


def events(outcome):
    return [row["event"] for row in outcome.json["trace"]]


def test_the_events_of_a_store_that_is_open(rmqcore, store_path):
    with open_store(store_path) as store:
        store.put("T", b"x")
        end = store.flush()
        facts = rmqcore("stat", store_path, "--trace", "--json").json
        assert facts["state"] == "open for writing"
        rows = facts["trace"]
        assert all(set(row) == FIELDS for row in rows)
        assert rows[0]["event"] == "open"
        assert rows[0]["log_end"] is None
        flushes = [row for row in rows if row["event"] == "flush"]
        assert (flushes[-1]["log_end"], flushes[-1]["flushed"]) == (end, end)
        assert [row["number"] for row in rows] == [row.number for row in store.trace()][: len(rows)]


def test_the_events_of_a_store_that_was_closed(rmqcore, store):
    outcome = rmqcore("stat", store, "--trace", "--json")
    assert events(outcome)[-1] == "close"
    assert outcome.json["topics"]


@pytest.mark.process
def test_the_events_of_a_store_whose_process_was_killed(rmqcore, store_path):
    def work(acknowledge):
        store = open_store(store_path)
        store.put("T", b"x")
        store.flush()
        die()

    code, _ = run_child(work)
    assert code == -9
    outcome = rmqcore("stat", store_path, "--trace", "--json")
    assert outcome.json["state"].startswith("not closed")
    assert "put" in events(outcome)
    assert "close" not in events(outcome)


def test_a_table_with_the_newest_last(rmqcore, store, monkeypatch):
    # a row a line
    monkeypatch.delenv("COLUMNS", raising=False)
    lines = rmqcore("stat", store, "--trace").stdout.splitlines()
    (head,) = [at for at, line in enumerate(lines) if "thread" in line and "event" in line]
    titles = ["time", "thread", "event", "log end", "flushed", "dispatched", "count", "words"]
    places = [lines[head].index(title) for title in titles]
    assert places == sorted(places)
    rows = [line for line in lines[head + 2 :] if line.strip()]
    assert " open " in rows[0]
    assert " close " in rows[-1]
    assert not any("broker.conf" in line for line in lines)


def test_without_the_option_nothing_is_said_of_it(rmqcore, store):
    assert "trace" not in rmqcore("stat", store, "--json").json


def test_a_store_without_a_trace(rmqcore, golden_store):
    golden = golden_store("5.5.0", "basic")
    assert rmqcore("stat", golden.path, "--trace", "--json").json["trace"] == []
    assert "no trace" in rmqcore("stat", golden.path, "--trace").stdout


def test_a_trace_of_any_bytes_is_no_trace(rmqcore, store):
    file = store / "config/storeTrace"
    file.write_bytes(b"\xff" * 70_000)
    assert rmqcore("stat", store, "--trace", "--json").json["trace"] == []
    file.unlink()
    file.mkdir()
    assert "no trace" in rmqcore("stat", store, "--trace").stdout


def test_a_store_whose_trace_may_not_be_read(rmqcore, store, monkeypatch):
    really = os.open

    def refusing(path, *more, **named):
        if str(path).endswith("storeTrace"):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return really(path, *more, **named)

    monkeypatch.setattr(os, "open", refusing)
    assert rmqcore("stat", store, "--trace", "--json").json["trace"] == []


def test_a_store_that_may_only_be_read_shows_its_trace(rmqcore, store):
    for path in (store, store / "config", store / "config/storeTrace"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        before = (store / "config/storeTrace").read_bytes()
        assert events(rmqcore("stat", store, "--trace", "--json"))[-1] == "close"
        assert (store / "config/storeTrace").read_bytes() == before
    finally:
        for path in (store, store / "config", store / "config/storeTrace"):
            path.chmod(0o755)
