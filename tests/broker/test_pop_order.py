"""POP in order: a queue stands still until what was handed out is done with, or its time over."""

import asyncio
import base64
import json
import math
from itertools import chain

import pytest
from broker.conftest import LONG_MS, held, served
from broker.test_pop import (
    acknowledge,
    acknowledge_batch,
    handed_out,
    naming,
    pop,
    send_many,
)
from killed_copy import copy_as_killed
from patience import until_async

from rmqcore import open_store
from rmqcore.broker.pop.order import PopOrder
from rmqcore.errors import CorruptConfigFileError
from rmqcore.java.json import FormattedJson
from rmqcore.remoting import RequestCode, ResponseCode
from rmqcore.world import wall_clock_ms

pytestmark = pytest.mark.engine

KEY = ("T", "CG", 0)


async def pop_in_order(peer, **fields):
    return await pop(peer, queue_id=0, **{"order": "true", "count": 2, **fields})


def offsets(answer):
    return [message.queue_offset for message, _ in handed_out(answer)]


async def change(peer, message, receipt, invisible_ms):
    fields = {**naming(message, receipt), "invisibleTime": invisible_ms}
    return await peer.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, fields)


def test_a_queue_goes_on_when_all_that_was_handed_out_is_acknowledged(with_broker):
    async def scenario(broker, peer):
        await send_many(peer, 3, queues=1)
        answer = await pop_in_order(peer)
        fields = answer.ext_fields
        assert (fields["reviveQid"], fields["orderCountInfo"]) == ("999", "0 0 0")
        assert (fields["msgOffsetInfo"], fields["restNum"]) == ("0 0 0,1", "1")
        first, second = handed_out(answer)
        committed = broker.store.consumer_offsets
        assert committed.get(*KEY) == 0
        assert (await pop_in_order(peer)).code == ResponseCode.POLLING_TIMEOUT
        assert (await acknowledge(peer, *second)).code == 0
        assert committed.get(*KEY) == 0
        assert (await pop_in_order(peer)).code == ResponseCode.POLLING_TIMEOUT
        assert (await acknowledge(peer, *first)).code == 0
        assert committed.get(*KEY) == 2
        assert offsets(await pop_in_order(peer)) == [2]

    with_broker(scenario)


def test_what_waits_is_woken_by_the_last_acknowledgement(with_broker):
    async def scenario(broker, peer):
        await send_many(peer, 2, queues=1)
        (only,) = handed_out(await pop_in_order(peer, count=1, invisible_ms=LONG_MS))
        waiting = asyncio.create_task(pop_in_order(peer, poll_ms=LONG_MS))
        await held(broker.managers.waiting_pops)
        await acknowledge(peer, *only)
        assert offsets(await waiting) == [1]

    with_broker(scenario)


def test_messages_that_come_while_a_queue_stands_still_leave_no_timers(with_broker):
    async def scenario(broker, peer):
        await send_many(peer, 1, queues=1)
        handed_out(await pop_in_order(peer, count=1, invisible_ms=LONG_MS))
        waiting = asyncio.create_task(pop_in_order(peer, poll_ms=LONG_MS))
        await held(broker.managers.waiting_pops)

        def timers():
            scheduled = asyncio.get_running_loop()._scheduled
            return sum(not each.cancelled() and "WaitingPops" in repr(each) for each in scheduled)

        assert timers() == 1
        await send_many(peer, 20, queues=1)
        await held(broker.managers.waiting_pops)
        assert timers() == 1
        waiting.cancel()

    with_broker(scenario)


def test_an_attempt_has_a_name_of_a_bounded_length(with_broker):
    async def scenario(_, peer):
        await send_many(peer, 1, queues=1)
        refused = await pop_in_order(peer, attemptId="a" * 256)
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert offsets(await pop_in_order(peer, attemptId="a" * 255)) == [0]

    with_broker(scenario)


