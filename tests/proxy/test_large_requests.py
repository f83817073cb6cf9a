"""What a request of many fields, or of much that nobody reads, costs and keeps."""

import asyncio
import struct

import pytest
from patience import until_async
from proxy.test_hostile import run
from proxy.wire import Ended

from rmqcore.broker.pull import waiting
from rmqcore.proxy import field_count
from rmqcore.proxy.codes import Code
from rmqcore.proxy.field_count import FIELDS_MAX, has_too_many_fields, shape_of
from rmqcore.proxy.grpc_status import GrpcStatus
from rmqcore.proxy.messages import SERVICE, Settings, TelemetryCommand, v2_class

pytestmark = pytest.mark.engine

SEND = v2_class("SendMessageRequest")
#: an empty message in a field of the given number
EMPTY = {number: bytes((number << 3 | 2, 0)) for number in range(1, 10)}


def in_field(number, data):
    """A field of bytes with a length of three bytes."""
    size = len(data)
    length = bytes((size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14))
    return bytes((number << 3 | 2,)) + length + data


@pytest.mark.parametrize(
    ("data", "too_many"),
    [
        (EMPTY[1] * FIELDS_MAX, False),
        (EMPTY[1] * (FIELDS_MAX + 1), True),
        # keys, in the properties of a message: the two around them count, too
        (in_field(1, in_field(3, EMPTY[2] * (FIELDS_MAX - 2))), False),
        (in_field(1, in_field(3, EMPTY[2] * (FIELDS_MAX - 1))), True),
        # a body is not looked into
        (in_field(1, in_field(4, EMPTY[1] * (FIELDS_MAX + 1))), False),
        (b"\xff" * 100_000, False),
        (EMPTY[1] * 40_000 + b"\x0a\xff\xff\xff\xff\x7f", False),
        (b"\x0a" + b"\x80" * 100_000, False),
        (b"\x08\x01" * 40_000 + b"\x0d" + bytes(4) + b"\x09" + bytes(8) + b"\x0b\x0c", False),
    ],
)
def test_fields_are_counted_to_a_bound(data, too_many):
    assert has_too_many_fields(data, shape_of(SEND.DESCRIPTOR)) is too_many


def test_as_many_messages_as_are_taken_have_room():
    one = {
        "topic": {"name": "T"},
        "user_properties": {f"name{number}": "value" for number in range(40)},
        "system_properties": {"message_id": "id", "keys": ["a", "b"], "tag": "t"},
        "body": b"x" * 100,
    }
    data = SEND(messages=[one] * 1024).SerializeToString()
    assert len(data) > field_count.SIZE_ALWAYS
    assert not has_too_many_fields(data, shape_of(SEND.DESCRIPTOR))


def test_a_request_of_too_many_fields_is_not_made(monkeypatch):
    monkeypatch.setattr(field_count, "FIELDS_MAX", 40_000)

    async def scenario(served):
        wire = await served.connect()
        for name in ("SendMessage", "AckMessage", "Telemetry"):
            stream = wire.open(f"/{SERVICE}/{name}".encode())
            number = {"AckMessage": 3, "SendMessage": 1, "Telemetry": 2}[name]
            data = EMPTY[number] * 40_001
            if name == "Telemetry":
                # topics that a producer sends to
                publishing = Settings.DESCRIPTOR.fields_by_name["publishing"].number
                settings = TelemetryCommand.DESCRIPTOR.fields_by_name["settings"].number
                topics = in_field(publishing, EMPTY[1] * 40_001)
                data = in_field(settings, topics)
            stream.send(data, end=True)
            with pytest.raises(Ended) as caught:
                await stream.end()
            assert caught.value.status == GrpcStatus.RESOURCE_EXHAUSTED, name
            assert b"fields" in caught.value.reason

    run(scenario)


def test_only_messages_to_be_sent_may_be_large():
    async def scenario(served):
        wire = await served.connect()
        said = struct.pack(">?I", False, (1 << 20) + 1)
        for name, refused in (("Heartbeat", True), ("Telemetry", True), ("SendMessage", False)):
            stream = wire.open(f"/{SERVICE}/{name}".encode())
            wire.http2.send_data(stream.stream_id, said, end_stream=not refused)
            wire.flush()
            with pytest.raises(Ended) as caught:
                await stream.end()
            assert (caught.value.status == GrpcStatus.RESOURCE_EXHAUSTED) is refused, name

    run(scenario)


def kept_by_coroutines():
    """What the local names of all coroutines stand for that are suspended now."""
    for task in asyncio.all_tasks():
        waiting = task.get_coro()
        while (frame := getattr(waiting, "cr_frame", None)) is not None:
            yield from frame.f_locals.values()
            waiting = waiting.cr_await


