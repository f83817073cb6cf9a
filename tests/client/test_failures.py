"""Nothing hangs, nothing is lost, and nothing piles up when the other side fails."""

import asyncio
import ssl
import time
from collections import Counter
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from client.test_produce_and_consume import receive
from patience import TIMEOUT_S, until_async

from interop.cluster import broker_ports
from rmqcore.broker import Broker
from rmqcore.client import Admin, ClientClosedError, Consumer, MessageQueue, NoRouteError, Producer
from rmqcore.client.assigned import allocate
from rmqcore.client.assignment import offset_table
from rmqcore.client.group_requests import GroupRequests
from rmqcore.client.instance import AUTO_CREATE_TOPIC, ClientInstance
from rmqcore.client.route import QueueData, TopicRoute
from rmqcore.client.unique_id import UniqueIds
from rmqcore.errors import ArgumentError
from rmqcore.namesrv import NameServer
from rmqcore.remoting import (
    Account,
    AclSigner,
    Permission,
    RemotingCommand,
    RemotingServer,
    RemotingTimeoutError,
    RequestCode,
    RequestRefusedError,
    Tls,
    TlsMode,
    success,
)
from rmqcore.testing import SMALL_FILES

pytestmark = pytest.mark.engine

PEM = Path(__file__).parents[1] / "remoting" / "localhost.pem"


@asynccontextmanager
async def name_server(**more):
    server = NameServer("127.0.0.1", 0, **more)
    await server.start()
    try:
        yield f"127.0.0.1:{server.port}"
    finally:
        await server.stop()


async def started(path, namesrv, port=0, **settings):
    broker = Broker(path, {"namesrvAddr": namesrv, "listenPort": port, **SMALL_FILES, **settings})
    await broker.start()
    return broker


def test_a_broker_that_comes_again_is_found_again(tmp_path, run, monkeypatch):
    monkeypatch.setattr("rmqcore.client.assignment._PULL_PAUSE_S", 0.02)

    async def scenario():
        async with (
            name_server() as namesrv,
            Producer(namesrv) as producer,
        ):
            # nobody takes it while the broker is away
            port = broker_ports()
            broker = await started(tmp_path / "s", namesrv, port)
            await producer.send("T", b"before", queue_id=0)
            async with Consumer(namesrv, "G", {"T": "*"}, start="first") as consumer:
                await receive(consumer, 1)
                await broker.stop()
                with pytest.raises((OSError, NoRouteError)):
                    await producer.send("T", b"lost")
                broker = await started(tmp_path / "s", namesrv, port)
                await producer.send("T", b"after", queue_id=0)
                (message,) = await receive(consumer, 1)
                async with Admin(namesrv) as admin:
                    await until_async(lambda: admin.consumers("G"), "the consumer's heart-beat")
            await broker.stop()
        return message.body

    assert run(scenario()) == b"after"


def test_what_is_not_done_with_comes_again_from_a_broker_that_has_lost_the_groups_offset(
    tmp_path, run
):
    async def scenario():
        async with name_server() as namesrv, Producer(namesrv) as producer:
            broker = await started(tmp_path / "s", namesrv)
            held = broker.managers.waiting_pulls
            await producer.send("T", b"0", queue_id=0)
            async with Consumer(namesrv, "G", {"T": "*"}, start="first") as consumer:
                # of four queues and of what comes again
                for number in range(1, 6):
                    message = await consumer.receive()
                    if number <= 2:
                        await consumer.ack(message)
                    await until_async(lambda: len(held) == 5, "it pulls what comes next")
                    if number < 5:
                        await producer.send("T", b"%d" % number, queue_id=0)
                # as when it takes over a log that ended in front of the last message
                broker.managers.offsets.resets.take_over({}, {("T", 0): 4})
                broker.store.consumer_offsets.remove(group="G")
                await producer.send("T", b"5", queue_id=0)
                bodies = [message.body for message in await receive(consumer, 4)]
            await broker.stop()
        return bodies

    assert run(scenario()) == [b"2", b"3", b"4", b"5"]


