"""RocketMQ 5's Go client at our broker: its own examples, only their constants changed."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import threading
import time
from pathlib import Path

import pytest
from broker.serving import serving
from patience import until

from interop.cluster import TIMEOUT_S

pytestmark = [
    pytest.mark.peers,
    pytest.mark.skipif(shutil.which("go") is None, reason="not on this machine: go"),
]
MODULE, VERSION = "github.com/apache/rocketmq-clients/golang/v5", "v5.1.3"
PRODUCERS = ("normal", "async", "fifo", "delay", "transaction")
EXAMPLES = (*(f"producer/{name}" for name in PRODUCERS), "consumer/simple_consumer")
EXAMPLES += ("consumer/push_consumer",)
CONSTANT = re.compile(
    r'^(\s*)(Topic|Endpoint|ConsumerGroup|AccessKey|SecretKey|NameSpace)(\s*)= "[^"]*"',
    re.MULTILINE,
)
KEYS = {"AccessKey": "operator", "SecretKey": "secret-0"}
#: as many as each producer sends
COUNT = 10
#: a delayed message is due so long after its sending, less what passes until that is told
DELAY_S = 9


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """Where the examples are, built."""
    home = tmp_path_factory.mktemp("go-grpc")

    def go(*words):
        done = subprocess.run(
            ["go", *words], cwd=home, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    go("mod", "init", "program")
    go("get", f"{MODULE}@{VERSION}")
    source = Path(go("list", "-m", "-f", "{{.Dir}}", MODULE)) / "example"
    for name in EXAMPLES:
        text = (source / name / "main.go").read_text("utf-8")
        assert len(CONSTANT.findall(text)) >= 4
        text = CONSTANT.sub(r'\1\2\3= os.Getenv("\2")', text.replace("const (", "var (", 1))
        folder = home / Path(name).name
        folder.mkdir()
        (folder / "main.go").write_text(text, "utf-8")
    go("build", "-mod=mod", "-o", "bin/", "./...")
    return home / "bin"


class Program:
    """One of the examples while it runs.

    Attributes:
        lines: what it has printed, each with when that was.
    """

    def __init__(self, command, environment):
        self.lines = []
        self._command, self._environment = command, environment
        self._begin()

    def _begin(self):
        self.process = subprocess.Popen(
            [self._command],
            env={**os.environ, **self._environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._reading = threading.Thread(target=self._read, args=(self.process.stdout,))
        self._reading.start()

    def _read(self, output):
        for line in output:
            self.lines.append((time.monotonic(), line))

    def go_on(self):
        """Begin again where it has ended: the simple consumer works for a minute."""
        if self.process.poll() is not None:
            self._reading.join(TIMEOUT_S)
            self._begin()

    def end(self):
        """Wait for its end."""
        assert self.process.wait(TIMEOUT_S) == 0, self.lines[-20:]
        self._reading.join(TIMEOUT_S)

    def kill(self):
        self.process.kill()
        self.process.wait(TIMEOUT_S)
        self._reading.join(TIMEOUT_S)
        self.process.stdout.close()

    def has_said(self, word):
        return any(word in line for _, line in self.lines)

    def received(self):
        """The numbers of the messages that came, each with when it came first, in that order."""
        found = {}
        for at, line in list(self.lines):
            view = re.match(r"&\{\S+ \S+ \[([0-9 ]+)\]", line)
            if view:
                body = bytes(map(int, view[1].split())).decode()
                found.setdefault(int(body.removeprefix("this is a message : ")), at)
        return found


@pytest.mark.parametrize("how", ["plain", "tls-with-an-account"])
def test_the_examples_of_the_go_client(programs, tmp_path, how):
    options, environment = [], {"rocketmq.client.enableSsl": "false", "HOME": str(tmp_path)}
    if how != "plain":
        auth = tmp_path / "accounts.json"
        account = {"accessKey": KEYS["AccessKey"], "secretKey": KEYS["SecretKey"], "admin": True}
        auth.write_text(json.dumps({"accounts": [account]}), "utf-8")
        options = ["--auth", str(auth)]
        environment |= {"rocketmq.client.enableSsl": "true", **KEYS}
    with (
        serving(tmp_path / "store", "--grpc-port", "0", *options) as (_, facts),
        contextlib.ExitStack() as stack,
    ):

        def run(name, topic, group=""):
            own = {"Endpoint": facts["grpc"], "Topic": topic, "ConsumerGroup": group}
            program = Program(programs / name, environment | own)
            stack.callback(program.kill)
            return program

        consumers = {name: run("simple_consumer", f"Go-{name}", f"go-{name}") for name in PRODUCERS}
        pushing = run("push_consumer", "Go-normal", "go-push")
        # groups are there before their messages are
        for name, consumer in consumers.items():
            until(lambda it=consumer: it.has_said("wait a moment"), f"{name} was received from")
        until(lambda: pushing.has_said("sync settings finished"), "the push consumer works")
        producers = {name: run(name, f"Go-{name}") for name in PRODUCERS}
        for producer in producers.values():
            producer.end()
            assert sum("SendReceipt{" in line for _, line in producer.lines) == COUNT

        def all_came():
            for consumer in consumers.values():
                consumer.go_on()
            return all(len(each.received()) == COUNT for each in (*consumers.values(), pushing))

        until(all_came, "everything is received")
        assert list(consumers["fifo"].received()) == list(range(COUNT))
        sent = next(at for at, line in producers["delay"].lines if "SendReceipt{" in line)
        assert consumers["delay"].received()[0] - sent >= DELAY_S
