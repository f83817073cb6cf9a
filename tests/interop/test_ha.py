"""Master and slave, one of them Apache RocketMQ's: the same bytes, and readers that go on."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager

import pytest
from patience import until

from interop.cluster import (
    TIMEOUT_S,
    asker,
    broker_ports,
    java_broker,
    mqadmin,
    name_server,
)
from interop.peer import missing
from rmqcore import open_store
from rmqcore._codec import decode_record
from rmqcore.client.blocking import Producer
from rmqcore.java.json import parse_java_json
from rmqcore.remoting import (
    RemotingClient,
    RemotingCommand,
    RequestCode,
    ResponseCode,
)
from rmqcore.world import wall_clock_ms

pytestmark = [
    pytest.mark.peers,
    pytest.mark.skipif(bool(missing()), reason=f"not on this machine: {', '.join(missing())}"),
]

NAME, TOPIC, GROUP = "broker-ha", "Replicated", "CG"
COUNT, BEFORE = 10_000, 3_000
FILE_SIZE = 1024 * 1024
SHARED = {"slaveReadEnable": "true", "haSendHeartbeatInterval": 1000, "inSyncReplicas": 2}
JAVA = ["5.5.0", "4.9.7"]


@contextmanager
def our_broker(path, address, port, **settings):
    """Our broker in a process of its own; yields it and its address."""
    properties = {
        "brokerName": NAME,
        "namesrvAddr": address,
        "mappedFileSizeCommitLog": FILE_SIZE,
        "mappedFileSizeConsumeQueue": 60_000,
        "maxIndexNum": 4000,
        "maxHashSlotNum": 1000,
        **SHARED,
        **settings,
    }
    options = [word for name, value in properties.items() for word in ("-c", f"{name}={value}")]
    command = [sys.executable, "-m", "rmqcore", "broker", path, "--port", port, "--json", *options]
    process = subprocess.Popen(
        [str(word) for word in command], stdout=subprocess.PIPE, env={**os.environ}
    )
    try:
        facts = json.loads(process.stdout.readline())
        yield process, facts["broker"]
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(TIMEOUT_S)
        process.stdout.close()


def send(address, first, count, *, waits):
    """Send messages; return their codes."""

    async def all_of_them():
        client, codes = RemotingClient(), []

        async def part(numbers):
            for number in numbers:
                fields = {
                    **{"a": "PG", "b": TOPIC, "c": "TBW102", "d": "4", "e": str(number % 4)},
                    **{"f": "0", "g": str(wall_clock_ms()), "h": "0"},
                    "i": f"KEYS\x01k{number}\x02WAIT\x01{str(waits).lower()}\x02",
                }
                body = b"%d " % number + b"x" * (number % 700)
                command = RemotingCommand(RequestCode.SEND_MESSAGE_V2, fields, body)
                for _ in range(600):
                    answer = await client.invoke(address, command, 60_000)
                    if answer.code != ResponseCode.SYSTEM_BUSY:
                        break
                    await asyncio.sleep(0.1)
                codes.append(answer.code)

        await asyncio.gather(*(part(range(first + at, first + count, 16)) for at in range(16)))
        await client.close()
        return codes

    return asyncio.run(all_of_them())


def log_range(address):
    """Where the log of a broker begins and ends; None as long as it does not say."""
    answer = asker(address)(RequestCode.GET_BROKER_RUNTIME_INFO)
    if answer.code != ResponseCode.SUCCESS or not answer.body:
        return None
    table = parse_java_json(bytes(answer.body).decode())["table"]
    return int(table["commitLogMinOffset"]), int(table["commitLogMaxOffset"])


def in_step(master, slave):
    until(lambda: log_range(slave) == log_range(master), "the slave is in step")


def pulled(address):
    """Numbers of all messages that a reader gets from a broker."""

    async def all_of_them():
        client, found = RemotingClient(), []
        for queue_id in range(4):
            offset = 0
            while True:
                fields = {
                    **{"consumerGroup": GROUP, "topic": TOPIC, "queueId": str(queue_id)},
                    **{"queueOffset": str(offset), "maxMsgNums": "32", "sysFlag": "4"},
                    **{"commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "0"},
                    "subscription": "*",
                }
                answer = await client.invoke(
                    address, RemotingCommand(RequestCode.PULL_MESSAGE, fields), 60_000
                )
                if answer.code != ResponseCode.SUCCESS:
                    break
                offset = int(answer.ext_fields["nextBeginOffset"])
                found += bodies(bytes(answer.body))
        await client.close()
        return found

    return asyncio.run(all_of_them())


def bodies(body):
    found, at = [], 0
    while at < len(body):
        message = decode_record(body, at)
        found.append(int(bytes(message.body).split()[0]))
        at += message.store_size
    return found


def same_files(ours, theirs, least=4):
    """Every log file of one store, compared byte by byte with the other's."""
    names = sorted(file.name for file in (ours / "commitlog").iterdir())
    written = [name for name in names if (ours / "commitlog" / name).read_bytes().strip(b"\0")]
    assert len(written) >= least
    assert written[0] == "0" * 20
    for name in written:
        mine = (ours / "commitlog" / name).read_bytes()
        assert mine == (theirs / "commitlog" / name).read_bytes(), name
    return written


