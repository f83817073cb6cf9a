"""What was deleted stays deleted, after every kind of opening and rebuild."""

import shutil
import struct

import pytest
from children import die, run_child
from killed_copy import copy_as_killed

import rmqcore
from crash.small_store import SETTINGS
from rmqcore._codec import encode_record
from rmqcore.doctor import verify
from rmqcore.errors import CorruptConfigFileError, CorruptConsumeQueueError, DiskFullError
from rmqcore.files.config_tables import TopicConfig
from rmqcore.files.deleted_topics import DeletedTopics
from rmqcore.files.mapped_file import MappedFile
from rmqcore.native.log._tail import LogTail
from rmqcore.rebuild import consume_queues, rebuild_consume_queues
from rmqcore.recovery.queue_check import QueueCheck
from rmqcore.scan import plan
from rmqcore.services.flush import LogFlusher

pytestmark = pytest.mark.engine

FIRST, SECOND = 60, 7
SMALL = SETTINGS | {"open_check_bytes": 0}


def bodies(store, topic="T", queue_id=0):
    return [bytes(m.body) for m in store.messages(topic, queue_id)]


def wanted(again):
    return [b"new %d" % number for number in range(SECOND)] if again else []


def fill(store, topic="T", word=b"old", count=FIRST, other_queue=False):
    """Put to a topic and to Other in turn; `other_queue` puts to its queue 1, too."""
    for number in range(count):
        store.put(topic, word + b" %d" % number, keys=(f"k{number}",))
        if other_queue:
            store.put(topic, word + b" %d" % number, queue_id=1)
        store.put("Other", b"other %d" % number)


@pytest.fixture(params=[True, False], ids=["again", "gone"])
def again(request):
    return request.param


@pytest.fixture
def deleted(store_path, again):
    """A store whose topic T was deleted here, and perhaps made again."""
    with rmqcore.open_store(store_path, **SMALL) as store:
        fill(store, other_queue=True)
        assert store.delete_topic("T")
        assert store.max_queue_offset("T", 0) == 0
        assert ("T", 0) not in store.queues()
        if again:
            fill(store, word=b"new", count=SECOND)
        assert bodies(store) == wanted(again)
    return store_path


@pytest.fixture
def by_rocketmq(store_path, again):
    """The same, as RocketMQ leaves it: the log has both runs, no note says what was deleted."""
    at, units = 0, b""
    with rmqcore.open_store(
        store_path, **SMALL | {"mapped_file_size_commit_log": 1 << 16}
    ) as store:
        for topic in ("TBW102", "SELF_TEST_TOPIC", "Other"):
            store.topics.put(TopicConfig(topic_name=topic))
        if again:
            store.topics.put(TopicConfig(topic_name="T"))
        fill(store, other_queue=True)
        at = store.max_phy_offset
    if again:
        with (store_path / f"commitlog/{0:020d}").open("r+b") as log:
            log.seek(at)
            for number in range(SECOND):
                message = rmqcore.Message("T", b"new %d" % number, born_timestamp_ms=1)
                record = encode_record(
                    message,
                    queue_offset=number,
                    phy_offset=at,
                    store_timestamp_ms=4_000_000_000_000,
                )
                log.write(record)
                units += struct.pack(">qiq", at, len(record), 0)
                at += len(record)
    shutil.rmtree(store_path / "consumequeue/T")
    for mark in (store_path / "config").glob("storeMark*"):
        mark.unlink()
    if again:
        queue = store_path / "consumequeue/T/0"
        queue.mkdir(parents=True)
        (queue / f"{0:020d}").write_bytes(units.ljust(200, b"\0"))
    return store_path


@pytest.fixture(params=["here", "by RocketMQ"])
def path(request, again):
    return request.getfixturevalue("deleted" if request.param == "here" else "by_rocketmq")


def nothing(_path):
    return None


def unclean(path):
    (path / "abort").write_text("1")
    (path / "checkpoint").unlink(missing_ok=True)


def lose_queues(path):
    shutil.rmtree(path / "consumequeue")


def lose_topic(path):
    shutil.rmtree(path / "consumequeue/T", ignore_errors=True)


def lose_other(path):
    shutil.rmtree(path / "consumequeue/Other")


def rot_first_unit(path):
    file = path / f"consumequeue/T/0/{0:020d}"
    if file.exists():
        data = file.read_bytes()
        file.write_bytes(data[:3] + b"\x07" + data[4:])


def lose_marks(path):
    for mark in (path / "config").glob("storeMark*"):
        mark.unlink()


