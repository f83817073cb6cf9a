"""What a broker refuses is raised to whoever waits for it; what passes by itself is ridden out."""

import asyncio
import logging

import pytest
from client.test_failures import name_server, started
from client.test_produce_and_consume import receive
from patience import until_async

from rmqcore.broker import Broker
from rmqcore.client import Admin, Consumer, Producer, Sql, blocking
from rmqcore.client.group_requests import GroupRequests
from rmqcore.client.troubles import Troubles
from rmqcore.config import StoreConfig
from rmqcore.ha.settings import HAConfig
from rmqcore.remoting import (
    Account,
    AclSigner,
    Permission,
    RemotingConnectError,
    RequestCode,
    RequestRefusedError,
    ResponseCode,
)
from rmqcore.testing import SMALL_FILES, running_broker

pytestmark = pytest.mark.engine


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr("rmqcore.client.assignment._PULL_PAUSE_S", 0.02)


async def forbid(namesrv, group, topic, *, allowed=False):
    async with Admin(namesrv) as admin:
        await admin.create_group(group)
        await admin.set_read_permission(group, topic, allowed=allowed)


def test_who_waits_hears_of_a_refused_pull_and_gets_what_is_allowed_later(
    rocketmq_broker, rocketmq_topic, run
):
    namesrv, wanted = rocketmq_broker.namesrv_addr, {rocketmq_topic: "*"}

    async def scenario():
        async with Producer(namesrv) as producer:
            await producer.send(rocketmq_topic, b"one")
        await forbid(namesrv, "CG-forbidden", rocketmq_topic)
        async with Consumer(namesrv, "CG-forbidden", wanted, start="first") as consumer:
            waiting = [asyncio.create_task(consumer.receive()) for _ in range(2)]
            heard = await asyncio.gather(*waiting, return_exceptions=True)
            # and as long as it is refused
            with pytest.raises(RequestRefusedError, match="forbidden"):
                async for _ in consumer:
                    pass
            await forbid(namesrv, "CG-forbidden", rocketmq_topic, allowed=True)

            async def received():
                try:
                    return await consumer.receive()
                except RequestRefusedError:
                    return None

            message = await until_async(received, "what is allowed now")
        return [type(error) for error in heard], {error.code for error in heard}, message.body

    kinds, codes, body = run(scenario())
    assert kinds == [RequestRefusedError] * 2
    assert codes == {ResponseCode.NO_PERMISSION}
    assert body == b"one"


def test_what_other_topics_have_is_handed_out_first(rocketmq_broker, rocketmq_topic, run):
    namesrv, other = rocketmq_broker.namesrv_addr, f"{rocketmq_topic}-other"

    async def scenario():
        async with Producer(namesrv) as producer:
            for topic in (rocketmq_topic, other):
                await producer.send(topic, topic.encode())
        await forbid(namesrv, "CG-one-of-two", rocketmq_topic)
        wanted = {rocketmq_topic: "*", other: "*"}
        async with Consumer(namesrv, "CG-one-of-two", wanted, start="first") as consumer:
            await until_async(lambda: consumer._instance.troubles._refusals, "the refusal")
            await until_async(lambda: consumer._ready, "the message")
            first = await consumer.receive()
            with pytest.raises(RequestRefusedError):
                await consumer.receive()
        return first.topic

    assert run(scenario()) == other


