"""Queries of many keys at once answer as a query of each."""

import pytest

import rmqcore
from rmqcore.errors import ArgumentError
from rmqcore.store.follower import Follower

pytestmark = pytest.mark.engine


def fill(store, count=3000):
    for number in range(count):
        store.put(
            f"T{number % 2}",
            b"%d" % number,
            queue_id=number % 3,
            keys=[f"k{number}", f"g{number % 40}"],
        )


def offsets(results):
    return [[message.phy_offset for message in result] for result in results]


KEYS = [
    *(f"k{number}" for number in range(0, 3000, 7)),
    "g3",
    "nothing",
    *(f"g{number}" for number in range(40)),
    "k4",
    "k4",
    "k",
    "größe",
]


@pytest.mark.parametrize("settings", [{}, {"max_messages": 3}, {"begin_ms": 1}, {"end_ms": 1}])
@pytest.mark.parametrize("entries", [20_000_000, 500])
def test_each_key_has_the_answer_of_its_own_query(store_path, entries, settings):
    with rmqcore.open_store(store_path, max_index_num=entries, max_hash_slot_num=100) as store:
        fill(store)
        found = store.query_many("T0", KEYS, **settings)
        assert len(found) == len(KEYS)
        alone = [store.query_message("T0", key, **settings) for key in KEYS]
        assert offsets(found) == offsets(alone)
        assert [one.next_page for one in found] == [one.next_page for one in alone]
        if "end_ms" not in settings:
            assert found[2].messages[0].keys == ("k14", "g14")


def test_what_was_put_just_now_is_found(store_path):
    with rmqcore.open_store(store_path) as store:
        fill(store, 10)
        assert offsets(store.query_many("T0", ["k8"])) == offsets([store.query_message("T0", "k8")])
        store.put("T0", b"new", keys=["late"])
        assert [one.body for one in store.query_many("T0", ["late"])[0]] == [b"new"]


def test_other_stores_and_no_keys(store_path):
    with rmqcore.open_store(store_path) as store:
        fill(store, 100)
        assert store.query_many("T0", []) == []
        assert store.query_many("Other", ["k1", "k2"])[1].messages == []
    with rmqcore.open_store(store_path, mode="r") as reader:
        assert [len(one) for one in reader.query_many("T1", ["k1", "k2", "k3"])] == [1, 0, 1]


def test_a_reader_looks_once_for_what_is_new(store_path, monkeypatch):
    settings = {"max_index_num": 500, "max_hash_slot_num": 100}
    with rmqcore.open_store(store_path, **settings) as store:
        fill(store)
    with rmqcore.open_store(store_path, mode="r", **settings) as reader:
        alone = [reader.query_message("T0", key, max_messages=3) for key in KEYS]
        looks, real = [], Follower.catch_up_log
        monkeypatch.setattr(
            Follower, "catch_up_log", lambda follower: looks.append(1) or real(follower)
        )
        found = reader.query_many("T0", iter(KEYS), max_messages=3)
        assert looks == [1]
        assert len(found[0]) == 1
        assert offsets(found) == offsets(alone)
        assert [one.next_page for one in found] == [one.next_page for one in alone]
    with pytest.raises(rmqcore.StoreClosedError):
        reader.query_many("T0", ["k2"])


def test_a_client_of_a_shared_store_asks_for_many_keys_in_one_request(store_path, monkeypatch):
    with rmqcore.open_shared(store_path) as owner, rmqcore.open_shared(store_path) as client:
        fill(owner, 400)
        keys = [*(f"k{number}" for number in range(300)), "g4", "nothing"]
        alone = [client.query_message("T0", key, max_messages=3) for key in keys]
        requests, real = [], client._call
        monkeypatch.setattr(client, "_call", lambda *call: requests.append(call[0]) or real(*call))
        found = client.query_many("T0", (key for key in keys), max_messages=3)
        assert requests == ["query_many"]
        assert offsets(found) == offsets(alone)
        assert [one.next_page for one in found] == [one.next_page for one in alone]
        assert owner.query_many("T0", ["k2"])[0].messages[0].body == b"2"
        with pytest.raises(ArgumentError, match="key"):
            client.query_many("T0", [1])


@pytest.mark.parametrize("keys", [[1], [None], [b"k"], ["k1", 2]])
def test_keys_are_text(store_path, keys):
    with rmqcore.open_store(store_path) as store:
        fill(store, 10)
        with pytest.raises(ArgumentError, match="key"):
            store.query_many("T0", keys)
