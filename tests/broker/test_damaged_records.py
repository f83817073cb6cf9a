"""A record that is damaged while a broker runs hides no other: from pulls, pops, who looks on."""

import struct

import pytest
from broker.conftest import records
from broker.test_metrics import get, run_with_status, samples
from broker.test_pop import acknowledge, handed_out, pop, send_many
from broker.test_sql92 import sql

from rmqcore.broker.pop.past_damage import read_past_damage
from rmqcore.broker.pull.fetch import PullRange
from rmqcore.broker.state.passed_over import PassedOver
from rmqcore.broker.state.subscription import Subscription
from rmqcore.errors import CorruptRecordError
from rmqcore.java.json import parse_java_json
from rmqcore.remoting import RequestCode, ResponseCode

pytestmark = pytest.mark.engine

COUNT, DAMAGED = 40, 20


def no_size(record):
    struct.pack_into(">i", record, 0, len(record) - 3)


def no_magic(record):
    struct.pack_into(">i", record, 4, 0x1234)


def zeros(record):
    record[:] = bytes(len(record))


def another_body(record):
    record[record.index(b"20", 80)] ^= 0xFF


UNREADABLE = pytest.mark.parametrize("damage", [no_size, no_magic, zeros])


def damage_record(broker, offset, damage):
    """Change the bytes of the message of an offset of queue 0 of T."""
    (message,) = broker.store.get_message("T", 0, offset, max_messages=1).messages
    path = broker.store.path / "commitlog" / f"{0:020d}"
    with path.open("r+b") as log:
        log.seek(message.phy_offset)
        record = bytearray(log.read(message.store_size))
        damage(record)
        log.seek(message.phy_offset)
        log.write(record)


async def pulled(peer, offset, **more):
    """The offsets that pulls give from one on, until one is refused or finds nothing; that one."""
    found = []
    while True:
        answer = await peer.pull("T", offset=offset, **more)
        if answer.code != ResponseCode.SUCCESS:
            return found, answer
        found += [message.queue_offset for message in records(answer.body)]
        offset = int(answer.ext_fields["nextBeginOffset"])


@UNREADABLE
@pytest.mark.parametrize("by", [{}, {"subscription": "a"}, sql("n > 0")])
def test_pulls_give_what_lies_in_front_of_a_damaged_record_and_behind_it(with_broker, damage, by):
    async def scenario(broker, peer):
        for number in range(COUNT):
            await peer.send("T", b"%d" % number, properties={"n": "1", "TAGS": "a"})
        damage_record(broker, DAMAGED, damage)
        found, answer = await pulled(peer, 0, **by)
        assert found == list(range(DAMAGED))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark.startswith(f"from offset {DAMAGED} on, the first message of queue 0")
        found, answer = await pulled(peer, DAMAGED + 1, **by)
        assert found == list(range(DAMAGED + 1, COUNT))
        assert answer.code == ResponseCode.PULL_NOT_FOUND

    with_broker(scenario, enablePropertyFilter="true")


@pytest.mark.parametrize("damage", [no_size, no_magic, zeros, another_body])
@pytest.mark.parametrize("order", ["true", "false"])
@pytest.mark.parametrize("by", [{}, {"exp": "n > 0", "expType": "SQL92"}])
def test_pops_pass_over_a_damaged_record_alone(with_broker, damage, order, by):
    async def scenario(broker, peer):
        for number in range(COUNT):
            await peer.send("T", b"%d" % number, properties={"n": "1"})
        damage_record(broker, DAMAGED, damage)
        found = []
        while len(found) < COUNT - 1:
            popped = handed_out(await pop(peer, queue_id=0, order=order, **by))
            assert popped
            for message, receipt in popped:
                await acknowledge(peer, message, receipt)
            found += [message.queue_offset for message, _ in popped]
        assert found == [offset for offset in range(COUNT) if offset != DAMAGED]
        assert (await pop(peer, queue_id=0, order=order, **by)).body == b""
        assert broker.store.consumer_offsets.get("T", "CG", 0) == COUNT
        assert broker.managers.passed_over.counts == {"pop": 1}

    with_broker(scenario, enablePropertyFilter="true")


def test_a_pop_gives_what_lies_behind_hundreds_of_damaged_records(with_broker):
    async def scenario(broker, peer):
        await send_many(peer, 300, queues=1)
        await peer.send("T", b"whole")
        for offset in range(300):
            damage_record(broker, offset, zeros)
        ((message, _),) = handed_out(await pop(peer, queue_id=0, poll_ms=60_000))
        assert message.body == b"whole"
        assert broker.managers.passed_over.counts == {"pop": 300}

    with_broker(scenario)


