"""Bodies that only remoting clients compress: few bytes unpack to many, so few at a time."""

import asyncio
import zlib

import pytest

from rmqcore.message import Message
from rmqcore.proxy import outgoing

pytestmark = pytest.mark.engine

COMPRESSED = 1


@pytest.fixture
def little(monkeypatch):
    """Let one answer have few bytes of unpacked bodies."""
    monkeypatch.setattr(outgoing, "UNPACKED_MAX", 2_500)
    monkeypatch.setattr(outgoing, "_BODY_SIZE_MAX", 2_000)


def put(served, *bodies, **more):
    for number, body in enumerate(bodies):
        packed = Message(
            "T",
            zlib.compress(body),
            queue_id=0,
            sys_flag=COMPRESSED,
            properties={"UNIQ_KEY": f"U{number}", **more},
        )
        assert served.broker.store.put_message(packed).ok


async def made(wire):
    """A topic, and a group that has read all of it."""
    await wire.send("T", b"first")
    (message,) = (await wire.receive("T"))[1]
    await wire.ack("T", message)


BODIES = [bytes((each,)) * 1_000 for each in range(1, 6)]


def test_a_receive_hands_out_what_has_room_and_the_rest_comes_next(with_grpc, little):
    async def scenario(served, wire):
        await made(wire)
        put(served, *BODIES)
        found = []
        while len(found) < len(BODIES):
            _, messages = await wire.receive("T", wait_s=10)
            assert len(messages) <= 2
            for message in messages:
                # what was not handed out counts as no try
                assert message.system_properties.delivery_attempt == 1
                found.append(bytes(message.body))
                await wire.ack("T", message)
        assert sorted(found) == BODIES

    with_grpc(scenario)


def test_a_pull_goes_on_behind_what_has_room(with_grpc, little):
    async def scenario(served, wire):
        await made(wire)
        put(served, *BODIES)
        found, offset = [], served.broker.store.max_queue_offset("T", 0) - len(BODIES)
        while len(found) < len(BODIES):
            answers = await wire.calls(
                "PullMessage",
                group={"name": "G"},
                message_queue={"topic": {"name": "T"}, "broker": {"name": "broker-a"}, "id": 0},
                offset=offset,
                batch_size=32,
            )
            messages = [each.message for each in answers if each.HasField("message")]
            assert 0 < len(messages) <= 2
            found += [bytes(each.body) for each in messages]
            (offset,) = [each.next_offset for each in answers if each.HasField("next_offset")]
        assert found == BODIES

    with_grpc(scenario)


def test_what_unpacks_to_more_than_a_body_has_is_handed_out_as_it_is(with_grpc, little):
    async def scenario(served, wire):
        await made(wire)
        put(served, bytes(3_000), b"small")
        found = []
        while len(found) < 2:
            _, messages = await wire.receive("T", wait_s=10)
            found += [bytes(each.body) for each in messages]
        assert sorted(found) == sorted([zlib.compress(bytes(3_000)), b"small"])

    with_grpc(scenario)


def test_while_bodies_are_unpacked_others_are_served(with_grpc, monkeypatch):
    async def scenario(served, wire):
        await made(wire)
        put(served, b"body")
        unpacking, go = asyncio.Event(), asyncio.Event()
        loop, bodies_of = asyncio.get_running_loop(), outgoing.bodies_of

        def slow(messages):
            loop.call_soon_threadsafe(unpacking.set)
            asyncio.run_coroutine_threadsafe(go.wait(), loop).result()
            return bodies_of(messages)

        monkeypatch.setattr("rmqcore.proxy.consuming.bodies_of", slow)
        receiving = asyncio.create_task(wire.receive("T"))
        await unpacking.wait()
        other = await served.connect()
        assert (await other.call("Heartbeat")).status.code == 20000
        go.set()
        (message,) = (await receiving)[1]
        assert message.body == b"body"

    with_grpc(scenario)