def test_no_error_ends_pulls_shares_or_heart_beats(tmp_path, run, monkeypatch):
    """Not one of a kind that nobody has thought of, either: what has failed is tried again."""
    for pause in ("_PULL_PAUSE_S", "_REBALANCE_INTERVAL_S"):
        monkeypatch.setattr(f"rmqcore.client.assignment.{pause}", 0.02)
    monkeypatch.setattr("rmqcore.client.instance.HEART_BEAT_INTERVAL_S", 0.02)
    failed, good = Counter(), Counter()

    def failing(cls, name):
        call = getattr(cls, name)

        async def fail_first(*args, **settings):
            if failing.now and failed[name] < 2:
                failed[name] += 1
                raise ZeroDivisionError(name)
            answer = await call(*args, **settings)
            good[name] += failed[name] == 2
            return answer

        monkeypatch.setattr(cls, name, fail_first)

    failing.now = False
    calls = (GroupRequests, "pull"), (GroupRequests, "members"), (ClientInstance, "fetch_route")
    for call in calls:
        failing(*call)

    async def scenario():
        async with name_server() as namesrv, Producer(namesrv) as producer:
            broker = await started(tmp_path / "s", namesrv)
            await producer.send("T", b"before", queue_id=0)
            async with Consumer(namesrv, "G", {"T": "*"}, start="first") as consumer:
                await receive(consumer, 1)
                failing.now = True
                await producer.send("T", b"after", queue_id=0)
                await until_async(lambda: len(good) == len(calls), "each to be tried again")
                await producer.send("T", b"last", queue_id=0)
                await receive(consumer, 2)
            await broker.stop()

    run(scenario())


def test_a_send_that_fails_goes_to_another_broker(tmp_path, run):
    async def scenario():
        async with name_server() as namesrv:
            brokers = [
                await started(tmp_path / name, namesrv, brokerName=name) for name in ("one", "two")
            ]
            async with Producer(namesrv) as producer:
                for _ in range(8):
                    await producer.send("T", b"x")
                async with Admin(namesrv) as admin:

                    async def both_have_it():
                        if "T" not in await admin.topics():
                            return False
                        route = await admin.route("T")
                        return len(route.addresses) == len(route.queues) == 2

                    await until_async(both_have_it, "the topic on both brokers")
                await brokers[0]._server.stop()
                names = {(await producer.send("T", b"y")).broker_name for _ in range(8)}
            for broker in brokers:
                await broker.stop()
        return names

    assert run(scenario()) == {"two"}