def test_what_is_not_acknowledged_in_time_comes_again_and_is_counted(with_broker):
    async def scenario(_, peer):
        await send_many(peer, 3, queues=1)
        first, _ = handed_out(await pop_in_order(peer, invisible_ms=300))
        await acknowledge(peer, *first)
        again = await pop_in_order(peer, poll_ms=LONG_MS)
        assert offsets(again) == [1, 2]
        assert again.ext_fields["orderCountInfo"] == "0 qo0%1 1;0 0 0"
        assert (await acknowledge(peer, *first)).code == 0  # of the batch before: nothing
        assert offsets(await pop_in_order(peer)) == []

    with_broker(scenario)


def test_a_time_may_be_changed_and_is_waited_for(with_broker, clock):
    async def scenario(broker, peer):
        await send_many(peer, 1, queues=1)
        ((message, receipt),) = handed_out(await pop_in_order(peer))
        clock.go_on(50)
        changed = await change(peer, message, receipt, 200)
        assert changed.ext_fields["popTime"] == receipt.split(" ")[1]
        assert changed.ext_fields["invisibleTime"] == "250"
        clock.go_on(199)
        assert (await pop_in_order(peer)).code == ResponseCode.POLLING_TIMEOUT
        waiting = asyncio.create_task(pop_in_order(peer, poll_ms=LONG_MS))
        await held(broker.managers.waiting_pops)
        clock.go_on(1)
        again = await waiting
        assert again.ext_fields["orderCountInfo"] == "0 qo0%0 1;0 0 1"

    with_broker(scenario)


def test_an_attempt_that_comes_a_second_time_gets_the_same(with_broker):
    async def scenario(_, peer):
        await send_many(peer, 2, queues=1)
        for _ in range(2):
            answer = await pop_in_order(peer, attemptId="a")
            assert answer.ext_fields["orderCountInfo"] == "0 0 0"
            assert offsets(answer) == [0, 1]
        assert (await pop_in_order(peer, attemptId="b")).code == ResponseCode.POLLING_TIMEOUT

    with_broker(scenario)


def test_a_batch_of_acknowledgements_lets_a_queue_go_on(with_broker, clock):
    """Receipts of another pop in the same millisecond are not taken for those of the last one."""

    async def scenario(broker, peer):
        await send_many(peer, 5, queues=1)
        answer = await pop_in_order(peer, count=4)
        committed = broker.store.consumer_offsets
        assert (await acknowledge_batch(peer, answer, [0, 1, 3])).code == 0
        assert committed.get(*KEY) == 2
        assert (await pop_in_order(peer)).code == ResponseCode.POLLING_TIMEOUT
        wrong = await acknowledge_batch(peer, answer, [2, 4])
        assert wrong.code == ResponseCode.MESSAGE_ILLEGAL
        assert committed.get(*KEY) == 4
        last = await pop_in_order(peer)
        assert offsets(last) == [4]
        # of a batch of before; of no pop; and of more than a pop hands out
        assert (await acknowledge_batch(peer, answer, [4])).code == 0
        endless = await acknowledge_batch(peer, last, [4], pt=FormattedJson("1e999"))
        assert endless.code == ResponseCode.SYSTEM_ERROR
        more = {"b": base64.b64encode(bytes([255] * 5)).decode()}
        assert (await acknowledge_batch(peer, last, [4], **more)).code == 0
        # of no queue: the entries behind it count
        for queue_id in (-1, 1 << 31, "99999999999999999999"):
            assert (await acknowledge_batch(peer, last, [4], q=queue_id)).code == 0
        assert committed.get(*KEY) == 4
        assert (await acknowledge_batch(peer, last, [4])).code == 0
        assert committed.get(*KEY) == 5

    with_broker(scenario)


