"""A program that opens a store by a relative name and then goes elsewhere, as a daemon does."""

import os

import pytest

import rmqcore
from rmqcore.client.blocking import Producer
from rmqcore.testing import running_broker

pytestmark = pytest.mark.engine

SMALL = {"mapped_file_size_commit_log": 4096, "max_hash_slot_num": 50, "max_index_num": 200}
COUNT = 100


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Another directory with another store and another log of the same names; we are in ours."""
    there = tmp_path / "there"
    with rmqcore.open_store(there / "store", **SMALL) as other:
        other.put("Other", b"one")
    with rmqcore.open_store(
        there / "second", store_path_commit_log=str(there / "log"), **SMALL
    ) as other:
        other.put("Other", b"one")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return there


def files_of(directory):
    return {path: path.stat().st_size for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize("settings", [{}, {"store_path_commit_log": "log"}])
def test_its_store_stays_where_it_was(elsewhere, tmp_path, settings):
    before = files_of(elsewhere)
    with rmqcore.open_store("store", **SMALL, **settings) as store:
        os.chdir(elsewhere)
        for number in range(COUNT):
            store.put(f"T{number % 3}", b"%d" % number, keys=f"k{number}")
        store.consumer_offsets.commit("T1", "group", 0, 3)
    assert files_of(elsewhere) == before
    os.chdir(tmp_path / "here")
    with rmqcore.open_store("store", **settings) as store:
        assert [bytes(message.body) for message in store.messages()] == [
            b"%d" % number for number in range(COUNT)
        ]
        assert store.consumer_offsets.get("T1", "group", 0) == 3


def test_a_reader_follows_the_store_that_it_has_opened(elsewhere):
    with (
        rmqcore.open_store("store", **SMALL) as writer,
        rmqcore.open_store("store", mode="r") as reader,
    ):
        os.chdir(elsewhere)
        for number in range(COUNT):
            writer.put("T", b"%d" % number)
        writer.flush()
        assert len(list(reader.messages())) == COUNT
        assert reader.max_queue_offset("T", 0) == COUNT


def test_a_later_owner_of_a_shared_store_finds_its_log(elsewhere):
    first = rmqcore.open_shared("store", store_path_commit_log="log", **SMALL)
    with rmqcore.open_shared("store", store_path_commit_log="log", **SMALL) as second:
        os.chdir(elsewhere)
        first.put("T", b"one")
        first.close()
        assert second.put("T", b"two").queue_offset == 1


def test_a_broker_stays_where_it_was(elsewhere, tmp_path):
    before = files_of(elsewhere)
    with running_broker("store", mappedFileSizeCommitLog=1 << 14) as broker:
        os.chdir(elsewhere)
        with Producer(broker.namesrv_addr) as producer:
            for number in range(COUNT):
                producer.send("T", b"%d" % number)
    assert files_of(elsewhere) == before
    with rmqcore.open_store(tmp_path / "here" / "store", mode="r") as store:
        assert sum(message.topic == "T" for message in store.messages()) == COUNT