def test_the_next_name_server_answers_for_one_that_is_gone(rocketmq_broker, rocketmq_topic, run):
    async def scenario():
        both = ["127.0.0.1:1", rocketmq_broker.namesrv_addr]
        async with Producer(both) as producer:
            return await producer.send(rocketmq_topic, b"x")

    assert run(scenario()).queue_offset == 0


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop for which time also passes when it is told to."""

    jumped_s = 0.0

    def time(self):
        return super().time() + self.jumped_s


def test_the_next_name_server_answers_for_one_that_hangs(rocketmq_broker, rocketmq_topic):
    async def scenario():
        loop = asyncio.get_running_loop()

        async def hangs(reader, writer):
            assert await reader.read(1)
            # half of the time is each one's
            loop.jumped_s += TIMEOUT_S / 2
            await reader.read()
            writer.close()

        async with await asyncio.start_server(hangs, "127.0.0.1", 0) as hanging:
            address = "127.0.0.1:{1}".format(*hanging.sockets[0].getsockname())
            both = [address, rocketmq_broker.namesrv_addr]
            async with Producer(both) as producer:
                return await producer.send(rocketmq_topic, b"x")

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        assert runner.run(scenario()).queue_offset == 0


async def wait_for_who_never_answers():
    """Returns how long a producer waited that had 200 ms."""
    never = asyncio.Event()

    async def answer(connection, request):
        await never.wait()
        return success()

    server = RemotingServer("127.0.0.1", 0)
    server.register(RequestCode.GET_ROUTEINFO_BY_TOPIC, answer)
    await server.start()
    address = f"127.0.0.1:{server.port}"
    async with Producer(address, timeout_ms=200) as producer:
        await producer._instance.remoting.connection(address, 1000 * TIMEOUT_S)
        began = time.monotonic()
        with pytest.raises(RemotingTimeoutError):
            await producer.send("T", b"x")
        took_s = time.monotonic() - began
    await server.stop(0)
    return took_s


def test_who_never_answers_is_not_waited_for_longer_than_was_said(run):
    assert run(wait_for_who_never_answers()) > 0.15


@pytest.mark.measure
def test_who_never_answers_is_waited_for_as_long_as_was_said(run, figure):
    took_s = run(wait_for_who_never_answers())
    figure("a request that had 200 ms", took_s, "s", at_most=30)


def test_no_more_is_fetched_than_there_is_room_for(rocketmq_broker, rocketmq_topic, run):
    namesrv, wanted = rocketmq_broker.namesrv_addr, {rocketmq_topic: "*"}

    async def no_room(consumer):
        full = await until_async(
            lambda: [each for each in consumer.assigned if not each._room.is_set()],
            "a queue with no room for more",
        )
        # a pull that was asked for nevertheless is answered by then
        for _ in range(3):
            await consumer._requests.stored_offset(full[0].queue)
        return sum(len(each._unacked) for each in consumer.assigned)

    async def scenario():
        async with Producer(namesrv) as producer:
            for part in range(10):
                many = [b"%d" % (part * 100 + number) for number in range(100)]
                await producer.send_batch(rocketmq_topic, many, queue_id=0)
        sizes = []
        for prefetch, unacked_max in ((40, 2000), (2000, 70)):
            async with Consumer(
                namesrv,
                f"CG-room{prefetch}",
                wanted,
                start="first",
                prefetch=prefetch,
                unacked_max=unacked_max,
            ) as consumer:
                sizes.append(await no_room(consumer))
                found = await receive(consumer, 1000)
                assert [int(message.body) for message in found] == list(range(1000))
        return sizes

    buffered, unsettled = run(scenario())
    assert 40 <= buffered < 40 + 32
    assert 70 <= unsettled < 70 + 32


def test_closing_ends_who_waits_for_a_message(rocketmq_broker, rocketmq_topic, run):
    async def scenario():
        consumer = Consumer(rocketmq_broker.namesrv_addr, "CG-end", {rocketmq_topic: "*"})
        with pytest.raises(ClientClosedError):
            await consumer.receive()
        await consumer.start()
        waiting = asyncio.ensure_future(anext(consumer, None))
        await asyncio.sleep(0)
        assert consumer._arrived._waiters
        await consumer.close()
        assert await waiting is None
        with pytest.raises(ClientClosedError):
            await consumer.receive()
        with pytest.raises(ClientClosedError):
            await Producer(rocketmq_broker.namesrv_addr).send("T", b"x")

    run(scenario())


def test_requests_are_signed(tmp_path, rocketmq_topic, run):
    both = Permission.PUB | Permission.SUB
    user = Account("user", "secret-1", default_topic=both, groups={"G": Permission.SUB})

    async def scenario():
        async with name_server() as namesrv:
            broker = Broker(
                tmp_path / "s",
                {"namesrvAddr": namesrv, "listenPort": 0, **SMALL_FILES},
                accounts={"user": user},
            )
            await broker.start()
            acl = AclSigner("user", "secret-1")
            async with Producer(namesrv, acl=acl) as producer:
                await producer.send(rocketmq_topic, b"signed")
            wanted = {rocketmq_topic: "*"}
            async with Consumer(namesrv, "G", wanted, start="first", acl=acl) as consumer:
                (message,) = await receive(consumer, 1)
            for wrong in (None, AclSigner("user", "other"), AclSigner("nobody", "secret-1")):
                async with Producer(namesrv, acl=wrong) as producer:
                    with pytest.raises(RequestRefusedError):
                        await producer.send(rocketmq_topic, b"x")
            await broker.stop()
        return message.body

    assert run(scenario()) == b"signed"


def test_tls_is_spoken_where_it_is_asked_for(run):
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(PEM)
    tls = Tls(TlsMode.ENFORCING, served)

    async def scenario():
        async with name_server(tls=tls) as namesrv:
            trust = ssl.create_default_context(cafile=PEM)
            async with Admin(namesrv, tls=trust) as admin:
                return await admin.topics()

    assert run(scenario()) == []


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("", "G", {"T": "*"}), "namesrv_addr"),
        (("here", "G", {"T": "*"}), "namesrv_addr"),
        (("h:1", "G", {}), "subscriptions"),
        (("h:1", "G", "T"), "subscriptions"),
    ],
)
def test_a_wrong_argument_is_named(arguments, named):
    with pytest.raises(ArgumentError, match=named):
        Consumer(*arguments)
    with pytest.raises(ArgumentError, match="start"):
        Consumer("h:1", "G", {"T": "*"}, start="now")
    with pytest.raises(ArgumentError, match="mode"):
        Consumer("h:1", "G", {"T": "*"}, mode="all")


@pytest.mark.parametrize("members", range(1, 12))
def test_each_queue_has_one_consumer_and_shares_differ_by_one(members):
    queues = [MessageQueue("T", "b", number) for number in range(8)]
    names = [f"c{number:02}" for number in range(members)]
    shares = [allocate(queues, names, name) for name in names]
    assert [queue for share in shares for queue in share] == queues
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert allocate(queues, names, "stranger") == []


def test_ids_are_unique_and_tell_their_time_since_the_month_began():
    july_ms, august_ms = (
        int(time.mktime((2024, month, 1, 0, 0, 0, 0, 0, -1))) * 1000 for month in (7, 8)
    )
    now_ms = [july_ms + 12_345]
    ids = UniqueIds("10.1.2.3", lambda: now_ms[0])
    made = {ids.make() for _ in range(1000)}
    assert len(made) == 1000
    assert all(len(each) == 32 and each.startswith("0A010203") for each in made)
    for began_ms, passed_ms in ((july_ms, 12_345), (august_ms, 0), (july_ms, 7)):
        now_ms[0] = began_ms + passed_ms
        assert int(ids.make()[20:28], 16) == passed_ms


def test_a_broker_resets_the_offsets_and_asks_for_them(rocketmq_broker, rocketmq_topic, run):
    async def scenario():
        namesrv = rocketmq_broker.namesrv_addr
        async with (
            Producer(namesrv) as producer,
            Consumer(namesrv, "CG-220", {rocketmq_topic: "*"}, start="first") as consumer,
        ):
            for number in range(3):
                await producer.send(rocketmq_topic, b"%d" % number, queue_id=0)
            await receive(consumer, 3)
            processors = consumer._assignment.processors
            queue = f'{{"brokerName":"broker-a","queueId":0,"topic":"{rocketmq_topic}"}}'
            body = f'{{"offsetTable":{{{queue}:1}}}}'.encode()
            reset = RemotingCommand(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, {}, body)
            await processors[reset.code](None, reset)
            again = [message.body for message in await receive(consumer, 2)]
            ask = RemotingCommand(
                RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, {"topic": rocketmq_topic}
            )
            told = offset_table(
                processors[ask.code](None, ask).body.replace(b"messageQueueTable", b"offsetTable")
            )
            bad = RemotingCommand(
                RequestCode.RESET_CONSUMER_CLIENT_OFFSET, {}, b'{"offsetTable":1}'
            )
            with pytest.raises(RequestRefusedError):
                await processors[bad.code](None, bad)
        return again, told[MessageQueue(rocketmq_topic, "broker-a", 0)]

    assert run(scenario()) == ([b"1", b"2"], 3)


@pytest.mark.parametrize("group", ["", "a group", "g/1", "gr\u00fcn", "g" * 121, None, 5])
def test_a_consumer_of_a_group_with_no_groups_name_is_refused(group):
    with pytest.raises(ArgumentError, match=r"^group="):
        Consumer("127.0.0.1:9876", group, {"T": "*"})


@pytest.mark.parametrize("topic", ["", "a topic", "t/1", "t" * 128, 5])
def test_a_consumer_of_a_topic_that_no_broker_can_have_is_refused(topic):
    with pytest.raises(ArgumentError, match=r"^topic="):
        Consumer("127.0.0.1:9876", "g", {"T": "*", topic: "*"})


@pytest.mark.parametrize("group", ["", "a group", "gr\u00fcn", "g" * 256, None, 5])
def test_a_producer_of_a_group_with_no_groups_name_is_refused(group):
    with pytest.raises(ArgumentError, match=r"^group="):
        Producer("127.0.0.1:9876", group=group)


@pytest.mark.parametrize("group", ["g", "%RETRY%g|_-", "g" * 120])
def test_a_group_may_have_each_name_that_brokers_accept(group):
    assert Consumer("127.0.0.1:9876", group, {"T": "*"}).group == group


def test_a_topic_that_was_deleted_while_its_master_was_away_can_be_made_again(monkeypatch):
    template = TopicRoute({"b": {0: "127.0.0.1:1"}}, (QueueData("b", 8, 8, 7),))

    async def fetch_route(topic):
        return template if topic == AUTO_CREATE_TOPIC else None

    async def scenario():
        client = ClientInstance("producer", "127.0.0.1:1")
        monkeypatch.setattr(client, "fetch_route", fetch_route)
        client.routes["T"] = TopicRoute({"b": {1: "127.0.0.1:2"}}, (QueueData("b", 4, 4, 6),))
        route = await client.update_route("T", create=True)
        assert len(route.to_write("T")) == 4

    asyncio.run(scenario())
