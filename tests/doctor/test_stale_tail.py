"""Whole records that RocketMQ left behind the place where it once cut the log are no messages.

A clock that stepped back makes no record one of these.
"""

import shutil

import pytest
from doctor.damage import Known, assert_found, known_messages, log_files, overwrite

import rmqcore
from golden.check import digest_tree
from rmqcore import doctor
from rmqcore.world import wall_clock_ms

pytestmark = pytest.mark.engine

FILE_SIZE = 1 << 15
SIZES = {
    "mapped_file_size_commit_log": FILE_SIZE,
    "mapped_file_size_consume_queue": 20 * 64,
    "max_hash_slot_num": 8,
    "max_index_num": 32,
}
CUT = 30


def left_over(path, body):
    """A store that was cut behind 30 messages of 60 and got others: its messages, the log's end."""
    with rmqcore.open_store(path, config=SIZES) as store:
        for number in range(2 * CUT):
            store.put("T", b"%d" % number * 50, queue_id=number % 2)
    before = log_files(path)[0].read_bytes()
    cut = sorted(one.phy_offset for one in known_messages(path))[CUT]
    overwrite(log_files(path)[0], cut, bytes(FILE_SIZE - cut))
    for name in ("consumequeue", "index"):
        shutil.rmtree(path / name)
    (path / "checkpoint").unlink()
    with rmqcore.open_store(path, config=SIZES) as store:
        for number in range(7):
            store.put("T", body, queue_id=number % 2)
    known = known_messages(path)
    end = max(one.phy_offset + len(one.record) for one in known)
    overwrite(log_files(path)[0], end, before[end:])
    return known, end


def known_behind(path, at):
    """The whole records that lie behind a physical offset, whether or not a queue has them."""
    found = []
    with rmqcore.open_store(path, mode="r") as store:
        while at < FILE_SIZE:
            message = store.message_at(at)
            if message is None:
                at += 1
            else:
                found.append(
                    Known("T", message.queue_id, message.queue_offset, at, bytes(message.record))
                )
                at += message.store_size
    return found


def test_the_log_ends_behind_what_was_put_last(store_path):
    path = store_path
    known, end = left_over(path, b"new" * 9)
    plan = doctor.plan(path)
    assert [(step.kind.value, step.start) for step in plan.steps[:1]] == [("cut-tail", end)]
    assert plan.lost == []
    assert doctor.repair(path, plan=plan).clean
    assert_found(path, known)
    with rmqcore.open_store(path) as store:
        assert store.max_phy_offset == end
        assert store.put("T", b"next", queue_id=1).queue_offset == CUT // 2 + 3


def test_older_records_whose_numbers_are_free_are_kept_without_queues(store_path):
    path = store_path
    known, end = left_over(path, b"new" * 99)
    shutil.rmtree(path / "consumequeue")
    plan = doctor.plan(path)
    assert [(step.kind.value, step.start) for step in plan.steps[:1]] == [("cover", end)]
    assert doctor.repair(path, plan=plan).clean
    assert_found(path, known)


def after_a_clock_step(path, *, made_again):
    """20 messages, the clock steps back by an hour, 40 more; all of them, as they were put.

    The queues lack the units of the 40, and the last record in front of these has rotted.
    """
    with rmqcore.open_store(path, config=SIZES) as store:
        for number in range(20):
            store.put("T", b"%d" % number * 20, queue_id=number % 2)
        if made_again:
            store.delete_topic("T")
        store.parts.files.tail.fixed_time_ms = wall_clock_ms() - 3_600_000
        for number in range(40):
            store.put("T", b"%d" % number * 20, queue_id=number % 2)
        offsets = []
        at = 0
        while (message := store.message_at(at)) is not None:
            offsets.append(at)
            at += message.store_size
    known = known_messages(path)[-40:] if made_again else known_messages(path)
    for queue_id in range(2):
        for file in sorted((path / "consumequeue" / "T" / str(queue_id)).iterdir()):
            first = 0 if made_again else 10
            overwrite(file, 20 * first, bytes(20 * (64 - first)))
    overwrite(log_files(path)[0], offsets[19] + 8, bytes(4))
    return [one for one in known if one.phy_offset != offsets[19]], offsets


