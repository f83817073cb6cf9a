"""A process that embeds a store carries little more than its interpreter."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

#: what a process that puts, gets and queries does without
HEAVY = {
    "asyncio",
    "concurrent.futures.process",
    "datetime",
    "difflib",
    "multiprocessing",
    "numpy",
    "random",
    "rmqcore.store.consume.leases",
    "rmqcore.store.consume.sql92",
    "rmqcore.store.sharing.queue",
    "rmqcore.scan",
    "shutil",
    "socket",
    "ssl",
    "subprocess",
    "typing_extensions",
}
#: MiB above the bare interpreter, of which the standard library takes 4; a store that was there
#: before takes 10.2, numpy alone would be 7 more
ANONYMOUS_MIB_MAX = 12
#: MiB that Python has given out, of which modules take 4.5 and the arrays of a dispatch 3.2; 10.7
#: in all. Those of a recovery of long stretches would be 50 more
ALLOCATED_MIB_MAX = 16
ANONYMOUS = """
from pathlib import Path

# page by page: what status says may be off by some hundred KiB
pages = Path("/proc/self/smaps_rollup")

def taken():
    return 1024 * int(pages.read_text().partition("Anonymous:")[2].split()[0])
"""
ALLOCATED = """
import tracemalloc

tracemalloc.start()

def taken():
    return tracemalloc.get_traced_memory()[0]
"""
BEFORE = """
import sys

loaded = set(sys.modules)
"""
PROGRAM = """
bare = taken()
import rmqcore

with rmqcore.open_store(sys.argv[1]) as store:
    for number in range(40_000):
        store.put("T", b"x" * 256, queue_id=number % 4, keys=f"K{number}", tags="TagA")
    assert len(store.get_message("T", 1, 0, max_messages=32).messages) == 32
    assert store.query_message("T", "K77").messages[0].keys == ("K77",)
    used = taken()
import json

print(json.dumps([sorted(set(sys.modules) - loaded), (used - bare) / (1 << 20)]))
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A store that the program has put into; what it imports is compiled, as where installed."""
    path = str(tmp_path_factory.mktemp("store"))
    embed(path, ANONYMOUS)
    return path


def embed(store, measured):
    """(modules that the program has loaded, MiB that it takes above the bare interpreter)."""
    here = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", BEFORE + measured + PROGRAM, store]
    done = subprocess.run(command, env=here, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_the_core_loads_nothing_heavy_and_allocates_little(store):
    """Its pages are for `make measure`: how many the allocator holds is the system's, too."""
    modules, mib = embed(store, ALLOCATED)
    assert HEAVY.isdisjoint(modules)
    assert 1 < mib < ALLOCATED_MIB_MAX


@pytest.mark.measure
def test_a_store_that_puts_takes_little_memory(store, figure):
    _, mib = embed(store, ANONYMOUS)
    assert mib > 1
    figure("above the bare interpreter", mib, "MiB", at_most=ANONYMOUS_MIB_MAX)


#: what commands that only look into a store do without
FOR_OTHERS = {
    "asyncio",
    "numpy",
    "pydantic",
    "rich",
    "rmqcore.remoting",
    "rmqcore.store.message_store",
}


@pytest.mark.parametrize("words", [["stat"], ["cat"], ["offsets"], ["query", "--key", "K77"]])
def test_a_command_that_looks_starts_without_what_others_need(store, words):
    program = """
import sys
from rmqcore.cli.main import run
sys.argv[0] = "rmqcore"
try:
    run()
except SystemExit as ended:
    code = ended.code
print("loaded", code, *sys.modules)
"""
    command = [sys.executable, "-c", program, words[0], store, *words[1:]]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    _, code, *modules = done.stdout.splitlines()[-1].split()
    assert int(code) == (words == ["offsets"])
    assert FOR_OTHERS.isdisjoint(modules)


def test_the_version_is_told_without_what_parses():
    program = "import sys; sys.argv[1:] = ['--version']; from rmqcore.cli.main import run; run()"
    traced = [sys.executable, "-X", "importtime", "-c", program]
    done = subprocess.run(traced, capture_output=True, text=True, check=True)
    assert done.stdout.strip()
    loaded = {line.split()[-1] for line in done.stderr.splitlines()}
    assert {"typer", "rich", "rmqcore.config", "rmqcore.cli.app"}.isdisjoint(loaded)


def test_a_broker_starts_without_what_other_commands_need():
    program = "import sys, rmqcore.cli.app, rmqcore.cli.serve; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert {"numpy", "rich.progress", "rmqcore.scan"}.isdisjoint(done.stdout.split())
