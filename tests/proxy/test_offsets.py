"""Pulling, and offsets; what is refused of lite topics; arguments that cannot be."""

import pytest

from rmqcore.proxy.codes import Code
from rmqcore.proxy.messages import MessageType

pytestmark = pytest.mark.engine


def queue(served, queue_id=0, topic="T"):
    name = served.broker.config.broker_name
    return {"topic": {"name": topic}, "id": queue_id, "broker": {"name": name}}


async def pull(wire, where, offset, **more):
    answers = await wire.calls(
        "PullMessage",
        group={"name": "G"},
        message_queue=where,
        offset=offset,
        batch_size=32,
        **more,
    )
    status = next(each.status for each in answers if each.HasField("status"))
    following = [each.next_offset for each in answers if each.HasField("next_offset")]
    return status.code, [e.message for e in answers if e.HasField("message")], following


def test_a_queue_is_pulled_from_an_offset_on(with_grpc):
    async def scenario(served, wire):
        for number in range(3):
            await wire.send("T", b"%d" % number, message_group="g", message_type=MessageType.FIFO)
        ids = [each for each in range(4) if served.broker.store.max_queue_offset("T", each) == 3]
        where = queue(served, ids[0])
        code, messages, following = await pull(wire, where, 1)
        assert code == Code.OK
        assert [message.body for message in messages] == [b"1", b"2"]
        assert [message.system_properties.queue_offset for message in messages] == [1, 2]
        assert following == [3]
        code, messages, following = await pull(wire, where, 3)
        assert (code, messages, following) == (Code.MESSAGE_NOT_FOUND, [], [3])
        assert (await pull(wire, where, -1))[0] == Code.ILLEGAL_OFFSET
        long = {"filter_expression": {"type": 1, "expression": "x" * 16_385}}
        assert (await pull(wire, where, 0, **long))[0] == Code.ILLEGAL_FILTER_EXPRESSION
        assert (await pull(wire, {"topic": {"name": "T"}}, 0))[0] == Code.BAD_REQUEST

    with_grpc(scenario)


def test_a_groups_offset_is_set_and_told(with_grpc):
    async def scenario(served, wire):
        await wire.send("T", b"x")
        where = queue(served)
        group = {"name": "G"}
        answer = await wire.call("GetOffset", group=group, message_queue=where)
        assert answer.status.code == Code.OFFSET_NOT_FOUND
        answer = await wire.call("UpdateOffset", group=group, message_queue=where, offset=1)
        assert answer.status.code == Code.OK
        answer = await wire.call("GetOffset", group=group, message_queue=where)
        assert (answer.status.code, answer.offset) == (Code.OK, 1)
        answer = await wire.call("UpdateOffset", group=group, message_queue=where, offset=-1)
        assert answer.status.code == Code.ILLEGAL_OFFSET

    with_grpc(scenario)


@pytest.mark.parametrize("asks", ["GetOffset", "QueryOffset", None])
def test_who_asks_a_new_master_where_to_begin_begins_there(with_grpc, asks):
    """A group without an offset that asks nobody is sent back to where the queue ended."""

    async def scenario(served, wire):
        for number in range(3):
            await wire.send("T", b"%d" % number, message_group="g", message_type=MessageType.FIFO)
        (only,) = [each for each in range(4) if served.broker.store.max_queue_offset("T", each)]
        served.broker.managers.offsets.resets.take_over({}, {("T", only): 1})
        where = queue(served, only)
        if asks == "GetOffset":
            await wire.call(asks, group={"name": "G"}, message_queue=where)
        elif asks == "QueryOffset":
            assert (await wire.call(asks, message_queue=where, query_offset_policy=1)).offset == 3
        _, _, following = await pull(wire, where, 3)
        assert following == [3 if asks else 1]

    with_grpc(scenario)


def test_a_queues_ends_and_times_are_told(with_grpc):
    async def scenario(served, wire):
        await wire.send("T", b"x")
        where = queue(served)

        async def asked(**more):
            answer = await wire.call("QueryOffset", message_queue=where, **more)
            return answer.status.code, answer.offset

        assert await asked(query_offset_policy=0) == (Code.OK, 0)
        assert await asked(query_offset_policy=1) == (Code.OK, 1)
        assert await asked(query_offset_policy=2, timestamp={"seconds": 1}) == (Code.OK, 0)
        assert (await asked(query_offset_policy=2))[0] == Code.BAD_REQUEST

    with_grpc(scenario)


