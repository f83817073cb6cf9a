"""Old files that one side of a pair has deleted, and the other has still."""

import asyncio

import pytest
from ha.test_brokers import asks_when_told, running  # noqa: F401 - a fixture
from patience import until_async

from rmqcore.remoting import ResponseCode

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("asks_when_told")]

COUNT = 60


def delete_oldest(store):
    """Delete the first log file as retention does."""
    store.log.queue.remove_first(1)
    store.consume_queues.correct_min_offset(store.log.min_offset)


@pytest.mark.parametrize("offset", [0, 3, -1])
def test_who_reads_a_slave_that_has_deleted_more_goes_back_to_the_master(tmp_path, offset):
    """It would go on behind messages that the master has still."""

    async def scenario():
        async with running(tmp_path) as pair:
            pair.master.managers.topics.for_send("T", "TBW102", 4)
            for number in range(COUNT):
                pair.master.store.put("T", b"%d" % number * 20_000, durability="page_cache")
            await pair.in_step()
            await pair.synchronize()
            slave = pair.slave.store
            assert slave.max_queue_offset("T", 0) == COUNT
            delete_oldest(slave)
            assert slave.min_queue_offset("T", 0) > 3
            answer = await pair.pull(pair.slave, offset)
            assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
            assert answer.ext_fields["suggestWhichBrokerId"] == "0"
            assert answer.ext_fields["nextBeginOffset"] == str(offset)
            await pair.master.stop()
            await until_async(lambda: not pair.slave.replication.follows, "the slave knows")
            answer = await pair.pull(pair.slave, offset)
            assert answer.code == ResponseCode.PULL_OFFSET_MOVED
            assert int(answer.ext_fields["nextBeginOffset"]) == slave.min_queue_offset("T", 0)

    asyncio.run(scenario())
