"""MetaQ 1.4.6.2's own client finds our broker in ZooKeeper, sends to it and consumes from it."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from patience import until

from interop.peer import free_port, missing
from rmqcore.metaq import MessageStore, MetaConfig, SystemConfig

pytestmark = [
    pytest.mark.peers,
    pytest.mark.skipif(bool(missing()), reason=f"not on this machine: {', '.join(missing())}"),
]
RUN = Path(__file__).parent / "metaq" / "run"
SERVE = "from rmqcore.cli.metaq import app; app(['serve', {ini!r}, '--admin', {admin!r}])"
MESSAGES = 20


@contextlib.contextmanager
def running(*command):
    """Run a program that prints a line when it is there, and ends with its standard input."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        try:
            line = program.stdout.readline()
            assert line, f"{command} ended with {program.wait()}"
            yield program, line.strip()
        finally:
            program.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                program.wait(0.1)
            if program.poll() is None:
                program.send_signal(signal.SIGTERM)
                program.wait(30)


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory):
    with running(RUN, "zookeeper", tmp_path_factory.mktemp("zookeeper"), "0") as (_, port):
        yield f"127.0.0.1:{port}"


def server_ini(folder, zookeeper, broker_id=0, **own):
    folder.mkdir(exist_ok=True)
    values = {
        "brokerId": broker_id, "numPartitions": 2, "unflushThreshold": 0, "unflushInterval": 10000,
        "maxSegmentSize": 1 << 30, "maxTransferSize": 1 << 20, "serverPort": free_port(),
        "hostName": "127.0.0.1", "dataPath": folder / "data", **own,
    }  # fmt: skip
    lines = [f"{key}={value}" for key, value in values.items()]
    root = f"zk.zkConnect={zookeeper}\nzk.zkRoot=/meta"
    topics = (
        "[topic=t]\n[topic=readonly]\nacceptPublish=false\n[topic=hidden]\nacceptSubscribe=false"
    )
    ini = folder / "server.ini"
    ini.write_text("\n".join(["[system]", *lines, "[zookeeper]", root, topics, ""]))
    (folder / "data").mkdir(exist_ok=True)
    return ini


def ours(ini):
    code = SERVE.format(ini=str(ini), admin=str(ini.with_name("admin")))
    return running(sys.executable, "-c", code)


def tree(zookeeper, path):
    """Every node below a path: path -> text."""
    from kazoo.client import KazooClient

    client = KazooClient(hosts=zookeeper)
    client.start()
    try:
        nodes, waiting = {}, [path]
        while waiting:
            at = waiting.pop()
            nodes[at] = (client.get(at)[0] or b"").decode()
            waiting += [f"{at}/{name}" for name in client.get_children(at)]
        return nodes
    finally:
        client.stop()
        client.close()


def in_order(text):
    """JSON with its keys sorted: MetaQ's order differs from run to run."""
    return json.dumps(json.loads(text), sort_keys=True) if text.startswith("{") else text


def within(seconds, condition):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


def test_metaqs_client_sends_is_refused_sends_on_and_consumes(tmp_path, zookeeper):
    with ours(server_ini(tmp_path / "ours", zookeeper)):
        done = subprocess.run(
            [RUN, "client", zookeeper, "t", str(MESSAGES)],
            capture_output=True, text=True, check=True, timeout=240,
        )  # fmt: skip
    lines = done.stdout.splitlines()
    sent = [line for line in lines if line.startswith("sent ")]
    assert [line.split()[1] for line in sent] == ["true"] * MESSAGES + ["false", "true"]
    assert sent[-2].endswith("a put of 2097153 bytes; at most 2097152 are taken")
    assert {line.split()[2] for line in sent if " true " in line} == {"0-0", "0-1"}
    refused = [line for line in lines if line.startswith("transaction")]
    assert refused == ["transaction false no transactions here"]
    attribute = [f"attribute {n}" if n % 2 == 0 else "null" for n in range(MESSAGES)]
    expected = {f"got m{n} / {attribute[n]}" for n in range(MESSAGES)} | {"got last / null"}
    assert {line for line in lines if line.startswith("got ")} == expected
    assert lines[-1] == "all true"
    config = MetaConfig(SystemConfig(data_path=str(tmp_path / "ours" / "data")))
    stored = []
    for partition in range(2):
        with MessageStore("t", partition, config, mode="r") as store:
            stored += [message.data for message in store.messages()]
    assert sorted(stored) == sorted([*(b"m%d" % n for n in range(MESSAGES)), b"last"])