def rebuild(path):
    rebuild_consume_queues(path)


def rebuild_in_parts(path):
    rebuild_consume_queues(path, jobs=2, split_size=1 << 12)


@pytest.mark.parametrize("again", [True])
def test_a_part_of_a_rebuild_takes_no_files_from_another_part(path, again, tmp_path):
    root = tmp_path / "fresh"
    another = root / "T" / "0" / f"{1 << 30:020d}"
    another.parent.mkdir(parents=True)
    another.write_bytes(b"units of another part")
    (split,) = plan(path)
    written, _ = consume_queues.rebuild(split, root, file_size=1000, delays_ms=())
    assert ("T", 0) in written.begun_anew
    assert another.exists()


HARM = [
    nothing,
    unclean,
    lose_queues,
    lose_topic,
    lose_other,
    rot_first_unit,
    lose_marks,
    rebuild,
    pytest.param(rebuild_in_parts, marks=pytest.mark.process),
]


@pytest.mark.parametrize("check", [0, 1 << 30], ids=["last file", "whole log"])
@pytest.mark.parametrize("harm", HARM)
def test_what_was_deleted_stays_deleted(path, again, harm, check):
    harm(path)
    for _ in range(2):
        with rmqcore.open_store(path, open_check_bytes=check) as store:
            assert bodies(store) == wanted(again)
            assert bodies(store, queue_id=1) == []
            assert (
                bodies(store, "Other")
                == [b"other %d" % n for n in [*range(FIRST), *range(SECOND if again else 0)]][
                    : store.max_queue_offset("Other", 0)
                ]
            )
            assert store.max_queue_offset("Other", 0) >= FIRST
    report = verify(path)
    assert report.clean, report.findings
    with rmqcore.open_store(path, open_check_bytes=check) as store:
        assert store.put("T", b"next").queue_offset == len(wanted(again))
        assert bodies(store) == [*wanted(again), b"next"]
        assert store.put("T", b"next", queue_id=1).queue_offset == 0


def test_a_store_of_rocketmq_opens_unchanged(by_rocketmq):
    before = {
        file: file.read_bytes()
        for file in (by_rocketmq / "consumequeue").rglob("*")
        if file.is_file()
    }
    with rmqcore.open_store(by_rocketmq) as store:
        assert store.recovery_report.findings == []
    assert before == {file: file.read_bytes() for file in before}


@pytest.mark.process
def test_a_deletion_survives_a_kill_at_once(store_path, again):
    def write(_):
        store = rmqcore.open_store(store_path, **SMALL)
        fill(store)
        store.delete_topic("T")
        if again:
            fill(store, word=b"new", count=SECOND)
        die()

    run_child(write)
    with rmqcore.open_store(store_path, **SMALL) as store:
        assert bodies(store) == wanted(again)
        assert store.put("T", b"next").queue_offset == len(wanted(again))


def test_a_deletion_that_was_interrupted_goes_on(store_path):
    with rmqcore.open_store(store_path, **SMALL) as store:
        fill(store)
    shutil.copytree(store_path / "consumequeue/T", store_path.parent / "kept")
    with rmqcore.open_store(store_path, **SMALL) as store:
        store.delete_topic("T")
    shutil.copytree(store_path.parent / "kept", store_path / "consumequeue/T")
    with rmqcore.open_store(store_path, **SMALL) as store:
        assert bodies(store) == []
        assert store.queues() == [("Other", 0)]


@pytest.mark.process
def test_a_deletion_killed_beside_a_put_has_not_taken_place(store_path):
    def write(_acknowledge):
        store = rmqcore.open_store(store_path, **SETTINGS)
        fill(store)
        fill(store, topic="Other")
        note = store.parts.files.deleted.delete

        def late(*told):
            note(*told)
            store.put("T", b"between")
            store.get_message("T", 0, 0)
            die()

        store.parts.files.deleted.delete = late
        store.delete_topic("T")

    run_child(write)
    with rmqcore.open_store(store_path, **SETTINGS) as store:
        found = bodies(store)
        assert len(found) == FIRST + 1
        assert found[-1] == b"between"
        assert any("did not take place" in each for each in store.recovery_report.findings)
    assert not verify(store_path).findings
    shutil.rmtree(store_path / "consumequeue" / "T")
    with rmqcore.open_store(store_path, **SETTINGS) as store:
        assert bodies(store) == found
        assert store.put("T", b"next").queue_offset == FIRST + 1
        assert store.delete_topic("T")
        assert bodies(store) == []


