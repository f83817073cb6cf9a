"""What a push consumer works on is kept for it, and given back when it has gone."""

import asyncio

import pytest
from patience import TIMEOUT_S

from rmqcore.proxy.clients import GONE_AFTER_S
from rmqcore.proxy.codes import Code
from rmqcore.world import World, monotonic_s

pytestmark = pytest.mark.engine


def test_a_message_is_kept_on_and_its_first_handle_stays_good(with_grpc, clock):
    async def scenario(served, wire):
        await wire.send("T", b"body")
        _, (message,) = await wire.receive("T", auto_renew=True)
        other = await served.connect()
        for _ in range(5):
            clock.go_on(45_000, served.broker)
            await served.service.renewals.renew()
            assert (await other.receive("T"))[0].code == Code.MESSAGE_NOT_FOUND
        assert (await wire.ack("T", message)).status.code == Code.OK
        assert len(served.service.renewals) == 0
        assert served.broker.managers.checkpoints.next_due_ms() is None

    with_grpc(scenario)


def test_what_a_client_leaves_behind_is_given_to_others(with_grpc, clock):
    async def scenario(served, wire):
        await wire.send("T", b"body")
        assert (await wire.call("Heartbeat", client_type=2)).status.code == Code.OK
        assert len((await wire.receive("T", auto_renew=True))[1]) == 1
        await wire.call("NotifyClientTermination")
        other = await served.connect()
        waiting = asyncio.create_task(other.receive("T", wait_s=20))
        await served.service.renewals.finish(TIMEOUT_S)
        clock.go_on(2_000, served.broker)
        _, (message,) = await waiting
        assert message.body == b"body"
        assert message.system_properties.delivery_attempt == 2

    with_grpc(scenario)


def test_a_message_that_is_not_renewed_is_not_kept(with_grpc, clock):
    async def scenario(served, wire):
        await wire.send("T", b"body")
        await wire.receive("T", invisible_s=60)
        assert len(served.service.renewals) == 0

    with_grpc(scenario)


def test_a_client_that_only_receives_is_known_to_have_gone(with_grpc, clock):
    ahead_s = 0.0

    async def scenario(served, wire):
        nonlocal ahead_s
        await wire.send("T", b"body")
        assert len((await wire.receive("T", auto_renew=True))[1]) == 1
        assert len(served.service.clients) == 1
        ahead_s = GONE_AFTER_S + 1
        served.service.clients.forget_gone()
        assert len(served.service.clients) == 0
        await served.service.renewals.finish(TIMEOUT_S)
        assert len(served.service.renewals) == 0
        clock.go_on(2_000, served.broker)
        assert len((await wire.receive("T", wait_s=20))[1]) == 1

    with_grpc(scenario, world=World(monotonic_s=lambda: monotonic_s() + ahead_s))
