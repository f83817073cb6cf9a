"""Splits cover the published log once, begin where records begin, and read back every message."""

import pickle
import shutil
from functools import partial
from importlib import import_module

import pytest

import rmqcore
from golden.stores import packed_stores
from reference.records import Record, encode_record
from reference.splits import fails, rows_in
from rmqcore import scan
from rmqcore.errors import CorruptRecordError, CorruptStoreError, StoreNotFoundError

pytestmark = pytest.mark.logic

INTACT = [store for store in packed_stores() if store[1] != "crashed"]


def offsets(path, size, **selection):
    found = []
    splits = scan.plan(path, split_size=size)
    for split in splits:
        for batch in scan.read(split, ["phy_offset"], uncommitted=True, **selection):
            numbers = batch.numbers("phy_offset").tolist()
            assert all(split.start <= number < split.end for number in numbers)
            found += numbers
    return splits, found


def record_starts(path):
    with rmqcore.open_store(path, mode="r") as store:
        return [message.phy_offset for message in store.messages()], store.max_phy_offset


@pytest.mark.parametrize("store", INTACT, ids="-".join)
def test_every_message_is_in_one_split_whatever_their_size(golden_store, store):
    golden = golden_store(*store)
    expected, end = record_starts(golden.path)
    for size in (1, 3000, 70_000, 1 << 40):
        splits, found = offsets(golden.path, size, batch_rows=7)
        assert found == expected
        assert splits[-1].end == end
        assert [a.end for a in splits[:-1]] == [b.start for b in splits[1:]]
    # the smallest splits begin with a record, or with the end-of-file record of a file
    assert {split.start for split in offsets(golden.path, 1)[0]} <= set(expected)