def registered(ask, count):
    def known():
        answer = ask(RequestCode.GET_BROKER_CLUSTER_INFO)
        table = parse_java_json(bytes(answer.body).decode())["brokerAddrTable"]
        return len(table.get(NAME, {}).get("brokerAddrs", {})) == count

    until(known, f"{count} brokers have registered")


def pops(ask):
    """Let a group pop, where the broker knows of that; which groups pop then."""
    wanted = {"topic": TOPIC, "consumerGroup": "CG", "mode": "POP", "popShareQueueNum": 0}
    answer = ask(RequestCode.SET_MESSAGE_REQUEST_MODE, body=json.dumps(wanted).encode())
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        return []
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return ["CG"]


def modes_of(ask):
    """The groups that pop the topic."""
    answer = ask(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
    return list(json.loads(answer.body)["messageRequestModeMap"].get(TOPIC, {}))


def bodies_in(address, topic, queue_id):
    """What a reader gets of one queue."""
    fields = {
        **{"consumerGroup": GROUP, "topic": topic, "queueId": str(queue_id)},
        **{"queueOffset": "0", "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0"},
        **{"suspendTimeoutMillis": "0", "subVersion": "0", "subscription": "*"},
    }
    return bodies(bytes(asker(address)(RequestCode.PULL_MESSAGE, fields).body))


def put_to(name_server_address, topic, numbers):
    """Put some numbers to queue 0 of a topic."""
    with Producer(name_server_address) as producer:
        for number in numbers:
            assert producer.send(topic, b"%d" % number, queue_id=0).queue_offset >= 0


def delete(address, topic):
    answer = asker(address)(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})
    assert answer.code == ResponseCode.SUCCESS


@pytest.mark.parametrize("release", JAVA)
def test_our_slave_begins_a_queue_anew_when_a_java_master_does(release, tmp_path):
    with name_server() as (address, ask), ExitStack() as stack:
        _, master = stack.enter_context(
            java_broker(release, tmp_path / "java", address, NAME, **SHARED)
        )
        _, slave = stack.enter_context(
            our_broker(tmp_path / "ours", address, broker_ports(), brokerRole="SLAVE", brokerId=1)
        )
        registered(ask, 2)
        put_to(address, "Again", range(20))
        in_step(master, slave)
        until(lambda: bodies_in(slave, "Again", 0) == [*range(20)], "the slave has the old ones")
        delete(master, "Again")
        put_to(address, "Again", range(100, 103))
        in_step(master, slave)
        until(lambda: bodies_in(slave, "Again", 0) == [100, 101, 102], "only the new ones")
    with open_store(tmp_path / "ours") as store:
        assert store.put("Again", b"next").queue_offset == 3


