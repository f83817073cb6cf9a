"""Who may do what, at a broker and at a name server with accounts."""

import asyncio
import base64
import functools
import json

import pytest
from broker.conftest import SMALL, Peer, records
from broker.test_pop import pop
from patience import TIMEOUT_S, until_async

from rmqcore.broker import Broker
from rmqcore.broker.admin.query import QueryMessages
from rmqcore.broker.requests import NEEDS
from rmqcore.broker.send.send import SendMessages
from rmqcore.broker.send.transactions import Transactions
from rmqcore.namesrv import NameServer
from rmqcore.remoting import (
    AccessGate,
    Account,
    AclSigner,
    Permission,
    RemotingClient,
    RequestCode,
    ResponseCode,
)
from rmqcore.remoting.needs import ADMIN, NotDenied
from rmqcore.remoting.server import RemotingServer
from rmqcore.store.sharing.calls import HELLO, STORE_CALL
from rmqcore.world import wall_clock_ms

pytestmark = pytest.mark.engine

PUB, SUB = Permission.PUB, Permission.SUB
ACCOUNTS = {
    each.access_key: each
    for each in (
        Account("operator", "secret-0", admin=True),
        Account("producer", "secret-1", topics={"A": PUB}),
        Account("consumer", "secret-2", topics={"A": SUB}, groups={"CG": SUB}),
        Account("everything", "secret-3", default_topic=PUB | SUB, default_group=SUB),
        Account("ledger", "secret-4", topics={"A": PUB}, groups={"PG": PUB}),
        Account("without", "secret-5"),
        Account("both", "secret-6", topics={"A": PUB | SUB}, groups={"CG": SUB, "PG": PUB}),
    )
}


@pytest.fixture
def guarded(tmp_path):
    """Run a coroutine function with a broker that has accounts, and a peer for each."""

    def run(scenario, **properties):
        async def main():
            broker = Broker(
                tmp_path / "store", {"listenPort": 0, **SMALL, **properties}, accounts=ACCOUNTS
            )
            await broker.start()
            peers = {name: Peer(broker) for name in (*ACCOUNTS, "nobody", "forger")}
            for name, peer in peers.items():
                account = ACCOUNTS.get(name)
                if account is not None:
                    peer.client = RemotingClient(sign=account.signer.sign)
            forged = Account("operator", "not-the-secret")
            peers["forger"].client = RemotingClient(sign=forged.signer.sign)
            try:
                await scenario(peers)
            finally:
                for peer in peers.values():
                    await peer.client.close()
                await broker.stop()

        asyncio.run(main())

    return run


def registered(monkeypatch):
    """Every code that a broker and a name server hand over."""
    codes = set()
    serve = RemotingServer.start

    async def noting(server):
        await serve(server)
        codes.update(map(int, server.processors))

    monkeypatch.setattr(RemotingServer, "start", noting)
    return codes


def test_what_is_served_is_what_is_declared_with_its_needs(tmp_path, monkeypatch):
    codes = registered(monkeypatch)

    async def main():
        broker = Broker(tmp_path / "store", {"listenPort": 0, **SMALL})
        name_server = NameServer(port=0)
        await broker.start()
        await name_server.start()
        await name_server.stop()
        await broker.stop()

    asyncio.run(main())
    assert {RequestCode.SEND_MESSAGE, RequestCode.REGISTER_BROKER} <= codes
    # staged records come from this machine's own user, whom the system knows
    codes -= {HELLO, STORE_CALL}
    assert codes == set(NEEDS), "declare each with @serves at the method that answers it"


def test_a_code_without_a_rule_is_refused_even_to_an_administrator(guarded):
    async def scenario(peers):
        for code in (RequestCode.AUTH_CREATE_USER, 31_999):
            assert (await peers["operator"].ask(code)).code == ResponseCode.NO_PERMISSION

    guarded(scenario)


def test_who_has_no_right_signature_gets_nothing_and_learns_nothing(guarded):
    async def scenario(peers):
        for code in [*NEEDS, 31_999]:
            remarks = set()
            for name in ("nobody", "forger"):
                answer = await peers[name].ask(code, {"topic": "A", "offset": 0})
                assert answer.code == ResponseCode.NO_PERMISSION
                remarks.add(answer.remark)
            assert len(remarks) == 1

    guarded(scenario)


