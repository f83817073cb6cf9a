"""kombu's queues and exchanges that others have deleted and declared anew meanwhile."""

import errno
import types

import pytest

from rmqcore.store.consume.holders import new_holder
from rmqcore.store.open_stores import OPEN_STORES

pytestmark = pytest.mark.engine

kombu = pytest.importorskip("kombu", reason="needs kombu: pip install rmqcore[kombu]")
pytest.importorskip("rmqcore.adapters.kombu")
kombu_queues = pytest.importorskip("rmqcore.adapters.kombu_queues")


@pytest.fixture
def channels(tmp_path, clock):
    """Channels of two connections, which know of each other by the store alone."""
    connections = [kombu.Connection(f"rmqcore://{tmp_path}/store") for _ in range(2)]
    yield [connection.default_channel for connection in connections]
    for connection in connections:
        connection.close()


def declare(channel, name, **settings):
    queue = kombu.Queue(name, **settings)(channel)
    queue.declare()
    return queue


def publish(channel, body, **settings):
    kombu.Producer(channel, auto_declare=False).publish(body, **settings)


def payload(queue):
    message = queue.get(no_ack=True)
    return message and message.payload


def test_an_exchange_that_is_deleted_while_it_is_declared_again_is_there(channels, monkeypatch):
    one, other = channels
    exchange = kombu.Exchange("e", type="topic")
    exchange(one).declare()
    typeof = one.typeof

    def deleted_before(name, *default):
        other.exchange_delete(name)
        return typeof(name, *default)

    with monkeypatch.context() as patch:
        patch.setattr(one, "typeof", deleted_before)
        exchange(one).declare()
    assert other.typeof("e").type == "topic"
    queue = declare(other, "q", exchange=exchange, routing_key="a.*")
    publish(one, "x", exchange="e", routing_key="a.b")
    assert payload(queue) == "x"


def test_an_exchange_that_another_has_deleted_and_this_one_declares_anew_is_there_for_all(channels):
    one, other = channels
    declare(one, "q", exchange=kombu.Exchange("e", type="topic"), routing_key="a.*")
    other.exchange_delete("e")
    queue = declare(one, "q", exchange=kombu.Exchange("e", type="topic"), routing_key="a.*")
    publish(other, "x", exchange="e", routing_key="a.b")
    assert payload(queue) == "x"


def test_an_exchange_that_another_has_made_one_of_another_type_delivers_as_that(channels):
    one, other = channels
    declare(one, "q", exchange=kombu.Exchange("e"), routing_key="a.b")
    publish(one, "x", exchange="e", routing_key="a.b")
    other.exchange_delete("e")
    queue = declare(other, "q", exchange=kombu.Exchange("e", type="topic"), routing_key="a.*")
    publish(one, "y", exchange="e", routing_key="a.c")
    assert [payload(queue), payload(queue)] == ["x", "y"]


def test_what_is_put_into_a_queue_that_has_no_time_to_live_any_more_lives(channels, clock):
    one, other = channels
    old = declare(one, "q", message_ttl=0.1)
    publish(other, "x", routing_key="q")
    old.delete()
    queue = declare(one, "q")
    publish(other, "y", routing_key="q")
    clock.pass_ms(1000)
    assert payload(queue) == "y"


def drain(channel):
    with pytest.raises(TimeoutError):
        channel.connection.client.drain_events(timeout=0.01)


def test_a_consumer_of_a_queue_that_expired_lets_the_one_made_anew_be(channels, clock):
    one, other = channels
    queue = declare(other, "q", expires=0.5)
    with kombu.Consumer(other, [queue], auto_declare=False):
        drain(other)
        one.queue_delete("q")
        queue = declare(one, "q")
        clock.pass_ms(400)
        drain(other)
    clock.pass_ms(1000)
    other.delete_expired()
    assert queue.queue_declare(passive=True).message_count == 0


