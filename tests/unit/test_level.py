"""A read catches up with its own queue only; it sees what was put there, in whatever way."""

import pyarrow as pa
import pytest

from rmqcore import Message, open_store

pytestmark = pytest.mark.engine


def stop_dispatch(store):
    """Let nothing be dispatched but for who reads."""
    reput = store.parts.log_services.reput
    store.parts.upkeep.runner.stop(reput)
    reput.catch_up()
    return reput


def test_a_read_of_one_queue_leaves_what_waits_for_others(store_path):
    with open_store(store_path) as store:
        store.put("Mine", b"1")
        reput = stop_dispatch(store)
        store.put("Others", b"2")
        assert [each.body for each in store.get_message("Mine", 0, 0)] == [b"1"]
        assert [each.body for each in store.get_cached("Mine", 0, 0, 32, 1 << 20)] == [b"1"]
        assert (store.min_queue_offset("Mine", 0), store.max_queue_offset("Mine", 0)) == (0, 1)
        assert store.queue_bounds("Mine", 0) == (0, 1)
        assert store.max_queue_offset("Mine", 1) == store.max_queue_offset("Nobody", 0) == 0
        assert reput.behind > 0
        assert store.max_queue_offset("Others", 0) == 1
        assert reput.behind == 0


WAYS = {
    "one": lambda store: store.put("Mine", b"x"),
    "a batch": lambda store: store.put_messages([Message("Mine", b"x"), Message("Mine", b"y")]),
    "columns": lambda store: store.put_columns(pa.table({"body": [b"x", b"y"]}), topic="Mine"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_read_sees_what_was_put_into_its_queue(store_path, way, flush):
    with open_store(store_path, flush_disk_type=flush) as store:
        store.put("Mine", b"first")
        stop_dispatch(store)
        for _ in range(2):
            before = store.max_queue_offset("Mine", 0)
            store.put("Others", b"between")
            WAYS[way](store)
            count = len(store.get_message("Mine", 0, before))
            assert count == store.max_queue_offset("Mine", 0) - before > 0


def test_a_read_of_a_light_queue_sees_what_was_put_into_it(store_path):
    names = ("%LMQ%one", "%LMQ%two")
    with open_store(store_path, enable_lmq=True, enable_multi_dispatch=True) as store:
        stop_dispatch(store)
        for count in (1, 2):
            store.put("Mine", b"x", properties={"INNER_MULTI_DISPATCH": ",".join(names)})
            assert [store.max_queue_offset(name, 0) for name in names] == [count, count]
            store.put("Others", b"between")
            assert [len(store.get_message(name, 0, 0)) for name in names] == [count, count]


def test_a_read_of_a_topic_that_was_deleted_and_made_again(store_path):
    with open_store(store_path) as store:
        stop_dispatch(store)
        store.put("Mine", b"gone")
        assert store.max_queue_offset("Mine", 0) == 1
        store.delete_topic("Mine")
        assert store.max_queue_offset("Mine", 0) == 0
        store.put("Mine", b"new")
        assert [each.body for each in store.get_message("Mine", 0, 0)] == [b"new"]


def test_a_read_of_a_slave_sees_what_its_master_has_sent(store_path, tmp_path):
    with open_store(tmp_path / "master") as master:
        master.put("Mine", b"1")
        end = master.max_phy_offset
        master.put("Mine", b"2")
        log = bytes(master.followed_log.bytes_at(0, 1 << 20))
    with open_store(store_path, broker_role="SLAVE") as store:
        stop_dispatch(store)
        for at, count in ((0, 1), (end, 2)):
            store.followed_log.append_data(log[at : end if count == 1 else None], at)
            assert store.max_queue_offset("Mine", 0) == count
