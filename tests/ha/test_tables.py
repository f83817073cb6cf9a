"""What a slave takes over of its master's tables: nothing from one whose log is not this one."""

import asyncio
import dataclasses
import shutil
import threading
from contextlib import AsyncExitStack

import pytest
from broker.test_pop import handed_out, naming
from ha.test_brokers import SMALL, Pair, asks_when_told, running  # noqa: F401 - a fixture
from ha.test_timers import MASTER, TOLD
from patience import TIMEOUT_S, until_async

from rmqcore.broker import Broker
from rmqcore.broker.replication import slave_synchronize
from rmqcore.broker.replication.slave_synchronize import SlaveSynchronize
from rmqcore.broker.state import offsets
from rmqcore.broker.state.resets import Resets
from rmqcore.client import Producer
from rmqcore.files.config_tables import TopicConfig, TopicConfigTable
from rmqcore.files.consumer_offset_table import ConsumerOffsetTable
from rmqcore.files.delay_offset_table import DelayOffsetTable
from rmqcore.files.group_table import SubscriptionGroupTable
from rmqcore.files.request_mode_table import POP, PULL, MessageRequestModeTable
from rmqcore.files.service_topics import HALF_TOPIC, OP_HALF_TOPIC
from rmqcore.files.timer_check import TimerCheck, TimerProgress
from rmqcore.ha import HAClient
from rmqcore.remoting import RemotingClosedError, RequestCode, ResponseCode, success
from rmqcore.world import wall_clock_ms

pytestmark = pytest.mark.engine

COMMIT, ROLLBACK = 8, 12

KINDS = (TopicConfigTable, ConsumerOffsetTable, SubscriptionGroupTable, MessageRequestModeTable)
ANSWERS = {
    RequestCode.GET_ALL_TOPIC_CONFIG: (
        b'{"topicConfigTable":{"Theirs":{"perm":6}},"deletedTopics":{"Gone":100}}'
    ),
    RequestCode.GET_ALL_CONSUMER_OFFSET: b'{"offsetTable":{"Theirs@G":{0:5}}}',
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: (
        b'{"subscriptionGroupTable":{"G":{"retryMaxTimes":3}}}'
    ),
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: (
        b'{"messageRequestModeMap":{"T":{"G":{"mode":"POP","popShareQueueNum":2}}}}'
    ),
    RequestCode.GET_ALL_DELAY_OFFSET: b'{"offsetTable":{"1":5,"2":50}}',
    RequestCode.GET_TIMER_CHECK_POINT: TOLD,
    RequestCode.GET_BROKER_RUNTIME_INFO: (
        b'{"table":{"commitLogMinOffset":"0","commitLogMaxOffset":"4096"}}'
    ),
}


class Slave:
    """A slave's tables, and a master of 4096 bytes that answers `ANSWERS`."""

    def __init__(self, folder, log_end=4096, delete=None):
        self.asked, self.deleted, self.agrees = [], {}, True
        self.after = lambda _code: None
        self.tables = [kind(folder, clock=wall_clock_ms) for kind in KINDS]
        self.topics, self.offsets, self.groups, self.modes = self.tables
        self.folder = folder
        self._synchronize = SlaveSynchronize(
            self,
            lambda: MASTER,
            *self.tables,
            folder,
            agrees=lambda: self.agrees,
            witness=lambda: None,
            log_end=lambda: log_end,
            queue_end=lambda topic, _: 6 if topic.startswith("rmq_sys") else 9,
            flush=lambda: None,
            follow_deletion=delete or self.delete,
            has_messages=lambda topic, behind: topic.startswith("Full") and behind < 100,
            topics_changed=lambda: None,
            resets=Resets(folder),
            clock_ms=wall_clock_ms,
        )
        self.synchronize, self.problem = self._synchronize.synchronize, self._synchronize.problem
        self.pending = self._synchronize.pending

    def delete(self, topic, phy_offset):
        return self.deleted.setdefault(topic, phy_offset) == phy_offset

    async def invoke(self, _, request, __):
        self.asked.append(request.code)
        self.after(request.code)
        return success(body=ANSWERS[RequestCode(request.code)])

    @property
    def taken(self):
        """What was taken over, of all there is."""
        delays = DelayOffsetTable(self.folder, clock=wall_clock_ms)
        found = {
            "topics": self.topics.get("Theirs"),
            "offsets": self.offsets.get("Theirs", "G", 0),
            "groups": self.groups.get("G"),
            "modes": self.modes.get("T", "G") == (POP, 2),
            "delays": delays.levels(),
            "timer": TimerCheck(self.folder).load(),
            "deletions": self.deleted,
        }
        return {name for name, value in found.items() if value}


