"""Measure gRPC beside Apache's proxy: `make bench-grpc`; `--quick` takes a smaller load.

One side after the other on an empty store, under the same load (load.py): our `rmqcore serve`, and
Apache's proxy 5.5.0 in its local mode, with its broker in the same JVM. Each side is warmed by a
quarter of the load. A ratio is of one run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from interop.cluster import asker, name_server, running  # noqa: E402
from interop.peer import free_port  # noqa: E402
from rmqcore.remoting import RemotingError, RequestCode  # noqa: E402

LIMIT_S = 240
GROUP = {"groupName": "load", "consumeEnable": True, "retryMaxTimes": 16, "retryQueueNums": 1}
TOPIC = {
    "topic": "Load",
    "defaultTopic": "TBW102",
    "readQueueNums": "4",
    "writeQueueNums": "4",
    "perm": "6",
    "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": "0",
    "order": "false",
    "attributes": "+message.type=NORMAL",
}
OPENED = (
    "java.base/java.nio",
    "java.base/sun.nio.ch",
    "java.base/java.lang",
    "java.base/java.util",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a quarter of the load")
    parser.add_argument("--json", action="store_true", help="everything measured, as JSON")
    given = parser.parse_args()
    missing = [name for name in ("java", "mvn") if shutil.which(name) is None]
    if missing:
        sys.exit(f"not here: {', '.join(missing)}")
    count = "5000" if given.quick else "20000"
    found = {}
    with tempfile.TemporaryDirectory(prefix="bench-grpc-") as folder:
        for side, serving in (("java", java_proxy), ("rmqcore", rmqcore_serve)):
            with serving(Path(folder) / side) as (port, pid):
                command = [sys.executable, HERE / "load.py", str(port), str(pid), "--count", count]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                found[side] = json.loads(done.stdout) | {"memory": memory_mib(pid)}
    if given.json:
        print(json.dumps(found))
        return
    print(table(found))


def memory_mib(pid: int) -> float:
    """What a process has in memory, MiB."""
    lines = Path(f"/proc/{pid}/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def table(found: dict[str, dict]) -> str:
    """The figures as a table."""
    rows = ["| | Apache's proxy 5.5.0 | rmqcore | times |", "|---|---|---|---|"]
    java, ours = found["java"], found["rmqcore"]
    for name in ("send", "send, one at a time", "receive", "ack"):
        for unit, better in (("calls/s", 1), ("server ms/call", -1)):
            there, here = java[name][unit], ours[name][unit]
            times = (here / there) ** better
            rows.append(f"| {name}: {unit} | {there:,.3g} | {here:,.3g} | {times:.1f} |")
    there, here = java["memory"], ours["memory"]
    rows.append(f"| memory, MiB | {there:,.0f} | {here:,.0f} | {there / here:.1f} |")
    for side, facts in found.items():
        if facts["failed"]:
            rows.append(f"\n{side}: {facts['failed']} calls failed: {facts['why']}")
    return "\n".join(rows)


def wait_for(true, what: str) -> None:
    """Wait until something is so."""
    until_s = time.monotonic() + LIMIT_S
    while not true():
        if time.monotonic() > until_s:
            sys.exit(f"it did not come: {what}")
        time.sleep(0.2)


@contextlib.contextmanager
def rmqcore_serve(home: Path) -> Iterator[tuple[int, int]]:
    """Our server; yields its port and process."""
    home.mkdir()
    command = [sys.executable, "-m", "rmqcore", "serve", str(home / "store"), "--json"]
    command += ["--port", "0", "--namesrv-port", "0"]
    with running(command, {**os.environ}, home) as process:
        said = home / "output.txt"
        wait_for(lambda: "grpc" in said.read_text("utf-8"), "our server")
        facts = json.loads(said.read_text("utf-8").splitlines()[0])
        yield int(facts["grpc"].rpartition(":")[2]), process.pid


@contextlib.contextmanager
def java_proxy(home: Path) -> Iterator[tuple[int, int]]:
    """Apache's proxy with its broker, at our name server; yields its port and process."""
    library = Path.home() / ".cache" / "rocketmq-peer" / "proxy-5.5.0"
    if not (library / "ready").exists():
        fetch = ["mvn", "-q", "-B", "-f", HERE / "pom.xml", "dependency:copy-dependencies"]
        subprocess.run([*fetch, f"-DoutputDirectory={library}"], check=True)
        (library / "ready").touch()
    (home / "conf").mkdir(parents=True)
    for name in ("rmq.proxy.logback.xml", "rmq.broker.logback.xml"):
        (home / "conf" / name).write_text("<configuration/>", "utf-8")
    port, broker_port = free_port(), free_port(beside=(-2, 1))
    with name_server() as (namesrv, _):
        conf = {
            "brokerName": "broker-a",
            "brokerClusterName": "DefaultCluster",
            "brokerIP1": "127.0.0.1",
            "listenPort": broker_port,
            "namesrvAddr": namesrv,
            "storePathRootDir": home / "store",
            "storePathCommitLog": home / "store" / "commitlog",
        }
        broker_conf, proxy_conf = home / "broker.conf", home / "conf" / "rmq-proxy.json"
        broker_conf.write_text("".join(f"{k}={v}\n" for k, v in conf.items()), "utf-8")
        settings = {
            "rocketMQClusterName": "DefaultCluster",
            "proxyMode": "LOCAL",
            "grpcServerPort": port,
            "remotingListenPort": free_port(),
            "namesrvAddr": namesrv,
        }
        proxy_conf.write_text(json.dumps(settings), "utf-8")
        command = ["java", "-Xms1g", "-Xmx1g", f"-Duser.home={home}", f"-Drocketmq.home.dir={home}"]
        command += ["-Drocketmq.broker.diskSpaceWarningLevelRatio=0.99"]
        for package in OPENED:
            command += ["--add-opens", f"{package}=ALL-UNNAMED"]
        command += ["-cp", f"{library}/*", "org.apache.rocketmq.proxy.ProxyStartup", "-pm", "local"]
        command += ["-bc", str(broker_conf), "-n", namesrv, "-pc", str(proxy_conf)]
        environment = {**os.environ, "ROCKETMQ_HOME": str(home), "NAMESRV_ADDR": namesrv}
        with running(command, environment, home) as process:
            ask = asker(f"127.0.0.1:{broker_port}")
            body = json.dumps(GROUP).encode()

            def made() -> bool:
                with contextlib.suppress(RemotingError):
                    topic = ask(RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC)
                    group = ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)
                    return topic.code == group.code == 0
                return False

            wait_for(made, "Apache's proxy")
            # its proxy asks the name server for topics every few seconds
            time.sleep(10)
            yield port, process.pid


if __name__ == "__main__":
    main()