def test_deleting_takes_configuration_and_offsets_too(store_path):
    with rmqcore.open_store(store_path) as store:
        store.topics.put(TopicConfig(topic_name="T"))
        store.put("T", b"x")
        store.consumer_offsets.commit("T", "group", 0, 1)
        assert store.delete_topic("T")
        assert store.topics.get("T") is None
        assert store.consumer_offsets.get("T", "group", 0) is None
        assert not store.delete_topic("T")
        assert not store.delete_topic("Unknown")
        for name in ("SCHEDULE_TOPIC_XXXX", "a/b", ""):
            with pytest.raises(rmqcore.MessageIllegalError):
                store.delete_topic(name)


def test_the_log_and_the_index_still_know_the_records(deleted):
    with rmqcore.open_store(deleted) as store:
        old = store.message_at(0)
        assert old.body == b"old 0"
        assert old.phy_offset in [m.phy_offset for m in store.query_message("T", "k0").messages]


def test_a_deletion_with_another_digit_deletes_nothing(deleted, again):
    note = deleted / "config/deletedTopics.json"
    text = note.read_bytes()
    place = text.index(b'"T":') + 4
    changed = text[:place] + b"9" + text[place + 1 :]
    assert changed != text
    note.write_bytes(changed)
    note.with_name(note.name + ".bak").unlink(missing_ok=True)
    with pytest.raises(CorruptConfigFileError, match="checksum"):
        rmqcore.open_store(deleted, **SETTINGS)
    note.write_bytes(text)
    with rmqcore.open_store(deleted, **SETTINGS) as store:
        assert bodies(store) == wanted(again)


def test_a_queue_id_that_is_none_is_refused():
    tail = LogTail("127.0.0.1:0", 4 << 20)
    with pytest.raises(ValueError, match="queue id -1"):
        tail.set_next_queue_offset("T", -1, 5)
    assert tail.next_queue_offset("T", -1) == 0


@pytest.mark.parametrize("error", [DiskFullError("deletedTopics.json"), KeyboardInterrupt()])
@pytest.mark.parametrize("place", ["the second note", "the flush", "the files"])
def test_what_is_put_after_a_deletion_that_failed_is_found(store_path, monkeypatch, place, error):
    calls = {"the second note": (DeletedTopics, "delete"), "the flush": (LogFlusher, "flush")}
    owner, name = calls.get(place, (MappedFile, "destroy"))
    original, seen = getattr(owner, name), []

    def failing(*args):
        seen.append(args)
        if len(seen) == 2 - (place == "the flush"):
            raise error
        return original(*args)

    with rmqcore.open_store(store_path, **SMALL) as store:
        for queue_id in (0, 1):
            for number in range(20):
                store.put("T", b"old %d" % number, queue_id=queue_id)
        assert store.max_queue_offset("T", 1) == 20
        monkeypatch.setattr(owner, name, failing)
        with pytest.raises(type(error)):
            store.delete_topic("T")
        monkeypatch.undo()
        for queue_id in (0, 1):
            assert store.put("T", b"new", queue_id=queue_id).queue_offset == 0
            assert [bytes(m.body) for m in store.messages("T", queue_id)] == [b"new"]
        assert store.delete_topic("T")
        assert store.put("T", b"newer").queue_offset == 0
    with rmqcore.open_store(store_path) as store:
        assert [bytes(m.body) for m in store.messages("T", 0)] == [b"newer"]
        assert store.max_queue_offset("T", 1) == 0
    assert verify(store_path).clean


def rebuild_by_splits(path):
    rebuild_consume_queues(path, jobs=map, split_size=1 << 12)


IN_TURN = [0, 1] * 40
OTHER_FIRST = [1] * 40 + [0] * 40


def made_again(store_path, old, new):
    """Put to queues of T, let RocketMQ delete it and make it again, and put once more."""
    with rmqcore.open_store(store_path, **SMALL) as store:
        for queue_id in old:
            store.put("T", b"old", queue_id=queue_id)
        store.put("Other", b"other")
        store.delete_topic("T")
        for queue_id in new:
            store.put("T", b"new", queue_id=queue_id)
    for note in (store_path / "config").glob("deletedTopics*"):
        note.unlink()
    lose_marks(store_path)
    return store_path


def files_of(store_path):
    return {f: f.read_bytes() for f in (store_path / "consumequeue").rglob("*") if f.is_file()}