ALL = {"topics", "offsets", "groups", "modes", "delays", "timer", "deletions"}


def test_nothing_is_taken_from_who_is_a_slave_itself(tmp_path, monkeypatch):
    """It was the master before; the new one may not know what it has deleted."""
    told = b'{"table":{"commitLogMinOffset":"0","commitLogMaxOffset":"4096","brokerRole":"%s"}}'
    slave = Slave(tmp_path)
    for role, taken in (b"SLAVE", set()), (b"ASYNC_MASTER", ALL):
        monkeypatch.setitem(ANSWERS, RequestCode.GET_BROKER_RUNTIME_INFO, told % role)
        assert asyncio.run(slave.synchronize()) is bool(taken)
        assert slave.taken == taken
        assert ("slave itself" in (slave.problem() or "")) is not bool(taken)


def test_all_is_taken_from_the_master_whose_log_it_is(tmp_path):
    slave = Slave(tmp_path)
    assert asyncio.run(slave.synchronize())
    assert slave.taken == ALL


def test_nothing_is_taken_as_long_as_the_logs_are_not_known_to_agree(tmp_path):
    slave = Slave(tmp_path)
    slave.agrees = False
    assert not asyncio.run(slave.synchronize())
    assert slave.taken == set()


def test_nothing_is_taken_from_one_whose_log_is_shorter(tmp_path):
    """It has been begun anew, and the connection to the one before is not known to be gone."""
    slave = Slave(tmp_path, log_end=4097)
    assert not asyncio.run(slave.synchronize())
    assert slave.taken == set()


@pytest.mark.parametrize("code", list(ANSWERS))
def test_an_answer_counts_as_long_as_the_connection_holds_that_has_compared(tmp_path, code):
    slave = Slave(tmp_path)

    def lose(asked):
        slave.agrees &= asked != code

    slave.after = lose
    assert not asyncio.run(slave.synchronize())
    missing = ALL - slave.taken
    assert {"delays", "timer"} <= missing
    assert (missing == ALL) == (code in slave.asked[:2])


@pytest.mark.parametrize("code", list(ANSWERS))
def test_an_answer_that_comes_is_no_problem_though_the_log_has_to_catch_up(
    tmp_path, monkeypatch, code
):
    """How far groups are waits for the log, for hours where there is much of it."""
    monkeypatch.setattr(slave_synchronize, "_CATCH_UP_S", 0)
    slave = Slave(tmp_path, log_end=4095)

    def hang_up(asked):
        if asked == code:
            raise RemotingClosedError(MASTER)

    slave.after = hang_up
    asyncio.run(slave.synchronize())
    # a master without a timer has nothing to tell of one
    told = code is not RequestCode.GET_TIMER_CHECK_POINT
    assert (slave.problem() is not None) == told
    assert code.name in (slave.problem() or code.name)
    slave.after = lambda _code: None
    asyncio.run(slave.synchronize())
    assert slave.problem() is None
    assert "offsets" not in slave.taken


def test_an_answer_that_is_no_table_is_a_problem_for_as_long_as_it_comes(tmp_path, monkeypatch):
    code = RequestCode.GET_ALL_TOPIC_CONFIG
    monkeypatch.setitem(ANSWERS, code, b"no table")
    slave = Slave(tmp_path)
    for _ in range(2):
        assert not asyncio.run(slave.synchronize())
        assert code.name in slave.problem()
    monkeypatch.undo()
    assert asyncio.run(slave.synchronize())
    assert slave.problem() is None


def test_deliveries_behind_the_end_of_a_queue_are_not_taken(tmp_path):
    slave = Slave(tmp_path)
    assert asyncio.run(slave.synchronize())
    assert DelayOffsetTable(tmp_path, clock=wall_clock_ms).levels() == {1: 5, 2: 9}
    assert TimerCheck(tmp_path).load() == TimerProgress(0, 6, 61_001, 0)