@pytest.mark.parametrize("release", JAVA)
def test_our_slave_follows_a_java_master(release, tmp_path):
    home, ours = tmp_path / "java", tmp_path / "ours"
    theirs = home / "store"
    with name_server() as (address, ask), ExitStack() as stack:
        settings = {**SHARED, "brokerRole": "SYNC_MASTER"}
        process, master = stack.enter_context(java_broker(release, home, address, NAME, **settings))
        registered(ask, 1)
        # history of several files, before there is a slave
        assert set(send(master, 0, BEFORE, waits=False)) == {ResponseCode.SUCCESS}
        port = broker_ports()
        slave_settings = {"brokerRole": "SLAVE", "brokerId": 1}
        with our_broker(ours, address, port, **slave_settings) as (_, slave):
            registered(ask, 2)
            in_step(master, slave)
            codes = send(master, BEFORE, COUNT - BEFORE - 2000, waits=True)
            assert set(codes) == {ResponseCode.SUCCESS}
        # stopped in between: nothing is acknowledged as replicated
        nobody = send(master, COUNT - 2000, 16, waits=True)
        assert set(nobody) <= {
            ResponseCode.SLAVE_NOT_AVAILABLE,
            ResponseCode.FLUSH_SLAVE_TIMEOUT,
        }
        send(master, COUNT - 1984, 984, waits=False)
        has_modes = pops(asker(master))
        with our_broker(ours, address, port, **slave_settings) as (_, slave):
            registered(ask, 2)
            in_step(master, slave)
            assert set(send(master, COUNT - 1000, 1000, waits=True)) == {ResponseCode.SUCCESS}
            in_step(master, slave)
            until(lambda: topic_known(asker(slave)), "the slave has the topics")
            until(lambda: modes_of(asker(slave)) == has_modes, "and who pops")
            assert "problem" not in ha_status(slave)["haClientRuntimeInfo"]
            process.kill()
            process.wait(30)
            until(lambda: sorted(pulled(slave)) == list(range(COUNT)), "all are read there")
    same_files(ours, theirs)
    with open_store(ours) as store:
        assert store.query_message(TOPIC, "k77").messages[0].body.startswith(b"77 ")
        assert store.topics.get(TOPIC).read_queue_nums == 4


@pytest.mark.parametrize("release", JAVA)
def test_a_java_slave_follows_our_master(release, tmp_path):
    home, ours = tmp_path / "java", tmp_path / "ours"
    port = broker_ports()
    slave_settings = {**SHARED, "brokerRole": "SLAVE", "brokerId": 1}
    with name_server() as (address, ask), ExitStack() as stack:
        master_process, master = stack.enter_context(
            our_broker(ours, address, port, brokerRole="SYNC_MASTER")
        )
        assert set(send(master, 0, BEFORE, waits=False)) == {ResponseCode.SUCCESS}
        # our slaves are told of that beside the topics
        put_to(address, "Gone", range(2))
        delete(master, "Gone")
        with java_broker(release, home, address, NAME, **slave_settings) as (process, slave):
            registered(ask, 2)
            in_step(master, slave)
            codes = send(master, BEFORE, COUNT - BEFORE - 2000, waits=True)
            assert set(codes) == {ResponseCode.SUCCESS}
            process.terminate()
            process.wait(TIMEOUT_S)
        until(lambda: not ha_status(master)["haConnectionInfo"], "the slave has gone")
        nobody = send(master, COUNT - 2000, 16, waits=True)
        assert set(nobody) == {ResponseCode.SLAVE_NOT_AVAILABLE}
        send(master, COUNT - 1984, 984, waits=False)
        again = tmp_path / "again"
        settings = {
            **slave_settings,
            "storePathRootDir": home / "store",
            "storePathCommitLog": home / "store" / "commitlog",
        }
        with java_broker(release, again, address, NAME, **settings) as (_, slave):
            registered(ask, 2)
            in_step(master, slave)
            assert set(send(master, COUNT - 1000, 1000, waits=True)) == {ResponseCode.SUCCESS}
            in_step(master, slave)
            knows = asker(slave)
            # a slave of 5.x asks for the topics a minute after it has started
            until(lambda: topic_known(knows), "the slave has the topics")
            master_process.send_signal(signal.SIGTERM)
            master_process.wait(TIMEOUT_S)
            until(lambda: sorted(pulled(slave)) == list(range(COUNT)), "all are read there")
    same_files(ours, home / "store")


# ---- the way back


