"""Brokers elsewhere whose clock is not that of the proxy in front of them."""

import asyncio

import pytest
from proxy.test_remote import another_proxy, run

from rmqcore.broker.pop.acks import PopAcks
from rmqcore.proxy.codes import Code
from rmqcore.world import World, monotonic_s, wall_clock_ms

pytestmark = pytest.mark.engine

HOUR_MS = 3_600_000


@pytest.fixture(autouse=True)
def nothing_comes_again(monkeypatch):
    """What is due stays so."""

    async def never(_):
        await asyncio.Event().wait()

    monkeypatch.setattr(PopAcks, "run", never)


class Apart:
    """The clocks of a broker, and of a proxy whose time of day is another; they stand still."""

    def __init__(self, broker_ms):
        self.passed_s = 0.0
        began_ms, began_s = wall_clock_ms(), monotonic_s()
        self.of_broker = World(clock_ms=lambda: began_ms + broker_ms + self.passed_ms)
        self.of_proxy = World(
            clock_ms=lambda: began_ms + self.passed_ms,
            monotonic_s=lambda: began_s + self.passed_s,
        )

    @property
    def passed_ms(self):
        return round(self.passed_s * 1000)


async def received(wire, **settings):
    """The message that is there; a broker of another clock is told by one POP how they stand."""
    await wire.receive("none")
    return (await wire.receive("T", **settings))[1][0]


async def by_another_proxy(served, apart, message):
    """Acknowledge a message by a proxy that has handed nothing out yet; the answer's code."""
    async with another_proxy(served, world=apart.of_proxy) as wire:
        return (await wire.ack("T", message)).status.code


@pytest.fixture(params=[-HOUR_MS, HOUR_MS], ids=["behind", "ahead"])
def apart(request):
    """Clocks of which the broker's is an hour behind, or ahead."""
    return Apart(request.param)


def acknowledged(path, apart, after_s, *, elsewhere=False):
    """The answer's code so long after a message was handed out for 30 s, and what is still due."""
    found = []

    async def scenario(served):
        wire = await served.connect()
        await wire.send("T", b"x")
        message = await received(wire)
        apart.passed_s = after_s
        if elsewhere:
            code = await by_another_proxy(served, apart, message)
        else:
            code = (await wire.ack("T", message)).status.code
        found.append((code, served.broker.managers.checkpoints.next_due_ms()))

    run(path, scenario, world=apart.of_proxy, broker_world=apart.of_broker)
    return found[0]


def test_an_acknowledgement_counts_whatever_the_clocks_say(tmp_path, apart):
    assert acknowledged(tmp_path, apart, 29.0) == (Code.OK, None)


def test_a_handle_whose_time_is_over_is_refused_whatever_the_clocks_say(tmp_path, apart):
    assert acknowledged(tmp_path, apart, 31.0)[0] == Code.INVALID_RECEIPT_HANDLE


def test_a_proxy_that_has_handed_nothing_out_asks_the_broker_what_time_it_is(tmp_path, apart):
    assert acknowledged(tmp_path, apart, 28.0, elsewhere=True) == (Code.OK, None)


def test_nor_does_it_take_a_handle_whose_time_is_over(tmp_path, apart):
    code, due_ms = acknowledged(tmp_path, apart, 32.0, elsewhere=True)
    assert code == Code.INVALID_RECEIPT_HANDLE
    assert due_ms is not None


@pytest.mark.parametrize("broker_ms", [-HOUR_MS, 29_000])
def test_what_a_push_consumer_works_on_is_kept_for_it_whatever_the_clocks_say(tmp_path, broker_ms):
    apart, asked = Apart(broker_ms), []

    async def scenario(served):
        wire = await served.connect()
        await wire.send("T", b"x")
        await received(wire, auto_renew=True)
        renewals = served.service.renewals
        first_ms = served.broker.managers.checkpoints.next_due_ms()
        for _ in range(11):
            await renewals.renew()
            asked.append(served.broker.managers.checkpoints.next_due_ms() != first_ms)
            apart.passed_s += 5.0

    run(tmp_path, scenario, world=apart.of_proxy, broker_world=apart.of_broker)
    # it ends within 30 s
    assert asked == [False] * 6 + [True] * 5
