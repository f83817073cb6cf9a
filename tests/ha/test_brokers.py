"""Two brokers and a name server: what a slave fetches, who may read there, who goes on."""

import asyncio
import json
import re
import socket
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import PIPE

import pytest
from patience import TIMEOUT_S, until_async
from typer.testing import CliRunner

from interop.cluster import free_port
from rmqcore._codec import encode_properties
from rmqcore.broker import Broker
from rmqcore.broker.admin.metrics import Metrics
from rmqcore.broker.replication import slave_synchronize
from rmqcore.broker.replication.slave_synchronize import SlaveSynchronize
from rmqcore.cli.app import app
from rmqcore.client import Consumer, Producer
from rmqcore.errors import ConfigError
from rmqcore.files.delay_offset_table import DelayOffsetTable
from rmqcore.files.request_mode_table import POP, MessageRequestModeTable
from rmqcore.ha import HAClient
from rmqcore.namesrv import NameServer
from rmqcore.remoting import (
    Account,
    Permission,
    RemotingClient,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    Tls,
    TlsMode,
    background,
    load_tls,
)

pytestmark = pytest.mark.engine

SMALL = {
    "mappedFileSizeCommitLog": 1 << 20,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
    "haSendHeartbeatInterval": 200,
    # nobody is given up whom other work holds up
    "haHousekeepingInterval": 60_000,
    "slaveTimeout": 60_000,
    "slaveReadEnable": "true",
    "listenPort": 0,
}


