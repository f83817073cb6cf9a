"""Measure the broker beside Apache RocketMQ's: `make bench-broker`; `--quick` takes two minutes.

One side after the other, in turns: a name server and a broker of its own on an empty store, then
the same Java client with the same load, then a native one (load.c) that leaves the machine to the
broker. Figures of a side are the median of its turns, a ratio is that of the medians. `--write`
puts the table into docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from interop.cluster import broker_ports, free_port, java, running  # noqa: E402
from rmqcore.remoting import (  # noqa: E402
    RemotingClient,
    RemotingCommand,
    RemotingError,
    RequestCode,
)
from rmqcore.scan.cluster import Access, Cluster, read_range  # noqa: E402

RELEASE = "5.5.0"
DOCUMENT = ROOT / "docs" / "benchmarks.md"
BEGIN, END = (
    "<!-- figures: written by make bench-broker -->",
    "<!-- end of the broker's figures -->",
)
SIDES = ("java", "rmqcore")
LOADS = ("java", "native")
LOAD_TIMEOUT_S = 600
MILLION = 1_000_000
COLUMNS = "columns: pull, 4 queues"
#: row: (unit, whether more is better, the least ratio of ours to Java's)
ROWS: dict[str, tuple[str, bool, float | None]] = {
    "sync, 8 threads": ("messages/s", True, 1.0),
    "async, 1024 outstanding": ("messages/s", True, 1.0),
    "batches of 32": ("messages/s", True, 1.0),
    "consumer": ("messages/s", True, 1.0),
    "end to end, p50": ("µs", False, 1.0),
    "end to end, p99": ("µs", False, 1.0),
    "end to end, p99.9": ("µs", False, 1.0),
    "processor, million sync + consumed": ("s", False, 0.5),
    "processor, million async + consumed": ("s", False, 0.5),
    "processor, million batched + consumed": ("s", False, 0.5),
    "memory of its own": ("MiB", False, 0.125),
    "start": ("ms", False, 0.1),
    "native load: sync, 8 connections": ("messages/s", True, 2.0),
    "native load: async, 1024 outstanding": ("messages/s", True, 2.0),
    "native load: batches of 32, 8 connections": ("messages/s", True, 2.0),
    "native load: pull, 4 queues": ("messages/s", True, 2.0),
    COLUMNS: ("messages/s", True, None),
    "native load: processor, million sync + pulled": ("s", False, 0.5),
    "native load: processor, million async + pulled": ("s", False, 0.5),
    "native load: processor, million batched + pulled": ("s", False, 0.5),
    "native load: its own processor, million async + pulled": ("s", False, None),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one turn of a smaller load")
    parser.add_argument("--turns", type=int, default=3, help="turns of each side")
    parser.add_argument("--side", choices=SIDES, help="one side only")
    parser.add_argument("--load", choices=LOADS, help="one load only")
    parser.add_argument("--json", action="store_true", help="everything measured, as JSON")
    parser.add_argument("--write", action="store_true", help="the table into docs/benchmarks.md")
    parser.add_argument("--flush", default="ASYNC_FLUSH", choices=("ASYNC_FLUSH", "SYNC_FLUSH"))
    arguments = parser.parse_args()
    missing = [name for name in ("java", "javac", "mvn", "cc") if shutil.which(name) is None]
    if missing:
        sys.exit(f"not here: {', '.join(missing)}")
    sides = (arguments.side,) if arguments.side else SIDES
    scale, turns = (0.25, 1) if arguments.quick else (1.0, arguments.turns)
    found: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    on = machine()
    with tempfile.TemporaryDirectory(prefix="bench-broker-") as folder:
        loads = {
            name: COMPILERS[name](Path(folder))
            for name in ((arguments.load,) if arguments.load else LOADS)
        }
        for turn in range(turns):
            for side in sides:
                home = Path(folder) / f"{side}-{turn}"
                print(f"turn {turn + 1} of {turns}: {side}", file=sys.stderr, flush=True)
                found[side].append(measure(side, home, loads, scale, arguments.flush))
                shutil.rmtree(home)
    if arguments.json:
        print(json.dumps({"machine": on, "flush": arguments.flush, "turns": found}))
        return
    text = facts(on, scale, turns, arguments.flush) + table(found)
    print(text)
    if arguments.write:
        before, _, rest = DOCUMENT.read_text("utf-8").partition(BEGIN)
        after = rest.partition(END)[2]
        DOCUMENT.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}", "utf-8")


# ---- one turn


def library() -> Path:
    """The folder of the published jars; `tests/interop/java/run` fetches them."""
    cache = Path(os.environ.get("CACHE", Path.home() / ".cache" / "rocketmq-peer"))
    return cache / RELEASE / "lib"


def compile_load(folder: Path) -> Path:
    """Compile the load client; returns the folder of its classes."""
    if not (library().parent / "ready").exists():
        command, environment = java(RELEASE, folder / "fetch", "-version")
        subprocess.run(command, env=environment, check=True, capture_output=True)
    classes = folder / "classes"
    source = Path(__file__).parent / "BrokerLoad.java"
    command = ["javac", "-nowarn", "-cp", f"{library()}/*", "-d", classes, source]
    subprocess.run(command, check=True)
    return classes


def compile_native_load(folder: Path) -> Path:
    """Compile the native load; returns the program."""
    program = folder / "load"
    source = Path(__file__).parent / "load.c"
    subprocess.run(["cc", "-O2", "-o", program, source], check=True)
    return program


#: what makes each load ready in a folder
COMPILERS = {"java": compile_load, "native": compile_native_load}


def measure(
    side: str, home: Path, loads: dict[str, Path], scale: float, flush: str
) -> dict[str, float]:
    """One turn of one side: what it did, by row."""
    home.mkdir()
    start = start_java if side == "java" else start_ours
    with contextlib.ExitStack() as stack:
        process, names, address, ready_s = start(stack, home, flush)
        found = {"start": ready_s * 1000}
        if "java" in loads:
            phases = run_load(side, names, process.pid, home, loads["java"], scale)
            found |= rows(phases, own_memory(process.pid))
        if "native" in loads:
            found |= native_rows(
                run_native_load(side, address, process.pid, loads["native"], scale)
            )
            found[COLUMNS] = column_rate(names)
    return found


def run_load(
    side: str, address: str, pid: int, home: Path, classes: Path, scale: float, heap: str = "1g"
) -> dict[str, dict]:
    """Put the Java client's load on a broker; what it measured, by phase."""
    command = [
        *("java", f"-Xms{heap}", f"-Xmx{heap}", f"-Duser.home={home}"),
        *("-Drocketmq.client.logUseSlf4j=true", "-cp", f"{classes}:{library()}/*"),
        *("BrokerLoad", address, str(pid), str(scale)),
    ]
    return phases_of(side, command, "end to end")


