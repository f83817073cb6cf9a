"""A cold store whose consume queues are lost is not taken for an empty one."""

import shutil

import pytest

import rmqcore
from rmqcore import CorruptConsumeQueueError
from rmqcore.files.store_dir import StoreDir
from rmqcore.rebuild import rebuild_consume_queues

pytestmark = pytest.mark.engine


def opened_cold(path):
    return rmqcore.open_store(path, mode="r")


@pytest.fixture
def written(store_path):
    with rmqcore.open_store(store_path) as store:
        store.put("T", b"x")
    return store_path


def test_mode_r_says_that_queues_are_lost(written):
    shutil.rmtree(written / "consumequeue")
    with opened_cold(written) as store:
        for read in (store.queues, lambda: list(store.messages("T"))):
            with pytest.raises(CorruptConsumeQueueError, match="rmqcore rebuild cq"):
                read()
        assert [message.body for message in store.messages()] == [b"x"]
        rebuild_consume_queues(written)
        assert store.queues() == [("T", 0)]


def test_a_writer_may_still_make_the_queues(written):
    shutil.rmtree(written / "consumequeue")
    with opened_cold(written) as store:
        directory = StoreDir(written)
        directory.lock()
        try:
            assert store.queues() == []
        finally:
            directory.unlock()


def test_a_store_has_no_queues_when_all_that_it_had_is_deleted_or_prepared(written):
    with rmqcore.open_store(written) as store:
        store.delete_topic("T")
        store.put("T", b"half", sys_flag=4)
    with opened_cold(written) as store:
        assert store.queues() == []
    with rmqcore.open_store(written) as store:
        store.put("U", b"z")
    shutil.rmtree(written / "consumequeue")
    with opened_cold(written) as store, pytest.raises(CorruptConsumeQueueError):
        store.queues()


@pytest.fixture
def two_queues(store_path):
    sizes = {"mapped_file_size_commit_log": 1 << 16, "mapped_file_size_consume_queue": 800}
    with rmqcore.open_store(store_path, **sizes) as store:
        for number in range(100):
            store.put("T", b"%d" % number, queue_id=0 if number % 4 else 1)
    return store_path / "consumequeue" / "T"


def offsets(store, queue_id):
    return [message.queue_offset for message in store.messages("T", queue_id)]


def test_queues_whose_files_were_swapped_end_with_their_own_messages(two_queues):
    aside = two_queues / "aside"
    for old, new in (("0", "aside"), ("1", "0"), ("aside", "1")):
        (two_queues / old).rename(two_queues / new)
    assert not aside.exists()
    with rmqcore.open_store(two_queues.parents[1]) as store:
        told = "consume queue T/1 had 50 units of others behind its last; they were cut off"
        assert told in store.recovery_report.findings
        assert [offsets(store, 0), offsets(store, 1)] == [list(range(75)), list(range(25))]
        assert store.put("T", b"next", queue_id=1).queue_offset == 25
    with rmqcore.open_store(two_queues.parents[1]) as store:
        assert store.recovery_report.findings == []
        assert offsets(store, 1) == list(range(26))


@pytest.mark.parametrize(
    "put",
    ["A" * 10 + "B" * 4, "B" * 3 + "A" * 10, "AB" * 3 + "A" * 7, "AB" * 3 + "A", "AB" * 3 + "B"],
)
@pytest.mark.parametrize("clean", [True, False], ids=["closed", "killed"])
def test_topics_whose_directories_were_swapped_are_as_before(store_path, put, clean):
    """The longer queue, also where it goes on behind all of the other; and what groups have."""
    known = {topic: list(range(put.count(topic))) for topic in "AB"}
    with rmqcore.open_store(store_path) as store:
        for topic in put:
            store.put(topic, b"x")
        for topic in "AB":
            store.consumer_offsets.commit(topic, "G", 0, 2)
    queues = store_path / "consumequeue"
    for old, new in (("A", "aside"), ("B", "A"), ("aside", "B")):
        (queues / old).rename(queues / new)
    if not clean:
        (store_path / "abort").touch()
    with rmqcore.open_store(store_path) as store:
        for topic in "AB":
            assert [one.queue_offset for one in store.messages(topic)] == known[topic]
            assert store.consumer_offsets.get(topic, "G", 0) == 2
            assert store.put(topic, b"next").queue_offset == len(known[topic])
    with rmqcore.open_store(store_path) as store:
        assert store.recovery_report.findings == []


@pytest.mark.parametrize("count", [1, 2])
def test_the_last_units_stay_where_the_heads_of_their_records_may_have_rotted(two_queues, count):
    with rmqcore.open_store(two_queues.parents[1], mode="r") as store:
        last = store.get_message("T", 1, 25 - count).messages
    (log,) = (two_queues.parents[1] / "commitlog").iterdir()
    raw = bytearray(log.read_bytes())
    for queue_id, message in enumerate(last, 7):
        raw[message.phy_offset + 12 : message.phy_offset + 16] = queue_id.to_bytes(4, "big")
    log.write_bytes(raw)
    for mark in (two_queues.parents[1] / "config").glob("storeMark.json*"):
        mark.unlink()
    with rmqcore.open_store(two_queues.parents[1]) as store:
        assert store.max_queue_offset("T", 1) == 25


@pytest.mark.parametrize("number", [49, 75, 300])
def test_a_number_that_has_rotted_ends_no_queue_that_is_derived_anew(two_queues, number):
    path = two_queues.parents[1]
    with rmqcore.open_store(path, mode="r") as store:
        rotted = store.get_message("T", 0, 20).messages[0]
    (log,) = (path / "commitlog").iterdir()
    raw = bytearray(log.read_bytes())
    raw[rotted.phy_offset + 20 : rotted.phy_offset + 28] = number.to_bytes(8, "big")
    log.write_bytes(raw)
    for gone in (path / "consumequeue").iterdir():
        shutil.rmtree(gone)
    for mark in (path / "config").glob("storeMark.json*"):
        mark.unlink()
    with rmqcore.open_store(path) as store:
        told = f"the record at {rotted.phy_offset} is not where its queue offset in T/0 says"
        assert any(told in finding for finding in store.recovery_report.findings)
    for mode in ("r", "a", "r"):
        with rmqcore.open_store(path, mode=mode) as store:
            assert offsets(store, 0) == [one for one in range(75) if one != 20]
            assert store.max_queue_offset("T", 0) == 75
