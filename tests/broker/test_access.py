"""Who may do what, at a broker and at a name server with accounts."""

import asyncio

import pytest
from broker.conftest import SMALL, Peer, records
from patience import TIMEOUT_S

from rmqcore.broker import Broker
from rmqcore.namesrv import NameServer
from rmqcore.remoting import (
    AccessGate,
    Account,
    Permission,
    RemotingClient,
    RequestCode,
    ResponseCode,
)
from rmqcore.remoting.permissions import RULES
from rmqcore.remoting.server import RemotingServer

pytestmark = pytest.mark.engine

PUB, SUB = Permission.PUB, Permission.SUB
ACCOUNTS = {
    each.access_key: each
    for each in (
        Account("operator", "secret-0", admin=True),
        Account("producer", "secret-1", topics={"A": PUB}),
        Account("consumer", "secret-2", topics={"A": SUB}, groups={"CG": SUB}),
        Account("everything", "secret-3", default_topic=PUB | SUB, default_group=SUB),
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


def test_every_code_that_is_served_has_its_rule(tmp_path, monkeypatch):
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
    assert sorted(codes - set(RULES)) == [], "give each a rule in remoting/permissions.py"


def test_a_code_without_a_rule_is_refused_even_to_an_administrator(guarded):
    async def scenario(peers):
        for code in (RequestCode.AUTH_CREATE_USER, 31_999):
            assert (await peers["operator"].ask(code)).code == ResponseCode.NO_PERMISSION

    guarded(scenario)


def test_who_has_no_right_signature_gets_nothing_and_learns_nothing(guarded):
    async def scenario(peers):
        for code in [*RULES, 31_999]:
            remarks = set()
            for name in ("nobody", "forger"):
                answer = await peers[name].ask(code, {"topic": "A", "offset": 0})
                assert answer.code == ResponseCode.NO_PERMISSION
                remarks.add(answer.remark)
            assert len(remarks) == 1

    guarded(scenario)


def test_only_administrators_send_what_is_theirs(guarded):
    async def scenario(peers):
        for code in [code for code, rule in RULES.items() if rule is None]:
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


def test_a_default_does_not_open_the_topics_in_which_the_broker_keeps_those_of_others(guarded):
    async def scenario(peers):
        await peers["everything"].send("Private", b"x", properties={"DELAY": "18"})
        hidden = await peers["everything"].pull("SCHEDULE_TOPIC_XXXX", queue_id=17)
        assert hidden.code == 16
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


def test_a_broker_with_accounts_registers_in_the_name_of_an_administrator(tmp_path):
    async def main():
        server = NameServer(port=0, gate=AccessGate(ACCOUNTS))
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

    from rmqcore.broker.settings import BrokerConfig
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