@pytest.mark.parametrize(
    ("allowed", "condition", "code"),
    [
        (True, "a >", ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        (False, "a > 1", ResponseCode.SYSTEM_ERROR),
    ],
)
def test_an_expression_that_no_broker_can_use_is_refused(tmp_path, run, allowed, condition, code):
    async def scenario():
        async with name_server() as namesrv:
            broker = await started(tmp_path / "s", namesrv, enablePropertyFilter=allowed)
            async with Producer(namesrv) as producer, Admin(namesrv) as admin:
                await producer.send("T", b"x")

                async def listed():
                    return "T" in await admin.topics()

                await until_async(listed, "the topic")
            at_start = Consumer(namesrv, "G", {"T": Sql(condition)})
            with pytest.raises(RequestRefusedError) as known:
                await at_start.start()
            # no broker can be asked of a topic that comes later
            async with Consumer(namesrv, "G2", {"Later": Sql(condition)}) as consumer:
                async with Producer(namesrv) as producer:
                    await producer.send("Later", b"x")
                with pytest.raises(RequestRefusedError) as later:
                    await consumer.receive()
            await broker.stop()
        return known.value.code, later.value.code

    assert run(scenario()) == (code, code)


def test_a_broker_that_does_not_tell_of_expressions_is_not_asked_again(tmp_path, run):
    async def scenario():
        async with name_server() as namesrv:
            broker = await started(tmp_path / "s", namesrv, enablePropertyFilter=True)
            del broker._server.processors[RequestCode.CHECK_CLIENT_CONFIG]
            async with Producer(namesrv) as producer:
                await producer.send("T", b"x", properties={"a": "1"})
            async with Consumer(namesrv, "G", {"T": Sql("a = 1")}, start="first") as consumer:
                (message,) = await receive(consumer, 1)
            await broker.stop()
        return message.body

    assert run(scenario()) == b"x"


@pytest.mark.parametrize("orderly", [False, True])
@pytest.mark.parametrize(
    ("topic", "group"),
    [(Permission.SUB, Permission(0)), (Permission.PUB, Permission.SUB)],
    ids=["group", "topic"],
)
def test_who_has_no_permission_hears_of_it(tmp_path, run, topic, group, orderly):
    nobody = Account(
        "nobody", "secret-1", default_topic=topic, groups={"G": group or Permission(0)}
    )
    every = Account("every", "secret-2", default_topic=Permission.PUB | Permission.SUB)

    async def scenario():
        async with name_server() as namesrv:
            broker = Broker(
                tmp_path / "s",
                {"namesrvAddr": namesrv, "listenPort": 0, **SMALL_FILES},
                accounts={"nobody": nobody, "every": every},
            )
            await broker.start()
            async with Producer(namesrv, acl=AclSigner("every", "secret-2")) as producer:
                await producer.send("T", b"x")
            acl = AclSigner("nobody", "secret-1")
            async with Consumer(
                namesrv, "G", {"T": "*"}, start="first", acl=acl, orderly=orderly
            ) as consumer:
                with pytest.raises(RequestRefusedError) as heard:
                    await consumer.receive()
            await broker.stop()
        return heard.value.code

    assert run(scenario()) == ResponseCode.NO_PERMISSION


def test_a_broker_that_is_away_is_waited_for_and_said_once(tmp_path, run, caplog):
    caplog.set_level(logging.WARNING, "rmqcore.client")

    async def scenario():
        async with name_server() as namesrv:
            broker = await started(tmp_path / "s", namesrv)
            async with Producer(namesrv) as producer:
                for queue_id in range(4):
                    await producer.send("T", b"before", queue_id=queue_id)
            async with Consumer(namesrv, "G", {"T": "*"}, start="first") as consumer:
                await receive(consumer, 4)
                waiting = asyncio.create_task(consumer.receive())
                caplog.clear()
                pulls = []
                pull = consumer._requests.pull

                async def counted(*given):
                    pulls.append(given)
                    return await pull(*given)

                consumer._requests.pull = counted
                await broker.stop()
                await until_async(lambda: len(pulls) > 20, "pulls that find nobody")
                said = [record.getMessage() for record in caplog.records]
                broker = await started(tmp_path / "s", namesrv)
                async with Producer(namesrv) as producer:
                    await producer.send("T", b"after")
                body = (await waiting).body
            await broker.stop()
        return said, body

    said, body = run(scenario())
    assert body == b"after"
    assert sum("cannot connect" in line for line in said) == 1


def test_the_command_says_what_is_refused(tmp_path, capsys):
    from rmqcore.cli.app import app

    with running_broker(tmp_path / "s") as broker:
        with blocking.Producer(broker.namesrv_addr) as producer:
            producer.send("T", b"x")
        with blocking.Admin(broker.namesrv_addr) as admin:
            admin.create_group("G")
            admin.set_read_permission("G", "T", allowed=False)
        with pytest.raises(SystemExit) as ended:
            app(["consume", "T", "-g", "G", "-n", broker.namesrv_addr, "--start", "first"])
        assert ended.value.code == 3
        assert "code 16: the consumer group[G] is forbidden" in capsys.readouterr().err


@pytest.mark.logic
class TestTroubles:
    def refused(self, code=ResponseCode.NO_PERMISSION):
        return RequestRefusedError(code, "no", "h:1")

    def test_each_refusal_is_raised_once_to_each_who_waited(self):
        troubles = Troubles()
        told = troubles.told
        troubles.raise_refusal(told)
        troubles.note("the pull", self.refused())
        for _ in range(2):
            with pytest.raises(RequestRefusedError):
                troubles.raise_refusal(told)
        troubles.raise_refusal(troubles.told)
        troubles.note("the pull", self.refused())
        with pytest.raises(RequestRefusedError):
            troubles.raise_refusal(troubles.told)

    def test_what_has_passed_is_not_raised(self):
        troubles = Troubles()
        troubles.note("the pull", self.refused())
        troubles.end("the pull")
        troubles.raise_refusal(0)

    @pytest.mark.parametrize("code", [2, 14, 17, 24, 25, 29, 215, 1500])
    def test_what_passes_by_itself_is_not_raised(self, code):
        troubles = Troubles()
        troubles.note("the pull", self.refused(code))
        troubles.note("the members", self.refused(1), is_passing=True)
        troubles.note("the beat", RemotingConnectError("h:1", "away"))
        troubles.raise_refusal(0)

    def test_the_same_is_said_once_until_it_has_passed_everywhere(self, caplog):
        caplog.set_level(logging.INFO, "rmqcore.client")
        troubles = Troubles()
        for _ in range(3):
            for what in ("the pull of 0", "the pull of 1"):
                troubles.note(what, RemotingConnectError("h:1", "away"))
        troubles.end("the pull of 0")
        troubles.end("the pull of 1")
        troubles.end("the pull of 1")
        assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
        troubles.note("the pull of 0", RemotingConnectError("h:1", "away"))
        assert len(caplog.records) == 3


@pytest.mark.parametrize("timeout_ms", [1.0, 60_000.0])
def test_who_gives_a_message_back_waits_until_its_broker_has_waited(timeout_ms):
    """Who asks once more has one copy more."""
    asked = {}

    class Instance:
        def __init__(self):
            self.timeout_ms = timeout_ms

        def address_of(self, _):
            return "h:1"

        async def ask(self, _, code, fields, *, timeout_ms=0):
            asked[code] = timeout_ms

    asyncio.run(GroupRequests(Instance(), "CG").send_back("b", 0, 0, 16, ("", "T")))
    waits_ms = HAConfig().slave_timeout, StoreConfig().sync_flush_timeout_ms
    assert asked[RequestCode.CONSUMER_SEND_MSG_BACK] > max(waits_ms)
    assert asked[RequestCode.CONSUMER_SEND_MSG_BACK] >= timeout_ms
