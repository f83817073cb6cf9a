"""A topic that a broker of RocketMQ deleted and made again, and put to one of its queues since."""

import shutil
from functools import partial

import pytest
from patience import until

import rmqcore
from interop.cluster import CLUSTER, asker, java_cluster, mqadmin
from interop.peer import missing
from interop.writers import BOTH
from rmqcore.client.blocking import Producer
from rmqcore.doctor import verify
from rmqcore.rebuild import rebuild_consume_queues
from rmqcore.remoting import RequestCode

pytestmark = [
    pytest.mark.peers,
    pytest.mark.skipif(bool(missing()), reason=f"not on this machine: {', '.join(missing())}"),
]
MAKE = f"updateTopic -t T -c {CLUSTER} -r 2 -w 2"
DELETE = f"deleteTopic -t T -c {CLUSTER}"


def put_to(broker, queue_ids):
    with Producer(broker.namesrv_addr) as producer:
        for queue_id in queue_ids:
            assert producer.send("T", b"x", queue_id=queue_id).queue_id == queue_id


def end_of_queue_0(broker):
    answer = asker(broker.broker_addr)(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})
    return answer.number("offset")


def queues(store_path):
    with rmqcore.open_store(store_path) as store:
        findings = [each for each in store.recovery_report.findings if "queue T/" in each]
        return {key: store.max_queue_offset(*key) for key in store.queues()}, findings


@pytest.mark.parametrize("release", BOTH)
def test_its_other_queue_stays_empty(tmp_path, release):
    with java_cluster(release, tmp_path / "java") as broker:
        ask = partial(mqadmin, release, tmp_path / "admin", broker.namesrv_addr)
        ask(MAKE)
        put_to(broker, [1, 1, 1, 0, 0, 0])
        ask(DELETE)
        ask(MAKE)
        put_to(broker, [0, 0])
        # the broker fills its queues from its log, a moment after a send
        until(lambda: end_of_queue_0(broker) == 2, "the broker has them in their queue")
        store = shutil.copytree(broker.store_path, tmp_path / "store")
    before = {f for f in (store / "consumequeue").rglob("*") if f.is_file()}
    for _ in range(2):
        found, findings = queues(store)
        assert {key: end for key, end in found.items() if key[0] == "T"} == {("T", 0): 2}
        assert findings == []
    assert {f for f in (store / "consumequeue").rglob("*") if f.is_file()} == before
    assert not [each for each in verify(store).findings if each.part == "consume queue"]
    rebuild_consume_queues(store, jobs=2, split_size=1 << 12)
    assert queues(store)[0].get(("T", 1), 0) == 0
    shutil.rmtree(store / "consumequeue")
    assert queues(store)[0] == found
