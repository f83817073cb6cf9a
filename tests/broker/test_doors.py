"""What an account is not told, or given, that may do something else."""

import pytest
from broker.conftest import records
from broker.test_access import guarded  # noqa: F401 - a fixture
from broker.test_pop import pop

from rmqcore.remoting import RequestCode, ResponseCode

pytestmark = pytest.mark.engine


def test_who_names_a_place_in_the_log_is_not_told_whose_topic_it_is(guarded):  # noqa: F811
    async def scenario(peers):
        await peers["operator"].send("Merger", b"x")
        place = {"offset": 0, "commitLogOffset": 0, "group": "CG", "producerGroup": "PG"}
        asked = {**place, "delayLevel": 1, "tranStateTableOffset": 0, "commitOrRollback": 8}
        told = [
            await peers[name].ask(code, asked)
            for name, code in (
                ("consumer", RequestCode.VIEW_MESSAGE_BY_ID),
                ("consumer", RequestCode.CONSUMER_SEND_MSG_BACK),
                ("ledger", RequestCode.END_TRANSACTION),
            )
        ]
        assert [answer.code for answer in told] == [ResponseCode.NO_PERMISSION] * 3
        assert not any("Merger" in answer.remark for answer in told)
        of_message = "on the topic of the message is needed"
        assert all(answer.remark.endswith(of_message) for answer in told)
        # who may do nothing does not learn either where a message begins
        refused = [
            await peers["without"].ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": offset})
            for offset in (0, 1)
        ]
        assert {answer.code for answer in refused} == {16}

    guarded(scenario)


def test_a_default_does_not_open_the_replies_to_others(guarded):  # noqa: F811
    async def scenario(peers):
        operator, reader = peers["operator"], peers["everything"]
        properties = {"REPLY_TO_CLIENT": "asking", "CORRELATION_ID": "1"}
        code, topic = RequestCode.SEND_REPLY_MESSAGE_V2, "DefaultCluster_REPLY_TOPIC"
        stored = await operator.send(topic, b"private", code=code, properties=properties)
        assert stored.ext_fields["queueOffset"] == "0"
        assert (await reader.pull(topic)).code == ResponseCode.NO_PERMISSION
        assert (await pop(reader, topic=topic)).code == ResponseCode.NO_PERMISSION
        at = {"offset": next(operator.broker.store.messages()).phy_offset}
        assert (await reader.ask(RequestCode.VIEW_MESSAGE_BY_ID, at)).code == 16
        # whoever consumes may reply
        sent = await reader.send(topic, b"pong", code=code, properties=properties)
        assert sent.ext_fields["queueOffset"] == "1"
        (first, _) = records((await operator.pull(topic)).body)
        assert first.body == b"private"

    guarded(scenario)
