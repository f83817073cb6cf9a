"""POP after a kill: the offsets on the disk are older than what was handed out and acknowledged."""

import re
from contextlib import asynccontextmanager

import pytest
from broker.conftest import records, served
from broker.test_pop import acknowledge, handed_out, naming, pop, send_many
from broker.test_pop_answers import LIGHT, WITH_LIGHT, send_light
from killed_copy import copy_as_killed

from rmqcore import open_store
from rmqcore.broker.pop.receipts import REVIVE_QUEUES
from rmqcore.errors import StoreError
from rmqcore.remoting import RequestCode, ResponseCode

pytestmark = pytest.mark.engine

KEY = ("T", "CG", 0)
MORE = f'"reviveQueueEnds":{[9] * REVIVE_QUEUES}'


@asynccontextmanager
async def killed(broker, scratch, between=None):
    """A broker on what a kill leaves now of the store of another, and a peer."""
    path = scratch / "killed"
    copy_as_killed(broker.store.path, path)
    if between is not None:
        between(path)
    async with served(path) as both:
        yield both


def keep_offsets(broker):
    """Have the file of the offsets say from now on what it says now, but for `written`."""
    table = broker.store.consumer_offsets
    written, table.persist = table.persist, lambda: False
    return written


def bodies(answer):
    return b"".join(message.body for message, _ in handed_out(answer))


async def consume(peer, count, **more):
    found = handed_out(await pop(peer, count=count, queue_id=0, **more))
    for each in found:
        assert (await acknowledge(peer, *each)).code == ResponseCode.SUCCESS
    return b"".join(message.body for message, _ in found)


@pytest.mark.parametrize("order", ["false", "true"])
def test_nothing_comes_again_that_was_acknowledged(with_broker, tmp_path, order):
    async def scenario(broker, peer):
        keep_offsets(broker)
        await send_many(peer, 9, queues=1)
        assert await consume(peer, 3, order=order) == b"012"
        broker.managers.pop_order.persist()
        assert await consume(peer, 3, order=order) == b"345"
        async with killed(broker, tmp_path) as (again, next_peer):
            assert again.store.consumer_offsets.get(*KEY) == 6
            assert await consume(next_peer, 9, order=order) == b"678"
            assert len(again.managers.checkpoints) == 0

    with_broker(scenario)


def test_nothing_of_a_light_queue_comes_again_that_was_handed_out(with_broker, tmp_path):
    async def scenario(broker, peer):
        keep_offsets(broker)
        await send_light(peer, b"1", b"2", b"3")
        assert len(records((await pop(peer, topic=LIGHT, count=2)).body)) == 2
        async with killed(broker, tmp_path) as (_, next_peer):
            (left,) = records((await pop(next_peer, topic=LIGHT)).body)
            assert left.body == b"3"

    with_broker(scenario, **WITH_LIGHT)


def test_an_acknowledgement_in_order_behind_a_kill_takes_none_of_before_back(with_broker, tmp_path):
    async def scenario(broker, peer):
        keep_offsets(broker)
        await send_many(peer, 4, queues=1)
        found = handed_out(await pop(peer, count=3, queue_id=0, order="true"))
        broker.managers.pop_order.persist()
        await acknowledge(peer, *found[0])
        async with killed(broker, tmp_path) as (again, next_peer):
            for number in (1, 2):
                answer = await acknowledge(next_peer, *found[number])
                assert answer.code == ResponseCode.SUCCESS
                assert again.store.consumer_offsets.get(*KEY) == number + 1
            assert bodies(await pop(next_peer, queue_id=0, order="true")) == b"3"

    with_broker(scenario)


def test_what_was_handed_out_only_comes_once_and_when_its_time_is_over(
    with_broker, clock, tmp_path
):
    async def scenario(broker, peer):
        keep_offsets(broker)
        await send_many(peer, 4, queues=1)
        await pop(peer, count=2)
        async with killed(broker, tmp_path) as (again, next_peer):
            assert bodies(await pop(next_peer)) == b"23"
            clock.go_on(60_000)
            again.managers.pop_acks.revive_due()
            assert bodies(await pop(next_peer)) == b"0123"

    with_broker(scenario)


