"""POP: handed out once at a time, again when nobody acknowledges it, whatever restarts between."""

import asyncio
import base64
import itertools
import threading
import time

import pytest
from broker.conftest import LONG_MS, Peer, held, records
from patience import until, until_async

from rmqcore.broker.pop import acks
from rmqcore.broker.pop.checkpoints import _BATCH
from rmqcore.broker.pop.receipts import Receipt
from rmqcore.broker.pull.matching import SCANNED_MAX
from rmqcore.java.json import format_java_json
from rmqcore.message import Message
from rmqcore.remoting import RequestCode, RequestRefusedError, ResponseCode
from rmqcore.world import wall_clock_ms

pytestmark = pytest.mark.engine


async def pop(peer, *, queue_id=-1, count=32, invisible_ms=60_000, poll_ms=0, **more):
    fields = {
        "consumerGroup": "CG",
        "topic": "T",
        "queueId": queue_id,
        "maxMsgNums": count,
        "invisibleTime": invisible_ms,
        "pollTime": poll_ms,
        "bornTime": 0,
        "initMode": 0,
        "order": "false",
        **more,
    }
    return await peer.ask(RequestCode.POP_MESSAGE, fields)


def handed_out(answer):
    """The messages of an answer with their receipts, as a client makes them."""
    fields, found = answer.ext_fields, []
    starts = {}
    for entry in fields.get("startOffsetInfo", "").split(";"):
        if entry:
            flag, queue_id, start = entry.split(" ")
            assert (flag, queue_id) not in starts
            starts[flag, queue_id] = start
    messages = records(answer.body)
    for entry in fields.get("msgOffsetInfo", "").split(";"):
        if entry:
            flag, queue_id, offsets = entry.split(" ")
            for offset in offsets.split(","):
                message = messages[len(found)]
                assert (message.queue_id, message.queue_offset) == (int(queue_id), int(offset))
                receipt = message.properties.get("POP_CK") or (
                    f"{starts[flag, queue_id]} {fields['popTime']} {fields['invisibleTime']} "
                    f"{fields['reviveQid']} {flag} broker-a {queue_id} {offset}"
                )
                found.append((message, receipt))
    assert len(found) == len(messages)
    return found


def naming(message, receipt):
    """The fields by which an acknowledgement names a message."""
    retry = receipt.split(" ")[4] != "0"
    return {
        "consumerGroup": "CG",
        "topic": "%RETRY%CG_T" if retry else "T",
        "queueId": message.queue_id,
        "offset": message.queue_offset,
        "extraInfo": receipt,
    }


async def acknowledge(peer, message, receipt, **more):
    return await peer.ask(RequestCode.ACK_MESSAGE, {**naming(message, receipt), **more})


