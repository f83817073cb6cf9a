"""What a broker holds beside the log: over kills, restarts, deletions, and nonsense it is sent."""

import asyncio
import json
import re
import threading

import pytest
from broker.conftest import LONG_MS, held, records
from broker.serving import serving
from broker.test_pop import acknowledge, comes_again, handed_out, naming, pop, send_many
from broker.test_transactions import COMMIT, GIVEN_UP, decision, send_half
from patience import TIMEOUT_S, rounds, until_async

from rmqcore.broker.pop.request import INVISIBLE_MS_MAX
from rmqcore.broker.state.topics import HALF_TOPIC
from rmqcore.files.timer_check import TIMER_TOPIC
from rmqcore.remoting import RemotingClient, RemotingCommand, RequestCode, ResponseCode
from rmqcore.world import wall_clock_ms

pytestmark = pytest.mark.engine

#: commits an offset, and brings its own subscription
COMMITS = 5


async def delete(peer, topic="T"):
    deleted = await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})
    assert deleted.code == ResponseCode.SUCCESS


async def commit(peer, offset, topic="T", group="CG"):
    fields = {"consumerGroup": group, "topic": topic, "queueId": 0, "commitOffset": offset}
    return await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)


def bodies(answer):
    return [message.body for message, _ in handed_out(answer)]


# ---- topics


@pytest.mark.process
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_the_first_message_of_a_topic_is_not_lost_by_a_kill_behind_its_answer(tmp_path, flush):
    async def send(process, address, topic):
        client = RemotingClient()
        fields = {"a": "PG", "b": topic, "c": "TBW102", "d": "4", "e": "3", "f": "0", "i": ""}
        fields |= {"g": str(wall_clock_ms()), "h": "0"}
        request = RemotingCommand(RequestCode.SEND_MESSAGE_V2, fields, b"first")
        assert (
            await client.invoke(address, request, TIMEOUT_S * 1000)
        ).code == ResponseCode.SUCCESS
        process.kill()
        await client.close()

    async def ends(address, topics):
        client, found = RemotingClient(), []
        for topic in topics:
            request = RemotingCommand(RequestCode.GET_MAX_OFFSET, {"topic": topic, "queueId": "3"})
            answer = await client.invoke(address, request, TIMEOUT_S * 1000)
            found.append(answer.ext_fields["offset"])
        await client.close()
        return found

    topics = [f"New{number}" for number in range(3)]
    for topic in topics:
        with serving(tmp_path / "store", "-c", f"flushDiskType={flush}") as (process, facts):
            asyncio.run(send(process, facts["broker"], topic))
    with serving(tmp_path / "store") as (_, facts):
        assert asyncio.run(ends(facts["broker"], topics)) == ["1", "1", "1"]


def test_a_message_to_a_topic_that_cannot_be_written_down_is_not_acknowledged(with_broker):
    async def scenario(broker, peer):
        def refuse():
            raise OSError(28, "no room")

        table = broker.store.topics
        table.ahead = refuse
        sent = await peer.send("New", b"first")
        assert sent.code == ResponseCode.SERVICE_NOT_AVAILABLE
        table.ahead = None
        sent = await peer.send("Other", b"first")
        assert sent.code == ResponseCode.SUCCESS

    with_broker(scenario)


def test_nothing_of_a_deleted_topic_is_handed_out_when_it_is_made_again(with_broker, clock):
    async def scenario(broker, peer):
        await peer.send("T", b"old")
        assert bodies(await pop(peer, invisible_ms=1000)) == [b"old"]
        await delete(peer)
        await peer.send("T", b"new")
        ((message, receipt),) = handed_out(await pop(peer))
        assert message.body == b"new"
        assert (await acknowledge(peer, message, receipt)).code == ResponseCode.SUCCESS
        clock.go_on(60_000)
        assert not comes_again(broker)
        assert bodies(await pop(peer)) == []

    with_broker(scenario)


def test_what_would_come_again_of_a_deleted_topic_goes_with_it(with_broker, clock):
    async def scenario(broker, peer):
        for topic in ("T", "U"):
            await peer.send(topic, b"old")
            await pop(peer, topic=topic, invisible_ms=100)
        clock.go_on(100)
        assert not comes_again(broker)
        ends = [broker.store.max_queue_offset(f"%RETRY%CG_{topic}", 0) for topic in "TU"]
        assert ends == [1, 1]
        await delete(peer)
        await peer.send("T", b"new")
        popped = [body for _ in range(4) for body in bodies(await pop(peer))]
        assert popped == [b"new"]
        popped = [body for _ in range(4) for body in bodies(await pop(peer, topic="U"))]
        assert popped == [b"old"]

    with_broker(scenario)


