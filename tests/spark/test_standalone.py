"""A standalone cluster of two workers, and Connect in front of it: each row once, whatever dies.

All rows have born times of their own; each store is compared row by row with what was appended.
"""

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import spark_cluster_job
from patience import until
from spark_cluster_job import found, wanted

from rmqcore import open_shared, open_store
from rmqcore.doctor import verify

pytestmark = pytest.mark.peers

pytest.importorskip("pyspark")

JOB = Path(spark_cluster_job.__file__)
COUNT = 20_000
#: so many that the commit can be met by a kill
MANY = 150_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    from spark_cluster import cluster

    with cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module")
def connect(cluster):
    pytest.importorskip("grpc", reason="Spark Connect needs: pip install 'rmqcore[connect]'")
    return cluster.serve_connect()


def start(url, work, **arguments):
    from spark_cluster import environment

    command = [sys.executable, JOB, url, work, json.dumps(arguments)]
    with (work / "driver.log").open("ab") as log:
        return subprocess.Popen(command, env=environment(), stderr=log)


def run(url, work, **arguments):
    driver = start(url, work, **arguments)
    assert driver.wait(600) == 0, (work / "driver.log").read_text()[-3000:]


def assert_each_once(path, numbers, others=0):
    with open_store(path, mode="r") as store:
        rows = [found(message) for message in store.messages()]
        for topic, queue_id in store.queues():
            assert store.min_queue_offset(topic, queue_id) == 0
    mine = sorted((row for row in rows if row[-1] is not None), key=lambda row: row[5])
    assert mine == [wanted(number) for number in numbers]
    assert len(rows) == len(mine) + others
    left = [entry.name for entry in (path / "spark").iterdir()]
    assert not [name for name in left if name.startswith("staging") or "appending" in name]
    assert verify(path).clean


def marks(work):
    return sorted(mark.name for mark in (work / "marks").iterdir())


@pytest.mark.parametrize("kind", ["retry", "kill", "speculate"])
def test_tasks_that_fail_die_and_run_twice(cluster, tmp_path, kind):
    run(cluster.url, tmp_path, kind=kind, count=COUNT)
    assert_each_once(tmp_path / "store", range(COUNT))
    if kind == "retry":
        assert {"3 1 fail", "6 2 fail"} <= set(marks(tmp_path))
    else:
        parts = [mark.split()[0] for mark in marks(tmp_path)]
        assert all(parts.count(part) > 1 for part in parts)


def test_a_driver_that_is_killed_in_its_commit_and_run_again(cluster, tmp_path):
    from spark_cluster import kill_family

    asked = {"count": MANY, "job": "night"}
    driver, ledgers = start(cluster.url, tmp_path, **asked), tmp_path / "store" / "spark"
    for place, name in ((tmp_path, "ready"), (ledgers, "staging-*"), (ledgers, "*.appending")):
        until(lambda place=place, name=name: [*place.glob(name)], f"{name} of the driver")
    kill_family(driver)
    with open_store(tmp_path / "store", mode="r") as store:
        assert sum(1 for _ in store.messages()) < MANY
    run(cluster.url, tmp_path, **asked)
    assert_each_once(tmp_path / "store", range(MANY))


def test_two_drivers_and_a_process_that_puts(cluster, tmp_path):
    put, enough = [], threading.Event()

    def puts(store):
        while not enough.is_set():
            store.put("Other", b"%d" % len(put))
            put.append(1)
            enough.wait(0.005)

    with open_shared(tmp_path / "store") as store:
        thread = threading.Thread(target=puts, args=(store,))
        thread.start()
        try:
            drivers = [
                start(cluster.url, tmp_path, first=first, count=COUNT, job=str(first))
                for first in (0, COUNT)
            ]
            assert [driver.wait(600) for driver in drivers] == [0, 0]
        finally:
            enough.set()
            thread.join()
    assert_each_once(tmp_path / "store", range(2 * COUNT), others=len(put))


def test_a_stream_whose_executors_die(cluster, tmp_path):
    run(cluster.url, tmp_path, count=COUNT)
    (tmp_path / "store").rename(tmp_path / "source")
    for _ in range(2):
        run(cluster.url, tmp_path, kind="stream")
        assert_each_once(tmp_path / "store", range(COUNT))
    assert "1 0 kill at the end" in marks(tmp_path)


@pytest.mark.parametrize("kind", ["retry", "kill"])
def test_the_same_over_connect(connect, tmp_path, kind):
    run(connect, tmp_path, kind=kind, count=COUNT)
    assert_each_once(tmp_path / "store", range(COUNT))
    assert any("fail" in mark or "kill" in mark for mark in marks(tmp_path))


def test_two_clients_of_connect_at_once(connect, tmp_path):
    drivers = [
        start(connect, tmp_path, first=first, count=COUNT, job=str(first)) for first in (0, COUNT)
    ]
    assert [driver.wait(600) for driver in drivers] == [0, 0]
    assert_each_once(tmp_path / "store", range(2 * COUNT))
