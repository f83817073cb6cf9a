"""Topics that were deleted and made again, in stores that are damaged."""

import shutil

import pytest
from doctor.damage import assert_found, known_messages, log_files, overwrite

import rmqcore
from rmqcore import doctor
from rmqcore.errors import CorruptConsumeQueueError
from rmqcore.files.log_walker import walk_good_records
from rmqcore.rebuild.consume_queues import rebuild_consume_queues
from rmqcore.recovery import queue_check

pytestmark = pytest.mark.engine

FILE_SIZE = 1 << 14
SIZES = {
    "mapped_file_size_commit_log": FILE_SIZE,
    "mapped_file_size_consume_queue": 20 * 16,
    "max_hash_slot_num": 8,
    "max_index_num": 32,
}


def test_a_queue_file_with_a_wrong_name_does_not_contradict_a_topic_that_was_made_again(
    golden_store,
):
    golden = golden_store("5.5.0", "recreated")
    known = known_messages(golden.path)
    (path,) = (golden.path / "consumequeue" / "TopicAgain" / "1").iterdir()
    path.rename(path.with_name(f"{1000:020d}"))
    report = doctor.repair(golden.path, config=golden.conf)
    assert report.clean
    assert report.plan.lost == []
    assert_found(golden.path, known)


@pytest.mark.parametrize("lost", [1, 2])
def test_a_topic_that_was_made_again_keeps_its_numbers_without_the_first(golden_store, lost):
    golden = golden_store("5.5.0", "recreated")
    known = known_messages(golden.path)
    first = [one for one in known if (one.topic, one.queue_id) == ("TopicAgain", 0)][:lost]
    for one in first:
        overwrite(log_files(golden.path)[0], one.phy_offset, bytes(len(one.record)))
    (path,) = (golden.path / "consumequeue" / "TopicAgain" / "0").iterdir()
    # the units with number 0 and 1
    overwrite(path, 0, b"<html>502 Bad Gateway</html>")
    report = doctor.repair(golden.path, config=golden.conf)
    assert report.clean
    assert [(one.topic, one.queue_offset) for one in report.plan.lost] == [
        ("TopicAgain", number) for number in range(lost)
    ]
    assert_found(golden.path, [one for one in known if one not in first])


def test_a_far_number_of_a_deleted_topic_is_no_loss(store_path):
    with rmqcore.open_store(store_path, config=SIZES) as opened:
        places = [opened.put("Gone", b"%d" % number).phy_offset for number in range(9)]
        opened.delete_topic("Gone")
        other = [opened.put("T", b"%d" % number).phy_offset for number in range(9)]
    known = known_messages(store_path)
    overwrite(log_files(store_path)[0], places[4] + 21, b"\x40")
    overwrite(log_files(store_path)[0], other[4] + 4, bytes(4))
    report = doctor.repair(store_path)
    assert report.clean
    assert report.plan.unnamed == []
    assert [(one.topic, one.queue_offset) for one in report.plan.lost] == [("T", 4)]
    assert_found(store_path, [one for one in known if one.queue_offset != 4])


