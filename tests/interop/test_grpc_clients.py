"""RocketMQ 5's own clients over gRPC, unchanged, at our broker: what each offers, once."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from broker.serving import serving
from patience import until

from interop.cluster import TIMEOUT_S
from interop.peer import free_port

pytestmark = pytest.mark.peers

HERE = Path(__file__).parent / "grpc"
PYTHON_CLIENT = "rocketmq-python-client==5.1.2"
KEYS = ("operator", "secret-0")
#: a broker asks again for what is not answered until the next round
SOON = ("-c", "transactionTimeOut=2000", "-c", "transactionCheckInterval=3000")


@pytest.fixture(scope="module")
def python_client(tmp_path_factory):
    """The interpreter of an environment that has the official client."""
    home = tmp_path_factory.mktemp("python-client")
    subprocess.run([sys.executable, "-m", "venv", home], check=True)
    install = [home / "bin" / "pip", "install", "-q", PYTHON_CLIENT]
    subprocess.run(install, check=True, timeout=TIMEOUT_S)
    return home / "bin" / "python"


def toured(command, **environment):
    """The lines of a tour, by what each is about."""
    done = subprocess.run(
        command,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=2 * TIMEOUT_S,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    return {line.pop("what"): line for line in lines}


def check_python(tour):
    assert tour["plain"] == {
        "same": True,
        "bodies": ["one", "two"],
        "tag": "tag",
        "keys": ["key"],
        "properties": {"name": "value"},
        "attempt": 1,
    }
    assert tour["ordered"] == {"bodies": list("012345")}
    assert tour["tagged"] == {"bodies": ["a", "c"]}
    assert tour["later"] == {"bodies": ["due", "last"], "early": False}
    assert tour["again"] == {"attempt": 2, "body": "body"}
    assert tour["transactions"]["asked"]
    assert sorted(tour["transactions"]["bodies"]) == ["asked for", "commit"]
    assert tour["pushed"] == {"seen": [["fails once", 1], ["fails once", 2], ["one", 1]]}


def test_the_python_client_over_plain_connections(python_client, tmp_path):
    options = ("--grpc-port", "0", "-c", "recallMessageEnable=true", *SOON)
    with serving(tmp_path / "store", *options) as (_, facts):
        command = [python_client, HERE / "tour.py", facts["grpc"], "A"]
        check_python(toured(command, HOME=str(tmp_path)))
        # the broker's own port takes it, too
        command = [python_client, HERE / "tour.py", facts["broker"], "B"]
        check_python(toured(command, HOME=str(tmp_path)))


def test_the_python_client_over_tls_with_an_account(python_client, tmp_path):
    auth = tmp_path / "accounts.json"
    account = {"accessKey": KEYS[0], "secretKey": KEYS[1], "admin": True}
    auth.write_text(json.dumps({"accounts": [account]}), "utf-8")
    options = ("--grpc-port", "0", "-c", "recallMessageEnable=true", *SOON)
    store = tmp_path / "store"
    with serving(store, *options, "--auth", str(auth)) as (_, facts):
        command = [python_client, HERE / "tour.py", facts["grpc"], "A", *KEYS]
        trusted = str(store / "config" / "grpc" / "certificate.pem")
        check_python(
            toured(
                command,
                HOME=str(tmp_path),
                TOUR_TLS="yes",
                GRPC_DEFAULT_SSL_ROOTS_FILE_PATH=trusted,
            )
        )


def test_the_python_clients_go_on_after_a_kill_and_lose_nothing(python_client, tmp_path, figure):
    options = ("--grpc-port", str(free_port()))
    told = {"sent": [], "received": [], "pushed": []}
    times = {what: [] for what in told}

    def have_more(than):
        return lambda: all(len(bodies) > than[what] + 20 for what, bodies in told.items())

    def counts():
        return {what: len(bodies) for what, bodies in told.items()}

    def listen(lines):
        for line in lines:
            if line.startswith("{"):
                one = json.loads(line)
                times[one["what"]].append(one["at"])
                told[one["what"]].append(one["body"])

    with serving(tmp_path / "store", *options) as (served, facts):
        going = subprocess.Popen(
            [python_client, HERE / "go_on.py", facts["grpc"]],
            env={**os.environ, "HOME": str(tmp_path)},
            stdout=subprocess.PIPE,
            text=True,
        )
        listening = threading.Thread(target=listen, args=(going.stdout,))
        listening.start()
        try:
            until(have_more(counts()), "all of them work")
            served.kill()
            served.wait(TIMEOUT_S)
            before = set(told["sent"])
            with serving(tmp_path / "store", *options):
                ready_s = time.time()
                until(have_more(counts()), "all of them go on")
                for what in ("received", "pushed"):
                    until(lambda what=what: before <= set(told[what]), f"all is {what}")
                for what, each in times.items():
                    gone_on = min(at for at in each if at >= ready_s) - ready_s
                    figure(f"{what} after the server is ready again", gone_on, "s")
        finally:
            going.kill()
            going.wait(TIMEOUT_S)
            listening.join(TIMEOUT_S)
            going.stdout.close()


@pytest.mark.skipif(shutil.which("mvn") is None, reason="not on this machine: mvn")
def test_the_java_client_over_its_own_tls(tmp_path):
    command = ["mvn", "-q", "-B", "-f", HERE / "pom.xml", "dependency:copy-dependencies"]
    subprocess.run([*command, f"-DoutputDirectory={tmp_path / 'lib'}"], check=True)
    compiled = ["javac", "-cp", f"{tmp_path / 'lib'}/*", "-d", tmp_path, HERE / "Tour.java"]
    subprocess.run(compiled, check=True)
    with serving(tmp_path / "store", "--grpc-port", "0", *SOON) as (_, facts):
        java = ["java", f"-Duser.home={tmp_path}", "-cp", f"{tmp_path}:{tmp_path / 'lib'}/*"]
        tour = toured([*java, "Tour", facts["grpc"]])
    assert tour["sent"]["count"] == 3
    assert sorted(tour["received"]["bodies"]) == ["0", "1", "2"]
    assert tour["pushed"] == {"body": "pushed", "tag": "tag", "property": "value"}
    assert tour["committed"] == {"body": "committed"}
