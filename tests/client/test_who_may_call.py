"""A client answers whoever may call it, and refuses at once who could only wait for ever."""

import asyncio
import gc
import os
import signal
import threading
import weakref

import pyarrow as pa
import pytest
from children import in_child, run_child
from patience import TIMEOUT_S, until, until_async

from rmqcore.client import (
    Admin,
    ClientClosedError,
    ClientForkedError,
    ClientMisusedError,
    Consumer,
    Producer,
    TransactionState,
    blocking,
)

pytestmark = pytest.mark.engine
forks = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")

CALLS = {
    "send": ("producer", lambda client, topic: client.send(topic, b"child")),
    "send_oneway": ("producer", lambda client, topic: client.send_oneway(topic, b"child")),
    "send_batch": ("producer", lambda client, topic: client.send_batch(topic, [b"child"])),
    "send_columns": (
        "producer",
        lambda client, topic: client.send_columns(pa.table({"body": ["child"]}), topic=topic),
    ),
    "send_in_transaction": (
        "producer",
        lambda client, topic: client.send_in_transaction(topic, b"child", lambda _: None),
    ),
    "request": ("producer", lambda client, topic: client.request(topic, b"child")),
    "receive": ("consumer", lambda client, topic: client.receive(TIMEOUT_S)),
    "topics": ("admin", lambda client, topic: client.topics()),
}


def made(kinds, namesrv, topic, group):
    return {
        "producer": kinds.Producer(namesrv),
        "consumer": kinds.Consumer(namesrv, group, {topic: "*"}, start="first"),
        "admin": kinds.Admin(namesrv),
    }


class Asynchronous:
    Producer, Consumer, Admin = Producer, Consumer, Admin


@forks
@pytest.mark.process
@pytest.mark.parametrize("call", CALLS)
def test_a_child_is_refused_what_its_parent_has_opened(rocketmq_broker, rocketmq_topic, call):
    kind, work = CALLS[call]
    client = made(blocking, rocketmq_broker.namesrv_addr, rocketmq_topic, f"G-{call}")[kind]
    with client, blocking.Producer(rocketmq_broker.namesrv_addr) as producer:
        producer.send(rocketmq_topic, b"parent")

        def tried():
            with pytest.raises(ClientForkedError, match=str(os.getppid())):
                work(client, rocketmq_topic)
            with pytest.raises(ClientForkedError):
                client.start()
            client.close()

        in_child(tried)
        assert producer.send(rocketmq_topic, b"after").queue_offset >= 0


@forks
@pytest.mark.process
@pytest.mark.parametrize("call", CALLS)
def test_a_child_of_an_event_loop_is_refused_too(rocketmq_broker, rocketmq_topic, run, call):
    kind, work = CALLS[call]

    async def scenario():
        namesrv = rocketmq_broker.namesrv_addr
        client = made(Asynchronous, namesrv, rocketmq_topic, f"G-{call}")[kind]

        async def tried():
            with pytest.raises(ClientForkedError):
                await work(client, rocketmq_topic)
            with pytest.raises(ClientForkedError):
                await client.start()
            await client.close()

        async with client:
            in_child(lambda: asyncio.run(tried()))
            if kind == "admin":
                assert await client.topics()
            elif kind == "producer":
                await client.send(rocketmq_topic, b"parent")
            else:
                async with Producer(namesrv) as producer:
                    await producer.send(rocketmq_topic, b"parent")
                await client.ack(await client.receive())

    run(scenario())


@forks
@pytest.mark.process
def test_an_ack_of_a_child_settles_nothing(rocketmq_broker, rocketmq_topic):
    namesrv = rocketmq_broker.namesrv_addr
    with (
        blocking.Producer(namesrv) as producer,
        blocking.Consumer(namesrv, "G-ack", {rocketmq_topic: "*"}, start="first") as consumer,
    ):
        producer.send(rocketmq_topic, b"x")
        message = consumer.receive()

        def tried():
            for settle in (consumer.ack, consumer.nack):
                with pytest.raises(ClientForkedError):
                    settle(message)

        in_child(tried)
        consumer.ack(message)


@forks
@pytest.mark.process
def test_what_a_child_drops_leaves_the_parents_connection(rocketmq_broker, rocketmq_topic):
    producers = [blocking.Producer(rocketmq_broker.namesrv_addr)]
    producers[0].start()
    producers[0].send(rocketmq_topic, b"x", queue_id=0)

    def dropped():
        seen = weakref.ref(producers.pop())
        gc.collect()
        return seen() is None

    assert in_child(dropped)
    remoting = producers[0]._client._instance.remoting
    connections = dict(remoting._connections)
    assert producers[0].send(rocketmq_topic, b"y", queue_id=0).queue_offset == 1
    assert remoting._connections == connections
    producers[0].close()


