"""Java's broker on a store of leases and adapters: it passes their files over, and they go on."""

import pytest
from patience import until

import rmqcore
from interop.cluster import java_broker, name_server
from interop.peer import missing
from interop.test_store_exchange import SIZES, consume
from rmqcore.adapters.named_queue import NamedLifo
from rmqcore.adapters.named_queues import named_queues
from rmqcore.files.config_tables import TopicConfig
from rmqcore.remoting import RemotingError, RequestCode, ResponseCode

pytestmark = [
    pytest.mark.peers,
    pytest.mark.skipif(bool(missing()), reason=f"not on this machine: {', '.join(missing())}"),
]

RELEASE = "5.5.0"
#: Java routes what its table of topics has
ROUTED = TopicConfig(topic_name="T", read_queue_nums=1, write_queue_nums=1)


def bodies(numbers):
    return [b"%d" % number for number in numbers]


def on_java(tmp_path, path, work, **sizes):
    """Do something with the address of the name server of Java's broker on a store."""
    with (
        name_server() as (namesrv, ask),
        java_broker(
            RELEASE,
            tmp_path / "java",
            namesrv,
            "broker-a",
            storePathRootDir=path,
            storePathCommitLog=path / "commitlog",
            **sizes,
        ),
    ):

        def has_topic():
            try:
                answer = ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
            except RemotingError:
                return False
            return answer.code == ResponseCode.SUCCESS

        until(has_topic, "the broker has registered")
        work(namesrv)


def test_java_passes_over_leases_and_tables(tmp_path):
    path, file = tmp_path / "store", tmp_path / "store/config/consumerLeases.log"
    with rmqcore.open_shared(path, config=SIZES) as store:
        store.topics.put(ROUTED)
        for body in bodies(range(10)):
            store.put("T", body)
        leased = store.lease("g", {"T": "*"}, max_messages=6, lease_ms=1 << 30, holder="h")
        store.acknowledge("g", [message.place for message in (*leased[:4], leased[5])])
        store.kv_put("t", b"key", b"value")
    journal = file.read_bytes()

    def work(namesrv):
        # the first message of the group that is not acknowledged, as ``consumerOffset.json`` has it
        assert consume(namesrv, "g", "T", 6) == bodies(range(4, 10))

    on_java(tmp_path, path, work)
    assert file.read_bytes() == journal
    with rmqcore.open_shared(path) as store:
        # what was consumed there counts, as far as Java's broker was told; else 4 is leased, 5 done
        offset = store.consumer_offsets.get("T", "g", 0)
        assert offset >= 4
        found = [message.body for message in store.lease("g", {"T": "*"})]
        assert found == bodies(range(6 if offset == 4 else offset, 10))
        assert store.kv_list("t") == [(b"key", b"value")]


def test_java_passes_over_named_queues(tmp_path):
    path = tmp_path / "store"
    home = named_queues(path)
    queue = home.open("stack", NamedLifo)
    for body in bodies(range(5)):
        queue.push(body)
    home.hold(queue)
    home.store.topics.put(ROUTED)
    home.store.put("T", b"0")
    home.close_queue(queue)
    home.leave()
    on_java(
        tmp_path,
        path,
        lambda namesrv: consume(namesrv, "g", "T", 1),
        mappedFileSizeCommitLog=16 << 20,
        mappedFileSizeConsumeQueue=400_000,
    )
    home = named_queues(path)
    queue = home.open("stack", NamedLifo)
    found = []
    while (element := queue.first()) is not None:
        found.append(element.body)
        queue.drop_first()
    assert found == [b"4", b"3", b"2", b"1", b"0"]
    home.close_queue(queue)
    home.leave()
