"""What an account is not told, or given, that may do something else."""

import struct
from dataclasses import replace

import pytest
from broker.conftest import records
from broker.test_access import ACCOUNTS, PUB, SUB, guarded  # noqa: F401 - a fixture
from broker.test_pop import acknowledge, naming, pop, pop_until
from patience import until_async

from rmqcore.remoting import Account, Permission, RequestCode, ResponseCode, success

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


def test_a_default_opens_a_programs_own_topic_for_replies(guarded):  # noqa: F811
    async def scenario(peers):
        await peers["operator"].send("orders_reply_topic", b"answer")
        pulled = await peers["everything"].pull("orders_reply_topic")
        assert [each.body for each in records(pulled.body)] == [b"answer"]

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


def in_batch(*messages):
    """A batch of (body, text of properties)."""
    parts = []
    for body, properties in messages:
        size = 22 + len(body) + len(properties)
        parts += [struct.pack(">5i", size, 0, 0, 0, len(body)), body]
        parts += [struct.pack(">h", len(properties)), properties]
    return b"".join(parts)


FORGED = b"POP_CK\x010 1 60000 1 0 broker-a 0 0\x02"


def test_a_producers_batch_has_no_receipts_of_others_pops(guarded):  # noqa: F811
    """A consumer acknowledges by the receipt that stands in a message."""

    async def scenario(peers):
        batch = in_batch(
            (b"one", b"UNIQ_KEY\x01U1\x02" + FORGED + b"k\x01v\x02"),
            (FORGED, b"UNIQ_KEY\x01U2\x02"),
            (b"three", FORGED[:-1]),
        )
        code = RequestCode.SEND_BATCH_MESSAGE
        assert (await peers["producer"].send("A", batch, code=code)).code == 0
        found = records((await peers["consumer"].pull("A")).body)
        assert [each.body for each in found] == [b"one", FORGED, b"three"]
        assert not any("POP_CK" in each.properties for each in found)
        assert [each.unique_key for each in found] == ["U1", "U2", None]
        assert found[0].properties["k"] == "v"
        for broken in (batch[:-3], batch + b"x", in_batch((FORGED, b""))[:-2]):
            refused = await peers["producer"].send("A", broken, code=code)
            assert refused.code == ResponseCode.MESSAGE_ILLEGAL

    guarded(scenario)


def test_a_batch_that_is_answered_natively_has_none_either(with_broker):
    """As batches to topics that are known are, where there are no accounts."""

    async def scenario(_, peer):
        assert (await peer.send("T", b"plain")).code == 0
        batch = in_batch((b"one", FORGED), (b"two", b"UNIQ_KEY\x01U\x02" + FORGED), (FORGED, b""))
        assert (await peer.send("T", batch, code=RequestCode.SEND_BATCH_MESSAGE)).code == 0
        found = records((await peer.pull("T")).body)
        assert [each.body for each in found] == [b"plain", b"one", b"two", FORGED]
        assert not any("POP_CK" in each.properties for each in found)

    with_broker(scenario)


RETRY = "%RETRY%CG_T"


@pytest.fixture
def one_group(monkeypatch):
    """An account with one group, and with every topic but one."""
    topics = {"Secret": Permission.DENY}
    account = Account("consumer", "secret-2", default_topic=PUB | SUB, topics=topics)
    monkeypatch.setitem(ACCOUNTS, "consumer", replace(account, groups={"CG": SUB}))


