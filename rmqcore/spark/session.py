"""A Spark session on this machine for commands, demonstrations and tests, and its Java."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import rmqcore
from rmqcore.errors import RmqCoreError

#: The path below the environment where ``scripts/java`` unpacks a runtime.
_OWN_JAVA = "java/usr/lib/jvm"


class SparkMissingError(RmqCoreError):
    """Spark cannot be started here; the text says what to install."""


def java_home() -> Path | None:
    """The Java runtime that Spark is to use: ``JAVA_HOME``, the ``java`` on the path, our own."""
    if os.environ.get("JAVA_HOME"):
        return Path(os.environ["JAVA_HOME"])
    found = shutil.which("java")
    if found:
        return Path(found).resolve().parents[1]
    own = sorted((Path(sys.prefix) / _OWN_JAVA).glob("java-17-openjdk-*"))
    return own[-1] if own else None


def local_session(
    name: str = "rmqcore", *, cores: int | str = "*", memory: str = "1g", **settings: str
) -> SparkSession:
    """A Spark session in this process, with workers that run this interpreter.

    In a program that ``spark-submit`` runs, it is the session that is configured there.

    Args:
        name: of the application.
        cores: threads; "*" for all there are.
        memory: heap of the JVM.
        **settings: of Spark, with ``__`` for each dot: ``spark__sql__shuffle__partitions="8"``.

    Raises:
        SparkMissingError: there is no Java runtime.
    """
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return SparkSession.Builder().appName(name).getOrCreate()
    home = java_home()
    if home is None:
        raise SparkMissingError(
            "no Java runtime of version 17 or later: install one (Debian: openjdk-17-jre-headless) "
            "or name one with JAVA_HOME"
        )
    os.environ["JAVA_HOME"] = str(home)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    here = str(Path(rmqcore.__file__).parents[1])
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if here not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([here, *paths])
    builder = SparkSession.Builder().master(f"local[{cores}]").appName(name)
    quiet = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": memory,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "8",
        "spark.python.worker.faulthandler.enabled": "true",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.ui.showConsoleProgress": "false",
    }
    quiet |= {key.replace("__", "."): value for key, value in settings.items()}
    for key, value in quiet.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def check_workers(spark: SparkSession) -> None:
    """Refuse a session whose workers run a Python without rmqcore, before Spark says it at length.

    A session takes ``python3`` from the path, which in an environment that was not activated is
    the system's. What cannot be told, as over Spark Connect, is not refused.

    Raises:
        SparkMissingError: says what to set.
    """
    python = getattr(getattr(spark, "_sc", None), "pythonExec", None)
    found = shutil.which(python) if python else None
    if found is None or Path(found).absolute() == Path(sys.executable).absolute():
        return
    if not _knows_format(found):
        raise SparkMissingError(
            f"Spark's workers run {found}, where rmqcore[spark] is not installed: set "
            f"PYSPARK_PYTHON={sys.executable} before the session is made (or activate the "
            "environment, or use rmqcore.spark.local_session)"
        )


@functools.cache
def _knows_format(python: str) -> bool:
    command = [python, "-c", "from pyspark_rmq import DefaultSource"]
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=60)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
