"""Celery's results in a store, and addresses that need no import."""

import pickle
import subprocess
import sys
import threading

import pytest
from celery import Celery, states
from celery.exceptions import TimeoutError as CeleryTimeoutError
from children import in_child
from patience import TIMEOUT_S

from rmqcore.adapters.celery import RmqBackend
from rmqcore.adapters.opened import OpenedStore, opened_again
from rmqcore.errors import ConfigError

pytestmark = pytest.mark.engine

PROGRAM = """
from celery import Celery

app = Celery("program", broker="rmqcore://./queue", backend="rmqcore://./queue")


@app.task
def add(x, y):
    return x + y


if __name__ == "__main__":
    print(add.delay(2, 3).get(timeout=100))
    app.control.shutdown()
"""


@pytest.fixture
def backend(store_path):
    made = RmqBackend(app=Celery("test"), url=f"rmqcore://{store_path}")
    yield made
    made.close()


def test_results_groups_and_counters(backend):
    backend.store_result("one", {"n": 1}, states.SUCCESS)
    assert backend.get_result("one") == {"n": 1}
    backend.store_result("two", ValueError("no"), states.FAILURE)
    assert isinstance(backend.get_result("two"), ValueError)
    found = dict(backend.get_many(["one", "two"]))
    assert {name: meta["status"] for name, meta in found.items()} == {
        "one": states.SUCCESS,
        "two": states.FAILURE,
    }
    assert [backend.incr("n"), backend.incr("n")] == [1, 2]
    backend.forget("one")
    assert backend.get_state("one") == states.PENDING


def test_results_go_when_their_time_is_over(store_path, clock):
    app = Celery("test")
    app.conf.result_expires = 60
    backend = RmqBackend(app=app, url=f"rmqcore://{store_path}")
    backend.set("a", "x")
    backend.set("b", "x")
    backend.expire("b", 0)
    backend.expire("nothing", 5)
    clock.now_ms += 61_000
    assert backend.mget(["a", "b", "nothing"]) == [None, b"x", None]
    backend.close()


def test_a_waiter_is_woken_by_the_result(backend):
    asked = threading.Event()
    got = []

    def wait():
        got.append(backend.wait_for("late", on_interval=asked.set))

    waiter = threading.Thread(target=wait)
    waiter.start()
    assert asked.wait(TIMEOUT_S)
    backend.store_result("late", 7, states.SUCCESS)
    waiter.join(TIMEOUT_S)
    assert got[0]["result"] == 7
    with pytest.raises(CeleryTimeoutError):
        backend.wait_for("never", timeout=0)


def test_what_is_read_again_and_again_leaves_the_disk(store_path):
    app = Celery("test")
    small = {"mapped_file_size_commit_log": 1 << 20, "message_index_enable": False}
    app.conf.result_backend_transport_options = {"store": small, "delete_consumed_every": 0}
    backend = RmqBackend(app=app, url=f"rmqcore://{store_path}")
    for number in range(40):
        backend.set(f"{number}", b"x" * 100_000)
        backend.delete(f"{number}")
    assert backend.store.min_phy_offset > 0
    backend.close()


def test_results_are_kept_where_a_broker_has_begun_a_removed_directory_anew(backend, store_path):
    backend.store_result("a", 1, states.SUCCESS)
    store_path.rename(store_path.with_name("removed"))
    broker = OpenedStore(store_path, {})
    backend.store_result("b", 2, states.SUCCESS)
    assert backend.get_state("a") == states.PENDING
    assert backend.get_result("b") == 2
    broker.close()


def test_a_removed_directory_is_begun_anew_with_the_settings_that_one_of_its_users_has(store_path):
    settings = {"mapped_file_size_commit_log": 1 << 20}
    broker, results = OpenedStore(store_path, settings), OpenedStore(store_path, {})
    store_path.rename(store_path.with_name("removed"))
    results = opened_again(results, store_path, {})
    broker = opened_again(broker, store_path, settings)
    assert broker.store is results.store
    assert broker.store.config.mapped_file_size_commit_log == 1 << 20
    results.close()
    broker.close()


def test_the_backend_goes_into_another_process_with_its_address(backend):
    backend.app.set_current()
    again = pickle.loads(pickle.dumps(backend))
    assert again.as_uri() == backend.as_uri()
    again.set("k", "v")
    assert backend.get("k") == b"v"
    again.close()
    with pytest.raises(ConfigError, match="the store's directory"):
        RmqBackend(app=backend.app, url="rmqcore://")


@pytest.mark.process
def test_a_forked_child_adds_to_its_parents_counters(backend):
    backend.incr("n")
    assert in_child(lambda: backend.incr("n")) == 2
    assert backend.incr("n") == 3


@pytest.mark.process
def test_addresses_work_without_an_import_and_the_banner_shows_the_path(tmp_path, installed):
    (tmp_path / "program.py").write_text(PROGRAM)
    celery = [sys.executable, "-m", "celery"]
    log = tmp_path / "log"
    with log.open("wb") as file:
        worker = subprocess.Popen(
            [*celery, "-A", "program", "worker", "-P", "solo", "--without-gossip"],
            cwd=tmp_path,
            env=installed,
            stdout=file,
            stderr=file,
        )
    try:
        done = subprocess.run(
            [sys.executable, "program.py"],
            cwd=tmp_path,
            env=installed,
            capture_output=True,
            text=True,
            timeout=2 * TIMEOUT_S,
            check=False,
        )
        assert done.stdout == "5\n", done.stderr + log.read_text()
        assert worker.wait(TIMEOUT_S) == 0
    finally:
        worker.kill()
        worker.wait()
    assert f"transport:   rmqcore://{tmp_path}/queue\n" in log.read_text()
    assert f"results:     rmqcore://{tmp_path}/queue\n" in log.read_text()
    purged = subprocess.run(
        [*celery, "-b", "rmqcore://./queue", "purge", "-f"],
        cwd=tmp_path,
        env=installed,
        capture_output=True,
        text=True,
        timeout=2 * TIMEOUT_S,
        check=False,
    )
    assert "No messages purged from 1 queue" in purged.stdout, purged.stderr