@pytest.mark.parametrize("topic", ["Another", "T"])
def test_what_another_group_gave_back_is_not_read_by_the_name_of_its_retry_topic(
    guarded,  # noqa: F811
    one_group,
    topic,
):
    """That of the group `CG_T`, which may read `Secret`, is that of `CG` and `T`, too."""

    async def scenario(peers):
        others, reader = peers["operator"], peers["consumer"]
        await others.send(topic, b"there is a topic")
        await others.send("Secret", b"secret", properties={"ORIGIN_GROUP": "Elsewhere"})
        (secret,) = records((await others.pull("Secret", group="CG_T")).body)
        back = {"group": "CG_T", "delayLevel": 1, "offset": secret.phy_offset}
        assert (await others.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)).code == 0
        given_back = []

        async def came():
            given_back[:] = records((await others.pull(RETRY, group="CG_T")).body)
            return given_back

        await until_async(came, "it has come again")
        assert (await reader.pull(RETRY)).code == ResponseCode.NO_PERMISSION
        wanted = {"topic": RETRY, "consumerGroup": "CG", "queueId": 0, "maxMsgNums": 8}
        place = {"queueOffset": 0, "sysFlag": 4, "subscription": "*", "pollTime": 0}
        for code in (
            RequestCode.LITE_PULL_MESSAGE,
            RequestCode.POP_MESSAGE,
            RequestCode.PEEK_MESSAGE,
            RequestCode.NOTIFICATION,
        ):
            answer = await reader.ask(code, wanted | place | {"invisibleTime": 1000})
            assert (answer.code, answer.body) == (ResponseCode.NO_PERMISSION, b"")
        at = {"group": "CG", "delayLevel": 1, "offset": given_back[0].phy_offset}
        for code in (RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.VIEW_MESSAGE_BY_ID):
            answer = await reader.ask(code, at)
            assert (answer.code, answer.body) == (ResponseCode.NO_PERMISSION, b"")
            assert "Secret" not in answer.remark

    guarded(scenario)


def test_what_comes_again_of_ones_own_pop_is_settled_by_the_name_of_its_retry_topic(
    guarded,  # noqa: F811
    one_group,
):
    async def scenario(peers):
        peer = peers["consumer"]
        await peer.send("T", b"again")
        assert (await pop(peer, invisible_ms=0)).code == ResponseCode.SUCCESS
        ((message, receipt),) = await pop_until(peer, 1)
        later = {**naming(message, receipt), "invisibleTime": 60_000}
        changed = await peer.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, later)
        assert changed.code == ResponseCode.SUCCESS
        at = {"group": "CG", "delayLevel": 1, "offset": message.phy_offset}
        for code in (RequestCode.VIEW_MESSAGE_BY_ID, RequestCode.CONSUMER_SEND_MSG_BACK):
            assert (await peer.ask(code, at)).code == ResponseCode.SUCCESS
        assert (await acknowledge(peer, message, receipt)).code == ResponseCode.SUCCESS

    guarded(scenario)


def test_no_producer_keeps_a_group_from_giving_back_what_has_come_again(
    guarded,  # noqa: F811
    monkeypatch,
):
    """Its retry topic is that of `CG` and `T`, too, whose POP a property of the message names."""
    account = Account("consumer", "secret-2", default_topic=PUB | SUB, groups={"CG_T": SUB})
    monkeypatch.setitem(ACCOUNTS, "consumer", account)

    async def scenario(peers):
        await peers["operator"].send("X", b"x", properties={"ORIGIN_GROUP": "CG"})
        group, found = peers["consumer"], []

        async def came(topic):
            found[:] = records((await group.pull(topic, group="CG_T")).body)
            return found

        for topic in ("X", RETRY):
            await until_async(lambda topic=topic: came(topic), "it is there")
            at = {"group": "CG_T", "delayLevel": 1, "offset": found[0].phy_offset}
            answer = await group.ask(RequestCode.CONSUMER_SEND_MSG_BACK, at)
            assert answer.code == ResponseCode.SUCCESS

    guarded(scenario)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    "code", [RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.CONSUME_MESSAGE_DIRECTLY]
)
def test_a_client_that_an_administrator_asks_is_not_told_his_signature(
    guarded,  # noqa: F811
    monkeypatch,
    code,
    strict,
):
    """With it a client that calls itself as a topic is called would delete that topic."""
    monkeypatch.setitem(ACCOUNTS, "operator", replace(ACCOUNTS["operator"], strict=strict))

    async def scenario(peers):
        operator, asked, told = peers["operator"], peers["consumer"], []

        def tell(_, request):
            told.append(dict(request.ext_fields))
            return success()

        asked.client.register(code, tell)
        sent = await operator.send("Secret", b"x")
        beat = b'{"clientID":"Secret","consumerDataSet":[{"groupName":"CG"}]}'
        assert (await asked.ask(RequestCode.HEART_BEAT, body=beat)).code == ResponseCode.SUCCESS
        named = {"consumerGroup": "CG", "clientId": "Secret", "msgId": sent.ext_fields["msgId"]}
        assert (await operator.ask(code, named)).code == ResponseCode.SUCCESS
        (fields,) = told
        assert fields == named | {k: v for k, v in fields.items() if k == "brokerName"}

    guarded(scenario)


