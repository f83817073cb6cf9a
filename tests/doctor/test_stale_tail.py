"""Whole records that RocketMQ left behind the place where it once cut the log are no messages."""

import shutil

import pytest
from doctor.damage import assert_found, known_messages, log_files, overwrite

import rmqcore
from rmqcore import doctor

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