def cut(units):
    del units[:]


def zero(units):
    units[:] = bytes(len(units))


def one_rotten(units):
    struct.pack_into(">i", units, DAMAGED * 20 + 8, 60)


def one_within_a_record(units):
    units[DAMAGED * 20 + 7] ^= 8


def one_behind_the_log(units):
    units[DAMAGED * 20 + 2] ^= 1


def one_below_zero(units):
    units[DAMAGED * 20] ^= 0x80


@pytest.mark.parametrize(
    ("damage", "popped"),
    [
        (cut, 0),
        (zero, 0),
        (one_rotten, DAMAGED),
        (one_within_a_record, DAMAGED),
        (one_behind_the_log, DAMAGED),
        (one_below_zero, DAMAGED),
    ],
)
def test_what_a_queues_file_does_not_lead_to_is_not_passed_over(with_broker, damage, popped):
    async def scenario(broker, peer):
        await send_many(peer, COUNT, queues=1)
        assert broker.store.max_queue_offset("T", 0) == COUNT
        path = broker.store.path / "consumequeue/T/0" / f"{0:020d}"
        whole = path.read_bytes()
        units = bytearray(whole[: COUNT * 20])
        damage(units)
        path.write_bytes(units)
        found, answer = await pulled(peer, 0)
        assert found == list(range(popped))
        assert "is in the log, and the queue's file does not lead to it" in answer.remark
        found = []
        while messages := handed_out(await pop(peer, queue_id=0)):
            found += [message.queue_offset for message, _ in messages]
        assert found == list(range(popped))
        assert broker.store.consumer_offsets.get("T", "CG", 0) == popped
        path.write_bytes(whole)
        while messages := handed_out(await pop(peer, queue_id=0)):
            found += [message.queue_offset for message, _ in messages]
        assert found == list(range(COUNT))
        assert broker.managers.passed_over.counts == {}

    with_broker(scenario)


def test_what_retention_removes_while_a_pop_looks_is_not_counted(with_broker):
    async def scenario(broker, peer):
        def get(_):
            raise CorruptRecordError("commitlog", 0, "rotten")

        wanted, passed_over = PullRange("T", 0, 7, 1, Subscription("T")), PassedOver(broker.store)
        # the queue is gone when it is looked at closer
        with pytest.raises(CorruptRecordError, match="rotten"):
            read_past_damage(get, wanted, broker.store, passed_over)
        assert passed_over.counts == {}

    with_broker(scenario)


async def consumed_to(broker, peer, offset):
    """Make a group that is this far in T, whose only message is damaged, and in another topic."""
    made = await peer.ask(
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=b'{"groupName":"CG"}'
    )
    assert made.code == ResponseCode.SUCCESS
    for topic in ("T", "Whole"):
        assert (await peer.send(topic, b"x")).code == ResponseCode.SUCCESS
        fields = {"consumerGroup": "CG", "topic": topic, "queueId": 0, "commitOffset": offset}
        answer = await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
        assert answer.code == ResponseCode.SUCCESS
    damage_record(broker, 0, no_magic)


def test_metrics_tell_how_far_groups_are_beside_a_damaged_record(tmp_path):
    async def scenario(broker, peer, port):
        await broker.start()
        await consumed_to(broker, peer, 0)
        status, text = await get(port, "/metrics")
        assert status == 200
        found, node = samples(text), ("DefaultCluster", "CG")
        for topic in ("T", "Whole"):
            assert found[("rocketmq_consumer_lag_messages", *node, topic)] == 1
        assert found[("rocketmq_consumer_lag_latency", *node, "T")] == 0

    run_with_status(tmp_path, scenario)


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (RequestCode.GET_CONSUME_STATS, {"consumerGroup": "CG"}),
        (RequestCode.GET_BROKER_CONSUME_STATS, {}),
        (RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"}),
        (RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "T", "group": "CG"}),
    ],
)
def test_administrators_are_told_how_far_groups_are_beside_it(with_broker, code, fields):
    async def scenario(broker, peer):
        await consumed_to(broker, peer, 1)
        answer = await peer.ask(code, fields)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        assert "broker-a" in str(parse_java_json(bytes(answer.body).decode()))

    with_broker(scenario)
