"""Iteration over a store that another handle writes."""

import pytest
from patience import rounds

from rmqcore import CorruptRecordError, open_store

pytestmark = pytest.mark.engine

SMALL = {
    "mapped_file_size_commit_log": 65536,
    "max_hash_slot_num": 100,
    "max_index_num": 400,
    "clean_resource_interval_ms": 3_600_000,
}


def test_iterating_the_log_looks_for_more_only_where_it_knew_no_more(store_path, monkeypatch):
    with open_store(store_path) as writer:
        for number in range(200):
            writer.put("T", b"%d" % number)
        with open_store(store_path, mode="r") as reader:
            looks = []
            follower = reader._follower
            look = follower.catch_up_log
            monkeypatch.setattr(follower, "catch_up_log", lambda: (looks.append(1), look()))
            assert [message.body for message in reader.messages()] == [
                b"%d" % number for number in range(200)
            ]
            assert 1 <= len(looks) <= 5


def test_iterating_the_log_sees_what_is_put_meanwhile(store_path):
    with open_store(store_path) as writer:
        writer.put("T", b"first")
        with open_store(store_path, mode="r") as reader:
            messages = reader.messages()
            assert next(messages).body == b"first"
            writer.put("T", b"second")
            assert [message.body for message in messages] == [b"second"]


@pytest.mark.parametrize("mode", ["a", "r"])
def test_iterating_the_log_ends_with_its_last_record(store_path, mode):
    with open_store(store_path) as store:
        for _ in range(3):
            store.put("T", b"x")
        end = store.max_phy_offset
        if mode == "a":
            check_stops(store, end)
    with open_store(store_path, mode="r") as store:
        check_stops(store, end)


def check_stops(store, end):
    second = [message.phy_offset for message in store.messages()][1]
    for stop, count in ((end, 3), (end + 1, 3), (1 << 40, 3), (second, 1), (second + 1, 2), (0, 0)):
        assert len(list(store.messages(stop=stop))) == count
    for start in (end, end + 1, 1 << 40):
        assert list(store.messages(start=start)) == []
        assert list(store.messages(start=start, stop=start + 100)) == []
    with pytest.raises(CorruptRecordError, match="no record begins here"):
        list(store.messages(start=1, stop=1 << 40))


@pytest.mark.parametrize("mode", ["a", "r"])
@pytest.mark.parametrize("topic", [None, "T"])
def test_iteration_goes_on_behind_what_retention_has_deleted(store_path, mode, topic):
    with open_store(store_path, retention_bytes=200_000, **SMALL) as store:
        # the next round of its own is an hour away
        rounds(store.parts.upkeep.retention)
        for _ in range(600):
            store.put("T", b"x" * 1000)
        assert store.max_queue_offset("T", 0) == 600
        reader = store if mode == "a" else open_store(store_path, mode="r")
        messages = reader.messages(topic)
        before = [next(messages) for _ in range(3)]
        store.delete_expired_files()
        low = store.min_queue_offset("T", 0)
        assert low > 256
        after = [message.queue_offset for message in messages]
        assert [message.queue_offset for message in before] == [0, 1, 2]
        assert after[-1] == 599
        assert after[-(600 - low) :] == list(range(low, 600))
        assert next(reader.messages(start=0)).queue_offset == low
        assert len(list(reader.messages(topic, start=0))) == 600 - low
        reader.close()
