"""Half messages: unseen until they are committed, gone when rolled back, asked for when neither."""

import asyncio

import pytest
from broker.conftest import Peer, records
from broker.test_pop_kills import served
from killed_copy import copy_as_killed
from patience import TIMEOUT_S, rounds, until_async

from rmqcore import Message
from rmqcore._codec import encode_record
from rmqcore.broker.state.topics import HALF_TOPIC
from rmqcore.errors import StoreError
from rmqcore.java.json import format_java_json
from rmqcore.remoting import RemotingCommand, RequestCode, ResponseCode

pytestmark = pytest.mark.engine

COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
GIVEN_UP = "TRANS_CHECK_MAX_TIME_TOPIC"


async def send_half(peer, body):
    properties = {"TRAN_MSG": "true", "PGROUP": "PG", "UNIQ_KEY": body.decode() * 8}
    answer = await peer.send("T", body, f=4, properties=properties)
    assert answer.code == ResponseCode.SUCCESS
    return answer


def decision(sent, kind, **more):
    return {
        "producerGroup": "PG",
        "commitLogOffset": int(sent.ext_fields["msgId"][16:], 16),
        "tranStateTableOffset": sent.ext_fields["queueOffset"],
        "commitOrRollback": kind,
        "msgId": "x",
        **more,
    }


async def producer_of(broker):
    """A peer that is known as a producer, and a queue of what it is asked."""
    producer, asked = Peer(broker), asyncio.Queue()
    producer.client.register(
        RequestCode.CHECK_TRANSACTION_STATE, lambda _, request: asked.put_nowait(request)
    )
    beat = {"clientID": "c", "producerDataSet": [{"groupName": "PG"}]}
    await producer.ask(RequestCode.HEART_BEAT, body=format_java_json(beat).encode())
    return producer, asked