def test_no_producer_has_consumers_take_a_message_for_one_of_another_topic(guarded):  # noqa: F811
    """They take the topic of what has come back for the one that `RETRY_TOPIC` names."""

    async def scenario(peers):
        group, broker = peers["consumer"], peers["consumer"].broker
        await peers["operator"].send("Payments", b"there is a topic")
        sent = await peers["producer"].send("A", b"x", properties={"RETRY_TOPIC": "Payments"})
        assert sent.code == ResponseCode.SUCCESS
        (message,) = records((await group.pull("A")).body)
        found = [message]

        async def came():
            found[:] = records((await group.pull("%RETRY%CG")).body)
            return found

        for level, topic in ((1, "%RETRY%CG"), (-1, "%DLQ%CG")):
            back = {"group": "CG", "delayLevel": level, "offset": found[0].phy_offset}
            answer = await group.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)
            assert answer.code == ResponseCode.SUCCESS
            if level > 0:
                await until_async(came, "it has come back")
            (again,) = records((await group.pull(topic)).body)
            assert again.properties["RETRY_TOPIC"] == "A"
        assert broker.managers.traffic.dead == {("A", "CG"): 1}

    guarded(scenario)


def test_nor_behind_a_pop(guarded, one_group):  # noqa: F811
    async def scenario(peers):
        group = peers["consumer"]
        await peers["operator"].send("Payments", b"there is a topic")
        await group.send("T", b"x", properties={"RETRY_TOPIC": "Payments"})
        assert (await pop(group, invisible_ms=0)).code == ResponseCode.SUCCESS
        ((message, _),) = await pop_until(group, 1)
        back = {"group": "CG", "delayLevel": -1, "offset": message.phy_offset}
        answer = await group.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)
        assert answer.code == ResponseCode.SUCCESS
        (letter,) = records((await group.pull("%DLQ%CG")).body)
        assert letter.properties["RETRY_TOPIC"] == "%RETRY%CG_T"

    guarded(scenario)


def test_what_a_group_pops_from_its_retry_topic_keeps_its_topic(guarded, one_group):  # noqa: F811
    """POP puts it back into the same topic, with the `RETRY_TOPIC` that the group has written."""

    async def scenario(peers):
        group, retried = peers["consumer"], "%RETRY%CG"
        await group.send("T", b"x")
        found = records((await group.pull("T")).body)

        async def give_back():
            back = {"group": "CG", "delayLevel": 1, "offset": found[0].phy_offset}
            answer = await group.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)
            assert answer.code == ResponseCode.SUCCESS

        async def pulled():
            found[:] = records((await group.pull(retried, offset=offset)).body)
            return found

        await give_back()
        await pop_until(group, 1, topic=retried, invisible_ms=0)
        for offset in (1, 2):
            await until_async(pulled, "it has come again")
            assert found[0].properties["RETRY_TOPIC"] == "T"
            if offset == 1:
                assert found[0].properties["ORIGIN_GROUP"] == "CG"
                await give_back()

    guarded(scenario)
