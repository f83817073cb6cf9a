"""Measure the broker beside Apache RocketMQ's: `make bench-broker`; `--quick` takes two minutes.

One side after the other, in turns: a name server and a broker of its own on an empty store, then
the same Java client with the same load. Figures of a side are the median of its turns, a ratio is
that of the medians. `--write` puts the table into docs/benchmarks.md.
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

RELEASE = "5.5.0"
DOCUMENT = ROOT / "docs" / "benchmarks.md"
BEGIN, END = (
    "<!-- figures: written by make bench-broker -->",
    "<!-- end of the broker's figures -->",
)
SIDES = ("java", "rmqcore")
LOAD_TIMEOUT_S = 600
MILLION = 1_000_000
#: row: (unit, whether more is better, the least ratio of ours to Java's)
ROWS = {
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
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one turn of a smaller load")
    parser.add_argument("--turns", type=int, default=3, help="turns of each side")
    parser.add_argument("--side", choices=SIDES, help="one side only")
    parser.add_argument("--json", action="store_true", help="everything measured, as JSON")
    parser.add_argument("--write", action="store_true", help="the table into docs/benchmarks.md")
    parser.add_argument("--flush", default="ASYNC_FLUSH", choices=("ASYNC_FLUSH", "SYNC_FLUSH"))
    arguments = parser.parse_args()
    missing = [name for name in ("java", "javac", "mvn") if shutil.which(name) is None]
    if missing:
        sys.exit(f"not here: {', '.join(missing)}")
    sides = (arguments.side,) if arguments.side else SIDES
    scale, turns = (0.25, 1) if arguments.quick else (1.0, arguments.turns)
    found: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    with tempfile.TemporaryDirectory(prefix="bench-broker-") as folder:
        classes = compile_load(Path(folder))
        for turn in range(turns):
            for side in sides:
                home = Path(folder) / f"{side}-{turn}"
                print(f"turn {turn + 1} of {turns}: {side}", file=sys.stderr, flush=True)
                found[side].append(measure(side, home, classes, scale, arguments.flush))
                shutil.rmtree(home)
    if arguments.json:
        print(json.dumps({"machine": machine(), "flush": arguments.flush, "turns": found}))
        return
    text = facts(scale, turns, arguments.flush) + table(found)
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


def measure(side: str, home: Path, classes: Path, scale: float, flush: str) -> dict[str, float]:
    """One turn of one side: what it did, by row."""
    home.mkdir()
    start = start_java if side == "java" else start_ours
    with contextlib.ExitStack() as stack:
        process, address, ready_s = start(stack, home, flush)
        command = [
            *("java", "-Xms1g", "-Xmx1g", f"-Duser.home={home}"),
            *("-Drocketmq.client.logUseSlf4j=true", "-cp", f"{classes}:{library()}/*"),
            *("BrokerLoad", address, str(process.pid), str(scale)),
        ]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LOAD_TIMEOUT_S, check=False
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        phases = {entry["phase"]: entry for entry in map(json.loads, lines)}
        if done.returncode or "end to end" not in phases:
            sys.exit(f"{side}: the load did not end well\n{done.stdout}{done.stderr[-3000:]}")
        memory = own_memory(process.pid)
    return rows(phases, memory, ready_s)


def rows(phases: dict[str, dict], memory: float, ready_s: float) -> dict[str, float]:
    """The figures of a turn by the names of `ROWS`."""
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
        "start": ready_s * 1000,
    }


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
    return process, address, until_answered(address, routed=True) - began


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
    return process, address, until_answered(address, routed=True) - began


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


def facts(scale: float, turns: int, flush: str) -> str:
    told = machine() | {
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
    for name, (unit, more, wanted) in ROWS.items():
        middle = {
            side: statistics.median(turn[name] for turn in each) for side, each in found.items()
        }
        ratio = middle["rmqcore"] / middle["java"] if len(middle) == len(SIDES) else None
        verdict = ""
        if ratio is not None:
            verdict = "reached" if (ratio >= wanted if more else ratio <= wanted) else "**below**"
        texts = [number(middle.get(side)) for side in SIDES]
        shown = "" if ratio is None else f"{ratio:.2f}"
        bound = f"{'≥' if more else '≤'} {wanted:g}"
        lines.append(f"| {name} | {unit} | {' | '.join(texts)} | {shown} | {bound} | {verdict} |")
    return "\n".join(lines) + "\n"


def number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


if __name__ == "__main__":
    main()