def test_a_topic_made_again_does_not_wait_for_an_order_of_before(with_broker):
    async def scenario(_, peer):
        ordered = {"order": "true", "queue_id": 0}
        await send_many(peer, 1, queues=1)
        assert len(handed_out(await pop(peer, **ordered))) == 1
        await delete(peer)
        await send_many(peer, 3, queues=1)
        assert len(handed_out(await pop(peer, **ordered))) == 3

    with_broker(scenario)


@pytest.mark.parametrize("order", ["false", "true"])
def test_a_late_acknowledgement_does_not_count_for_a_topic_made_again(with_broker, clock, order):
    async def scenario(broker, peer):
        fields = {"queue_id": 0, "order": order, "invisible_ms": 5000}
        await send_many(peer, 3, queues=1)
        late = handed_out(await pop(peer, **fields))
        await delete(peer)
        await send_many(peer, 3, queues=1)
        assert await acknowledged(peer, late) == {0}
        # the time of day stands still
        found = handed_out(await pop(peer, **fields))
        assert len(found) == 3
        assert await acknowledged(peer, late) == {0}
        change = {**naming(*late[0]), "invisibleTime": 60_000}
        assert (await peer.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, change)).code == 0
        clock.go_on(6000, broker)

        async def again():
            return len(handed_out(await pop(peer, **fields))) == 3

        await until_async(again, "what was not acknowledged comes again")

    async def acknowledged(peer, found):
        return {(await acknowledge(peer, *each)).code for each in found}

    with_broker(scenario)


def test_an_order_of_before_does_not_survive_a_kill_behind_a_deletion(with_broker, tmp_path):
    async def scenario(broker, peer):
        await send_many(peer, 3, queues=1)
        ordered = {"order": "true", "queue_id": 0}
        assert len(handed_out(await pop(peer, **ordered))) == 3
        broker.managers.pop_order.persist()
        await delete(peer)
        kept = json.loads((tmp_path / "store/config/consumerOrderInfo.json").read_text())
        assert kept["table"] == {}

    with_broker(scenario)


def test_nothing_is_handed_out_of_a_topic_that_is_being_deleted(with_broker, monkeypatch):
    async def scenario(broker, peer):
        await send_many(peer, 3, queues=1)
        begun, go_on = threading.Event(), threading.Event()
        real = broker.store.parts.topics.delete_together

        def slowly(topics):
            begun.set()
            assert go_on.wait(TIMEOUT_S)
            return real(topics)

        monkeypatch.setattr(broker.store.parts.topics, "delete_together", slowly)
        deleting = asyncio.ensure_future(delete(peer))
        await until_async(begun.is_set, "the deletion has begun")
        for order in ("false", "true"):
            assert bodies(await pop(peer, queue_id=0, order=order)) == []
        go_on.set()
        await deleting
        assert len(broker.managers.checkpoints) == 0
        await send_many(peer, 3, queues=1)
        assert bodies(await pop(peer, queue_id=0)) == [b"0", b"1", b"2"]

    with_broker(scenario)


def test_a_pop_that_waits_is_answered_when_its_topic_was_deleted(with_broker):
    async def scenario(broker, peer):
        await send_many(peer, 1, queues=1)
        await pop(peer)
        waiting = asyncio.ensure_future(pop(peer, poll_ms=LONG_MS))
        await held(broker.managers.waiting_pops)
        ((waits,),) = broker.managers.waiting_pops._by_connection.values()
        await delete(peer)
        # its time is over
        broker.managers.waiting_pops._expire(waits)
        assert (await waiting).code == ResponseCode.TOPIC_NOT_EXIST

    with_broker(scenario)


def test_a_broker_ends_well_while_a_pop_waits_for_a_deleted_topic(lives):
    async def first(broker, peer):
        await send_many(peer, 1, queues=1)
        await pop(peer)
        waiting = asyncio.ensure_future(pop(peer, poll_ms=LONG_MS))
        await held(broker.managers.waiting_pops)
        await delete(peer)
        await broker.stop()
        assert (await waiting).code == ResponseCode.TOPIC_NOT_EXIST

    async def second(broker, _):
        assert broker.state()[0]

    lives(first, second)


