"""A topic is deleted while messages are put to it."""

import threading

import pytest
from patience import until

import rmqcore
from rmqcore.doctor import verify
from rmqcore.rebuild import rebuild_consume_queues

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("how", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_delete_topic_beside_puts(store_path, how):
    acknowledged, stop = {"T": [], "U": []}, threading.Event()
    store = rmqcore.open_store(store_path, mapped_file_size_commit_log=1 << 20, flush_disk_type=how)

    def put(topic, turns):
        while turns.acquire() and not stop.is_set():
            receipt = store.put(topic, b"x")
            acknowledged[topic].append((receipt.queue_offset, receipt.phy_offset))

    # writers that never end their turn are not overtaken by the dispatch where no sync slows them
    writers = [(topic, threading.Semaphore(0)) for topic in ("T", "T", "U")]
    threads = [threading.Thread(target=put, args=writer) for writer in writers]
    for thread in threads:
        thread.start()
    for deleted in range(6):
        # before they may go on: they may have ended their turn when this thread has its own
        wanted = len(acknowledged["T"]) + 10
        for _, turns in writers:
            turns.release(2000)
        until(lambda wanted=wanted: len(acknowledged["T"]) >= wanted, "ten more puts")
        if deleted < 5:
            assert store.delete_topic("T")
    stop.set()
    for _, turns in writers:
        turns.release()
    for thread in threads:
        thread.join()

    def found(opened):
        return [(m.queue_offset, m.phy_offset) for m in opened.messages("T", 0)]

    kept = found(store)
    put_to_it = sorted(acknowledged["T"])
    assert [offset for offset, _ in kept] == list(range(len(kept)))
    assert {list(each)[1] for each in kept} == {
        phy_offset for _, phy_offset in put_to_it if kept and phy_offset >= kept[0][1]
    }
    store.close()
    assert verify(store_path).clean
    rebuild_consume_queues(store_path)
    with rmqcore.open_store(store_path) as again:
        assert found(again) == kept


def test_a_reader_sees_that_a_topic_was_deleted_and_made_again(store_path):
    with rmqcore.open_store(store_path) as store:
        for number in range(5):
            store.put("T", b"old %d" % number)
        store.flush()
        with rmqcore.open_store(store_path, mode="r") as reader:
            assert len(reader.get_message("T", 0, 0).messages) == 5
            store.delete_topic("T")
            assert reader.get_message("T", 0, 0).messages == []
            assert reader.max_queue_offset("T", 0) == 0
            store.put("T", b"new")
            store.flush()
            assert [m.body for m in reader.get_message("T", 0, 0).messages] == [b"new"]
            assert reader.max_queue_offset("T", 0) == 1


def test_threads_delete_topics_side_by_side(store_path):
    """As an owner does that works for several processes: each deletion is kept."""
    names, deleted = [f"T{number}" for number in range(12)], []

    def delete(some):
        deleted.extend(name for name in some if store.delete_topic(name))

    with rmqcore.open_store(store_path, mapped_file_size_commit_log=1 << 20) as store:
        for name in names:
            store.put(name, b"old")
        threads = [threading.Thread(target=delete, args=(names[at::3],)) for at in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(deleted) == sorted(names)
        assert store.queues() == []
    rebuild_consume_queues(store_path)
    with rmqcore.open_store(store_path, mapped_file_size_commit_log=1 << 20) as again:
        assert again.queues() == []
