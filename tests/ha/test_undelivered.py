"""A cut of the log sets progress back to what it takes the delivery of, and no further."""

import asyncio
import tracemalloc

import pytest
from broker.conftest import served
from broker.test_pop import handed_out, naming, pop
from ha.test_brokers import SMALL

from rmqcore import open_store
from rmqcore.errors import CorruptStoreError
from rmqcore.files.consume_queue import SCHEDULE_TOPIC
from rmqcore.files.consumer_offset_table import ConsumerOffsetTable
from rmqcore.files.delay_offset_table import DelayOffsetTable
from rmqcore.files.store_dir import StoreDir
from rmqcore.files.timer_check import TIMER_TOPIC, TimerCheck, TimerProgress
from rmqcore.ha.resync import Divergence, cut, damage_in
from rmqcore.remoting import RequestCode, ResponseCode
from rmqcore.world import wall_clock_ms

pytestmark = pytest.mark.engine

BORN_MS = 1_600_000_000_000
REVIVE = "rmq_sys_REVIVE_LOG_DefaultCluster"


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


def test_what_takes_the_place_of_a_message_that_is_cut_off_counts_as_delivered_no_more(tmp_path):
    """Delivered without a copy: its topic was deleted before."""
    progress = TimerProgress(0, 2, BORN_MS, 0)
    delays = DelayOffsetTable(tmp_path / "config", clock=wall_clock_ms)
    with open_store(tmp_path) as store:
        for topic in (TIMER_TOPIC, SCHEDULE_TOPIC):
            put_off(store, topic, b"stays")
        at = store.max_phy_offset
        for topic in (TIMER_TOPIC, SCHEDULE_TOPIC):
            put_off(store, topic, b"goes")
    TimerCheck(tmp_path / "config").store(progress, 1)
    delays.commit(1, 2)
    delays.persist()
    cut_at(tmp_path, at)
    assert TimerCheck(tmp_path / "config").load() == TimerProgress(0, 1, BORN_MS, 0)
    assert DelayOffsetTable(tmp_path / "config", clock=wall_clock_ms).get(1) == 1


def test_what_was_delivered_behind_damage_comes_again_after_a_power_cut(tmp_path):
    """Nothing but the log says that there was something: the queues have lost their ends, too."""
    delays = DelayOffsetTable(tmp_path / "config", clock=wall_clock_ms)
    with open_store(tmp_path) as store:
        put_off(store, SCHEDULE_TOPIC, b"x")
        at = store.put("T", b"damaged").phy_offset
        put_off(store, "T", b"x")
    delays.commit(1, 1)
    delays.persist()
    (log,) = (tmp_path / "commitlog").iterdir()
    log.write_bytes(log.read_bytes().replace(b"damaged", b"DAMAGED"))
    for queue in (tmp_path / "consumequeue").rglob("0" * 20):
        queue.write_bytes(bytes(queue.stat().st_size))
    (tmp_path / "abort").touch()
    with pytest.raises(CorruptStoreError) as raised, open_store(tmp_path):
        pass
    found = damage_in(StoreDir(tmp_path), raised.value)
    assert found.common_end == at
    cut(StoreDir(tmp_path), found)
    assert DelayOffsetTable(tmp_path / "config", clock=wall_clock_ms).get(1) == 0


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


@pytest.mark.parametrize("most", [16, 0], ids=["again", "dead"])
def test_a_group_goes_on_at_what_it_has_given_back_in_an_end_that_is_cut_off(tmp_path, most):
    """It is nowhere else any more, and nobody has handled it."""

    async def scenario():
        async with served(tmp_path, **SMALL) as (broker, peer):
            for body in (b"handled", b"given back", b"handled, too"):
                await peer.send("T", body)
            store = broker.store
            given = next(m for m in store.messages("T") if m.body == b"given back")
            end = store.max_phy_offset
            fields = {"group": "CG", "offset": given.phy_offset, "delayLevel": 1}
            fields["maxReconsumeTimes"] = most
            answer = await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields)
            assert answer.code == ResponseCode.SUCCESS
            for group in ("CG", "Other"):
                broker.managers.offsets.commit(group, "T", 0, 3)
            return end

    cut_at(tmp_path, asyncio.run(scenario()))
    offsets = ConsumerOffsetTable(tmp_path / "config", clock=wall_clock_ms)
    assert offsets.get("T", "CG", 0) == 1
    assert offsets.get("T", "Other", 0) == 3


def test_what_a_group_gives_back_again_is_looked_for_where_it_has_come_again(tmp_path):
    retry = "%RETRY%CG"
    with open_store(tmp_path) as store:
        origin = store.put("T", b"x", born_timestamp_ms=BORN_MS).message_id
        for tries in (1, 2):
            put_off(store, retry, b"x", tries, REAL_TOPIC=retry, ORIGIN_MESSAGE_ID=origin)
        at = put_off(store, SCHEDULE_TOPIC, b"x", 3, REAL_TOPIC=retry, ORIGIN_MESSAGE_ID=origin)
        for topic, offset in (("T", 1), (retry, 2)):
            store.consumer_offsets.commit(topic, "CG", 0, offset)
    cut_at(tmp_path, at)
    offsets = ConsumerOffsetTable(tmp_path / "config", clock=wall_clock_ms)
    assert (offsets.get("T", "CG", 0), offsets.get(retry, "CG", 0)) == (1, 1)


def test_what_has_come_again_is_looked_at_one_by_one(tmp_path):
    """A retry topic may have more than there is memory for."""
    retry, count, size = "%RETRY%CG", 10_000, 2000
    with open_store(tmp_path) as store:
        for number in range(count):
            put_off(store, retry, bytes(size), 1, ORIGIN_MESSAGE_ID=f"{number}")
        at = put_off(store, retry, bytes(size), 2)
        store.consumer_offsets.commit(retry, "CG", 0, count)
    tracemalloc.start()
    try:
        cut_at(tmp_path, at)
        assert tracemalloc.get_traced_memory()[1] < count * size / 2
    finally:
        tracemalloc.stop()
    assert ConsumerOffsetTable(tmp_path / "config", clock=wall_clock_ms).get(retry, "CG", 0) == 0


@pytest.mark.parametrize("changed", [False, True], ids=["popped", "changed"])
def test_a_group_goes_on_at_what_an_end_that_is_cut_off_says_that_it_has_popped(tmp_path, changed):
    """But not where only the time was changed: the note before it is there, and counts again."""

    async def scenario(work):
        async with served(tmp_path, **SMALL) as (_, peer):
            return await work(peer)

    async def first(peer):
        for body in (b"a", b"b", b"c"):
            await peer.send("T", body)
        for _ in range(2):
            ((message, receipt),) = handed_out(await pop(peer, count=1, queue_id=0))
        if changed:
            fields = {**naming(message, receipt), "invisibleTime": 60_000}
            answer = await peer.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, fields)
            assert answer.code == ResponseCode.SUCCESS
        notes = [m for m in peer.broker.store.messages(REVIVE) if m.tags == "ck"]
        assert len(notes) == 2 + changed
        return notes[-1].phy_offset

    async def again(peer):
        return [message.body for message, _ in handed_out(await pop(peer, queue_id=0))]

    cut_at(tmp_path, asyncio.run(scenario(first)))
    with open_store(tmp_path, broker_role="SLAVE", on_corruption="truncate"):
        pass
    assert asyncio.run(scenario(again)) == ([b"c"] if changed else [b"b", b"c"])
