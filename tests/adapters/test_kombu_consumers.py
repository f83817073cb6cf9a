"""kombu's consumers whose channel is closed, or who were busy for long."""

import gc
import signal
import threading
import weakref

import pytest
from children import Program
from interrupts import each_interrupt
from patience import TIMEOUT_S, until

from rmqcore import DiskFullError
from rmqcore.files.lease_journal import LeaseJournal
from rmqcore.store.consume import holders
from rmqcore.store.consume.leases import Leases
from rmqcore.world import World, wall_clock_ms

pytestmark = pytest.mark.engine

kombu = pytest.importorskip("kombu", reason="needs kombu: pip install rmqcore[kombu]")
pytest.importorskip("rmqcore.adapters.kombu")
kombu_queues = pytest.importorskip("rmqcore.adapters.kombu_queues")
common = pytest.importorskip("kombu.common")


@pytest.fixture
def url(tmp_path):
    return f"rmqcore://{tmp_path}/store"


@pytest.fixture
def connection(url):
    options = {"delete_consumed_every": 0}
    with kombu.Connection(url, transport_options=options) as connection:
        yield connection


def publish(connection, body, queue):
    producer = kombu.Producer(connection)
    producer.publish(body, exchange=queue.exchange, routing_key=queue.name, declare=[queue])


def test_what_a_closed_channel_gave_back_is_settled_by_nobody_and_without_an_error(connection):
    queue = kombu.Queue("q")
    for number in range(3):
        publish(connection, number, queue)
    channel = connection.channel()
    held = [queue(channel).get(no_ack=False) for _ in range(3)]
    channel.close()
    held[0].ack()
    held[1].reject()
    held[2].requeue()
    bound = queue(connection.channel())
    assert [bound.get(no_ack=True).payload for _ in range(3)] == [0, 1, 2]


def test_what_an_interrupted_get_was_given_comes_again_at_once(connection, monkeypatch):
    def interrupt(_):
        raise KeyboardInterrupt

    publish(connection, 1, kombu.Queue("q"))
    channel = connection.channel()
    with monkeypatch.context() as patch:
        patch.setattr(channel, "_decoded", interrupt)
        with pytest.raises(KeyboardInterrupt):
            channel.basic_get("q")
    assert channel.basic_get("q").payload == 1


def test_what_a_get_was_given_that_is_interrupted_anywhere_comes_again_at_once(connection):
    publish(connection, 1, kombu.Queue("q"))
    channel = connection.channel()
    for interrupt in each_interrupt(1, ["kombu.py", "opened.py", "shared_store.py"]):
        message = interrupt.during(lambda: channel.basic_get("q")) or channel.basic_get("q")
        assert message.payload == 1, interrupt.at
        message.requeue()


def test_what_goes_back_later_is_taken_from_nobody_who_has_it_by_then(connection, monkeypatch):
    def refuse(*_):
        raise DiskFullError("/disk")

    def refuse_from_here_on(*_):
        patch.setattr(LeaseJournal, "write", refuse)
        refuse()

    publish(connection, 1, kombu.Queue("q"))
    channel = connection.channel()
    with monkeypatch.context() as patch:
        patch.setattr(Leases, "acknowledge", refuse_from_here_on)
        with pytest.raises(DiskFullError):
            channel.basic_get("q", no_ack=True)
    # as another process does
    others = channel.store.lease("kombu", {kombu_queues.queue_topic("q"): "*"})
    message = channel.basic_get("q")
    assert len(others) + (message is not None) == 1


def test_a_consumer_that_was_busy_for_longer_than_its_queue_lives_deletes_it_not(connection, clock):
    queue = kombu.Queue("q", expires=0.5)
    publish(connection, 1, queue)
    publish(connection, 2, queue)
    got = []

    def work(message):
        clock.pass_ms(5000)
        message.ack()
        got.append(message.payload)

    with kombu.Consumer(connection, [queue], on_message=work) as consumer:
        consumer.qos(prefetch_count=1)
        for _ in range(2):
            connection.drain_events(timeout=TIMEOUT_S)
    assert got == [1, 2]


