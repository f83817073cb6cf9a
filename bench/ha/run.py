"""Measure replication: `make bench-ha`; `--quick` takes four minutes.

A master and its slave, ours or Apache RocketMQ's, under the Java client of bench/broker, in turns:
as SYNC_MASTER and, for what that adds, as ASYNC_MASTER. Then a late slave of ours catches up with
our master, beside a copy of the same bytes over a socket into a file. `--write` puts the table
into docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import mmap
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "bench")]

from broker.run import (  # noqa: E402
    DOCUMENT,
    RELEASE,
    SIDES,
    compile_load,
    machine,
    number,
    properties,
    run_load,
    until_answered,
    write_conf,
)

from interop.cluster import broker_ports, free_port, java, running  # noqa: E402
from rmqcore import open_store  # noqa: E402
from rmqcore.ha import HAClient, HAConfig  # noqa: E402
from rmqcore.ha.client import LogRange  # noqa: E402
from rmqcore.message import Message  # noqa: E402
from rmqcore.remoting import (  # noqa: E402
    RemotingClient,
    RemotingCommand,
    RemotingError,
    RequestCode,
)

BEGIN, END = "<!-- figures: written by make bench-ha -->", "<!-- end of replication's figures -->"
ROLES = ("SYNC_MASTER", "ASYNC_MASTER")
#: row: (unit, whether more is better)
ROWS = {
    "sync, 8 threads": ("messages/s", True),
    "async, 1024 outstanding": ("messages/s", True),
    "batches of 32": ("messages/s", True),
    "end to end, p50": ("µs", False),
    "end to end, p99": ("µs", False),
    "added to end to end, p50": ("µs", False),
}
WANTED, CATCH_UP_WANTED = 1.0, 0.5
BODY, BATCH = 256, 200
_COPY = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one turn of a smaller load")
    parser.add_argument("--turns", type=int, default=3, help="turns of each side")
    parser.add_argument("--mib", type=int, default=512, help="log that a late slave lacks")
    parser.add_argument("--only", choices=("load", "catch-up"), help="one half")
    parser.add_argument("--write", action="store_true", help="the table into docs/benchmarks.md")
    arguments = parser.parse_args()
    missing = [name for name in ("java", "javac", "mvn") if shutil.which(name) is None]
    if missing and arguments.only != "catch-up":
        sys.exit(f"not here: {', '.join(missing)}")
    scale, turns = (0.05, 1) if arguments.quick else (0.5, arguments.turns)
    parts = []
    with tempfile.TemporaryDirectory(prefix="bench-ha-") as folder:
        before = machine()
        if arguments.only != "catch-up":
            parts.append(load_table(measured(Path(folder), scale, turns)))
        if arguments.only != "load":
            parts.append(catch_up_table(Path(folder), arguments.mib << 20, max(9, turns)))
    told = before | {"turns of each side": str(turns), "size": f"{scale:g} of the full load"}
    told |= {"RocketMQ": f"{RELEASE}, heap of 1 GiB", "load after the run": _load()}
    text = "".join(f"- {name}: {value}\n" for name, value in told.items()) + "\n" + "\n".join(parts)
    print(text)
    if arguments.write:
        head, _, rest = DOCUMENT.read_text("utf-8").partition(BEGIN)
        DOCUMENT.write_text(f"{head}{BEGIN}\n\n{text}\n{END}{rest.partition(END)[2]}", "utf-8")


def _load() -> str:
    return f"{os.getloadavg()[0]:.2f}"


# ---- a master and its slave under load


def measured(folder: Path, scale: float, turns: int) -> dict[str, dict[str, float]]:
    """The rows of each side: medians of its turns."""
    classes = compile_load(folder)
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    for turn in range(turns):
        for role in ROLES:
            for side in SIDES:
                print(f"turn {turn + 1} of {turns}: {side}, {role}", file=sys.stderr, flush=True)
                home = folder / f"{side}-{role}-{turn}"
                home.mkdir()
                phases = one_turn(side, role, home, classes, scale)
                found.setdefault((side, role), []).append(phases)
                shutil.rmtree(home)
    middle = {
        key: {name: statistics.median(one[name] for one in each) for name in each[0]}
        for key, each in found.items()
    }
    return {side: rows(middle[side, ROLES[0]], middle[side, ROLES[1]]) for side in SIDES}


def rows(waiting: dict[str, float], alone: dict[str, float]) -> dict[str, float]:
    """The figures of a side by the names of `ROWS`: waiting for the slave, and what that adds."""
    return waiting | {
        "added to end to end, p50": waiting["end to end, p50"] - alone["end to end, p50"]
    }


def one_turn(side: str, role: str, home: Path, classes: Path, scale: float) -> dict[str, float]:
    """The load on one master with its slave: what it did, by row."""
    with contextlib.ExitStack() as stack:
        process, address = start_pair(stack, side, role, home)
        phases = run_load(side, address, process.pid, home, classes, scale, heap="512m")
    return phase_rows(phases)


def phase_rows(phases: dict[str, dict]) -> dict[str, float]:
    rate = {
        name: entry["messages"] / entry["seconds"]
        for name, entry in phases.items()
        if "seconds" in entry
    }
    return {
        "sync, 8 threads": rate["sync"],
        "async, 1024 outstanding": rate["async"],
        "batches of 32": rate["batch"],
        "end to end, p50": phases["end to end"]["p50_us"],
        "end to end, p99": phases["end to end"]["p99_us"],
    }


def start_pair(stack: contextlib.ExitStack, side: str, role: str, home: Path):
    """A name server, a master and its slave; returns the master's process, and the name server."""
    names = free_port()
    address = f"127.0.0.1:{names}"
    start(stack, side, home / "names", "namesrv", {"listenPort": names})
    until_answered(address)
    started = []
    for name, who, number_ in (("master", role, 0), ("slave", "SLAVE", 1)):
        port = broker_ports()
        values = properties(home / name, port, address, "ASYNC_FLUSH")
        values |= {"brokerRole": who, "brokerId": number_, "inSyncReplicas": 2}
        # a fault of the slave is no part of the figures: whoever is late makes the run fail
        values |= {"slaveTimeout": 10_000}
        started.append((start(stack, side, home / name, "broker", values), port))
    until_answered(address, routed=True)
    until_followed(f"127.0.0.1:{started[0][1]}")
    return started[0][0], address


