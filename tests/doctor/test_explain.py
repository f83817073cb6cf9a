"""Each reason for which a message is not found, or a store takes no puts, is told by its bytes."""

import os
import shutil
import sys

import pytest
from doctor.damage import DAMAGES, flip, log_files, overwrite, some_damage

import rmqcore
from golden.check import digest_tree
from rmqcore import doctor
from rmqcore._index import index_hash
from rmqcore.errors import ArgumentError, CorruptConfigFileError, RmqCoreError
from rmqcore.files.store_checkpoint import StoreCheckpoint
from rmqcore.files.store_mark import StoreMark

pytestmark = pytest.mark.engine

SIZES = {
    "mapped_file_size_commit_log": 1 << 14,
    "mapped_file_size_consume_queue": 20 * 64,
    "max_hash_slot_num": 8,
    "max_index_num": 32,
}


@pytest.fixture
def store(tmp_path):
    with rmqcore.open_store(tmp_path / "store", config=SIZES) as opened:
        for number in range(20):
            opened.put("T", b"%d" % number * 1000, keys=f"k{number}")
    return tmp_path / "store"


def messages(store):
    with rmqcore.open_store(store, mode="r") as opened:
        return [(m.phy_offset, m.message_id) for m in opened.messages("T", 0)]


def reason(store, **question):
    before = digest_tree(store)
    answer = doctor.explain(store, **question)
    assert digest_tree(store) == before
    assert answer.to_dict()["reason"] == answer.reason
    return answer.reason


def test_what_is_there_is_found_in_every_way(store):
    phy_offset, message_id = messages(store)[7]
    for question in (
        {"topic": "T", "queue_offset": 7},
        {"topic": "T", "key": "k7"},
        {"message_id": message_id},
        {"phy_offset": phy_offset},
    ):
        assert doctor.explain(store, **question).found, question


def test_a_table_that_only_some_settings_need_bars_the_openings_with_them(store):
    (store / "config" / "delayOffset.json").write_text('{"offsetTable":')
    assert doctor.explain(store).found
    told = doctor.explain(store, config=SIZES | {"deliver_delayed": True}).reason
    with pytest.raises(CorruptConfigFileError) as refused:
        rmqcore.open_store(store, deliver_delayed=True)
    assert told == " ".join(str(refused.value).split())


def test_a_key_tells_its_slot(store):
    answer = doctor.explain(store, topic="T", key="k7")
    key_hash = index_hash("T#k7")
    assert answer.facts[0] == ("hash", f"{key_hash} of T#k7; slot {key_hash % 8} of 8")
    assert any("entries in the slot's chain" in there for _, there in answer.facts)
    assert "no entry" in reason(store, topic="T", key="nothing")


def test_a_number_that_the_queue_does_not_have(store):
    assert "ends at 20" in reason(store, topic="T", queue_offset=20)
    assert "no such queue" in reason(store, topic="T", queue_id=3, queue_offset=0)
    assert "no such queue" in reason(store, topic="Other", queue_offset=0)


def test_a_message_that_was_deleted_with_its_log_file(store):
    first, second = log_files(store)[0], messages(store)[0]
    first.unlink()
    answer = doctor.explain(store, topic="T", queue_offset=0)
    assert "retention has deleted" in answer.reason
    assert "retention has deleted" in reason(store, message_id=second[1])


def test_a_damaged_record_and_what_follows(store):
    places = messages(store)
    overwrite(log_files(store)[0], places[3][0] + 4, bytes(4))
    assert f"one follows at {places[4][0]}" in reason(store, topic="T", queue_offset=3)
    doctor.repair(store)
    assert "a repair has put a record in its place" in reason(store, topic="T", queue_offset=3)


def test_inside_of_a_record_and_behind_the_end(store):
    places = messages(store)
    assert f"inside of the one at {places[3][0]}" in reason(store, phy_offset=places[3][0] + 5)
    assert "the log ends at" in reason(store, phy_offset=1 << 40)