async def acknowledge_batch(peer, answer, offsets, **more):
    """Acknowledge messages of what a pop of queue 0 has handed out, in one request."""
    bits = sum(1 << offset for offset in offsets)
    fields = answer.ext_fields
    entry = {
        **{"c": "CG", "t": "T", "r": "0", "so": 0, "q": 0, "rq": int(fields["reviveQid"])},
        **{"pt": int(fields["popTime"]), "it": int(fields["invisibleTime"])},
        "b": base64.b64encode(bits.to_bytes(bits.bit_length() // 8 + 1, "little")).decode(),
        **more,
    }
    body = {"brokerName": "broker-a", "acks": [{"c": "CG"}, entry]}
    return await peer.ask(RequestCode.BATCH_ACK_MESSAGE, body=format_java_json(body).encode())


async def send_many(peer, count, queues=4):
    for number in range(count):
        sent = await peer.send("T", b"%d" % number, queue_id=number % queues)
        assert sent.code == ResponseCode.SUCCESS


async def pop_until(peer, count, **more):
    """Pop until there are so many messages."""
    found = []

    async def enough():
        found.extend(handed_out(await pop(peer, poll_ms=1000, **more)))
        return len(found) >= count

    await until_async(enough, f"{count} messages popped")
    return found


def comes_again(broker):
    """A round of what looks for messages to hand out again; whether it has left some."""
    return broker.managers.pop_acks.revive_due()


def test_messages_of_all_queues_are_handed_out_and_the_offsets_move(with_broker):
    async def scenario(broker, peer):
        await send_many(peer, 10)
        answer = await pop(peer)
        assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, "FOUND")
        found = handed_out(answer)
        assert sorted(int(m.body) for m, _ in found) == list(range(10))
        assert answer.ext_fields["restNum"] == "0"
        assert answer.ext_fields["invisibleTime"] == "60000"
        assert 0 <= int(answer.ext_fields["reviveQid"]) < 8
        offsets = broker.store.consumer_offsets
        assert [offsets.get("T", "CG", q) for q in range(4)] == [3, 3, 2, 2]
        none = await pop(peer)
        assert (none.code, none.remark) == (ResponseCode.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE")
        assert none.ext_fields["restNum"] == "0"

    with_broker(scenario)


def test_a_pop_of_one_queue_tells_exactly_what_it_hands_out(with_broker):
    async def scenario(_, peer):
        await send_many(peer, 5, queues=1)
        first = await pop(peer, queue_id=0, count=2)
        assert first.ext_fields["startOffsetInfo"] == "0 0 0"
        assert first.ext_fields["msgOffsetInfo"] == "0 0 0,1"
        assert first.ext_fields["restNum"] == "3"
        second = await pop(peer, queue_id=0)
        assert second.ext_fields["startOffsetInfo"] == "0 0 2"
        assert second.ext_fields["msgOffsetInfo"] == "0 0 2,3,4"

    with_broker(scenario)


def test_a_pop_by_tags_finds_what_lies_beyond_what_one_call_looks_at(with_broker):
    async def scenario(broker, peer):
        await peer.send("T", b"first")
        several = [Message("T", b"x", properties={"TAGS": "a"}) for _ in range(2 * SCANNED_MAX)]
        broker.store.put_messages([*several, Message("T", b"last", properties={"TAGS": "b"})])
        answer = await pop(peer, queue_id=0, exp="b", expType="TAG", poll_ms=LONG_MS)
        assert [message.body for message in records(answer.body)] == [b"last"]

    with_broker(scenario)


def test_a_pop_whose_connection_was_closed_takes_no_arrival_from_the_next(with_broker):
    async def scenario(broker, peer):
        await peer.send("T", b"first")
        await pop(peer)
        gone, hold = Peer(broker), broker.managers.waiting_pops
        asked = []
        for each in (gone, peer):
            asked.append(asyncio.ensure_future(pop(each, poll_ms=LONG_MS)))
            await held(hold, len(asked))
        await gone.client.close()
        await held(hold, 1)
        await peer.send("T", b"second")
        answer = await asked[1]
        assert [message.body for message in records(answer.body)] == [b"second"]
        assert len(hold) == 0
        await asyncio.wait(asked)

    with_broker(scenario)


def test_only_what_the_expression_wants_is_handed_out(with_broker):
    async def scenario(broker, peer):
        for tag in "abca":
            await peer.send("T", tag.encode(), properties={"TAGS": tag, "n": tag})
        answer = await pop(peer, queue_id=0, exp="a || c", expType="TAG")
        assert answer.ext_fields["msgOffsetInfo"] == "0 0 0,2,3"
        assert broker.store.consumer_offsets.get("T", "CG", 0) == 4
        sql = await pop(peer, queue_id=0, consumerGroup="G2", exp="n = 'b'", expType="SQL92")
        assert sql.ext_fields["msgOffsetInfo"] == "0 0 1"
        wrong = await pop(peer, exp="n LIKE 'b'", expType="SQL92")
        assert wrong.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED

    with_broker(scenario, enablePropertyFilter="true")


def test_what_is_acknowledged_does_not_come_again_and_what_is_not_does(with_broker, clock):
    async def scenario(broker, peer):
        await send_many(peer, 4, queues=1)
        began_ms = clock.now_ms
        found = handed_out(await pop(peer, invisible_ms=2000))
        for message, receipt in found[:3]:
            assert (await acknowledge(peer, message, receipt)).code == ResponseCode.SUCCESS
        clock.go_on(1999)
        assert not comes_again(broker)
        assert (await pop(peer)).code == ResponseCode.POLLING_TIMEOUT
        clock.go_on(1, broker)
        ((message, receipt),) = await pop_until(peer, 1)
        assert (message.body, message.topic, message.reconsume_times) == (b"3", "T", 1)
        assert message.properties["ORIGIN_GROUP"] == "CG"
        assert int(message.properties["1ST_POP_TIME"]) == began_ms
        assert receipt.split(" ")[4] == "1"
        assert (await acknowledge(peer, message, receipt)).code == ResponseCode.SUCCESS
        clock.go_on(60_000)
        assert not comes_again(broker)
        assert (await pop(peer)).code == ResponseCode.POLLING_TIMEOUT

    with_broker(scenario)


def test_a_message_that_fails_again_goes_to_the_same_retry_topic(with_broker, clock):
    async def scenario(broker, peer):
        await send_many(peer, 1)
        await pop(peer, invisible_ms=100)
        clock.go_on(100, broker)
        await pop_until(peer, 1, invisible_ms=100)
        clock.go_on(100, broker)
        ((message, _),) = await pop_until(peer, 1)
        assert message.reconsume_times == 2
        assert broker.store.max_queue_offset("%RETRY%CG_T", 0) == 2
        retries = [t for t, _ in broker.store.queues() if t.startswith("%RETRY%")]
        assert retries == ["%RETRY%CG_T"]

    with_broker(scenario)


def test_another_time_may_be_agreed(with_broker, clock):
    async def scenario(broker, peer):
        await send_many(peer, 1)
        ((message, receipt),) = handed_out(await pop(peer, invisible_ms=60_000))
        clock.go_on(100)
        changed = await peer.ask(
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
            {**naming(message, receipt), "invisibleTime": 500},
        )
        assert changed.code == ResponseCode.SUCCESS
        assert changed.ext_fields["invisibleTime"] == "500"
        assert (await acknowledge(peer, message, receipt)).code == ResponseCode.SUCCESS
        clock.go_on(499)
        assert not comes_again(broker)
        assert (await pop(peer)).code == ResponseCode.POLLING_TIMEOUT
        clock.go_on(1, broker)
        ((again, _),) = await pop_until(peer, 1)
        assert (again.body, again.reconsume_times) == (b"0", 1)

    with_broker(scenario)


def test_a_batch_of_acknowledgements_names_offsets_by_bits(with_broker, clock):
    async def scenario(broker, peer):
        await send_many(peer, 5, queues=1)
        answer = await pop(peer, queue_id=0, invisible_ms=2000)
        done = await acknowledge_batch(peer, answer, [0, 1, 2, 4])
        assert done.code == ResponseCode.SUCCESS
        clock.go_on(2000, broker)
        ((message, _),) = await pop_until(peer, 1)
        assert message.body == b"3"
        none = await peer.ask(RequestCode.BATCH_ACK_MESSAGE, body=b'{"acks":[]}')
        assert none.code == ResponseCode.NO_MESSAGE

    with_broker(scenario)


def test_a_batch_of_acknowledgements_reaches_as_far_as_a_pop_looks(with_broker, clock):
    async def scenario(broker, peer):
        await peer.send("T", b"first")
        others = [Message("T", b"x", properties={"TAGS": "a"}) for _ in range(700)]
        broker.store.put_messages([*others, Message("T", b"last", properties={"TAGS": "b"})])
        answer = await pop(peer, queue_id=0, exp="b", expType="TAG", invisible_ms=2000)
        ((message, _),) = handed_out(answer)
        done = await acknowledge_batch(peer, answer, [message.queue_offset])
        assert done.code == ResponseCode.SUCCESS
        assert len(broker.managers.checkpoints) == 0

    with_broker(scenario)


def test_what_was_not_acknowledged_comes_again_after_a_restart(with_broker, clock):
    kept = []

    async def first(_, peer):
        await send_many(peer, 4, queues=1)
        found = handed_out(await pop(peer, invisible_ms=6000))
        assert (await acknowledge(peer, *found[0])).code == ResponseCode.SUCCESS
        kept.extend(found[1:])

    async def again(broker, peer):
        assert (await acknowledge(peer, *kept[0])).code == ResponseCode.SUCCESS
        clock.go_on(6000, broker)
        found = await pop_until(peer, 2)
        assert sorted(m.body for m, _ in found) == [b"2", b"3"]
        for each in found:
            assert (await acknowledge(peer, *each)).code == ResponseCode.SUCCESS

    async def once_more(broker, peer):
        clock.go_on(60_000)
        assert not comes_again(broker)
        assert (await pop(peer)).code == ResponseCode.POLLING_TIMEOUT

    with_broker(first)
    with_broker(again)
    with_broker(once_more)


def test_checkpoints_are_on_the_disk_before_the_offsets_that_rely_on_them(with_broker):
    async def scenario(broker, peer):
        await send_many(peer, 4, queues=1)
        await pop(peer)
        store, order, here = broker.store, [], threading.get_ident()
        write, end = store.consumer_offsets._file.store, store.max_phy_offset

        def noted(text):
            """What is on the disk when this thread writes; others write when it is their time."""
            if threading.get_ident() == here:
                order.append(store.parts.log_services.flusher.flushed_offset)
            return write(text)

        def written_here():
            store.consumer_offsets.commit("T", "CG2", 0, next(offsets))
            store.consumer_offsets.persist()
            return order

        offsets = itertools.count(1)
        store.consumer_offsets._file.store = noted
        until(written_here, "this thread writes the offsets, and no other is faster")
        assert order[0] >= end
        store.consumer_offsets._file.store = write

    with_broker(scenario)


def test_a_pop_waits_for_a_message_and_one_pop_gets_it(with_broker):
    async def scenario(broker, peer):
        await send_many(peer, 1)
        await pop(peer)
        waiting = [asyncio.ensure_future(pop(peer, poll_ms=LONG_MS)) for _ in range(2)]
        info = {"consumerGroup": "CG", "topic": "T", "queueId": -1}

        async def both():
            told = await peer.ask(RequestCode.POLLING_INFO, info)
            return told.ext_fields["pollingNum"] == "2"

        await until_async(both, "both wait")
        await peer.send("T", b"new", queue_id=2)
        done, left = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        ((message, _),) = handed_out(done.pop().result())
        assert message.body == b"new"
        assert (len(left), len(broker.managers.waiting_pops)) == (1, 1)
        broker.managers.release()
        assert (await left.pop()).code == ResponseCode.POLLING_TIMEOUT

    with_broker(scenario)


def test_a_pop_that_waits_in_vain_is_told_before_its_client_gives_up(with_broker, clock):
    async def scenario(broker, peer):
        await send_many(peer, 1)
        await pop(peer)
        hold, left_s = broker.managers.waiting_pops, []
        let_wait = hold.add

        def noted(waits, timeout_s, again_s):
            left_s.append(timeout_s)
            return let_wait(waits, timeout_s, again_s)

        hold.add = noted
        born_ms = clock.now_ms
        clock.go_on(100)
        began = time.monotonic()
        answer = await pop(peer, poll_ms=600, bornTime=born_ms)
        assert answer.code == ResponseCode.POLLING_TIMEOUT
        # something that has come may wake it: it waits for the rest of its time then
        assert left_s == sorted(left_s, reverse=True)
        assert 0 < left_s[0] <= 0.45
        assert time.monotonic() - began >= 0.44

    with_broker(scenario)


@pytest.mark.measure
def test_how_long_a_pop_waits_in_vain(with_broker, figure):
    async def scenario(_, peer):
        await send_many(peer, 1)
        await pop(peer)
        took_s = []
        for _ in range(3):
            began = time.monotonic()
            answer = await pop(peer, poll_ms=600, bornTime=wall_clock_ms())
            took_s.append(time.monotonic() - began)
            assert answer.code == ResponseCode.POLLING_TIMEOUT
        assert min(took_s) > 0.45
        figure("a client that waits 0.6 s is answered after", min(took_s), "s", at_most=0.6)

    with_broker(scenario)


def test_a_pop_waits_for_what_comes_again(with_broker, clock):
    async def scenario(broker, peer):
        await send_many(peer, 1)
        await pop(peer, invisible_ms=400)
        waiting = asyncio.ensure_future(pop(peer, poll_ms=LONG_MS))
        await held(broker.managers.waiting_pops)
        clock.go_on(400, broker)
        ((message, _),) = handed_out(await waiting)
        assert (message.body, message.reconsume_times) == (b"0", 1)

    with_broker(scenario)


def test_a_notification_tells_of_messages_and_moves_nothing(with_broker):
    async def scenario(broker, peer):
        fields = {"consumerGroup": "CG", "topic": "T", "queueId": -1, "pollTime": LONG_MS}
        await send_many(peer, 1)
        told = await peer.ask(RequestCode.NOTIFICATION, fields)
        assert told.ext_fields["hasMsg"] == "true"
        peeked = await peer.ask(RequestCode.PEEK_MESSAGE, {**fields, "maxMsgNums": 5})
        assert [m.body for m in records(peeked.body)] == [b"0"]
        assert len(handed_out(await pop(peer))) == 1
        waiting = asyncio.ensure_future(peer.ask(RequestCode.NOTIFICATION, fields))
        await held(broker.managers.waiting_pops)
        assert not waiting.done()
        await peer.send("T", b"new")
        assert (await waiting).ext_fields["hasMsg"] == "true"
        await pop(peer)
        fields["pollTime"] = 200
        none = await peer.ask(RequestCode.NOTIFICATION, fields)
        assert none.ext_fields["hasMsg"] == "false"

    with_broker(scenario)


def test_a_new_group_begins_where_it_asks(with_broker):
    async def scenario(broker, peer):
        await send_many(peer, 3, queues=1)
        answer = await pop(peer, queue_id=0, initMode=1)
        assert answer.ext_fields["msgOffsetInfo"] == "0 0 0,1,2"
        reset = {"topic": "T", "group": "CG", "timestamp": 0, "isForce": "true"}
        assert (await peer.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset)).code == 0
        again = await pop(peer, queue_id=0)
        assert again.ext_fields["msgOffsetInfo"] == "0 0 0,1,2"

    with_broker(scenario)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"bornTime": 1000}, ResponseCode.POLLING_TIMEOUT),
        ({"maxMsgNums": 33}, ResponseCode.INVALID_PARAMETER),
        ({"topic": "Unknown"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queueId": 4}, ResponseCode.INVALID_PARAMETER),
    ],
)
def test_a_pop_that_cannot_be_is_refused_by_its_code_with_numbers(with_broker, fields, code):
    async def scenario(_, peer):
        await send_many(peer, 1)
        answer = await pop(peer, **fields)
        assert answer.code == code
        assert answer.ext_fields["restNum"] == "0"
        assert answer.remark

    with_broker(scenario)