def test_splits_larger_than_a_file_are_even(golden_store):
    golden = golden_store("5.5.0", "basic")
    sizes = [split.size for split in offsets(golden.path, 100_000)[0]]
    assert len(sizes) > 3
    assert all(100_000 * 7 // 8 <= size <= 100_000 * 9 // 8 for size in sizes[:-1])


@pytest.mark.parametrize("release", ["5.5.0", "4.9.7"])
def test_a_torn_tail_is_not_planned(golden_store, release):
    golden = golden_store(release, "crashed")
    torn = golden.manifest["torn"]
    splits, found = offsets(golden.path, 50_000)
    assert splits[-1].end == int(torn["file"]) + torn["position"]
    assert len(found) == 700


def test_small_and_picklable(golden_store):
    golden = golden_store("5.5.0", "basic")
    for split in scan.plan(golden.path, split_size=20_000):
        assert pickle.loads(pickle.dumps(split)) == split
        assert len(pickle.dumps(split)) < 1000


@pytest.mark.engine
def test_an_empty_store_has_no_splits(store_path):
    rmqcore.open_store(store_path).close()
    assert scan.plan(store_path) == []
    assert list(scan.read_store(store_path)) == []
    with pytest.raises(StoreNotFoundError):
        scan.plan(store_path / "nothing")


@pytest.mark.parametrize("walked", [0, 100_000, 1 << 20])
def test_without_consume_queues_a_log_is_cut_by_a_walk_of_a_bounded_part_of_it(
    golden_store, tmp_path, monkeypatch, walked
):
    module = import_module("rmqcore.scan.plan")
    monkeypatch.setattr(module, "_WALK_MAX", walked)
    monkeypatch.setattr(module, "_CUT_CHUNK_SIZE", 4096)
    golden = golden_store("5.5.0", "basic")
    (golden.path / "consumequeue").rename(tmp_path / "elsewhere")
    expected, _ = record_starts(golden.path)
    splits, found = offsets(golden.path, 6000)
    assert found == expected
    starts = {split.start for split in splits}
    assert starts <= set(expected)
    if not walked:
        assert all(start % 65536 == 0 for start in starts)
    else:
        assert max(split.size for split in splits[: walked // 20_000]) < 20_000


def test_units_that_lie_are_not_cut_at(golden_store):
    golden = golden_store("5.5.0", "basic")
    expected, _ = record_starts(golden.path)
    for path in (golden.path / "consumequeue").rglob("0*"):
        if path.is_file():
            data = bytearray(path.read_bytes())
            for at in range(0, len(data), 20):
                if any(data[at : at + 20]):
                    data[at + 7] ^= 3
            path.write_bytes(data)
    splits, found = offsets(golden.path, 1)
    assert found == expected
    assert {split.start for split in splits} <= set(expected)


@pytest.mark.engine
def test_a_live_store_is_read_up_to_what_is_published(store_path):
    with rmqcore.open_store(store_path) as store:
        for number in range(50):
            store.put("T", b"%d" % number)
        splits, found = offsets(store_path, 1 << 30)
        assert len(found) == 50
        assert splits[-1].end == store.max_phy_offset
        store.put("T", b"later")
        assert [len(b) for s in splits for b in scan.read(s, ["topic"])] == [50]


@pytest.mark.engine
def test_topics_leave_out_what_lies_before_their_first_message(store_path):
    with rmqcore.open_store(store_path) as store:
        for _ in range(20):
            store.put("Early", b"x" * 100)
        first = store.put("Late", b"y").phy_offset
    splits = scan.plan(store_path, topics=["Late"])
    assert splits[0].start == first
    assert [len(b) for b in scan.read_store(store_path, ["topic"], topics=["Late"])] == [1]
    assert scan.plan(store_path, topics=["Early"])[0].start == 0


def log_store(path, data, size):
    """A store whose log is `data`."""
    (path / "commitlog").mkdir(parents=True)
    for start in range(0, max(len(data), 1), size):
        part = data[start : start + size].ljust(size, b"\0")
        (path / "commitlog" / f"{start:020d}").write_bytes(part)
    return path


def records(count, body=b"body"):
    data, starts = b"", []
    for number in range(count):
        starts.append(len(data))
        data += encode_record(
            Record(topic="T", body=body, queue_offset=number, phy_offset=len(data))
        )
    return data, starts


@pytest.mark.engine
def test_queues_that_a_crash_has_emptied_leave_no_message_out(store_path, tmp_path):
    """As after a power cut that lost the units of a topic, or one of its queues, and no others."""
    with rmqcore.open_store(store_path) as store:
        for topic, queue_id in [("first", 0), ("first", 1), ("other", 0)] * 5:
            store.put_message(rmqcore.Message(topic, b"", queue_id=queue_id))
        store.flush()
        crashed = shutil.copytree(store_path, tmp_path / "crashed", copy_function=shutil.copyfile)
    (units,) = (crashed / "consumequeue" / "first" / "0").iterdir()
    units.write_bytes(bytes(units.stat().st_size))
    assert [len(b) for b in scan.read_store(crashed, ["topic"], topics=["first"])] == [10]
    shutil.rmtree(units.parent)
    assert [len(b) for b in scan.read_store(crashed, ["topic"], topics=["first"])] == [10]


def test_damage_is_an_error_with_its_place_or_passed_over(store_path):
    data, starts = records(30)
    broken = bytearray(data)
    broken[starts[10] + 4] ^= 1
    log_store(store_path, bytes(broken), 8192)
    with pytest.raises(CorruptRecordError) as caught:
        offsets(store_path, 1 << 30)
    assert caught.value.phy_offset == starts[10]
    assert caught.value.path.name == f"{0:020d}"
    damage = []
    _, found = offsets(store_path, 1 << 30, on_damage=damage.append)
    assert found == starts[:10] + starts[11:]
    assert [(d.phy_offset, d.next_offset) for d in damage] == [(starts[10], starts[11])]


@pytest.mark.parametrize("damaged", [(), (3,)], ids=["whole", "damaged"])
@pytest.mark.parametrize("torn_at", [0, 1, 30, 95])
def test_records_in_front_of_the_end_of_a_file_that_was_cut_short_are_read(
    store_path, torn_at, damaged
):
    """In one piece with what is gone, behind a damaged record, too."""
    data, starts = records(30)
    broken = bytearray(data)
    for number in damaged:
        broken[starts[number] + 4] ^= 1
    log_store(store_path, bytes(broken), 8192)
    (split,) = scan.plan(store_path, split_size=1 << 30)
    cut = starts[10] + torn_at
    (path,) = (store_path / "commitlog").iterdir()
    path.write_bytes(path.read_bytes()[:cut])

    def read(**more):
        for batch in scan.read(split, ["phy_offset"], batch_rows=1, **more):
            yield from batch.numbers("phy_offset").tolist()

    met, good = [], [starts[number] for number in range(10) if number not in damaged]
    assert list(read(on_damage=met.append)) == good
    rotten = [(starts[number], starts[number + 1]) for number in damaged]
    told = [(one.phy_offset, one.next_offset) for one in met]
    assert told == [*rotten, (starts[10], split.end)]
    assert met[-1].reason == f"the file was cut short: it ends at byte {cut}"
    found = []
    with pytest.raises(CorruptStoreError) as caught:
        found.extend(read())
    assert caught.value.phy_offset == (starts[damaged[0]] if damaged else cut)
    assert found == starts[: damaged[0] if damaged else 10]


def test_a_record_forged_inside_a_body_is_no_row(store_path):
    inner_at = 88  # where the body begins
    forged = encode_record(Record(topic="Forged", body=b"!", phy_offset=inner_at))
    outer = encode_record(Record(topic="T", body=forged, phy_offset=0))
    assert outer[inner_at : inner_at + len(forged)] == forged
    data = outer + encode_record(Record(topic="T", phy_offset=len(outer), queue_offset=1))
    log_store(store_path, data, 8192)
    _, found = offsets(store_path, 1)
    assert found == [0, len(outer)]


def test_a_file_cut_short_or_deleted_after_planning_is_an_error_value(store_path):
    data, _ = records(200)
    log_store(store_path, data[: len(data) // 4096 * 4096], 4096)
    first = encode_record(Record(topic="T", phy_offset=4096))
    path = store_path / "commitlog" / f"{4096:020d}"
    path.write_bytes(first.ljust(4096, b"\0"))
    split = scan.Split(str(store_path), str(store_path / "commitlog"), 4096, 8192, 4096, 4096)
    path.write_bytes(first[:50])
    with pytest.raises(CorruptStoreError, match="cut short") as caught:
        list(scan.read(split))
    assert (caught.value.path, caught.value.phy_offset) == (path, 4096 + 50)
    path.unlink()
    with pytest.raises(scan.RecordsGoneError) as gone:
        list(scan.read(split))
    assert (gone.value.path, gone.value.phy_offset) == (path, 4096)
    assert str(pickle.loads(pickle.dumps(gone.value))) == str(gone.value)


def test_a_split_that_ends_inside_a_record_is_refused(store_path):
    data, starts = records(5)
    log_store(store_path, data, 8192)
    split = scan.plan(store_path, end_phy_offset=starts[3] + 5)[-1]
    with pytest.raises(CorruptRecordError) as caught:
        list(scan.read(split))
    assert caught.value.phy_offset == starts[3]


def test_records_larger_than_a_piece_are_read_whole(store_path):
    data, starts = records(4, body=b"z" * 3000)
    log_store(store_path, data, 1 << 16)
    walk = scan.LogWalk(scan.plan(store_path)[0], chunk_size=1000)
    decoder = rmqcore.native.columns._columns.ColumnDecoder(["phy_offset"])
    for _ in walk.run(decoder.decode):
        pass
    assert decoder.take().numbers("phy_offset").tolist() == starts


def test_any_bytes_give_right_rows_or_a_typed_error(store_path, rng):
    data, starts = records(12)
    log_store(store_path, data, 4096)
    path = store_path / "commitlog" / f"{0:020d}"
    clean = path.read_bytes()
    for _ in range(300):
        broken = bytearray(clean)
        at = rng.randrange(len(data))
        if rng.random() < 0.3:
            broken[at : at + rng.randrange(1, 300)] = bytes(1)
            broken = broken[:4096].ljust(4096, b"\0")
        else:
            broken[at] ^= 1 << rng.randrange(8)
        path.write_bytes(broken)
        damage = []
        _, found = offsets(store_path, 500, on_damage=damage.append, verify_crc=True)
        assert set(found) <= set(starts)
        assert found == sorted(found)


@pytest.mark.process
def test_several_processes_answer_in_order_and_tell_their_progress(golden_store):
    golden = golden_store("5.5.0", "basic")
    splits = scan.plan(golden.path, split_size=200_000)
    told = []
    found = list(scan.run(rows_in, splits, jobs=2, progress=lambda *done: told.append(done)))
    assert [start for start, _ in found] == [split.start for split in splits]
    assert sum(rows for _, rows in found) == 900
    assert told[0][0] == 0
    assert told[-1][0] == told[-1][1] == sum(split.size for split in splits)
    assert list(scan.run(rows_in, splits)) == found


@pytest.mark.process
def test_an_error_in_a_worker_arrives_whole(golden_store):
    golden = golden_store("5.5.0", "basic")
    splits = scan.plan(golden.path, split_size=400_000)
    with pytest.raises(CorruptRecordError, match="on purpose") as caught:
        list(scan.run(partial(fails), splits, jobs=2))
    assert caught.value.phy_offset == 0
