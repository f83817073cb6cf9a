"""Consume queues and index come back from the log alone, byte for byte, and nothing is lost."""

import pickle
import shutil
import subprocess
import sys

import pytest

import rmqcore
from golden.check import check_store, digest_tree
from golden.stores import packed_stores
from reference.records import Record, encode_record
from reference.values import encode_properties
from rmqcore import rebuild as rebuilding
from rmqcore.errors import CorruptRecordError, StoreLockedError
from rmqcore.rebuild import cold_store

pytestmark = pytest.mark.engine

STORES = packed_stores()
INTACT = [store for store in STORES if store[1] != "crashed"]
CRASHED = [store for store in STORES if store[1] == "crashed"]
DERIVED = ("consumequeue", "batchconsumequeue")


def derived_files(path, root="consumequeue"):
    """Name -> content of the files below a directory."""
    return {
        file.relative_to(path).as_posix(): file.read_bytes()
        for file in sorted((path / root).rglob("*"))
        if file.is_file()
    }


@pytest.mark.parametrize("store", INTACT, ids="-".join)
def test_rebuilt_consume_queues_are_rocketmqs(golden_store, store):
    golden = golden_store(*store)
    before = derived_files(golden.path)
    report = rebuilding.rebuild_consume_queues(golden.path, config=golden.conf, split_size=10_000)
    assert derived_files(golden.path) == before
    assert report.identical
    assert report.digest_before == report.digest_after
    assert report.files == len(before)
    assert not check_store(golden.path, golden.manifest, golden.conf, read_only=True).lines()


@pytest.mark.logic
@pytest.mark.parametrize("store", INTACT, ids="-".join)
def test_a_rebuilt_index_is_rocketmqs_for_what_the_log_has(golden_store, store):
    golden = golden_store(*store)
    before = derived_files(golden.path, "index")
    report = rebuilding.rebuild_index(golden.path, config=golden.conf)
    after = derived_files(golden.path, "index")
    # the log of `aged` has lost its oldest messages, and their entries go with them
    assert (after == before) == report.identical == (golden.name != "aged")
    assert list(after) == list(before)
    assert not check_store(golden.path, golden.manifest, golden.conf, read_only=True).lines()


@pytest.mark.process
@pytest.mark.parametrize("release", ["5.5.0", "4.9.7"])
@pytest.mark.parametrize("name", ["basic", "aged"])
def test_several_processes_write_the_same_files(golden_store, release, name):
    golden = golden_store(release, name)
    report = rebuilding.rebuild_consume_queues(golden.path, jobs=2, split_size=100_000)
    assert report.identical


@pytest.mark.parametrize("store", CRASHED, ids="-".join)
def test_what_a_crash_took_comes_back_as_recovery_brings_it(golden_store, tmp_path, store):
    golden = golden_store(*store)
    recovered = tmp_path / "recovered"
    shutil.copytree(golden.path, recovered)
    rmqcore.open_store(recovered, config=golden.conf).close()
    assert not rebuilding.rebuild_consume_queues(golden.path).identical
    rebuilding.rebuild_index(golden.path)
    assert derived_files(golden.path) == derived_files(recovered)
    mine, theirs = derived_files(golden.path, "index"), derived_files(recovered, "index")
    assert list(mine.values()) == list(theirs.values())


def test_a_queue_whose_messages_have_all_expired_keeps_its_offsets(golden_store):
    golden = golden_store("5.5.0", "aged")
    kept = golden.path / "consumequeue" / "TopicOld" / "0"
    with rmqcore.open_store(golden.path, mode="r") as store:
        expired = store.min_phy_offset
    gone = golden.path / "consumequeue" / "Gone" / "3"
    shutil.copytree(kept, gone)
    files = sorted(gone.iterdir())
    for file in files[1:]:
        file.unlink()
    units = b"".join(
        (expired - 10_000 + 200 * number).to_bytes(8, "big") + (200).to_bytes(4, "big") + bytes(8)
        for number in range(30)
    )
    files[0].write_bytes(units.ljust(1000, b"\0"))
    report = rebuilding.rebuild_consume_queues(golden.path, config=golden.conf)
    first = int(files[0].name) // 20
    assert any(f"goes on at {first + 30}" in note for note in report.notes)
    assert files[0].read_bytes() == units.ljust(1000, b"\0")


def test_without_the_old_files_expired_messages_become_fillers(golden_store):
    golden = golden_store("5.5.0", "aged")
    with rmqcore.open_store(golden.path, mode="r") as store:
        bounds = {queue: store.max_queue_offset(*queue) for queue in store.queues()}
    shutil.rmtree(golden.path / "consumequeue")
    rebuilding.rebuild_consume_queues(golden.path, config=golden.conf)
    with rmqcore.open_store(golden.path, mode="r") as store:
        assert {queue: store.max_queue_offset(*queue) for queue in store.queues()} == bounds
    assert not check_store(golden.path, golden.manifest, golden.conf, read_only=True).lines()