@forks
@pytest.mark.process
def test_a_child_opens_its_own(rocketmq_broker, rocketmq_topic):
    namesrv = rocketmq_broker.namesrv_addr
    prepared, never_opened = blocking.Producer(namesrv), Producer(namesrv)
    with blocking.Producer(namesrv):

        async def once():
            async with never_opened:
                await never_opened.send(rocketmq_topic, b"child")
                return never_opened.client_id, never_opened._instance.ids.make()

        def work(tell):
            with prepared:
                prepared.send(rocketmq_topic, b"child")
            tell(asyncio.run(once()))

        told = [run_child(work) for _ in range(2)]
    assert [code for code, _ in told] == [0, 0]
    (first_client, first_id), (second_client, second_id) = (words[0] for _, words in told)
    # two clients of one name would share no queues, two messages of one id be one to who looks
    assert first_client != second_client
    assert first_id[:24] != second_id[:24]


@forks
@pytest.mark.process
def test_a_fork_beside_a_thread_that_opens_leaves_the_child_able_to(rocketmq_broker):
    client = blocking.Admin(rocketmq_broker.namesrv_addr)
    with client._alone():
        other = threading.Thread(target=client.start)
        other.start()

    def work():
        client.close()
        return True

    held = threading.Event()
    let_go = threading.Event()

    def hold():
        with client._alone():
            held.set()
            let_go.wait()

    holder = threading.Thread(target=hold)
    other.join()
    holder.start()
    held.wait()
    try:
        assert in_child(work)
    finally:
        let_go.set()
        holder.join()
        client.close()


def test_a_callback_cannot_wait_for_its_own_client(rocketmq_broker, rocketmq_topic):
    with blocking.Producer(rocketmq_broker.namesrv_addr, group="PG-own") as producer:
        refused = []

        def work(_):
            for call in (lambda: producer.send(rocketmq_topic, b"inside"), producer.close):
                with pytest.raises(ClientMisusedError, match="callback") as error:
                    call()
                refused.append(error.value)
            return TransactionState.COMMIT

        result = producer.send_in_transaction(rocketmq_topic, b"x", work)
        assert result.transaction_state is TransactionState.COMMIT
        assert [error.client for error in refused] == ["producer", "producer"]
        assert producer.send(rocketmq_topic, b"after").queue_offset >= 0


def test_a_callback_may_use_another_client(rocketmq_broker, rocketmq_topic):
    with (
        blocking.Producer(rocketmq_broker.namesrv_addr) as other,
        blocking.Producer(rocketmq_broker.namesrv_addr) as producer,
    ):

        def work(_):
            other.send(rocketmq_topic, b"inside")
            return TransactionState.COMMIT

        result = producer.send_in_transaction(rocketmq_topic, b"x", work)
    assert result.transaction_state is TransactionState.COMMIT


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_a_client_of_another_event_loop_is_refused(rocketmq_broker, rocketmq_topic, run):
    namesrv = rocketmq_broker.namesrv_addr
    clients = made(Asynchronous, namesrv, rocketmq_topic, "G-loop")

    async def used(kind, work):
        with pytest.raises(ClientMisusedError, match="event loop"):
            await work(clients[kind], rocketmq_topic)
        with pytest.raises(ClientMisusedError, match="event loop"):
            await clients[kind].start()

    async def close(kind):
        await clients[kind].close()

    async def close_elsewhere(kind):
        with pytest.raises(ClientMisusedError, match="event loop"):
            await clients[kind].close()

    async def scenario():
        for client in clients.values():
            await client.start()
        for kind, work in CALLS.values():
            await asyncio.to_thread(asyncio.run, used(kind, work))
            await asyncio.to_thread(asyncio.run, close_elsewhere(kind))
        for client in clients.values():
            await client.close()
            await client.start()

    run(scenario())
    for kind, work in CALLS.values():
        asyncio.run(used(kind, work))
        asyncio.run(close(kind))
    # what the ended loop had open is warned of here
    clients.clear()
    gc.collect()


def test_starting_twice_is_starting_once(rocketmq_broker, rocketmq_topic, run):
    async def scenario():
        for client in made(
            Asynchronous, rocketmq_broker.namesrv_addr, rocketmq_topic, "G-twice"
        ).values():
            await client.start()
            remoting = client._instance.remoting
            await client.start()
            assert client._instance.remoting is remoting
            await client.close()

    run(scenario())


