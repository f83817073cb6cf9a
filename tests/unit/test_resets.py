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