def test_a_deletion_that_has_begun_is_at_its_end_when_the_slave_has_stopped(tmp_path):
    """The store is closed then."""
    begun, goes_on, ended = threading.Event(), threading.Event(), []

    def delete(topic, _):
        begun.set()
        goes_on.wait(TIMEOUT_S)
        ended.append(topic)
        return True

    slave = Slave(tmp_path, delete=delete)

    async def scenario():
        asking = asyncio.create_task(slave.synchronize())
        await until_async(begun.is_set, "it deletes")
        asking.cancel()
        for _ in range(3):
            await asyncio.sleep(0)
        assert not asking.done()
        goes_on.set()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert ended == ["Gone"]

    asyncio.run(scenario())


def test_what_came_behind_a_deletion_keeps_a_topic_that_its_master_has_lost(tmp_path, monkeypatch):
    told = b'{"topicConfigTable":{"Theirs":{}},"deletedTopics":{"FullAgain":99,"FullGone":100}}'
    monkeypatch.setitem(ANSWERS, RequestCode.GET_ALL_TOPIC_CONFIG, told)
    slave = Slave(tmp_path)
    for name in ("Full", "FullAgain", "FullGone", "Empty"):
        slave.topics.put(TopicConfig(topic_name=name))
    assert asyncio.run(slave.synchronize())
    assert {topic.topic_name for topic in slave.topics} == {"Full", "FullAgain", "Theirs"}


def test_a_group_that_has_offsets_stays_when_its_master_has_lost_it(tmp_path):
    """With what is forbidden to it, and with its modes; one that has none is gone."""
    slave = Slave(tmp_path)
    for group in ("Mine", "Idle"):
        slave.groups.put(group, {"retryMaxTimes": 5})
        slave.groups.set_readable(group, "Secret", readable=False)
        slave.modes.put("T", group, POP, 1)
        slave.modes.put(f"Of{group}", group, POP, 1)
    slave.offsets.commit("T", "Mine", 0, 7)
    assert asyncio.run(slave.synchronize())
    assert slave.groups.names() == ["G", "Mine"]
    assert not slave.groups.may_read("Mine", "Secret")
    assert slave.groups.may_read("Idle", "Secret")
    assert [slave.modes.get("T", group)[0] for group in ("G", "Mine", "Idle")] == [POP, POP, PULL]
    assert [slave.modes.get(f"Of{group}", group)[0] for group in ("Mine", "Idle")] == [POP, PULL]
    # what its master forgets with its offsets is forgotten
    slave.offsets.remove(group="Mine")
    assert asyncio.run(slave.synchronize())
    assert slave.groups.names() == ["G"]
    assert slave.modes.get("T", "Mine")[0] == PULL


# ---- two brokers


def tables_of(broker):
    """A copy of what can be taken over of a master's tables."""
    managers, store = broker.managers, broker.store
    return [
        {topic.topic_name for topic in store.topics},
        {pair: store.consumer_offsets.queues(*pair) for pair in store.consumer_offsets.pairs()},
        managers.groups.table.names(),
        managers.modes.table.to_text(),
        DelayOffsetTable(managers.folder, clock=wall_clock_ms).levels(),
        TimerCheck(managers.folder).load(),
    ]


async def fill(pair):
    client = pair.slave.replication.client
    client._config = dataclasses.replace(client._config, ha_retry_interval=10)
    async with Producer(pair.namesrv) as producer:
        for number in range(20):
            await producer.send("Orders", b"%d" % number, queue_id=0)
        await producer.send("Orders", b"later", delay_level=1)
    store = pair.master.store
    store.consumer_offsets.commit("Orders", "billing", 0, 7)
    pair.master.managers.groups.put("billing", {"retryMaxTimes": 3})
    await pair.master.managers.modes.put("Orders", "billing", POP, 2)
    await until_async(lambda: store.delay_offsets().get(1), "it was delivered")


