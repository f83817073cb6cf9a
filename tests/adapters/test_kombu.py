"""kombu's transport in one process and over several: what its own suite does not ask."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading

import pytest
from children import Program, in_child
from patience import TIMEOUT_S, until

from rmqcore import ConfigError, DiskFullError, StoreError, open_store
from rmqcore.adapters.addresses import path_of
from rmqcore.adapters.names import topic_of
from rmqcore.files.config_tables import check_topic_name
from rmqcore.world import World

pytestmark = pytest.mark.engine

kombu = pytest.importorskip("kombu", reason="needs kombu: pip install rmqcore[kombu]")
transport = pytest.importorskip("rmqcore.adapters.kombu")
kombu_queues = pytest.importorskip("rmqcore.adapters.kombu_queues")


@pytest.fixture
def url(tmp_path):
    return f"rmqcore://{tmp_path}/store"


@pytest.fixture
def connect(url):
    opened = []

    def connect(**options):
        connection = kombu.Connection(url, transport_options=options)
        opened.append(connection)
        return connection

    yield connect
    for connection in opened:
        connection.close()


def drained(connection, queue, *, prefetch=0, timeout=0.01, **settings):
    """The messages that one consumer gets until there are no more."""
    got = []
    with kombu.Consumer(connection, [queue], on_message=got.append, **settings) as consumer:
        consumer.qos(prefetch_count=prefetch)
        while True:
            try:
                connection.drain_events(timeout=timeout)
            except TimeoutError:
                return got


def publish(connection, body, queue, **settings):
    settings.setdefault("routing_key", queue.routing_key or queue.name)
    kombu.Producer(connection).publish(body, exchange=queue.exchange, declare=[queue], **settings)


def other_process(url, code):
    """Run code in another process, with `kombu`, `connection` and `url`; killed in the end."""
    head = (
        "import sys, os, kombu, rmqcore.adapters.kombu\n"
        "url = sys.argv[1]\n"
        "connection = kombu.Connection(url)\n"
    )
    return Program("-c", head + code, url)


def test_a_message_is_a_record_of_its_queues_topic(connect, url, tmp_path):
    connection = connect()
    publish(connection, {"a": 1}, kombu.Queue("jobs.high"), priority=7)
    connection.close()
    with open_store(tmp_path / "store") as store:
        (message,) = store.messages("kombu-jobs%2Ehigh")
        assert message.queue_id == 7
        assert json.loads(bytes(message.body))["content-type"] == "application/json"


@pytest.mark.process
def test_what_one_process_binds_another_publishes_to(connect, url):
    exchange = kombu.Exchange("news", type="topic")
    queue = kombu.Queue("sports", exchange, routing_key="news.sport.#")
    code = (
        "exchange = kombu.Exchange('news', type='topic')\n"
        "queue = kombu.Queue('sports', exchange, routing_key='news.sport.#')\n"
        "queue(connection.default_channel).declare()\n"
    )
    with other_process(url, code) as process:
        assert process.end() == 0
    connection = connect()
    producer = kombu.Producer(connection)
    producer.publish("goal", exchange="news", routing_key="news.sport.football")
    producer.publish("rain", exchange="news", routing_key="news.weather")
    assert [message.payload for message in drained(connection, queue)] == ["goal"]


def test_a_fanout_reaches_queues_of_all_connections_and_no_deleted_one(connect):
    exchange = kombu.Exchange("all", type="fanout")
    first, second, third = (kombu.Queue(name, exchange) for name in ("q1", "q2", "q3"))
    one, other = connect(), connect()
    first(one.default_channel).declare()
    second(other.default_channel).declare()
    third(other.default_channel).declare()
    third(one.default_channel).delete()
    kombu.Producer(connect()).publish("x", exchange="all", routing_key="")
    assert [m.payload for m in drained(one, first)] == ["x"]
    assert [m.payload for m in drained(other, second)] == ["x"]
    assert not connect().default_channel._has_queue("q3")


def test_an_unacknowledged_message_comes_again_after_the_visibility_timeout(connect, clock):
    queue = kombu.Queue("q")
    connection = connect(visibility_timeout=2)
    publish(connection, "x", queue)
    with connection.SimpleQueue("q") as simple:
        first = simple.get(timeout=TIMEOUT_S)
        assert not first.delivery_info["redelivered"]
        clock.now_ms += 1900
        with pytest.raises(simple.Empty):
            simple.get_nowait()
        clock.pass_ms(100)
        again = simple.get_nowait()
        assert again.payload == "x"
        assert again.delivery_info["redelivered"]
        again.ack()
        clock.pass_ms(2200)
        with pytest.raises(simple.Empty):
            simple.get_nowait()


def test_a_closed_channel_gives_back_what_it_held(connect):
    queue = kombu.Queue("q")
    connection = connect()
    for number in range(3):
        publish(connection, number, queue)
    channel = connection.channel()
    held = [queue(channel).get(no_ack=False) for _ in range(3)]
    held[1].ack()
    channel.close()
    got = drained(connect(), queue)
    assert [m.payload for m in got] == [0, 2]
    assert all(m.delivery_info["redelivered"] for m in got)


@pytest.mark.process
def test_a_forked_child_that_closes_a_connection_leaves_what_its_parent_holds(connect):
    queue = kombu.Queue("q")
    connection = connect()
    queue(connection.default_channel).declare()
    publish(connection, "x", queue)
    message = queue(connection.default_channel).get()
    in_child(connection.release)
    assert queue(connect().default_channel).get() is None
    message.ack()


@pytest.mark.process
def test_a_program_that_ends_gives_back_what_it_held_and_dumps_nothing(connect, url, tmp_path):
    queue = kombu.Queue("q")
    connection = connect()
    publish(connection, "kept", queue)
    connection.close()
    program = (
        "import sys, kombu, rmqcore.adapters.kombu\n"
        "connection = kombu.Connection(sys.argv[1])\n"
        "held = connection.SimpleQueue('q').get(timeout=60)\n"
    )
    command = [sys.executable, "-c", program, url]
    ended = subprocess.run(
        command, capture_output=True, check=True, env=os.environ | {"TMPDIR": str(tmp_path)}
    )
    assert ended.stderr == b""
    assert [m.payload for m in drained(connect(), queue)] == ["kept"]


@pytest.mark.process
def test_a_killed_consumer_loses_nothing(connect, url):
    queue = kombu.Queue("q")
    connection = connect()
    for number in range(10):
        publish(connection, number, queue)
    code = (
        "queue = kombu.Queue('q')(connection.default_channel)\n"
        "held = [queue.get(no_ack=False) for _ in range(5)]\n"
        "held[0].ack()\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with other_process(url, code) as process:
        assert process.line() == "held"
    got = []

    def all_came():
        got.extend(drained(connection, queue))
        return len(got) >= 9

    until(all_came, "what the killed one held")
    assert sorted(m.payload for m in got) == list(range(1, 10))
    assert [m.payload for m in got if m.delivery_info["redelivered"]] == [1, 2, 3, 4]


def test_the_window_is_kept_and_opened_by_an_ack_of_another_thread(connect, monkeypatch):
    queue = kombu.Queue("q")
    connection = connect(polling_interval=8.0)
    for number in range(5):
        publish(connection, number, queue)
    got = []
    with kombu.Consumer(connection, [queue], on_message=got.append) as consumer:
        consumer.qos(prefetch_count=2)
        connection.drain_events(timeout=TIMEOUT_S)
        assert len(got) == 2
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=0.1)
        opened, woken = connection.transport._look_at_once, []
        wait = opened.wait

        def acknowledged_meanwhile(_):
            other = threading.Thread(target=got[0].ack)
            other.start()
            woken.append(wait(TIMEOUT_S))
            other.join()

        monkeypatch.setattr(opened, "wait", acknowledged_meanwhile)
        connection.drain_events(timeout=2 * TIMEOUT_S)
        # by the acknowledgement, not by looking again after a time
        assert woken == [True]
        assert [m.payload for m in got] == [0, 1, 2]


def test_a_wait_ends_when_a_message_comes(connect, when_asleep):
    queue = kombu.Queue("q")
    connection, producer = connect(polling_interval=8.0), connect()
    queue(producer.default_channel).declare()
    got = []
    with kombu.Consumer(connection, [queue], on_message=got.append):
        when_asleep(lambda: publish(producer, "x", queue))
        connection.drain_events(timeout=TIMEOUT_S)
    assert [m.payload for m in got] == ["x"]


def test_a_queue_and_a_message_have_their_time_to_live(connect, clock):
    connection = connect()
    short = kombu.Queue("short", message_ttl=0.1)
    plain = kombu.Queue("plain")
    publish(connection, "a", short)
    publish(connection, "b", plain, expiration=0.1)
    publish(connection, "c", plain)
    publish(connect(), "d", kombu.Queue("plain"), expiration=60)
    clock.pass_ms(100)
    assert drained(connection, short) == []
    assert [m.payload for m in drained(connection, plain)] == ["c", "d"]


def test_purge_and_size(connect):
    queue = kombu.Queue("q")
    connection = connect()
    for number in range(4):
        publish(connection, number, queue, priority=number)
    bound = queue(connection.default_channel)
    held = bound.get(no_ack=False)
    assert held.payload == 3
    assert bound.queue_declare(passive=True).message_count == 3
    assert bound.purge() == 3
    assert bound.queue_declare(passive=True).message_count == 0
    held.requeue()
    assert [m.payload for m in drained(connection, queue)] == [3]


def test_a_queue_that_nobody_uses_expires_with_its_bindings(connect, clock):
    exchange = kombu.Exchange("all", type="fanout")
    connection = connect()
    channel = connection.default_channel
    kombu.Queue("old", exchange, expires=0.5)(channel).declare()
    kombu.Queue("kept", exchange, expires=0.5)(channel).declare()
    kept = kombu.Queue("kept", exchange, expires=0.5, no_declare=True)
    kombu.Producer(connection).publish("x", exchange=exchange, routing_key="")
    got = []
    for _ in range(4):
        clock.pass_ms(300)
        # a consumer tells that it is there a few times within the half second
        got += drained(connection, kept, timeout=0.2)
    assert [m.payload for m in got] == ["x"]
    assert [queue for _, _, queue in channel.get_table("all")] == ["kept"]
    kombu.Queue("new", exchange, expires=0.5)(channel).declare()
    topics = {topic for topic, _ in channel.store.queues()}
    assert "kombu-old" not in topics
    assert "kombu-kept" in topics


def test_a_queue_that_is_declared_anew_while_it_expires_keeps_what_is_published(
    connect, clock, monkeypatch
):
    exchange = kombu.Exchange("e")
    here, there = connect(), connect()
    kombu.Queue("q", exchange, routing_key="q", expires=0.2)(here.default_channel).declare()
    clock.pass_ms(400)
    again = kombu.Queue("q", exchange, routing_key="q", expires=60)

    def declare_and_publish():
        again(there.default_channel).declare()
        kombu.Producer(there).publish("x", exchange=exchange, routing_key="q")

    other = threading.Thread(target=declare_and_publish)
    delete_topic = here.default_channel.store.delete_topic

    pauses, pause = threading.Semaphore(0), threading.Event()

    def slow(topic):
        other.start()
        # who declares it waits until it is deleted
        for _ in range(3):
            assert pauses.acquire(timeout=TIMEOUT_S)
        delete_topic(topic)

    with monkeypatch.context() as patch:
        store = here.default_channel.store
        world = World(clock, sleep=lambda seconds: pauses.release() or pause.wait(seconds))
        patch.setattr(store, "world", world)
        patch.setattr(store, "delete_topic", slow, raising=False)
        kombu.Queue("r", exchange, expires=60)(here.default_channel).declare()
    other.join()
    assert [m.payload for m in drained(there, again)] == ["x"]
    # it can be declared again once it was deleted
    again(there.default_channel).delete()
    declare_and_publish()
    assert [m.payload for m in drained(there, again)] == ["x"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"properties": {"delivery_info": {"exchange": ""}}, "body": 3}',
        b"[" * 100_000,
    ],
    ids=["nothing", "no text", "a list", "an object", "a body", "deep"],
)
def test_what_is_no_message_goes_to_the_dead_letters(connect, body):
    queue = kombu.Queue("q")
    connection = connect()
    queue(connection.default_channel).declare()
    store = connection.default_channel.store
    store.put("kombu-q", body)
    publish(connection, "good", queue)
    assert [m.payload for m in drained(connection, queue)] == ["good"]
    assert [bytes(m.body) for m in store.messages("%DLQ%kombu")] == [body]


def test_a_full_disk_is_an_error_and_nothing_is_published(connect, monkeypatch):
    queue = kombu.Queue("q")
    connection = connect()
    queue(connection.default_channel).declare()
    store = connection.default_channel.store

    def full(*_, **__):
        raise DiskFullError("commit log")

    with monkeypatch.context() as patch:
        patch.setattr(store, "put", full, raising=False)
        with pytest.raises(DiskFullError) as caught:
            kombu.Producer(connection).publish("x", routing_key="q")
        assert isinstance(caught.value, connection.connection_errors)
        with pytest.raises(kombu.exceptions.OperationalError) as wrapped:
            kombu.Producer(connection).publish(
                "x", routing_key="q", retry=True, retry_policy={"max_retries": 0}
            )
        assert isinstance(wrapped.value.__cause__, DiskFullError)
    assert drained(connection, queue) == []


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("rmqcore://", "the store's directory"),
        ("rmqcore:///", "the store's directory"),
        ("rmqcore://./", "the store's directory"),
        ("rmqcore://queue", "did you mean rmqcore:///queue or rmqcore://./queue?"),
        ("rmqcore://var/queue", "did you mean rmqcore:///var/queue or rmqcore://./var/queue?"),
        ("rmqcore://me:secret@host/queue", "the store's directory"),
        ("rmqcore:///queue?visibility_timeout=3", "broker_transport_options"),
    ],
)
def test_an_address_that_names_no_directory_is_refused_once(address, said):
    with kombu.Connection(address) as connection, pytest.raises(ConfigError) as refused:
        connection.ensure_connection(lambda *_: pytest.fail("tried again"), interval_start=0)
    assert said in str(refused.value)


def test_greenlets_in_the_place_of_threads_are_refused_once(connect, monkeypatch):
    monkeypatch.setattr(transport, "detect_environment", lambda: "gevent")
    with pytest.raises(ConfigError, match="pool='gevent': prefork, threads or solo"):
        connect().ensure_connection(lambda *_: pytest.fail("tried again"), interval_start=0)


@pytest.mark.parametrize("dots", [".", ".."])
def test_a_path_from_the_working_directory(dots, tmp_path, monkeypatch):
    here = tmp_path / "in"
    here.mkdir()
    monkeypatch.chdir(here)
    whole = (here / dots).resolve() / "a queue"
    with kombu.Connection(f"rmqcore://{dots}/a%20queue") as connection:
        publish(connection, "x", kombu.Queue("q"))
        assert path_of(connection.as_uri()).resolve() == whole
    assert (whole / "commitlog").is_dir()


def test_what_is_shown_of_a_connection_is_its_path_and_nothing_invented(url, connect):
    assert connect().as_uri() == url
    assert connect().clone().as_uri() == url
    by_path = kombu.Connection(transport="rmqcore", virtual_host=url.removeprefix("rmqcore://"))
    assert by_path.as_uri() == url


def test_a_broken_path_is_a_connection_error():
    connection = kombu.Connection("rmqcore:///proc/none/here")
    with pytest.raises(connection.connection_errors) as caught:
        connection.transport.establish_connection()
    assert isinstance(caught.value, StoreError | OSError)
    with pytest.raises(kombu.exceptions.OperationalError):
        connection.ensure_connection(max_retries=1, interval_start=0)


def test_the_log_does_not_grow_for_ever(connect):
    queue = kombu.Queue("q", kombu.Exchange("e"), routing_key="q")
    small = {"mapped_file_size_commit_log": 1 << 20, "message_index_enable": False}
    connection = connect(store=small)
    for number in range(40):
        publish(connection, "x" * 100_000, queue, priority=number % 3)
        for message in drained(connection, queue, timeout=0.001):
            message.ack()
    store = connection.default_channel.store
    assert store.min_phy_offset >= 1 << 20
    assert connection.transport.held_size() <= 3 << 20
    publish(connection, "y", queue)
    assert [m.payload for m in drained(connection, queue)] == ["y"]


def test_a_queue_that_has_expired_holds_no_log_file_back(connect, clock):
    queue = kombu.Queue("q", kombu.Exchange("e"), routing_key="q")
    left = kombu.Queue("left", kombu.Exchange("e"), routing_key="left", expires=60.0)
    small = {"mapped_file_size_commit_log": 1 << 20, "message_index_enable": False}
    connection = connect(store=small, delete_consumed_every=0)
    publish(connection, "nobody's", left)
    store = connection.default_channel.store

    def consume():
        for _ in range(20):
            publish(connection, "x" * 100_000, queue)
            for message in drained(connection, queue, timeout=0.001):
                message.ack()

    consume()
    assert store.min_phy_offset == 0
    clock.pass_ms(60_000)
    consume()
    assert store.min_phy_offset >= 1 << 20
    assert store.kv_list(kombu_queues.EXPIRING) == []


def test_headers_exchanges_are_refused_by_name(connect):
    with pytest.raises(kombu.exceptions.ChannelError, match="'headers': direct, topic and fanout"):
        kombu.Exchange("h", type="headers")(connect().default_channel).declare()


def test_an_exchange_has_one_type_for_all(connect):
    kombu.Exchange("e", type="fanout")(connect().default_channel).declare()
    with pytest.raises(Exception, match="Cannot redeclare exchange 'e'"):
        kombu.Exchange("e", type="direct")(connect().default_channel).declare()


def test_an_unbound_queue_gets_nothing_more(connect):
    exchange = kombu.Exchange("e")
    queue = kombu.Queue("q", exchange, routing_key="k")
    connection = connect()
    bound = queue(connection.default_channel)
    bound.declare()
    assert list(connection.default_channel.list_bindings()) == [("q", "e", "k")]
    bound.unbind_from(exchange, routing_key="k")
    kombu.Producer(connection).publish("x", exchange="e", routing_key="k")
    assert drained(connection, queue, auto_declare=False) == []


@pytest.mark.parametrize(
    "name", ["celery", "a.b@c", "naïve", "x" * 500, "", "%41", "A", "\udc80", "a|b", "../etc"]
)
def test_every_name_is_a_topic_of_its_own(name):
    topic = topic_of("kombu", name)
    check_topic_name(topic)
    others = [other for other in ("celery", "a.b@c", "A", "x" * 501, "a%7Cb") if other != name]
    assert topic not in {topic_of("kombu", other) for other in others}


@pytest.mark.parametrize("how", ["consume", "get"])
def test_what_a_full_disk_did_not_let_go_comes_again_when_it_has_room(connect, monkeypatch, how):
    connection, queue = connect(), kombu.Queue("mail", routing_key="mail")
    for number in range(3):
        publish(connection, number, queue)
    channel = connection.default_channel

    def full(*_, **__):
        raise DiskFullError("consumerLeases.log")

    with monkeypatch.context() as disk:
        for call in ("acknowledge", "give_back"):
            disk.setattr(type(channel.store), call, full)
        consume = {
            "get": lambda: channel.basic_get("mail", no_ack=True),
            "consume": lambda: drained(connection, queue, no_ack=True),
        }
        with pytest.raises(DiskFullError):
            consume[how]()
    found = [message.payload for message in drained(connection, queue, no_ack=True)]
    assert sorted(found) == [0, 1, 2]


@pytest.mark.parametrize("how", ["ack", "reject", "requeue"])
def test_a_window_is_not_full_for_ever_when_a_full_disk_refused_to_settle(
    connect, monkeypatch, how
):
    connection, queue = connect(), kombu.Queue("mail", routing_key="mail")
    for number in range(4):
        publish(connection, number, queue)
    got, refused, requeues = [], [], how == "requeue"

    def settle(message):
        got.append(message.payload)
        try:
            getattr(message, how)()
        except connection.connection_errors as error:
            # as Celery does: it logs that, and goes on
            refused.append(error)

    def full(*_, **__):
        raise DiskFullError("consumerLeases.log")

    def drain():
        with contextlib.suppress(TimeoutError):
            while len(got) < 8:
                connection.drain_events(timeout=0.01)

    with kombu.Consumer(connection, [queue], on_message=settle) as consumer:
        consumer.qos(prefetch_count=2)
        with monkeypatch.context() as disk:
            for call in ("acknowledge", "give_back"):
                disk.setattr(type(connection.default_channel.store), call, full)
            connection.drain_events(timeout=TIMEOUT_S)
        how = "ack"
        drain()
    assert len(refused) == 2
    assert sorted(got) == ([0, 0, 1, 1, 2, 3] if requeues else [0, 1, 2, 3])


def test_what_could_not_be_settled_is_not_held_by_a_connection_that_is_closed(connect, monkeypatch):
    staying, queue = connect(), kombu.Queue("mail", routing_key="mail")
    publish(staying, 0, queue)
    leaving = connect()
    message = queue(leaving.default_channel).get()

    def full(*_, **__):
        raise DiskFullError("consumerLeases.log")

    with monkeypatch.context() as disk:
        for call in ("acknowledge", "give_back"):
            disk.setattr(type(staying.default_channel.store), call, full)
        with pytest.raises(DiskFullError):
            message.ack()
        leaving.close()
    assert [each.payload for each in drained(staying, queue)] == [0]


def test_a_queue_that_could_not_be_deleted_is_there_and_can_be_declared(connect, monkeypatch):
    connection, queue = connect(), kombu.Queue("mail", routing_key="mail")
    publish(connection, 0, queue)
    channel = connection.default_channel

    def full(*_, **__):
        raise DiskFullError("deletedTopics.json")

    with monkeypatch.context() as disk:
        disk.setattr(type(channel.store), "delete_topic", full)
        with pytest.raises(DiskFullError):
            channel.queue_delete("mail")

    def wait(_):
        raise AssertionError("a declaration waits")

    monkeypatch.setattr(channel.store, "world", World(sleep=wait))
    assert [each.payload for each in drained(connection, queue)] == [0]
