"""Clients of RocketMQ that go on while a master is killed, its slave is master, and back again.

They are Java's of both releases, Go's, and Java's of gRPC through our proxy; the brokers are ours.
What was answered SEND_OK has come in the end, in the order of its queue where that was asked for,
and no client had to be started anew.
"""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from patience import until

from interop.cluster import TIMEOUT_S, asker, broker_ports, java, name_server
from interop.peer import free_port, go_program, missing
from interop.test_ha import in_step, log_range
from rmqcore.client.blocking import Admin
from rmqcore.remoting import RequestCode, ResponseCode
from rmqcore.world import wall_clock_ms

pytestmark = [
    pytest.mark.peers,
    pytest.mark.skipif(bool(missing()), reason=f"not on this machine: {', '.join(missing())}"),
]
GRPC = Path(__file__).parent / "grpc"
GOING_GO = Path(__file__).parent / "go" / "going.go"
RMQCORE = (sys.executable, "-m", "rmqcore")
SETTINGS = {
    "brokerName": "broker-ha",
    "slaveReadEnable": "true",
    "mappedFileSizeCommitLog": 4 << 20,
    "maxHashSlotNum": 10_000,
    "maxIndexNum": 40_000,
    "messageDelayLevel": "2s 5s 10s 1s",
    "transactionTimeOut": 3000,
    "transactionCheckInterval": 3000,
}
#: what clients do, and the topic of it; the group is named so, too
TOPICS = {
    what: what.capitalize()
    for what in (
        *("plain", "cast", "polled", "ordered", "popped"),
        *("retried", "delayed", "timed", "decided"),
    )
}
OF_4_9 = ("plain", "cast", "polled", "ordered", "retried", "delayed", "decided")
OF_GO = ("plain", "ordered", "retried", "delayed")
OF_GRPC = ("plain", "ordered", "popped", "retried", "timed", "decided")
#: for gRPC a topic says what it takes
TYPES = {"ordered": "FIFO", "timed": "DELAY", "decided": "TRANSACTION"}
#: so many more of each kind are sent and come before the next thing happens
ENOUGH = 50
#: What a group is sent back by, milliseconds, from the kill before the last: a slave asks its
#: master for offsets every 10 s, clients tell theirs every 5 s, and who was killed knows no more
#: than it did then.
BACK_MS = 20_000
#: milliseconds that the slave of an ASYNC_MASTER may be behind
BEHIND_MS = 5_000
#: a client tells of an answer so much later
TOLD_MS = 500
QUEUES = 4