def run_native_load(side: str, address: str, pid: int, load: Path, scale: float) -> dict[str, dict]:
    """Put the native load on a broker; what it measured, by phase."""
    return phases_of(side, [str(load), address, str(pid), str(scale)], "pull")


def phases_of(side: str, command: list[str], last: str) -> dict[str, dict]:
    """Run a load to its end; what it measured, by phase."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=LOAD_TIMEOUT_S, check=False
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    phases = {entry["phase"]: entry for entry in map(json.loads, lines)}
    if done.returncode or last not in phases:
        sys.exit(f"{side}: the load did not end well\n{done.stdout}{done.stderr[-3000:]}")
    return phases


def rows(phases: dict[str, dict], memory: float) -> dict[str, float]:
    """The Java load's figures of a turn by the names of `ROWS`."""
    rate = {
        name: phases[name]["messages"] / phases[name]["seconds"]
        for name in phases
        if name != "end to end"
    }
    each = {name: phases[name]["cpu_seconds"] / phases[name]["messages"] for name in phases}
    paced = phases["end to end"]
    return {
        "sync, 8 threads": rate["sync"],
        "async, 1024 outstanding": rate["async"],
        "batches of 32": rate["batch"],
        "consumer": rate["consume"],
        "end to end, p50": paced["p50_us"],
        "end to end, p99": paced["p99_us"],
        "end to end, p99.9": paced["p999_us"],
        "processor, million sync + consumed": (each["sync"] + each["consume"]) * MILLION,
        "processor, million async + consumed": (each["async"] + each["consume"]) * MILLION,
        "processor, million batched + consumed": (each["batch"] + each["consume"]) * MILLION,
        "memory of its own": memory,
    }


