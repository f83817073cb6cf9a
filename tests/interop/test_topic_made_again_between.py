"""RocketMQ's broker deletes a topic between two lives of ours, and makes it again."""

import asyncio
from functools import partial

import pytest
from broker.conftest import records, served
from broker.test_state import COMMITS
from patience import until

from interop.cluster import CLUSTER, asker, java_broker, java_name_server, mqadmin
from interop.peer import missing
from interop.writers import BOTH
from rmqcore.client.blocking import Producer
from rmqcore.remoting import RemotingError, RequestCode, ResponseCode

pytestmark = [
    pytest.mark.peers,
    pytest.mark.skipif(bool(missing()), reason=f"not on this machine: {', '.join(missing())}"),
]
OURS = {
    "brokerClusterName": CLUSTER,
    "brokerName": "broker-a",
    "mappedFileSizeConsumeQueue": 60_000,
}
#: a release of 4 keeps the offsets of a topic that it deletes: they may be those of the next
CASES = [*((release, False) for release in BOTH), ("5.5.0", True)]


def answers(ask, fields):
    try:
        return ask(fields).code == ResponseCode.SUCCESS
    except RemotingError:
        return False


def life(path, scene):
    async def main():
        async with served(path, **OURS) as (broker, peer):
            await scene(broker, peer)

    asyncio.run(main())


@pytest.mark.parametrize(("release", "again"), CASES)
def test_who_has_read_the_topic_before_gets_all_of_the_next(tmp_path, release, again):
    path = tmp_path / "store"
    places = {"storePathRootDir": path, "storePathCommitLog": path / "commitlog"}

    async def before(_, peer):
        for number in range(5):
            assert (await peer.send("T", b"old %d" % number)).code == ResponseCode.SUCCESS
        await peer.pull("T", offset=5, sysFlag=COMMITS, commitOffset=5)

    async def behind(_, peer):
        for _ in range(8 if not again else 0):
            assert (await peer.send("T", b"new")).code == ResponseCode.SUCCESS
        moved = await peer.pull("T", offset=5)
        assert moved.code == ResponseCode.PULL_OFFSET_MOVED
        assert moved.ext_fields["nextBeginOffset"] == "0"
        assert [message.body for message in records((await peer.pull("T")).body)] == [b"new"] * 8

    life(path, before)
    with (
        java_name_server(release, tmp_path / "namesrv") as namesrv,
        java_broker(release, tmp_path / "broker", namesrv, "broker-a", **places) as (_, address),
    ):
        route = partial(asker(namesrv), RequestCode.GET_ROUTEINFO_BY_TOPIC)
        until(lambda: answers(route, {"topic": "T"}), "the broker has registered")
        ask = partial(mqadmin, release, tmp_path / "admin", namesrv)
        ask(f"deleteTopic -t T -c {CLUSTER}")
        if again:
            ask(f"updateTopic -t T -c {CLUSTER} -r 4 -w 4")
            with Producer(namesrv) as producer:
                for _ in range(8):
                    producer.send("T", b"new", queue_id=0)
            end = partial(asker(address), RequestCode.GET_MAX_OFFSET)
            until(lambda: end({"topic": "T", "queueId": "0"}).number("offset") == 8, "it has them")
    life(path, behind)
