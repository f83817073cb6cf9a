"""A log file of another store, or with a strange name, costs no message of the store it lies in."""

import os
import shutil

import pytest
from doctor.damage import assert_found, known_messages, log_files, used

import rmqcore
from golden.check import digest_tree
from rmqcore import CorruptStoreError, doctor
from rmqcore.rebuild import rebuild_consume_queues

pytestmark = pytest.mark.engine

FILE_SIZE = 1 << 14
SIZES = {
    "mapped_file_size_commit_log": FILE_SIZE,
    "mapped_file_size_consume_queue": 20 * 16,
    "max_hash_slot_num": 8,
    "max_index_num": 32,
}


def made(path, word, count):
    with rmqcore.open_store(path, config=SIZES) as store:
        for number in range(count):
            store.put("T", b"%s %d " % (word, number) * 20, queue_id=number % 2)
    return path


@pytest.fixture
def ours(tmp_path):
    """Two log files, the second not full, and their messages."""
    path = made(tmp_path / "ours", b"ours", 100)
    return path, known_messages(path)


@pytest.fixture
def others(tmp_path):
    """The log files of a store with larger messages in the same queues: their numbers collide."""
    return log_files(made(tmp_path / "others", b"another store's", 150))


def behind(path, others):
    last = [file for file in log_files(path) if used(file)][-1]
    return int(last.name) // FILE_SIZE + 1


@pytest.mark.parametrize("where", [lambda *_: 0, lambda *_: 1, behind])
def test_a_foreign_file_is_named_and_nothing_is_done(ours, others, where):
    path, known = ours
    number = where(path, others)
    name = others[number].name
    place = path / "commitlog" / name
    aside = place.rename(path.parent / "aside") if place.exists() else None
    shutil.copyfile(others[number], place)
    before = digest_tree(path)
    plan = doctor.plan(path)
    assert plan.steps == []
    assert [one.split()[3] for one in plan.left] == [f"commitlog/{name}"]
    told = [one for one in doctor.verify(path).findings if "of another store" in one.what]
    assert [one.path.name for one in told] == [name]
    for words in (plan.left[0], told[0].how):
        assert "copy it before you move it away" in words
    assert not doctor.repair(path).clean
    assert digest_tree(path) == before
    place.unlink()
    if aside is not None:
        aside.rename(place)
    doctor.repair(path)
    assert_found(path, known)


def test_an_opening_refuses_what_a_foreign_file_behind_the_end_has(ours, others):
    path, known = ours
    number = behind(path, others)
    shutil.copyfile(others[number], path / "commitlog" / others[number].name)
    with pytest.raises(CorruptStoreError, match="good records follow"):
        rmqcore.open_store(path)
    assert_found(path, known)


def test_an_opening_lets_no_foreign_record_take_a_place_that_an_earlier_one_has(ours, others):
    path, known = ours
    shutil.copyfile(others[1], log_files(path)[1])
    with rmqcore.open_store(path) as store:
        for one in known:
            if one.phy_offset < FILE_SIZE:
                found = store.get_message("T", one.queue_id, one.queue_offset, max_messages=1)
                assert [bytes(message.record) for message in found.messages] == [one.record]


@pytest.mark.parametrize("start", [12345, 1, FILE_SIZE * 50_000])
def test_a_file_with_a_strange_name_does_not_tell_the_size_of_the_others(ours, others, start):
    path, known = ours
    shutil.copyfile(others[0], path / "commitlog" / f"{start:020d}")
    report = doctor.repair(path)
    assert report.clean
    assert report.plan.lost == []
    kinds = {step.kind.value for step in report.plan.steps}
    assert not kinds & {"cover", "resize", "cut-tail"}
    assert_found(path, known)


def test_files_far_apart_are_named_and_none_is_taken_out(ours, tmp_path):
    path, _ = ours
    far = tmp_path / "far"
    shutil.copytree(path, far)
    first = log_files(far)[0]
    # a file of our own log that lies where its records say, seen from one far in front
    (far / "commitlog" / f"{FILE_SIZE * 50_000:020d}").write_bytes(
        moved(first.read_bytes(), FILE_SIZE * 50_000)
    )
    plan = doctor.plan(far)
    assert plan.steps == []
    assert "lies where its name says" in plan.left[0]


def moved(data, by):
    """The records of a log file as they would lie further behind."""
    data = bytearray(data)
    at = 0
    while size := int.from_bytes(data[at : at + 4], "big"):
        if data[at + 4 : at + 8] == b"\xcb\xd4\x31\x94":
            break
        place = int.from_bytes(data[at + 28 : at + 36], "big") + by
        data[at + 28 : at + 36] = place.to_bytes(8, "big")
        at += size
    return bytes(data)


