"""kombu's consumers whose channel is closed, or who were busy for long."""

import pytest
from patience import TIMEOUT_S

from rmqcore import DiskFullError

pytestmark = pytest.mark.engine

kombu = pytest.importorskip("kombu", reason="needs kombu: pip install rmqcore[kombu]")
pytest.importorskip("rmqcore.adapters.kombu")


@pytest.fixture
def connection(tmp_path):
    options = {"delete_consumed_every": 0}
    with kombu.Connection(f"rmqcore://{tmp_path}/store", transport_options=options) as connection:
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


def test_a_consumer_that_was_busy_for_longer_than_its_queue_lives_deletes_it_not(connection, clock):
    queue = kombu.Queue("q", expires=0.5)
    publish(connection, 1, queue)
    publish(connection, 2, queue)
    got = []

    def work(message):
        clock.pass_ms(5000)
        connection.transport.channels[0]._kept_until.clear()
        message.ack()
        got.append(message.payload)

    with kombu.Consumer(connection, [queue], on_message=work) as consumer:
        consumer.qos(prefetch_count=1)
        for _ in range(2):
            connection.drain_events(timeout=TIMEOUT_S)
    assert got == [1, 2]


def test_a_full_disk_that_refuses_to_keep_a_queue_is_not_kept_full(
    connection, tmp_path, monkeypatch
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
        for channel in connection.transport.channels:
            channel._kept_until.clear()
        connection.drain_events(timeout=TIMEOUT_S)
    assert [message.payload for message in got] == [1]