@pytest.mark.parametrize("made_again", [False, True])
def test_a_clock_that_stepped_back_makes_no_record_a_stale_one(store_path, made_again):
    known, _ = after_a_clock_step(store_path, made_again=made_again)
    report = doctor.repair(store_path)
    assert report.clean
    assert len(known) == 40 if made_again else 59
    assert_found(store_path, known)


def test_a_log_that_a_queue_leads_into_behind_another_gap_was_not_cut(store_path):
    path = store_path
    known, end = left_over(path, b"new" * 9)
    stale = known_behind(path, end)
    one = stale[-1]
    overwrite(log_files(path)[0], stale[-2].phy_offset + 8, bytes(4))
    unit = one.phy_offset.to_bytes(8, "big") + len(one.record).to_bytes(4, "big") + bytes(8)
    queue = path / "consumequeue" / "T" / str(one.queue_id) / f"{0:020d}"
    overwrite(queue, 20 * one.queue_offset, unit)
    assert "cut-tail" not in {step.kind.value for step in doctor.plan(path).steps}
    doctor.repair(path)
    assert_found(path, [*known, one])


def assert_blank_is_said(path, lost, known, caplog):
    """By `verify`, `explain`, and an opening and its log, where others follow in the next file."""
    (said,) = [one for one in doctor.verify(path).findings if "end-of-file record" in one.what]
    assert (said.part, said.phy_offset) == ("log", lost.phy_offset)
    asked = {"topic": "T", "queue_id": lost.queue_id}
    told = doctor.explain(path, **asked, queue_offset=lost.queue_offset)
    assert "an end-of-file record stands in front of whole records here" in told.reason
    told = doctor.explain(path, **asked, queue_offset=lost.queue_offset + 1)
    assert told.found
    assert "behind an end-of-file record" in told.reason
    assert all(name in told.advice for name in ("doctor", "plan"))
    copy = path.with_name("opened")
    shutil.copytree(path, copy)
    with rmqcore.open_store(copy) as store:
        (finding,) = [one for one in store.recovery_report.findings if "end-of-file" in one]
    assert f"at {lost.phy_offset}: an end-of-file record stands in front of" in finding
    assert finding in caplog.text


@pytest.mark.parametrize("number", [0, -1])
def test_an_end_of_file_record_in_front_of_what_queues_lead_to_is_damage(
    store_path, number, caplog
):
    with rmqcore.open_store(store_path, config=SIZES) as store:
        for count in range(3 * CUT):
            store.put("T", b"%d" % count * 300, queue_id=count % 2)
    known = known_messages(store_path)
    file = [one for one in log_files(store_path) if one.read_bytes().strip(b"\0")][number]
    inside = [one for one in known if int(file.name) <= one.phy_offset < int(file.name) + FILE_SIZE]
    lost = sorted(inside, key=lambda one: one.phy_offset)[3]
    at = lost.phy_offset - int(file.name)
    overwrite(file, at, (FILE_SIZE - at).to_bytes(4, "big") + b"\xcb\xd4\x31\x94")
    before = digest_tree(store_path)
    found = [one for one in doctor.verify(store_path).findings if one.part == "consume queue"]
    assert found
    assert not any("rebuild" in one.how for one in found)
    if not number:
        assert_blank_is_said(store_path, lost, known, caplog)
    plan = doctor.plan(store_path)
    assert plan.steps[0].kind is doctor.StepKind.COVER
    assert [(one.queue_id, one.queue_offset) for one in plan.lost] == [
        (lost.queue_id, lost.queue_offset)
    ]
    assert doctor.repair(store_path, plan=plan).clean
    assert_found(store_path, [one for one in known if one != lost])
    doctor.undo(store_path)
    assert digest_tree(store_path) == before