def test_records_in_the_place_of_lost_ones_are_known_from_the_start_on(with_broker, tmp_path):
    def has_known_more(path):
        file = path / "config" / "consumerOffset.json"
        text, count = re.subn(r'"reviveQueueEnds":\[[^]]*\]', MORE, file.read_text())
        assert count == 1
        file.write_text(text)

    async def scenario(broker, _):
        async with killed(broker, tmp_path, has_known_more) as (again, _):
            text = again.store.consumer_offsets.path.read_text()
            assert '"reviveQueueEnds":[' in text
            assert MORE not in text

    with_broker(scenario)


def test_an_offset_that_was_set_back_stays(with_broker, tmp_path):
    async def scenario(broker, peer):
        written = keep_offsets(broker)
        await send_many(peer, 6, queues=1)
        assert await consume(peer, 4) == b"0123"
        broker.store.consumer_offsets.persist = written
        fields = {"topic": "T", "group": "CG", "timestamp": -1, "queueId": 0, "offset": 1}
        reset = await peer.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)
        assert reset.code == ResponseCode.SUCCESS
        async with killed(broker, tmp_path) as (_, next_peer):
            assert bodies(await pop(next_peer)) == b"12345"

    with_broker(scenario)


def test_an_offset_that_was_set_back_stays_when_another_time_is_agreed_then(with_broker, tmp_path):
    async def scenario(broker, peer):
        await send_many(peer, 6, queues=1)
        last = handed_out(await pop(peer, queue_id=0))[-1]
        fields = {"topic": "T", "group": "CG", "timestamp": -1, "queueId": 0, "offset": 1}
        await peer.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)
        later = {**naming(*last), "invisibleTime": 60_000}
        changed = await peer.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, later)
        assert changed.code == ResponseCode.SUCCESS
        async with killed(broker, tmp_path) as (again, next_peer):
            assert bodies(await pop(next_peer)) == b"12345"
            kept = again.managers.checkpoints.open_of("CG")
            assert [5] in [each.open_offsets for each in kept]

    with_broker(scenario)


def test_an_offset_that_was_set_behind_a_kill_stays(with_broker, tmp_path):
    def set_by_hand(path):
        with open_store(path) as store:
            store.consumer_offsets.commit(*KEY, 1)

    async def scenario(broker, peer):
        keep_offsets(broker)
        await send_many(peer, 6, queues=1)
        assert await consume(peer, 4) == b"0123"
        async with killed(broker, tmp_path, set_by_hand) as (_, next_peer):
            assert bodies(await pop(next_peer)) == b"12345"

    with_broker(scenario)


def test_a_topic_that_was_made_again_is_handed_out_from_its_beginning(with_broker, tmp_path):
    async def scenario(broker, peer):
        keep_offsets(broker)
        await send_many(peer, 6, queues=1)
        assert await consume(peer, 4) == b"0123"
        deleted = await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
        assert deleted.code == ResponseCode.SUCCESS
        await send_many(peer, 6, queues=1)
        async with killed(broker, tmp_path) as (_, next_peer):
            assert bodies(await pop(next_peer)) == b"012345"

    with_broker(scenario)


class Refused:
    """Lets one put of a store through, and does something, or refuses, at the next ones."""

    def __init__(self, store, then):
        self.store, self.put, self.then, self.count = store, store.put_message, then, 0
        store.put_message = self

    def __call__(self, message):
        self.count += 1
        if self.count > 1:
            self.then()
        return self.put(message)

    def over(self):
        self.store.put_message = self.put


async def change(peer, found, invisible_ms):
    """Have what a pop has handed out come again at another time."""
    fields = {**naming(*found), "invisibleTime": invisible_ms}
    return await peer.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, fields)


async def nothing_comes(broker, peer, clock):
    for _ in range(2):
        clock.go_on(200_000)
        broker.managers.pop_acks.revive_due()
        assert bodies(await pop(peer)) == b""