def test_routes_and_assignments_name_the_address_that_was_asked(with_grpc):
    async def scenario(served, wire):
        endpoints = {"scheme": 3, "addresses": [{"host": "there", "port": 1}]}
        answer = await wire.call("QueryRoute", topic={"name": "T"}, endpoints=endpoints)
        assert answer.status.code == Code.OK
        assert [each.id for each in answer.message_queues] == [0, 1, 2, 3]
        assert {each.broker.endpoints.addresses[0].host for each in answer.message_queues} == {
            "there"
        }
        assert served.broker.managers.topics.get("T") is None
        group = {"name": "G"}
        answer = await wire.call("QueryAssignment", topic={"name": "T"}, group=group)
        assert [each.message_queue.id for each in answer.assignments] == [-1]
        served.broker.managers.groups.put("O", {"consumeMessageOrderly": True})
        answer = await wire.call("QueryAssignment", topic={"name": "T"}, group={"name": "O"})
        assert [each.message_queue.id for each in answer.assignments] == [0, 1, 2, 3]

    with_grpc(scenario)


def test_lite_topics_are_refused(with_grpc):
    async def scenario(_, wire):
        answer = await wire.call("SyncLiteSubscription", lite_topic_set=["a"])
        assert answer.status.code == Code.UNSUPPORTED
        assert (await wire.send("T", b"x", lite_topic="a")).status.code == Code.UNSUPPORTED

    with_grpc(scenario)


@pytest.mark.parametrize(
    ("system", "body", "code"),
    [
        ({"message_id": ""}, b"x", Code.ILLEGAL_MESSAGE_ID),
        ({"message_id": "a\x01b"}, b"x", Code.ILLEGAL_MESSAGE_ID),
        ({}, b"", Code.MESSAGE_BODY_EMPTY),
        ({}, bytes((4 << 20) + 1), Code.MESSAGE_BODY_TOO_LARGE),
        ({"tag": " "}, b"x", Code.ILLEGAL_MESSAGE_TAG),
        ({"tag": "a|b"}, b"x", Code.ILLEGAL_MESSAGE_TAG),
        ({"tag": "a\x02POP_CK\x01x"}, b"x", Code.ILLEGAL_MESSAGE_TAG),
        ({"keys": ["a", ""]}, b"x", Code.ILLEGAL_MESSAGE_KEY),
        ({"message_group": "x" * 64}, b"x", Code.ILLEGAL_MESSAGE_GROUP),
        ({"user_properties": {"UNIQ_KEY": "x"}}, b"x", Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        ({"user_properties": {"a": "b\x02TRAN_MSG\x01true"}}, b"x", 40007),
        ({"user_properties": {str(n): "x" for n in range(129)}}, b"x", 43101),
        ({"user_properties": {"a": "x" * 16384}}, b"x", Code.MESSAGE_PROPERTIES_TOO_LARGE),
        ({"delivery_timestamp": {"seconds": 1 << 40}}, b"x", Code.ILLEGAL_DELIVERY_TIME),
        ({"priority": -1}, b"x", Code.BAD_REQUEST),
        ({"message_type": 2}, b"x", Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        ({"message_type": 1, "message_group": "g"}, b"x", 40014),
        ({"message_group": "g", "delivery_timestamp": {"seconds": 1}}, b"x", 40014),
    ],
)
def test_a_message_that_cannot_be_has_its_code(with_grpc, system, body, code):
    async def scenario(served, wire):
        assert (await wire.send("T", body, **system)).status.code == code
        assert served.broker.managers.topics.get("T") is None

    with_grpc(scenario)


@pytest.mark.parametrize("name", ["", "a b", "x" * 128, "é"])
def test_what_is_no_name_has_its_code(with_grpc, name):
    async def scenario(_, wire):
        assert (await wire.send(name, b"x")).status.code == Code.ILLEGAL_TOPIC
        assert (await wire.receive("T", name))[0].code == Code.ILLEGAL_CONSUMER_GROUP

    with_grpc(scenario)


def test_times_that_cannot_be_have_their_codes(with_grpc):
    async def scenario(_, wire):
        assert (await wire.receive("T", invisible_s=9))[0].code == Code.ILLEGAL_INVISIBLE_TIME
        assert (await wire.receive("T", invisible_s=43201))[0].code == 40011
        timeout = ((b"grpc-timeout", b"0m"),)
        assert (await wire.receive("T", headers=timeout))[0].code == Code.ILLEGAL_POLLING_TIME

    with_grpc(scenario)


def test_requests_of_nothing_have_their_code(with_grpc):
    async def scenario(_, wire):
        assert (await wire.call("SendMessage")).status.code == Code.BAD_REQUEST
        assert (await wire.call("AckMessage")).status.code == Code.BAD_REQUEST

    with_grpc(scenario)