class OurBroker:
    """A broker that is started in different roles."""

    def __init__(self, path, name_server_address):
        self.path, self._name_server = path, name_server_address
        self.port = broker_ports()
        self.address = f"127.0.0.1:{self.port}"
        self._process = None

    def start(self, role, broker_id):
        settings = SETTINGS | {"namesrvAddr": self._name_server}
        settings |= {"brokerRole": role, "brokerId": broker_id}
        command = [*RMQCORE, "broker", str(self.path), "--port", str(self.port), "--json"]
        command += [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self._process.stdout.readline()

    def stop(self, *, kill=False):
        if self._process is not None:
            (self._process.kill if kill else self._process.terminate)()
            self._process.wait(TIMEOUT_S)
            self._process.stdout.close()
            self._process = None


class Clients:
    """A run of Going: what it has sent and got so far."""

    def __init__(self, command, environment, errors):
        self.words, self.stopped = Counter(), threading.Event()
        #: when each body was answered SEND_OK, milliseconds, by topic
        self.sent = defaultdict(dict)
        #: (milliseconds, body, tries) of what came, by group
        self.got = defaultdict(list)
        self._process = subprocess.Popen(
            [str(word) for word in command],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        for line in self._process.stdout:
            # Java's logs come on standard output, too
            at_ms, *words = line.rstrip("\n").split("\t")
            match words:
                case ["SENT", topic, body, "SEND_OK", *_]:
                    self.sent[topic][int(body)] = int(at_ms)
                case ["GOT", group, body, tries, *_]:
                    self.got[group].append((int(at_ms), int(body), int(tries)))
                case ["STOPPED"]:
                    self.stopped.set()
            self.words.update(words[:1])

    def tell(self, word):
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()

    def counts(self, kinds):
        sent = [len(self.sent[TOPICS[kind]]) for kind in kinds]
        return sent + [len(self.got[f"G-{kind}"]) for kind in kinds]

    def bodies(self, group, tries=0):
        return {body for _, body, tried in self.got[group] if tried >= tries}

    def close(self):
        self._process.kill()
        self._process.wait(TIMEOUT_S)
        self._reader.join(TIMEOUT_S)
        for stream in (self._process.stdin, self._process.stdout):
            stream.close()


def missing_bodies(clients, kind, has_dead, may_be_lost):
    """What was acknowledged and is still to come, by what it is missing for."""
    group = f"G-{kind}"
    sent = {body for body, at_ms in clients.sent[TOPICS[kind]].items() if not may_be_lost(at_ms)}
    lacks = {}
    if kind == "decided":
        # of four the third is rolled back
        sent = {body for body in sent if body % 4 != 2}
    lacks["first"] = sent - clients.bodies(group)
    if kind == "retried":
        lacks["again"] = {body for body in sent if body % 10 == 3} - clients.bodies(group, 1)
        if has_dead:
            given_up = {body for body in sent if body % 10 == 6}
            lacks["dead"] = given_up - clients.bodies("G-dead")
    if kind == "popped":
        lacks["again"] = {body for body in sent if body % 50 == 7} - clients.bodies(group, 1)
    return {why: bodies for why, bodies in lacks.items() if bodies}


def firsts(got):
    """What came, each body once, in the order of its first coming."""
    return list(dict.fromkeys(body for _, body, _ in got))


def check_order(clients):
    """In each queue what comes first has been sent first."""
    came = firsts(clients.got["G-ordered"])
    for queue in range(QUEUES):
        own = [body for body in came if body % QUEUES == queue]
        assert own == sorted(own), queue


def check_not_far_back(clients, kinds, killed_ms):
    """A kill brings nothing again that was consumed long before it."""
    for kind in set(kinds) - {"popped", "retried"}:
        seen = {}
        for at_ms, body, _ in clients.got[f"G-{kind}"]:
            before = [each for each in killed_ms if each < at_ms]
            if body in seen and before:
                assert before[-2:][0] - seen[body] < BACK_MS, (kind, body)
            seen.setdefault(body, at_ms)


def make_topics(address, namesrv, kinds, grpc):
    with Admin(namesrv) as admin:
        for kind in kinds:
            attributes = f"+message.type={TYPES.get(kind, 'NORMAL')}" if grpc else ""
            admin.create_topic(TOPICS[kind], queues=QUEUES, attributes=attributes)
    group = {"groupName": "G-ordered", "consumeEnable": True, "retryQueueNums": 1}
    group |= {"consumeMessageOrderly": grpc, "retryMaxTimes": 16}
    asked = {RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: group}
    if "popped" in kinds:
        mode = {"topic": "Popped", "consumerGroup": "G-popped", "mode": "POP"}
        asked[RequestCode.SET_MESSAGE_REQUEST_MODE] = mode | {"popShareQueueNum": 0}
    for code, body in asked.items():
        answer = asker(address)(code, {}, json.dumps(body).encode())
        assert answer.code == ResponseCode.SUCCESS, answer.remark


def remoting_clients(release, home, namesrv, kinds):
    options = ["-Dgoing.pause=20"]
    return java(release, home, "Going", namesrv, *kinds, heap="256m", options=options)


@contextmanager
def grpc_clients(home, namesrv, kinds):
    """The command of the same clients over gRPC, and a proxy for them."""
    home.mkdir()
    fetch = ["mvn", "-q", "-B", "-f", GRPC / "pom.xml", "dependency:copy-dependencies"]
    subprocess.run([*fetch, f"-DoutputDirectory={home / 'lib'}"], check=True)
    jars = f"{home / 'lib'}/*"
    subprocess.run(["javac", "-cp", jars, "-d", home, GRPC / "Going.java"], check=True)
    port = free_port()
    command = [*RMQCORE, "proxy", "--namesrv", namesrv, "--port", str(port), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as proxy:
        try:
            assert proxy.stdout.readline()
            run = ["java", "-Xmx256m", f"-Duser.home={home}", "-Dgoing.pause=20"]
            yield [*run, "-cp", f"{home}:{jars}", "Going", f"127.0.0.1:{port}", *kinds]
        finally:
            proxy.kill()


def log_end(address):
    """Where the log of a broker ends; 0 as long as it does not say."""
    found = log_range(address)
    return found[1] if found else 0


def promote(master, slave, role, killed_ms):
    """Kill a master and do what `docs/ha.md` says; its slave is the master then."""
    master.stop(kill=True)
    killed_ms.append(wall_clock_ms())
    slave.stop()
    slave.start(role, 0)
    again = [*RMQCORE, "ha", "resync", str(master.path), "--yes"]
    again += ["--master", f"127.0.0.1:{slave.port + 1}"]
    subprocess.run(again, check=True, timeout=TIMEOUT_S, capture_output=True)
    master.start("SLAVE", 1)
    end = log_end(slave.address)
    # clients send meanwhile
    until(lambda: log_end(master.address) >= end, "the new slave has what its master had")


@pytest.mark.parametrize("role", ["SYNC_MASTER", "ASYNC_MASTER"])
@pytest.mark.parametrize(
    ("release", "kinds"),
    [("5.5.0", tuple(TOPICS)), ("4.9.7", OF_4_9), ("Go", OF_GO), ("gRPC", OF_GRPC)],
    ids=["5.5.0", "4.9.7", "Go", "gRPC"],
)
def test_clients_go_on_when_a_slave_is_made_master_and_back(tmp_path, release, kinds, role):
    grpc, killed_ms = release == "gRPC", []
    has_dead = release not in ("gRPC", "Go")
    if release == "Go" and shutil.which("go") is None:
        pytest.skip("not on this machine: go")
    with name_server() as (namesrv, _), ExitStack() as stack:
        pair = [OurBroker(tmp_path / name, namesrv) for name in ("one", "two")]
        for each in pair:
            stack.callback(each.stop, kill=True)
        pair[0].start(role, 0)
        pair[1].start("SLAVE", 1)
        make_topics(pair[0].address, namesrv, kinds, grpc)
        if grpc:
            command = stack.enter_context(grpc_clients(tmp_path / "grpc", namesrv, kinds))
            environment = {**os.environ}
        elif release == "Go":
            (tmp_path / "go").mkdir()
            program = go_program(GOING_GO.read_text("utf-8"), tmp_path / "go")
            command = [program, namesrv, *kinds]
            environment = {**os.environ, "HOME": str(tmp_path / "go")}
        else:
            command, environment = remoting_clients(release, tmp_path / "java", namesrv, kinds)
        in_step(*(each.address for each in pair))
        errors = stack.enter_context((tmp_path / "errors.txt").open("wb"))
        clients = Clients(command, environment, errors)
        stack.callback(clients.close)

        def may_be_lost(at_ms):
            """Nobody waits for the slave of an ASYNC_MASTER."""
            killed = any(-TOLD_MS <= each - at_ms <= BEHIND_MS for each in killed_ms)
            return killed and role == "ASYNC_MASTER"

        def go_on():
            wanted = [count + ENOUGH for count in clients.counts(kinds)]
            until(
                lambda: all(map(int.__ge__, clients.counts(kinds), wanted)),
                f"all of {kinds} are sent and come",
            )

        go_on()
        for _ in range(2):
            go_on()
            promote(*pair, role, killed_ms)
            pair.reverse()
            go_on()
        clients.tell("stop")
        assert clients.stopped.wait(TIMEOUT_S), "producers end"
        for kind in kinds:
            until(
                lambda kind=kind: not missing_bodies(clients, kind, has_dead, may_be_lost),
                f"{kind} has come",
            )
    check_order(clients)
    check_not_far_back(clients, kinds, killed_ms)
    if "decided" in kinds:
        assert clients.words["ASKED"]
        assert {body for body in clients.bodies("G-decided") if body % 4 == 2} == set()
