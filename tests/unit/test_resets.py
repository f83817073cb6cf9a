"""`Resets`: what a master tells its slaves of groups that have to go on elsewhere."""

import pytest

from rmqcore.broker.state.resets import Resets
from rmqcore.java.json import format_compact_java_json
from rmqcore.remoting.codec import DEFAULT_LIMITS

pytestmark = pytest.mark.logic


def test_queues_without_number_leave_room_for_the_offsets_in_an_answer(tmp_path):
    """An answer that is larger than a frame is taken by no slave, with all offsets in it."""
    resets = Resets(tmp_path)
    light = {(f"%LMQ%{number:0100}", 0): number for number in range(200_000)}
    resets.take_over({}, light | {("T", queue_id): 7 for queue_id in range(8)})
    told = resets.told()
    size = len(format_compact_java_json(told))
    assert size < DEFAULT_LIMITS.frame_size // 2
    slaves = Resets(tmp_path / "slave")
    slaves.adopt(told)
    assert all(slaves.unknown_groups["", "T", queue_id] == 7 for queue_id in range(8))
    assert len(slaves.unknown_groups) > 20_000
    # here all of them count
    assert len(resets.unknown_groups) == 200_008


def test_what_a_slave_kept_of_before_is_done_with_what_its_master_tells(tmp_path):
    """It was a master itself, or was told so before it was started again."""
    before = Resets(tmp_path)
    before.adopt({"readersToReset": {"T": {"CG": {0: 0}, "Other": {0: 7}}}})
    before.persist_told()
    slaves = Resets(tmp_path)
    slaves.follow(0)
    slaves.adopt({})
    slaves.persist_told()
    promoted = Resets(tmp_path)
    promoted.bring_back({("CG", "T", 0): None, ("Other", "T", 0): 7}.get)
    assert not promoted


def test_what_a_slave_was_told_counts_until_it_is_told_again(tmp_path):
    before = Resets(tmp_path)
    before.adopt({"readersToReset": {"T": {"CG": {0: 0}}}})
    before.persist_told()
    slaves = Resets(tmp_path)
    slaves.follow(0)
    slaves.persist_told()
    promoted = Resets(tmp_path)
    promoted.bring_back(lambda _: None)
    assert promoted == {("CG", "T", 0): 0}


def test_a_broker_that_crashes_for_ever_keeps_a_number_of_queues_that_are_gone(
    tmp_path, monkeypatch
):
    """Its programs make topics, and delete them: what their groups may have read is kept."""
    monkeypatch.setattr("rmqcore.broker.state.resets._GONE_MAX", 15)
    sizes = []
    for crash in range(6):
        resets = Resets(tmp_path)
        jobs = {(f"Job{crash}", queue_id): 7 for queue_id in range(10)}
        resets.take_over({}, jobs | {("T", 0): 7})
        resets.forget_topic(f"Job{crash}")
        resets.persist_told()
        sizes.append(len(resets.unknown_groups))
        assert resets.unknown_groups["", "T", 0] == 7
        assert resets.unknown_groups["", f"Job{crash}", 9] == 0
    assert sizes[1] < sizes[2] == sizes[3] == sizes[5]