async def question(asked, half_offset=None):
    """The next question, or the next about one half message."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            request: RemotingCommand = await asked.get()
            if half_offset in (None, int(request.ext_fields["tranStateTableOffset"])):
                return request


async def given_up(broker):
    """Wait until a message lies where an operator finds it; returns it."""
    found = await until_async(
        lambda: list(broker.store.messages(GIVEN_UP)), "a message that nobody decides is given up"
    )
    (kept,) = found
    return kept


async def bodies(peer, topic="T"):
    return [message.body for message in records((await peer.pull(topic)).body)]


def test_a_half_message_is_seen_when_it_is_committed(with_broker):
    async def scenario(_, peer):
        await peer.send("T", b"plain")
        sent = await send_half(peer, b"half")
        assert await bodies(peer) == [b"plain"]
        end = decision(sent, COMMIT)
        assert (await peer.ask(RequestCode.END_TRANSACTION, end)).code == 0
        assert await bodies(peer) == [b"plain", b"half"]
        assert (await peer.ask(RequestCode.END_TRANSACTION, end)).code == 0
        assert await bodies(peer) == [b"plain", b"half"]

    with_broker(scenario)


def test_one_that_is_rolled_back_is_never_seen(with_broker):
    async def scenario(_, peer):
        sent = await send_half(peer, b"half")
        await peer.ask(RequestCode.END_TRANSACTION, decision(sent, ROLLBACK))
        await peer.send("T", b"plain")
        assert await bodies(peer) == [b"plain"]

    with_broker(scenario)


def test_a_decision_by_another_group_or_about_another_message_is_refused(with_broker):
    async def scenario(_, peer):
        sent = await send_half(peer, b"half")
        for wrong in ({"producerGroup": "X"}, {"tranStateTableOffset": 5}, {"commitLogOffset": 1}):
            answer = await peer.ask(RequestCode.END_TRANSACTION, decision(sent, COMMIT, **wrong))
            assert answer.code == ResponseCode.SYSTEM_ERROR
        await peer.send("T", b"plain")
        assert await bodies(peer) == [b"plain"]

    with_broker(scenario)


def test_a_producer_is_asked_for_what_it_did_not_decide(with_broker):
    async def scenario(broker, peer):
        producer, asked = await producer_of(broker)
        await send_half(peer, b"half")
        request = await question(asked)
        (message,) = records(request.body)
        assert (message.topic, message.body) == ("T", b"half")
        assert request.ext_fields["topic"] == HALF_TOPIC
        answer = {
            "producerGroup": "PG",
            "commitLogOffset": request.ext_fields["commitLogOffset"],
            "tranStateTableOffset": request.ext_fields["tranStateTableOffset"],
            "commitOrRollback": COMMIT,
            "fromTransactionCheck": "true",
            "msgId": "x",
        }
        assert (await peer.ask(RequestCode.END_TRANSACTION, answer)).code == 0
        assert await bodies(peer) == [b"half"]
        await producer.client.close()

    with_broker(scenario, transactionTimeOut=50, transactionCheckInterval=200)


def test_what_was_not_decided_is_still_known_after_a_restart(with_broker):
    places = []

    async def first(_, peer):
        await send_half(peer, b"done")
        done, left = await send_half(peer, b"gone"), await send_half(peer, b"left")
        await peer.ask(RequestCode.END_TRANSACTION, decision(done, ROLLBACK))
        places.append(left)

    async def again(broker, peer):
        await peer.ask(RequestCode.END_TRANSACTION, decision(places[0], COMMIT))
        assert await bodies(peer) == [b"left"]

    with_broker(first)
    with_broker(again)


def test_what_nobody_decides_ends_where_an_operator_finds_it(with_broker):
    async def scenario(broker, peer):
        beat = {"clientID": "c", "producerDataSet": [{"groupName": "PG"}]}
        await peer.ask(RequestCode.HEART_BEAT, body=format_java_json(beat).encode())
        await send_half(peer, b"half")
        kept = await given_up(broker)
        assert kept.body == b"half"
        assert kept.properties["REAL_TOPIC"] == "T"

    with_broker(scenario, transactionTimeOut=1, transactionCheckInterval=50, transactionCheckMax=2)


def test_one_that_was_given_up_is_asked_for_again_when_an_operator_wants_it(with_broker):
    async def scenario(broker, peer):
        producer, asked = await producer_of(broker)
        await send_half(peer, b"half")
        kept = await given_up(broker)
        resume = {"topic": GIVEN_UP, "msgId": kept.message_id}
        answer = await peer.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, resume)
        assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, None)
        *_, half = broker.store.messages(HALF_TOPIC)
        assert half.properties == {**kept.properties, "TRANSACTION_CHECK_TIMES": "0"}
        assert (half.body, half.queue_id) == (b"half", 0)
        assert half.born_timestamp_ms == kept.born_timestamp_ms
        request = await question(asked, half.queue_offset)
        end = {
            "producerGroup": "PG",
            "commitLogOffset": request.ext_fields["commitLogOffset"],
            "tranStateTableOffset": request.ext_fields["tranStateTableOffset"],
            "commitOrRollback": COMMIT,
            "msgId": "x",
        }
        assert (await peer.ask(RequestCode.END_TRANSACTION, end)).code == 0
        assert await bodies(peer) == [b"half"]
        await producer.client.close()

    with_broker(scenario, transactionTimeOut=1, transactionCheckInterval=100, transactionCheckMax=2)


DAYS_MS = 30 * 24 * 3_600_000


@pytest.mark.parametrize("wrong", ["the producer's", "the broker's"])
def test_who_can_decide_is_asked_whatever_the_clocks_say(with_broker, clock, wrong):
    async def scenario(broker, peer):
        check = broker.managers.transactions.check
        properties = {"TRAN_MSG": "true", "PGROUP": "PG", "UNIQ_KEY": "U"}
        born_ms = clock.now_ms - DAYS_MS * (wrong == "the producer's")
        await peer.send("T", b"half", f=4, g=born_ms, properties=properties)
        if wrong == "the producer's":
            # nobody is there to be asked
            assert await check() == 0
        producer, asked = await producer_of(broker)
        if wrong == "the broker's":
            clock.go_on(DAYS_MS)
        assert await check() == 1
        (message,) = records((await question(asked)).body)
        assert message.body == b"half"
        assert list(broker.store.messages(GIVEN_UP)) == []
        await producer.client.close()

    with_broker(scenario, transactionCheckInterval=10_000_000)


def test_what_nobody_can_be_asked_about_for_long_is_given_up_and_may_be_put_back(
    with_broker, clock
):
    async def scenario(broker, peer):
        check = broker.managers.transactions.check
        await send_half(peer, b"half")
        clock.go_on(DAYS_MS)
        assert await check() == 0
        (kept,) = broker.store.messages(GIVEN_UP)
        resume = {"topic": GIVEN_UP, "msgId": kept.message_id}
        assert (await peer.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, resume)).code == 0
        assert await check() == 0
        assert len(list(broker.store.messages(GIVEN_UP))) == 1
        producer, asked = await producer_of(broker)
        assert await check() == 1
        await question(asked)
        await producer.client.close()

    with_broker(scenario, transactionCheckInterval=10_000_000)


def test_nobody_keeps_the_log_by_a_half_message_that_is_never_to_be_asked_for(with_broker, clock):
    """Its producer may say for how long it is not to be asked, and the log is kept meanwhile."""

    async def scenario(broker, peer):
        check, pending_from = broker.managers.transactions.check, broker.managers.pending_from
        never = {"CHECK_IMMUNITY_TIME_IN_SECONDS": "9" * 15}
        properties = {"TRAN_MSG": "true", "PGROUP": "PG", "UNIQ_KEY": "U", **never}
        await peer.send("T", b"half", f=4, g=clock.now_ms, properties=properties)
        producer, asked = await producer_of(broker)
        clock.go_on(71 * 3_600_000)
        assert (await check(), pending_from()) == (0, 0)
        clock.go_on(2 * 3_600_000)
        assert await check() == 1
        await question(asked)
        assert (await check(), pending_from()) == (0, None)
        assert len(list(broker.store.messages(GIVEN_UP))) == 1
        await producer.client.close()

    settings = {"transactionCheckInterval": 10_000_000, "transactionCheckMax": 1}
    with_broker(scenario, fileReservedTime=72, **settings)


def test_who_still_decides_is_not_asked_where_no_file_is_kept_for_long(with_broker, clock):
    async def scenario(broker, peer):
        check = broker.managers.transactions.check
        properties = {"TRAN_MSG": "true", "PGROUP": "PG", "UNIQ_KEY": "U"}
        await peer.send("T", b"half", f=4, g=clock.now_ms, properties=properties)
        producer, _ = await producer_of(broker)
        clock.go_on(5000)
        assert await check() == 0
        clock.go_on(2000)
        assert await check() == 1
        await producer.client.close()

    settings = {"transactionCheckInterval": 10_000_000, "transactionTimeOut": 6000}
    with_broker(scenario, fileReservedTime=0, **settings)


def test_what_was_not_given_up_is_not_put_back(with_broker):
    async def scenario(broker, peer):
        plain, half = await peer.send("T", b"plain"), await send_half(peer, b"half")
        ends = broker.store.max_phy_offset
        ids = [sent.ext_fields["msgId"] for sent in (plain, half)]
        for message_id in (*ids, "", "x", ids[0][:16] + "0" * 16, "F" * 32, "F" * 56):
            answer = await peer.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"msgId": message_id})
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert answer.remark.startswith("Put message back to RMQ_SYS_TRANS_HALF_TOPIC failed.")
        assert broker.store.max_phy_offset == ends

    with_broker(scenario)


def test_a_half_message_is_not_ended_by_what_looks_like_it_in_a_body(with_broker):
    """Who guesses where a message of his own comes to lie writes a whole record into its body."""

    async def scenario(broker, peer):
        sent = await send_half(peer, b"half")
        await peer.send("Mine", b"mine")
        (mine,) = broker.store.messages("Mine")
        at = broker.store.max_phy_offset + bytes(mine.record).index(b"mine")
        forged = Message(
            HALF_TOPIC, b"x", properties={"PGROUP": "Evil", "REAL_TOPIC": "Mine", "REAL_QID": "0"}
        )
        queue_offset = int(sent.ext_fields["queueOffset"])
        body = encode_record(forged, queue_offset=queue_offset, phy_offset=at, store_timestamp_ms=1)
        await peer.send("Mine", body)
        assert broker.store.message_at(at).topic == HALF_TOPIC
        end = decision(sent, ROLLBACK, producerGroup="Evil", commitLogOffset=at)
        answer = await peer.ask(RequestCode.END_TRANSACTION, end)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert (await peer.ask(RequestCode.END_TRANSACTION, decision(sent, COMMIT))).code == 0
        assert await bodies(peer) == [b"half"]

    with_broker(scenario)


@pytest.mark.parametrize("decided", [COMMIT, ROLLBACK])
def test_a_decision_counts_once_when_the_checks_have_gone_beyond_it(with_broker, decided):
    async def scenario(broker, peer):
        sent = await send_half(peer, b"half")
        for kind in (decided, COMMIT, COMMIT):
            answer = await peer.ask(RequestCode.END_TRANSACTION, decision(sent, kind))
            assert answer.code == ResponseCode.SUCCESS
            await broker.managers.transactions.check()
        assert broker.store.max_queue_offset("T", 0) == (decided == COMMIT)

    with_broker(scenario)


def test_a_decision_that_no_note_tells_of_any_more_is_refused(with_broker):
    async def scenario(broker, peer):
        sent = await send_half(peer, b"half")
        await peer.ask(RequestCode.END_TRANSACTION, decision(sent, COMMIT))
        await broker.managers.transactions.check()
        answer = await peer.ask(RequestCode.END_TRANSACTION, decision(sent, COMMIT))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert broker.store.max_queue_offset("T", 0) == 1

    with_broker(scenario, messageIndexEnable=False)


def test_a_decision_that_comes_twice_is_answered_when_it_is_stored(with_broker, monkeypatch):
    """Who is told of it may be gone when it turns out that there was no room."""

    async def scenario(broker, peer):
        sent = await send_half(peer, b"half")
        goes_on, transactions = asyncio.Event(), broker.managers.transactions
        commit, begun = transactions._commit, []

        async def fail_once(half):
            begun.append(half)
            if len(begun) > 1:
                return await commit(half)
            await goes_on.wait()
            raise StoreError("no room")

        monkeypatch.setattr(transactions, "_commit", fail_once)
        ask = peer.ask(RequestCode.END_TRANSACTION, decision(sent, COMMIT))
        first = asyncio.create_task(ask)
        await until_async(lambda: begun, "the first is being stored")
        ask = peer.ask(RequestCode.END_TRANSACTION, decision(sent, COMMIT))
        second = asyncio.create_task(ask)
        # the broker has it, since it answers what came behind it
        await peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
        goes_on.set()
        assert (await first).code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert (await second).code == ResponseCode.SUCCESS
        assert await bodies(peer) == [b"half"]

    with_broker(scenario)


def keep_no_notes(transactions, monkeypatch):
    """Have no decision noted: the disk is full, or the kill comes before it."""

    async def refuse(*_, **__):
        raise StoreError("no room")

    monkeypatch.setattr(transactions, "_note", refuse)


@pytest.mark.parametrize("then", [COMMIT, ROLLBACK])
def test_what_was_committed_and_not_noted_is_not_stored_again(with_broker, monkeypatch, then):
    async def scenario(broker, peer):
        sent = await send_half(peer, b"half")
        with monkeypatch.context() as patch:
            keep_no_notes(broker.managers.transactions, patch)
            answer = await peer.ask(RequestCode.END_TRANSACTION, decision(sent, COMMIT))
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        for kind in (then, COMMIT):
            answer = await peer.ask(RequestCode.END_TRANSACTION, decision(sent, kind))
            assert answer.code == ResponseCode.SUCCESS
        assert await bodies(peer) == [b"half"]

    with_broker(scenario)


@pytest.mark.parametrize("then", [COMMIT, ROLLBACK, UNKNOWN])
def test_what_was_committed_and_not_noted_before_a_kill_is_not_stored_again(
    with_broker, tmp_path, monkeypatch, then
):
    async def scenario(broker, peer):
        sent, other = await send_half(peer, b"half"), await send_half(peer, b"other")
        keep_no_notes(broker.managers.transactions, monkeypatch)
        await peer.ask(RequestCode.END_TRANSACTION, decision(sent, COMMIT))
        copy_as_killed(broker.store.path, tmp_path / "killed")
        monkeypatch.undo()
        async with served(tmp_path / "killed") as (again, other_peer):
            if then == UNKNOWN:
                transactions = again.managers.transactions
                transactions._checks = dict.fromkeys(range(2), again.config.transaction_check_max)
                await transactions.check()
                kept = [message.body for message in again.store.messages(GIVEN_UP)]
                assert kept == [b"other"]
            for kind in (then, COMMIT):
                for half in (sent, other):
                    answer = await other_peer.ask(RequestCode.END_TRANSACTION, decision(half, kind))
                    assert answer.code == ResponseCode.SUCCESS
            found = await bodies(other_peer)
            assert found == [b"half"] + [b"other"] * (then != ROLLBACK)

    with_broker(scenario)


def test_what_nobody_decides_has_no_other_read_again(lives):
    """It may be undecided for days, and a hundred transactions a second be decided behind it."""

    async def undecided_for_long(broker, peer):
        await send_half(peer, b"0")
        for body in (b"1", b"2", b"3"):
            end = decision(await send_half(peer, body), COMMIT)
            assert (await peer.ask(RequestCode.END_TRANSACTION, end)).code == ResponseCode.SUCCESS
        transactions, read = broker.managers.transactions, []
        await transactions.check()
        again = transactions._read

        def noted(*what):
            halves, following = again(*what)
            read.extend(halves)
            return halves, following

        transactions._read = noted
        await transactions.check()
        assert [each.body for each in read] == [b"0"]
        assert not transactions._ended

    async def asked_for_after_a_restart(broker, peer):
        producer, asked = await producer_of(broker)
        assert await broker.managers.transactions.check() == 1
        assert records((await question(asked)).body)[0].body == b"0"
        await producer.client.close()

    lives(undecided_for_long, asked_for_after_a_restart, transactionTimeOut=1)


def test_a_clock_that_is_put_back_keeps_nobody_from_being_asked(with_broker, clock):
    async def scenario(broker, peer):
        producer, asked = await producer_of(broker)
        await send_half(peer, b"half")
        clock.go_on(-3_600_000)
        assert await broker.managers.transactions.check() == 1
        await question(asked)
        await producer.client.close()

    with_broker(scenario)


def test_a_half_message_with_a_time_is_refused_and_told_why(with_broker):
    async def scenario(broker, peer):
        properties = {"TRAN_MSG": "true", "PGROUP": "PG", "TIMER_DELAY_SEC": "9"}
        refused = await peer.send("T", b"half", properties=properties)
        assert refused.code == ResponseCode.MESSAGE_ILLEGAL
        assert refused.remark == (
            "a message of a transaction cannot be a timer message, too (TIMER_DELAY_SEC): it comes "
            "when it is committed; send it without TIMER_DELAY_SEC"
        )
        assert broker.store.max_queue_offset(HALF_TOPIC, 0) == 0

    with_broker(scenario)


def test_retention_deletes_no_half_message_that_nobody_has_decided(with_broker, rng):
    async def scenario(broker, peer):
        store, transactions = broker.store, broker.managers.transactions
        sent = await send_half(peer, b"half")
        for _ in range(30):
            await peer.send("Filling", rng.randbytes(100_000))
        await asyncio.to_thread(store.flush)
        await asyncio.to_thread(rounds, store.parts.upkeep.retention, 3)
        assert store.min_phy_offset == 0
        answer = await peer.ask(RequestCode.END_TRANSACTION, decision(sent, COMMIT))
        assert answer.code == ResponseCode.SUCCESS
        assert await bodies(peer) == [b"half"]
        await transactions.check()
        assert transactions.pending_from() is None
        await until_async(lambda: store.min_phy_offset > 0, "what is decided may go")

    with_broker(scenario, retention_bytes=1 << 20, cleanResourceInterval=50)