def test_an_acknowledgement_is_checked(with_broker):
    async def scenario(_, peer):
        await send_many(peer, 1)
        ((message, receipt),) = handed_out(await pop(peer))
        for wrong, code in (
            ({"topic": "Unknown"}, ResponseCode.TOPIC_NOT_EXIST),
            ({"queueId": 9}, ResponseCode.MESSAGE_ILLEGAL),
            ({"offset": 7}, ResponseCode.NO_MESSAGE),
            ({"extraInfo": "1 2 3"}, ResponseCode.SYSTEM_ERROR),
            ({"extraInfo": receipt.replace(" 60000 ", " x ")}, ResponseCode.SYSTEM_ERROR),
            ({"extraInfo": "0 1 60000 2 0 broker-a 0 0"}, ResponseCode.SUCCESS),
        ):
            assert (await acknowledge(peer, message, receipt, **wrong)).code == code

    with_broker(scenario)


def test_a_receipt_is_read_as_it_is_written():
    text = "1 1795315955368 20000 2 0 broker-a 0 2"
    assert str(Receipt.parse(text)) == text
    assert Receipt.parse(text + " 4711") == Receipt.parse(text)
    with pytest.raises(RequestRefusedError):
        Receipt.parse(text.removesuffix(" 2"))


def test_receipts_are_those_of_rocketmqs_proxy_too(with_broker, clock):
    async def scenario(broker, peer):
        await send_many(peer, 2, queues=1)
        first, second = (
            (message, f"{receipt} {message.phy_offset}")
            for message, receipt in handed_out(await pop(peer, invisible_ms=2000))
        )
        assert (await acknowledge(peer, *first)).code == ResponseCode.SUCCESS
        fields = {**naming(*second), "invisibleTime": 10_000}
        changed = await peer.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, fields)
        assert (changed.code, changed.ext_fields["invisibleTime"]) == (0, "10000")
        clock.go_on(2000, broker)
        assert not comes_again(broker)
        clock.go_on(8000, broker)
        ((message, _),) = await pop_until(peer, 1)
        assert message.body == second[0].body

    with_broker(scenario)


