"""Apache RocketMQ's own integration tests, at our name server and two or three of our brokers.

`it/classes.txt` has their classes, `it/not_passed.txt` what does not pass and why. Those of gRPC
run twice: with Apache's proxy in front of our brokers, and with ours.
"""

import asyncio
import contextlib
import os
import ssl
import subprocess
import threading
import zipfile
from pathlib import Path

import pytest

from interop.cluster import CLUSTER, PEM, TIMEOUT_S
from interop.peer import missing
from rmqcore.broker import Broker
from rmqcore.namesrv import NameServer
from rmqcore.proxy import GrpcServer, RemoteCluster, Service, receiving
from rmqcore.proxy.certificate import own_tls
from rmqcore.remoting import Tls, TlsMode
from rmqcore.world import wall_clock_ms

pytestmark = [
    pytest.mark.peers,
    pytest.mark.skipif(bool(missing()), reason=f"not on this machine: {', '.join(missing())}"),
]

HERE = Path(__file__).parent / "it"
RUN = HERE / "run"
#: the brokers that the tests of a release start, and count on
BROKERS = {"5.5.0": 3, "4.9.7": 2}
PACKAGE = "org.apache.rocketmq.test"
#: as those that the tests would start
SETTINGS = {
    "brokerClusterName": CLUSTER,
    "brokerIP1": "127.0.0.1",
    "listenPort": 0,
    "haListenPort": 0,
    "enablePropertyFilter": True,
    "recallMessageEnable": True,
    "mappedFileSizeCommitLog": 100 << 20,
    "mappedFileSizeConsumeQueue": 20 * 6000,
    "maxIndexNum": 1000,
    "maxHashSlotNum": 4000,
}
#: run in the place of a class, which it only extends
STAND_INS = {"grpc/v2/ClusterGrpcIT": "grpc/v2/PatientClusterGrpcIT"}
#: the longest of them waits for two minutes, several times
CLASS_S = 5 * TIMEOUT_S


def lines(name):
    """The lines of a file beside, split into at most three words, without comments."""
    text = (HERE / name).read_text("ascii")
    return [line.split(maxsplit=2) for line in text.splitlines() if line and line[0] != "#"]


def reasons():
    """Why a class is not run, or a test does not pass: {(release, class or class#test): reason}."""
    return {(release, name): why for release, name, why in lines("not_passed.txt")}


def cases():
    """A release and class of each run."""
    known = reasons()
    listed = [(release, name) for release, name in lines("classes.txt")]
    return [
        pytest.param(*case, id="-".join([case[1].rpartition("/")[2], case[0]]))
        for case in listed
        if case not in known
    ]


@contextlib.contextmanager
def cluster(path, brokers):
    """A name server and brokers in a thread; yields what tells the tests of them."""
    started, found = threading.Event(), {}

    async def serve():
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(PEM)
        tls = Tls(TlsMode.PERMISSIVE, context)
        async with contextlib.AsyncExitStack() as stack:
            name_server = NameServer("127.0.0.1", 0, tls=tls)
            await name_server.start()
            stack.push_async_callback(name_server.stop)
            address, ports = f"127.0.0.1:{name_server.port}", []
            for number in range(1, brokers + 1):
                name = f"TestBrokerName_{number}"
                own = {"brokerName": name, "namesrvAddr": address}
                broker = Broker(path / name, {**SETTINGS, **own}, tls=tls)
                await broker.start()
                stack.push_async_callback(broker.stop)
                ports.append(broker.address.rpartition(":")[2])
            remote = RemoteCluster(address)
            stack.push_async_callback(remote.stop)
            certificate = own_tls(path / "grpc", ("127.0.0.1",), wall_clock_ms())
            grpc = GrpcServer(Service(remote), "127.0.0.1", 0, tls=certificate)
            await grpc.start()
            stack.push_async_callback(grpc.stop)
            servers = {"namesrv": name_server.port, "brokers": ",".join(ports), "grpc": grpc.port}
            found["options"] = " ".join(f"-Dit.{name}={where}" for name, where in servers.items())
            found["stop"], found["loop"] = asyncio.Event(), asyncio.get_running_loop()
            started.set()
            await found["stop"].wait()

    def work():
        try:
            asyncio.run(serve())
        finally:
            started.set()

    thread = threading.Thread(target=work)
    thread.start()
    started.wait()
    try:
        yield found["options"]
    finally:
        found["loop"].call_soon_threadsafe(found["stop"].set)
        thread.join()


@pytest.fixture
def servers(release, tmp_path):
    """Where the servers of one class are: it may change their settings."""
    with cluster(tmp_path / "servers", BROKERS[release]) as options:
        yield options


def fetched(release):
    """See to it that the jars of a release are here, and compiled what stands in front of them."""
    environment = {**os.environ, "ROCKETMQ": release}
    subprocess.run([RUN, "-version"], env=environment, capture_output=True, check=True)


@pytest.mark.parametrize("release", BROKERS)
def test_every_class_is_listed(release):
    fetched(release)
    cache = Path(os.environ.get("CACHE", Path.home() / ".cache" / "rocketmq-peer"))
    jar = cache / f"it-{release}" / "lib" / f"rocketmq-test-{release}-tests.jar"
    with zipfile.ZipFile(jar) as archive:
        there = {
            name.removeprefix(PACKAGE.replace(".", "/") + "/").removesuffix(".class")
            for name in archive.namelist()
            if name.endswith(("IT.class", "Test.class"))
        }
    listed = {name for of, name, *_ in lines("classes.txt") if of == release}
    assert there == listed


def failures(release, name, servers, tmp_path):
    """Run a class; what failed of it that is not known to, and what was said."""
    fetched(release)
    output = tmp_path / "output.txt"
    options = f"{servers} -Duser.home={tmp_path} -Djava.io.tmpdir={tmp_path}"
    with output.open("wb") as said:
        subprocess.run(
            [RUN, f"{PACKAGE}.{STAND_INS.get(name, name).replace('/', '.')}"],
            env={**os.environ, "ROCKETMQ": release, "JAVA_OPTS": options},
            cwd=tmp_path,
            stdout=said,
            stderr=subprocess.STDOUT,
            timeout=CLASS_S,
            check=False,
        )
    text = output.read_text("utf-8", "replace")
    rows = [line.split("\t")[1:] for line in text.splitlines() if line.startswith("RESULT\t")]
    assert rows, text[-4000:]
    known = reasons()
    print(*("\t".join(row) for row in rows), sep="\n")
    return {
        test: why
        for what, test, why in rows
        if what == "FAILED" and (release, f"{name}#{test}") not in known
    }, text


@pytest.mark.parametrize(("release", "name"), cases())
def test_an_integration_test_passes_at_our_brokers(release, name, servers, tmp_path):
    failed, text = failures(release, name, servers, tmp_path)
    assert not failed, text[-8000:]


@pytest.mark.parametrize("release", ["5.5.0"])
def test_the_tests_of_grpc_pass_at_our_proxy(release, servers, tmp_path, monkeypatch):
    # their receives keep messages for 3 s, which they allow in a proxy's settings
    monkeypatch.setattr(receiving, "INVISIBLE_MS_MIN", 3)
    failed, text = failures(release, "grpc/v2/OwnProxyGrpcIT", servers, tmp_path)
    assert not failed, text[-8000:]