def test_a_full_disk_that_refuses_to_keep_a_queue_is_not_kept_full(
    connection, clock, tmp_path, monkeypatch
):
    queue = kombu.Queue("q", expires=60)
    publish(connection, 1, queue)
    got = []
    store = connection.transport.opened.store
    put, delete = store.kv_put, store.delete_consumed_files
    freed = []

    def put_where_there_is_room(*arguments, **more):
        if not freed:
            raise DiskFullError(tmp_path, "no room")
        return put(*arguments, **more)

    def delete_files():
        freed.append(delete())
        return freed[-1]

    with kombu.Consumer(connection, [queue], on_message=got.append, no_ack=True):
        monkeypatch.setattr(store, "kv_put", put_where_there_is_room)
        monkeypatch.setattr(store, "delete_consumed_files", delete_files)
        clock.pass_ms(30_000)
        connection.drain_events(timeout=TIMEOUT_S)
    assert [message.payload for message in got] == [1]


EVENTS = kombu.Exchange("events", type="fanout")
BRIEF = kombu.Queue("brief", EVENTS, expires=0.5)


def say(connection, body):
    kombu.Producer(connection).publish(body, exchange=EVENTS)


def drain_nothing(connection):
    with pytest.raises(TimeoutError):
        connection.drain_events(timeout=0.01)


@pytest.mark.parametrize("others", ["delete", "publish"])
def test_the_queue_of_a_consumer_that_was_busy_is_kept_by_others_with_all_it_gets(
    connection, url, clock, others
):
    got = []
    with kombu.Connection(url) as other, kombu.Consumer(connection, [BRIEF], on_message=got.append):
        drain_nothing(connection)
        clock.pass_ms(3_600_000)
        if others == "delete":
            other.default_channel.delete_expired()
        say(other, "while it was busy")
        connection.drain_events(timeout=TIMEOUT_S)
        say(other, "later")
        connection.drain_events(timeout=TIMEOUT_S)
    assert [message.payload for message in got] == ["while it was busy", "later"]


def test_a_queue_whose_last_consumer_has_left_expires(connection, clock):
    channel = connection.default_channel
    with kombu.Consumer(connection, [BRIEF]):
        drain_nothing(connection)
    assert [queue for _, _, queue in channel.get_table("events")] == ["brief"]
    clock.pass_ms(500)
    assert channel.get_table("events") == []


@pytest.mark.parametrize("closed", ["nothing", "a channel"])
def test_a_connection_that_is_dropped_holds_no_queue_and_no_message(connection, url, clock, closed):
    def drop():
        dropped, got = kombu.Connection(url), []
        with dropped.channel() as channel:
            BRIEF(channel).declare()
        say(connection, "again")
        consumer = kombu.Consumer(dropped, [BRIEF], on_message=got.append)
        consumer.consume()
        dropped.drain_events(timeout=TIMEOUT_S)
        assert [message.payload for message in got] == ["again"]
        if closed == "a channel":
            dropped.channel().close()
        return weakref.ref(dropped.transport)

    transport = drop()
    until(lambda: gc.collect() >= 0 and transport() is None, "the connection's end")
    store = connection.default_channel.store
    until(lambda: store.kv_count("kombu-consumers") == 0, "nobody consumes")
    bound = BRIEF(connection.default_channel)
    found = until(lambda: bound.get(no_ack=True), "its message comes again")
    assert found.payload == "again"
    clock.pass_ms(500)
    assert connection.default_channel.get_table("events") == []


CONSUMES = """
import sys, kombu, rmqcore.adapters.kombu
events = kombu.Exchange("events", type="fanout")
brief = kombu.Queue("brief", events, expires=0.5)
connection = kombu.Connection(sys.argv[1])
with kombu.Consumer(connection, [brief], on_message=lambda message: print("got", flush=True)):
    while True:
        connection.drain_events()
"""


@pytest.fixture
def consumer(connection, url):
    """A program that has a queue which expires, and consumes from it."""
    BRIEF(connection.default_channel).declare()
    with Program("-c", CONSUMES, url) as program:
        say(connection, "x")
        assert program.line() == "got"
        yield program


@pytest.mark.process
def test_a_queue_whose_consumer_was_killed_expires(connection, clock, consumer):
    consumer.kill()
    clock.pass_ms(500)
    assert connection.default_channel.get_table("events") == []
    connection.default_channel.delete_expired()
    assert connection.default_channel.store.kv_count("kombu-consumers") == 0


@pytest.mark.process
def test_a_consumer_of_whom_nobody_can_tell_counts_for_an_hour(
    connection, clock, consumer, monkeypatch
):
    consumer.signal(signal.SIGSTOP)
    monkeypatch.setattr(holders, "_namespace", lambda: "1")
    clock.pass_ms(500)
    channel = connection.default_channel
    assert [queue for _, _, queue in channel.get_table("events")] == ["brief"]
    clock.pass_ms(500)
    clock.now_ms = wall_clock_ms() + 3_600_000
    assert channel.get_table("events") == []
    channel.delete_expired()
    assert channel.store.kv_count("kombu-consumers") == 0