def resync(store, broker, *words):
    """What the command says about a store; the replication port is the one behind the broker's."""
    host, port = broker.split(":")
    address = f"{host}:{int(port) + 1}"
    done = subprocess.run(
        [sys.executable, "-m", "rmqcore", "ha", "resync", store, "-m", address, "--json", *words],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    return json.loads(done.stdout)


def put(store, count):
    """Let a store take messages that the other side does not have; where they begin."""
    with open_store(store) as opened:
        begin = opened.max_phy_offset
        for number in range(count):
            opened.put(TOPIC, b"%d other" % number, queue_id=number % 4)
    return begin


@pytest.mark.parametrize("release", JAVA)
def test_our_slave_that_has_parted_from_a_java_master_is_led_back(release, tmp_path):
    home, ours = tmp_path / "java", tmp_path / "ours"
    slave_settings = {"brokerRole": "SLAVE", "brokerId": 1}
    port = broker_ports()
    with (
        name_server() as (address, ask),
        java_broker(release, home, address, NAME, **SHARED) as (_, master),
    ):
        registered(ask, 1)
        send(master, 0, BEFORE, waits=False)
        with our_broker(ours, address, port, **slave_settings) as (_, slave):
            registered(ask, 2)
            in_step(master, slave)
        assert resync(ours, master)["same_up_to"] == log_range(master)[1]
        parted = put(ours, 50)
        ahead = resync(ours, master)
        assert (ahead["same_up_to"], ahead["differs"], ahead["kept_in"]) == (parted, False, None)
        send(master, BEFORE, 500, waits=False)
        differs = resync(ours, master)
        assert (differs["same_up_to"], differs["differs"]) == (parted, True)
        done = resync(ours, master, "--yes")
        assert (done["same_up_to"], done["fetched"]) == (parted, 0)
        assert list((ours / done["kept_in"] / "commitlog").iterdir())
        with our_broker(ours, address, port, **slave_settings) as (_, slave):
            registered(ask, 2)
            in_step(master, slave)
            until(lambda: sorted(pulled(slave)) == list(range(BEFORE + 500)), "all are read")
    same_files(ours, home / "store", 2)


@pytest.mark.parametrize("release", JAVA)
def test_our_master_gets_what_it_has_lost_from_a_java_slave(release, tmp_path):
    home, ours, early = tmp_path / "java", tmp_path / "ours", tmp_path / "early"
    slave_settings = {**SHARED, "brokerRole": "SLAVE", "brokerId": 1}
    port = broker_ports()
    with name_server() as (address, ask), ExitStack() as stack:
        with our_broker(ours, address, port) as (_, master):
            assert set(send(master, 0, BEFORE, waits=False)) == {ResponseCode.SUCCESS}
        shutil.copytree(ours, early)
        with our_broker(ours, address, port, brokerRole="SYNC_MASTER") as (_, master):
            _, slave = stack.enter_context(
                java_broker(release, home, address, NAME, **slave_settings)
            )
            registered(ask, 2)
            in_step(master, slave)
            assert set(send(master, BEFORE, 2000, waits=True)) == {ResponseCode.SUCCESS}
            end = log_range(master)[1]
        # the master finds its store as it was earlier, and takes messages
        parted = put(early, 20)
        told = resync(early, slave)
        assert (told["same_up_to"], told["differs"]) == (parted, True)
        done = resync(early, slave, "--yes", "--fetch")
        assert (done["same_up_to"], done["fetched"]) == (parted, end - parted)
        assert resync(early, slave)["same_up_to"] == end
        with our_broker(early, address, port, brokerRole="SYNC_MASTER") as (_, master):
            until(lambda: ha_status(master)["inSyncSlaveNums"], "the slave follows again")
            assert set(send(master, BEFORE + 2000, 100, waits=True)) == {ResponseCode.SUCCESS}
            in_step(master, slave)
            until(lambda: sorted(pulled(master)) == list(range(BEFORE + 2100)), "all are read")
    same_files(early, home / "store", 2)


@pytest.mark.parametrize("release", JAVA)
def test_a_java_master_that_has_deleted_its_first_files_is_compared_and_fetched(release, tmp_path):
    home, ours, port = tmp_path / "java", tmp_path / "ours", broker_ports()
    slave_settings = {"brokerRole": "SLAVE", "brokerId": 1}
    files = home / "store" / "commitlog"
    with name_server() as (address, ask):
        with java_broker(release, home, address, NAME, **SHARED) as (process, master):
            registered(ask, 1)
            send(master, 0, COUNT, waits=False)
            with our_broker(ours, address, port, **slave_settings) as (_, slave):
                registered(ask, 2)
                in_step(master, slave)
            process.terminate()
            process.wait(TIMEOUT_S)
        for number in range(2):
            (files / f"{number * FILE_SIZE:020}").unlink()
        settings = {**SHARED, "storePathRootDir": home / "store", "storePathCommitLog": files}
        with java_broker(release, tmp_path / "again", address, NAME, **settings) as (_, master):
            registered(ask, 1)
            least, end = until(lambda: log_range(master), "the master is there again")
            assert least == 2 * FILE_SIZE
            assert resync(ours, master)["same_up_to"] == end
            parted = put(ours, 50)
            assert resync(ours, master, "--yes")["same_up_to"] == parted == end
            # an empty log gets all that there is, not the last file only
            empty = tmp_path / "empty"
            (empty / "commitlog").mkdir(parents=True)
            sizes = ["-c", f"mappedFileSizeCommitLog={FILE_SIZE}"]
            assert resync(empty, master, "--yes", "--fetch", *sizes)["fetched"] == end - least
            # what the master has deleted is all that a log has
            short = tmp_path / "short"
            shutil.copytree(ours, short)
            for file in sorted((short / "commitlog").iterdir())[1:]:
                file.unlink()
            told = resync(short, master, "-c", "on_corruption=truncate", "--yes", "--fetch")
            assert (told["same_up_to"], told["fetched"]) == (0, end - least)
    for store in (ours, empty, short):
        for name in (f"{at:020}" for at in range(least, end, FILE_SIZE)):
            mine = (store / "commitlog" / name).read_bytes()
            assert mine == (files / name).read_bytes(), (store, name)


def test_mqadmin_shows_our_master_and_both_kinds_of_slaves(tmp_path):
    slave = {**SHARED, "brokerRole": "SLAVE"}
    with name_server() as (address, ask), ExitStack() as stack:
        _, master = stack.enter_context(
            our_broker(tmp_path / "m", address, broker_ports(), brokerRole="SYNC_MASTER")
        )
        _, ours = stack.enter_context(
            our_broker(tmp_path / "s", address, broker_ports(), brokerRole="SLAVE", brokerId=1)
        )
        _, theirs = stack.enter_context(
            java_broker("5.5.0", tmp_path / "java", address, NAME, **slave, brokerId=2)
        )
        registered(ask, 3)
        until(lambda: len(ha_status(master)["haConnectionInfo"]) == 2, "both follow")
        assert set(send(master, 0, 200, waits=True)) == {ResponseCode.SUCCESS}
        in_step(master, ours)
        in_step(master, theirs)
        end = str(log_range(master)[1])
        until(
            lambda: {one["diff"] for one in ha_status(master)["haConnectionInfo"]} == {0},
            "both have said so",
        )
        asked = {who: f"haStatus -b {who}" for who in (master, ours, theirs)}
        printed, errors = mqadmin("5.5.0", tmp_path / "admin", address, *asked.values())
    assert "Exception" not in errors
    told = printed[asked[master]]
    lines = [line.split() for line in told.splitlines() if line.startswith("127.0.0.1:")]
    # SlaveAddr, SlaveAckOffset, Diff, TransferSpeed, Status, TransferFromWhere
    assert sorted(line[1:3] + line[-2:] for line in lines) == [[end, "0", "OK", end]] * 2, told
    for one in (ours, theirs):
        assert end in printed[asked[one]], printed[asked[one]]


def topic_known(ask):
    answer = ask(RequestCode.GET_ALL_TOPIC_CONFIG)
    return TOPIC.encode() in bytes(answer.body)


def ha_status(address):
    return json.loads(asker(address)(RequestCode.GET_BROKER_HA_STATUS).body)