def test_only_administrators_send_what_is_theirs(guarded):
    async def scenario(peers):
        for code in [code for code, rule in NEEDS.items() if rule is ADMIN]:
            answer = await peers["everything"].ask(code)
            assert answer.code == ResponseCode.NO_PERMISSION, code
        assert (await peers["operator"].ask(RequestCode.GET_BROKER_RUNTIME_INFO)).code == 0

    guarded(scenario)


def test_topics_and_groups_are_open_to_those_they_are_given_to(guarded):
    async def scenario(peers):
        producer, consumer = peers["producer"], peers["consumer"]
        sent = await producer.send("A", b"hello")
        assert sent.code == 0
        refused = await producer.send("B", b"hello")
        assert (refused.code, refused.remark) == (16, "no permission: PUB on the topic B is needed")
        assert (await consumer.send("A", b"hello")).code == 16
        twice = {"a": "PG", "b": "A", "topic": "B", "e": 0, "f": 0, "g": 0, "h": 0}
        assert (await producer.ask(RequestCode.SEND_MESSAGE_V2, twice, b"x")).code == 16
        (message,) = records((await consumer.pull("A")).body)
        assert message.body == b"hello"
        assert (await consumer.pull("A", group="Other")).code == 16
        assert (await consumer.pull("B")).code == 16
        assert (await producer.pull("A")).code == 16
        assert (await consumer.pull("%RETRY%Other")).code == 16
        assert (await consumer.send("%RETRY%Other", b"x")).code == 16
        at = {"offset": message.phy_offset}
        assert (await consumer.ask(RequestCode.VIEW_MESSAGE_BY_ID, at)).code == 0
        assert (await producer.ask(RequestCode.VIEW_MESSAGE_BY_ID, at)).code == 16

    guarded(scenario)


def test_a_message_of_a_topic_that_is_not_ones_own_is_not_sent_back_to_ones_group(guarded):
    async def scenario(peers):
        await peers["everything"].send("Private", b"x")
        back = {"group": "CG", "offset": 0, "delayLevel": 1}
        code = RequestCode.CONSUMER_SEND_MSG_BACK
        assert (await peers["consumer"].ask(code, back)).code == 16
        assert (await peers["everything"].ask(code, back)).code == 0

    guarded(scenario)


@pytest.mark.parametrize("hidden", [{"consumerGroup": "other"}, {"topic": "B"}])
def test_acknowledgements_need_every_name_that_they_come_under(guarded, hidden):
    async def scenario(peers):
        operator, names = peers["operator"], {"consumerGroup": "CG", "topic": "A", **hidden}
        await operator.send(names["topic"], b"one")
        popped = (await pop(operator, queue_id=0, **names)).ext_fields
        entry = {"c": "CG", "t": "A", "r": "0", "so": 0, "q": 0, "it": 60_000, **hidden}
        entry |= {"rq": int(popped["reviveQid"]), "pt": int(popped["popTime"])}
        entry["b"] = base64.b64encode(b"\x01").decode()
        body = json.dumps({"acks": [entry]}).encode()
        refused = await peers["consumer"].ask(RequestCode.BATCH_ACK_MESSAGE, body=body)
        assert refused.code == ResponseCode.NO_PERMISSION
        checkpoints = operator.broker.managers.checkpoints
        assert len(checkpoints) == 1
        assert (await operator.ask(RequestCode.BATCH_ACK_MESSAGE, body=body)).code == 0
        assert len(checkpoints) == 0

    guarded(scenario)


def test_a_default_does_not_open_the_topics_in_which_the_broker_keeps_those_of_others(guarded):
    async def scenario(peers):
        await peers["everything"].send("Private", b"x", properties={"DELAY": "18"})
        hidden = await peers["everything"].pull("SCHEDULE_TOPIC_XXXX", queue_id=17)
        assert hidden.code == 16
        assert (await peers["everything"].pull("%KV%table")).code == 16
        assert (await peers["operator"].pull("SCHEDULE_TOPIC_XXXX", queue_id=17)).code == 0
        at = {"offset": 0}
        assert (await peers["consumer"].ask(RequestCode.VIEW_MESSAGE_BY_ID, at)).code == 16
        assert (await peers["everything"].ask(RequestCode.VIEW_MESSAGE_BY_ID, at)).code == 0

    guarded(scenario)