def test_a_consumer_keeps_a_queue_that_was_made_anew_and_expires(channels, clock):
    one, other = channels
    queue = declare(other, "q")
    with kombu.Consumer(other, [queue], auto_declare=False, no_ack=True):
        drain(other)
        one.queue_delete("q")
        queue = declare(one, "q", expires=3)
        for _ in range(4):
            clock.pass_ms(1000)
            drain(other)
        publish(one, "x", routing_key="q")
        one.delete_expired()
        assert payload(queue) == "x"


@pytest.mark.parametrize("settle", ["ack", "reject", "requeue"])
def test_a_message_of_a_deleted_queue_settles_none_of_the_one_declared_anew(channels, settle):
    """Both have the same number in it, and are with one channel at a time."""
    one, other = channels
    queue = declare(one, "q")
    publish(one, "old", routing_key="q")
    old = queue.get()
    other.queue_delete("q")
    queue = declare(one, "q")
    publish(one, "new", routing_key="q")
    assert queue.get().payload == "new"
    getattr(old, settle)()
    assert queue.get() is None
    one.close()
    again = declare(other, "q").get()
    assert (again.payload, again.delivery_info["redelivered"]) == ("new", True)
    again.ack()
    assert other.basic_get("q") is None


class Killed(BaseException):
    """Ends a deletion as a kill of its process does."""


@pytest.fixture(params=["before", "within", "behind"])
def killed_deletion(request, monkeypatch):
    """Delete a queue in a process that is killed at that step of the deletion of its topic."""

    def delete(channel, queue):
        with monkeypatch.context() as patch:
            delete_topic = channel.store.delete_topic

            def dies(topic):
                if request.param == "within":
                    channel.store.consumer_offsets.remove(topic=topic)
                if request.param == "behind":
                    delete_topic(topic)
                raise Killed

            gone = "4194305." + new_holder().partition(".")[2]
            patch.setattr(kombu_queues, "_DELETER", types.SimpleNamespace(name=gone))
            patch.setattr(channel.store, "delete_topic", dies)
            with pytest.raises(Killed):
                channel.queue_delete(queue)

    return delete


def test_what_was_acknowledged_does_not_come_again_when_a_deletion_was_killed(
    channels, clock, killed_deletion
):
    one, other = channels
    queue = declare(one, "q")
    for body in ("done", "left"):
        publish(one, body, routing_key="q", priority=body == "left")
    assert payload(queue) == "left"
    killed_deletion(one, "q")
    clock.pass_ms(3_600_000)
    queue = declare(other, "q")
    assert payload(queue) is None
    publish(one, "new", routing_key="q")
    assert payload(queue) == "new"


@pytest.mark.parametrize("look", ["declare", "consume"])
def test_what_is_published_behind_a_killed_deletion_is_there(channels, killed_deletion, look):
    one, other = channels
    queue = declare(one, "q")
    for body in ("done", "left"):
        publish(one, body, routing_key="q")
    assert payload(queue) == "done"
    killed_deletion(one, "q")
    for number in range(3):
        publish(one, number, routing_key="q", priority=number)
    queue = declare(other, "q") if look == "declare" else kombu.Queue("q")(other)
    assert [payload(queue) for _ in range(4)] == [2, 1, 0, None]
    assert declare(one, "q").queue_declare(passive=True).message_count == 0


def test_a_killed_deletion_of_a_queue_that_expires_is_ended(channels, killed_deletion):
    one, other = channels
    declare(one, "q", expires=60)
    publish(one, "old", routing_key="q")
    killed_deletion(one, "q")
    other.delete_expired()
    assert other.store.kv_list(kombu_queues.QUEUES) == []
    assert other.store.kv_list(kombu_queues.EXPIRING) == []
    assert other.store.max_queue_offset("kombu-q", 0) == 0