def test_a_store_that_is_open_is_left_alone(store_path):
    with rmqcore.open_store(store_path) as store:
        store.put("T", b"x")
        for rebuild in (rebuilding.rebuild_consume_queues, rebuilding.rebuild_index):
            with pytest.raises(StoreLockedError):
                rebuild(store_path)


def damaged(golden):
    """Flip a bit of a body in the middle of the log; where its record begins."""
    with rmqcore.open_store(golden.path, mode="r") as store:
        message = next(m for m in store.messages() if m.phy_offset > 200_000 and len(m.body) > 20)
        offset, size = message.phy_offset, message.store_size
    start = offset - offset % golden.manifest["mappedFileSizeCommitLog"]
    path = golden.path / "commitlog" / f"{start:020d}"
    data = bytearray(path.read_bytes())
    data[offset - start + 4] ^= 1
    path.write_bytes(data)
    return offset, size


@pytest.mark.parametrize("rebuild", [rebuilding.rebuild_consume_queues, rebuilding.rebuild_index])
def test_a_damaged_log_changes_nothing_unless_damage_may_be_passed_over(golden_store, rebuild):
    golden = golden_store("5.5.0", "basic")
    offset, _ = damaged(golden)
    before = {**derived_files(golden.path), **derived_files(golden.path, "index")}
    with pytest.raises(CorruptRecordError) as caught:
        rebuild(golden.path)
    assert caught.value.phy_offset == offset
    assert {**derived_files(golden.path), **derived_files(golden.path, "index")} == before
    report = rebuild(golden.path, skip_damage=True)
    assert [place for place, _ in report.damaged] == [offset]


def make_store(path, records, size=1 << 16):
    (path / "commitlog").mkdir(parents=True)
    data = b""
    for fields in records:
        data += encode_record(Record(**({"topic": "T", "phy_offset": len(data)} | fields)))
    (path / "commitlog" / f"{0:020d}").write_bytes(data.ljust(size, b"\0"))
    return path


def test_the_first_record_that_claims_a_place_has_it(store_path):
    offsets = [0, 1, 1, 0, 2, 5, 4]
    make_store(store_path, [{"queue_offset": offset} for offset in offsets])
    for jobs in (1, 2):
        rebuilding.rebuild_consume_queues(
            store_path, jobs=jobs, config={"mappedFileSizeConsumeQueue": 200}, split_size=1 << 20
        )
        data = (store_path / "consumequeue/T/0" / f"{0:020d}").read_bytes()
        places = [int.from_bytes(data[at : at + 8], "big") for at in range(0, 120, 20)]
        size = 92
        assert places == [0, size, 4 * size, 0, 0, 5 * size]
        assert data[68:72] == b"\x7f\xff\xff\xff" == data[88:92]


@pytest.mark.parametrize("rotted", [{"queue_offset": 50}, {"queue_offset": 1020}])
@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.process)])
def test_a_number_that_has_rotted_takes_its_record_alone_out_of_the_queue(store_path, rotted, jobs):
    records = [{"queue_offset": number} for number in range(60)]
    records[20] = rotted
    make_store(store_path, records)
    sizes = {"mapped_file_size_consume_queue": 200, "max_hash_slot_num": 8, "max_index_num": 32}
    report = rebuilding.rebuild_consume_queues(store_path, jobs=jobs, split_size=1000, config=sizes)
    assert report.notes[0].startswith("1 records are not where their queue offsets say")
    for mode in ("r", "a", "r"):
        with rmqcore.open_store(store_path, mode=mode, config=sizes) as store:
            found = [message.queue_offset for message in store.messages("T", 0)]
            assert found == [number for number in range(60) if number != 20]
            assert store.max_queue_offset("T", 0) == 60


