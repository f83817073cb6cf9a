"""Apache RocketMQ's own store classes, asked what they read from a directory."""

import contextlib
import fcntl
import functools
import json
import os
import random
import shutil
import socket
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

RUN = Path(__file__).parent / "java" / "run"
#: One run opens and reads a store of a few hundred kilobytes; the first one also fetches the jars.
TIMEOUT_S = 180
#: first and last port of outgoing connections
PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
#: behind those that brokers, name servers and proxies have when nobody gives them others
FIRST_PORT = 11_000
#: ports that this process was given
_taken: set[int] = set()
GO_CLIENT = "github.com/apache/rocketmq-client-go/v2@v2.1.2"


def missing() -> list[str]:
    """Return the programs that are needed and not here."""
    return [program for program in ("java", "javac", "mvn") if shutil.which(program) is None]


def free_port(beside: Sequence[int] = ()) -> int:
    """Return a TCP port that nobody listens on, and nobody takes as long as this process lives.

    The system gives none of these to an outgoing connection, or to who asks for any port, and no
    test process one that another has: what listens there may stop and start again.

    Args:
        beside: how far off ports are that have to be free, too.
    """
    first_outgoing = int(PORT_RANGE.read_text("ascii").split()[0])
    for _ in range(100):
        port = random.SystemRandom().randrange(FIRST_PORT, first_outgoing - 10)
        wanted = {port, *(port + distance for distance in beside)}
        if not wanted.isdisjoint(_taken):
            continue
        with contextlib.suppress(OSError), contextlib.ExitStack() as probes:
            for one in wanted:
                take_port(one)
                probe = probes.enter_context(socket.socket())
                probe.bind(("127.0.0.1", one))
            return port
    raise AssertionError("no free port")


def take_port(port: int) -> None:
    """Let no other test process of this user have a port, nor this one again.

    Raises:
        OSError: another one has it.
    """
    lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, port, 1, 0)
    fcntl.fcntl(_ports(), fcntl.F_OFD_SETLK, lock)
    _taken.add(port)


@functools.cache
def _ports() -> int:
    """The file in which each port is a byte that a process may lock; forked ones have it, too."""
    path = Path(tempfile.gettempdir()) / f"rmqcore-ports-{os.getuid()}"
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def go_program(source: str, home: Path) -> Path:
    """Build a program that uses RocketMQ's Go client, which Go fetches; return where it lies."""
    (home / "main.go").write_text(source, "utf-8")
    for words in (
        ["mod", "init", "program"],
        ["get", GO_CLIENT],
        ["mod", "tidy"],
        ["build", "-o", "program", "."],
    ):
        subprocess.run(["go", *words], cwd=home, check=True, capture_output=True, timeout=TIMEOUT_S)
    return home / "program"


def dump(release: str, store: Path, conf: Path, keys: list[tuple[str, str]]) -> dict:
    """Open a store with one release's classes, which recover it, and return the manifest.

    Args:
        release: version of Apache RocketMQ.
        store: the directory; Java writes to it.
        conf: lines of a `broker.conf` with the file sizes.
        keys: pairs (topic, key) to query.
    """
    home = store.parent / f"{store.name}.home"
    home.mkdir()
    key_file, out = home / "keys.tsv", home / "manifest.json"
    key_file.write_text("".join(f"{topic}\t{key}\n" for topic, key in keys), "utf-8")
    environment = {
        **os.environ,
        "ROCKETMQ": release,
        "HA_PORT": str(free_port()),
        "HEAP": "256m",
        "JAVA_OPTS": f"-Duser.home={home}",
    }
    command = [RUN, "StoreDump", store, conf, out, key_file]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    if done.returncode or not out.exists():
        raise AssertionError(
            f"StoreDump {release} failed:\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
        )
    return json.loads(out.read_text("utf-8"))