def test_a_unit_that_leads_elsewhere_and_one_that_is_empty(store):
    queue = next((store / "consumequeue" / "T" / "0").iterdir())
    overwrite(queue, 20 * 5, queue.read_bytes()[20 * 6 : 20 * 7])
    assert "leads to the record of T/0 offset 6" in reason(store, topic="T", queue_offset=5)
    overwrite(queue, 20 * 5, bytes(20))
    assert "zeros stands in its place" in reason(store, topic="T", queue_offset=5)


def test_transactions_that_are_in_no_queue(golden_store):
    store = golden_store("5.5.0", "transactions").path
    kinds = [doctor.explain(store, phy_offset=p).reason for p in records(store)]
    assert any("rolled back" in kind for kind in kinds)
    assert any("prepared only" in kind for kind in kinds)


def records(store):
    with rmqcore.open_store(store, mode="r") as opened:
        return [m.phy_offset for m in opened.messages()]


def test_why_a_store_takes_no_puts(store):
    assert doctor.explain(store).found
    with rmqcore.open_store(store, config=SIZES) as opened:
        assert f"process ({os.getpid()})" in reason(opened.path)
    log_files(store)[0].write_bytes(b"short")
    answer = doctor.explain(store)
    assert not answer.found
    assert "5 bytes" in answer.reason


def test_why_a_log_file_will_be_deleted(store):
    os.utime(log_files(store)[0], (0, 0))
    facts = dict(doctor.explain(store).facts)
    assert "hours" in facts[f"log file {0:020d}"]
    assert len(facts) == 1


def test_a_message_is_named_in_one_way(store):
    for question in (
        {"topic": "T"},
        {"queue_offset": 1},
        {"key": "k"},
        {"topic": "T", "phy_offset": 0},
        {"topic": "T", "key": "k", "queue_offset": 1},
        {"message_id": "nonsense"},
    ):
        with pytest.raises(ArgumentError):
            doctor.explain(store, **question)