def test_receipts_are_those_of_rocketmqs_proxy_too(with_broker):
    async def scenario(_, peer):
        await send_many(peer, 2, queues=1)
        ((message, receipt),) = handed_out(await pop_in_order(peer, count=1))
        proxied = f"{receipt} {message.phy_offset}"
        assert (await change(peer, message, proxied, 5000)).code == 0
        assert (await acknowledge(peer, message, proxied)).code == 0
        assert offsets(await pop_in_order(peer)) == [1]

    with_broker(scenario)


def test_a_message_that_was_not_handed_out_cannot_be_acknowledged(with_broker):
    async def scenario(_, peer):
        await send_many(peer, 4, queues=1)
        ((message, receipt),) = handed_out(await pop_in_order(peer, count=1))
        wrong = await acknowledge(peer, message, receipt, offset=3)
        assert wrong.code == ResponseCode.MESSAGE_ILLEGAL

    with_broker(scenario)


def test_a_reset_lets_a_queue_go_on_elsewhere(with_broker):
    async def scenario(_, peer):
        await send_many(peer, 2, queues=1)
        found = handed_out(await pop_in_order(peer))
        reset = {"topic": "T", "group": "CG", "timestamp": 0, "isForce": "true"}
        assert (await peer.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset)).code == 0
        again = await pop_in_order(peer)
        assert offsets(again) == [0, 1]
        assert again.ext_fields["orderCountInfo"] == "0 0 0"
        assert (await acknowledge(peer, *found[0])).code == 0

    with_broker(scenario)


def test_acknowledgements_of_what_was_handed_out_before_a_reset_change_nothing(with_broker, clock):
    async def scenario(_, peer):
        await send_many(peer, 4, queues=1)
        before = handed_out(await pop_in_order(peer, count=4))
        reset = {"topic": "T", "group": "CG", "timestamp": -1, "isForce": "true"}
        reset |= {"queueId": 0, "offset": 2}
        assert (await peer.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset)).code == 0
        clock.go_on(1)
        after = await pop_in_order(peer, count=4)
        assert offsets(after) == [2, 3]
        await send_many(peer, 1, queues=1)
        for each in before:
            await acknowledge(peer, *each)
        assert (await pop_in_order(peer)).code == ResponseCode.POLLING_TIMEOUT
        for each in handed_out(after):
            assert (await acknowledge(peer, *each)).code == 0
        assert offsets(await pop_in_order(peer)) == [4]

    with_broker(scenario)


def test_nothing_is_noticed_of_a_queue_that_stands_still(with_broker):
    async def scenario(_, peer):
        await send_many(peer, 2, queues=1)
        fields = {"consumerGroup": "CG", "topic": "T", "queueId": 0, "pollTime": 0, "bornTime": 0}
        ask = {**fields, "order": "true"}
        assert (await peer.ask(RequestCode.NOTIFICATION, ask)).ext_fields["hasMsg"] == "true"
        await pop_in_order(peer, count=1)
        assert (await peer.ask(RequestCode.NOTIFICATION, ask)).ext_fields["hasMsg"] == "false"

    with_broker(scenario)


def test_what_was_handed_out_survives_a_restart(with_broker):
    async def hand_out(_, peer):
        await send_many(peer, 2, queues=1)
        receipts.extend(handed_out(await pop_in_order(peer)))

    async def go_on(_, peer):
        assert (await pop_in_order(peer)).code == ResponseCode.POLLING_TIMEOUT
        for message, receipt in receipts:
            assert (await acknowledge(peer, message, receipt)).code == 0
        await send_many(peer, 1, queues=1)
        assert offsets(await pop_in_order(peer)) == [2]

    receipts = []
    with_broker(hand_out)
    with_broker(go_on)