@pytest.mark.parametrize("old", [5, 300], ids=["in one file", "over the end of a file"])
@pytest.mark.parametrize("left", ["all", "no note", "no queue", "queue derived again"])
def test_a_first_number_that_rotted_to_where_the_topic_before_ended_hides_nothing(
    store_path, old, left
):
    """The runs of both would be one, and go with the topic that was deleted."""
    with rmqcore.open_store(store_path, config=SIZES) as opened:
        for number in range(old):
            opened.put("T", b"old %d" % number)
        opened.delete_topic("T")
        first, *others = [opened.put("T", b"new %d" % number) for number in range(4)]
    known = [one for one in known_messages(store_path) if one.queue_offset > 0]
    assert [one.phy_offset for one in known] == [one.phy_offset for one in others]
    path = log_files(store_path)[first.phy_offset // FILE_SIZE]
    overwrite(path, first.phy_offset % FILE_SIZE + 20, old.to_bytes(8, "big"))
    if left == "no note":
        # a topic that RocketMQ has deleted
        for note in (store_path / "config").glob("deletedTopics.json*"):
            note.unlink()
    elif left != "all":
        shutil.rmtree(store_path / "consumequeue")
    if left == "queue derived again":
        rmqcore.open_store(store_path).close()
    report = doctor.repair(store_path)
    assert report.clean
    assert report.plan.steps[0].start == first.phy_offset
    assert_found(store_path, known)


def rotten_number(golden_store, place, number):
    """RocketMQ's store of a topic that was made again, with a wrong number in a record of its."""
    golden = golden_store("5.5.0", "recreated")
    known = known_messages(golden.path)
    queue = [one for one in known if (one.topic, one.queue_id) == ("TopicAgain", 0)]
    overwrite(log_files(golden.path)[0], queue[place].phy_offset + 20, number.to_bytes(8, "big"))
    return golden, known, queue


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("number", [3, 5, 9, 64, 1 << 16, 1 << 40])
def test_no_opening_mixes_a_topic_made_again_with_the_one_before(golden_store, place, number):
    """RocketMQ notes no deletion: what was deleted the queue tells, and that its numbers begin."""
    golden, known, queue = rotten_number(golden_store, place, number)
    units = {path: path.read_bytes() for path in golden.path.glob("consumequeue/*/*/*")}
    with pytest.raises(CorruptConsumeQueueError):
        rmqcore.open_store(golden.path, config=golden.conf)
    assert {path: path.read_bytes() for path in units} == units
    report = doctor.repair(golden.path, config=golden.conf)
    assert report.clean
    assert report.plan.lost == []
    with rmqcore.open_store(golden.path, config=golden.conf) as store:
        messages = store.messages("TopicAgain", 0)
        assert [one.phy_offset for one in messages] == [one.phy_offset for one in queue]
    assert_found(golden.path, [one for one in known if one != queue[place]])


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("mend", [doctor.repair, rebuild_consume_queues])
def test_no_mend_brings_a_deleted_topic_back_where_the_second_number_of_the_new_one_rotted(
    store_path, mend, jobs
):
    """The first record is alone then, as one whose number rotted; but the queue began with it."""
    with rmqcore.open_store(store_path, config=SIZES) as store:
        for number in range(5):
            store.put("T", b"old %d" % number)
        store.delete_topic("T")
        receipts = [store.put("T", b"new %d" % number) for number in range(2)]
    for note in (store_path / "config").glob("deletedTopics.json*"):
        # RocketMQ writes none
        note.unlink()
    overwrite(log_files(store_path)[0], receipts[1].phy_offset + 20, (4).to_bytes(8, "big"))
    mend(store_path, jobs=jobs)
    with rmqcore.open_store(store_path, mode="r") as store:
        assert [one.body for one in store.messages("T", 0)] == [b"new 0", b"new 1"]


@pytest.mark.parametrize("number", [1, 4, 6, 1 << 40 | 1])
def test_no_opening_takes_the_only_message_of_a_topic_made_again_for_one_of_before(
    store_path, number
):
    with rmqcore.open_store(store_path, config=SIZES) as store:
        for each in range(5):
            store.put("T", b"old %d" % each)
        store.delete_topic("T")
        receipt = store.put("T", b"new")
    for note in (store_path / "config").glob("deletedTopics.json*"):
        # RocketMQ writes none
        note.unlink()
    overwrite(log_files(store_path)[0], receipt.phy_offset + 20, number.to_bytes(8, "big"))
    with pytest.raises(CorruptConsumeQueueError, match=f"is {number}; the queue has it at 0"):
        rmqcore.open_store(store_path)
    assert doctor.repair(store_path).clean
    with rmqcore.open_store(store_path) as store:
        assert [one.body for one in store.messages("T", 0)] == [b"new"]


@pytest.mark.parametrize("mend", ["opening", "repair", "repair of more"])
def test_the_last_message_is_no_first_one_where_its_queue_has_lost_those_before(store_path, mend):
    """RocketMQ goes on at the begin of a queue file whose units a power cut has zeroed."""
    with rmqcore.open_store(store_path, config=SIZES) as store:
        places = [store.put("T", b"%d" % number).phy_offset for number in range(6)]
        store.put("Other", b"other")
    known = [one for one in known_messages(store_path) if one.topic == "T"]
    (path,) = (store_path / "consumequeue" / "T" / "0").iterdir()
    units = path.read_bytes()
    overwrite(path, 0, units[100:120] + bytes(len(units) - 20))
    if mend == "repair of more":
        overwrite(log_files(store_path)[0], places[4], bytes(40))
        del known[4]
    if mend != "opening":
        assert doctor.repair(store_path).clean
    rmqcore.open_store(store_path).close()
    assert_found(store_path, known)


@pytest.mark.parametrize("number", [1, 2, 6])
def test_no_walk_over_the_end_of_the_log_moves_the_only_message_of_a_topic_made_again(
    store_path, number
):
    """The messages of before lie in front of where an opening begins to look."""
    with rmqcore.open_store(store_path, config=SIZES) as store:
        for each in range(5):
            store.put("T", b"old %d" % each)
        store.delete_topic("T")
        for each in range(60):
            store.put("Other", bytes(1000), keys=f"k{each}")
        receipt = store.put("T", b"new", keys="new")
    for note in (store_path / "config").glob("deletedTopics.json*"):
        # RocketMQ writes none
        note.unlink()
    with rmqcore.open_store(store_path, open_check_bytes=0) as store:
        assert 0 < store.recovery_report.start_offset <= receipt.phy_offset
    path = log_files(store_path)[receipt.phy_offset // FILE_SIZE]
    overwrite(path, receipt.phy_offset % FILE_SIZE + 20, number.to_bytes(8, "big"))
    with pytest.raises(CorruptConsumeQueueError, match=f"is {number}; the queue has it at 0"):
        rmqcore.open_store(store_path, open_check_bytes=0)
    assert doctor.repair(store_path).clean
    with rmqcore.open_store(store_path, open_check_bytes=0) as store:
        assert [one.body for one in store.messages("T", 0)] == [b"new"]


def test_an_opening_reads_the_log_once_for_all_queues_that_have_lost_all_but_the_last(
    store_path, monkeypatch
):
    with rmqcore.open_store(store_path, config=SIZES) as store:
        for number in range(30):
            store.put("T", b"%d" % number, queue_id=number % 10)
    known = known_messages(store_path)
    for path in (store_path / "consumequeue").glob("T/*/*"):
        units = path.read_bytes()
        overwrite(path, 0, units[40:60] + bytes(len(units) - 20))
    reads = []

    def read(*arguments):
        reads.append(arguments)
        return walk_good_records(*arguments)

    monkeypatch.setattr(queue_check, "walk_good_records", read)
    rmqcore.open_store(store_path).close()
    assert len(reads) == 1
    assert_found(store_path, known)


@pytest.mark.parametrize("work", [doctor.repair, rebuild_consume_queues])
def test_a_directory_of_another_topic_lets_no_group_begin_anew(store_path, work):
    """What it leads to lies in front of all that the topic has, as of one that was deleted."""
    with rmqcore.open_store(store_path, config=SIZES) as opened:
        opened.put("Other", b"other")
        for number in range(9):
            opened.put("T", b"%d" % number)
        opened.consumer_offsets.commit("T", "G", 0, 6)
    known = known_messages(store_path)
    queues = store_path / "consumequeue"
    for source, target in (("T", "T2"), ("Other", "T"), ("T2", "Other")):
        (queues / source).rename(queues / target)
    work(store_path)
    assert_found(store_path, known)
    with rmqcore.open_store(store_path) as opened:
        assert opened.consumer_offsets.get("T", "G", 0) == 6


def zero_at_the_end_of_a_file(store_path, *, behind):
    """A queue without files, a number of whose messages has rotted to 0; all messages, and that.

    It is the last one of the queue in a file of the log, which is read file by file. The queue goes
    on behind it, or else another one of its topic does.
    """
    with rmqcore.open_store(store_path, config=SIZES) as store:
        for number in range(30):
            if behind or number <= 14:
                store.put("T", b"%d" % number * 500)
            store.put("T", b"%d" % number * 500, queue_id=1)
    known = known_messages(store_path)
    queue = [one for one in known if one.queue_id == 0]
    files = [one.phy_offset // FILE_SIZE for one in queue]
    last = files.index(files[-1]) - 1 if behind else len(queue) - 1
    path = log_files(store_path)[files[last]]
    overwrite(path, queue[last].phy_offset % FILE_SIZE + 20, bytes(8))
    shutil.rmtree(store_path / "consumequeue" / "T" / "0")
    return known, queue[last]


@pytest.mark.parametrize("mend", [lambda path: rmqcore.open_store(path).close(), doctor.repair])
@pytest.mark.parametrize("behind", [True, False])
def test_a_number_that_rotted_to_0_at_the_end_of_a_file_makes_no_topic_anew(
    store_path, behind, mend
):
    known, rotten = zero_at_the_end_of_a_file(store_path, behind=behind)
    mend(store_path)
    assert_found(store_path, [one for one in known if one != rotten])


@pytest.mark.parametrize("behind", [True, False])
@pytest.mark.parametrize("files", ["none", "their end"])
def test_no_opening_lets_groups_begin_anew_for_a_number_that_rotted_to_0(store_path, behind, files):
    """Nor is the queue derived again with each opening: other queues lead to both its sides."""
    known, rotten = zero_at_the_end_of_a_file(store_path, behind=behind)
    queue = store_path / "consumequeue" / "T" / "0"
    if files == "their end":
        with rmqcore.open_store(store_path) as store:
            store.consumer_offsets.commit("T", "G", 0, 6)
        for path in sorted(queue.iterdir())[1:]:
            path.unlink()
        overwrite(queue / f"{0:020d}", 200, bytes(120))
    else:
        offsets = store_path / "config" / "consumerOffset.json"
        offsets.write_text('{"offsetTable":{"T@G":{0:6}}}')
    (store_path / "abort").touch()
    left = [one for one in known if one != rotten]
    for again in range(3):
        with rmqcore.open_store(store_path) as store:
            assert store.consumer_offsets.get("T", "G", 0) == 6
            assert bool(store.recovery_report.findings) == (not again)
        assert_found(store_path, left)


@pytest.mark.parametrize("made_again", [False, True])
def test_groups_begin_anew_with_a_single_message_where_none_of_before_follows(
    store_path, made_again
):
    """The queue's files end in front of a message with number 0, the last one in a log file."""
    with rmqcore.open_store(store_path, config=SIZES) as store:
        old = [store.put("T", b"%d" % number * 500).phy_offset for number in range(14)]
        old_files = len(log_files(store_path))
        store.consumer_offsets.commit("T", "G", 0, 6)
    units = (store_path / "consumequeue" / "T" / "0" / f"{0:020d}").read_bytes()
    with rmqcore.open_store(store_path) as store:
        if made_again:
            store.delete_topic("T")
        last = store.put("T", b"last").phy_offset
        store.put("Other", bytes(FILE_SIZE - 200))
        assert last // FILE_SIZE < old_files
        behind = [] if made_again else [store.put("T", b"%d" % number) for number in range(3)]
    if not made_again:
        overwrite(log_files(store_path)[last // FILE_SIZE], last % FILE_SIZE + 20, bytes(8))
    for note in (store_path / "config").glob("deletedTopics.json*"):
        note.unlink()
    (store_path / "config" / "consumerOffset.json").write_text('{"offsetTable":{"T@G":{0:6}}}')
    (store_path / "consumequeue" / "T" / "0" / f"{0:020d}").write_bytes(units)
    (store_path / "abort").touch()
    with rmqcore.open_store(store_path) as store:
        found = [message.phy_offset for message in store.messages("T", 0)]
        assert store.consumer_offsets.get("T", "G", 0) == (None if made_again else 6)
    assert found == ([last] if made_again else [*old, *(one.phy_offset for one in behind)])


@pytest.mark.parametrize("mend", [lambda path: rmqcore.open_store(path).close(), doctor.repair])
@pytest.mark.parametrize(
    ("rotten", "at", "data"),
    [(8, 12, b"\x20"), (8, 15, b"\x00"), (0, 25, b"\x01")],
    ids=["in a queue that is none", "in the same queue", "the other queue's first"],
)
def test_a_record_that_rotted_takes_no_topic_that_was_made_again_for_the_one_before(
    store_path, rotten, at, data, mend
):
    """It lies behind a message that is alone in its queue, as if the old topic went on."""
    with rmqcore.open_store(store_path, config=SIZES) as store:
        for queue_id in (0, 1):
            for number in range(5):
                store.put("T", b"old %d" % number * 50, queue_id=queue_id)
        store.delete_topic("T")
        only = store.put("T", b"only")
        # the next one is read at another time
        store.put("Other", bytes(FILE_SIZE - 300))
        others = [store.put("T", b"new", queue_id=1).phy_offset for _ in range(20)]
    for note in (store_path / "config").glob("deletedTopics.json*"):
        note.unlink()
    place = others[rotten]
    overwrite(log_files(store_path)[place // FILE_SIZE], place % FILE_SIZE + at, data)
    shutil.rmtree(store_path / "consumequeue")
    mend(store_path)
    with rmqcore.open_store(store_path, mode="r") as store:
        (found, *_) = store.messages("T", 0)
        assert found.phy_offset == only.phy_offset


@pytest.mark.parametrize("jobs", [1, 2])
def test_no_rebuild_makes_a_topic_anew_for_a_number_that_rotted_to_0(store_path, jobs):
    known, rotten = zero_at_the_end_of_a_file(store_path, behind=True)
    rebuild_consume_queues(store_path, jobs=jobs)
    assert_found(store_path, [one for one in known if one != rotten])


def test_a_number_that_rotted_to_0_is_put_back_where_its_queue_is_lost(store_path):
    known, _ = zero_at_the_end_of_a_file(store_path, behind=True)
    assert doctor.repair(store_path).clean
    assert_found(store_path, known)


@pytest.mark.parametrize("number", [1, 5, 1 << 40])
def test_the_first_number_of_a_queue_is_put_back_where_that_is_lost(store_path, number):
    with rmqcore.open_store(store_path, config=SIZES) as store:
        receipts = [store.put("T", b"%d" % each, queue_id=each % 2) for each in range(8)]
    known = known_messages(store_path)
    overwrite(log_files(store_path)[0], receipts[1].phy_offset + 20, number.to_bytes(8, "big"))
    shutil.rmtree(store_path / "consumequeue")
    report = doctor.repair(store_path)
    assert report.clean
    assert report.plan.lost == report.plan.unnamed == []
    assert_found(store_path, known)


@pytest.mark.parametrize("work", [doctor.repair, rebuild_consume_queues])
def test_a_directory_of_another_topic_of_which_the_log_has_the_end_lets_no_group_begin_anew(
    store_path, work
):
    """Retention has deleted the message that its first unit leads to."""
    with rmqcore.open_store(store_path, config=SIZES) as opened:
        for number in range(90):
            opened.put("T" if number >= 60 else "Other", b"%d" % number * 200)
        opened.consumer_offsets.commit("T", "G", 0, 6)
    log_files(store_path)[0].unlink()
    known = known_messages(store_path)
    queues = store_path / "consumequeue"
    for source, target in (("T", "T2"), ("Other", "T"), ("T2", "Other")):
        (queues / source).rename(queues / target)
    work(store_path)
    with rmqcore.open_store(store_path) as opened:
        assert opened.consumer_offsets.get("T", "G", 0) == 6
    assert_found(store_path, [one for one in known if one.topic == "T"])
