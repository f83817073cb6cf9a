"""The two sides as processes: started, told what to do, asked how much memory they hold."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

HERE = Path(__file__).parent
POM = HERE.parent.parent / "tests" / "interop" / "java" / "pom.xml"
RELEASE = "5.5.0"
CACHE = Path(os.environ.get("CACHE", Path.home() / ".cache" / "rocketmq-peer")) / RELEASE
#: the harness gives Java plenty, so that no round waits for its collector without need
JAVA_HEAP = "3g"
#: bytes of a body that only fills the first log file
WARM_UP_BODY = 4096
_FIRST_PUT = {"body": WARM_UP_BODY, "threads": 1, "queues": 1, "ready": 0}
_OPENED_PACKAGES = ("java.nio", "sun.nio.ch", "java.lang", "java.util")


class Refusal(Exception):
    """Why there is no result: something is missing, or a side did not do the work."""


def prepare_java() -> None:
    """Fetch the published jars, where the interop tests keep them too, and compile the harness.

    Raises:
        Refusal: a program is missing, or one of them failed.
    """
    missing = [name for name in ("java", "javac", "mvn") if shutil.which(name) is None]
    if missing:
        raise Refusal(f"Apache RocketMQ's store needs {', '.join(missing)}, which is not here")
    lib, classes = CACHE / "lib", CACHE / "bench-classes"
    lib.mkdir(parents=True, exist_ok=True)
    if not (CACHE / "ready").exists():
        version, target = f"-Drocketmq.version={RELEASE}", f"-DoutputDirectory={lib}"
        goal = "dependency:copy-dependencies"
        _run(["mvn", "-q", "-B", "-f", str(POM), version, goal, target], "fetching the jars")
        (CACHE / "ready").touch()
    sources = sorted(str(path) for path in (HERE / "rocketmq").glob("*.java"))
    command = ["javac", "-nowarn", "-encoding", "UTF-8", "-cp", f"{lib}/*", "-d", str(classes)]
    _run([*command, *sources], "compiling the Java side")


def _run(command: list[str], what: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Refusal(f"{what} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _java_command(heap: str, home: Path) -> list[str]:
    opened = [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in _OPENED_PACKAGES]
    return [
        "java",
        f"-Xms{heap}",
        f"-Xmx{heap}",
        "-XX:MaxDirectMemorySize=4g",
        "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
        "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
        *opened,
        f"-Duser.home={home}",
        f"-Dha.port={_free_port()}",
        "-Drocketmq.broker.diskSpaceWarningLevelRatio=0.99",
        "-Drocketmq.broker.diskSpaceCleanForciblyRatio=0.99",
        "-cp",
        f"{CACHE}/bench-classes:{CACHE}/lib/*",
        "PeerBench",
    ]


class Worker:
    """One side: a process that holds a store and answers one command at a time."""

    def __init__(self, side: str, directory: Path, *, heap: str = JAVA_HEAP) -> None:
        self.side = side
        self.directory = directory / side
        self.directory.mkdir(parents=True, exist_ok=True)
        self._log = (directory / f"{side}.log").open("ab")
        if side == "java":
            command = _java_command(heap, directory)
        else:
            command = [sys.executable, "-P", str(HERE / "engine.py")]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
        )

    def ask(self, command: str, **arguments: object) -> dict:
        """Give a command and wait for its answer.

        Raises:
            Refusal: the side could not do it, or died.
        """
        words = [command, *(f"{name}={value}" for name, value in arguments.items())]
        commands, answers = self._pipes()
        try:
            commands.write(" ".join(words) + "\n")
            commands.flush()
            line = answers.readline()
        except BrokenPipeError:
            line = ""
        word, _, rest = line.partition(" ")
        if word == "ANSWER":
            return json.loads(rest)
        ending = Path(self._log.name).read_text("utf-8", "replace")[-1500:]
        raise Refusal(f"{self.side} could not {' '.join(words)}: {rest.strip() or ending}")

    def _pipes(self) -> tuple[IO[str], IO[str]]:
        commands, answers = self._process.stdin, self._process.stdout
        if commands is None or answers is None:
            raise Refusal(f"{self.side} has no pipes")
        return commands, answers

    def anonymous_bytes(self) -> int:
        """Resident memory of the process that is no file's: heap, stacks, code the JIT made."""
        status = Path(f"/proc/{self._process.pid}/status").read_text("ascii")
        return int(status.partition("RssAnon:")[2].split()[0]) * 1024

    def kill(self) -> None:
        """End it at once, as kill -9 does."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._release()

    def end(self) -> None:
        """End it; a store that it holds should be closed by then."""
        if self._process.poll() is None:
            commands, _ = self._pipes()
            commands.close()
            try:
                self._process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._release()

    def _release(self) -> None:
        for pipe in (*self._pipes(), self._log):
            pipe.close()


class Pair:
    """Both sides side by side, each with a store of its own on the same disk."""

    sides = ("java", "rmqcore")

    def __init__(self, directory: Path, *, heap: str = JAVA_HEAP) -> None:
        self.directory = directory
        self.workers = {side: Worker(side, directory, heap=heap) for side in self.sides}

    def open(self, name: str, *, log: int, flush: str = "ASYNC") -> None:
        """Open an empty store on both sides, its log files in place and warm.

        More than a quarter of the first file is filled, because only then rmqcore makes the next
        one ready; Java does so at once. Both have done it before anything is timed.
        """
        count = log * 28 // 100 // WARM_UP_BODY
        for side, worker in self.workers.items():
            path = worker.directory / name
            ahead = {"allocate_ahead": 1} if side == "rmqcore" else {}
            worker.ask("open", dir=path, log=log, flush=flush, warm=1, **ahead)
            worker.ask("put", topic="First", start=count, count=1, **_FIRST_PUT)
            if side == "rmqcore":
                worker.ask("warm")
            put = {"topic": "First", "start": 0, "count": count // 64 * 64, "body": WARM_UP_BODY}
            worker.ask("batch", **put, encoded=1)
            wait_for_files(path / "commitlog", log, 2)
            worker.ask("settle")

    def close(self, name: str) -> None:
        """Close both stores and remove them."""
        for worker in self.workers.values():
            worker.ask("close")
            shutil.rmtree(worker.directory / name)

    def end(self) -> None:
        """End both processes."""
        for worker in self.workers.values():
            worker.end()


def wait_for_files(directory: Path, size: int, count: int, timeout_s: float = 60.0) -> None:
    """Wait until a store has made so many log files ahead; it need not make them all."""
    limit = time.monotonic() + timeout_s
    while time.monotonic() < limit:
        if sum(path.stat().st_size == size for path in directory.iterdir()) >= count:
            return
        time.sleep(0.05)
