"""Apache RocketMQ opens stores written by rmqcore, and both read the same, field by field."""

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import rmqcore
from golden.check import check_store
from interop.crash_writer import __file__ as crash_writer
from interop.peer import dump, missing
from interop.writers import BOTH, CRASH_SIZES, KINDS, SIZES

pytestmark = [
    pytest.mark.peers,
    pytest.mark.skipif(bool(missing()), reason=f"not on this machine: {', '.join(missing())}"),
]
CASES = [(kind, release) for kind in KINDS for release in kind.releases]


def messages_of(manifest):
    return [message for queue in manifest["queues"] for message in queue["messages"]]


def assert_agreement(store, manifest, conf):
    tally = check_store(store, manifest, conf, read_only=True)
    assert not tally.lines()


def write(kind, path, rng):
    """Write a store; return its sizes, the keys, the number in queues, and the end of the log."""
    with rmqcore.open_store(path, config={**SIZES, **kind.settings}) as store:
        keys, count = kind.write(store, rng)
        conf = path.with_suffix(".conf")
        conf.write_text(store.broker_conf(), "utf-8")
        return conf, keys, count, store.max_phy_offset


@pytest.mark.parametrize(("kind", "release"), CASES, ids=[f"{k.name}-{r}" for k, r in CASES])
def test_rocketmq_reads_what_we_wrote(tmp_path, rng, kind, release):
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    conf, keys, count, end = write(kind, ours, rng)
    shutil.copytree(ours, theirs)
    manifest = dump(release, theirs, conf, keys)
    assert len(messages_of(manifest)) == count
    assert manifest["minPhyOffset"] == 0
    assert manifest["maxPhyOffset"] == end
    assert sum(len(query["phyOffsets"]) for query in manifest["keyQueries"]) > 0
    assert_agreement(ours, manifest, conf)
    # and what RocketMQ's recovery and shutdown left behind still reads the same
    assert_agreement(theirs, manifest, conf)


@pytest.mark.parametrize("release", BOTH)
def test_rocketmq_reads_a_store_that_was_reopened(tmp_path, rng, release):
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    counts, every_key = [], []
    for kind in KINDS[:2]:
        conf, keys, count, end = write(kind, ours, rng)
        counts.append(count)
        every_key += keys
    shutil.copytree(ours, theirs)
    manifest = dump(release, theirs, conf, every_key)
    assert len(messages_of(manifest)) == sum(counts)
    assert manifest["maxPhyOffset"] == end
    assert_agreement(ours, manifest, conf)


def killed_in_the_middle(store: Path, acknowledged: int) -> list[int]:
    """Run the crash writer, kill -9 it after so many puts; return the offsets it acknowledged."""
    tests = Path(crash_writer).parents[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tests), *sys.path])}
    offsets = []
    with subprocess.Popen(
        [sys.executable, crash_writer, store], env=environment, stdout=subprocess.PIPE, text=True
    ) as child:
        for line in child.stdout:
            offsets.append(int(line))
            if len(offsets) == acknowledged:
                child.kill()
        rest = child.wait()
    assert rest == -9
    return offsets


@pytest.mark.parametrize("release", BOTH)
def test_rocketmq_and_we_recover_the_same_after_kill_9(tmp_path, seed, release):
    crashed, theirs, conf = tmp_path / "crashed", tmp_path / "theirs", tmp_path / "crashed.conf"
    # every queue has a file before the crash: StoreDump asks for the queues that it sees on opening
    with rmqcore.open_store(crashed, config=CRASH_SIZES) as store:
        before = {store.put("TopicCrash", b"", queue_id=n).phy_offset for n in range(3)}
        conf.write_text(store.broker_conf(), "utf-8")
    acknowledged = killed_in_the_middle(crashed, random.Random(seed).randrange(50, 1500))
    assert (crashed / "abort").exists()
    shutil.copytree(crashed, theirs)
    manifest = dump(release, theirs, conf, [("TopicCrash", f"R{n}") for n in range(0, 1500, 50)])
    found = {message["phyOffset"] for message in messages_of(manifest)}
    assert found >= before | set(acknowledged)
    tally = check_store(crashed, manifest, conf)
    assert not tally.lines()
    assert_agreement(theirs, manifest, conf)
