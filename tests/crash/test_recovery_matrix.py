"""What was lost or damaged, how the store was left, what opening makes of it."""

import shutil

import pytest

import rmqcore
from crash.small_store import SETTINGS, check_against_log, numbers_in, put
from golden.check import check_store, digest_tree
from golden.stores import packed_stores
from rmqcore.doctor import verify
from rmqcore.errors import ConfigError, CorruptRecordError, CorruptStoreError
from rmqcore.rebuild import rebuild_consume_queues

pytestmark = pytest.mark.engine

COUNT = 130
INTACT = [(release, name) for release, name in packed_stores() if name not in ("crashed", "aged")]
LAST = "T0/0"


@pytest.fixture
def written(store_path):
    with rmqcore.open_store(store_path, **SETTINGS) as store:
        for number in range(COUNT):
            put(store, number)
    return store_path


def queue_files(path, queue=LAST):
    return sorted((path / "consumequeue" / queue).iterdir())


def index_files(path):
    return sorted((path / "index").iterdir())


def log_files(path):
    return sorted((path / "commitlog").iterdir())


def cut(file, size):
    with file.open("r+b") as stream:
        stream.truncate(size)


def overwrite(file, at, data):
    with file.open("r+b") as stream:
        stream.seek(at)
        stream.write(data)