def test_our_nodes_are_those_of_metaqs_broker(tmp_path, zookeeper):
    theirs = server_ini(tmp_path / "theirs", zookeeper, 7, serverPort=free_port())
    with running(RUN, "broker", theirs):
        expected = tree(zookeeper, "/meta/brokers")
    ini = server_ini(tmp_path / "ours", zookeeper, 8)
    with ours(ini):
        found = tree(zookeeper, "/meta/brokers")
        until(
            lambda: "/meta/brokers/ids/8/master" in tree(zookeeper, "/meta/brokers"),
            "the broker is there",
        )

        def own(nodes, broker_id, ini):
            port = re.search(r"serverPort=(\d+)", ini.read_text())[1]
            checksum = f"/ids/{broker_id}/master_config_checksum"
            return {
                re.sub(r"/[78](-m)?(?=/|$)", r"/N\1", path): in_order(
                    re.sub(rf"(?<=:){port}|\b{broker_id}(?=-m)", "N", text)
                )
                for path, text in nodes.items()
                if f"/{broker_id}" in path and not path.endswith(checksum)
            }

        assert own(found, 8, ini) == own(expected, 7, theirs)
        checksum = found["/meta/brokers/ids/8/master_config_checksum"]
        assert checksum == str(MetaConfig.from_file(ini).config_file_checksum)
        text = ini.read_text().replace(
            "[topic=hidden]", "[topic=added]\nnumPartitions=3\n[topic=hidden]"
        )
        ini.write_text(text.replace("[topic=readonly]\nacceptPublish=false", ""))
        command = [sys.executable, "-m", "rmqcore", "metaq", "admin", ini.with_name("admin")]
        subprocess.run([*command, "reload"], check=True, timeout=120)
        added = "/meta/brokers/topics-pub/added/8-m"
        until(lambda: added in tree(zookeeper, "/meta/brokers"), "the topic is there")
        nodes = tree(zookeeper, "/meta/brokers")
        assert nodes[added] == '{"broker":"8-m","numParts":3}'
        assert not any(path.endswith("readonly/8-m") for path in nodes)
        again = server_ini(tmp_path / "again", zookeeper, 8)
        command = [sys.executable, "-m", "rmqcore", "metaq", "serve", again]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 1
        assert "is registered as broker 8" in done.stderr.replace("\n", " ")
    until(
        lambda: not any("8-m" in path for path in tree(zookeeper, "/meta/brokers")),
        "the broker has gone",
    )
    assert not any("/ids/8/" in path for path in tree(zookeeper, "/meta/brokers"))


def test_a_zookeeper_that_comes_back_without_a_memory_is_told_again(tmp_path):
    port = str(free_port())
    address = f"127.0.0.1:{port}"
    ini = server_ini(tmp_path / "ours", address)
    with contextlib.ExitStack() as stack:
        with running(RUN, "zookeeper", tmp_path / "first", port) as (zookeeper, _):
            stack.enter_context(ours(ini))
            before = tree(address, "/meta/brokers")
            zookeeper.kill()
        time.sleep(1)
        stack.enter_context(running(RUN, "zookeeper", tmp_path / "second", port))
        until(lambda: grown(address, before), "it is told again")


def grown(address, before):
    from kazoo.exceptions import NoNodeError

    with contextlib.suppress(NoNodeError):
        return tree(address, "/meta/brokers") == before
    return False
