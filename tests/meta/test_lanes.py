"""Lanes, waiting, seeds and figures do what tests/README.md says: small test files are run."""

import asyncio
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path

import conftest
import patience
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from patience import TIMEOUT_S, rounds, until, until_async

import rmqcore
from interop.peer import free_port, take_port
from rmqcore.services import retention
from rmqcore.services.retention import DiskUsage
from rmqcore.services.runner import Threads
from rmqcore.services.service import Service

pytestmark = pytest.mark.process

TESTS = Path(__file__).parents[1]

#: lets pytest take a folder for tests/, and tell what came of each test
PLUGIN = """
import json
from pathlib import Path

import conftest
import lanes
import late

HERE = Path(__file__).parent
conftest.ROOT = lanes.TESTS = late.TESTS = HERE
conftest.SEEDS = HERE / "seeds.txt"


def pytest_runtest_logreport(report):
    if report.when == "call" or report.outcome != "passed":
        with (HERE / "told").open("a") as told:
            text = "" if report.outcome == "passed" else str(report.longrepr)
            name = report.nodeid.partition("::")[2]
            told.write(json.dumps([name, report.outcome, text, report.capstdout]) + "\\n")
"""


def run_small(folder, text, *options, seeds=""):
    """Run a small test file; {test: (outcome, why, what it printed)}, and what pytest said."""
    (folder / "small.py").write_text(PLUGIN)
    (folder / "seeds.txt").write_text(seeds)
    (folder / "told").unlink(missing_ok=True)
    (folder / "test_small.py").write_text(text)
    shutil.copy(patience.__file__, folder)
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    package = Path(rmqcore.__file__).parents[1]
    env["PYTHONPATH"] = os.pathsep.join(map(str, (folder, TESTS, package)))
    env["RMQCORE_FIGURES"] = str(folder / "figures.jsonl")
    command = [sys.executable, "-m", "pytest", "-c", TESTS.parent / "pyproject.toml"]
    command += ["--rootdir", folder, "-p", "conftest", "-p", "small", "-p", "no:cacheprovider"]
    command += ["--basetemp", folder / "temporary", *options, folder / "test_small.py"]
    done = subprocess.run(
        command,
        env=env,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    told = folder / "told"
    lines = map(json.loads, told.read_text().splitlines()) if told.exists() else ()
    return {name: rest for name, *rest in lines}, done.stdout


def test_the_tests_of_a_file_share_a_process_and_what_it_made(tmp_path):
    text = (
        "import os, pytest\npytestmark = pytest.mark.logic\n"
        "@pytest.mark.parametrize('number', range(9))\ndef test_it(number): print(os.getpid())\n"
    )
    results = run_small(tmp_path, text, "-n", "2")[0]
    assert len(results) == 9
    assert len({printed for _, _, printed in results.values()}) == 1


def test_a_store_that_a_test_leaves_open_fails_it_and_is_closed(tmp_path):
    text = (
        "import pytest, rmqcore\npytestmark = pytest.mark.engine\nleft = []\n"
        "def test_it(tmp_path): left.append(rmqcore.open_store(tmp_path / 'left'))\n"
        "def test_next(tmp_path): assert 'closed' in repr(left[0])\n"
        "def test_dropped(tmp_path): rmqcore.open_store(tmp_path / 'dropped')\n"
    )
    results, said = run_small(tmp_path, text, "-W", "ignore::ResourceWarning")
    assert {name: outcome for name, (outcome, *_) in results.items()} == {
        "test_it": "failed",
        "test_next": "passed",
        "test_dropped": "passed",
    }, said
    assert "left open: [DefaultMessageStore" in results["test_it"][1]


@pytest.mark.parametrize("processes", ["0", "1"])
def test_what_tests_of_a_process_share_goes_with_it(tmp_path, processes):
    """Also when the process is ended before Python is through with its exit."""
    text = (
        "import atexit, os, pytest\nfrom temporary import shared_directory\n"
        "pytestmark = pytest.mark.logic\ndef test_it():\n"
        f"    shared_directory('it', {str(tmp_path)!r})\n    atexit.register(os._exit, 0)\n"
    )
    results, said = run_small(tmp_path, text, "-n", processes)
    assert [outcome for outcome, *_ in results.values()] == ["passed"], said
    assert list(tmp_path.glob("rmqcore-it-*")) == []


# ---- lanes

BEGIN = """
import asyncio, os, socket, subprocess, sys, threading, time
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from patience import until
from rmqcore.simulation.loop import SimulatedLoop
pytestmark = pytest.mark.logic
engine = pytest.mark.engine
"""
#: what a test does -> what is said of it
FORBIDDEN = {
    "def test_a_thread(): threading.Thread(target=print).start()": "logic that starts a thread",
    "def test_a_socket(): socket.socket()": "logic that opens a socket",
    "def test_a_sleep(): time.sleep(0.001)": "logic that sleeps",
    "def test_a_wait(): until([0, 1].pop, 'it'); until([1, 0].pop, 'it')": "logic that sleeps",
    "def test_a_fork(): os.fork() or os._exit(0)": "logic that starts a process",
    "def test_a_child(): subprocess.run([sys.executable])": "logic that starts a process",
    "@pytest.fixture\ndef slow(): time.sleep(0.001)\ndef test_a_fixture(slow): pass": (
        "logic that sleeps"
    ),
    "def test_swallowed():\n"
    "    try: threading.Thread(target=print).start()\n"
    "    except BaseException: pass": "logic that starts a thread",
    "def test_hidden():\n"
    "    try: socket.socket()\n"
    "    finally: raise ValueError('another')": "logic that opens a socket",
    "@engine\ndef test_e_sleep(): time.sleep(0.001)": "engine that sleeps",
    "@engine\ndef test_e_await(): asyncio.run(asyncio.sleep(0.001))": "engine that sleeps",
    "@engine\ndef test_e_fork(): os.fork() or os._exit(0)": "engine that starts a process",
    "@engine\ndef test_e_child(): subprocess.run([sys.executable])": "engine that starts a process",
    "@engine\ndef test_e_shell(): os.system('true')": "engine that starts a process",
    "@engine\ndef test_e_far():\n with socket.socket() as end: end.connect(('192.0.2.1', 9))": (
        "engine that opens a socket beyond this machine"
    ),
    "@engine\ndef test_e_open():\n with socket.socket() as end: end.bind(('0.0.0.0', 0))": (
        "engine that opens a socket beyond this machine"
    ),
    "@engine\ndef test_e_swallowed():\n"
    "    try: subprocess.run([sys.executable])\n"
    "    except BaseException: pass": "engine that starts a process",
    "@pytest.mark.parametrize('n', [pytest.param(1, marks=pytest.mark.logic)])\n"
    "@engine\ndef test_p(n): threading.Thread(target=print).start()": "logic that starts a thread",
}
ALLOWED = """
@engine
def test_ok_engine():
    threading.Thread(target=print).start()
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname()).close()
    until([1, 0, 0].pop, "three tries")
    asyncio.run(asyncio.sleep(0))
def test_ok_simulated():
    SimulatedLoop(0).run_until_complete(asyncio.sleep(1000))
@pytest.mark.process
def test_ok_process():
    time.sleep(0.001)
    os.waitpid(os.fork() or os._exit(0), 0)
@pytest.mark.measure
def test_figures(figure):
    figure("weight", 3, "kg", at_most=4)
    figure("speed", 9, "m/s", at_most=8)
@pytest.mark.storm
def test_storm():
    pass
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What came of tests that do more than their lane may, and of others; their folder."""
    folder = tmp_path_factory.mktemp("small")
    text = BEGIN + SEEDED + "\n".join(FORBIDDEN) + ALLOWED
    # what one test leaves is warned of in another
    options = ("-rA", "-m", "not storm", "-W", "ignore")
    return run_small(folder, text, *options, seeds=KEPT)[0], folder


@pytest.mark.parametrize("does", FORBIDDEN, ids=lambda does: re.search(r"test_(\w+)", does)[1])
def test_a_test_that_does_more_than_its_lane_may_fails_by_name(told, does):
    name = re.search(r"def (test_\w+)", does)[1]
    (found,) = (rest for test, rest in told[0].items() if test.partition("[")[0] == name)
    assert found[0] == "failed"
    assert f"a test of the lane {FORBIDDEN[does]}: tests/README.md" in found[1]


def test_what_a_lane_allows_passes(told):
    outcomes = {name: rest[0] for name, rest in told[0].items()}
    assert outcomes["test_ok_engine"] == outcomes["test_ok_process"] == "passed"
    assert "test_storm" not in outcomes


def test_a_figure_is_noted_and_too_large_a_one_fails(told):
    results, folder = told
    assert results["test_figures"][0] == "failed"
    assert "speed: 9 m/s, more than 8" in results["test_figures"][1]
    lines = (folder / "figures.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"name": "test_figures: weight", "value": 3, "unit": "kg"},
        {"name": "test_figures: speed", "value": 9, "unit": "m/s"},
    ]


def test_a_test_without_a_lane_is_refused_by_name(tmp_path):
    results, said = run_small(
        tmp_path, "def test_none(): pass\ndef test_other(): pass", "-k", "none"
    )
    assert results == {}
    assert "tests without a lane" in said
    assert "test_small.py::test_none\n" in said


#: garbage whose finalizer fails, again and again, while the failure of the test is told
DIRTY = """
import gc
import pytest
pytestmark = pytest.mark.logic
class Dirty:
    ended = 0
    def __init__(self):
        self.me = self
    def __del__(self):
        Dirty.ended += 1
        Dirty() if Dirty.ended < 3000 else None
        self.missing(self.missing)
def test_dirty():
    gc.set_threshold(50)
    Dirty()
    assert Dirty is None
def test_next():
    pass
"""


def test_a_failed_test_that_leaves_garbage_ends_no_run(tmp_path):
    results, said = run_small(tmp_path, DIRTY, "-W", "ignore")
    assert "INTERNALERROR" not in said
    assert {name: rest[0] for name, rest in results.items()} == {
        "test_dirty": "failed",
        "test_next": "passed",
    }
    assert "assert Dirty is None" in results["test_dirty"][1]


# ---- seeds

SEEDED = """
import pytest
from hypothesis import given, settings, strategies as st
pytestmark = pytest.mark.logic
def test_own(seed, rng): print("drew", seed, rng.random())
def test_kept(seed): print("drew", seed)
@pytest.mark.storm
def test_wild(seed): print("drew", seed)
@given(st.integers())
@settings(max_examples=20)
def test_any(number): print("drew", number)
def test_skipped(): pytest.skip("not here")
"""
KEPT = "7 test_small.py::test_kept a loss\n9 test_small.py::test_wild another loss\n"


def drawn(folder, *options):
    """What came of the tests with a seed, and of one that is skipped."""
    return run_small(folder, SEEDED, "-rA", *options, seeds=KEPT)[0]


def draws(results):
    """{test: what it drew}."""
    found = {name: re.findall(r"^drew (.+)", rest[2], re.M) for name, rest in results.items()}
    return {name: drew for name, drew in found.items() if drew}


def test_the_gate_draws_the_same_in_every_run_and_has_kept_seeds(tmp_path, told):
    results = drawn(tmp_path)
    once = draws(results)
    assert once == draws(told[0])
    assert once["test_kept[seed=7]"] == ["7"]
    assert once["test_kept[own]"] != ["7"]
    # what a storm has found is tried in each gate
    assert once["test_wild[seed=9]"] == ["9"]
    assert "test_wild[own]" not in once
    assert len(once["test_any"]) == 20
    assert results.pop("test_skipped")[0] == "skipped"
    assert {rest[0] for rest in results.values()} == {"passed"}


def test_a_storm_draws_others_that_its_number_gives_again(tmp_path, told):
    gate = draws(told[0])
    storm, again = (
        draws(drawn(tmp_path, "--storm", "1", "-m", "storm or seeded")) for _ in range(2)
    )
    assert storm.keys() == {"test_own", "test_kept", "test_wild", "test_any"}
    assert storm["test_own"] == again["test_own"] != gate["test_own"]
    assert storm["test_wild"] == again["test_wild"]
    assert storm["test_any"] != gate["test_any"]


def test_a_seed_that_is_given_is_every_tests(tmp_path):
    results = drawn(tmp_path, "--seed", "5", "--no-skip")
    replayed = draws(results)
    assert replayed["test_own"][0].split()[0] == "5"
    assert replayed["test_kept"] == ["5"]
    assert results["test_skipped"][0] == "failed"


# ---- tests that are held up

LATE = """
import threading
from concurrent.futures import ThreadPoolExecutor
import late
import pytest
waits = []
late._sleep = waits.append
def begin():
    waits.clear()
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(int, "7").result() == 7
    print("drew", len(waits), sum(waits))
@pytest.mark.engine
@pytest.mark.parametrize("number", range(40))
def test_engine(number): begin()
@pytest.mark.process
def test_process():
    for _ in range(20): begin()
@pytest.mark.logic
def test_logic():
    waits.clear()
    numbers = [one for one in range(20)]
    assert len(numbers) == 20
    print("drew", len(waits))
"""


def held_up(folder, *options):
    """{test: [how often it waited, and how long]} of small tests that begin threads."""
    results, _ = run_small(folder, LATE, "-rA", *options)
    assert {rest[0] for rest in results.values()} == {"passed"}
    drawn = draws(results)
    assert drawn.pop("test_logic") == ["0"]
    return drawn


def test_a_test_is_held_up_as_a_number_says_and_by_nothing_else(tmp_path):
    alone = held_up(tmp_path)
    assert {line for lines in alone.values() for line in lines} == {"0 0"}
    first, again, second = (held_up(tmp_path, "--late", str(number)) for number in (1, 1, 2))
    assert first == again != second
    assert first.keys() == alone.keys()
    # of threads, of calls, and of the lines of some tests
    often = {int(line.split()[0]) for lines in first.values() for line in lines}
    assert {0, 1, 2} < often


@pytest.mark.logic
def test_each_line_of_the_kept_seeds_names_a_test_that_is_there():
    lines = conftest.SEEDS.read_text("utf-8").splitlines()
    assert sum(map(len, conftest.kept_seeds().values())) == len(lines) > 0
    for line in lines:
        seed, test, *what = line.split()
        path, _, name = test.partition("::")
        assert int(seed) >= 0
        assert what, line
        text = (TESTS.parent / path).read_text("utf-8")
        function = re.search(rf"^def {name}\((.*?)\)", text, re.MULTILINE | re.DOTALL)
        assert function, line
        assert {"seed", "rng"} & set(re.findall(r"\w+", function[1])), line


# ---- waiting


@pytest.mark.engine
def test_what_does_not_come_is_named_and_every_thread_is_shown(monkeypatch, capsys):
    monkeypatch.setattr(patience, "TIMEOUT_S", 0.0)
    end = threading.Event()
    other = threading.Thread(target=end.wait, name="the other thread")
    other.start()
    with pytest.raises(pytest.fail.Exception, match=r"not within 0 s: the moon"):
        until(lambda: None, "the moon")
    shown = capsys.readouterr().out
    assert "--- the other thread" in shown
    assert "--- MainThread" in shown
    assert "test_what_does_not_come_is_named" in shown

    async def forever():
        await asyncio.Event().wait()

    async def wait():
        waiting = asyncio.create_task(forever())
        with pytest.raises(pytest.fail.Exception, match=r"not within 0 s: the sun"):
            await until_async(lambda: None, "the sun")
        waiting.cancel()

    asyncio.run(wait())
    shown = capsys.readouterr().out
    assert "--- the other thread" in shown
    assert "in forever" in shown
    end.set()
    other.join()


@pytest.mark.engine
def test_what_comes_is_returned_and_an_error_ends_the_wait():
    assert until(iter([0, None, 3]).__next__, "three") == 3

    answers = iter([0, 4])

    async def later():
        return next(answers)

    assert asyncio.run(until_async(later, "four")) == 4
    assert asyncio.run(until_async(iter([0, 5]).__next__, "five")) == 5
    with pytest.raises(ZeroDivisionError):
        until(lambda: 1 / 0, "nothing")


class Rounds(Service):
    """Counts its rounds; each waits until it may go on."""

    def __init__(self):
        super().__init__("Rounds")
        self.begun = self.ended = 0
        self.may_end = threading.Event()

    def run(self, now):
        self.begun += 1
        assert self.may_end.wait(TIMEOUT_S)
        self.ended += 1
        return 3600.0


@pytest.mark.engine
def test_only_rounds_that_begin_later_count():
    service, runner, errors, seen = Rounds(), Threads(), [], []
    runner.start(service, errors.append)
    until(lambda: service.begun == 1, "the first round has begun")

    def wait():
        rounds(service, 2)
        seen.append(service.ended)

    waiting = threading.Thread(target=wait)
    waiting.start()
    until(lambda: "run" in vars(service), "the wait has begun")
    service.may_end.set()
    waiting.join()
    assert seen[0] >= 3
    assert "run" not in vars(service)
    rounds(service)
    assert service.ended >= 4
    assert runner.stop(service)
    assert errors == []
    with pytest.raises(AssertionError, match="Rounds has ended"):
        rounds(service)


def test_a_port_is_one_test_process_s_for_as_long_as_that_lives():
    """Also while nobody listens there: what it is for may be killed and started again."""
    port = free_port(beside=(1,))
    code = f"""
from interop.peer import take_port
for port in ({port}, {port + 1}):
    try:
        take_port(port)
    except OSError:
        print("is another's")
"""
    path = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "is another's\n" * 2
    # a process may ask again for what it has
    take_port(port)


def test_a_disk_that_is_nearly_full_is_said_before_any_test(tmp_path, monkeypatch):
    """Brokers delete what tests read, and refuse what they send: many reds that say nothing."""
    for used, refused in ((80, False), (81, True)):
        usage = DiskUsage(used, 100 - used)
        monkeypatch.setattr(retention, "disk_usage", lambda _, usage=usage: usage)
        with pytest.raises(pytest.UsageError, match="81 %") if refused else nullcontext():
            conftest.refuse_full_disk(tmp_path)


def test_the_gate_draws_the_same_whatever_is_imported(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)

    def drawn():
        seen = []

        @settings(max_examples=300)
        @given(st.text())
        def see(text):
            seen.append(text)

        see()
        return seen

    first = drawn()
    (tmp_path / "words_of_its_own.py").write_text(
        "\n".join(f"W{number} = 'word {number}'" for number in range(100)), "utf-8"
    )
    importlib.import_module("words_of_its_own")
    assert drawn() == first
