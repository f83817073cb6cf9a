"""A standalone cluster of Spark on this machine: a master, two workers, a server of Connect.

Each is a process of its own, started with what the package pyspark brings.
"""

import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import pyspark
from patience import until

import rmqcore

HOME = Path(pyspark.__file__).parent
_SMALL = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
_LOG = """
rootLogger.level=info
rootLogger.appenderRef.stdout.ref=console
appender.console.type=Console
appender.console.name=console
appender.console.target=SYSTEM_ERR
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%d %p %c: %m%n%ex
"""
#: Of every session: executors of two cores, which import what is tested here.
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "700m",
    "spark.executor.memory": "600m",
    "spark.executor.cores": "2",
    "spark.cores.max": "4",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.session.timeZone": "UTC",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment():
    """Of Spark's processes: none of what a session in this process has set."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("SPARK_", "PYSPARK_"))}
    paths = [str(Path(rmqcore.__file__).parents[1]), *env.get("PYTHONPATH", "").split(os.pathsep)]
    env |= {
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(filter(None, paths))),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        # what Spark's own scripts look up
        "SPARK_SCALA_VERSION": next((HOME / "jars").glob("spark-core_*")).name.split("_")[1][:4],
    }
    return env


class Cluster:
    """The processes; ``url`` is the master's."""

    def __init__(self, work):
        self.work = work
        self.processes = []
        self.url = f"spark://127.0.0.1:{free_port()}"
        (work / "log4j2.properties").write_text(_LOG)

    def start(self):
        _, _, port = self.url.rpartition(":")
        one = ["--webui-port", "0", "--host"]
        deploy = "org.apache.spark.deploy"
        self._java("master", f"{deploy}.master.Master", *one, "127.0.0.1", "--port", port)
        self._wait("master", "elected leader")
        # of two hosts: a task is not tried a second time beside the first try
        for name, host in (("worker1", "127.0.0.1"), ("worker2", "127.0.0.2")):
            sizes = ["--cores", "2", "--memory", "2g", "--work-dir", str(self.work / name)]
            self._java(name, f"{deploy}.worker.Worker", *one, host, *sizes, self.url)
        for name in ("worker1", "worker2"):
            self._wait(name, "Successfully registered with master")

    def serve_connect(self):
        """Start a Connect server whose tasks run in the cluster; its URL."""
        port = free_port()
        given = SETTINGS | {"spark.connect.grpc.binding.port": str(port)}
        conf = [word for item in given.items() for word in ("--conf", "=".join(item))]
        server = "org.apache.spark.sql.connect.service.SparkConnectServer"
        submit = ["--master", self.url, "--class", server, *conf, "spark-internal"]
        self._java("connect", "org.apache.spark.deploy.SparkSubmit", *submit, heap="700m")
        self._wait("connect", "Spark Connect server started")
        return f"sc://127.0.0.1:{port}"

    def _java(self, name, kind, *arguments, heap="256m"):
        from rmqcore.spark.session import java_home

        log4j = f"-Dlog4j2.configurationFile=file:{self.work / 'log4j2.properties'}"
        command = [java_home() / "bin" / "java", f"-Xmx{heap}", *_SMALL, log4j, *_module_options()]
        command += ["-cp", f"{HOME}/jars/*", kind, *arguments]
        with self._log(name).open("wb") as log:
            process = subprocess.Popen(command, env=environment(), stdout=log, stderr=log)
        self.processes.append(process)

    def _log(self, name):
        return self.work / f"{name}.log"

    def _wait(self, name, text):
        until(lambda: text in self._log(name).read_text(errors="replace"), f"{name}: {text}")

    def stop(self):
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()


def _module_options():
    """What Spark's own launcher opens of Java's modules."""
    lang = ["lang", "lang.invoke", "lang.reflect", "io", "net", "nio", "util", "util.concurrent"]
    packages = [f"java.{name}" for name in (*lang, "util.concurrent.atomic")]
    packages += ["sun.nio.ch", "sun.nio.cs", "sun.util.calendar"]
    return [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in packages]


@contextmanager
def cluster(work):
    """A running cluster."""
    found = Cluster(work)
    try:
        found.start()
        yield found
    finally:
        found.stop()


def descendants(root):
    """Process ids that descend from ``root``, itself included."""
    parents = {}
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            parents[int(entry.name)] = int(
                (entry / "stat").read_text().rpartition(")")[2].split()[1]
            )
    found = {root}
    for _ in range(6):
        found |= {pid for pid, parent in parents.items() if parent in found}
    return found


def kill_family(process):
    """Kill a driver with all that it has started."""
    for pid in descendants(process.pid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
