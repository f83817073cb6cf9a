"""Apache RocketMQ's brokers and tools as processes, and our name server for them."""

import asyncio
import contextlib
import os
import shlex
import ssl
import subprocess
import threading
from functools import cache
from pathlib import Path

from patience import until

from interop.peer import RUN, free_port
from rmqcore.namesrv import NameServer, NamesrvConfig
from rmqcore.remoting import (
    ClientSettings,
    RemotingClient,
    RemotingCommand,
    RemotingError,
    RequestCode,
    ResponseCode,
    Tls,
    TlsMode,
)
from rmqcore.testing import RunningBroker

#: Java starts and works on what it was told, beside other work.
TIMEOUT_S = 240
CLUSTER = "DefaultCluster"
PEM = Path(__file__).parents[1] / "remoting" / "localhost.pem"
#: A broker of RocketMQ refuses what has waited for a moment, or when its disk has stopped for one.
_UNHURRIED = dict.fromkeys(
    (
        "waitTimeMillsInSendQueue",
        "waitTimeMillsInPullQueue",
        "waitTimeMillsInTransactionQueue",
        "waitTimeMillsInAckQueue",
        "waitTimeMillsInAdminBrokerQueue",
        "osPageCacheBusyTimeOutMills",
    ),
    60_000,
)
#: RocketMQ wants its log configuration in its home
_LOG_FILES = ("logback_broker.xml", "logback_namesrv.xml", "logback_tools.xml")


@contextlib.contextmanager
def name_server(tls=False, gate=None, **settings):
    """Our name server, in a thread; yields its address and a function that asks it.

    Args:
        tls: whether only clients with TLS are served.
        gate: asked before each request.
        settings: of NamesrvConfig.
    """
    started, stop, found = threading.Event(), [], {}

    async def serve():
        config = NamesrvConfig(**settings)
        served = None
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(PEM)
            served = Tls(TlsMode.ENFORCING, context)
        server = NameServer(port=0, config=config, tls=served, gate=gate)
        await server.start()
        stopping = asyncio.Event()
        stop.append(lambda: loop.call_soon_threadsafe(stopping.set))
        loop = asyncio.get_running_loop()
        found["address"] = f"127.0.0.1:{server.port}"
        started.set()
        await stopping.wait()
        await server.stop()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert started.wait(60)
    address = found["address"]

    try:
        yield address, asker(address, tls=tls)
    finally:
        stop[0]()
        thread.join(30)


def asker(address, tls=False):
    """A function (code, fields, body) that asks an address with our client."""

    def ask(code, fields=None, body=b""):
        async def once():
            context = ssl.create_default_context(cafile=PEM) if tls else None
            client = RemotingClient(settings=ClientSettings(tls=context))
            command = RemotingCommand(code, fields or {}, body)
            try:
                return await client.invoke(address, command)
            finally:
                await client.close()

        return asyncio.run(once())

    return ask


@cache
def made(release):
    """Fetch the jars of a release and compile what is new, so that nobody waits for that."""
    environment = {**os.environ, "ROCKETMQ": release, "HEAP": "64m"}
    subprocess.run([RUN, "-version"], env=environment, capture_output=True, check=True)


def java(release, home, *command, heap="256m", options=()):
    """The command and environment that run a class with a release's jars in a home of its own."""
    made(release)
    (home / "conf").mkdir(parents=True, exist_ok=True)
    for name in _LOG_FILES:
        (home / "conf" / name).write_text("<configuration/>", "utf-8")
    environment = {
        **os.environ,
        "ROCKETMQ": release,
        "ROCKETMQ_HOME": str(home),
        "HEAP": heap,
        "JAVA_OPTS": " ".join([f"-Duser.home={shlex.quote(str(home))}", *options]),
    }
    return [RUN, *command], environment


def mqadmin(release, home, address, *commands, options=()):
    """Run commands of a release's mqadmin; return what each has printed, by command."""
    home.mkdir(parents=True, exist_ok=True)
    script = home / "commands.txt"
    script.write_text("".join(f"{line} -n {address}\n" for line in commands), "utf-8")
    command, environment = java(release, home, "AdminScript", script, heap="128m", options=options)
    # some commands write files where they run
    done = subprocess.run(
        command,
        cwd=home,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    printed = {}
    for part in done.stdout.split("COMMAND ")[1:]:
        line, _, text = part.partition("\n")
        printed[line.removesuffix(f" -n {address}")] = text
    # what went wrong is told on the other stream, for all commands together
    return printed, done.stderr


def broker_ports():
    """A port whose neighbours are free, too: a broker also listens on two less and one more."""
    return free_port(beside=(-2, 1))


@contextlib.contextmanager
def java_broker(release, home, address, name, **settings):
    """A broker of a release that registers with a name server; yields its process and address."""
    home.mkdir(parents=True)
    port = broker_ports()
    properties = {
        "brokerName": name,
        "brokerClusterName": CLUSTER,
        "brokerIP1": "127.0.0.1",
        "brokerIP2": "127.0.0.1",
        "listenPort": port,
        "namesrvAddr": address,
        "storePathRootDir": home / "store",
        "storePathCommitLog": home / "store" / "commitlog",
        "mappedFileSizeCommitLog": 1024 * 1024,
        "mappedFileSizeConsumeQueue": 60_000,
        "maxIndexNum": 4000,
        "maxHashSlotNum": 1000,
        "mappedFileSizeTimerLog": 102_400,
        **_UNHURRIED,
        **settings,
    }
    conf = home / "broker.conf"
    conf.write_text("".join(f"{key}={value}\n" for key, value in properties.items()), "utf-8")
    main = "org.apache.rocketmq.broker.BrokerStartup"
    command, environment = java(release, home, main, "-c", conf)
    with running(command, environment, home) as process:
        yield process, f"127.0.0.1:{port}"


@contextlib.contextmanager
def java_name_server(release, home):
    """A name server of a release; yields its address."""
    home.mkdir(parents=True)
    port = free_port()
    conf = home / "namesrv.conf"
    conf.write_text(f"listenPort={port}\n", "utf-8")
    main = "org.apache.rocketmq.namesrv.NamesrvStartup"
    command, environment = java(release, home, main, "-c", conf)
    with running(command, environment, home):
        yield f"127.0.0.1:{port}"


@contextlib.contextmanager
def java_cluster(release, home):
    """A name server and a broker of a release, under the names of our fixture."""
    with (
        java_name_server(release, home / "namesrv") as namesrv,
        java_broker(release, home / "broker", namesrv, "broker-a") as (_, address),
    ):

        def answers(asked, code, fields):
            try:
                return asker(asked)(code, fields).code == ResponseCode.SUCCESS
            except RemotingError:
                return False

        def registered():
            return answers(namesrv, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": CLUSTER})

        def sampled():
            return answers(address, RequestCode.GET_BROKER_RUNTIME_INFO, {})

        until(registered, "the broker has registered")
        # it has no figures to tell in its first second, and fails
        until(sampled, "the broker tells its figures")
        yield RunningBroker(namesrv, address, home / "broker" / "store")


@contextlib.contextmanager
def running(command, environment, home):
    """A process whose output is kept in its home, killed at the end."""
    with (home / "output.txt").open("wb") as output:
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait(30)
