"""What a push consumer works on is kept for it, and given back when it has gone."""

import asyncio

import pytest
from patience import TIMEOUT_S, until_async

from rmqcore.errors import StoreError
from rmqcore.proxy.callers import Caller
from rmqcore.proxy.clients import GONE_AFTER_S
from rmqcore.proxy.codes import Code, RefusedError
from rmqcore.proxy.receipts import NORMAL, ReceiptHandle
from rmqcore.proxy.renewal import Renewals
from rmqcore.remoting import RemotingCommand, ResponseCode
from rmqcore.world import REAL, World, monotonic_s

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


@pytest.mark.parametrize("ordered", [False, True])
def test_a_message_is_kept_on_when_the_clock_is_put_back(with_grpc, clock, ordered):
    async def scenario(served, wire):
        served.broker.managers.groups.put("G", {"consumeMessageOrderly": ordered})
        await wire.send("T", b"body")
        _, (message,) = await wire.receive("T", auto_renew=True)
        other = await served.connect()
        clock.go_on(-3_600_000, served.broker)
        for _ in range(5):
            await served.service.renewals.renew()
            assert (await other.receive("T"))[0].code == Code.MESSAGE_NOT_FOUND
            clock.go_on(25_000, served.broker)
        assert (await wire.ack("T", message)).status.code == Code.OK
        assert served.broker.managers.checkpoints.next_due_ms() is None
        clock.go_on(70_000, served.broker)
        assert (await other.receive("T"))[0].code == Code.MESSAGE_NOT_FOUND

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


def refuse_acknowledgements(served, monkeypatch):
    """Have the broker store none: its disk is full."""

    def refuse(*_):
        raise StoreError("no room")

    monkeypatch.setattr(served.broker.managers.checkpoints, "acknowledge", refuse)


async def work_on_for_long(served, wire, clock):
    """A message whose first handle is over, and that is kept on."""
    await wire.send("T", b"body")
    _, (message,) = await wire.receive("T", auto_renew=True)
    for _ in range(3):
        clock.go_on(45_000, served.broker)
        await served.service.renewals.renew()
    return message


def test_what_the_broker_could_not_settle_its_first_handle_settles_later(
    with_grpc, clock, monkeypatch
):
    async def scenario(served, wire):
        message = await work_on_for_long(served, wire, clock)
        with monkeypatch.context() as patch:
            refuse_acknowledgements(served, patch)
            for _ in range(2):
                refused = (await wire.ack("T", message)).status.code
                assert refused == Code.INTERNAL_SERVER_ERROR
        assert (await wire.ack("T", message)).status.code == Code.OK
        assert len(served.service.renewals) == 0
        assert served.broker.managers.checkpoints.next_due_ms() is None

    with_grpc(scenario)


def test_what_a_client_does_not_settle_again_comes_again_at_its_time(with_grpc, clock, monkeypatch):
    async def scenario(served, wire):
        message = await work_on_for_long(served, wire, clock)
        with monkeypatch.context() as patch:
            refuse_acknowledgements(served, patch)
            await wire.ack("T", message)
        clock.go_on(45_000, served.broker)
        await served.service.renewals.renew()
        clock.go_on(45_000, served.broker)
        other = await served.connect()
        _, (again,) = await other.receive("T", wait_s=20)
        assert again.body == b"body"
        assert (await wire.ack("T", message)).status.code == Code.INVALID_RECEIPT_HANDLE
        assert len(served.service.renewals) == 0

    with_grpc(scenario)


def test_what_a_client_is_handed_after_its_end_is_given_back_when_it_has_gone(with_grpc, clock):
    ahead_s = 0.0

    async def scenario(served, wire):
        nonlocal ahead_s
        await wire.send("T", b"first")
        await wire.receive("T")
        hold = served.broker.managers.waiting_pops
        waiting = asyncio.create_task(wire.receive("T", wait_s=20, auto_renew=True))
        await until_async(lambda: len(hold) == 1, "a receive waits")
        await wire.call("NotifyClientTermination")
        await wire.send("T", b"second")
        assert len((await waiting)[1]) == 1
        ahead_s = GONE_AFTER_S + 1
        served.service.clients.forget_gone()
        await served.service.renewals.finish(TIMEOUT_S)
        assert len(served.service.renewals) == 0
        other = await served.connect()
        waiting = asyncio.create_task(other.receive("T", wait_s=20))
        clock.go_on(2_000, served.broker)
        assert [message.body for message in (await waiting)[1]] == [b"second"]

    with_grpc(scenario, world=World(monotonic_s=lambda: monotonic_s() + ahead_s))


