"""stat: what the store holds, who has it, and the lines for a broker."""

import json
import os
from pathlib import Path

import pytest

from rmqcore import open_store
from rmqcore.config import parse_broker_conf

pytestmark = pytest.mark.engine


def test_stat_counts_topics_queues_and_messages(rmqcore, store):
    facts = rmqcore("stat", store, "--json").json
    assert facts["topics"] == [
        {"topic": "Bytes", "queues": 1, "messages": 1},
        {"topic": "Letters", "queues": 2, "messages": 10},
    ]
    assert facts["queues"][1] == {
        "topic": "Letters",
        "queue_id": 0,
        "min_queue_offset": 0,
        "max_queue_offset": 5,
        "messages": 5,
    }


def test_stat_says_what_the_store_itself_says(rmqcore, store):
    facts = rmqcore("stat", store, "--json").json
    with open_store(store, mode="r") as opened:
        messages = list(opened.messages())
        assert facts["max_phy_offset"] == opened.max_phy_offset
        assert facts["broker_conf"] == parse_broker_conf(opened.broker_conf())
    assert facts["first_store_timestamp_ms"] == messages[0].store_timestamp_ms
    assert facts["last_store_timestamp_ms"] == messages[-1].store_timestamp_ms
    assert facts["index_entries"] == 2 * 5 + 5 + 5 + 1
    assert facts["dispatch_behind_bytes"] == 0
    assert facts["bytes"]["commitlog"]["length"] % (1 << 20) == 0


def test_stat_says_who_has_the_store_open(rmqcore, store):
    assert rmqcore("stat", store, "--json").json["state"] == "closed"
    with open_store(store):
        assert rmqcore("stat", store, "--json").json["state"].startswith("open for writing")
    (store / "abort").write_text("1")
    assert rmqcore("stat", store, "--json").json["state"].startswith("not closed")


def test_stat_says_how_far_dispatch_is_behind(rmqcore, store):
    end = rmqcore("stat", store, "--json").json["max_phy_offset"]
    for folder, _, files in os.walk(store / "consumequeue", topdown=False):
        for name in files:
            (Path(folder) / name).unlink()
    assert rmqcore("stat", store, "--json").json["dispatch_behind_bytes"] == end


def test_records_that_belong_to_no_queue_are_not_behind(rmqcore, golden_store):
    golden = golden_store("5.5.0", "transactions")
    facts = rmqcore("stat", golden.path, "--config", golden.conf, "--json").json
    assert facts["dispatch_behind_bytes"] == 0


def test_stat_changes_nothing(rmqcore, store):
    def snapshot():
        return {
            path: (path.stat().st_mtime_ns, path.read_bytes())
            for path in store.rglob("*")
            if path.is_file()
        }

    before = snapshot()
    assert rmqcore("stat", store).exit_code == 0
    assert snapshot() == before


def test_stat_prints_a_row_a_topic_or_a_queue(rmqcore, store):
    topics = rmqcore("stat", store).stdout
    queues = rmqcore("stat", store, "--queues").stdout
    assert topics.count("Letters") == 1
    assert queues.count("Letters") == 2
    assert "mappedFileSizeCommitLog=1048576" in topics


def test_stat_names_settings_without_meaning(rmqcore, store, tmp_path):
    conf = tmp_path / "broker.conf"
    conf.write_text("brokerName=b\n")
    assert rmqcore("stat", store, "--config", conf, "--json").json["ignored_settings"] == [
        "brokerName"
    ]


def test_an_unknown_name_in_a_file_is_one_warning(rmqcore, store, tmp_path):
    conf = tmp_path / "broker.conf"
    conf.write_text("brokerNam=b\n")
    line = f"{conf}:1: brokerNam: no such setting, it is passed over; did you mean brokerName?"
    assert rmqcore("stat", store, "--config", conf).stderr == f"rmqcore: warning: {line}\n"
    failed = rmqcore("stat", store / "none", "--config", conf, "--json")
    warning, error = map(json.loads, failed.stderr.splitlines())
    assert warning == {"warning": line}
    assert error["error"] == "StoreNotFoundError"


def test_stat_of_an_empty_store(rmqcore, store_path):
    open_store(store_path).close()
    assert "no queues" in rmqcore("stat", store_path).stdout


def test_stat_reads_a_store_that_rocketmq_wrote(rmqcore, golden_store):
    golden = golden_store("5.5.0", "basic")
    facts = rmqcore("stat", golden.path, "--json").json
    assert {row["topic"] for row in facts["topics"]} >= {"TopicA"}


def test_a_pipe_gets_each_row_in_one_line(rmqcore, tmp_path, monkeypatch):
    topic = "a-topic-of-many-letters-" * 5
    with open_store(tmp_path / "s") as store:
        store.put(topic, b"x")
    monkeypatch.delenv("COLUMNS", raising=False)
    assert any(topic in line for line in rmqcore("stat", tmp_path / "s").stdout.splitlines())
    monkeypatch.setenv("COLUMNS", "60")
    narrow = rmqcore("stat", tmp_path / "s").stdout
    assert f"\n  {topic}\n    queues 1, messages 1\n" in narrow
