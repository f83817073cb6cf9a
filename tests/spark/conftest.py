"""One Spark session for all tests, and stores to read with it."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from rmqcore import Message, open_store
from rmqcore.testing import rocketmq_broker, rocketmq_topic  # noqa: F401 - fixtures

HERE = Path(__file__).parent
LARGE_COUNT = 60_000


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.filterwarnings("ignore"))


def _lacking():
    missing = [name for name in ("pyspark", "pyarrow", "pandas") if find_spec(name) is None]
    if missing:
        return f"{' and '.join(missing)} not installed: pip install 'rmqcore[spark]'"
    from rmqcore.spark.session import java_home

    return None if java_home() else "no Java runtime: scripts/java gets one"


if os.environ.get("RMQCORE_SPARK_REQUIRED") and (_reason := _lacking()):
    raise pytest.UsageError(f"RMQCORE_SPARK_REQUIRED is set, but: {_reason}")


#: Spark gives each Python worker its own copy of pyspark, which is a zip: all that is imported from
#: there is compiled each time. A worker of a stream has ten seconds for it, then the stream fails.
WORKER = """#!/bin/sh
export PYTHONPATH="${{PYTHONPATH##*-src.zip:}}"
exec {python} "$@"
"""


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    """The session; the reason why there is none skips the test."""
    reason = _lacking()
    if reason:
        pytest.skip(reason)
    from rmqcore.spark.session import local_session

    worker = tmp_path_factory.mktemp("spark") / "python"
    worker.write_text(WORKER.format(python=sys.executable))
    worker.chmod(0o755)
    # two cores, and each task is tried twice; nothing runs so long that the JVM's second compiler
    # and its parallel collector would pay
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", str(worker))
        session = local_session(
            "tests",
            cores="2,2",
            memory="700m",
            spark__sql__shuffle__partitions="2",
            spark__driver__extraJavaOptions="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def large_store(tmp_path_factory):
    """60,000 messages in 7 log files of 4 MiB: four topics, three queues each, keys and tags."""
    path = tmp_path_factory.mktemp("large") / "store"
    with open_store(path, mapped_file_size_commit_log=4 << 20) as store:
        for start in range(0, LARGE_COUNT, 100):
            numbers = range(start, start + 100)
            topic, queue_id = f"Topic{start // 100 % 4}", start // 400 % 3
            store.put_messages([_message(topic, queue_id, number) for number in numbers])
    return path


def _message(topic, queue_id, number):
    return Message(
        topic,
        b"%0256d" % number,
        queue_id=queue_id,
        tags=f"Tag{number % 3}",
        keys=[f"K{number}", f"G{number % 100}"],
        properties={"UNIQ_KEY": f"7F000001{number:024X}"},
    )


@pytest.fixture
def rmq(spark):
    """`rmq(path, columns="light", ...)`: a frame of a store's messages."""

    def frame(path, **options):
        return spark.read.format("rmq").options(**options).load(str(path))

    return frame


@pytest.fixture
def refused(spark):
    """`refused(path, option=...)`: the text with which Spark refuses to read."""
    from pyspark.errors import PySparkException

    def text(path, schema=None, **options):
        reader = spark.read.format("rmq").options(**options)
        reader = reader.schema(schema) if schema else reader
        with pytest.raises(PySparkException) as caught:
            reader.load(str(path)).collect()
        return str(caught.value)

    return text