# ---- offsets


def test_a_broker_has_a_file_of_offsets_before_any_is_committed(with_broker, tmp_path):
    async def scenario(*_):
        file = tmp_path / "store" / "config" / "consumerOffset.json"
        assert json.loads(file.read_text())["offsetTable"] == {}

    with_broker(scenario)


def ahead(path):
    """Let the offset of a group stand where a power cut leaves it that takes the log's end."""
    file = path / "config" / "consumerOffset.json"
    text, count = re.subn(r'("T@CG":\{\s*0:)3', r"\g<1>9", file.read_text())
    assert count == 1
    file.write_text(text)


@pytest.mark.parametrize("popping", [False, True])
def test_what_comes_behind_a_power_cut_is_not_passed_over(lives, tmp_path, popping):
    async def first(_, peer):
        await send_many(peer, 3, queues=1)
        assert (await commit(peer, 3)).code == ResponseCode.SUCCESS

    async def second(broker, peer):
        assert broker.store.consumer_offsets.get("T", "CG", 0) == 3
        for number in range(9):
            await peer.send("T", b"%d" % number)
        if popping:
            assert bodies(await pop(peer, queue_id=0)) == [b"%d" % n for n in range(9)]
        else:
            fields = {"consumerGroup": "CG", "topic": "T", "queueId": 0}
            asked = await peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, fields)
            assert asked.ext_fields["offset"] == "3"

    lives(first)
    ahead(tmp_path / "store")
    lives(second)


def test_a_pull_from_beyond_the_end_is_sent_back_though_it_commits(with_broker):
    async def scenario(broker, peer):
        await send_many(peer, 3, queues=1)
        answer = await peer.pull("T", offset=9, sysFlag=COMMITS, commitOffset=9)
        assert answer.code == ResponseCode.PULL_OFFSET_MOVED
        assert answer.ext_fields["nextBeginOffset"] == "3"
        assert broker.store.consumer_offsets.get("T", "CG", 0) is None

    with_broker(scenario)


def test_a_pull_that_is_told_of_a_reset_does_not_undo_it(with_broker):
    async def scenario(broker, peer):
        await send_many(peer, 3, queues=1)
        await peer.pull("T", offset=3, sysFlag=COMMITS, commitOffset=3)
        fields = {"topic": "T", "group": "CG", "timestamp": 0, "isForce": "true"}
        await peer.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)
        answer = await peer.pull("T", offset=3, sysFlag=COMMITS, commitOffset=3)
        assert answer.code == ResponseCode.PULL_OFFSET_MOVED
        assert answer.ext_fields["nextBeginOffset"] == "0"
        assert broker.store.consumer_offsets.get("T", "CG", 0) == 0

    with_broker(scenario)


@pytest.mark.parametrize("restarted", [False, True])
def test_who_has_read_a_deleted_topic_passes_over_nothing_of_the_new_one(lives, restarted):
    async def first(_, peer):
        await send_many(peer, 3, queues=1)
        await peer.pull("T", offset=2, sysFlag=COMMITS, commitOffset=2)
        await delete(peer)

    async def second(broker, peer):
        await delete(peer)
        await peer.send("T", b"of a topic that is deleted, too")
        await delete(peer)
        for number in range(9):
            await peer.send("T", b"%d" % number)
        assert (await commit(peer, 2)).code == ResponseCode.SUCCESS
        # twice: the first answer may be lost
        for _ in range(2):
            answer = await peer.pull("T", offset=2, sysFlag=COMMITS, commitOffset=2)
            assert answer.code == ResponseCode.PULL_OFFSET_MOVED
            assert answer.ext_fields["nextBeginOffset"] == "0"
        assert broker.store.consumer_offsets.get("T", "CG", 0) is None
        for offset in (0, 2):
            answer = await peer.pull("T", offset=offset, sysFlag=COMMITS, commitOffset=offset)
            assert answer.code == ResponseCode.SUCCESS
        assert broker.store.consumer_offsets.get("T", "CG", 0) == 2

    async def third(_, peer):
        answer = await peer.pull("T", offset=4, sysFlag=COMMITS, commitOffset=4)
        assert answer.code == ResponseCode.SUCCESS

    if restarted:
        lives(first, second, third)
    else:

        async def both(broker, peer):
            await first(broker, peer)
            await second(broker, peer)

        lives(both)