def test_nothing_of_a_request_is_kept_while_it_waits(with_grpc):
    async def scenario(served, wire):
        await wire.send("T", b"x")
        (message,) = (await wire.receive("T"))[1]
        await wire.ack("T", message)
        queue = {"topic": {"name": "T"}, "broker": {"name": "broker-a"}}
        waits = {"group": {"name": "G"}, "long_polling_timeout": {"seconds": 20}}
        receive = v2_class("ReceiveMessageRequest")(
            message_queue={**queue, "id": -1},
            invisible_duration={"seconds": 30},
            batch_size=1,
            **waits,
        )
        pull = v2_class("PullMessageRequest")(
            message_queue={**queue, "id": 0}, offset=1, batch_size=1, **waits
        )
        streams = [wire.begin("ReceiveMessage", receive), wire.begin("PullMessage", pull)]
        telemetry = wire.open(f"/{SERVICE}/Telemetry".encode())
        settings = {"client_type": 1, "publishing": {"topics": [{"name": "T"}]}}
        said = TelemetryCommand(settings=settings)
        telemetry.send(said.SerializeToString())
        await telemetry.until(telemetry.messages)
        managers = served.broker.managers
        await until_async(lambda: len(managers.waiting_pops) == 1, "the receive")
        await until_async(lambda: len(managers.waiting_pulls) == 1, "the pull")
        await asyncio.sleep(0)
        ours = {id(each) for each in (receive, pull, said)}
        kinds = (type(receive), type(pull), TelemetryCommand)
        found = [each for each in kept_by_coroutines() if id(each) not in ours]
        assert not [each for each in found if isinstance(each, kinds)]
        assert said.SerializeToString() not in found
        assert not any(each.closed for each in streams)

    with_grpc(scenario)


@pytest.mark.parametrize("name", ["ReceiveMessage", "PullMessage"])
def test_all_that_waits_over_one_connection_has_its_budget(with_grpc, monkeypatch, name):
    """Each call is asked for as if it were a connection of its own."""
    monkeypatch.setattr(waiting, "_TEXTS_OF_ONE_MAX", 2_500)

    async def scenario(served, wire):
        await wire.send("T", b"x")
        (message,) = (await wire.receive("T"))[1]
        await wire.ack("T", message)
        queue = {"topic": {"name": "T"}, "broker": {"name": "broker-a"}}
        fields = {
            "group": {"name": "G"},
            "filter_expression": {"type": 1, "expression": "tag" * 400},
            "batch_size": 1,
            "long_polling_timeout": {"seconds": 20},
        }
        if name == "ReceiveMessage":
            fields |= {"message_queue": {**queue, "id": -1}, "invisible_duration": {"seconds": 30}}
        else:
            fields |= {"message_queue": {**queue, "id": 0}, "offset": 1}
        request = v2_class(f"{name}Request")(**fields)
        streams = [wire.begin(name, request) for _ in range(4)]
        managers = served.broker.managers
        held = managers.waiting_pops if name == "ReceiveMessage" else managers.waiting_pulls
        await until_async(lambda: sum(each.closed for each in streams) == 2, "two refusals")
        assert len(held) == 2
        other = await served.connect()
        one = other.begin(name, request)
        await until_async(lambda: len(held) == 3, "another connection's")
        assert not one.closed

    with_grpc(scenario)


@pytest.mark.parametrize("name", ["QueryRoute", "QueryAssignment"])
def test_what_each_queue_of_an_answer_repeats_is_short(with_grpc, name):
    async def scenario(served, wire):
        more = {} if name == "QueryRoute" else {"group": {"name": "G"}}

        async def answer(host, unknown=b""):
            endpoints = {"scheme": 1, "addresses": [{"host": host, "port": 8081}]}
            topic = v2_class("Resource")(name="BenchmarkTest")
            # a field that nobody knows
            topic.MergeFromString(unknown)
            fields = {"topic": topic, "endpoints": endpoints, **more}
            return await wire.call(name, **fields)

        refused = await answer("h" * 2_000)
        assert refused.status.code == Code.BAD_REQUEST
        assert "endpoints" in refused.status.message
        usual = await answer("proxy.example")
        assert usual.status.code == Code.OK
        queues = usual.message_queues if name == "QueryRoute" else usual.assignments
        assert len(queues) == (1024 if name == "QueryRoute" else 1)
        padded = await answer("proxy.example", in_field(200 >> 4, b"x" * 20_000))
        assert padded.ByteSize() == usual.ByteSize()

    with_grpc(scenario)
