"""Log files are given back when no group needs them any more, and not before."""

import errno

import pytest
from consume.conftest import TOPIC, places, put

from rmqcore.world import wall_clock_ms

pytestmark = pytest.mark.engine

LARGE = b"x" * 4000


def fill(store, files, topic="T"):
    """Put until the log has so many files more."""
    target = len(store.log.queue.files) + files
    while len(store.log.queue.files) < target:
        store.put(topic, LARGE)


def consume(store, group="g", topic="T", count=1 << 20):
    done = 0
    while done < count and (
        found := store.lease(group, {topic: "*"}, max_messages=min(32, count - done))
    ):
        done += store.acknowledge(group, places(found))


def first(store):
    return store.log.queue.files[0].file_from_offset


def test_nothing_goes_that_nobody_has_consumed(store):
    fill(store, 4)
    assert store.delete_consumed_files() == 0
    assert first(store) == 0


def test_what_is_consumed_goes_but_for_the_last_file(store):
    fill(store, 4)
    consume(store)
    assert store.delete_consumed_files() == 4
    assert len(store.log.queue.files) == 1
    assert store.delete_consumed_files() == 0
    assert store.lease("g", TOPIC) == []
    put(store, 1)
    assert [m.body for m in store.lease("g", TOPIC)] == [b"0"]


def test_one_open_lease_keeps_its_file_and_all_behind(store):
    fill(store, 2)
    consume(store)
    (kept,) = [store.put("T", b"kept").phy_offset]
    (held,) = store.lease("g", TOPIC)
    fill(store, 2)
    consume(store)
    assert store.delete_consumed_files() == 2
    assert store.message_at(kept).body == b"kept"
    store.acknowledge("g", [held.place])
    assert store.delete_consumed_files() == 2


def test_what_is_in_no_queue_yet_keeps_its_files(store, monkeypatch):
    """As with SYNC_FLUSH, where the disk has it only when it was looked at what is needed."""
    flush, ended = store.parts.flushing.flush, store.parts.log_services.reput._confirm_offset
    fill(store, 2)
    consume(store)
    end, number = store.max_phy_offset, store.max_queue_offset("T", 0)
    monkeypatch.setattr(store.parts.log_services.reput, "_confirm_offset", lambda: end)

    def dispatched():
        monkeypatch.setattr(store.parts.log_services.reput, "_confirm_offset", ended)
        return flush()

    monkeypatch.setattr(store.parts.flushing, "flush", dispatched)
    fill(store, 3)
    assert store.delete_consumed_files() == 2
    dispatched()
    count = store.max_queue_offset("T", 0) - number
    assert len(store.lease("g", TOPIC, max_messages=1000)) == count > 3


def test_the_slowest_group_decides(store):
    fill(store, 4)
    consume(store, "g")
    assert len(store.lease("h", TOPIC, max_messages=1)) == 1
    assert store.delete_consumed_files() == 0
    consume(store, "h")
    assert store.delete_consumed_files() == 0
    store.release_leases("")
    consume(store, "h")
    assert store.delete_consumed_files() == 4


def test_a_topic_without_a_group_keeps_its_messages_unless_it_is_named(store):
    put(store, 1, topic="Kept")
    fill(store, 4)
    consume(store)
    assert store.delete_consumed_files() == 0
    assert store.delete_consumed_files(["Kept"]) == 4
    assert store.get_message("Kept", 0, 0).messages == []


def test_a_queue_that_a_group_has_not_come_to_keeps_its_messages(store):
    put(store, 1, queue_id=1)
    fill(store, 3)
    store.consumer_offsets.commit("T", "g", 0, store.max_queue_offset("T", 0))
    assert store.delete_consumed_files() == 0


@pytest.mark.parametrize("deliver_delayed", [True, False])
def test_what_is_delivered_later_keeps_its_file(opened, clock, deliver_delayed):
    # a parked time behind this one would mean that the clock was put back
    clock.now_ms = wall_clock_ms() + 60_000
    store = opened(deliver_delayed=True)
    store.put("T", b"later", delay_level=18)
    fill(store, 3)
    consume(store)
    if not deliver_delayed:
        store.close()
        store = opened()
    assert store.delete_consumed_files() == 0


def test_a_disk_without_room_for_a_table_of_offsets_is_freed(opened, monkeypatch):
    store = opened()
    fill(store, 4)
    consume(store)

    def full():
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as patch:
        patch.setattr(store.consumer_offsets, "persist", full)
        assert store.delete_consumed_files() == 4
    put(store, 1)
    store.close()
    assert [m.body for m in opened().lease("g", TOPIC, max_messages=9)] == [b"0"]


def test_a_disk_that_fails_otherwise_frees_nothing(store, monkeypatch):
    fill(store, 4)
    consume(store)

    def broken():
        raise OSError(errno.EIO, "broken")

    with monkeypatch.context() as patch:
        patch.setattr(store.consumer_offsets, "persist", broken)
        with pytest.raises(OSError, match="broken"):
            store.delete_consumed_files()
    assert first(store) == 0


def test_what_was_given_back_can_be_reopened(opened, store_path):
    store = opened()
    fill(store, 3)
    consume(store)
    store.delete_consumed_files()
    fill(store, 1)
    store.close()
    store = opened()
    assert first(store) > 0
    assert len(store.lease("g", TOPIC, max_messages=1000)) > 0
    assert store.recovery_report.findings == []


def test_what_was_deleted_before_the_log_begins_is_remembered_no_more(store):
    """A program that makes and deletes topics, as one of replies, goes on for ever."""
    stale = []
    for name in ("R0", "R1"):
        put(store, 1, topic=name)
        stale += places(store.lease("g", {name: "*"}))
        assert store.delete_topic(name)
    fill(store, 3)
    consume(store)
    assert store.delete_consumed_files() == 3
    put(store, 1, topic="R2")
    assert store.delete_topic("R2")
    assert set(store.parts.topics.deletions()) == {"R2"}
    assert not store.delete_topic("R1")
    put(store, 1, topic="R0")
    (new,) = places(store.lease("g", {"R0": "*"}))
    assert store.acknowledge("g", stale) == 0
    assert store.acknowledge("g", [new]) == 1
