"""The process dies at every failpoint; the power fails and unsynced pages are lost by seed."""

import itertools
import os
import random
import shutil
import signal
import tempfile
from pathlib import Path

import pytest
from metaq.forks import in_fork

from reference import metaq as reference
from rmqcore.errors import StoreClosedError
from rmqcore.metaq import DiscardDeletePolicy, MessageStore, MetaConfig, SystemConfig, World

pytestmark = pytest.mark.process

FAILPOINTS = [
    "before_sync",
    "after_sync",
    "before_roll",
    "after_roll",
    "before_delete",
    "after_delete",
    "before_truncate",
    "after_truncate",
]
PAGE = 4096


def write_until_killed(path, threshold, failpoint, visits, first, out):
    """Append and write the id of each acknowledged message; die at a visit of a failpoint.

    Every third message is one of several in one append.
    """
    left = itertools.count(visits, -1)

    def die(name):
        if name == failpoint and next(left) <= 1:
            os.kill(os.getpid(), signal.SIGKILL)

    settings = SystemConfig(data_path=str(path), unflush_threshold=threshold, max_segment_size=3000)
    store = MessageStore(
        "t",
        0,
        MetaConfig(settings),
        world=World(failpoint=die),
        delete_policy=DiscardDeletePolicy(-1),
    )
    for i in range(first, first + 400):
        if i % 3:
            store.append(i, b"%d " % i * 20)
        else:
            store.append_many([(i, b"%d " % i * 20, 0), (10**6 + i, b"!", 0)])
        os.write(out, b"%d\n" % i)
        if i % 40 == 0 and failpoint.endswith("delete"):
            store.run_delete_policy()
    os.kill(os.getpid(), signal.SIGKILL)


def run_writer(*arguments):
    """Let a child write; returns the ids of what was acknowledged to it."""
    with tempfile.TemporaryFile() as out:
        assert in_fork(lambda: write_until_killed(*arguments, out.fileno())) == -signal.SIGKILL
        out.seek(0)
        return [int(line) for line in out]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("threshold", [0, 10])
@pytest.mark.parametrize("failpoint", FAILPOINTS)
def test_kill_at_a_failpoint_loses_nothing_acknowledged(tmp_path, rng, failpoint, threshold):
    acknowledged = []
    for round_number in range(3):
        first = 1000 * round_number + 1
        if failpoint.endswith("truncate") and round_number:
            newest = max((tmp_path / "t-0").glob("*.meta"))
            with newest.open("ab") as file:
                file.write(b"torn")
        acknowledged += run_writer(tmp_path, threshold, failpoint, rng.randint(1, 6), first)
    config = MetaConfig(SystemConfig(data_path=str(tmp_path), unflush_threshold=threshold))
    with MessageStore("t", 0, config) as store:
        store.flush()
        found = [m for m in store.messages() if m.message_id < 10**6]
        oldest = found[0].message_id if found else 10**9
        ids = [m.message_id for m in found]
        assert ids == sorted(set(ids))
        if not failpoint.endswith("delete"):
            oldest = 0
        assert set(ids) >= {i for i in acknowledged if i >= oldest}
        assert all(m.data == b"%d " % m.message_id * 20 for m in found)
        assert store.holes == ()
        store.append(10**9, b"goes on")


class Disk:
    """Remembers each file as of its last sync; `cut` keeps or loses every page since, by chance."""

    def __init__(self):
        self.synced = {}

    def sync(self, fd):
        os.fdatasync(fd)
        path = Path(f"/proc/self/fd/{fd}").readlink()
        self.synced[path] = path.read_bytes()

    def cut(self, path, rng):
        before, now = self.synced.get(path, b""), path.read_bytes()
        size = rng.choice([len(before), len(now), rng.randint(len(before), len(now))])
        content = bytearray(size)
        for at in range(0, size, PAGE):
            kept = now if rng.random() < 0.5 else before.ljust(len(now), b"\0")
            content[at : at + PAGE] = kept[at : min(at + PAGE, size)]
        content[: len(before)] = before
        path.write_bytes(content)


def forget(store):
    """Let go of everything without writing, as a dead process does."""
    store._commit.stop()
    store._reason = StoreClosedError("the power failed")
    store.segments[-1].messages.abandon()
    store._release()


@pytest.mark.parametrize("threshold", [0, 7])
@pytest.mark.parametrize("_case", range(12))
def test_power_cut_loses_nothing_that_was_on_disk(tmp_path, rng, threshold, _case):
    cut_the_power(tmp_path, rng, threshold)


@pytest.mark.storm
@pytest.mark.parametrize("threshold", [0, 7])
def test_many_power_cuts(tmp_path, rng, threshold):
    for case in range(2000):
        cut_the_power(tmp_path / str(case), rng, threshold)
        shutil.rmtree(tmp_path / str(case))


def cut_the_power(path, rng, threshold):
    disk = Disk()
    config = MetaConfig(
        SystemConfig(data_path=str(path), unflush_threshold=threshold, max_segment_size=60_000)
    )
    durable, written, message_id = [], [], 0
    for _ in range(3):
        store = MessageStore("t", 0, config, world=World(sync=disk.sync))
        found = [(m.message_id, m.data) for m in store.messages()]
        assert found[: len(durable)] == durable
        assert found == written[: len(found)]
        written = found
        for _ in range(rng.randint(1, 60)):
            message_id += 1
            row = (message_id, rng.randbytes(rng.randint(1, 9000)))
            store.append(*row)
            written.append(row)
        durable = [(m.message_id, m.data) for m in store.messages()]
        if threshold == 0:
            assert durable == written
            message_id += 1  # one that was written, and whose flush never came back
            written.append((message_id, rng.randbytes(3 * PAGE)))
            store._tail.append(*written[-1])
        segments = store.segments
        mark = store.path / "high-water-mark"
        forget(store)
        for segment in segments:
            disk.cut(segment.messages.path, rng)
        if rng.random() < 0.3:
            mark.unlink()


def test_the_disk_double_loses_what_was_not_synced(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"old" * 5000)
    disk = Disk()
    with path.open("r+b") as file:
        disk.sync(file.fileno())
        file.seek(0, 2)
        file.write(b"new" * 5000)
    results = set()
    for seed in range(30):
        disk.cut(path, random.Random(seed))
        content = path.read_bytes()
        assert content.startswith(b"old" * 5000)
        results.add(len(content))
        path.write_bytes(b"old" * 5000 + b"new" * 5000)
    assert len(results) > 2


def test_every_byte_of_a_small_partition_flipped_once(tmp_path):
    rows = [(i, b"row %d" % i, 0) for i in range(1, 8)]
    content = b"".join(reference.encode(*row) for row in rows)
    config = MetaConfig(SystemConfig(data_path=str(tmp_path)))
    folder = tmp_path / "t-0"
    folder.mkdir()
    path = folder / f"{0:020d}.meta"
    for at in range(len(content)):
        damaged = bytearray(content)
        damaged[at] ^= 0x10
        path.write_bytes(damaged)
        expected, valid = reference.walk(damaged)
        assert reference.recoverable(damaged) == (len(expected), valid)
        with MessageStore("t", 0, config) as store:
            assert store.max_offset == valid
            assert [m.offset for m in store.messages()] == [row[0] for row in expected]
        cut = list(folder.glob("*.cut"))
        good_behind = any(reference.record_at(damaged, i) for i in range(valid + 1, len(damaged)))
        assert bool(cut) == good_behind
        for copy in cut:
            assert damaged[:valid] + copy.read_bytes() == damaged
            copy.unlink()
        (folder / "high-water-mark").unlink()