def start(stack: contextlib.ExitStack, side: str, home: Path, what: str, values: dict):
    """One process of a side."""
    home.mkdir()
    conf = write_conf(home, values)
    if side == "java":
        main_class = "NamesrvStartup" if what == "namesrv" else "BrokerStartup"
        package = f"org.apache.rocketmq.{what}.{main_class}"
        command, environment = java(RELEASE, home, package, "-c", conf, heap="1g")
    else:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        more = ["--port", str(values["listenPort"])]
        if what == "broker":
            more = [str(home / "store"), "--config", str(conf)]
        command = [sys.executable, "-m", "rmqcore", what, *more]
    return stack.enter_context(running(command, environment, home))


def until_followed(address: str) -> None:
    """Wait until a master has a slave that is in step."""

    async def ask() -> None:
        client, deadline = RemotingClient(), time.monotonic() + 120
        try:
            while time.monotonic() < deadline:
                with contextlib.suppress(RemotingError, ValueError):
                    command = RemotingCommand(RequestCode.GET_BROKER_HA_STATUS)
                    told = json.loads((await client.invoke(address, command, 1000)).body)
                    if told.get("haConnectionInfo"):
                        return
                await asyncio.sleep(0.1)
        finally:
            await client.close()
        sys.exit(f"no slave has come to {address}")

    asyncio.run(ask())


def load_table(found: dict[str, dict[str, float]]) -> str:
    """The rows in Markdown; a ratio above 1 says that ours is better."""
    lines = [
        "| SYNC_MASTER with one slave | unit | RocketMQ | rmqcore | ours is better by | wanted | |",
        "|---|---|---:|---:|---:|---:|---|",
    ]
    for name, (unit, more) in ROWS.items():
        theirs, ours = found["java"][name], found["rmqcore"][name]
        if min(ours, theirs) > 0:
            ratio = ours / theirs if more else theirs / ours
            verdict = "reached" if ratio >= WANTED else "**below**"
            shown = f"{ratio:.2f}"
        else:
            # what waiting adds is less than what two runs differ by
            shown, verdict = "", "not measurable"
        texts = f"{number(theirs)} | {number(ours)} | {shown} | ≥ {WANTED:g} | {verdict}"
        lines.append(f"| {name} | {unit} | {texts} |")
    return "\n".join(lines) + "\n"


# ---- a late slave


