"""kombu's event loop delivers what a connection consumes, as in a worker of Celery's."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import pytest
from children import in_child
from patience import until

from rmqcore import DiskFullError

pytestmark = pytest.mark.engine

kombu = pytest.importorskip("kombu", reason="needs kombu: pip install rmqcore[kombu]")
queue_topic = pytest.importorskip("rmqcore.adapters.kombu").queue_topic
asynchronous = pytest.importorskip("kombu.asynchronous")

QUEUE = kombu.Queue("q")
#: nobody looks again by this time
NEVER_S = 1_000_000


@pytest.fixture
def connect(tmp_path):
    opened = []

    def connect(**options):
        connection = kombu.Connection(f"rmqcore://{tmp_path}/store", transport_options=options)
        opened.append(connection)
        return connection

    yield connect
    for connection in opened:
        connection.close()


@pytest.fixture
def loop():
    loop = asynchronous.Hub()
    yield loop
    loop.close()


def publish(connection, *bodies):
    producer = kombu.Producer(connection)
    for body in bodies:
        producer.publish(body, exchange="", routing_key="q", declare=[QUEUE])


def live(loop):
    """The timers that will come."""
    return [each for each in loop.timer.queue if not each.entry.canceled]


def go_idle(loop):
    """Let a loop go on until nothing wakes it."""
    poll, polled = loop.poller.poll, []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop.poller, "poll", lambda _: polled.append(poll(0)) or polled[-1])
        rounds = loop.create_loop()
        until(lambda: next(rounds) or not (loop.readers and polled[-1]), "a loop that sleeps")


@contextmanager
def consumed(loop, connection, prefetch=0):
    """What a loop delivers, and a call that has it go on until there are so many messages."""
    got, rounds = [], loop.create_loop()

    def go_on(count):
        until(lambda: next(rounds) or len(got) >= count, f"{count} messages")

    connection.transport.register_with_event_loop(connection.connection, loop)
    with kombu.Consumer(connection, [QUEUE], on_message=got.append) as consumer:
        consumer.qos(prefetch_count=prefetch)
        yield got, go_on


def test_what_is_there_and_what_comes_is_delivered(connect, loop):
    connection, producer = connect(polling_interval=NEVER_S), connect()
    assert connection.transport.implements.asynchronous
    publish(producer, *range(40))
    with consumed(loop, connection) as (got, go_on):
        go_on(40)
        other = threading.Thread(target=publish, args=(producer, 40))
        other.start()
        go_on(41)
        other.join()
        assert [message.payload for message in got] == list(range(41))


def test_an_acknowledgement_of_another_thread_opens_the_window(connect, loop):
    connection = connect(polling_interval=NEVER_S)
    publish(connection, 0, 1, 2)
    with consumed(loop, connection, prefetch=1) as (got, go_on):
        for count in (1, 2, 3):
            go_on(count)
            assert len(got) == count
            other = threading.Thread(target=got[-1].ack)
            other.start()
            other.join()


def test_a_wider_window_is_used_at_once(connect, loop):
    connection = connect(polling_interval=NEVER_S)
    publish(connection, 0, 1, 2)
    with consumed(loop, connection, prefetch=1) as (got, go_on):
        go_on(1)
        go_idle(loop)
        connection.default_channel.basic_qos(prefetch_count=3)
        go_on(3)
        assert [message.payload for message in got] == [0, 1, 2]


def test_a_message_for_which_the_window_opens_takes_one_look(connect, loop, monkeypatch):
    connection = connect(polling_interval=NEVER_S)
    publish(connection, *range(11))
    look, looks = connection.transport._deliver_in_loop, []
    monkeypatch.setattr(connection.transport, "_deliver_in_loop", lambda: looks.append(1) or look())
    with consumed(loop, connection, prefetch=1) as (got, _):
        go_idle(loop)
        looks.clear()
        for _ in range(10):
            got[-1].ack()
            go_idle(loop)
        assert len(got) == 11
        assert len(looks) == 10


def test_what_comes_for_others_does_not_wake_the_loop(connect, loop):
    connection = connect(polling_interval=NEVER_S)
    with consumed(loop, connection) as (_, go_on):
        publish(connection, 0)
        go_on(1)
        go_idle(loop)
        delivery = connection.transport._loop_delivery
        delivery._arrived([(queue_topic("other"), 0)])
        assert not delivery._due
        delivery._arrived([(queue_topic("other"), 0), (queue_topic("q"), 0)])
        assert delivery._due


def test_there_is_one_timer_for_the_next_look(connect, loop):
    """A queue that expires has it come earlier; else they would become more and more."""
    connection = connect(polling_interval=NEVER_S)
    with consumed(loop, connection):
        for interval_s in (NEVER_S, NEVER_S / 2, NEVER_S):
            connection.transport.polling_interval = interval_s
            connection.transport.look_at_once()
            go_idle(loop)
            assert len(live(loop)) == 1


def test_what_another_gives_back_is_found_with_the_next_look(connect, loop):
    other = connect()
    publish(other, 0)
    held = QUEUE(other.channel()).get()
    with consumed(loop, connect(polling_interval=0.01)) as (got, go_on):
        held.requeue()
        go_on(1)
        assert got[0].delivery_info["redelivered"]


def test_a_consumer_that_comes_later_is_delivered_to_at_once(connect, loop):
    connection = connect(polling_interval=NEVER_S)
    later, found = kombu.Queue("later"), []
    with consumed(loop, connection) as (got, go_on):
        producer = kombu.Producer(connection)
        producer.publish("x", exchange="", routing_key="later", declare=[later])
        publish(connection, 0)
        go_on(1)
        go_idle(loop)
        with kombu.Consumer(connection, [later], on_message=found.append):
            rounds = loop.create_loop()
            until(lambda: next(rounds) or found, "the message of the later queue")
        assert len(got) == 1


def test_what_a_store_refuses_is_an_error_of_the_loop_and_comes_when_it_does_not(
    connect, loop, monkeypatch
):
    connection = connect(polling_interval=NEVER_S)
    publish(connection, 0)
    with consumed(loop, connection) as (got, go_on):

        def full(*_, **__):
            raise DiskFullError("store", "full")

        with monkeypatch.context() as patch:
            patch.setattr(connection.transport.opened.store, "lease", full, raising=False)
            with pytest.raises(DiskFullError):
                next(loop.create_loop())
        go_on(1)
        assert [message.payload for message in got] == [0]


@pytest.mark.parametrize("closed", ["channel", "connection", "only connection"])
def test_what_a_consumer_no_longer_takes_that_closes_goes_to_others(connect, loop, closed):
    connection, other = connect(polling_interval=NEVER_S), connect()
    publish(other, 0, 1, 2)
    channel, got = connection.channel(), []
    if closed == "only connection":
        other.close()

    def take(message):
        got.append(message.payload)
        message.ack()
        (channel if closed == "channel" else connection).close()

    connection.transport.register_with_event_loop(connection.connection, loop)
    kombu.Consumer(channel, [QUEUE], on_message=take).consume()
    go_idle(loop)
    assert got == [0]
    queue = QUEUE(connect().channel())
    assert [queue.get().payload for _ in range(2)] == [1, 2]


def test_a_connection_that_is_closed_leaves_the_loop(connect, loop):
    connection, producer = connect(), connect()
    for _ in range(2):
        connection.transport.register_with_event_loop(connection.connection, loop)
    connection.close()
    assert not loop.readers
    assert live(loop) == []
    publish(producer, 0)


@pytest.mark.process
def test_a_forked_child_that_closes_a_connection_leaves_its_parents_loop(
    connect, loop, monkeypatch
):
    connection, producer = connect(polling_interval=NEVER_S), connect()
    poll, polled = loop.poller.poll, []

    def noted(timeout):
        polled.append(poll(timeout))
        return polled[-1]

    monkeypatch.setattr(loop.poller, "poll", noted)
    with consumed(loop, connection) as (_, go_on):
        publish(producer, 0)
        go_on(1)
        in_child(connection.close)
        polled.clear()
        publish(producer, 1)
        go_on(2)
        assert any(polled)