def test_a_slave_forgets_what_it_handed_out_as_a_master(with_broker):
    """Made master again, it may have another log up to there."""

    async def hand_out(_, peer):
        await send_many(peer, 2, queues=1)
        receipts.extend(handed_out(await pop_in_order(peer)))

    async def follow(broker, _):
        assert broker.store.max_queue_offset("T", 0) == 2

    async def lead(broker, peer):
        broker.store.consumer_offsets.commit(*KEY[:2], 0, 0)
        for message, receipt in receipts:
            assert (await acknowledge(peer, message, receipt)).code == 0
        assert broker.store.consumer_offsets.get(*KEY) == 0

    receipts = []
    with_broker(hand_out)
    with_broker(follow, brokerRole="SLAVE", brokerId=1)
    with_broker(lead)


def woken_in_s(broker):
    """For how long the one POP that waits is not woken by itself, seconds."""
    waiting = chain(*broker.managers.waiting_pops._by_connection.values())
    at_s = min((each.timer.when() for each in waiting), default=math.inf)
    return at_s - asyncio.get_running_loop().time()


def test_who_waits_is_given_what_comes_sooner_than_was_agreed(with_broker, clock):
    async def scenario(broker, peer):
        await send_many(peer, 1, queues=1)
        ((message, receipt),) = handed_out(await pop_in_order(peer))
        waits = asyncio.create_task(pop_in_order(peer, poll_ms=LONG_MS))
        await held(broker.managers.waiting_pops)
        assert woken_in_s(broker) > 1.5
        assert (await change(peer, message, receipt, 1000)).code == 0
        await until_async(lambda: woken_in_s(broker) <= 1.0, "the one that waits knows of it")
        clock.go_on(1000)
        assert offsets(await waits) == [0]

    with_broker(scenario)


def test_what_was_handed_out_in_no_order_comes_again_when_the_group_has_one(with_broker, clock):
    async def scenario(broker, peer):
        await send_many(peer, 2, queues=1)
        assert len(handed_out(await pop(peer, queue_id=0, count=2))) == 2
        clock.go_on(61_000, broker)
        await until_async(
            lambda: broker.store.max_queue_offset("%RETRY%CG_T", 0) == 2, "they come again"
        )
        await send_many(peer, 1, queues=1)
        found = handed_out(await pop_in_order(peer, count=8))
        assert [message.reconsume_times for message, _ in found] == [0, 1, 1]
        for message, receipt in (found[0], found[1]):
            assert (await acknowledge(peer, message, receipt)).code == 0
        clock.go_on(61_000, broker)
        await until_async(
            lambda: broker.store.max_queue_offset("%RETRY%CG_T", 0) == 3, "one comes again"
        )
        ((message, receipt),) = handed_out(await pop_in_order(peer, count=8))
        assert message.reconsume_times == 2
        assert (await acknowledge(peer, message, receipt)).code == 0
        assert broker.managers.checkpoints.next_due_ms() is None

    with_broker(scenario)


def test_the_file_is_rocketmqs(tmp_path):
    order = PopOrder(tmp_path, lambda: 5000)
    order.hand_out(KEY, [3, 4, 6], 1000, 60_000, "a")
    order.acknowledge(KEY, 4, 1000)
    order.keep_until(KEY, 6, 1000, 9000)
    assert order.persist()
    assert not order.persist()
    written = json.loads(
        (tmp_path / "consumerOrderInfo.json")
        .read_text()
        .replace("{0:", '{"0":')
        .replace("{6:", '{"6":')
    )
    batch = written["table"]["T@CG"]["0"]
    assert (batch["popTime"], batch["i"], batch["o"], batch["cm"]) == (1000, 60_000, [3, 1, 3], 2)
    assert (batch["ot"], batch["oc"], batch["a"]) == ({"6": 9000}, {}, "a")
    again = PopOrder(tmp_path, lambda: 5000)
    assert again.due_ms(KEY, None, 7) == 61_000
    assert again.due_ms(KEY, None, 6) == 0  # the queue is another's that had the name
    assert again.acknowledge(KEY, 3, 1000) == 6
    assert again.due_ms(KEY, None, 7) == 9000
    later = PopOrder(tmp_path, lambda: 5000 + 25 * 3_600_000)
    assert later.persist()
    assert PopOrder(tmp_path, wall_clock_ms).due_ms(KEY, None, 7) == 0