MASTER = """
import asyncio, sys
from rmqcore import open_store
from rmqcore.ha import HAConfig, HAService

async def main():
    with open_store(sys.argv[1]) as store:
        service = HAService(store.followed_log, HAConfig(), "127.0.0.1", 0)
        await service.start()
        print(service.port, flush=True)
        await asyncio.to_thread(sys.stdin.read)
        await service.stop()

asyncio.run(main())
"""

SENDER = """
import socket, sys
left = int(sys.argv[3])
to = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
with to, open(sys.argv[2], "rb") as file:
    while left and (piece := file.read(min(left, 1 << 20))):
        to.sendall(piece)
        left -= len(piece)
"""


def catch_up_table(folder: Path, size: int, turns: int) -> str:
    """Catch-up and copy in turns, in Markdown."""
    store, end = folder / "catch-up", 0
    with open_store(store, broker_role="ASYNC_MASTER") as master:
        while master.max_phy_offset < size:
            master.put_messages([Message("T", os.urandom(BODY)) for _ in range(BATCH)])
        end = master.max_phy_offset
    copies, caught = [], []
    copied = folder / "copied"
    for turn in range(turns):
        touch_memory(3 * end)
        copies.append(end / copy(store, copied, end) / 1e6)
        touch_memory(3 * end)
        caught.append(end / catch_up(store, folder / f"late-{turn}", end) / 1e6)
        shutil.rmtree(folder / f"late-{turn}")
        copied.unlink()
    ratios = [one / other for one, other in zip(caught, copies, strict=True)]
    ratio = statistics.median(ratios)
    verdict = "reached" if ratio >= CATCH_UP_WANTED else "**below**"
    return (
        f"| a slave that lacks {end / 1e6:,.0f} MB | unit | copy | rmqcore | ratio | wanted | |\n"
        "|---|---|---:|---:|---:|---:|---|\n"
        f"| catch-up | MB/s | {number(statistics.median(copies))} | "
        f"{number(statistics.median(caught))} | {ratio:.2f} | ≥ {CATCH_UP_WANTED:g} | {verdict} |\n"
    )


def touch_memory(size: int) -> None:
    """Let the host give so much memory now: a virtual machine's costs most when first touched."""
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        for at in range(0, size, mmap.PAGESIZE):
            memory[at] = 1


def catch_up(master: Path, slave: Path, end: int) -> float:
    """Seconds until an empty slave has appended all of a master in another process."""
    with contextlib.ExitStack() as stack:
        command = [sys.executable, "-c", MASTER, str(master)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )
        stack.callback(process.wait)
        stack.callback(process.stdin.close)
        port = int(process.stdout.readline())
        store = stack.enter_context(open_store(slave, broker_role="SLAVE"))

        async def known() -> LogRange:
            return LogRange(0, end)

        async def follow() -> float:
            client = HAClient(store.followed_log, HAConfig(), lambda: f"127.0.0.1:{port}", known)
            began = time.perf_counter()
            task = asyncio.create_task(client.run())
            while store.followed_log.appended_offset < end:
                await asyncio.sleep(0.002)
            seconds = time.perf_counter() - began
            task.cancel()
            await asyncio.wait([task])
            return seconds

        return asyncio.run(follow())


def log_pieces(store: Path, end: int) -> Iterator[tuple[Path, int]]:
    """Every log file, and how many bytes of it are log."""
    for file in sorted((store / "commitlog").iterdir()):
        size = min(file.stat().st_size, end - int(file.name))
        if size > 0:
            yield file, size


def copy(store: Path, target: Path, end: int) -> float:
    """Seconds until another process's copy of the log, over a socket, is in a file."""
    seconds = 0.0
    buffer = memoryview(bytearray(_COPY))
    with socket.create_server(("127.0.0.1", 0)) as listening, target.open("wb", 0) as file:
        for path, size in log_pieces(store, end):
            port = str(listening.getsockname()[1])
            command = [sys.executable, "-c", SENDER, port, str(path), str(size)]
            with subprocess.Popen(command) as process:
                taken, _ = listening.accept()
                began, left = time.perf_counter(), size
                with taken:
                    while got := taken.recv_into(buffer):
                        file.write(buffer[:got])
                        left -= got
                seconds += time.perf_counter() - began
                if left or process.wait():
                    sys.exit(f"{path}: {left} bytes did not come")
    return seconds


if __name__ == "__main__":
    main()