def test_a_record_that_names_another_queue_hides_none_of_its_messages(store_path):
    records = [{"queue_id": number % 2, "queue_offset": number // 2} for number in range(100)]
    records[41] = {"queue_id": 0, "queue_offset": 40}
    make_store(store_path, records)
    report = rebuilding.rebuild_consume_queues(store_path)
    assert "1 records are not where their queue offsets say" in report.notes[0]
    with rmqcore.open_store(store_path, mode="r") as store:
        assert [message.queue_offset for message in store.messages("T", 0)] == list(range(50))


@pytest.mark.logic
def test_a_queue_offset_that_jumps_too_far_is_refused(store_path):
    make_store(store_path, [{"queue_offset": 0}, {"queue_offset": 2**40}])
    for jobs in (1, 2):
        with pytest.raises(
            CorruptRecordError, match=r"at 92: .* where 1 comes next; rmqcore doctor"
        ):
            rebuilding.rebuild_consume_queues(store_path, jobs=jobs, split_size=1)
        assert not (store_path / "consumequeue").exists()


@pytest.mark.process
def test_a_queue_offset_that_cannot_be_is_passed_over(store_path):
    offsets = [0, 2**40, 1, -1, 2, 2**62]
    make_store(store_path, [{"queue_offset": offset} for offset in offsets])
    for jobs in (1, 2):
        report = rebuilding.rebuild_consume_queues(
            store_path, jobs=jobs, split_size=1, skip_damage=True
        )
        assert [at for at, _ in report.damaged] == [92]
        assert "2 records name a place that no queue has" in report.notes[0]
        data = (store_path / "consumequeue/T/0" / f"{0:020d}").read_bytes()
        places = [int.from_bytes(data[at : at + 8], "big") for at in range(0, 60, 20)]
        assert places == [0, 2 * 92, 4 * 92]


@pytest.mark.parametrize("topic", ["../../outside", "..", ".", "a\0b"])
def test_a_topic_that_is_a_path_writes_nothing_there(tmp_path, topic):
    store = make_store(tmp_path / "a" / "store", [{"topic": topic}, {"topic": "Good"}])
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    rebuilding.rebuild_consume_queues(store)
    after = {path for path in tmp_path.rglob("*") if path.is_file()} - before
    assert {path.relative_to(store).parts[:2] for path in after if path.name != "lock"} == {
        ("consumequeue", "Good")
    }


def test_what_dispatch_writes_is_what_a_rebuild_writes(store_path, rng):
    with rmqcore.open_store(store_path, mapped_file_size_commit_log=1 << 16) as store:
        for number in range(400):
            store.put(
                f"T{rng.randrange(3)}",
                rng.randbytes(rng.randrange(300)),
                queue_id=rng.randrange(3),
                tags=rng.choice([None, "a", "b"]),
                keys=[f"k{number}"] if number % 2 else (),
                properties={"UNIQ_KEY": f"u{number}"} if number % 3 else None,
            )
    before = derived_files(store_path), derived_files(store_path, "index")
    assert rebuilding.rebuild_consume_queues(store_path, split_size=9000).identical
    assert rebuilding.rebuild_index(store_path).identical
    assert (derived_files(store_path), derived_files(store_path, "index")) == before


SMALL_INDEX = {"max_hash_slot_num": 100, "max_index_num": 251}


@pytest.fixture
def indexed(store_path, rng):
    """A log whose records are seconds apart; opening it makes index files of 250 entries."""
    records = [
        {
            "queue_offset": number,
            "store_timestamp_ms": 1_700_000_000_000 + 2100 * number,
            "properties_data": encode_properties(
                {"KEYS": " ".join(f"k{number}-{key}" for key in range(rng.randrange(5)))}
            ),
        }
        for number in range(1500)
    ]
    make_store(store_path, records, 1 << 18)
    rmqcore.open_store(store_path, mapped_file_size_commit_log=1 << 18, **SMALL_INDEX).close()
    return store_path


@pytest.mark.parametrize("split_size", [1 << 30, 1 << 16, 9000, 500])
def test_index_files_are_written_side_by_side(indexed, split_size):
    config = rmqcore.config.load_config(None, **SMALL_INDEX)
    before = derived_files(indexed, "index")
    assert len(before) > 8
    splits = []

    def side_by_side(function, found):
        """Work on the splits in the wrong order, and on some of them twice."""
        splits.append(len(found))
        results = {}
        for split in [*reversed(found), *found[::3]]:
            results[split.start] = pickle.loads(pickle.dumps(function))(split)
        return iter([results[split.start] for split in found])

    done = []
    report = rebuilding.rebuild_index(
        indexed,
        config=config,
        jobs=side_by_side,
        split_size=split_size,
        progress=lambda *shares: done.append(shares),
    )
    assert derived_files(indexed, "index") == before
    assert report.identical
    assert report.records == 1500
    assert report.files == len(before)
    assert splits == [splits[0]] * 2
    assert (splits[0] > 1) == (split_size < 1 << 30)
    assert [share for share, _ in done] == sorted(share for share, _ in done)
    assert done[-1][0] == done[-1][1]


@pytest.mark.process
def test_several_processes_write_the_index(indexed):
    config = rmqcore.config.load_config(None, **SMALL_INDEX)
    before = derived_files(indexed, "index")
    shutil.rmtree(indexed / "index")
    rebuilding.rebuild_index(indexed, config=config, jobs=2, split_size=50_000)
    one = derived_files(indexed, "index")
    assert list(one.values()) == list(before.values())
    shutil.rmtree(indexed / "index")
    rebuilding.rebuild_index(indexed, config=config)
    assert derived_files(indexed, "index") == one


def test_what_a_killed_worker_left_is_no_index_file(indexed):
    config = rmqcore.config.load_config(None, **SMALL_INDEX)

    def leaving(function, found):
        (indexed / "index.rebuild" / ".3-left").write_bytes(b"half a file")
        return map(function, found)

    assert rebuilding.rebuild_index(indexed, config=config, jobs=leaving, split_size=9000).identical


@pytest.mark.logic
def test_damage_is_passed_over_in_every_split(golden_store):
    golden = golden_store("5.5.0", "basic")
    offset, _ = damaged(golden)
    twin = golden.path.with_name("twin")
    shutil.copytree(golden.path, twin)
    found = rebuilding.rebuild_index(golden.path, skip_damage=True, split_size=50_000)
    also = rebuilding.rebuild_index(twin, skip_damage=True, split_size=50_000, jobs=map)
    assert [place for place, _ in found.damaged] == [offset]
    assert also.as_dict() == found.as_dict()


@pytest.mark.logic
def test_the_rule_of_the_existing_index_is_kept(store_path):
    properties = encode_properties({"KEYS": "k", "TAGS": "a"})
    make_store(store_path, [{"properties_data": properties, "queue_offset": n} for n in range(9)])
    rebuilding.rebuild_index(store_path)
    with_tags = sum(len(e) for e in entries(store_path))
    golden_rule = rebuilding.rebuild_index(store_path)
    assert golden_rule.identical
    assert with_tags == 18


def entries(path):
    from rmqcore.doctor import dump

    for file in sorted((path / "index").iterdir()):
        yield [item for item in dump(file) if item.kind == "entry"]


KILLED = """
import os, sys
from rmqcore import rebuild as rebuilding
from rmqcore.rebuild import cold_store
step, calls = 0, 0
def count(name, real):
    def counted(*arguments, **settings):
        global calls
        calls += 1
        if calls == step:
            os._exit(9)
        return real(*arguments, **settings)
    return counted
cold_store.sync_directory = count("sync", cold_store.sync_directory)
cold_store.shutil.rmtree = count("rmtree", cold_store.shutil.rmtree)
exchange = cold_store.exchange_paths if sys.argv[2] == "exchange" else lambda *paths: False
cold_store.exchange_paths = count("exchange", exchange)
while sys.stdin.readline():
    step += 1
    child = os.fork()
    if not child:
        rebuilding.rebuild_consume_queues(sys.argv[1])
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def killed_at_each_step(path, way):
    """Let a rebuild be killed at its first step, its second, ...: how each ended, the last well."""
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(path), way],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        code = None
        while code != 0:
            child.stdin.write("next\n")
            child.stdin.flush()
            code = int(child.stdout.readline())
            yield code
        child.stdin.close()


@pytest.mark.process
@pytest.mark.parametrize("way", ["exchange", "renames"])
def test_killed_between_any_two_steps_nothing_is_lost(golden_store, way):
    golden = golden_store("5.5.0", "aged")
    before = derived_files(golden.path)
    for step, code in enumerate(killed_at_each_step(golden.path, way), 1):
        present = derived_files(golden.path)
        beside = derived_files(golden.path, "consumequeue.before")
        assert (
            present == before
            or {name.replace(".before", ""): data for name, data in beside.items()} == before
        )
        assert code in (0, 9)
        assert step < 100
    assert step > 5
    rebuilding.rebuild_consume_queues(golden.path)
    assert derived_files(golden.path) == before
    left = {path.name for path in golden.path.iterdir()}
    assert not [name for name in left if name.endswith((cold_store._FRESH, cold_store._SET_ASIDE))]


@pytest.mark.logic
def test_digests_tell_content_not_holes(tmp_path):
    from rmqcore.rebuild.digest import tree_digest

    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "f").write_bytes(b"x" + bytes(1 << 20) + b"y")
    with (tmp_path / "b" / "f").open("wb") as stream:
        stream.write(b"x")
        stream.seek((1 << 20) + 1)
        stream.write(b"y")
    assert tree_digest(tmp_path / "a") == tree_digest(tmp_path / "b")
    (tmp_path / "b" / "f").rename(tmp_path / "b" / "g")
    assert tree_digest(tmp_path / "a") != tree_digest(tmp_path / "b")
    assert tree_digest(tmp_path / "a", names=False) == tree_digest(tmp_path / "b", names=False)
    assert digest_tree(tmp_path / "a")