# ---- transactions


def test_a_transaction_is_ended_once_over_a_restart(lives):
    sent = []

    async def first(_, peer):
        sent.append(await send_half(peer, b"half"))
        end = decision(sent[0], COMMIT)
        assert (await peer.ask(RequestCode.END_TRANSACTION, end)).code == ResponseCode.SUCCESS

    async def second(broker, peer):
        end = decision(sent[0], COMMIT)
        assert (await peer.ask(RequestCode.END_TRANSACTION, end)).code == ResponseCode.SUCCESS
        assert broker.store.max_queue_offset("T", 0) == 1

    lives(first, second)


@pytest.mark.parametrize("commits", [1, 2])
def test_a_producer_decides_after_all_what_was_given_up_before_a_restart(lives, clock, commits):
    sent = []

    async def first(broker, peer):
        sent.append(await send_half(peer, b"half"))
        clock.go_on(80 * 3_600_000)
        assert await broker.managers.transactions.check() == 0
        assert broker.store.max_queue_offset(GIVEN_UP, 0) == 1

    async def second(broker, peer):
        end = decision(sent[0], COMMIT)
        assert (await peer.ask(RequestCode.END_TRANSACTION, end)).code == ResponseCode.SUCCESS
        assert [each.body for each in records((await peer.pull("T")).body)] == [b"half"]

    lives(first, *[second] * commits)


def test_a_half_message_with_a_delay_level_is_committed_at_once(with_broker):
    async def scenario(broker, peer):
        properties = {"TRAN_MSG": "true", "PGROUP": "PG", "UNIQ_KEY": "k", "DELAY": "18"}
        sent = await peer.send("T", b"half", f=4, properties=properties)
        assert broker.store.max_queue_offset(HALF_TOPIC, 0) == 1
        end = decision(sent, COMMIT)
        assert (await peer.ask(RequestCode.END_TRANSACTION, end)).code == ResponseCode.SUCCESS
        assert [each.body for each in records((await peer.pull("T")).body)] == [b"half"]

    with_broker(scenario)


def test_a_message_of_a_transaction_that_is_sent_again_is_not_undecided_again(with_broker, clock):
    async def scenario(broker, peer):
        properties = {"TRAN_MSG": "true", "PGROUP": "PG", "UNIQ_KEY": "k", "DELAY": "1"}
        await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"CG"}')
        sent = await peer.send("%RETRY%CG", b"again", j=1, properties=properties)
        assert sent.code == ResponseCode.SUCCESS
        clock.go_on(3_600_000, broker)
        await until_async(
            lambda: broker.store.max_queue_offset("%RETRY%CG", 0), "the message is delivered"
        )
        assert broker.store.max_queue_offset(HALF_TOPIC, 0) == 0

    with_broker(scenario)


def test_a_time_of_too_many_digits_does_not_end_the_checks(with_broker, clock):
    async def scenario(broker, peer):
        nonsense = {"CHECK_IMMUNITY_TIME_IN_SECONDS": "9" * 5000}
        properties = {"TRAN_MSG": "true", "PGROUP": "PG", "UNIQ_KEY": "k", **nonsense}
        assert (await peer.send("T", b"half", f=4, properties=properties)).code == 0
        clock.go_on(3_600_000)
        assert await broker.managers.transactions.check() == 0

    with_broker(scenario)


# ---- timer messages and POP


@pytest.mark.parametrize("slot", ["9" * 19, "soon"])
def test_a_record_of_the_timer_that_makes_no_sense_does_not_end_it(with_broker, clock, slot):
    async def scenario(broker, peer):
        properties = {"TIMER_OUT_MS": slot, "TIMER_DELIVER_MS": "9" * 19, "REAL_TOPIC": "T"}
        assert broker.store.put(TIMER_TOPIC, b"x", properties=properties).ok
        soon = {"TIMER_DELAY_MS": "1200"}
        assert (await peer.send("T", b"later", properties=soon)).code == ResponseCode.SUCCESS
        clock.go_on(2200, broker)
        await until_async(lambda: broker.store.max_queue_offset("T", 0), "the message behind it")

    with_broker(scenario)


def test_a_pop_whose_messages_could_not_come_again_is_refused(with_broker):
    async def scenario(_, peer):
        topic = f"%RETRY%{'A' * 100}_{'T' * 100}"
        await peer.send(topic, b"x")
        answer = await pop(peer, topic=topic, consumerGroup="B" * 100)
        assert answer.code == ResponseCode.INVALID_PARAMETER

    with_broker(scenario)