LOSSES = {
    "nothing": lambda path: None,
    "every consume queue": lambda path: shutil.rmtree(path / "consumequeue"),
    "one consume queue": lambda path: shutil.rmtree(path / "consumequeue" / LAST),
    "a topic's consume queues": lambda path: shutil.rmtree(path / "consumequeue" / "T1"),
    "first queue file": lambda path: queue_files(path)[0].unlink(),
    "middle queue file": lambda path: queue_files(path)[1].unlink(),
    "last queue file": lambda path: queue_files(path)[-1].unlink(),
    "an empty last queue file": lambda path: cut(queue_files(path)[-1], 0),
    "an empty first queue file": lambda path: cut(queue_files(path)[0], 0),
    "a short last queue file": lambda path: cut(queue_files(path)[-1], 27),
    "a short first queue file": lambda path: cut(queue_files(path)[0], 27),
    "a zeroed queue file": lambda path: queue_files(path)[-1].write_bytes(bytes(200)),
    "a zeroed middle queue file": lambda path: queue_files(path)[1].write_bytes(bytes(200)),
    "a queue file of noise": lambda path: queue_files(path)[1].write_bytes(b"\x5a" * 200),
    "the index": lambda path: shutil.rmtree(path / "index"),
    "first index file": lambda path: index_files(path)[0].unlink(),
    "middle index file": lambda path: index_files(path)[len(index_files(path)) // 2].unlink(),
    "last index file": lambda path: index_files(path)[-1].unlink(),
    "an empty index file": lambda path: cut(index_files(path)[-1], 0),
    "a zeroed index file": lambda path: index_files(path)[1].write_bytes(
        bytes(index_files(path)[1].stat().st_size)
    ),
    "the checkpoint": lambda path: (path / "checkpoint").unlink(),
    "a zeroed checkpoint": lambda path: (path / "checkpoint").write_bytes(bytes(4096)),
    "all that is derived": lambda path: [
        shutil.rmtree(path / "consumequeue"),
        shutil.rmtree(path / "index"),
        (path / "checkpoint").unlink(),
    ],
}


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("loss", LOSSES)
def test_what_is_derived_comes_again_byte_for_byte(written, loss, clean):
    if not clean:
        (written / "abort").write_text("1")
    LOSSES[loss](written)
    with rmqcore.open_store(written, **SETTINGS) as store:
        assert store.recovery_report.clean_shutdown is clean
        assert numbers_in(store) == list(range(COUNT))
        check_against_log(store)
        put(store, COUNT)
        check_against_log(store)
    with rmqcore.open_store(written) as store:
        assert not store.recovery_report.findings
        assert numbers_in(store) == list(range(COUNT + 1))
        check_against_log(store)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(("release", "name"), INTACT)
def test_golden_stores_get_their_derived_files_back(golden_store, release, name, clean):
    golden = golden_store(release, name)
    before = digest_tree(golden.path)
    # 4.9.7 leaves the empty directory of a topic that it has deleted
    before.pop("consumequeue/TopicGone", None)
    for part in ("consumequeue", "index"):
        shutil.rmtree(golden.path / part)
    (golden.path / "checkpoint").unlink()
    if not clean:
        (golden.path / "abort").write_text("1")
    # with no index left, nothing tells that 4.9.7 files no tags
    tally = check_store(golden.path, golden.manifest, golden.conf)
    assert not tally.lines()
    after = digest_tree(golden.path)
    queues = {file: digest for file, digest in before.items() if file.startswith("consumequeue/")}
    assert {f: d for f, d in after.items() if f.startswith("consumequeue/")} == queues


# ---- the log itself

DAMAGE = {
    "a magic code": lambda data, at: data[: at + 4] + b"\0" + data[at + 5 :],
    "a length": lambda data, at: data[:at] + b"\x7f" + data[at + 1 :],
    "a body": lambda data, at: data[: at + 90] + b"\xff" + data[at + 91 :],
    "its own offset": lambda data, at: data[: at + 28] + b"\x7f" + data[at + 29 :],
    "a zeroed head": lambda data, at: data[:at] + bytes(50) + data[at + 50 :],
}


def damage(path, what, number):
    """Damage record `number`; its physical offset, and file."""
    with rmqcore.open_store(path, mode="r") as store:
        offset = [message.phy_offset for message in store.messages()][number]
    file = log_files(path)[offset // 4096]
    file.write_bytes(DAMAGE[what](file.read_bytes(), offset % 4096))
    return offset, file


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_in_front_of_good_records_is_an_error_that_changes_nothing(written, what):
    offset, file = damage(written, what, COUNT - 5)
    before = digest_tree(written / "commitlog")
    for _ in range(2):
        with pytest.raises(CorruptRecordError) as caught:
            rmqcore.open_store(written)
        assert caught.value.path == file
        assert caught.value.phy_offset == offset
        assert "on_corruption" in str(caught.value)
        assert digest_tree(written / "commitlog") == before
        assert not (written / "abort").exists()
    with rmqcore.open_store(written, mode="r") as store:
        assert store.message_at(0).body == b"0 "


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_passed_over_on_request(written, what):
    offset, _ = damage(written, what, COUNT - 5)
    with rmqcore.open_store(written, on_corruption="skip") as store:
        assert [at for at, _ in store.recovery_report.damaged] == [offset]
        lost = COUNT - 5
        wanted = [n for n in range(COUNT) if n != lost]
        found = []
        for topic, queue_id in store.queues():
            result = store.get_message(topic, queue_id, 0, max_messages=1000)
            found += [int(bytes(m.body).split()[0]) for m in result.messages]
            offsets = [m.queue_offset for m in result.messages]
            assert offsets == sorted(set(offsets))
        assert sorted(found) == wanted
        assert put(store, COUNT).ok
        with pytest.raises(CorruptRecordError):
            list(store.messages())


@pytest.mark.parametrize("later", ["skip", "raise"])
def test_what_was_passed_over_stays_out_of_queues_and_index(written, later):
    """Also a body that has rotted in a file whose CRCs an opening need not look at."""
    lost = 7
    offset, file = damage(written, "a body", lost)
    assert file != sorted((written / "commitlog").iterdir())[-1]
    for how in ("skip", later, later):
        with rmqcore.open_store(written, on_corruption=how) as store:
            if how == "skip":
                assert [at for at, _ in store.recovery_report.damaged] == [offset]
            found = []
            for topic, queue_id in store.queues():
                result = store.get_message(topic, queue_id, 0, max_messages=1000)
                found += [int(bytes(m.body).split()[0]) for m in result.messages]
            assert sorted(found) == [n for n in range(COUNT) if n != lost]
            if how == "skip":
                same_key = store.query_message("T1", f"m{lost % 7}", max_messages=100).messages
                numbers = {int(bytes(m.body).split()[0]) for m in same_key}
                assert numbers == {n for n in range(COUNT) if n % 14 == lost % 14} - {lost}


@pytest.mark.parametrize("what", DAMAGE)
def test_the_log_is_cut_at_damage_on_request(written, what):
    offset, _ = damage(written, what, COUNT - 5)
    with rmqcore.open_store(written, on_corruption="truncate") as store:
        assert store.recovery_report.end_offset == offset
        assert store.recovery_report.dropped_records == 4
        assert numbers_in(store) == list(range(COUNT - 5))
        check_against_log(store)


@pytest.mark.parametrize("what", DAMAGE)
def test_a_clean_log_that_lost_its_last_record(written, what):
    damage(written, what, COUNT - 1)
    with pytest.raises(CorruptStoreError, match="on_corruption"):
        rmqcore.open_store(written)
    with rmqcore.open_store(written, on_corruption="truncate") as store:
        assert numbers_in(store) == list(range(COUNT - 1))
        check_against_log(store)


def test_a_clean_log_that_lost_its_tail(written):
    """Zeros where records were: the consume queues know better."""
    last = log_files(written)[-1]
    with rmqcore.open_store(written, mode="r") as store:
        offset = [message.phy_offset for message in store.messages()][COUNT - 3]
    overwrite(last, offset % 4096, bytes(4096 - offset % 4096))
    before = digest_tree(written / "commitlog")
    with pytest.raises(CorruptStoreError) as caught:
        rmqcore.open_store(written)
    assert caught.value.phy_offset == offset
    assert digest_tree(written / "commitlog") == before
    with rmqcore.open_store(written, on_corruption="truncate") as store:
        assert numbers_in(store) == list(range(COUNT - 3))
        check_against_log(store)


def test_a_lost_last_log_file(written):
    log_files(written)[-1].unlink()
    with pytest.raises(CorruptStoreError):
        rmqcore.open_store(written)
    with rmqcore.open_store(written, on_corruption="truncate") as store:
        found = numbers_in(store)
        assert found == list(range(len(found)))
        check_against_log(store)


def test_a_lost_middle_log_file(written):
    log_files(written)[1].unlink()
    for mode in "ar":
        with pytest.raises(CorruptStoreError) as caught:
            rmqcore.open_store(written, mode=mode)
        assert caught.value.phy_offset == 4096
        assert "missing" in str(caught.value)


@pytest.mark.parametrize("torn", [b"\x01", b"\0\0\0\x90\xda\xa3\x20\xa7", b"\xff" * 60])
def test_a_torn_tail_is_cut_off_and_told(written, torn):
    (written / "abort").write_text("1")
    with rmqcore.open_store(written, mode="r") as store:
        end = store.max_phy_offset
    overwrite(log_files(written)[end // 4096], end % 4096, torn)
    with rmqcore.open_store(written) as store:
        report = store.recovery_report
        assert (report.ending, report.end_offset) == ("torn", end)
        assert 0 < report.dropped_bytes <= len(torn)
        assert numbers_in(store) == list(range(COUNT))
        check_against_log(store)


# ---- files that are not what they should be


@pytest.mark.parametrize("size", [1, 4095, 4097, 8192])
@pytest.mark.parametrize("which", [0, 1])
def test_a_log_file_of_another_length(written, which, size):
    file = log_files(written)[which]
    data = file.read_bytes()
    file.write_bytes(data[:size].ljust(size, b"x"))
    with pytest.raises((CorruptStoreError, ConfigError)) as caught:
        rmqcore.open_store(written)
    assert str(file.parent) in str(caught.value)
    assert file.stat().st_size == size
    file.write_bytes(data)
    with rmqcore.open_store(written) as store:
        assert numbers_in(store) == list(range(COUNT))


def test_a_short_last_log_file(written):
    last = log_files(written)[-1]
    data = last.read_bytes()
    with rmqcore.open_store(written, mode="r") as store:
        offset = [m.phy_offset for m in store.messages()][COUNT - 2]
    cut(last, offset % 4096 + 20)
    with pytest.raises(CorruptStoreError, match="cut short"):
        rmqcore.open_store(written)
    assert last.stat().st_size == offset % 4096 + 20
    with rmqcore.open_store(written, mode="r") as store:
        assert numbers_in(store) == list(range(COUNT - 2))
    with rmqcore.open_store(written, on_corruption="truncate") as store:
        assert numbers_in(store) == list(range(COUNT - 2))
        check_against_log(store)
    assert last.stat().st_size == len(data)


def test_foreign_files_are_left_alone(written):
    foreign = {
        "commitlog/readme.txt": b"not ours",
        "commitlog/12345": b"not ours",
        "commitlog/00000000000000000000.bak": b"not ours",
        "consumequeue/stray": b"not ours",
        "consumequeue/T0/notes": b"not ours",
        "consumequeue/T0/notes.d/00000000000000000000": b"not ours",
        "consumequeue/T0/0/lost+found/x": b"not ours",
        "consumequeue/T0/0/0.tmp": b"not ours",
        "index/abc": b"not ours",
        "index/20260101.swp": b"not ours",
        "config/other.json": b"{",
        "something/else": b"not ours",
    }
    for name, data in foreign.items():
        (written / name).parent.mkdir(parents=True, exist_ok=True)
        (written / name).write_bytes(data)
    for mode in "ra":
        with rmqcore.open_store(written, mode=mode) as store:
            assert numbers_in(store) == list(range(COUNT))
            assert store.queues() == [("T0", 0), ("T0", 1), ("T1", 0), ("T1", 1)]
    for name, data in foreign.items():
        assert (written / name).read_bytes() == data


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mapped_file_size_commit_log", 8192),
        ("mapped_file_size_consume_queue", 400),
        ("max_index_num", 65),
        ("max_hash_slot_num", 17),
    ],
)
def test_a_size_that_contradicts_the_files(written, name, value):
    before = digest_tree(written)
    settings = {name: value}
    if name.startswith("max_"):
        settings = {"max_index_num": 64, "max_hash_slot_num": 16} | settings
    with pytest.raises(ConfigError) as caught:
        rmqcore.open_store(written, **settings)
    assert str(value) in str(caught.value)
    assert str(written) in str(caught.value)
    assert digest_tree(written) == before


@pytest.mark.parametrize("clean", [True, False])
def test_queues_without_a_log_are_not_deleted(written, tmp_path, clean):
    """The log lies elsewhere, and the setting that says so was forgotten."""
    (written / "commitlog").rename(tmp_path / "log")
    if not clean:
        (written / "abort").write_text("1")
    before = digest_tree(written / "consumequeue") | digest_tree(written / "index")
    (written / "commitlog").mkdir()
    for refused in (
        lambda: rmqcore.open_store(written),
        lambda: rmqcore.open_store(written, **SETTINGS),
        lambda: rmqcore.open_store(written, mode="r"),
        lambda: rebuild_consume_queues(written),
        lambda: verify(written),
    ):
        with pytest.raises(CorruptStoreError, match="storePathCommitLog"):
            refused()
        assert digest_tree(written / "consumequeue") | digest_tree(written / "index") == before
        assert (written / "abort").exists() is not clean
    with rmqcore.open_store(written, store_path_commit_log=str(tmp_path / "log")) as store:
        assert numbers_in(store) == list(range(COUNT))


def test_a_lost_log_is_passed_over_on_request(written):
    shutil.rmtree(written / "commitlog")
    with rmqcore.open_store(written, on_corruption="truncate", **SETTINGS) as store:
        assert store.queues() == []
        assert put(store, 0).queue_offset == 0


@pytest.mark.parametrize("clean", [True, False])
def test_a_refused_opening_leaves_the_abort_marker_as_it_was(written, clean):
    if not clean:
        (written / "abort").write_text("1")
    (written / "checkpoint").write_bytes(b"\xff" * 4096)
    with pytest.raises(CorruptStoreError):
        rmqcore.open_store(written)
    assert (written / "abort").exists() is not clean
    (written / "checkpoint").unlink()
    log_files(written)[1].unlink()
    with pytest.raises(CorruptStoreError):
        rmqcore.open_store(written)
    assert (written / "abort").exists() is not clean


@pytest.mark.parametrize("garbage", ["unit", "noise"])
def test_garbage_behind_a_queues_end_is_cleared(written, garbage):
    """The log ends where it did at close, so it is the queue that is wrong."""
    with rmqcore.open_store(written, mode="r") as store:
        end, last = store.max_phy_offset, store.max_queue_offset(*LAST.split("/")[:1], 0)
    file = queue_files(written)[last * 20 // 200]
    unit = (end + 500).to_bytes(8, "big") + (150).to_bytes(4, "big") + bytes(8)
    overwrite(file, last * 20 % 200, unit if garbage == "unit" else b"\x01" * 20)
    with rmqcore.open_store(written) as store:
        assert numbers_in(store) == list(range(COUNT))
        assert store.max_queue_offset("T0", 0) == last
        check_against_log(store)
        put(store, COUNT)
        check_against_log(store)


@pytest.mark.parametrize("number", [0, -1])
def test_an_index_of_unusual_sizes_with_a_flipped_slot_is_derived_again(store_path, number):
    sizes = SETTINGS | {"max_hash_slot_num": 25, "max_index_num": 100}
    with rmqcore.open_store(store_path, **sizes) as store:
        for each in range(COUNT):
            put(store, each)
    before = [file.read_bytes() for file in index_files(store_path)]
    file, data = index_files(store_path)[number], before[number]
    at = next(at for at in range(40, 140, 4) if any(data[at : at + 4]))
    overwrite(file, at, bytes([data[at] ^ 0x40]))
    with rmqcore.open_store(store_path) as store:
        assert store.config.max_index_num == 100
        assert len(store.query_message("T0", "k0").messages) == 1
    assert [file.read_bytes() for file in index_files(store_path)] == before


def test_a_refused_opening_loses_no_queue(written):
    """What it has dropped is derived again by the opening that is not refused."""
    offset, _ = damage(written, "a body", COUNT - 5)
    queue_files(written)[1].unlink()
    for _ in range(2):
        with pytest.raises(CorruptRecordError):
            rmqcore.open_store(written)
    with rmqcore.open_store(written, on_corruption="skip", open_check_bytes=0) as store:
        assert [at for at, _ in store.recovery_report.damaged] == [offset]
        found = []
        for topic, queue_id in store.queues():
            result = store.get_message(topic, queue_id, 0, max_messages=1000)
            found += [int(bytes(m.body).split()[0]) for m in result.messages]
        assert sorted(found) == [n for n in range(COUNT) if n != COUNT - 5]


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("properties", [None, {"a": "b"}])
def test_records_that_were_put_without_the_crc_that_is_demanded_are_no_torn_tail(
    tmp_path, count, properties
):
    """Nothing of them has reached the disk for certain, and a power cut leaves none like them."""
    with rmqcore.open_store(tmp_path / "s", **SETTINGS) as store:
        put_all = [b"%d" % number for number in range(count)]
        for body in put_all:
            store.put("T", body, properties=properties)
        shutil.copytree(tmp_path / "s", tmp_path / "copy")
    with pytest.raises(CorruptRecordError, match="without force_verify_prop_crc"):
        rmqcore.open_store(tmp_path / "copy", force_verify_prop_crc=True, **SETTINGS)
    with rmqcore.open_store(tmp_path / "copy", **SETTINGS) as store:
        assert [message.body for message in store.messages("T", 0)] == put_all


@pytest.mark.parametrize("lost", range(1, 24))
def test_a_torn_record_with_its_crc_is_no_record_without(tmp_path, lost):
    """What lies in a sector that is not on the disk is zero, wherever that ends."""
    demands = {**SETTINGS, "force_verify_prop_crc": True}
    with rmqcore.open_store(tmp_path / "s", **demands) as store:
        store.put("T", b"whole", properties={"a": "b"})
        end = store.put("T", b"torn", properties={"a": "b"}).phy_offset
        stop = store.max_phy_offset
        shutil.copytree(tmp_path / "s", tmp_path / "copy")
    (log,) = log_files(tmp_path / "copy")
    for first, size in ((stop - lost, lost), (stop - 24, lost)):
        shutil.copytree(tmp_path / "copy", tmp_path / "torn", dirs_exist_ok=True)
        overwrite(tmp_path / "torn" / "commitlog" / log.name, first, bytes(size))
        with rmqcore.open_store(tmp_path / "torn", **demands) as store:
            assert store.max_phy_offset == end
        shutil.rmtree(tmp_path / "torn")
