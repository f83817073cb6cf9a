"""What a cut and a kill leave of a simulated disk; the process's system calls are watched."""

import os
import subprocess
import sys

import pytest

from rmqcore.doctor.selftest import _system_calls

pytestmark = [pytest.mark.process, pytest.mark.seeded]
BEGIN = """
import itertools, mmap, os, random, sys
from pathlib import Path
from rmqcore.simulation.disk import Disk, Disks
root, seed = Path(sys.argv[1]), sys.argv[2]
live, rng, disks = root / "live", random.Random(seed), Disks()
live.mkdir()

def put(name, data, sync=True):
    with open(live / name, "wb") as file:
        file.write(data)
        file.flush()
        if sync:
            os.fsync(file.fileno())

def sync_names(path=live):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)

numbers = itertools.count()

def cuts(count=200):
    for _ in range(count):
        target = root / f"cut{next(numbers)}"
        disk.cut(target, rng)
        yield {str(p.relative_to(target)): p.read_bytes() for p in target.rglob("*") if p.is_file()}

put("before", b"a" * 9000)
disk = Disk(disks, live)
disks.add(disk)
with disks.watched():
"""


@pytest.fixture
def watched(tmp_path, seed):
    """Run a text in a process whose system calls are watched."""

    def run(text):
        lines = "".join(f"    {line}\n" for line in text.splitlines())
        done = subprocess.run(
            [sys.executable, "-c", BEGIN + lines, str(tmp_path), str(seed)],
            env=os.environ | _system_calls.preload(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    return run


def test_what_was_synced_is_there_after_each_cut(watched):
    watched("""
put("new", b"b" * 5000)
sync_names()
for left in cuts():
    assert left == {"before": b"a" * 9000, "new": b"b" * 5000}
""")


def test_what_was_not_synced_is_there_or_not_page_by_page(watched):
    watched("""
with open(live / "before", "r+b") as file:
    file.write(b"c" * 9000)
    file.flush()
    seen = {left["before"] for left in cuts()}
pages = {left[at] for left in seen for at in (0, 4096, 8999)}
assert pages == {97, 99}
assert {b"a" * 9000, b"c" * 9000} < seen
assert any(left[:512] != left[512:1024] for left in seen), "no page was torn"
assert all(left[at : at + 512] in (b"a" * 512, b"c" * 512) for left in seen for at in (0, 512))
""")


def test_a_name_and_its_content_come_apart(watched):
    watched("""
put("synced", b"d" * 100)
put("not", b"e" * 100, sync=False)
seen = list(cuts())
assert {"synced" in left for left in seen} == {True, False}
assert {left.get("synced") for left in seen} == {None, b"d" * 100}
assert {left.get("not") for left in seen} >= {None, b"", b"e" * 100}
assert any("not" in left and "synced" not in left for left in seen), "names keep no order"
""")


def test_a_rename_keeps_one_of_the_two(watched):
    watched("""
put("next", b"f" * 100)
os.rename(live / "next", live / "before")
seen = [left["before"] for left in cuts()]
assert set(seen) == {b"a" * 9000, b"f" * 100}
""")


def test_a_file_that_was_removed_may_come_back_as_it_was_synced(watched):
    watched("""
os.unlink(live / "before")
seen = [left.get("before") for left in cuts()]
assert set(seen) == {None, b"a" * 9000}
sync_names()
assert all(left == {} for left in cuts(20))
""")


def test_a_sync_of_a_mapping_covers_its_pages(watched):
    watched("""
import ctypes
libc = ctypes.CDLL(None)
libc.msync.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
with open(live / "before", "r+b") as file:
    mapped = mmap.mmap(file.fileno(), 9000)
    mapped[:9000] = b"g" * 9000
    at = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
    assert libc.msync(at + 4096, 4096, 4) == 0
    seen = {left["before"] for left in cuts()}
assert {left[4096:8192] for left in seen} == {b"g" * 4096}
assert {left[0] for left in seen} == {97, 103}
""")


def test_a_kill_keeps_all_and_makes_nothing_certain(watched):
    watched("""
with open(live / "before", "r+b") as file:
    file.write(b"h" * 9000)
put("new", b"i", sync=False)
disk = disk.kill(root / "killed")
disks.add(disk)
assert (root / "killed/before").read_bytes() == b"h" * 9000
seen = list(cuts())
assert {left["before"][0] for left in seen} == {97, 104}
assert {left.get("new") for left in seen} == {None, b"", bytes(1), b"i"}
with open(root / "killed/before", "rb") as file:
    os.fsync(file.fileno())
assert {left["before"][0] for left in cuts()} == {104}
""")
