"""A store's trace outlives its process, and a failing test prints it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from children import die, run_child

import rmqcore
from rmqcore.files.store_trace import StoreTrace, read_trace

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]


def events(path):
    return [row.event for row in read_trace(path / "config/storeTrace")]


def put_and_die(path):
    """Put three messages, flush them, and be killed."""

    def work(tell):
        store = rmqcore.open_store(path)
        for _ in range(3):
            store.put("T", b"x")
        tell(store.flush())
        die()

    code, (flushed,) = run_child(work)
    assert code == -9
    return flushed


def test_a_killed_process_leaves_its_rows(store_path):
    flushed = put_and_die(store_path)
    rows = read_trace(store_path / "config/storeTrace")
    assert rows[0].event == "open"
    assert rows[0].count != os.getpid()
    assert sum(row.count for row in rows if row.event == "put") == 3
    assert [row.flushed for row in rows if row.event == "flush"][-1] == flushed
    assert "close" not in events(store_path)


def test_the_next_process_goes_on_behind_them(store_path):
    put_and_die(store_path)
    before = read_trace(store_path / "config/storeTrace")
    with rmqcore.open_store(store_path) as store:
        rows = store.trace()
        assert rows[: len(before)] == before
        opened = rows[len(before)]
        assert (opened.event, opened.count) == ("open", os.getpid())
        assert opened.words == "the store was not closed"
    put_and_die(store_path)
    assert events(store_path).count("open") == 3


@pytest.mark.parametrize("count", [1, 2, 200, 333])
def test_each_row_is_there_as_soon_as_it_is_noted(tmp_path, count):
    def work(tell):
        trace = StoreTrace(tmp_path / "storeTrace", lambda: 1)
        trace.open()
        for number in range(count):
            trace.note("flush", number)
        die()

    code, _ = run_child(work)
    assert code == -9
    counts = [row.count for row in read_trace(tmp_path / "storeTrace")]
    assert counts == list(range(max(0, count - 200), count))


def test_a_forked_child_writes_nothing_into_its_parents_trace(store_path):
    with rmqcore.open_store(store_path, flush_interval_consume_queue_ms=3_600_000) as store:
        store.flush()

        def work(tell):
            store.parts.trace.note("flag", words="of the child")
            tell(store.trace()[-1].words == "of the child")

        assert run_child(work) == (0, [True])
        assert "of the child" not in [row.words for row in store.trace()]


FAILING = """
import os
import pytest, rmqcore
from children import die, run_child

pytestmark = pytest.mark.process

def test_it(tmp_path):
    def work(tell):
        rmqcore.open_store(tmp_path / "killed").put("T", b"x")
        die()

    with rmqcore.open_store(tmp_path / "closed") as store:
        store.put("T", b"x")
    run_child(work)
    opened = rmqcore.open_store(tmp_path / "open")
    opened.put("T", b"x")
    assert opened is None
"""


def test_a_failing_test_prints_the_traces_of_its_stores(tmp_path):
    file = tmp_path / "test_failing.py"
    file.write_text(FAILING)
    command = [sys.executable, "-m", "pytest", "-p", "conftest", "-c", ROOT / "pyproject.toml"]
    command += ["--rootdir", ROOT, "--basetemp", tmp_path / "temp", "-p", "no:cacheprovider"]
    here = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    done = subprocess.run([*command, file], env=here, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    for name in ("killed", "closed", "open"):
        head, _, rest = done.stdout.partition(f"trace of {tmp_path / 'temp'}")
        assert head
        assert rest
        part = done.stdout.partition(f"/{name} -")[2]
        assert " open " in part.splitlines()[1], done.stdout