def test_a_heart_beat_needs_the_groups_and_topics_in_its_body(guarded):
    def beat(group, topic):
        wanted = f'[{{"topic":"{topic}"}}]'
        entry = f'{{"groupName":"{group}","subscriptionDataSet":{wanted}}}'
        return f'{{"clientID":"c","consumerDataSet":[{entry}]}}'.encode()

    async def scenario(peers):
        async def code_of(group, topic):
            answer = await peers["consumer"].ask(RequestCode.HEART_BEAT, body=beat(group, topic))
            return answer.code

        assert await code_of("CG", "A") == 0
        assert await code_of("CG", "%RETRY%CG") == 0
        assert await code_of("CG", "B") == 16
        assert await code_of("Other", "A") == 16
        assert await code_of("", "A") == ResponseCode.SYSTEM_ERROR
        assert await code_of("CG", "%RETRY%") == ResponseCode.SYSTEM_ERROR

    guarded(scenario)


OWN_TOPICS = (
    "rmq_sys_wheel_timer",
    "rmq_sys_REVIVE_LOG_DefaultCluster",
    "rmq_sys_SYNC_BROKER_MEMBER_broker-a",
    "rmq_sys_anything",
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC",
    "SCHEDULE_TOPIC_XXXX",
    "OFFSET_MOVED_EVENT",
    "SELF_TEST_TOPIC",
    "%KV%table",
)
SENDS = (
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2,
)


async def answers_of_own_topics(peer):
    """The codes that a peer gets who tries to write to each topic of the broker's own."""
    answers = []
    for topic in OWN_TOPICS:
        more = {"REAL_TOPIC": "A", "REAL_QID": "0", "TIMER_OUT_MS": "1", "UNIQ_KEY": "k"}
        codes = [
            (await peer.send(topic, b"x", code=code, properties=properties)).code
            for code in SENDS
            for properties in (more, {"TRAN_MSG": "true", "PGROUP": "PG"}, {"DELAY": "1"})
        ]
        long_names = {"producerGroup": "PG", "topic": topic, "queueId": 0, "sysFlag": 0}
        long_names |= {"bornTimestamp": 1, "flag": 0, "properties": ""}
        codes.append((await peer.ask(RequestCode.SEND_MESSAGE, long_names, b"x")).code)
        codes.append((await peer.ask(RequestCode.SEND_REPLY_MESSAGE, long_names, b"x")).code)
        wanted = {"topic": topic, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
        codes.append((await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, wanted)).code)
        answers.append((topic, set(codes)))
    return answers


def test_nobody_writes_to_the_topics_that_the_broker_believes(guarded, with_broker):
    # who may make topics is told that this one is the broker's
    refusals = {ResponseCode.NO_PERMISSION, ResponseCode.INVALID_PARAMETER}

    async def as_account(peers):
        for name in ("everything", "operator"):
            for topic, codes in await answers_of_own_topics(peers[name]):
                assert codes <= refusals, topic

    async def without_accounts(broker, peer):
        before = broker.store.max_phy_offset
        for topic, codes in await answers_of_own_topics(peer):
            assert codes <= refusals, topic
        assert broker.store.max_phy_offset == before
        for topic in ("RMQ_SYS_TRACE_TOPIC", "BenchmarkTest", "TBW102"):
            assert (await peer.send(topic, b"x")).code == 0

    guarded(as_account)
    with_broker(without_accounts, traceTopicEnable=True)


def test_a_trace_topic_of_the_operators_choice_takes_traces(with_broker):
    async def scenario(_, peer):
        assert (await peer.send("rmq_sys_traces", b"x")).code == 0
        assert (await peer.send("rmq_sys_others", b"x")).code == 16

    with_broker(scenario, traceTopicEnable=True, msgTraceTopicName="rmq_sys_traces")


def test_what_the_broker_keeps_in_its_own_topics_is_not_sent_back_to_a_group(with_broker):
    async def scenario(broker, peer):
        await peer.send("T", b"half", properties={"TRAN_MSG": "true", "PGROUP": "PG"})
        await peer.send("T", b"later", properties={"DELAY": "18"})
        for offset in [message.phy_offset for message in broker.store.messages()]:
            back = {"group": "CG", "offset": offset, "delayLevel": 1}
            assert (await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)).code == 1

    with_broker(scenario)