@pytest.mark.parametrize("look", ["declare", "consume"])
def test_what_is_published_behind_a_killed_deletion_waits_for_who_declares_or_consumes(
    channels, clock, killed_deletion, look
):
    one, other = channels
    for channel in channels:
        queue = declare(channel, "q", expires=60)
    publish(one, "old", routing_key="q")
    killed_deletion(one, "q")
    publish(one, "new", routing_key="q")
    for channel in channels:
        channel.delete_expired()
    if look == "declare":
        declare(other, "q", expires=60)
    assert [payload(queue) for _ in range(2)] == ["new", None]
    publish(one, "unused", routing_key="q")
    clock.pass_ms(60_000)
    one.delete_expired()
    assert one.store.max_queue_offset("kombu-q", 0) == 0


def test_a_killed_deletion_of_a_queue_that_nobody_uses_is_ended(channels, clock, killed_deletion):
    one, other = channels
    for queue in ("q", "r"):
        declare(one, queue)
        publish(one, "old", routing_key=queue)
        killed_deletion(one, queue)
    publish(one, "new", routing_key="r")
    clock.pass_ms(60_000)
    other.delete_expired()
    assert other.store.kv_list(kombu_queues.QUEUES) == []
    assert other.store.max_queue_offset("kombu-q", 0) == 0
    assert [payload(kombu.Queue("r")(other)) for _ in range(2)] == ["new", None]


def test_what_is_published_behind_a_killed_deletion_waits_a_minute(
    channels, clock, killed_deletion
):
    one, other = channels
    declare(one, "q", auto_delete=True)
    killed_deletion(one, "q")
    publish(one, "new", routing_key="q")
    clock.pass_ms(60_000)
    other.delete_expired()
    assert other.store.max_queue_offset("kombu-q", 0) == 0
    for table in (kombu_queues.QUEUES, kombu_queues.EXPIRING):
        assert other.store.kv_list(table) == []


def test_a_killed_deletion_is_ended_though_another_one_was_refused(
    channels, killed_deletion, monkeypatch
):
    one, other = channels
    queue = declare(one, "q")
    publish(one, "done", routing_key="q")
    assert payload(queue) == "done"
    killed_deletion(one, "q")

    def full(topic):
        raise OSError(errno.ENOSPC, topic)

    with monkeypatch.context() as patch:
        patch.setattr(other.store, "delete_topic", full)
        with pytest.raises(OSError, match="kombu-q"):
            other.queue_delete("q")
    assert payload(declare(other, "q")) is None


def test_a_deletion_by_a_living_process_of_an_earlier_release_is_left_to_it(channels):
    one, other = channels
    declare(one, "q", expires=60)
    mark = b"\0" + new_holder().encode()
    one.store.kv_put(kombu_queues.QUEUES, b"q", mark, ttl_ms=10_000)
    other.delete_expired()
    assert other.store.kv_get(kombu_queues.QUEUES, [b"q"]) == [mark]


def test_a_deletion_goes_no_further_than_the_log_that_a_power_cut_leaves(
    channels, killed_deletion, monkeypatch
):
    """Behind the cut the log gives its offsets to what is published later."""
    one, other = channels
    declare(one, "q")
    (opened,) = (each for each in OPEN_STORES if each.path == one.store.path)
    flushed, ends = [], []

    def note(store, method):
        call = getattr(store, method)

        def noting(table, name, *values, **settings):
            if table == kombu_queues.QUEUES and (values[-1] or b"").startswith(b"\0"):
                flushed.append(opened.parts.files.writer.flushed_offset)
                ends.append(int(values[-1].split(b" ")[1]))
            return call(table, name, *values, **settings)

        monkeypatch.setattr(store, method, noting)

    note(one.store, "kv_put")
    note(other.store, "kv_swap")
    publish(one, "lost by a power cut", routing_key="q")
    killed_deletion(one, "q")
    publish(one, "lost by another", routing_key="q")
    declare(other, "q")
    assert len(ends) == 2
    assert ends[0] <= flushed[0]
    assert ends[1] <= flushed[1]
