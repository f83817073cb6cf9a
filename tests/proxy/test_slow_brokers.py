"""A broker that does not answer, beside one that does."""

import asyncio

import pytest
from patience import until_async
from proxy.test_remote import run

from rmqcore.proxy.codes import Code
from rmqcore.proxy.messages import MessageType
from rmqcore.remoting import RemotingClient, RemotingCommand, RequestCode, ResponseCode
from rmqcore.world import World, monotonic_s

pytestmark = pytest.mark.engine


def test_what_may_go_anywhere_does_not_go_to_a_broker_that_does_not_answer(tmp_path, monkeypatch):
    ahead_s = 0.0
    real, held, addresses = RemotingClient.invoke, asyncio.Event(), []

    async def invoke(client, address, command, timeout_ms=3000):
        if command.code == RequestCode.SEND_MESSAGE_V2:
            addresses.append(address)
            if address == addresses[0]:
                await held.wait()
        return await real(client, address, command, timeout_ms)

    monkeypatch.setattr(RemotingClient, "invoke", invoke)

    async def scenario(served):
        nonlocal ahead_s
        wire = await served.connect()
        first = asyncio.create_task(wire.send("T", b"0"))
        await until_async(lambda: addresses, "a broker has the first")
        ahead_s = 1.0
        for _ in range(8):
            assert (await wire.send("T", b"x")).status.code == Code.OK
        assert addresses.count(addresses[0]) == 1
        # what has an order goes where it has to
        fifo = {"message_type": MessageType.FIFO}
        keyed = [
            asyncio.create_task(wire.send("F", b"x", message_group=each, **fifo))
            for each in "abcdefgh"
        ]
        await until_async(lambda: len(addresses) == 17, "all of them are sent")
        assert addresses.count(addresses[0]) > 1
        held.set()
        assert {each.status.code for each in await asyncio.gather(first, *keyed)} == {Code.OK}

    run(tmp_path, scenario, 2, world=World(monotonic_s=lambda: monotonic_s() + ahead_s))


def test_a_broker_that_has_told_nothing_of_a_topic_is_asked_last(tmp_path):
    """Each time that a topic is looked up, whoever sends to it would wait for that one's answer."""
    ahead_s, asked = 0.0, []

    async def scenario(served):
        nonlocal ahead_s
        wire = await served.connect()
        assert (await wire.send("T", b"x")).status.code == Code.OK

        def tells_nothing(*_):
            asked.append("T")
            return RemotingCommand(ResponseCode.SYSTEM_BUSY, {}, b"", "not now")

        served.broker._server.processors[RequestCode.GET_TOPIC_CONFIG] = tells_nothing
        for _ in range(3):
            ahead_s += 31.0
            assert (await wire.send("T", b"x")).status.code == Code.OK

    run(tmp_path, scenario, 2, world=World(monotonic_s=lambda: monotonic_s() + ahead_s))
    assert len(asked) == 1