def counts(store_path, check=1 << 30):
    with rmqcore.open_store(store_path, open_check_bytes=check) as store:
        return {key[1]: store.max_queue_offset(*key) for key in store.queues() if key[0] == "T"}


@pytest.mark.parametrize("check", [0, 1 << 30], ids=["last file", "whole log"])
@pytest.mark.parametrize("old", [IN_TURN, OTHER_FIRST], ids=["in turn", "T/1 first"])
@pytest.mark.parametrize("harm", [nothing, unclean, lose_topic, lose_queues, rebuild_by_splits])
def test_a_queue_of_a_topic_made_again_stays_empty(store_path, old, harm, check, monkeypatch):
    made_again(store_path, old, [0] * 5)
    harm(store_path)
    if harm in (nothing, unclean):
        before = files_of(store_path)
    for _ in range(2):
        with rmqcore.open_store(store_path, open_check_bytes=check) as store:
            assert store.max_queue_offset("T", 0) == 5
            assert store.max_queue_offset("T", 1) == 0
            assert not any("T/1" in each for each in store.recovery_report.findings)
    if harm in (nothing, unclean):
        assert files_of(store_path) == before
    monkeypatch.setitem(verify.__globals__, "SPLIT_SIZE", 1 << 12)
    report = verify(store_path)
    assert report.clean, report.findings
    with rmqcore.open_store(store_path, open_check_bytes=check) as store:
        assert store.put("T", b"next", queue_id=1).queue_offset == 0
    assert verify(store_path).clean


def test_an_end_that_the_mark_knows_is_one_of_the_deleted_topic(store_path):
    with rmqcore.open_store(store_path, **SMALL) as store:
        for queue_id in OTHER_FIRST:
            store.put("T", b"old", queue_id=queue_id)
    marks = {mark: mark.read_bytes() for mark in (store_path / "config").glob("storeMark*")}
    assert marks
    made_again(store_path, [], [0] * 5)
    for mark, content in marks.items():
        mark.write_bytes(content)
    assert counts(store_path, 0) == {0: 5}


@pytest.mark.process
@pytest.mark.parametrize("check", [0, 1 << 30], ids=["last file", "whole log"])
def test_an_opening_that_was_killed_brings_nothing_back(store_path, check):
    made_again(store_path, IN_TURN, [0] * 2)
    before = files_of(store_path)

    def open_and_die(_acknowledge):
        QueueCheck.drop_emptied = lambda self: (self._queues.flush(), die())
        rmqcore.open_store(store_path, open_check_bytes=check)

    run_child(open_and_die)
    assert counts(store_path, check) == {0: 2}
    assert files_of(store_path) == before


def test_several_queues_and_several_deletions(store_path):
    made_again(store_path, [0, 1, 2] * 20, [0, 1] * 10)
    assert counts(store_path) == {0: 10, 1: 10}
    made_again(store_path, [], [0] * 5)
    assert counts(store_path) == {0: 5}
    lose_queues(store_path)
    assert counts(store_path) == {0: 5}
    rebuild_by_splits(store_path)
    assert counts(store_path) == {0: 5}
    assert verify(store_path).clean


def rot_number(store_path, phy_offset, number=0):
    name = phy_offset - phy_offset % SMALL["mapped_file_size_commit_log"]
    with (store_path / f"commitlog/{name:020d}").open("r+b") as file:
        file.seek(phy_offset - name + 20)
        file.write(struct.pack(">q", number))


@pytest.mark.parametrize("old", [IN_TURN, OTHER_FIRST], ids=["in turn", "T/1 first"])
@pytest.mark.parametrize("rotten", [None, 2, 39])
@pytest.mark.parametrize("lost", [[1], [0, 1]])
def test_a_lost_queue_comes_back_also_beside_a_number_that_rotted(store_path, old, rotten, lost):
    with rmqcore.open_store(store_path, **SMALL) as store:
        receipts = [store.put("T", b"old", queue_id=queue_id) for queue_id in old]
    lose_marks(store_path)
    if rotten is not None:
        (at,) = (
            r.phy_offset
            for r, q in zip(receipts, old, strict=True)
            if (q, r.queue_offset) == (0, rotten)
        )
        rot_number(store_path, at)
    for queue_id in lost:
        shutil.rmtree(store_path / f"consumequeue/T/{queue_id}")
    assert any("T/1" in str(each.path) for each in verify(store_path).findings)
    rebuilt = store_path.with_name("rebuilt")
    shutil.copytree(store_path, rebuilt)
    rebuild_by_splits(rebuilt)
    with rmqcore.open_store(rebuilt, mode="r") as store:
        assert store.max_queue_offset("T", 1) == 40
    if rotten is not None and 0 not in lost:
        with pytest.raises(CorruptConsumeQueueError, match="says that its queue offset is 0"):
            rmqcore.open_store(store_path, open_check_bytes=1 << 30)
    else:
        assert counts(store_path)[1] == 40