@pytest.mark.usefixtures("asks_when_told")
@pytest.mark.parametrize("again", ["empty", "other"])
def test_a_master_that_has_lost_its_log_wipes_nothing(tmp_path, again):
    async def scenario():
        async with running(tmp_path) as pair:
            await fill(pair)
            await pair.in_step()
            await pair.synchronize()
            before = tables_of(pair.slave)
            assert {"Orders"} <= before[0]
            assert before[1:3] == [{("Orders", "billing"): {0: 7}}, before[2]]
            await pair.master.stop()
            shutil.rmtree(tmp_path / "m")
            pair.master = Pair(tmp_path, pair.namesrv, {}).master
            await pair.master.start()
            # hears of its address
            pair.slave.replication._registration.topics_changed()
            if again == "other":
                for number in range(100):
                    pair.master.store.put("Other", b"%d" % number * 200, durability="page_cache")
                pair.master.managers.groups.put("other", {})
            client = pair.slave.replication.client
            where = f":{pair.master.replication.service.port}"
            await until_async(
                lambda: client.master_address.endswith(where) and client.problem,
                "the slave refuses the log",
            )
            assert not await pair.slave.replication._synchronize.synchronize()
            assert tables_of(pair.slave) == before

    asyncio.run(scenario())


@pytest.mark.usefixtures("asks_when_told")
@pytest.mark.parametrize("away", [False, True])
def test_a_master_that_has_lost_its_tables_takes_none_away(tmp_path, away):
    """Its log is whole, so the slave follows; what it makes anew comes, the rest stays.

    Also when the slave first sees the new tables when they have outgrown the lost ones.
    """

    async def scenario():
        async with running(tmp_path) as pair:
            await fill(pair)
            await pair.in_step()
            for number in range(3):
                # a version is counted when the table is written
                pair.master.managers.groups.put("billing", {"retryMaxTimes": number})
                pair.master.managers.groups.table.persist()
            # a group that has consumed nothing
            pair.master.managers.groups.put("idle", {"retryMaxTimes": 3})
            await pair.master.managers.modes.put("Orders", "idle", POP, 2)
            await pair.synchronize()
            before = tables_of(pair.slave)
            assert '"idle"' in before[3]
            await pair.master.stop()
            lost = ["topics.json", "subscriptionGroup.json", "messageRequestMode.json"]
            for name in [*lost, "consumerOffset.json"] if away else lost:
                for file in (tmp_path / "m" / "config").glob(name + "*"):
                    file.unlink()
            pair.master = Pair(tmp_path, pair.namesrv, {}).master
            await pair.master.start()
            # hears of its address
            pair.slave.replication._registration.topics_changed()
            pair.master.store.topics.put(TopicConfig(topic_name="New"))
            await until_async(
                lambda: pair.slave.replication.client.agrees, "the slave follows it again"
            )
            if not away:
                await pair.synchronize()
                after = tables_of(pair.slave)
                assert after[0] == {*before[0], "New"}
                assert after[1:5] == before[1:5]
            # the new tables grow older than the lost ones were
            for number in range(9):
                pair.master.managers.groups.put("new", {"retryMaxTimes": number})
                pair.master.managers.groups.table.persist()
                pair.master.store.topics.put(TopicConfig(topic_name="New", perm=number % 8))
                pair.master.store.topics.persist()
                pair.master.store.consumer_offsets.commit("Orders", "new", 0, number)
                pair.master.store.consumer_offsets.persist()
            await pair.master.managers.modes.put("New", "new", POP, 2)
            await pair.synchronize()
            after = tables_of(pair.slave)
            assert after[0] == {*before[0], "New"}
            assert after[1] == {**before[1], ("Orders", "new"): {0: 8}}
            assert after[2] == sorted([*before[2], "new"])
            assert all(f'"{group}"' in after[3] for group in ("billing", "idle", "new"))

    asyncio.run(scenario())


def test_a_master_that_the_name_servers_do_not_mean_is_named(tmp_path):
    """The log is one's, the tables would be another's: two masters have the same name."""

    async def scenario():
        async with running(tmp_path) as pair:
            replication = pair.slave.replication
            await until_async(lambda: replication.client.agrees, "the slave follows")
            assert replication._synchronize._agrees()
            replication._registration.master_ha_address = "127.0.0.1:1"
            assert not replication._synchronize._agrees()
            told = replication.runtime_info()["haClientRuntimeInfo"]["problem"]
            assert "the name servers tell of a master at 127.0.0.1:1" in told

    asyncio.run(scenario())