def test_a_client_that_was_closed_is_opened_in_another_loop(rocketmq_broker, rocketmq_topic):
    clients = made(Asynchronous, rocketmq_broker.namesrv_addr, rocketmq_topic, "G-again")

    async def once(number):
        async with clients["producer"] as producer, clients["consumer"] as consumer:
            waiting = asyncio.create_task(consumer.receive())
            await asyncio.sleep(0)
            await producer.send(rocketmq_topic, b"%d" % number)
            message = await waiting
            await consumer.ack(message)
            async with clients["admin"] as admin:
                await admin.topics()
            return message.body

    assert [asyncio.run(once(number)) for number in range(3)] == [b"0", b"1", b"2"]


def test_settling_with_a_closed_consumer_is_refused(rocketmq_broker, rocketmq_topic, run):
    async def scenario():
        namesrv, wanted = rocketmq_broker.namesrv_addr, {rocketmq_topic: "*"}
        async with Producer(namesrv) as producer:
            await producer.send(rocketmq_topic, b"x")
        async with Consumer(namesrv, "G-late", wanted, start="first") as consumer:
            message = await consumer.receive()
        for settle in (consumer.ack, consumer.nack):
            with pytest.raises(ClientClosedError):
                await settle(message)

    run(scenario())


@pytest.mark.process
def test_a_signal_handler_may_send_and_close(rocketmq_broker, rocketmq_topic):
    namesrv = rocketmq_broker.namesrv_addr
    with (
        blocking.Producer(namesrv) as producer,
        blocking.Consumer(namesrv, "G-signal", {rocketmq_topic: "*"}, start="first") as consumer,
    ):
        done = []

        def handler(*_):
            done.append(producer.send(rocketmq_topic, b"from the handler"))
            producer.close()
            consumer.close()

        before = signal.signal(signal.SIGUSR1, handler)
        try:
            main = threading.main_thread().ident
            sender = threading.Thread(
                target=lambda: (
                    until(lambda: consumer._loop._waited, "somebody waits"),
                    signal.pthread_kill(main, signal.SIGUSR1),
                )
            )
            sender.start()
            found = consumer.receive()
            sender.join()
        finally:
            signal.signal(signal.SIGUSR1, before)
    assert len(done) == 1
    assert found is None or found.body == b"from the handler"


@pytest.mark.process
def test_a_signal_handler_that_closes_what_is_being_opened_ends_that(rocketmq_broker):
    entered = threading.Event()

    class Slow(blocking.Admin):
        async def _opened(self):
            entered.set()
            await asyncio.Event().wait()

    client = Slow(rocketmq_broker.namesrv_addr)
    before = signal.signal(signal.SIGUSR1, lambda *_: client.close())
    try:
        main = threading.main_thread().ident
        sender = threading.Thread(
            target=lambda: (entered.wait(), signal.pthread_kill(main, signal.SIGUSR1))
        )
        sender.start()
        with pytest.raises(ClientClosedError):
            client.start()
        sender.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    with pytest.raises(ClientClosedError):
        client.topics()


def test_who_waits_when_the_thread_ends_waits_no_more(rocketmq_broker, rocketmq_topic):
    client = blocking.Consumer(rocketmq_broker.namesrv_addr, "G-ends", {rocketmq_topic: "*"})
    client.start()
    loop, heard = client._loop, []

    def wait():
        try:
            client._run(lambda _: asyncio.Event().wait())
        except ClientClosedError as error:
            heard.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    until(lambda: loop._waited, "somebody waits")
    client.close()
    waiting.join(TIMEOUT_S)
    assert len(heard) == 1
    # and who comes too late is told the same
    with pytest.raises(ClientClosedError):
        loop.call(lambda: asyncio.sleep(0))
    with pytest.raises(ClientClosedError):
        client.receive()


def test_a_consumer_that_another_loop_opens_again_tries_again_what_has_failed(
    rocketmq_broker, rocketmq_topic, monkeypatch
):
    client = Consumer(rocketmq_broker.namesrv_addr, "G-again", {rocketmq_topic: "*"})
    tries = []

    async def fails_once():
        async with client:
            client._assignment._balance_soon()

    asyncio.run(fails_once())
    monkeypatch.setattr(client._assignment, "_balance_now", lambda: tries.append(1))

    async def fails_again():
        async with client:
            client._assignment._balance_soon()
            await until_async(lambda: tries, "another try")

    asyncio.run(fails_again())