class Brokers:
    """Brokers of which those named do not answer; counts what each is asked."""

    def __init__(self, *silent):
        self.silent = {name: asyncio.Event() for name in silent}
        self.asked = []

    def asked_of(self, broker_name):
        return [offset for name, offset in self.asked if name == broker_name]

    @staticmethod
    def clock_ms(_):
        return REAL.clock_ms()

    async def ask(self, broker_name, request, caller):
        self.asked.append((broker_name, request.ext_fields["offset"]))
        if broker_name in self.silent:
            await self.silent[broker_name].wait()
        return RemotingCommand(ResponseCode.SUCCESS, {"invisibleTime": "1"})


CALLER = Caller("me", "", "127.0.0.1:1", "PYTHON", "5", None)


def kept(renewals, broker_name, offset):
    handle = ReceiptHandle(0, 0, 1, 0, NORMAL, broker_name, 0, offset, 0)
    given = f"{broker_name} {offset}"
    renewals.add(CALLER, "G", "T", given, handle)
    return given


def test_a_broker_that_does_not_answer_holds_up_no_other():
    async def scenario():
        brokers = Brokers("silent")
        renewals = Renewals(brokers, REAL)
        for offset in range(2):
            kept(renewals, "silent", offset)
            kept(renewals, "lively", offset)
        for turn in (1, 2):
            renewals.work_on(renewals.renew())
            await until_async(
                lambda turn=turn: brokers.asked_of("lively") == ["0", "1"] * turn,
                f"the lively broker is asked in round {turn}",
            )
        assert brokers.asked_of("silent") == ["0"]
        brokers.silent["silent"].set()
        await until_async(lambda: ("silent", "1") in brokers.asked, "the rest of its messages")
        await renewals.finish(TIMEOUT_S)

    asyncio.run(scenario())


def test_what_a_broker_has_that_is_gone_for_good_is_not_asked_for_for_hours():
    class Gone:
        asked = 0
        back = False

        @staticmethod
        def clock_ms(_):
            return REAL.clock_ms()

        def ask(self, *_):
            self.asked += 1
            if self.back:
                fields = {"popTime": "1", "invisibleTime": "1", "reviveQid": "1"}
                return RemotingCommand(ResponseCode.SUCCESS, fields)
            raise RefusedError(Code.INTERNAL_SERVER_ERROR, "no such broker")

    async def scenario():
        broker = Gone()
        renewals = Renewals(broker, REAL)
        kept(renewals, "gone", 0)
        for back, rounds in ((False, 11), (True, 1), (False, 40)):
            broker.back = back
            for _ in range(rounds):
                await renewals.renew()
        assert broker.asked == 11 + 1 + 12
        assert len(renewals) == 0

    asyncio.run(scenario())


def test_what_is_settled_while_others_are_renewed_is_not_renewed():
    async def scenario():
        brokers = Brokers("slow")
        renewals = Renewals(brokers, REAL)
        kept(renewals, "slow", 0)
        settled = kept(renewals, "slow", 1)
        renewals.work_on(renewals.renew())
        await until_async(lambda: brokers.asked, "the first is being renewed")
        async with renewals.settled(CALLER, "G", settled):
            pass
        brokers.silent["slow"].set()
        await renewals.finish(TIMEOUT_S)
        assert brokers.asked == [("slow", "0")]

    asyncio.run(scenario())


def test_what_is_settled_is_not_given_back_when_its_client_goes():
    """A broker of RocketMQ would hand it out once more."""

    async def scenario():
        brokers = Brokers()
        renewals = Renewals(brokers, REAL)
        given = kept(renewals, "any", 0)
        async with renewals.settled(CALLER, "G", given):
            renewals.work_on(renewals.give_back(CALLER.client))
            await asyncio.sleep(0)
        await renewals.finish(TIMEOUT_S)
        assert brokers.asked == []

    asyncio.run(scenario())