def test_no_client_moves_the_brokers_own_offsets(with_broker):
    async def scenario(broker, peer):
        own = (
            ("CID_RMQ_SYS_TRANS", "RMQ_SYS_TRANS_HALF_TOPIC"),
            ("CID_RMQ_SYS_REVIVE_GROUP", "rmq_sys_REVIVE_LOG_DefaultCluster"),
        )
        for group, topic in own:
            before = broker.store.consumer_offsets.get(topic, group, 0)
            place = {"consumerGroup": group, "topic": topic, "queueId": 0}
            moved = {**place, "commitOffset": 99}
            assert (await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, moved)).code == 16
            assert (await peer.pull(topic, group=group, sysFlag=5, commitOffset=99)).code == 16
            popped = {**place, "maxMsgNums": 1, "invisibleTime": 1000, "pollTime": 0}
            popped |= {"bornTime": 0, "initMode": 0}
            assert (await peer.ask(RequestCode.POP_MESSAGE, popped)).code == 16
            gone = {"groupName": group, "cleanOffset": "true"}
            code = RequestCode.DELETE_SUBSCRIPTIONGROUP
            assert (await peer.ask(code, gone)).code == 16
            assert broker.store.consumer_offsets.get(topic, group, 0) == before
        told = await peer.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": own[0][0]})
        assert told.code == 0

    with_broker(scenario)


def producer_beat(client_id, group="PG"):
    return f'{{"clientID":"{client_id}","producerDataSet":[{{"groupName":"{group}"}}]}}'.encode()


def test_only_who_may_end_a_transaction_is_asked_for_it_and_ends_it(guarded):
    half = {"TRAN_MSG": "true", "PGROUP": "PG", "UNIQ_KEY": "k"}

    async def scenario(peers):
        asked = []
        names = ("producer", "everything", "ledger")
        for name in names:
            peers[name].client.register(
                RequestCode.CHECK_TRANSACTION_STATE,
                lambda _, request, name=name: asked.append((name, bytes(request.body))),
            )
            beat = producer_beat(name)
            assert (await peers[name].ask(RequestCode.HEART_BEAT, body=beat)).code == 0
        refused = await peers["producer"].send("A", b"pay", properties=half)
        assert refused.remark == "no permission: PUB on the group PG is needed"
        born_ms = wall_clock_ms() - 60_000
        sent = await peers["ledger"].send("A", b"pay", properties=half, g=born_ms)
        assert sent.code == 0
        broker = peers["ledger"].broker
        for _ in names:
            await until_async(lambda: _checked(broker), "a round has asked for it")
        await until_async(lambda: len(asked) == len(names), "each round's question has come")
        assert {name for name, _ in asked} == {"ledger"}
        end = {
            "producerGroup": "PG",
            "commitLogOffset": int(sent.ext_fields["msgId"][16:], 16),
            "tranStateTableOffset": sent.ext_fields["queueOffset"],
            "commitOrRollback": 12,
        }
        at = {"offset": end["commitLogOffset"]}
        for name, code in (("consumer", 16), ("everything", 16), ("operator", 0)):
            assert (await peers[name].ask(RequestCode.VIEW_MESSAGE_BY_ID, at)).code == code
        for name, code in (("producer", 16), ("everything", 16), ("ledger", 0)):
            assert (await peers[name].ask(RequestCode.END_TRANSACTION, end)).code == code

    guarded(scenario, transactionTimeOut=1, transactionCheckInterval=3_600_000)


async def _checked(broker):
    return await broker.managers.transactions.check() == 1


def test_the_id_of_a_client_that_is_connected_is_nobody_elses(guarded):
    async def scenario(peers):
        async def code_of(name, client_id):
            beat = producer_beat(client_id)
            return (await peers[name].ask(RequestCode.HEART_BEAT, body=beat)).code

        assert await code_of("producer", "c1") == 0
        assert await code_of("producer", "c1") == 0
        assert await code_of("everything", "c1") == 16
        assert await code_of("everything", "c2") == 0

    guarded(scenario)


