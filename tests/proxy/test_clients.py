"""Whose client a client is, and of which producers brokers are told."""

import asyncio
import contextlib

import pytest
from patience import until_async
from proxy.test_access import ADMIN, signed
from proxy.test_transactions import prepared, telemetry

from rmqcore.broker.state.budgets import GROUPS_OF_CLIENT
from rmqcore.proxy import LocalBroker, clients
from rmqcore.proxy.callers import Caller
from rmqcore.proxy.codes import Code
from rmqcore.proxy.messages import Settings, TelemetryCommand
from rmqcore.remoting.accounts import Account, Permission
from rmqcore.simulation.loop import SimulatedLoop

pytestmark = pytest.mark.engine

OWNER = Account(
    "owner-1",
    "secret-owner",
    topics={"T": Permission.PUB | Permission.SUB},
    groups={"G": Permission.SUB, "T": Permission.PUB},
)
WITHOUT = Account("without-1", "secret-without")
ACCOUNTS = {each.access_key: each for each in (ADMIN, OWNER, WITHOUT)}
#: whoever has no part in a client may guess its id
ID = "host@1@1@abc"
ASKED = {"transactionTimeOut": 1, "transactionCheckInterval": 3_600_000}


def sends_to(*topics):
    """The settings of a producer."""
    return {"client_type": 1, "publishing": {"topics": [{"name": name} for name in topics]}}


async def two(served):
    """The clients of two accounts, that call themselves the same."""
    return [await served.connect(ID, headers=signed(each)) for each in (OWNER, WITHOUT)]


async def broker_knows(served, topic):
    groups = served.broker.managers.producers.groups
    await until_async(lambda: topic in groups, f"the broker knows who sends to {topic}")


async def asked_once(served):
    while not await served.broker.managers.transactions.check():
        await asyncio.sleep(0)


def test_nobody_else_is_asked_for_a_producers_transactions_by_taking_its_id(with_grpc):
    async def scenario(served, _):
        owner, other = await two(served)
        stream, _ = await telemetry(owner, **sends_to("T"))
        await broker_knows(served, "T")
        await prepared(owner, "T", b"for the owner")
        others, _ = await telemetry(other, **sends_to("T"))
        await owner.call("Heartbeat")
        await asked_once(served)
        await stream.until(lambda: len(stream.messages()) == 2)
        command = TelemetryCommand.FromString(stream.messages()[1])
        assert command.recover_orphaned_transaction_command.message.body == b"for the owner"
        await other.call("Heartbeat")
        assert len(others.messages()) == 1

    with_grpc(scenario, accounts=ACCOUNTS, **ASKED)


def test_nobody_else_gives_back_what_a_client_works_on(with_grpc):
    async def scenario(served, _):
        owner, other = await two(served)
        await owner.send("T", b"in work")
        assert len((await owner.receive("T", auto_renew=True))[1]) == 1
        assert (await other.call("NotifyClientTermination")).status.code == Code.OK
        assert len(served.service.renewals) == 1
        assert (await owner.call("NotifyClientTermination")).status.code == Code.OK
        assert len(served.service.renewals) == 0

    with_grpc(scenario, accounts=ACCOUNTS)


def test_a_group_is_made_and_told_for_who_may_consume_in_it(with_grpc):
    async def scenario(served, _):
        owner, other = await two(served)
        await owner.send("T", b"there is a topic")
        groups = served.broker.managers.groups.table
        endpoints = {"scheme": 1, "addresses": [{"host": "localhost", "port": 1}]}
        group = {"name": "G"}
        place = {"topic": {"name": "T"}, "group": group, "endpoints": endpoints}
        settings = {"client_type": 2, "subscription": {"group": group}}
        for wire, code in ((other, Code.FORBIDDEN), (owner, Code.OK)):
            assert (await telemetry(wire, **settings))[1].status.code == code
            assert (await wire.call("QueryAssignment", **place)).status.code == code
            _, messages = await wire.receive("T")
            assert len(messages) == (code == Code.OK)
            assert (groups.get("G") is not None) == (code == Code.OK)

    with_grpc(scenario, accounts=ACCOUNTS)


def test_who_may_not_end_a_topics_transactions_is_not_noted_for_it(with_grpc):
    async def scenario(served, _):
        owner, other = await two(served)
        await telemetry(other, **sends_to(*(f"A{number}" for number in range(1024))))
        await telemetry(owner, **sends_to("T"))
        await broker_knows(served, "T")
        assert set(served.broker.managers.producers.groups) == {"T"}

    with_grpc(scenario, accounts=ACCOUNTS)


