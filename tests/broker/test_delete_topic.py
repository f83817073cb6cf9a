"""A topic that a client deletes begins with 0 when it is made again."""

import pytest
from broker.conftest import records

from rmqcore.remoting import RequestCode, ResponseCode

pytestmark = pytest.mark.engine


def test_a_deleted_topic_begins_anew(with_broker):
    async def scenario(_, peer):
        for number in range(3):
            await peer.send("T", b"old %d" % number)
        deleted = await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
        assert deleted.code == ResponseCode.SUCCESS
        sent = await peer.send("T", b"new")
        assert sent.ext_fields["queueOffset"] == "0"
        (message,) = records((await peer.pull("T")).body)
        assert message.body == b"new"

    with_broker(scenario)


def test_a_name_that_is_none_is_refused(with_broker):
    async def scenario(_, peer):
        answer = await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "a/b"})
        assert answer.code == ResponseCode.INVALID_PARAMETER

    with_broker(scenario)