def test_light_queues_need_permission_like_topics(guarded):
    async def scenario(peers):
        light = {"INNER_MULTI_DISPATCH": "%LMQ%other,%LMQ%more"}
        refused = await peers["producer"].send("A", b"x", properties=light)
        assert refused.remark == "no permission: PUB on the topic %LMQ%other is needed"
        assert (await peers["everything"].send("A", b"x", properties=light)).code == 0

    guarded(scenario)


def test_the_retry_topic_of_a_denied_topic_is_not_read_as_another_groups(guarded, monkeypatch):
    denied = Account(
        "everything",
        "secret-3",
        default_topic=PUB | SUB,
        default_group=SUB,
        topics={"Se_cret": PUB},
    )
    monkeypatch.setitem(ACCOUNTS, "everything", denied)

    async def scenario(peers):
        peer = peers["everything"]
        for topic in ("%RETRY%att_Se_cret", "%RETRY%a+Se_cret"):
            for group in ("att", "zz", "a", topic.removeprefix("%RETRY%")):
                assert (await peer.pull(topic, group=group)).code == 16
            asked = {"topic": topic, "key": "k", "maxNum": 1, "beginTimestamp": 0}
            asked["endTimestamp"] = 2**62
            assert (await peer.ask(RequestCode.QUERY_MESSAGE, asked)).code == 16
        for topic in ("%RETRY%att_Open", "%RETRY%zz"):
            await peer.send(topic, b"x")
            assert (await peer.pull(topic, group="zz")).code == 0
        # a group's own, though its name ends so
        await peer.send("%RETRY%g_cret", b"x")
        assert (await peer.pull("%RETRY%g_cret", group="g_cret")).code == 0

    guarded(scenario)


def test_the_retry_topic_of_a_topic_denied_by_default_is_not_read_as_another_groups(
    guarded, monkeypatch
):
    denied = Account("consumer", "secret-2", default_group=SUB, topics={"Open": SUB})
    monkeypatch.setitem(ACCOUNTS, "consumer", denied)

    async def scenario(peers):
        peer, other = peers["consumer"], peers["everything"]
        for topic in ("Secret", "Se_cret", "Open"):
            assert (await other.send(topic, b"x")).code == 0
        for name in ("x_Secret", "x_y_Se_cret", "x+Secret", "x+Unknown"):
            topic = f"%RETRY%{name}"
            await other.send(topic, b"secret")
            for group in ("x", "zz", name):
                assert (await peer.pull(topic, group=group)).code == 16, (topic, group)
        for name in ("x_Open", "my_group", "zz"):
            topic = f"%RETRY%{name}"
            assert (await other.send(topic, b"x")).code == 0
            assert (await peer.pull(topic, group=name)).code == 0, topic

    guarded(scenario)


def test_a_long_name_of_a_retry_topic_costs_no_more_than_its_end():
    asked = []
    account = Account("consumer", "secret-2", default_group=SUB)
    assert NotDenied("_" * 100_000).is_met_by(account, lambda topic: bool(asked.append(topic)))
    assert len(asked) < 300
    assert not NotDenied("_" * 100_000 + "Secret").is_met_by(account, {"Secret"}.__contains__)


def test_where_no_record_is_the_gate_answers(guarded, monkeypatch):
    """A record that comes a moment later is shown to nobody who was not asked for a permission."""
    reached = []
    for of, name in ((QueryMessages, "view"), (SendMessages, "send_back"), (Transactions, "end")):
        answers = functools.wraps(getattr(of, name))
        monkeypatch.setattr(of, name, answers(lambda *_, name=name: reached.append(name)))

    async def scenario(peers):
        peer = peers["ledger"]
        for code, fields in (
            (RequestCode.VIEW_MESSAGE_BY_ID, {"offset": 1 << 40}),
            (RequestCode.END_TRANSACTION, {"producerGroup": "PG", "commitLogOffset": 1 << 40}),
        ):
            assert (await peer.ask(code, fields)).code == ResponseCode.SYSTEM_ERROR
        asked = {"group": "CG", "offset": 1 << 40, "delayLevel": 0}
        answer = await peers["consumer"].ask(RequestCode.CONSUMER_SEND_MSG_BACK, asked)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert not reached

    guarded(scenario)


BODIES = (
    RequestCode.HEART_BEAT,
    RequestCode.LOCK_BATCH_MQ,
    RequestCode.UNLOCK_BATCH_MQ,
    RequestCode.QUERY_ASSIGNMENT,
    RequestCode.CHECK_CLIENT_CONFIG,
    RequestCode.BATCH_ACK_MESSAGE,
)