@pytest.mark.parametrize("also_lost", [[], [0], [0, 2]])
def test_a_queue_that_goes_on_says_that_nothing_was_deleted(store_path, also_lost):
    """RocketMQ numbers a queue anew when its files are lost; the topic's others go on."""
    made_again(store_path, OTHER_FIRST, [0] * 5)
    with rmqcore.open_store(store_path, **SMALL) as store:
        offsets = [store.put("T", b"old", queue_id=2).phy_offset for _ in range(2)]
    for number, phy_offset in enumerate(offsets, 7):
        rot_number(store_path, phy_offset, number)
    for queue_id in (2, *also_lost):
        shutil.rmtree(store_path / f"consumequeue/T/{queue_id}", ignore_errors=True)
    lose_marks(store_path)
    assert counts(store_path)[1] == 40


def test_a_queue_that_began_after_the_others_were_emptied_is_a_lost_one(store_path):
    made_again(store_path, [0] * 20 + [1] * 20, [0] * 5)
    assert any("T/1" in str(each.path) for each in verify(store_path).findings)
    assert counts(store_path) == {0: 5, 1: 20}
    shutil.rmtree(store_path / "consumequeue")
    rebuild_by_splits(store_path)
    assert counts(store_path) == {0: 5, 1: 20}


def test_a_put_to_a_topic_that_a_broker_deleted_brings_nothing_back(store_path):
    with rmqcore.open_store(store_path, **SMALL) as store:
        for topic in ("TBW102", "SELF_TEST_TOPIC", "Other"):
            store.topics.put(TopicConfig(topic_name=topic))
    made_again(store_path, OTHER_FIRST, [])
    with rmqcore.open_store(store_path) as store:
        assert store.put("T", b"next").queue_offset == 0
    assert verify(store_path).clean
    lose_marks(store_path)
    assert counts(store_path) == {0: 1}
    assert verify(store_path).clean


@pytest.mark.parametrize("derive", ["an opening", "an opening behind one refused", "a rebuild"])
def test_what_was_put_here_beside_a_brokers_table_is_not_deleted(
    store_path, tmp_path, monkeypatch, derive
):
    """A power cut may take the new queues of a topic that no broker has listed; a kill, too."""
    with rmqcore.open_store(store_path, **SMALL) as store:
        store.topics.put(TopicConfig(topic_name="TBW102"))
        fill(store, topic="TBW102", count=3)
    killed = tmp_path / "killed"
    with rmqcore.open_store(store_path, **SMALL, flush_disk_type="SYNC_FLUSH") as store:
        assert store.put("T", b"new 0").durability == "disk"
        copy_as_killed(store_path, killed)
    lose_topic(killed)
    if derive == "a rebuild":
        rebuild_by_splits(killed)
        assert (killed / "consumequeue/T/0").is_dir()
    elif derive == "an opening behind one refused":

        def refuse(*_):
            raise OSError("refused")

        with monkeypatch.context() as patch:
            patch.setattr(QueueCheck, "dispatch", refuse)
            with pytest.raises(OSError, match="refused"):
                rmqcore.open_store(killed, **SMALL)
    # one is that it was not closed
    assert len(verify(killed).findings) == (1 if derive == "a rebuild" else 2)
    with rmqcore.open_store(killed, **SMALL) as store:
        assert bodies(store) == [b"new 0"]
        assert store.put("T", b"new 1").queue_offset == 1
    assert verify(killed).clean


def test_what_a_broker_of_rocketmq_deleted_is_gone_behind_an_older_mark(store_path):
    """It was closed in order then: nothing of ours is left without a queue."""
    with rmqcore.open_store(store_path, **SMALL) as store:
        store.topics.put(TopicConfig(topic_name="TBW102"))
        fill(store, count=3)
        mark = (store_path / "config/storeMark.json").read_bytes()
        store.flush()
    (store_path / "config/storeMark.json").write_bytes(mark)
    shutil.rmtree(store_path / "consumequeue/T")
    with rmqcore.open_store(store_path, **SMALL) as store:
        assert bodies(store) == []
        assert store.put("T", b"new").queue_offset == 0