def test_a_queue_with_auto_delete_goes_after_its_consumers_and_not_before_the_first(
    connection, clock
):
    queue = common.Broadcast("all", queue="news", exchange=EVENTS)
    channel = connection.default_channel
    queue(channel).declare()
    say(connection, "early")
    queue(channel).get(no_ack=True)
    say(connection, "early, too")
    clock.pass_ms(3_600_000)
    channel.delete_expired()
    got = []
    with kombu.Consumer(connection, [queue], on_message=got.append, no_ack=True):
        connection.drain_events(timeout=TIMEOUT_S)
        clock.pass_ms(3_600_000)
        channel.delete_expired()
        say(connection, "late")
        connection.drain_events(timeout=TIMEOUT_S)
    assert [message.payload for message in got] == ["early, too", "late"]
    clock.pass_ms(59_000)
    assert [name for _, _, name in channel.get_table("events")] == ["news"]
    clock.pass_ms(1000)
    assert channel.get_table("events") == []
    channel.delete_expired()
    assert "kombu-news" not in {topic for topic, _ in channel.store.queues()}


def test_a_name_with_what_separates_names_is_refused(connection):
    channel = connection.default_channel
    with pytest.raises(kombu.exceptions.ChannelError, match="NUL"):
        kombu.Queue("a\0b", kombu.Exchange("e"), routing_key="r")(channel).declare()
    assert list(channel.list_bindings()) == []


@pytest.mark.parametrize("channels", ["one", "two"])
def test_of_two_consumers_of_a_queue_one_goes_on_when_the_other_ends(connection, channels):
    queue = kombu.Queue("q")
    for number in range(4):
        publish(connection, number, queue)
    one = connection.channel()
    two = one if channels == "one" else connection.channel()
    got = []
    with kombu.Consumer(two, [queue], on_message=got.append):
        two.basic_qos(0, 1, False)
        with kombu.Consumer(one, [queue], on_message=got.append):
            one.basic_qos(0, 1, False)
            connection.drain_events(timeout=TIMEOUT_S)
        while len(got) < 4:
            for message in got:
                if not message.acknowledged:
                    message.ack()
            connection.drain_events(timeout=TIMEOUT_S)
        got[3].ack()
    assert sorted(message.payload for message in got) == [0, 1, 2, 3]
    # each was acknowledged by the channel that had it
    for channel in {one, two}:
        channel.close()
    assert queue(connection.default_channel).get() is None


def test_a_consumer_that_acknowledges_keeps_to_that_after_one_that_did_not(connection):
    queue = kombu.Queue("q")
    publish(connection, 0, queue)
    publish(connection, 1, queue)
    channel = connection.channel()
    channel.basic_qos(0, 1, False)
    got = []
    with kombu.Consumer(channel, [queue], on_message=got.append):
        with kombu.Consumer(channel, [queue], on_message=got.append, no_ack=True):
            channel.deliver(channel.lease(["q"], 1))
        connection.drain_events(timeout=TIMEOUT_S)
    assert [message.payload for message in got] == [0, 1]
    channel.close()
    assert queue(connection.default_channel).get().payload == 1


def test_a_queue_that_is_consumed_and_declared_while_it_is_deleted_keeps_what_is_published(
    connection, monkeypatch
):
    queue = kombu.Queue("q", kombu.Exchange("e"), routing_key="q", expires=60)
    here, there = connection.channel(), connection.channel()
    queue(there).declare()
    pauses, pause = [], threading.Event()
    third = connection.clone()
    other = threading.Thread(target=publish, args=(third, "x", queue))
    delete_topic = here.store.delete_topic

    def meanwhile(topic):
        there.keep_queues(["q"], 60)
        other.start()
        until(lambda: pauses or not other.is_alive(), "the other one waits, or does not")
        delete_topic(topic)

    with monkeypatch.context() as patch:
        world = World(sleep=lambda seconds: pauses.append(pause.wait(seconds)))
        patch.setattr(here.store, "world", world)
        patch.setattr(here.store, "delete_topic", meanwhile, raising=False)
        queue(here).delete()
        other.join()
    assert queue(there).get(no_ack=True).payload == "x"
    third.close()