@pytest.mark.parametrize("text", ["{", '{"table":[1]}', '{"table":{"T@CG":{0:{"o":["x"]}}}}'])
def test_a_file_that_is_none_is_refused(tmp_path, text):
    (tmp_path / "consumerOrderInfo.json").write_text(text)
    with pytest.raises(CorruptConfigFileError):
        PopOrder(tmp_path, wall_clock_ms)


def test_a_group_that_was_deleted_waits_for_no_order_of_before(with_broker, tmp_path):
    async def scenario(_, peer):
        await send_many(peer, 1, queues=1)
        assert offsets(await pop_in_order(peer)) == [0]
        fields = {"groupName": "CG", "cleanOffset": "true"}
        deleted = await peer.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, fields)
        assert deleted.code == ResponseCode.SUCCESS
        assert not PopOrder(tmp_path / "store" / "config", wall_clock_ms)._batches
        assert offsets(await pop_in_order(peer)) == [0]

    with_broker(scenario)


def test_a_late_acknowledgement_does_not_undo_where_a_group_was_let_begin(with_broker):
    async def scenario(broker, peer):
        await send_many(peer, 4, queues=1)
        for each in handed_out(await pop_in_order(peer)):
            await acknowledge(peer, *each)
        late, _ = handed_out(await pop_in_order(peer))
        assert len(handed_out(await pop_in_order(peer, consumerGroup="Other"))) == 2
        cloned = {"srcGroup": "Other", "destGroup": "CG", "topic": "T"}
        assert (await peer.ask(RequestCode.CLONE_GROUP_OFFSET, cloned)).code == ResponseCode.SUCCESS
        await acknowledge(peer, *late)
        assert broker.store.consumer_offsets.get(*KEY) == 0
        assert offsets(await pop_in_order(peer)) == [0, 1]

    with_broker(scenario)


def test_a_late_acknowledgement_undoes_that_no_more_behind_a_kill(tmp_path):
    late = []

    async def until_killed():
        async with served(tmp_path / "store") as (broker, peer):
            await send_many(peer, 4, queues=1)
            for each in handed_out(await pop_in_order(peer)):
                await acknowledge(peer, *each)
            late.extend(handed_out(await pop_in_order(peer, invisible_ms=LONG_MS)))
            await pop_in_order(peer, consumerGroup="Other")
            broker.managers.persist_progress()
            cloned = {"srcGroup": "Other", "destGroup": "CG", "topic": "T"}
            answer = await peer.ask(RequestCode.CLONE_GROUP_OFFSET, cloned)
            assert answer.code == ResponseCode.SUCCESS
            copy_as_killed(tmp_path / "store", tmp_path / "killed")

    async def again():
        async with served(tmp_path / "killed") as (broker, peer):
            for each in late:
                await acknowledge(peer, *each)
            assert broker.store.consumer_offsets.get(*KEY) == 0
            assert offsets(await pop_in_order(peer)) == [0, 1]

    asyncio.run(until_killed())
    asyncio.run(again())


def test_what_is_in_order_stays_so_in_a_log_that_has_only_grown(lives, tmp_path):
    """Another program has put between two lives of a broker: nothing is cut off."""
    receipts = []

    async def before(_, peer):
        await send_many(peer, 2, queues=1)
        receipts.extend(handed_out(await pop_in_order(peer, invisible_ms=LONG_MS)))

    async def after(broker, peer):
        assert broker.store.max_queue_offset("T", 0) == 3
        assert offsets(await pop_in_order(peer)) == []
        for message, receipt in receipts:
            assert (await acknowledge(peer, message, receipt)).code == ResponseCode.SUCCESS
        assert offsets(await pop_in_order(peer)) == [2]

    lives(before)
    with open_store(tmp_path / "store") as store:
        store.put("T", b"x", queue_id=0)
    lives(after)
