"""Stores that Apache RocketMQ wrote are read whole, left alone in mode "r", and appended to."""

import pytest

import rmqcore
from golden.check import check_store, digest_tree
from golden.stores import packed_stores
from rmqcore import PutMessageStatus

pytestmark = pytest.mark.engine

STORES = packed_stores()
#: Nobody but the store itself puts into the queues of delayed messages.
APPENDABLE = [(release, name) for release, name in STORES if name != "delayed"]
INTACT = [(release, name) for release, name in STORES if name != "crashed"]
CRASHED = [(release, name) for release, name in STORES if name == "crashed"]
#: Folders and files of RocketMQ's that are not ours to touch.
FOREIGN = ("abort.bak", "compaction")


def foreign_files(path):
    return {name: digest for name, digest in digest_tree(path).items() if name.startswith(FOREIGN)}


@pytest.mark.parametrize(("release", "name"), STORES)
def test_an_opened_copy_reads_as_rocketmq_read_it(golden_store, release, name):
    golden = golden_store(release, name)
    tally = check_store(golden.path, golden.manifest, golden.conf)
    assert not tally.lines()
    assert tally.checks > 0


@pytest.mark.logic
@pytest.mark.parametrize(("release", "name"), INTACT)
def test_a_read_only_store_stays_byte_identical(golden_store, release, name):
    golden = golden_store(release, name)
    tally = check_store(golden.path, golden.manifest, golden.conf, read_only=True)
    assert not tally.lines()
    assert tally.checks > 0


@pytest.mark.logic
@pytest.mark.parametrize(("release", "name"), INTACT)
def test_the_sizes_of_a_store_come_from_its_files(golden_store, release, name):
    golden = golden_store(release, name)
    tally = check_store(golden.path, golden.manifest, read_only=True)
    assert not tally.lines()


@pytest.mark.parametrize(("release", "name"), CRASHED)
def test_what_a_crash_tore_is_gone_after_the_first_opening(golden_store, release, name):
    golden = golden_store(release, name)
    torn = golden.manifest["torn"]
    with rmqcore.open_store(golden.path, config=golden.conf) as store:
        end = store.max_phy_offset
    if torn is not None:
        file = golden.path / "commitlog" / torn["file"]
        assert end == int(torn["file"]) + torn["position"]
        left = file.read_bytes()[torn["position"] :]
        assert left == bytes(len(left))
    tally = check_store(golden.path, golden.manifest, golden.conf, read_only=True)
    assert not tally.lines()


@pytest.mark.parametrize(("release", "name"), STORES)
def test_what_is_not_ours_is_left_alone(golden_store, release, name):
    golden = golden_store(release, name)
    before = foreign_files(golden.path)
    with rmqcore.open_store(golden.path, config=golden.conf) as store:
        store.put("TopicA", b"one more", keys="after")
    assert foreign_files(golden.path) == before


@pytest.mark.parametrize(("release", "name"), STORES)
def test_opening_twice_changes_no_message_file(golden_store, release, name):
    golden = golden_store(release, name)
    with rmqcore.open_store(golden.path, config=golden.conf):
        pass
    kept = ("commitlog/", "consumequeue/", "index/")
    before = {n: d for n, d in digest_tree(golden.path).items() if n.startswith(kept)}
    with rmqcore.open_store(golden.path, config=golden.conf):
        pass
    after = {n: d for n, d in digest_tree(golden.path).items() if n.startswith(kept)}
    assert after == before


def append(store, topic, count, mark):
    """Put `count` messages of growing size; return what was put, by physical offset."""
    put = {}
    for number in range(count):
        body = f"{mark} {number} ".encode() * (1 + number % 40)
        result = store.put(topic, body, tags=f"T{number % 3}", keys=(mark, f"{mark}-{number}"))
        assert result.status is PutMessageStatus.PUT_OK
        put[result.phy_offset] = (result.queue_offset, body)
    return put


@pytest.mark.parametrize(("release", "name"), APPENDABLE)
def test_more_is_appended_and_the_store_opened_again(golden_store, release, name):
    golden = golden_store(release, name)
    queue = golden.manifest["queues"][0]
    topic, first = queue["topic"], queue["maxOffset"]
    with rmqcore.open_store(golden.path, config=golden.conf) as store:
        assert store.max_queue_offset(topic, 0) == first
        put = append(store, topic, 400, "first")
    with rmqcore.open_store(golden.path, config=golden.conf) as store:
        put |= append(store, topic, 50, "second")
    with rmqcore.open_store(golden.path, mode="r") as store:
        assert store.max_queue_offset(topic, 0) == first + len(put)
        read = [*store.messages(topic, 0, start=first)]
        got = {m.phy_offset: (m.queue_offset, bytes(m.body)) for m in read}
        assert got == put
        assert [m.queue_offset for m in read] == [*range(first, first + len(put))]
        hits = store.query_message(topic, "second", max_messages=500).messages
        assert len(hits) == 50
        (hit,) = store.query_message(topic, "first-399").messages
        assert put[hit.phy_offset][1] == bytes(hit.body)
        for old in queue["messages"]:
            assert store.message_at(old["phyOffset"]).queue_offset == old["queueOffset"]
