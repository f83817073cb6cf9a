"""What is put off when a slave has to be the master: what waits comes, what came does not."""

import asyncio
import struct

import pytest
from broker.conftest import served
from broker.test_pop import handed_out, naming, pop
from ha.test_brokers import SMALL, asks_when_told, running  # noqa: F401 - a fixture
from patience import rounds, until_async

from rmqcore import open_store
from rmqcore.broker import Broker
from rmqcore.broker.replication.slave_synchronize import SlaveSynchronize
from rmqcore.broker.state.resets import Resets
from rmqcore.broker.timer.timer import TimerMessages
from rmqcore.client import Producer
from rmqcore.errors import StoreClosedError
from rmqcore.files.config_tables import TopicConfigTable
from rmqcore.files.consumer_offset_table import ConsumerOffsetTable
from rmqcore.files.delay_offset_table import DelayOffsetTable
from rmqcore.files.group_table import SubscriptionGroupTable
from rmqcore.files.request_mode_table import MessageRequestModeTable
from rmqcore.files.service_topics import HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_GROUP
from rmqcore.files.store_dir import StoreDir
from rmqcore.files.timer_check import TIMER_TOPIC, TimerCheck, TimerProgress
from rmqcore.ha.resync import Divergence, cut
from rmqcore.remoting import RequestCode, ResponseCode, failure, success
from rmqcore.world import wall_clock_ms

pytestmark = pytest.mark.engine

MASTER = "127.0.0.1:1"
TOLD = struct.pack(">7q", 61_000, 5, 7, 9, 0, 1, 1)


def tell_time(monkeypatch, clock_ms):
    """Let timer messages of every broker go by a clock of their own."""
    begun = TimerMessages.__init__

    def begin(messages, state, arrived):
        begun(messages, state, arrived)
        messages._clock_ms = clock_ms

    monkeypatch.setattr(TimerMessages, "__init__", begin)


@pytest.mark.parametrize(
    ("topic", "waits"),
    [("T", {"DELAY": "1"}), ("T", {"TIMER_DELAY_SEC": "1"}), ("%RETRY%CG_T", {})],
    ids=["delayed", "timer", "popped"],
)
def test_what_was_delivered_in_an_end_that_is_cut_off_comes_again(tmp_path, topic, waits):
    """No slave has to have what a master delivers; one may take its place without."""

    def serving():
        return served(tmp_path, **SMALL, messageDelayLevel="1s")

    async def has_come(peer):
        store = peer.broker.store
        await until_async(lambda: [m.body for m in store.messages(topic)] == [b"x"], "it has come")

    async def first():
        async with serving() as (_, peer):
            assert (await peer.send("T", b"x", properties=waits)).code == ResponseCode.SUCCESS
            if not waits:
                assert handed_out(await pop(peer, count=1, queue_id=0, invisibleTime=1000))
            await has_come(peer)

    async def again():
        async with serving() as (_, peer):
            await has_come(peer)

    asyncio.run(first())
    with open_store(tmp_path, mode="r") as store:
        copy = next(m for m in store.messages() if m.topic == topic)
        found = Divergence(0, copy.phy_offset, store.max_phy_offset, False)
    cut(StoreDir(tmp_path), found)
    with open_store(tmp_path, broker_role="SLAVE", on_corruption="truncate"):
        pass
    asyncio.run(again())


@pytest.mark.parametrize("stored_anew", ["its time was changed", "the cluster was"])
def test_what_pop_had_handed_out_before_an_end_that_is_cut_off_comes_again(tmp_path, stored_anew):
    """A record of it in the end took the place of the one before."""
    by_cluster = stored_anew == "the cluster was"
    again_in = "Other" if by_cluster else "DefaultCluster"

    def serving(cluster):
        return served(tmp_path, **SMALL, brokerClusterName=cluster)

    async def first():
        async with serving("DefaultCluster") as (_, peer):
            assert (await peer.send("T", b"x")).code == ResponseCode.SUCCESS
            ((message, receipt),) = handed_out(
                await pop(peer, count=1, queue_id=0, invisibleTime=1000)
            )
            if not by_cluster:
                fields = {**naming(message, receipt), "invisibleTime": 1000}
                changed = await peer.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, fields)
                assert changed.code == ResponseCode.SUCCESS

    async def again():
        async with serving(again_in) as (_, peer):
            store = peer.broker.store
            await until_async(lambda: list(store.messages("%RETRY%CG_T")), "it has come")

    asyncio.run(first())
    if by_cluster:

        async def renamed():
            async with serving("Other"):
                pass

        asyncio.run(renamed())
    topic = f"rmq_sys_REVIVE_LOG_{again_in}"
    with open_store(tmp_path, mode="r") as store:
        known = list(store.messages(topic))
        anew = known[0 if by_cluster else 1]
        assert anew.tags == "ck"
        found = Divergence(0, anew.phy_offset, store.max_phy_offset, False)
    cut(StoreDir(tmp_path), found)
    with open_store(tmp_path, broker_role="SLAVE", on_corruption="truncate"):
        pass
    asyncio.run(again())