@pytest.mark.usefixtures("asks_when_told")
def test_where_the_master_is_set_nothing_is_taken_from_another_that_name_servers_tell(tmp_path):
    """It is set under a name of its own, as by an administrator, and known by the log alone."""

    async def scenario():
        async with running(tmp_path) as pair, AsyncExitStack() as stack:
            await fill(pair)
            await pair.slave.stop()
            common = {**SMALL, "namesrvAddr": pair.namesrv}
            port = pair.master.replication.service.port
            its = {"brokerRole": "SLAVE", "brokerId": 1, "haMasterAddress": f"localhost:{port}"}
            pair.slave = Broker(tmp_path / "s", {**common, **its})
            await pair.slave.start()
            await until_async(lambda: pair.slave.replication.client.agrees, "the slave follows")
            await pair.in_step()
            await pair.synchronize()
            before, replication = tables_of(pair.slave), pair.slave.replication
            assert before[1] == {("Orders", "billing"): {0: 7}}
            assert "problem" not in replication.runtime_info()["haClientRuntimeInfo"]
            other = Broker(tmp_path / "o", {**common, "brokerRole": "ASYNC_MASTER"})
            await other.start()
            stack.push_async_callback(other.stop)
            other.store.put("Orders", b"theirs")
            other.store.delete_topic("Orders")
            while other.store.max_phy_offset <= pair.slave.store.max_phy_offset:
                other.store.put("Theirs", b"x" * 200)
            registration = replication._registration
            registration.topics_changed()
            await until_async(lambda: registration.master_address == other.address, "it is told")
            assert not await replication._synchronize.synchronize()
            assert tables_of(pair.slave) == before
            assert pair.slave.store.followed_log.deletions() == {}
            told = replication.runtime_info()["haClientRuntimeInfo"]["problem"]
            assert f"tell of a master at {registration.master_ha_address}" in told

    asyncio.run(scenario())


@pytest.mark.usefixtures("asks_when_told")
def test_no_group_passes_over_what_it_gave_back_before_that_has_come(tmp_path, monkeypatch):
    """Else a slave that is made master then has the message, and hands it out to nobody."""
    held, append = asyncio.Event(), HAClient._append

    async def later(client, body, offset):
        if body:
            await held.wait()
        await append(client, body, offset)

    async def as_pair():
        async with running(tmp_path) as pair, Producer(pair.namesrv) as producer:
            held.set()
            await producer.send("T", b"failed", queue_id=0)
            await pair.in_step()
            await pair.synchronize()
            held.clear()
            (message,) = pair.master.store.messages("T")
            fields = {"offset": message.phy_offset, "group": "CG", "delayLevel": -1}
            code, topic = RequestCode.CONSUMER_SEND_MSG_BACK, "%DLQ%CG"
            back = asyncio.ensure_future(pair.ask(pair.master, code, **fields))
            await until_async(lambda: pair.master.store.max_queue_offset(topic, 0), "it is stored")
            done = {"consumerGroup": "CG", "topic": "T", "queueId": 0, "commitOffset": 1}
            await pair.ask(pair.master, RequestCode.UPDATE_CONSUMER_OFFSET, **done)
            await pair.slave.replication._synchronize.synchronize()
            assert list(pair.slave.store.messages(topic)) == []
            # no consumer is told before that it need not know the message any more
            assert not back.done()
            assert pair.slave.store.consumer_offsets.get("T", "CG", 0) is None
            held.set()
            assert (await back).code == ResponseCode.SUCCESS
            await pair.in_step()
            await pair.synchronize()
            assert pair.slave.store.consumer_offsets.get("T", "CG", 0) == 1
            assert [m.body for m in pair.slave.store.messages(topic)] == [b"failed"]
            # without a slave it is stored, and its consumer need not send it, too
            await pair.slave.stop()
            await until_async(lambda: not pair.master.replication.service.connections, "it is gone")
            assert (await pair.ask(pair.master, code, **fields)).code == ResponseCode.SUCCESS
            assert [m.body for m in pair.master.store.messages(topic)] == [b"failed", b"failed"]

    monkeypatch.setattr(HAClient, "_append", later)
    monkeypatch.setattr(slave_synchronize, "_CATCH_UP_S", 0)
    asyncio.run(as_pair())