def test_a_file_that_was_renamed_is_named_by_any_of_its_records(ours):
    path, known = ours
    file = log_files(path)[1]
    data = bytearray(file.read_bytes())
    data[10:20] = bytes(10)
    file.write_bytes(data)
    file.rename(file.with_name(f"{7 * FILE_SIZE:020d}"))
    before = digest_tree(path)
    plan = doctor.plan(path, config=SIZES)
    assert plan.steps == []
    assert file.name in plan.left[0]
    doctor.repair(path, config=SIZES)
    assert digest_tree(path) == before
    file.with_name(f"{7 * FILE_SIZE:020d}").rename(file)
    assert doctor.repair(path).clean
    assert_found(path, [one for one in known if one.phy_offset != FILE_SIZE])


def test_whole_records_behind_the_size_that_files_seem_to_have_are_not_cut_off(ours):
    path, _ = ours
    half = FILE_SIZE // 2
    _, second = log_files(path)
    second.write_bytes(second.read_bytes()[:half])
    before = digest_tree(path)
    # a size that one of them has, and that the first would be cut to
    given = SIZES | {"mapped_file_size_commit_log": half}
    plan = doctor.plan(path, config=given)
    assert plan.steps == []
    assert "has whole records behind 8192 bytes" in plan.left[0]
    doctor.repair(path, config=given)
    assert digest_tree(path) == before


@pytest.mark.parametrize("place", [0, -1])
@pytest.mark.parametrize("kind", ["commitlog", "consumequeue"])
def test_the_hole_of_a_file_that_was_made_far_too_long_is_not_read(ours, monkeypatch, kind, place):
    path, known = ours
    files = sorted(one for one in (path / kind).rglob("*") if one.is_file())
    before = files[place].stat()
    os.truncate(files[place], 1 << 40)
    reads, pread = [], os.pread

    def count(*arguments):
        reads.append(arguments)
        assert len(reads) < 10_000
        return pread(*arguments)

    monkeypatch.setattr(os, "pread", count)
    assert not doctor.verify(path).clean
    assert doctor.repair(path).clean
    assert_found(path, known)
    doctor.undo(path)
    assert files[place].stat().st_size == 1 << 40
    os.truncate(files[place], before.st_size)
    assert doctor.repair(path).plan.steps == []


@pytest.mark.parametrize(
    "name",
    [
        "checkpoint",
        "config/consumerOffset.json",
        "config/storeMark.json",
        "config/topics.json",
        "config/consumerLeases.log",
        "config/timercheck",
    ],
)
def test_a_small_file_that_was_made_far_too_long_fills_no_memory(ours, name):
    path, known = ours
    with (path / name).open("ab") as small:
        small.truncate(1 << 40)
    doctor.verify(path)
    doctor.explain(path)
    assert doctor.repair(path).clean
    assert_found(path, known)
    with rmqcore.open_store(path):
        pass


@pytest.mark.parametrize("kind", ["commitlog", "consumequeue/T/0"])
@pytest.mark.parametrize("start", [2**63 - FILE_SIZE, 10**20 - 1])
def test_a_name_behind_all_offsets_is_named_by_all_and_nothing_is_changed(ours, kind, start):
    path, _ = ours
    (path / kind / str(start)).with_name(f"{start:020d}").write_bytes(bytes(320))
    before = digest_tree(path)
    for work in (doctor.verify, doctor.plan, doctor.repair, rmqcore.open_store):
        with pytest.raises(CorruptStoreError, match=f"{start}: .*move it away"):
            work(path)
        assert digest_tree(path) == before


@pytest.fixture
def with_older_queues(ours):
    """A store with a topic that was made again, and its messages; its queues are of before.

    They lead to the old topic's messages, which have the new one's numbers.
    """
    path, _ = ours
    queues = path / "consumequeue"
    shutil.copytree(queues, path.parent / "older")
    with rmqcore.open_store(path) as store:
        store.delete_topic("T")
        for number in range(150):
            store.put("T", b"made again %d " % number * 20, queue_id=number % 2)
    known = known_messages(path)
    shutil.rmtree(queues)
    (path.parent / "older").rename(queues)
    return path, known


def test_files_of_a_topic_that_was_made_again_are_none(with_older_queues):
    path, known = with_older_queues
    assert not [found for found in doctor.verify(path).findings if "another store" in found.what]
    assert doctor.repair(path).left == []
    assert_found(path, known)


def test_where_the_deletion_was_not_noted_the_advice_leads_to_all_messages(with_older_queues):
    path, known = with_older_queues
    # as RocketMQ leaves it, or a copy of the store's files without all of config/
    for file in path.glob("config/deletedTopics.json*"):
        file.unlink()
    left = doctor.plan(path).left
    assert left
    for words in left:
        assert "or of a topic that was deleted and made again" in words
        assert "rmqcore rebuild cq STORE" in words
    rebuild_consume_queues(path)
    assert_found(path, known)
