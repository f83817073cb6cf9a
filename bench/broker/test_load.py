"""The native load: its answers are looked at, and a wrong one ends it."""

import json
import os
import re
import socket
import subprocess
import threading

import pytest
from broker.run import compile_native_load

from rmqcore.testing import running_broker

pytestmark = pytest.mark.process

MESSAGES = 4 * 20 + 6 * 8 + 30 + 32 * 16


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    return compile_native_load(tmp_path_factory.mktemp("load"))


def run(load, address):
    command = [load, address, str(os.getpid()), "0.002"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_every_message_is_sent_and_pulled(load, tmp_path):
    with running_broker(tmp_path) as broker:
        done = run(load, broker.broker_addr)
    assert done.returncode == 0, done.stderr
    phases = {entry["phase"]: entry for entry in map(json.loads, done.stdout.splitlines())}
    assert list(phases) == ["sync", "async", "batch", "pull"]
    sent = sum(phases[name]["messages"] for name in ("sync", "async", "batch"))
    # the pull brings what was sent while it was warm, too
    assert phases["batch"]["messages"] == 32 * 32
    assert phases["pull"]["messages"] > sent > 0
    assert all(entry["own_cpu_seconds"] > 0 for entry in phases.values())


def frame(header, body=b""):
    text = json.dumps(header, separators=(",", ":")).encode()
    size = len(text).to_bytes(4, "big")
    return (4 + len(text) + len(body)).to_bytes(4, "big") + size + text + body


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"code": 2, "extFields": {"queueOffset": "0"}}, "refused"),
        ({"code": 0, "extFields": {}}, 'no "queueOffset'),
        ({"code": 0, "extFields": {"queueOffset": "0"}, "opaque": 7}, "nobody waits"),
        ({"code": 0, "extFields": {"queueOffset": "5"}}, "do not go on"),
    ],
)
def test_a_wrong_answer_ends_it(load, answer, reason):
    """Against a broker that answers every send with the same."""

    def serve():
        accepted, _ = listening.accept()
        with accepted:
            while request := accepted.recv(65536):
                for opaque in re.findall(rb'"opaque":(\d+)', request):
                    header = {"flag": 1, "opaque": int(opaque), **answer}
                    accepted.sendall(frame(dict(sorted(header.items()))))

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        done = run(load, f"127.0.0.1:{listening.getsockname()[1]}")
        thread.join(10)
    assert done.returncode == 1
    assert reason in done.stderr
    assert done.stdout == ""