@pytest.mark.parametrize("acknowledged", [True, False])
def test_a_change_of_time_that_a_kill_has_cut_short_leaves_a_message_once(
    with_broker, clock, tmp_path, acknowledged
):
    async def scenario(broker, peer):
        keep_offsets(broker)
        await send_many(peer, 1, queues=1)
        (found,) = handed_out(await pop(peer))
        path, again = tmp_path / "between", tmp_path / "again"
        refused = Refused(broker.store, lambda: copy_as_killed(broker.store.path, path))
        assert (await change(peer, found, 90_000)).code == ResponseCode.SUCCESS
        refused.over()
        assert path.is_dir()
        async with served(path) as (next_broker, next_peer):
            # the client has no answer, and knows the receipt of before alone
            if acknowledged:
                assert (await acknowledge(next_peer, *found)).code == ResponseCode.SUCCESS
            copy_as_killed(path, again)
        async with served(again) as (next_broker, next_peer):
            if not acknowledged:
                clock.go_on(200_000)
                next_broker.managers.pop_acks.revive_due()
                assert await consume(next_peer, 9, topic="T") == b"0"
            await nothing_comes(next_broker, next_peer, clock)

    with_broker(scenario)


def test_a_change_of_time_that_has_no_room_for_its_end_leaves_a_message_once(
    with_broker, clock, tmp_path
):
    def is_full():
        raise StoreError("no room")

    async def scenario(broker, peer):
        await send_many(peer, 2, queues=1)
        found, other = handed_out(await pop(peer))
        refused = Refused(broker.store, is_full)
        changed = await change(peer, found, 90_000)
        assert changed.code == ResponseCode.SUCCESS
        refused.over()
        assert (await acknowledge(peer, *found)).code == ResponseCode.SUCCESS
        assert (await acknowledge(peer, *other)).code == ResponseCode.SUCCESS
        await nothing_comes(broker, peer, clock)
        async with killed(broker, tmp_path) as (again, next_peer):
            await nothing_comes(again, next_peer, clock)

    with_broker(scenario)


def test_what_comes_again_on_a_full_disk_comes_once(with_broker, clock):
    def is_full():
        raise StoreError("no room")

    async def scenario(broker, peer):
        await send_many(peer, 1, queues=1)
        await pop(peer, invisible_ms=1000)
        clock.go_on(200_000)
        refused = Refused(broker.store, is_full)
        for _ in range(3):
            with pytest.raises(StoreError, match="no room"):
                broker.managers.pop_acks.revive_due()
        refused.over()
        broker.managers.pop_acks.revive_due()
        assert broker.store.max_queue_offset("%RETRY%CG_T", 0) == 1
        assert len(broker.managers.checkpoints) == 0

    with_broker(scenario)


@pytest.mark.parametrize("between_ms", [10, 0])
def test_a_time_that_was_changed_often_without_room_for_its_ends_leaves_a_message_once(
    with_broker, clock, tmp_path, between_ms
):
    def is_full():
        raise StoreError("no room")

    async def scenario(broker, peer):
        keep_offsets(broker)
        await send_many(peer, 1, queues=1)
        (found,) = handed_out(await pop(peer))
        for invisible_ms in (90_000, 95_000, 92_000):
            clock.go_on(between_ms)
            refused = Refused(broker.store, is_full)
            assert (await change(peer, found, invisible_ms)).code == ResponseCode.SUCCESS
            refused.over()
        async with killed(broker, tmp_path / "1") as (again, next_peer):
            assert (await acknowledge(next_peer, *found)).code == ResponseCode.SUCCESS
            async with killed(again, tmp_path / "2") as (last, last_peer):
                await nothing_comes(last, last_peer, clock)

    with_broker(scenario)


def test_a_receipt_of_before_a_change_is_good_behind_two_restarts(with_broker, clock, tmp_path):
    async def scenario(broker, peer):
        keep_offsets(broker)
        await send_many(peer, 1, queues=1)
        (found,) = handed_out(await pop(peer))
        path = tmp_path / "between"
        refused = Refused(broker.store, lambda: copy_as_killed(broker.store.path, path))
        assert (await change(peer, found, 90_000)).code == ResponseCode.SUCCESS
        refused.over()
        async with served(path):
            pass
        async with served(path):
            pass
        async with served(path) as (again, next_peer):
            assert (await acknowledge(next_peer, *found)).code == ResponseCode.SUCCESS
            await nothing_comes(again, next_peer, clock)

    with_broker(scenario)
