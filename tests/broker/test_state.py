"""What a broker holds beside the log: over kills, restarts, deletions, and nonsense it is sent."""

import asyncio

import pytest
from broker.serving import serving

from rmqcore.clock import wall_clock_ms
from rmqcore.remoting import RemotingClient, RemotingCommand, RequestCode, ResponseCode

# ---- topics


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_the_first_message_of_a_topic_is_not_lost_by_a_kill_behind_its_answer(tmp_path, flush):
    async def send(process, address, topic):
        client = RemotingClient()
        fields = {"a": "PG", "b": topic, "c": "TBW102", "d": "4", "e": "3", "f": "0", "i": ""}
        fields |= {"g": str(wall_clock_ms()), "h": "0"}
        request = RemotingCommand(RequestCode.SEND_MESSAGE_V2, fields, b"first")
        assert (await client.invoke(address, request, 5000)).code == ResponseCode.SUCCESS
        process.kill()
        await client.close()

    async def ends(address, topics):
        client, found = RemotingClient(), []
        for topic in topics:
            request = RemotingCommand(RequestCode.GET_MAX_OFFSET, {"topic": topic, "queueId": "3"})
            found.append((await client.invoke(address, request, 5000)).ext_fields["offset"])
        await client.close()
        return found

    topics = [f"New{number}" for number in range(3)]
    for topic in topics:
        with serving(tmp_path / "store", "-c", f"flushDiskType={flush}") as (process, facts):
            asyncio.run(send(process, facts["broker"], topic))
    with serving(tmp_path / "store") as (_, facts):
        assert asyncio.run(ends(facts["broker"], topics)) == ["1", "1", "1"]


def test_a_message_to_a_topic_that_cannot_be_written_down_is_not_acknowledged(with_broker):
    async def scenario(broker, peer):
        def refuse():
            raise OSError(28, "no room")

        table = broker.store.topics
        table.ahead = refuse
        sent = await peer.send("New", b"first")
        assert sent.code == ResponseCode.SERVICE_NOT_AVAILABLE
        table.ahead = None
        sent = await peer.send("Other", b"first")
        assert sent.code == ResponseCode.SUCCESS

    with_broker(scenario)