def test_what_is_acknowledged_leaves_nothing_that_waits_for_its_time(with_broker):
    async def scenario(broker, peer):
        checkpoints = broker.managers.checkpoints
        for _ in range(600):
            await peer.send("T", b"x")
            ((message, receipt),) = handed_out(await pop(peer, queue_id=0, invisible_ms=LONG_MS))
            await acknowledge(peer, message, receipt)
        await peer.send("T", b"open")
        assert len(handed_out(await pop(peer, queue_id=0, invisible_ms=LONG_MS))) == 1
        assert len(checkpoints) == 1
        assert len(checkpoints._heap) <= 2 + _BATCH
        assert checkpoints.next_due_ms() > wall_clock_ms()

    with_broker(scenario)


def test_a_batch_wakes_as_many_pops_as_it_has_messages(with_broker):
    count = 300

    async def scenario(broker, peer):
        await send_many(peer, 1, queues=1)
        assert len(handed_out(await pop(peer, queue_id=0))) == 1
        waiting = [
            asyncio.ensure_future(pop(peer, queue_id=0, count=1, poll_ms=LONG_MS))
            for _ in range(count)
        ]
        await held(broker.managers.waiting_pops, count)
        broker.store.put_messages([Message("T", b"%d" % number) for number in range(count)])
        answers = await asyncio.gather(*waiting)
        assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}
        found = [int(message.body) for each in answers for message, _ in handed_out(each)]
        assert sorted(found) == [*range(count)]

    with_broker(scenario)