def test_no_body_is_parsed_for_who_may_do_nothing_of_it(guarded, monkeypatch):
    def parsed(_):
        raise AssertionError("a body was parsed")

    async def scenario(peers):
        monkeypatch.setattr("rmqcore.remoting.needs.read_object", parsed)
        for code in BODIES:
            for name in ("without", "forger", "nobody"):
                assert (await peers[name].ask(code, body=b"[" * 1000)).code == 16
            if code != RequestCode.HEART_BEAT:
                # it may send, and no group is open to it
                assert (await peers["producer"].ask(code, body=b"[" * 1000)).code == 16

    guarded(scenario)


def test_an_account_may_ask_for_the_strict_signature(guarded, monkeypatch):
    strict = Account("operator", "secret-0", admin=True, strict=True)
    monkeypatch.setitem(ACCOUNTS, "operator", strict)

    async def scenario(peers):
        peer = peers["operator"]
        assert (await peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).code == 0
        peer.client = RemotingClient(sign=AclSigner("operator", "secret-0").sign)
        assert (await peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).code == 16
        await peer.client.close()

    guarded(scenario)


def test_a_broker_with_accounts_registers_in_the_name_of_an_administrator(tmp_path):
    async def main():
        server = NameServer(port=0, gate=AccessGate(ACCOUNTS, NEEDS))
        await server.start()
        address = f"127.0.0.1:{server.port}"
        settings = {"listenPort": 0, "namesrvAddr": address, **SMALL}
        broker = Broker(tmp_path / "store", settings, accounts=ACCOUNTS)
        await broker.start()
        try:
            peer = Peer(broker)
            route = {"topic": "TBW102"}
            for name, code in (("producer", 0), ("forger", 16)):
                account = ACCOUNTS.get(name, Account("producer", "not-the-secret"))
                client = RemotingClient(sign=account.signer.sign)
                peer.client = client
                ask = peer.command(RequestCode.GET_ROUTEINFO_BY_TOPIC, route)
                assert (await client.invoke(address, ask, TIMEOUT_S * 1000)).code == code
                await client.close()
        finally:
            await broker.stop()
            await server.stop()

    asyncio.run(main())


def test_secrets_are_not_told(guarded):
    async def scenario(peers):
        answer = await peers["operator"].ask(RequestCode.GET_BROKER_CONFIG)
        text = bytes(answer.body).decode()
        assert "brokerName=" in text
        assert "hunter2" not in text

    guarded(
        scenario,
        ossSecretKey="hunter2",
        innerClientAuthenticationCredentials="hunter2",
        initAuthenticationUser="hunter2",
    )


def test_settings_that_name_places_cannot_be_changed_from_afar(guarded):
    async def scenario(peers):
        for name in ("storePathRootDir", "rocketmqHome", "brokerConfigPath", "namesrvAddr"):
            answer = await peers["operator"].ask(
                RequestCode.UPDATE_BROKER_CONFIG,
                body=f"{name}=x\nautoCreateTopicEnable=false".encode(),
            )
            assert answer.code == ResponseCode.NO_PERMISSION
        told = bytes((await peers["operator"].ask(RequestCode.GET_BROKER_CONFIG)).body).decode()
        assert "autoCreateTopicEnable=true" in told

    guarded(scenario)


def test_every_setting_that_can_be_changed_from_afar_is_a_number_or_a_switch():
    import dataclasses

    from rmqcore.broker.state.settings import BrokerConfig
    from rmqcore.config import DYNAMIC_SETTINGS
    from rmqcore.config.store_config import SETTINGS
    from rmqcore.namesrv import NamesrvConfig

    for owner in (BrokerConfig, NamesrvConfig):
        dynamic = [f for f in dataclasses.fields(owner) if f.metadata["dynamic"]]
        assert dynamic
        assert [f.name for f in dynamic if type(f.default) not in (int, bool)] == []
    # hours of the day, checked as such
    of_store = [SETTINGS[name] for name in DYNAMIC_SETTINGS - {"delete_when"}]
    assert [f.name for f in of_store if type(f.default) not in (int, bool, type(None))] == []
    assert [f.name for f in of_store if "path" in f.name] == []
