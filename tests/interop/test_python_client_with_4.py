"""Our client works with RocketMQ 4.9, too, but for where a new group begins."""

import logging

import pytest
from client.conftest import run  # noqa: F401 - a fixture
from client.test_admin import (  # noqa: F401 - the same tests, another broker
    test_a_topic_is_created_measured_and_deleted,
    test_messages_are_found_by_id_and_key,
)
from client.test_produce_and_consume import (  # noqa: F401 - the same tests, another broker
    receive,
    test_a_batch_lies_in_one_queue,
    test_a_delayed_message_comes_later,
    test_a_group_goes_on_where_it_has_stopped,
    test_a_message_arrives_with_all_that_was_sent,
    test_a_topic_that_comes_later_is_consumed_whole,
    test_broadcasting_gives_everybody_all,
    test_in_order_one_message_of_a_queue_at_a_time,
    test_oneway_and_compressed_bodies_arrive,
    test_tags_choose,
    test_two_consumers_share_the_queues,
    test_what_is_given_back_comes_again_and_dies_at_last,
    test_what_is_wrong_is_said,
    test_what_was_not_settled_comes_again,
)
from client.test_request_and_transaction import (  # noqa: F401 - the same tests, another broker
    test_a_request_gets_the_consumers_reply,
    test_a_request_that_nobody_answers_ends_in_time,
    test_only_a_commit_lets_consumers_have_the_message,
)
from patience import until_async

from interop.cluster import java_cluster
from interop.peer import missing
from rmqcore.client import Admin, Consumer, Producer
from rmqcore.remoting.errors import RequestRefusedError
from rmqcore.testing import rocketmq_topic  # noqa: F401 - a fixture

logger = logging.getLogger(__name__)

pytestmark = [
    pytest.mark.peers,
    pytest.mark.skipif(bool(missing()), reason=f"not on this machine: {', '.join(missing())}"),
]


@pytest.fixture(scope="module")
def rocketmq_broker(tmp_path_factory):
    """A broker and a name server of RocketMQ 4."""
    with java_cluster("4.9.7", tmp_path_factory.mktemp("java")) as broker:
        yield broker


def test_a_reset_reaches_the_consumers(rocketmq_broker, rocketmq_topic, run):  # noqa: F811
    namesrv, wanted = rocketmq_broker.namesrv_addr, {rocketmq_topic: "*"}

    async def scenario():
        async with (
            Producer(namesrv) as producer,
            Admin(namesrv) as admin,
            Consumer(namesrv, "CG-reset", wanted, start="first") as consumer,
        ):
            for number in range(3):
                await producer.send(rocketmq_topic, b"%d" % number, queue_id=0)
            await receive(consumer, 3)

            async def is_reset():
                # refused as long as the broker has not read the group's commits of all queues
                try:
                    return await admin.reset_offsets("CG-reset", rocketmq_topic, 0)
                except RequestRefusedError as error:
                    logger.warning("%s", error)
                    return None

            await until_async(is_reset, "the reset")
            return [message.body for message in await receive(consumer, 3)]

    assert run(scenario()) == [b"0", b"1", b"2"]