def test_nobody_keeps_a_message_longer_than_a_pop_can(with_broker):
    async def scenario(_, peer):
        await send_many(peer, 1, queues=1)
        ((message, receipt),) = handed_out(await pop(peer))
        fields = {**naming(message, receipt), "invisibleTime": 2**63 - 1}
        answer = await peer.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, fields)
        assert answer.ext_fields["invisibleTime"] == str(INVISIBLE_MS_MAX)

    with_broker(scenario)


# ---- groups


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("retryQueueNums", 2_000_000_000),
        ("retryQueueNums", -1),
        ("retryMaxTimes", "many"),
        ("retryMaxTimes", 2**31),
        ("consumeEnable", "no"),
    ],
)
def test_a_group_with_nonsense_is_refused(with_broker, field, value):
    async def scenario(broker, peer):
        body = json.dumps({"groupName": "CG", field: value}).encode()
        answer = await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert field in answer.remark
        assert broker.managers.groups.table.get("CG") is None

    with_broker(scenario)


def asked(address, code, fields=None, body=b"", *, then=lambda: None):
    """The code that one request is answered with; what comes then, comes at once."""

    async def main():
        client = RemotingClient()
        try:
            request = RemotingCommand(code, fields or {}, body)
            answer = await client.invoke(address, request, TIMEOUT_S * 1000)
            then()
            return answer.code
        finally:
            await client.close()

    return asyncio.run(main())


@pytest.mark.process
@pytest.mark.parametrize("group", [False, True])
def test_what_an_administrator_was_answered_survives_a_kill(tmp_path, group):
    fields = {"topic": "New", "defaultTopic": "TBW102", "perm": "6", "order": "false"}
    fields |= {"readQueueNums": "16", "writeQueueNums": "16", "topicFilterType": "SINGLE_TAG"}
    create = (RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
    look = (RequestCode.GET_TOPIC_CONFIG, {"topic": "New"})
    if group:
        create = (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"New"}')
        look = (RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "New"})
    options = ("-c", "autoCreateSubscriptionGroup=false")
    with serving(tmp_path / "store", *options) as (process, facts):
        assert asked(facts["broker"], *create, then=process.kill) == ResponseCode.SUCCESS
    with serving(tmp_path / "store", *options) as (process, facts):
        assert asked(facts["broker"], *look) == ResponseCode.SUCCESS
        if group:
            remove = (RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "New"})
            assert asked(facts["broker"], *remove, then=process.kill) == ResponseCode.SUCCESS
    if group:
        with serving(tmp_path / "store", *options) as (_, facts):
            code = asked(facts["broker"], *look)
            assert code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


# ---- the log's end


def test_the_log_is_kept_as_long_as_a_timer_message_waits_in_it(lives, tmp_path, clock):
    settings = {"retention_bytes": 1 << 20, "cleanResourceInterval": 50}
    log = tmp_path / "store" / "commitlog"
    first = log / f"{0:020}"

    async def filled(broker, peer):
        soon = {"TIMER_DELAY_MS": "8000"}
        assert (await peer.send("T", b"later", properties=soon)).code == 0
        for _ in range(40):
            assert (await peer.send("Filling", bytes(100_000))).code == 0
        await asyncio.to_thread(broker.store.flush)
        await asyncio.to_thread(rounds, broker.store.parts.upkeep.retention, 3)
        assert first.exists()

    async def delivered(broker, peer):
        # within its second, whenever the record was stored
        clock.go_on(9000, broker)
        await until_async(lambda: not first.exists(), "the first file is deleted")
        assert [each.body for each in records((await peer.pull("T")).body)] == [b"later"]

    lives(filled, delivered, **settings)


@pytest.mark.parametrize("sizes", [{"mappedFileSizeCommitLog": 1 << 16}, {}])
def test_a_size_of_messages_for_larger_files_is_clamped(with_broker, sizes):
    """RocketMQ writes its default, 4 MiB, into every configuration that it tells."""

    async def scenario(broker, peer):
        await peer.send("T", b"x")
        most = broker.store.config.mapped_file_size_commit_log - 100
        assert broker.store.config.effective_max_message_size == most

    for _ in range(2):
        with_broker(scenario, maxMessageSize=4 << 20, **sizes)