def test_so_many_messages_at_once_come_again_and_others_are_served_between(
    with_broker, clock, monkeypatch
):
    async def scenario(broker, peer):
        await send_many(peer, 10, queues=1)
        assert len(handed_out(await pop(peer, queue_id=0, invisible_ms=1000))) == 10
        clock.go_on(60_000)
        monkeypatch.setattr(acks, "_REVIVED_AT_ONCE", 4)
        came = []
        for _ in range(3):
            broker.managers.pop_acks.revive_due()
            came.append(broker.store.max_queue_offset("%RETRY%CG_T", 0))
        assert came == [4, 8, 10]

    with_broker(scenario)


def test_a_pop_is_handed_nothing_of_others_that_have_the_same_retry_topic(with_broker):
    """That of `CG` and `T` is the one of who pulls as `CG_T`, and of `C` that pops `G_T`."""

    async def scenario(_, peer):
        await send_many(peer, 1)
        assert len(handed_out(await pop(peer))) == 1
        own = {"ORIGIN_GROUP": "CG"}
        others = {"RETRY_TOPIC": "Secret"}, {"ORIGIN_GROUP": "C"}, {"ORIGIN_GROUP": "CG_T"}
        for properties in (*others, {"RETRY_TOPIC": "T"}, others[0], own):
            await peer.send("%RETRY%CG_T", str(properties).encode(), properties=properties)
        fields = {"consumerGroup": "CG", "topic": "T", "queueId": -1, "maxMsgNums": 32}
        peeked = records((await peer.ask(RequestCode.PEEK_MESSAGE, fields)).body)
        popped = [message for message, _ in handed_out(await pop(peer))]
        for found in (peeked, popped):
            bodies = {bytes(message.body) for message in found}
            assert bodies == {str({"RETRY_TOPIC": "T"}).encode(), str(own).encode()}
        assert (await pop(peer)).code == ResponseCode.POLLING_TIMEOUT

    with_broker(scenario)