def native_rows(phases: dict[str, dict]) -> dict[str, float]:
    """The native load's figures of a turn by the names of `ROWS`."""
    rate = {name: phases[name]["messages"] / phases[name]["seconds"] for name in phases}
    each = {name: phases[name]["cpu_seconds"] / phases[name]["messages"] for name in phases}
    own = {name: phases[name]["own_cpu_seconds"] / phases[name]["messages"] for name in phases}
    found = {
        "sync, 8 connections": rate["sync"],
        "async, 1024 outstanding": rate["async"],
        "batches of 32, 8 connections": rate["batch"],
        "pull, 4 queues": rate["pull"],
        "processor, million sync + pulled": (each["sync"] + each["pull"]) * MILLION,
        "processor, million async + pulled": (each["async"] + each["pull"]) * MILLION,
        "processor, million batched + pulled": (each["batch"] + each["pull"]) * MILLION,
        "its own processor, million async + pulled": (own["async"] + own["pull"]) * MILLION,
    }
    return {f"native load: {name}": value for name, value in found.items()}


def column_rate(names: str) -> float:
    """Messages a second of what the native load has sent, as record batches in this process."""
    access = Access(namesrv_addr=names)
    with Cluster(access) as cluster:
        ranges = cluster.ranges(["NativeLoad"])
    began, count = time.monotonic(), 0
    for one in ranges:
        count += sum(batch.num_rows for batch in read_range(access, one))
    return count / (time.monotonic() - began)


def own_memory(pid: int) -> float:
    """MiB that are a process's own: without the pages of files, which both sides map."""
    status = Path(f"/proc/{pid}/status").read_text("utf-8")
    kib = next(line.split()[1] for line in status.splitlines() if line.startswith("RssAnon:"))
    return int(kib) / 1024


# ---- the two sides; each store has RocketMQ's own file sizes


def properties(home: Path, port: int, address: str, flush: str) -> dict[str, object]:
    """The settings of both brokers."""
    return {
        "brokerName": "bench",
        "brokerClusterName": "DefaultCluster",
        "brokerIP1": "127.0.0.1",
        "brokerIP2": "127.0.0.1",
        "listenPort": port,
        "namesrvAddr": address,
        "storePathRootDir": home / "store",
        "storePathCommitLog": home / "store" / "commitlog",
        "flushDiskType": flush,
        # what waits on a busy machine: RocketMQ would refuse it after 200 ms, and end the run
        "waitTimeMillsInSendQueue": 10_000,
        "osPageCacheBusyTimeOutMills": 10_000,
    }


def write_conf(home: Path, values: dict[str, object]) -> Path:
    conf = home / "broker.conf"
    conf.write_text("".join(f"{name}={value}\n" for name, value in values.items()), "utf-8")
    return conf


