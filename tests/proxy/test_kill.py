"""A server that is killed and started again: clients go on, and nothing acknowledged is lost."""

import asyncio
import itertools

import pytest
from broker.serving import serving
from patience import TIMEOUT_S, until_async
from proxy.wire import Wire

from rmqcore.proxy.codes import Code

pytestmark = pytest.mark.process

SENDERS = 8
ENOUGH = 100


def port_of(facts):
    return int(facts["grpc"].rpartition(":")[2])


async def send_until_killed(process, port):
    """Send until the server has gone; the bodies that were acknowledged."""
    wire, acknowledged, numbers = await Wire.connect(port), [], itertools.count()
    kinds = itertools.cycle(["one", "two"])

    async def one_after_the_other():
        while not wire.lost.done():
            body = b"%d" % next(numbers)
            try:
                entry = await wire.send("T", body, message_group=next(kinds), message_type=2)
            except Exception:  # noqa: BLE001 - however a call ends whose server was killed
                return
            assert entry.status.code == Code.OK
            acknowledged.append(body)
            if len(acknowledged) == ENOUGH:
                process.kill()

    async with asyncio.timeout(TIMEOUT_S):
        await asyncio.gather(*(one_after_the_other() for _ in range(SENDERS)))
    await wire.close()
    return acknowledged


async def receive_all(port, wanted, before):
    """Receive until all that is wanted has come."""
    wire, found = await Wire.connect(port), set()
    async with asyncio.timeout(TIMEOUT_S):
        while not wanted <= found:
            status, messages = await wire.receive("T", wait_s=5, invisible_s=600)
            assert status.code in (Code.OK, Code.MESSAGE_NOT_FOUND)
            for message in messages:
                assert (await wire.ack("T", message)).status.code == Code.OK
                found.add(message.body)
        # a handle of before the kill is still good
        assert (await wire.ack("T", before, "H")).status.code == Code.OK
    await wire.close()


def test_what_was_acknowledged_comes_after_a_kill_and_handles_stay_good(tmp_path):
    store = tmp_path / "store"
    with serving(store, "--grpc-port", "0") as (process, facts):

        async def before_the_kill():
            wire = await Wire.connect(port_of(facts))
            entry = await wire.send("T", b"first", message_group="one", message_type=2)
            assert entry.status.code == Code.OK
            _, found = await wire.receive("T", "H", invisible_s=600)
            assert len(found) == 1
            await wire.close()
            return await send_until_killed(process, port_of(facts)), found[0]

        acknowledged, held = asyncio.run(before_the_kill())
        process.wait(TIMEOUT_S)
    assert len(acknowledged) >= ENOUGH
    with serving(store, "--grpc-port", "0") as (_, facts):
        asyncio.run(receive_all(port_of(facts), set(acknowledged), held))


def test_a_server_that_ends_answers_what_waits_and_refuses_what_comes(tmp_path):
    with serving(tmp_path / "store", "--grpc-port", "0") as (process, facts):

        async def scenario():
            wire = await Wire.connect(port_of(facts))
            await wire.send("T", b"x")
            assert len((await wire.receive("T", wait_s=20))[1]) == 1
            waiting = asyncio.create_task(wire.receive("T", wait_s=20))
            other = await Wire.connect(port_of(facts))
            # it is answered behind the one that waits, so that one is taken
            assert (await other.call("Heartbeat")).status.code == Code.OK
            assert (await wire.call("Heartbeat")).status.code == Code.OK
            process.terminate()
            status, messages = await waiting
            assert (status.code, messages) == (Code.MESSAGE_NOT_FOUND, [])
            await until_async(wire.lost.done, "the connection is closed")
            await wire.close()
            await other.close()

        asyncio.run(scenario())
        process.wait(TIMEOUT_S)
        assert process.returncode == 0