def test_what_was_decided_in_an_end_that_is_cut_off_is_asked_for_again(tmp_path):
    with open_store(tmp_path) as store:
        for topic in (HALF_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, "T"):
            store.put(topic, b"x")
        at = store.get_message(OP_HALF_TOPIC, 0, 0).messages[0].phy_offset
        for topic, offset in ((HALF_TOPIC, 2), (OP_HALF_TOPIC, 1)):
            store.consumer_offsets.commit(topic, TRANSACTION_GROUP, 0, offset)
        store.consumer_offsets.commit("T", "CG", 0, 1)
        found = Divergence(0, at, store.max_phy_offset, False)
    cut(StoreDir(tmp_path), found)
    offsets = ConsumerOffsetTable(tmp_path / "config", clock=wall_clock_ms)
    for topic in (HALF_TOPIC, OP_HALF_TOPIC):
        assert offsets.get(topic, TRANSACTION_GROUP, 0) == 0
    assert offsets.get("T", "CG", 0) == 1


@pytest.mark.usefixtures("asks_when_told")
def test_a_slave_that_is_made_master_delivers_what_waits_and_nothing_twice(tmp_path, monkeypatch):
    check, ahead_ms = TimerCheck(tmp_path / "s" / "config"), 0

    def clock_ms():
        return wall_clock_ms() + ahead_ms

    tell_time(monkeypatch, clock_ms)

    async def as_pair():
        nonlocal ahead_ms
        async with running(tmp_path) as pair, Producer(pair.namesrv) as producer:
            soon_ms = clock_ms() + 600_000
            due_ms = soon_ms + 3_600_000
            for body, deliver_ms in ((b"soon", soon_ms), (b"later", due_ms)):
                at = {"TIMER_DELIVER_MS": str(deliver_ms)}
                await producer.send("T", body, properties=at)
            ahead_ms += soon_ms - clock_ms()
            store = pair.master.store
            await until_async(
                lambda: [m.body for m in store.messages("T")] == [b"soon"], "the first has come"
            )
            own = TimerCheck(tmp_path / "m" / "config")
            await until_async(
                lambda: own.load() and own.load().first_pending == 1, "the master keeps that"
            )
            await pair.in_step()
            # what was delivered is told by the second
            ahead_ms += 1000
            await until_async(pair.slave.replication._synchronize._has_all, "the slave is in step")
            await pair.synchronize()
            told = check.load()
            assert (told.first_pending, told.read_offset, told.due_offset) == (1, 2, 0)
            assert soon_ms < told.due_ms <= clock_ms()
            return due_ms

    async def alone(due_ms):
        nonlocal ahead_ms
        broker = Broker(tmp_path / "s", SMALL)
        await broker.start()
        try:
            await until_async(lambda: check.load().first_pending > 0, "it knows what was delivered")
            assert [m.body for m in broker.store.messages("T")] == [b"soon"]
            ahead_ms += due_ms - clock_ms()
            await until_async(
                lambda: len(list(broker.store.messages("T"))) == 2, "the second has come"
            )
            assert [m.body for m in broker.store.messages("T")] == [b"soon", b"later"]
            assert len(list(broker.store.messages(TIMER_TOPIC))) == 2
        finally:
            await broker.stop()

    due_ms = asyncio.run(as_pair())
    asyncio.run(alone(due_ms))
    assert clock_ms() >= due_ms


