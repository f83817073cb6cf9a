"""A cut of the log sets progress back to what it takes the delivery of, and no further."""

import pytest

from rmqcore import open_store
from rmqcore.files.consume_queue import SCHEDULE_TOPIC
from rmqcore.files.delay_offset_table import DelayOffsetTable
from rmqcore.files.store_dir import StoreDir
from rmqcore.files.timer_check import TIMER_TOPIC, TimerCheck, TimerProgress
from rmqcore.ha.resync import Divergence, cut
from rmqcore.world import wall_clock_ms

pytestmark = pytest.mark.engine

BORN_MS = 1_600_000_000_000


def put_off(store, topic, body, tries=0, **properties):
    """A message that waits in a topic, or its copy."""
    properties = {"REAL_TOPIC": "T", "REAL_QID": "0", **properties}
    settings = {"born_timestamp_ms": BORN_MS, "reconsume_times": tries}
    return store.put(topic, body, properties=properties, **settings).phy_offset


def cut_at(path, at):
    with open_store(path, mode="r") as store:
        found = Divergence(0, at, store.max_phy_offset, False)
    cut(StoreDir(path), found)


def test_of_timer_messages_only_what_is_due_later_comes_again(tmp_path):
    """They are delivered in another order than they are put: the first may be the last."""
    due_ms = [BORN_MS + ms for ms in (9_000, 2_000, 4_000, 9_500, 3_000, 20_000)]
    with open_store(tmp_path) as store:
        for number, ms in enumerate(due_ms):
            slot = {"TIMER_OUT_MS": str((ms - 1) // 1000 * 1000), "TIMER_DELIVER_MS": str(ms)}
            put_off(store, TIMER_TOPIC, b"%d" % number, **slot)
        for number in (1, 4, 2):
            put_off(store, "T", b"%d" % number, TIMER_OUT_MS="1")
        at = put_off(store, "T", b"0", TIMER_OUT_MS="1")
        put_off(store, "T", b"3", TIMER_OUT_MS="1")
    check, ahead = TimerCheck(tmp_path / "config"), ((2, BORN_MS + 30_000, 0),)
    check.store(TimerProgress(5, 6, due_ms[5], 5, ahead), wall_clock_ms())
    cut_at(tmp_path, at)
    progress = check.load()
    delivered = [progress.has_delivered(ms, number) for number, ms in enumerate(due_ms)]
    assert delivered == [False, True, True, False, True, False]
    assert (progress.first_pending, progress.read_offset) == (0, 6)


def test_where_nothing_is_cut_off_that_was_put_off_progress_stays(tmp_path):
    with open_store(tmp_path) as store:
        put_off(store, TIMER_TOPIC, b"x", TIMER_DELIVER_MS=str(BORN_MS))
        put_off(store, "T", b"x", TIMER_OUT_MS="1")
        at = store.put("T", b"x", born_timestamp_ms=BORN_MS).phy_offset
    known = TimerProgress(1, 1, BORN_MS + 5000, 0)
    TimerCheck(tmp_path / "config").store(known, wall_clock_ms())
    cut_at(tmp_path, at)
    assert TimerCheck(tmp_path / "config").load() == known


def test_a_message_that_is_put_off_again_is_another(tmp_path):
    """As one that a consumer gives back time and again; what came in between has come."""
    delays = DelayOffsetTable(tmp_path / "config", clock=wall_clock_ms)
    with open_store(tmp_path) as store:
        for tries in (1, 2):
            put_off(store, SCHEDULE_TOPIC, b"x", tries)
            put_off(store, SCHEDULE_TOPIC, b"other %d" % tries)
        for tries in (1, 2):
            at = put_off(store, "T", b"x", tries)
            put_off(store, "T", b"other %d" % tries)
    delays.commit(1, 4)
    delays.persist()
    cut_at(tmp_path, at)
    assert DelayOffsetTable(tmp_path / "config", clock=wall_clock_ms).get(1) == 2
