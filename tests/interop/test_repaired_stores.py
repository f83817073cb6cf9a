"""Apache RocketMQ opens stores that the doctor has repaired, and finds each whole message."""

import shutil

import pytest
from doctor.damage import (
    damaged_head_of_the_log,
    known_messages,
    missing_log_file,
    short_log_file,
    torn_tail,
    whole,
    zeroed_region,
)

from golden.check import check_store
from interop.peer import dump, missing
from interop.writers import BOTH
from rmqcore import doctor
from rmqcore.config import load_config

pytestmark = [
    pytest.mark.peers,
    pytest.mark.skipif(bool(missing()), reason=f"not on this machine: {', '.join(missing())}"),
]
#: two damages a store: ten stores
DAMAGES = (
    (torn_tail,),
    (zeroed_region, torn_tail),
    (missing_log_file,),
    (damaged_head_of_the_log, missing_log_file),
    (short_log_file, damaged_head_of_the_log),
)
CASES = [
    pytest.param(release, damages, id="-".join([*(one.__name__ for one in damages), release]))
    for damages in DAMAGES
    for release in BOTH
]


def by_place(manifest):
    return {
        (queue["topic"], queue["queueId"], message["queueOffset"]): message
        for queue in manifest["queues"]
        for message in queue["messages"]
    }


@pytest.mark.parametrize(("release", "damages"), CASES)
def test_rocketmq_finds_every_whole_message_of_a_repaired_store(golden_store, release, damages):
    golden = golden_store(release, "basic")
    store, theirs = golden.path, golden.path.with_name("theirs")
    known = known_messages(store)
    for damage in damages:
        damage(store)
    left = whole(store, known, load_config(golden.conf).mapped_file_size_commit_log)
    report = doctor.repair(store, config=golden.conf)
    assert report.clean
    shutil.copytree(store, theirs)
    keys = [(query["topic"], query["key"]) for query in golden.manifest["keyQueries"]]
    manifest = dump(release, theirs, golden.conf, keys)
    before, after = by_place(golden.manifest), by_place(manifest)
    assert left
    for one in left:
        place = one.topic, one.queue_id, one.queue_offset
        assert after[place] == before[place]
    # both read the same of it, also of what RocketMQ's recovery and shutdown have left
    assert not check_store(store, manifest, golden.conf, read_only=True).lines()
    assert not check_store(theirs, manifest, golden.conf, read_only=True).lines()
    assert doctor.plan(theirs, config=golden.conf).clean