@pytest.mark.parametrize("kind", [COMMIT, ROLLBACK])
def test_a_decision_is_answered_when_the_slave_has_it(tmp_path, monkeypatch, kind):
    """Its producer may be gone when a slave that is made master asks for it."""
    held, append = asyncio.Event(), HAClient._append

    async def later(client, body, offset):
        if body:
            await held.wait()
        await append(client, body, offset)

    async def scenario():
        async with running(tmp_path) as pair, Producer(pair.namesrv) as producer:
            held.set()
            half = {"TRAN_MSG": "true", "PGROUP": "PG"}
            await producer.send("T", b"half", queue_id=0, properties=half)
            await pair.in_step()
            held.clear()
            (stored,) = pair.master.store.messages(HALF_TOPIC)
            code, notes = RequestCode.END_TRANSACTION, pair.master.store.max_queue_offset
            fields = {
                **{"producerGroup": "PG", "tranStateTableOffset": 0, "commitOrRollback": kind},
                **{"commitLogOffset": stored.phy_offset, "msgId": stored.unique_key},
            }
            ended = asyncio.ensure_future(pair.ask(pair.master, code, **fields))
            await until_async(lambda: notes(OP_HALF_TOPIC, 0) == 1, "it is noted")
            again = asyncio.ensure_future(pair.ask(pair.master, code, **fields))
            # the loop has seen both, and what was answered has come
            await pair.ask(pair.master, RequestCode.GET_BROKER_RUNTIME_INFO)
            assert not ended.done()
            assert not again.done()
            held.set()
            assert (await ended).code == (await again).code == ResponseCode.SUCCESS
            await pair.in_step()
            assert pair.slave.store.max_queue_offset(OP_HALF_TOPIC, 0) == 1
            came = [m.body for m in pair.slave.store.messages("T")]
            assert came == ([b"half"] if kind == COMMIT else [])

    monkeypatch.setattr(HAClient, "_append", later)
    asyncio.run(scenario())


async def popped(pair, broker, count, **more):
    fields = {"consumerGroup": "CG", "topic": "T", "queueId": 0, "maxMsgNums": count}
    fields |= {"invisibleTime": 60_000, "pollTime": 0, "bornTime": 0, "initMode": 0, **more}
    return handed_out(await pair.ask(broker, RequestCode.POP_MESSAGE, **fields))


async def consume(pair, count, **more):
    for message, receipt in await popped(pair, pair.master, count, **more):
        named = naming(message, receipt)
        assert (await pair.ask(pair.master, RequestCode.ACK_MESSAGE, **named)).code == 0


async def left_when_promoted(pair, path, **more):
    """What the group is handed out when the slave is made master."""
    await pair.in_step()
    await pair.slave.stop()
    pair.slave = Broker(path / "s", SMALL)
    await pair.slave.start()
    return [message.body for message, _ in await popped(pair, pair.slave, 32, **more)]


@pytest.mark.usefixtures("asks_when_told")
@pytest.mark.parametrize("order", ["false", "true"])
def test_what_was_popped_and_acknowledged_comes_to_no_slave_that_is_made_master(tmp_path, order):
    """Its offsets are older than that; the log tells what was handed out since."""

    async def scenario():
        async with running(tmp_path) as pair, Producer(pair.namesrv) as producer:
            for number in range(6):
                await producer.send("T", b"%d" % number, queue_id=0)
            await consume(pair, 2, order=order)
            await pair.in_step()
            await pair.synchronize()
            await consume(pair, 2, order=order)
            assert await left_when_promoted(pair, tmp_path, order=order) == [b"4", b"5"]

    asyncio.run(scenario())


@pytest.mark.usefixtures("asks_when_told")
@pytest.mark.parametrize("order", ["false", "true"])
def test_a_group_that_pops_passes_over_nothing_though_a_slave_that_is_made_master_has_no_offset(
    tmp_path, monkeypatch, order
):
    """A new group begins with the last message; the log tells where this one is."""
    monkeypatch.setattr(offsets, "_YOUNG_BYTES", 0)
    from_last = {"order": order, "initMode": 1}

    async def scenario():
        async with running(tmp_path) as pair, Producer(pair.namesrv) as producer:
            for number in range(6):
                await producer.send("T", b"%d" % number, queue_id=0)
                if number in (0, 3):
                    await consume(pair, 2, **from_last)
            assert await left_when_promoted(pair, tmp_path, **from_last) == [b"3", b"4", b"5"]

    asyncio.run(scenario())
