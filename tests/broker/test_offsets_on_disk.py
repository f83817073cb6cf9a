"""A power cut takes no message that an offset has passed over, as another record stands for it."""

import pytest
from broker.conftest import LONG_MS, SMALL, Peer, records
from broker.test_pop import acknowledge, comes_again, handed_out, pop, send_many
from broker.test_state import COMMITS, commit
from broker.test_transactions import COMMIT, ROLLBACK, decision, send_half
from killed_copy import copy_as_killed

from rmqcore.broker import Broker
from rmqcore.broker.pop.order import PopOrder
from rmqcore.broker.pop.receipts import REVIVE_QUEUES
from rmqcore.files.service_topics import HALF_TOPIC, REVIVE_GROUP, TRANSACTION_GROUP
from rmqcore.remoting import RequestCode, ResponseCode
from rmqcore.services.save_tables import SaveTablesService
from rmqcore.world import wall_clock_ms

pytestmark = pytest.mark.engine
REVIVE_TOPIC = "rmq_sys_REVIVE_LOG_DefaultCluster"
#: nothing of the log is written through by itself
UNHURRIED = {
    "flushIntervalCommitLog": 3_600_000,
    "flushCommitLogThoroughInterval": 3_600_000,
    "flushIntervalConsumeQueue": 3_600_000,
    "flushConsumerOffsetInterval": 3_600_000,
}


def save_nothing_by_itself(store):
    """End the service that saves tables every 5 seconds, whatever the broker's settings say.

    It might write offsets, and the log in front of them, in the middle of what a test does. Then
    those that the test has written are no newer, and the cut takes what was put since.
    """
    upkeep = store.parts.upkeep
    (saves,) = [each for each in upkeep.services if isinstance(each, SaveTablesService)]
    upkeep.runner.stop(saves)


@pytest.fixture
def power_cut(with_broker, tmp_path):
    """Run a coroutine function with a broker, and another with the broker of what its disk had.

    Nothing of the log where ``log`` is False; else as much as was written through.
    """

    def left(broker, log):
        """A copy of the store whose log is on the disk so far."""
        copy = tmp_path / "cut"
        flushed = broker.store.parts.log_services.flusher.flushed_offset if log else 0
        copy_as_killed(tmp_path / "store", copy)
        for file in (copy / "commitlog").iterdir():
            data, kept = file.read_bytes(), max(0, flushed - int(file.name))
            file.write_bytes(data[:kept].ljust(len(data), b"\0"))
        return copy

    async def go_on(path, after):
        broker = Broker(path, {"listenPort": 0, **SMALL})
        await broker.start()
        peer = Peer(broker)
        try:
            await after(broker, peer)
        finally:
            await peer.client.close()
            await broker.stop()

    def run(before, after, *, log=True, **settings):
        async def scenario(broker, peer):
            save_nothing_by_itself(broker.store)
            await before(broker, peer)
            broker.store.topics.persist()
            if log:
                broker.store.consumer_offsets.persist()
            await go_on(left(broker, log), after)

        with_broker(scenario, **UNHURRIED, **settings)

    return run


def test_a_message_that_came_again_is_there(power_cut, clock):
    async def before(broker, peer):
        await send_many(peer, 1, queues=1)
        broker.store.flush()
        assert len(handed_out(await pop(peer, queue_id=0, invisible_ms=1000))) == 1
        clock.go_on(2000)
        assert not comes_again(broker)
        assert broker.store.max_queue_offset("%RETRY%CG_T", 0) == 1
        assert len(broker.managers.checkpoints) == 0

    async def after(broker, peer):
        assert broker.store.consumer_offsets.get("T", "CG", 0) == 1
        answer = await pop(peer)
        assert [m.body for m, _ in handed_out(answer)] == [b"0"], (answer.code, answer.remark)

    power_cut(before, after)


def test_a_message_that_came_again_is_found_where_its_topic_was_not_written(power_cut, clock):
    """The retry topic, of a queue each, is in the table a moment after the log has the message."""

    async def before(broker, peer):
        await send_many(peer, 4, queues=4)
        assert len(handed_out(await pop(peer, invisible_ms=1000))) == 4
        clock.go_on(2000)
        assert not comes_again(broker)
        broker.store.flush_log()
        topics = broker.store.topics
        for name in [each.topic_name for each in topics]:
            if name == "%RETRY%CG_T":
                assert topics.get(name).read_queue_nums == 4
                topics.remove(name)

    async def after(_, peer):
        assert sorted(m.body for m, _ in handed_out(await pop(peer))) == [b"0", b"1", b"2", b"3"]

    power_cut(before, after, useSeparateRetryQueue="true")


def test_a_message_that_was_given_back_is_there(power_cut):
    async def before(broker, peer):
        await send_many(peer, 1, queues=1)
        broker.store.flush()
        (message,) = records((await peer.pull("T")).body)
        fields = {"offset": message.phy_offset, "group": "CG", "delayLevel": -1}
        back = await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields)
        assert back.code == ResponseCode.SUCCESS
        fields = {"consumerGroup": "CG", "topic": "T", "queueId": 0, "commitOffset": 1}
        done = await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
        assert done.code == ResponseCode.SUCCESS

    async def after(broker, peer):
        assert broker.store.consumer_offsets.get("T", "CG", 0) == 1
        assert [m.body for m in records((await peer.pull("%DLQ%CG")).body)] == [b"0"]

    power_cut(before, after)