def start_java(stack: contextlib.ExitStack, home: Path, flush: str):
    """Apache RocketMQ's name server and broker."""
    names, port = free_port(), broker_ports()
    address = f"127.0.0.1:{names}"
    (home / "names").mkdir()
    conf = home / "names" / "namesrv.conf"
    conf.write_text(f"listenPort={names}\n", "utf-8")
    main = "org.apache.rocketmq.namesrv.NamesrvStartup"
    command, environment = java(RELEASE, home / "names", main, "-c", conf)
    stack.enter_context(running(command, environment, home / "names"))
    until_answered(address)
    conf = write_conf(home, properties(home, port, address, flush))
    main = "org.apache.rocketmq.broker.BrokerStartup"
    command, environment = java(RELEASE, home, main, "-c", conf, heap="1g")
    began = time.monotonic()
    process = stack.enter_context(running(command, environment, home))
    ready_s = until_answered(address, routed=True) - began
    return process, address, f"127.0.0.1:{port}", ready_s


def start_ours(stack: contextlib.ExitStack, home: Path, flush: str):
    """Our name server and broker, a process each."""
    names, port = free_port(), broker_ports()
    address = f"127.0.0.1:{names}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    (home / "names").mkdir()
    command = [sys.executable, "-m", "rmqcore", "namesrv", "--port", str(names)]
    stack.enter_context(running(command, environment, home / "names"))
    until_answered(address)
    conf = write_conf(home, properties(home, port, address, flush))
    command = [sys.executable, "-m", "rmqcore", "broker", home / "store", "--config", conf]
    began = time.monotonic()
    process = stack.enter_context(running(command, environment, home))
    ready_s = until_answered(address, routed=True) - began
    return process, address, f"127.0.0.1:{port}", ready_s


def until_answered(address: str, *, routed: bool = False) -> float:
    """Wait for a name server, or for a broker that it knows; returns the time by then."""

    async def ask() -> float:
        client, deadline = RemotingClient(), time.monotonic() + 120
        try:
            while time.monotonic() < deadline:
                with contextlib.suppress(RemotingError):
                    command = RemotingCommand(
                        RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "TBW102"}
                    )
                    answer = await client.invoke(address, command, 1000)
                    if answer.code == 0 or not routed:
                        return time.monotonic()
                await asyncio.sleep(0.002)
        finally:
            await client.close()
        sys.exit(f"nothing answers at {address}")

    return asyncio.run(ask())


# ---- telling


def machine() -> dict[str, str]:
    lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if "model name" in line), "")
    return {
        "processor": f"{model}, {os.cpu_count()} cores",
        "system": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        "load before the run": f"{os.getloadavg()[0]:.2f}",
    }


def facts(on: dict[str, str], scale: float, turns: int, flush: str) -> str:
    told = on | {
        "turns of each side": str(turns),
        "size": f"{scale:g} of the full load",
        "flush": flush,
        "RocketMQ": f"{RELEASE}, heap of 1 GiB",
    }
    return "".join(f"- {name}: {value}\n" for name, value in told.items()) + "\n"


def table(found: dict[str, list[dict[str, float]]]) -> str:
    """The rows in Markdown, with ratios where both sides ran."""
    lines = [
        "| | unit | RocketMQ | rmqcore | ratio | wanted | |",
        "|---|---|---:|---:|---:|---:|---|",
    ]
    measured = next(iter(found.values()))[0]
    for name, (unit, more, wanted) in ROWS.items():
        if name not in measured:
            continue
        middle = {
            side: statistics.median(turn[name] for turn in each) for side, each in found.items()
        }
        ratio = middle["rmqcore"] / middle["java"] if len(middle) == len(SIDES) else None
        verdict = bound = ""
        if wanted is not None:
            bound = f"{'≥' if more else '≤'} {wanted:g}"
        if ratio is not None and wanted is not None:
            verdict = "reached" if (ratio >= wanted if more else ratio <= wanted) else "**below**"
        texts = [number(middle.get(side)) for side in SIDES]
        shown = "" if ratio is None else f"{ratio:.2f}"
        lines.append(f"| {name} | {unit} | {' | '.join(texts)} | {shown} | {bound} | {verdict} |")
    return "\n".join(lines) + "\n"


def number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


if __name__ == "__main__":
    main()