def synchronized(folder, answer, log_end, flush=lambda: None):
    """A slave with this much of its master's 4096 bytes of log has asked once; its file."""

    class Client:
        async def invoke(self, _, request, __):
            if request.code == RequestCode.GET_TIMER_CHECK_POINT:
                return answer
            if request.code == RequestCode.GET_BROKER_RUNTIME_INFO:
                log = b'{"table":{"commitLogMinOffset":"0","commitLogMaxOffset":"4096"}}'
                return success(body=log)
            if request.code == RequestCode.GET_ALL_DELAY_OFFSET:
                return success(body=b'{"offsetTable":{"1":5}}')
            if request.code == RequestCode.GET_ALL_MESSAGE_REQUEST_MODE:
                return failure(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "4.9 has none")
            return success(body=b"{}")

    kinds = (
        TopicConfigTable,
        ConsumerOffsetTable,
        SubscriptionGroupTable,
        MessageRequestModeTable,
    )
    tables = [kind(folder, clock=wall_clock_ms) for kind in kinds]
    slave = SlaveSynchronize(
        Client(),
        lambda: MASTER,
        *tables,
        folder,
        log_end=lambda: log_end,
        flush=flush,
        topics_changed=lambda: None,
        agrees=lambda: True,
        witness=lambda: None,
        queue_end=lambda _, __: 1000,
        follow_deletion=lambda _, __: True,
        has_messages=lambda _, __: True,
        resets=Resets(folder),
        clock_ms=wall_clock_ms,
    )
    assert asyncio.run(slave.synchronize())
    assert slave.problem() is None
    return TimerCheck(folder)


def test_a_slave_keeps_it_as_a_broker_without_a_wheel(tmp_path):
    """One of RocketMQ that opens the store believes its own numbers, and delivers all again."""
    check = synchronized(tmp_path, success(body=TOLD), 4096)
    assert check.load() == TimerProgress(0, 7, 61_001, 0)
    assert struct.unpack_from(">4q", check.path.read_bytes()) == (0, 0, 0, 0)


def test_what_was_delivered_counts_when_it_is_in_the_slaves_log(tmp_path):
    def delayed():
        return DelayOffsetTable(tmp_path, clock=wall_clock_ms).get(1)

    assert synchronized(tmp_path, success(body=TOLD), 4095).load() is None
    assert not delayed()
    assert synchronized(tmp_path, success(body=TOLD), 4096).load() is not None
    assert delayed() == 5


def test_the_log_is_on_the_disk_before_what_was_delivered_counts(tmp_path):
    """A power cut between the two would take what neither the master nor this store has then."""
    delays, written = tmp_path / DelayOffsetTable.file_name, []
    check = TimerCheck(tmp_path)

    def flush():
        written.append((delays.exists(), check.path.exists()))

    synchronized(tmp_path, success(body=TOLD), 4096, flush)
    assert delays.exists()
    assert check.path.exists()
    assert written == [(False, False)]


@pytest.mark.parametrize("error", [OSError(5, "no"), StoreClosedError("closed")])
def test_a_flush_that_fails_is_tried_again(tmp_path, error):
    def flush():
        raise error

    assert synchronized(tmp_path, success(body=TOLD), 4096, flush).load() is None
    assert not DelayOffsetTable(tmp_path, clock=wall_clock_ms).get(1)


@pytest.mark.parametrize(
    "answer",
    [
        failure(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "of 4.9"),
        failure(ResponseCode.SYSTEM_ERROR, "The checkpoint is null"),
        success(body=b"none"),
        success(body=b"\xff" * 56),
    ],
)
def test_a_master_without_a_timer_changes_nothing(tmp_path, answer):
    before = TimerProgress(1, 2, 3, 4)
    TimerCheck(tmp_path).store(before, wall_clock_ms())
    assert synchronized(tmp_path, answer, 4096).load() == before


@pytest.mark.usefixtures("asks_when_told")
@pytest.mark.parametrize(
    "later",
    [
        {},
        {"delay_level": 18},
        {"properties": {"TIMER_DELAY_SEC": "3600"}},
        {"properties": {"TRAN_MSG": "true", "PGROUP": "PG"}},
    ],
)
def test_a_slave_keeps_its_log_as_long_as_its_master_has_to_deliver_of_it(tmp_path, rng, later):
    """It would have nothing to deliver when it is made master."""
    settings = {"retention_bytes": 1 << 20, "cleanResourceInterval": 50}
    first = tmp_path / "s" / "commitlog" / f"{0:020}"

    async def scenario():
        async with running(tmp_path, **settings) as pair, Producer(pair.namesrv) as producer:
            await producer.send("T", b"x", **later)
            for _ in range(40):
                await producer.send("Filling", rng.randbytes(100_000))
            await pair.in_step()
            await pair.synchronize()
            master, slave = pair.master.store.parts.upkeep, pair.slave.store.parts.upkeep
            if not later:
                await until_async(lambda: not first.exists(), "the first file is deleted")
            await asyncio.to_thread(pair.slave.store.flush)
            await asyncio.to_thread(rounds, slave.retention, 3)
            assert first.exists() == bool(later)
            assert slave.oldest_parked() == master.oldest_parked() == (0 if later else None)

    asyncio.run(scenario())