def test_a_message_whose_transaction_is_committed_is_there(power_cut, clock):
    async def before(broker, peer):
        sent = await send_half(peer, b"half")
        broker.store.flush()
        ended = await peer.ask(RequestCode.END_TRANSACTION, decision(sent, COMMIT))
        assert ended.code == ResponseCode.SUCCESS
        clock.go_on(5000)
        assert await broker.managers.transactions.check() == 0

    async def after(broker, peer):
        assert broker.store.consumer_offsets.get(HALF_TOPIC, TRANSACTION_GROUP, 0) == 1
        assert [m.body for m in records((await peer.pull("T")).body)] == [b"half"]

    power_cut(before, after)


def test_an_acknowledgement_of_what_a_cut_took_passes_over_nothing_new(power_cut):
    """Handed out in order were messages whose numbers others have now, which nobody was given."""
    in_order, receipts = {"queue_id": 0, "order": "true", "count": 2, "invisible_ms": LONG_MS}, []

    async def before(broker, peer):
        await send_many(peer, 2, queues=1)
        receipts.extend(handed_out(await pop(peer, **in_order)))
        broker.managers.pop_order.persist()

    async def after(broker, peer):
        # written at once: a kill comes before the broker's next turn to write
        assert (
            PopOrder(broker.store.path / "config", wall_clock_ms).due_ms(("T", "CG", 0), None, 9)
            == 0
        )
        await send_many(peer, 4, queues=1)
        for message, receipt in receipts:
            assert (await acknowledge(peer, message, receipt)).code == ResponseCode.SUCCESS
        found = handed_out(await pop(peer, **in_order))
        assert [message.queue_offset for message, _ in found] == [0, 1]

    power_cut(before, after, log=False)


def test_a_decision_about_a_half_message_that_a_cut_took_ends_no_other(power_cut):
    """The next one has its place in the log, and its number."""
    sent = []

    async def before(_, peer):
        sent.append(await send_half(peer, b"gone"))

    async def after(_, peer):
        sent.append(await send_half(peer, b"next"))
        gone, following = (
            {**decision(each, COMMIT), "transactionId": body * 8}
            for each, body in zip(sent, ("gone", "next"), strict=True)
        )
        assert gone["commitLogOffset"] == following["commitLogOffset"]
        refused = await peer.ask(
            RequestCode.END_TRANSACTION, {**gone, "commitOrRollback": ROLLBACK}
        )
        assert refused.code == ResponseCode.SYSTEM_ERROR
        ended = await peer.ask(RequestCode.END_TRANSACTION, following)
        assert ended.code == ResponseCode.SUCCESS
        assert [m.body for m in records((await peer.pull("T")).body)] == [b"next"]

    power_cut(before, after, log=False)


def test_a_checkpoint_where_a_cut_took_others_is_read_back(power_cut, clock, tmp_path):
    """The offset of the records of pops names the last one that is done with, not the next."""

    async def before(broker, peer):
        await send_many(peer, 3, queues=1)
        broker.store.flush()
        for queue_id in range(REVIVE_QUEUES):
            broker.store.consumer_offsets.advance(REVIVE_TOPIC, REVIVE_GROUP, queue_id, 7)

    async def after(broker, peer):
        assert len(handed_out(await pop(peer, invisible_ms=1000))) == 3
        store = broker.store
        store.consumer_offsets.persist()
        killed = tmp_path / "killed"
        copy_as_killed(store.path, killed)
        again = Broker(killed, {"listenPort": 0, **SMALL})
        await again.start()
        try:
            assert again.store.consumer_offsets.get("T", "CG", 0) == 3
            assert len(again.managers.checkpoints) == 1
        finally:
            await again.stop()

    power_cut(before, after)


def test_an_offset_that_was_set_is_gone_on_from_behind_a_restart(lives):
    async def set_back(broker, peer):
        await send_many(peer, 10, queues=1)
        await commit(peer, 10)
        fields = {"topic": "T", "group": "CG", "queueId": 0, "offset": 3, "isForce": "true"}
        code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
        assert (await peer.ask(code, fields)).code == ResponseCode.SUCCESS

    async def goes_on(broker, peer):
        """Its client has not pulled since, and goes on where it was."""
        answer = await peer.pull("T", offset=10, sysFlag=COMMITS, commitOffset=10)
        assert answer.code == ResponseCode.PULL_OFFSET_MOVED
        assert answer.ext_fields["nextBeginOffset"] == "3"
        await commit(peer, 10)
        assert broker.store.consumer_offsets.get("T", "CG", 0) == 3
        assert len(records((await peer.pull("T", offset=3)).body)) == 7

    async def has_gone_on(broker, peer):
        answer = await peer.pull("T", offset=10)
        assert answer.code == ResponseCode.PULL_NOT_FOUND
        assert (await commit(peer, 10)).code == ResponseCode.SUCCESS
        assert broker.store.consumer_offsets.get("T", "CG", 0) == 10

    lives(set_back, goes_on, has_gone_on)