def test_the_same_and_not_the_same(store, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(store, other)
    assert doctor.diff(store, other).same
    places = messages(store)
    with rmqcore.open_store(other, config=SIZES) as opened:
        opened.put("T", b"more")
    report = doctor.diff(store, other)
    assert (report.same, report.first) == (False, -1)
    assert [one.kind for one in report.differences] == ["only in B"]
    flip(log_files(other)[0], places[4][0] + 16)
    overwrite(log_files(other)[0], places[8][0] + 4, bytes(4))
    report = doctor.diff(store, other)
    assert report.first == places[4][0]
    kinds = [(one.phy_offset, one.kind) for one in report.differences[:2]]
    assert kinds == [(places[4][0], "differs"), (places[8][0], "only in A")]
    assert report.differences[0].fields == ("flag",)
    assert doctor.diff(store, other, differences_max=1).more
    assert report.to_dict()["differences"][0]["kind"] == "differs"


def test_diff_says_what_only_one_has_in_front(store, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(store, other)
    gone, behind = log_files(other)[:2]
    gone.unlink()
    front = [(0, int(behind.name))]
    report = doctor.diff(store, other)
    assert (report.same, report.first, report.differences) == (False, -1, [])
    assert (report.only_a, report.only_b) == (front, [])
    assert report.compared == report.a_bounds[1] - int(behind.name)
    turned = doctor.diff(other, store).to_dict()
    assert (turned["only_a"], turned["only_b"]) == ([], [list(front[0])])
    shutil.rmtree(other)
    rmqcore.open_store(other, config=SIZES).close()
    report = doctor.diff(store, other)
    assert (report.compared, report.only_a) == (0, [report.a_bounds])


@pytest.mark.process
def test_diff_by_two_processes_says_the_same_and_how_far_it_is(store, tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["rmqcore.doctor.diff"], "_SPLIT_SIZE", 1000)
    other = tmp_path / "other"
    shutil.copytree(store, other)
    told = []
    report = doctor.diff(store, other, jobs=2, progress=lambda *facts: told.append(facts))
    total = report.a_bounds[1] - report.a_bounds[0]
    assert report.same
    assert told[0] == ("diff", 0, total)
    assert told[-1] == ("diff", total, total)
    place = messages(store)[9][0]
    flip(log_files(other)[place // SIZES["mapped_file_size_commit_log"]], place + 16)
    alone = doctor.diff(store, other)
    assert alone.first == place
    assert doctor.diff(store, other, jobs=2) == alone


SMALL = {
    "mapped_file_size_commit_log": 1 << 13,
    "mapped_file_size_consume_queue": 20 * 16,
    "max_hash_slot_num": 8,
    "max_index_num": 32,
}


@pytest.fixture
def small(store_path):
    with rmqcore.open_store(store_path, config=SMALL) as opened:
        for number in range(90):
            opened.put("T", b"%d" % number * 60, queue_id=number % 2, keys=f"k{number}")
    return store_path


def check_opening(path):
    """What explain says of an opening, without a change, is what the opening does."""
    before = digest_tree(path)
    try:
        answer = doctor.explain(path)
    except RmqCoreError as error:
        said = str(error)
    else:
        said = "" if answer.found else answer.reason
    assert digest_tree(path) == before
    decided = ""
    try:
        rmqcore.open_store(path).close()
    except RmqCoreError as error:
        decided = " ".join(str(error).split())
    assert said == decided


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("harm", DAMAGES)
def test_whether_a_damaged_store_opens_is_what_opening_decides(small, harm, clean):
    if not clean:
        (small / "abort").write_text("1")
    harm(small)
    check_opening(small)


@pytest.mark.parametrize("flushed", [False, True], ids=["", "flushed"])
@pytest.mark.parametrize("clean", [True, False], ids=["closed", "power cut"])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_whether_a_store_opens_with_a_log_file_without_a_byte(
    small, monkeypatch, number, clean, flushed
):
    """As a power cut leaves one that was just made, with more behind it."""
    monkeypatch.setattr(StoreMark, "this_machine", lambda _: "started anew")
    if not clean:
        (small / "abort").write_text("1")
    if flushed:
        checkpoint = StoreCheckpoint(small / "checkpoint")
        checkpoint.load()
        checkpoint.physic_msg_timestamp_ms += 60_000
        checkpoint.flush()
    os.truncate(sorted((small / "commitlog").iterdir())[number], 0)
    check_opening(small)


def opens_as_said(small, rng, rounds):
    for _ in range(rounds):
        copy = shutil.copytree(small, small.with_name("copy"))
        done = some_damage(copy, rng)
        if rng.random() < 0.5:
            (copy / "abort").write_text("1")
        try:
            check_opening(copy)
        except AssertionError as error:
            error.add_note(str(done))
            raise
        shutil.rmtree(copy)


def test_whether_a_store_opens_that_was_damaged_at_random(small, rng):
    opens_as_said(small, rng, 12)


@pytest.mark.storm
def test_whether_a_store_opens_that_was_damaged_at_random_often(small, rng):
    opens_as_said(small, rng, 300)


def test_a_number_that_jumps_too_far_behind_a_lost_queue_is_told(store):
    phy_offset, _ = messages(store)[-1]
    file, at = divmod(phy_offset, 1 << 14)
    overwrite(log_files(store)[file], at + 20, b"\x01")
    shutil.rmtree(store / "consumequeue")
    told = doctor.explain(store)
    assert not told.found
    with pytest.raises(RmqCoreError, match="19 was expected") as refused:
        rmqcore.open_store(store)
    assert told.reason == str(refused.value)


@pytest.mark.parametrize("behind", [1, 7, 8, 9])
def test_the_last_bytes_of_a_file_are_no_file_that_was_cut_short(store, behind):
    overwrite(log_files(store)[0], (1 << 14) - 900, b"\xff" * 900)
    told = doctor.explain(store, phy_offset=(1 << 14) - behind)
    assert told.reason.startswith("no whole record is here; ")


def test_a_directory_in_the_place_of_the_stores_mark_is_told(store):
    """An opening has to write it."""
    (store / "config" / "storeMark.json").unlink()
    (store / "config" / "storeMark.json").mkdir()
    told = doctor.explain(store)
    assert not told.found
    with pytest.raises(RmqCoreError, match="where a store has a file") as refused:
        rmqcore.open_store(store).close()
    assert told.reason == str(refused.value)