class Pair:
    """A master, a slave, and a client that asks either."""

    def __init__(self, path, namesrv, properties):
        common = {**SMALL, "namesrvAddr": namesrv, **properties}
        self.namesrv = namesrv
        self.master = Broker(path / "m", {**common, "brokerRole": "SYNC_MASTER"})
        self.slave = Broker(path / "s", {**common, "brokerRole": "SLAVE", "brokerId": 1})
        self.client = RemotingClient()

    async def ask(self, broker, code, body=b"", **fields):
        texts = {name: str(value) for name, value in fields.items()}
        command = RemotingCommand(code, texts, body)
        return await self.client.invoke(broker.address, command, 1000 * TIMEOUT_S)

    async def follows(self):
        """Wait until the slave has reported; a put counts on nobody who has only connected."""

        def reported():
            return any(one.ack_offset >= 0 for one in self.master.replication.service.connections)

        await until_async(reported, "the slave follows")

    async def in_step(self):
        def acknowledged():
            slaves = self.master.replication.service.connections
            return [one.ack_offset for one in slaves] == [self.master.store.max_phy_offset]

        await until_async(acknowledged, "the slave has said that it has all of the log")

    async def synchronize(self):
        """Let the slave fetch all tables now; with `asks_when_told` nothing older comes later."""
        await until_async(self.slave.replication._synchronize.synchronize, "it has all tables")

    async def pull(self, broker, offset=0, **more):
        fields = {
            **{"consumerGroup": "CG", "topic": "T", "queueId": 0, "queueOffset": offset},
            **{"maxMsgNums": 32, "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0},
            **{"subVersion": 0, "subscription": "*", **more},
        }
        return await self.ask(broker, RequestCode.PULL_MESSAGE, **fields)


@pytest.fixture
def asks_when_told(monkeypatch):
    """A slave fetches its master's tables when a test says so, and not by itself."""

    async def never(_):
        await asyncio.Event().wait()

    monkeypatch.setattr(SlaveSynchronize, "run", never)


@asynccontextmanager
async def running(path, **properties):
    name_server = NameServer("127.0.0.1", 0)
    await name_server.start()
    pair = Pair(path, f"127.0.0.1:{name_server.port}", properties)
    await pair.master.start()
    await pair.slave.start()
    try:
        await pair.follows()
        yield pair
    finally:
        await pair.client.close()
        await pair.slave.stop()
        await pair.master.stop()
        await name_server.stop()


@pytest.mark.usefixtures("asks_when_told")
def test_a_slave_has_its_masters_tables_and_messages(tmp_path):
    async def scenario():
        async with running(tmp_path) as pair, Producer(pair.namesrv) as producer:
            store = pair.master.store
            for number in range(20):
                sent = await producer.send("T", b"%d" % number, queue_id=0)
                assert sent.status.name == "SEND_OK"
            await producer.send("T", b"later", delay_level=1)
            store.consumer_offsets.commit("T", "CG", 0, 7)
            pair.master.managers.groups.put("CG", {"retryMaxTimes": 3})
            pair.master.managers.groups.set_readable("CG", "Secret", False)
            await pair.master.managers.modes.put("T", "CG", POP, 2)
            await until_async(lambda: store.delay_offsets().get(1), "it was delivered")
            await pair.in_step()
            await pair.synchronize()
            theirs = pair.slave.store
            assert list(theirs.topics) == list(store.topics)
            assert theirs.consumer_offsets.get("T", "CG", 0) == 7
            assert pair.slave.managers.groups.expect("CG")["retryMaxTimes"] == 3
            assert not pair.slave.managers.groups.table.may_read("CG", "Secret")
            config = tmp_path / "s" / "config"
            assert DelayOffsetTable(config, clock=int).get(1) == 1
            await until_async(
                lambda: MessageRequestModeTable(config, clock=int).get("T", "CG") == (POP, 2),
                "the slave keeps who pops",
            )
            found = await pair.pull(pair.slave)
            assert (found.code, bytes(found.body)) == (
                ResponseCode.SUCCESS,
                bytes((await pair.pull(pair.master)).body),
            )

    asyncio.run(scenario())


def test_a_topic_that_comes_with_the_log_is_asked_for(tmp_path, monkeypatch):
    """Long before it is time again; without it nobody can read what is there."""
    monkeypatch.setattr(slave_synchronize, "_PERIOD_S", 3600)

    async def scenario():
        async with running(tmp_path) as pair, Producer(pair.namesrv) as producer:
            topics = pair.slave.store.topics
            # what the slave asks for at its start is had
            await until_async(
                lambda: len(topics) == len(pair.master.store.topics), "the slave has the topics"
            )
            for name in ("One", "Two"):
                await producer.send(name, b"1")
                await until_async(lambda name=name: topics.get(name), f"the slave has {name}")

    asyncio.run(scenario())


def test_a_slave_takes_nothing_that_has_to_be_stored(tmp_path):
    async def scenario():
        async with running(tmp_path) as pair:
            send = {"a": "PG", "b": "T", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0}
            answer = await pair.ask(pair.slave, RequestCode.SEND_MESSAGE_V2, b"x", **send, i="")
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "slave" in answer.remark
            for code, refused in (
                (RequestCode.CONSUMER_SEND_MSG_BACK, ResponseCode.SYSTEM_ERROR),
                (RequestCode.END_TRANSACTION, ResponseCode.SLAVE_NOT_AVAILABLE),
                (RequestCode.RESUME_CHECK_HALF_MESSAGE, ResponseCode.SYSTEM_ERROR),
                (RequestCode.POP_MESSAGE, ResponseCode.NO_PERMISSION),
                (RequestCode.RESET_MASTER_FLUSH_OFFSET, ResponseCode.NO_PERMISSION),
            ):
                assert (await pair.ask(pair.slave, code)).code == refused
            assert pair.slave.store.topics.get("T") is None

    asyncio.run(scenario())


@pytest.mark.usefixtures("asks_when_told")
def test_a_slave_sets_no_offset_of_which_its_master_knows_nothing(tmp_path):
    """Whoever reads there alone would be sent to a master that sends him nowhere."""

    async def scenario():
        async with running(tmp_path) as pair, Producer(pair.namesrv) as producer:
            await producer.send("T", b"x", queue_id=0)
            await pair.in_step()
            await pair.synchronize()
            code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
            asked = {"topic": "T", "group": "CG", "timestamp": 0, "isForce": "true"}
            refused = await pair.ask(pair.slave, code, **asked)
            assert refused.code == ResponseCode.SYSTEM_ERROR
            assert "ask its master" in refused.remark
            assert (await pair.pull(pair.slave)).code == ResponseCode.SUCCESS
            assert (await pair.ask(pair.master, code, **asked)).code == ResponseCode.SUCCESS

    asyncio.run(scenario())


@pytest.mark.usefixtures("asks_when_told")
def test_who_finds_nothing_on_a_slave_goes_back_to_its_master(tmp_path):
    async def scenario():
        async with running(tmp_path) as pair, Producer(pair.namesrv) as producer:
            await producer.send("T", b"x", queue_id=0)
            await pair.in_step()
            await pair.synchronize()
            for offset in (1, 5):
                nothing = await pair.pull(pair.slave, offset)
                assert nothing.code == ResponseCode.PULL_RETRY_IMMEDIATELY
                assert nothing.ext_fields["nextBeginOffset"] == str(offset)
                assert nothing.ext_fields["suggestWhichBrokerId"] == "0"
            await pair.master.stop()
            await until_async(lambda: not pair.slave.replication.follows, "the slave is alone")
            # without a master a reader that is ahead waits here
            for offset in (1, 5):
                nothing = await pair.pull(pair.slave, offset)
                assert nothing.code == ResponseCode.PULL_NOT_FOUND
                assert nothing.ext_fields["nextBeginOffset"] == str(offset)

    asyncio.run(scenario())


def test_readers_that_are_far_behind_are_sent_to_a_slave(tmp_path):
    async def scenario():
        async with (
            running(tmp_path, accessMessageInMemoryMaxRatio=0) as pair,
            Producer(pair.namesrv) as producer,
        ):
            for number in range(40):
                await producer.send("T", b"%d" % number, queue_id=0)
            await pair.in_step()
            far = await pair.pull(pair.master, maxMsgNums=1)
            assert far.ext_fields["suggestWhichBrokerId"] == "1"

    asyncio.run(scenario())


def test_a_slave_without_slave_read_enable_answers_no_pull(tmp_path):
    async def scenario():
        async with running(tmp_path, slaveReadEnable="false") as pair:
            assert (await pair.pull(pair.slave)).code == ResponseCode.SYSTEM_BUSY

    asyncio.run(scenario())


@pytest.mark.usefixtures("asks_when_told")
def test_a_consumer_goes_on_when_the_master_is_gone(tmp_path):
    async def scenario():
        async with running(tmp_path) as pair:
            async with Producer(pair.namesrv) as producer:
                for number in range(40):
                    await producer.send("T", b"%d" % number)
            await pair.in_step()
            await pair.synchronize()
            got = set()
            async with Consumer(pair.namesrv, "CG", {"T": "*"}, start="first") as consumer:

                async def receive(count):
                    async with asyncio.timeout(TIMEOUT_S):
                        while len(got) < count:
                            message = await anext(stream)
                            got.add(int(bytes(message.body)))
                            await consumer.ack(message)

                stream = aiter(consumer)
                await receive(10)
                await pair.master.stop()
                await receive(40)
            assert got == set(range(40))

    asyncio.run(scenario())


def test_the_command_shows_master_and_slave_in_step(tmp_path):
    async def scenario():
        async with running(tmp_path) as pair, Producer(pair.namesrv) as producer:
            await producer.send("T", b"x")
            await pair.in_step()
            asked = ["ha", "status", "-n", pair.namesrv]
            told = await asyncio.to_thread(CliRunner().invoke, app, [*asked, "--json"])
            table = await asyncio.to_thread(CliRunner().invoke, app, asked)
            end = pair.master.store.max_phy_offset
            master, slave = json.loads(told.stdout)
            assert (master["role"], slave["role"]) == ("master", "slave")
            assert (master["end"], slave["end"]) == (end, end)
            assert (master["lag_bytes"], master["lag_ms"]) == (0, 0)
            assert slave["peer"] == pair.master.config.ha_address
            assert master["problem"] is slave["problem"] is None
            assert str(end) in table.stdout
            text = Metrics(lambda: pair.master.managers).text().decode()
            assert re.search(
                r"^rocketmq_ha_slave_behind_bytes\{.*slave=.*\} 0.0$", text, re.MULTILINE
            )
            text = Metrics(lambda: pair.slave.managers).text().decode()
            assert re.search(r"^rocketmq_ha_problem\{.*\} 0.0$", text, re.MULTILINE)

    asyncio.run(scenario())


def test_a_slave_needs_an_id_of_its_own(tmp_path):
    async def scenario():
        broker = Broker(tmp_path / "s", {**SMALL, "brokerRole": "SLAVE"})
        with pytest.raises(ConfigError, match="brokerId"):
            await broker.start()

    asyncio.run(scenario())


@pytest.mark.process
def test_the_command_says_once_on_stderr_who_is_no_slave(tmp_path):
    port = free_port()
    settings = f"--port 0 --json -c mappedFileSizeCommitLog=1048576 -c haListenPort={port}"
    command = [sys.executable, "-m", "rmqcore", "broker", str(tmp_path / "s"), *settings.split()]
    with subprocess.Popen(command, stdout=PIPE, stderr=PIPE, text=True) as broker:
        json.loads(broker.stdout.readline())
        for said in (b"GET / HTTP/1.1\r\n\r\n", b"SSH-2.0-OpenSSH_9.2\r\n", b"\xff" * 8):
            with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as foreign:
                foreign.sendall(said)
                assert foreign.recv(1) == b""
        broker.terminate()
        told = broker.stderr.read()
    assert told.count("it is no slave") == 1
    assert len(told.splitlines()) == 1


def test_a_broker_that_a_controller_should_lead_does_not_start(tmp_path):
    for value in ("true", True):
        with pytest.raises(ConfigError, match=r"enableControllerMode.*brokerRole"):
            Broker(tmp_path / "s", {**SMALL, "enableControllerMode": value})
    assert Broker(tmp_path / "s", {**SMALL, "enableControllerMode": "false"})


ACCOUNTS = {
    each.access_key: each
    for each in (
        Account("operator", "secret-0", admin=True),
        Account("producer", "secret-1", topics={"T": Permission.PUB}),
    )
}
PEM = Path(__file__).parents[1] / "remoting" / "localhost.pem"


def told_of_a_pair(path, slaves_accounts, slaves_tls, *, may_ask):
    """Whether a slave has had its master's tables, an offset there, and what it says is wrong."""
    enforced = path / "tls.properties"
    enforced.write_text(
        f"tls.server.mode=enforcing\ntls.server.certPath={PEM}\ntls.enable=true\n"
        f"tls.client.authServer=true\ntls.client.trustCertPath={PEM}\n",
        "utf-8",
    )

    async def scenario():
        common = {**SMALL, "brokerIP1": "127.0.0.1", "brokerIP2": "127.0.0.1"}
        tls = load_tls(enforced)
        names = NameServer("127.0.0.1", 0, tls=Tls(TlsMode.PERMISSIVE, tls.server))
        await names.start()
        common["namesrvAddr"] = f"127.0.0.1:{names.port}"
        master = Broker(
            path / "m",
            {**common, "brokerRole": "ASYNC_MASTER", "haListenPort": free_port()},
            accounts=ACCOUNTS,
            tls=Tls(tls.mode, tls.server),
        )
        slave = Broker(
            path / "s",
            {**common, "brokerRole": "SLAVE", "brokerId": 1, "haListenPort": free_port()},
            accounts=slaves_accounts,
            tls=Tls(client=tls.client) if slaves_tls else None,
        )
        await master.start()
        try:
            for number in range(20):
                master.store.put("T", b"%d" % number)
            master.store.consumer_offsets.commit("T", "CG", 0, 7)
            await slave.start()
            client = slave.replication.client
            await until_async(
                lambda: slave.store.max_phy_offset == master.store.max_phy_offset,
                "the slave has all of the log",
            )
            had = await slave.replication._synchronize.synchronize()
            if may_ask and not had:
                # the connection had come again between the questions
                await until_async(slave.replication._synchronize.synchronize, "it has all tables")
                had = True
            told = client.runtime_info()["haClientRuntimeInfo"].get("problem")
            return had, slave.store.consumer_offsets.get("T", "CG", 0), told
        finally:
            await slave.stop()
            await master.stop()
            await names.stop()

    return asyncio.run(scenario())


def test_a_slave_asks_with_its_operators_account_and_over_tls(tmp_path):
    assert told_of_a_pair(tmp_path, ACCOUNTS, True, may_ask=True) == (True, 7, None)


@pytest.mark.parametrize("missing", ["accounts", "tls"])
def test_a_slave_that_is_told_no_topics_says_so(tmp_path, missing):
    accounts = None if missing == "accounts" else ACCOUNTS
    had, offset, problem = told_of_a_pair(tmp_path, accounts, missing != "tls", may_ask=False)
    assert not had
    assert offset != 7
    assert "GET_ALL_TOPIC_CONFIG was not had" in problem
    assert "the same accounts" in problem


@pytest.mark.usefixtures("asks_when_told")
def test_who_reads_on_a_slave_alone_is_sent_to_a_master_that_has_to_send_the_group_back(tmp_path):
    """It passes over what the group commits until then."""

    async def scenario():
        async with running(tmp_path) as pair, Producer(pair.namesrv) as producer:
            for number in range(6):
                await producer.send("T", b"%d" % number, queue_id=0)
            await pair.in_step()
            master, slave = (each.managers.offsets for each in (pair.master, pair.slave))
            master.commit("CG", "T", 0, 2)
            # what a crash at offset 3 leaves, and what an administrator has set
            master.resets.take_over({("CG", "T", 0): 3})
            master.resets["OTHER", "T", 0] = 1
            await pair.synchronize()
            sent_back = (
                ({"offset": 5}, ResponseCode.PULL_OFFSET_MOVED, "2"),
                ({"offset": 5, "consumerGroup": "OTHER"}, ResponseCode.PULL_OFFSET_MOVED, "1"),
            )
            for wanted, code, place in sent_back:
                answer = await pair.pull(pair.slave, **wanted)
                assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
                assert answer.ext_fields["nextBeginOffset"] == "5"
                assert answer.ext_fields["suggestWhichBrokerId"] == "0"
                answer = await pair.pull(pair.master, **wanted)
                assert (answer.code, answer.ext_fields["nextBeginOffset"]) == (code, place)
            assert (await pair.pull(pair.master, 2)).code == ResponseCode.SUCCESS
            await pair.synchronize()
            assert set(slave.resets) == {("OTHER", "T", 0)}
            assert not slave.resets.ends
            assert (await pair.pull(pair.slave, 5)).code == ResponseCode.SUCCESS

    asyncio.run(scenario())


@pytest.mark.usefixtures("asks_when_told")
def test_a_slave_knows_where_queues_ended_for_groups_that_have_no_offset(tmp_path):
    async def scenario():
        async with running(tmp_path) as pair, Producer(pair.namesrv) as producer:
            for number in range(6):
                await producer.send("T", b"%d" % number, queue_id=0)
            await pair.in_step()
            pair.master.managers.offsets.resets.take_over({}, {("T", 0): 3})
            await pair.synchronize()
            answer = await pair.pull(pair.slave, 5)
            assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
            answer = await pair.pull(pair.master, 5)
            assert answer.code == ResponseCode.PULL_OFFSET_MOVED
            assert answer.ext_fields["nextBeginOffset"] == "3"
            assert (await pair.pull(pair.master, 3)).code == ResponseCode.SUCCESS
            await pair.synchronize()
            assert (await pair.pull(pair.slave, 5)).code == ResponseCode.SUCCESS
        # made master, it sends on who has not come to the one before
        broker = Broker(tmp_path / "s", SMALL)
        await broker.start()
        try:
            offsets = broker.managers.offsets
            assert offsets.moved_to(("OTHER", "T", 0), 8) == 3
            assert offsets.moved_to(("CG", "T", 0), 8) == 6
        finally:
            await broker.stop()

    asyncio.run(scenario())


@pytest.mark.usefixtures("asks_when_told")
def test_a_slave_that_is_made_master_sends_back_whom_its_master_had_to(tmp_path):
    lost, deleted, told = ("CG", "T", 0), ("CG", "Again", 0), ("Told", "T", 0)

    async def scenario():
        async with running(tmp_path) as pair, Producer(pair.namesrv) as producer:
            for number in range(6):
                await producer.send("T", b"%d" % number, queue_id=0)
            await producer.send("Again", b"x", queue_id=0)
            await pair.in_step()
            master = pair.master.managers.offsets
            master.commit("CG", "T", 0, 2)
            master.resets.take_over({lost: 3})
            master.resets[deleted] = 0
            # an administrator has
            master.commit("Told", "T", 0, 4)
            master.resets[told] = 4
            await pair.synchronize()
        # it is started again before it is made master
        for role in ({"brokerRole": "SLAVE", "brokerId": 1}, {}):
            broker = Broker(tmp_path / "s", {**SMALL, **role})
            await broker.start()
            resets = broker.managers.offsets.resets
            assert resets.ends[lost] == 3
            await broker.stop()
        assert resets == {deleted: 0, told: 4}

    asyncio.run(scenario())


@pytest.mark.usefixtures("asks_when_told")
def test_a_slave_that_is_made_master_has_the_topics_that_came_with_the_log_alone(tmp_path):
    """Their messages are acknowledged; nobody could read them."""
    waits = {
        "Delayed": {"DELAY": "18"},
        "Timed": {"TIMER_DELAY_SEC": "3600"},
        "Half": {"TRAN_MSG": "true", "PGROUP": "PG"},
    }

    async def send(pair, topic, queue_id=0, properties=None):
        fields = {"a": "PG", "b": topic, "c": "TBW102", "d": 4, "e": queue_id, "f": 0, "g": 1}
        text = encode_properties(properties or {}).decode()
        code = RequestCode.SEND_MESSAGE_V2
        assert (await pair.ask(pair.master, code, b"x", **fields, h=0, i=text)).code == 0

    async def scenario():
        async with running(tmp_path) as pair:
            await pair.in_step()
            await send(pair, "Gone", properties=waits["Delayed"])
            await send(pair, "Gone")
            deleted = await pair.ask(pair.master, RequestCode.DELETE_TOPIC_IN_BROKER, topic="Gone")
            assert deleted.code == ResponseCode.SUCCESS
            await pair.in_step()
            await pair.synchronize()
            for topic, properties in {"Plain": {}, **waits}.items():
                await send(pair, topic, 3, properties)
            await pair.in_step()
        broker = Broker(tmp_path / "s", SMALL)
        await broker.start()
        try:
            known = {topic: broker.store.topics.get(topic) for topic in (*waits, "Plain")}
            assert {topic for topic, found in known.items() if found} == {*waits, "Plain"}
            assert min(found.read_queue_nums for found in known.values()) > 3
            assert broker.store.topics.get("Gone") is None
        finally:
            await broker.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize("what", ["the log", "the tables"])
def test_a_slave_follows_on_whatever_has_ended_that_once(tmp_path, monkeypatch, what):
    """Nobody starts it again for that."""
    owner, name = {
        "the log": (HAClient, "_where_to_begin"),
        "the tables": (SlaveSynchronize, "synchronize"),
    }[what]
    really, failed = getattr(owner, name), []

    async def fails_once(self):
        if not failed:
            failed.append(self)
            raise RecursionError
        return await really(self)

    monkeypatch.setattr(owner, name, fails_once)
    monkeypatch.setattr(background, "_PAUSE_S", 0)

    async def scenario():
        async with running(tmp_path) as pair, Producer(pair.namesrv) as producer:
            await until_async(lambda: failed, "it has ended")
            await producer.send("T", b"x")
            await pair.in_step()
            await until_async(lambda: pair.slave.store.topics.get("T"), "it has the topic")

    asyncio.run(scenario())
