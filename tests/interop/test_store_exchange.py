"""One store, served by our broker, then by Java's, then by ours: nothing is lost or comes back."""

import pytest
from patience import until

import rmqcore
from interop.cluster import CLUSTER, asker, java_broker, name_server
from interop.peer import missing
from rmqcore.client.blocking import Admin, Consumer, Producer
from rmqcore.doctor import verify
from rmqcore.remoting import RemotingError, RequestCode, ResponseCode
from rmqcore.testing import running_broker

pytestmark = [
    pytest.mark.peers,
    pytest.mark.skipif(bool(missing()), reason=f"not on this machine: {', '.join(missing())}"),
]

RELEASE = "5.5.0"
SIZES = {
    "mappedFileSizeCommitLog": 1024 * 1024,
    "mappedFileSizeConsumeQueue": 60_000,
    "maxIndexNum": 4000,
    "maxHashSlotNum": 1000,
}


def produce(namesrv, topic, bodies):
    with Producer(namesrv, group="PG") as producer:
        for body in bodies:
            producer.send(topic, body, keys=(body.decode(),))


def consume(namesrv, group, topic, count):
    """The bodies of a topic from its beginning, sorted."""
    bodies = []
    with Consumer(namesrv, group, {topic: "*"}, start="first") as consumer:
        for message in consumer:
            bodies.append(bytes(message.body))
            consumer.ack(message)
            if len(bodies) == count:
                break
    return sorted(bodies)


def numbered(word, first, stop):
    return [b"%s-%05d" % (word, number) for number in range(first, stop)]


def test_a_store_goes_from_our_broker_to_javas_and_back(tmp_path):
    path = tmp_path / "store"
    ours = numbered(b"ours", 0, 300)
    with running_broker(path, **SIZES) as broker:
        with Admin(broker.namesrv_addr) as admin:
            admin.create_topic("Kept")
            admin.create_topic("Again")
        produce(broker.namesrv_addr, "Kept", ours)
        produce(broker.namesrv_addr, "Again", numbered(b"old", 0, 20))
        with Admin(broker.namesrv_addr) as admin:
            admin.delete_topic("Again")
            admin.create_topic("Again")
        produce(broker.namesrv_addr, "Again", numbered(b"new", 0, 5))

    theirs = numbered(b"theirs", 0, 200)
    with (
        name_server() as (namesrv, ask),
        java_broker(
            RELEASE,
            tmp_path / "java",
            namesrv,
            "broker-a",
            storePathRootDir=path,
            storePathCommitLog=path / "commitlog",
        ) as (_, address),
    ):

        def registered():
            try:
                answer = ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": CLUSTER})
            except RemotingError:
                return False
            return answer.code == ResponseCode.SUCCESS

        until(registered, "the broker has registered")
        assert consume(namesrv, "CG", "Kept", len(ours)) == ours
        assert consume(namesrv, "CG2", "Again", 5) == numbered(b"new", 0, 5)
        produce(namesrv, "Kept", theirs)
        assert consume(namesrv, "CG3", "Kept", 500) == sorted(ours + theirs)
        conf = tmp_path / "dumped.conf"
        conf.write_bytes(asker(address)(RequestCode.GET_BROKER_CONFIG).body)

    with rmqcore.open_store(path, config=conf, mode="r") as store:
        ends = {queue: store.max_queue_offset(*queue) for queue in store.queues()}
    with rmqcore.open_store(path, config=conf) as store:
        assert {queue: store.max_queue_offset(*queue) for queue in ends} == ends
    assert not verify(path, config=conf).findings

    with running_broker(path, **SIZES) as broker:
        assert consume(broker.namesrv_addr, "CG4", "Kept", 500) == sorted(ours + theirs)
        assert consume(broker.namesrv_addr, "CG5", "Again", 5) == numbered(b"new", 0, 5)
    with rmqcore.open_store(path, mode="r") as store:
        found = store.query_message("Kept", "theirs-00007").messages
        assert [bytes(message.body) for message in found] == [b"theirs-00007"]
    assert not verify(path).findings