def test_a_producer_is_known_beside_those_that_name_more_topics_than_a_broker_takes(with_grpc):
    async def scenario(served, wire):
        for letter in "AB":
            many = (f"{letter}{number}" for number in range(GROUPS_OF_CLIENT - 1))
            await telemetry(await served.connect(), **sends_to(*many))
            await broker_knows(served, f"{letter}0")
        stream, _ = await telemetry(wire, **sends_to("T"))
        await broker_knows(served, "T")
        await prepared(wire, "T", b"whose?")
        await asked_once(served)
        await stream.until(lambda: len(stream.messages()) == 2)

    with_grpc(scenario, **ASKED)


def test_others_are_served_while_a_broker_is_told_of_many_producers(with_grpc):
    async def scenario(served, _):
        cluster = LocalBroker(lambda: served.broker.local, lambda: served.broker.config.broker_name)
        many = [f"T{number}" for number in range(4 * GROUPS_OF_CLIENT)]
        for named in (many, []):
            telling, turns = asyncio.ensure_future(cluster.register_producers(named)), 0
            while not telling.done():
                await asyncio.sleep(0)
                turns += 1
            assert turns >= 4
            assert len(served.broker.managers.producers.groups) == len(named)

    with_grpc(scenario)


def test_brokers_are_told_of_many_producers_now_and_then():
    """However often somebody names other topics than before."""
    loop, told_s = SimulatedLoop(0), []
    anybody = Caller(ID, "", "host:1", "JAVA", "5.0.0", None)

    class Brokers:
        async def register_producers(self, groups):
            told_s.append(loop.time())
            await asyncio.sleep(0.001)
            changed = f"other{len(told_s)}"
            known._note_topics(anybody, Settings(**sends_to(*map(str, range(1000)), changed)))

    known = clients.Clients(Brokers(), None, loop.time)
    known.note(anybody)

    async def main():
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                await known.run()

    loop.run_until_complete(main())
    assert 10 < len(told_s) < 30


def test_producers_are_told_anew_when_they_go_and_when_the_broker_has_forgotten_them(with_grpc):
    async def scenario(served, wire):
        producers = served.broker.managers.producers
        gone = await served.connect()
        await telemetry(gone, **sends_to("T", "U"))
        await broker_knows(served, "U")
        await telemetry(wire, **sends_to("T"))
        await gone.call("NotifyClientTermination")
        served.service.clients._told.set()
        await until_async(lambda: "U" not in producers.groups, "nobody sends to U")
        (connection,) = producers.groups["T"]
        # as it does with those of whom it has heard nothing for too long
        connection.close()
        served.broker.managers.forget(connection)
        served.service.clients._told.set()
        await until_async(lambda: producers.any_of("T", "T"), "who sends to T can be asked")

    with_grpc(scenario)


def test_beyond_what_clients_may_name_those_that_name_the_most_lose_theirs(with_grpc, monkeypatch):
    monkeypatch.setattr(clients, "TOPICS_NAMED_MAX", 100)

    async def scenario(served, wire):
        await telemetry(wire, **sends_to("T"))
        for letter in "ABC":
            many = (f"{letter}{number}" for number in range(60))
            await telemetry(await served.connect(), **sends_to(*many))
        kept = {name for each in served.service.clients._clients.values() for name in each.topics}
        assert "T" in kept
        assert len(kept) <= 100

    with_grpc(scenario)


def test_made_up_clients_leave_room_for_others(with_grpc, monkeypatch):
    monkeypatch.setattr(clients, "CLIENTS_MAX", 4)

    async def scenario(served, wire):
        stream, _ = await telemetry(wire, **sends_to("T"))
        for number in range(3):
            made_up = await served.connect(f"made up {number}")
            assert (await made_up.call("Heartbeat")).status.code == Code.OK
        new = await served.connect("new")
        assert (await new.call("Heartbeat")).status.code == Code.TOO_MANY_REQUESTS
        for client in served.service.clients._clients.values():
            client.seen_s -= 2
        served.service.clients._full_until_s = 0
        assert (await new.call("Heartbeat")).status.code == Code.OK
        assert not stream.closed
        assert len(served.service.clients) == 2

    with_grpc(scenario)


class Stream:
    """An open Telemetry call, and how often one was compared with another."""

    compared = 0
    __hash__ = object.__hash__

    def __init__(self):
        self.over = asyncio.Event()

    def __eq__(self, other):
        Stream.compared += 1
        return self is other

    async def receive(self):
        await self.over.wait()


def test_a_stream_that_ends_is_found_without_looking_through_all_of_its_client():
    async def scene():
        known = clients.Clients(None, lambda _: None, lambda: 0.0)
        caller = Caller("c", "", "", "", "", None)
        streams = [Stream() for _ in range(100)]
        tasks = [asyncio.ensure_future(known.telemetry(each, caller)) for each in streams]
        await asyncio.sleep(0)
        for each in reversed(streams):
            each.over.set()
        await asyncio.gather(*tasks)
        assert Stream.compared < 100

    asyncio.run(scene())
