"""A selection reads little of the log, and answers as a walk over all of it does."""

import shutil
from importlib import import_module

import pytest

import rmqcore
from golden.stores import packed_stores
from rmqcore.errors import CorruptConsumeQueueError, CorruptRecordError, RecordsGoneError
from rmqcore.native.columns._columns import ColumnDecoder
from rmqcore.scan import open_log, read, read_store
from rmqcore.scan.queue_walk import QueueWalk
from rmqcore.scan.selected import SelectedLog
from rmqcore.scan.selection import HIDDEN, RowFilter
from rmqcore.scan.shown_topics import shown

pytestmark = pytest.mark.engine

INTACT = [store for store in packed_stores() if store[1] != "crashed"]
COUNT = 20_000


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Runs of a hundred messages of ten topics with four queues each, in files of 1 MiB."""
    path = tmp_path_factory.mktemp("selected") / "store"
    with rmqcore.open_store(path, mapped_file_size_commit_log=1 << 20) as opened:
        for start in range(0, COUNT, 100):
            batch = [
                rmqcore.Message(
                    f"Topic{start // 100 % 10}",
                    b"%0200d" % number,
                    queue_id=start // 1000 % 4,
                    tags=f"Tag{number % 3}",
                    keys=[f"K{number}", f"G{number % 50}"],
                )
                for number in range(start, start + 100)
            ]
            opened.put_messages(batch)
    return path


def walked(path, **selection):
    """Physical offsets of a selection, by a walk over the whole log."""
    log = open_log(path)
    wanted = shown(log, selection)
    return [
        offset
        for split in log.splits()
        for batch in read(split, ["phy_offset"], **wanted)
        for offset in batch.numbers("phy_offset").tolist()
    ]


def selected(path, split_size=1 << 20, **selection):
    """(the same as `SelectedLog` plans them, bytes of the log that were read)."""
    log = open_log(path)
    wanted = shown(log, selection)
    found, size = [], 0
    for split in SelectedLog(log, wanted).splits(split_size):
        if split.units is None:
            size += split.size
        else:
            chosen = RowFilter(**wanted)
            walk = QueueWalk(split, chosen)
            for _ in walk.run(ColumnDecoder(["phy_offset"], row_max=1 << 16, rows=chosen)):
                pass
            size += walk.bytes_read
        for batch in read(split, ["phy_offset"], batch_rows=77, **wanted):
            offsets = batch.numbers("phy_offset").tolist()
            assert all(split.start <= offset < split.end for offset in offsets)
            found += offsets
    return found, size


SELECTIONS = [
    {"topics": ["Topic3"]},
    {"topics": ["Topic3", "Topic7"], "queue_ids": [1, 2]},
    {"topics": ["Topic3"], "tags": ["Tag1"]},
    {"topics": ["Topic3"], "keys": ["K350", "G7"]},
    {"topics": ["Topic3"], "queue_offsets": {"Topic3": {0: (150, 320)}}},
    {"topics": ["Topic3"], "begin_phy_offset": 1_000_000, "end_phy_offset": 3_000_000},
    {"topics": ["Topic3"], "queue_ids": []},
    {"topics": []},
]


@pytest.mark.parametrize("selection", SELECTIONS, ids=str)
@pytest.mark.parametrize("split_size", [50_000, 1 << 30])
def test_what_is_read_through_queues_is_what_a_walk_finds(store, selection, split_size):
    found, size = selected(store, split_size, **selection)
    assert found == walked(store, **selection)
    assert size < 0.3 * open_log(store).end


@pytest.mark.parametrize("split_size", [50_000, 1 << 30])
def test_queues_may_be_shown_from_different_places_on(store, split_size):
    selection = {
        "topics": ["Topic3"],
        "topic_rule": lambda _: (1_000_000, {1: 2_000_000, 2: HIDDEN}),
    }
    assert selected(store, split_size, **selection)[0] == walked(store, **selection)


def test_messages_in_front_of_where_a_queue_is_shown_from_are_not_counted(store):
    log, queues = open_log(store), {("Topic3", 0): 1_000_000, ("Topic3", 1): 2_000_000}
    rule = (HIDDEN, {queue_id: place for (_, queue_id), place in queues.items()})
    counts = SelectedLog(log, {"topics": ["Topic3"], "topic_rule": lambda _: rule}).queue_counts()
    for (topic, queue_id), place in queues.items():
        found = walked(store, topics=[topic], queue_ids=[queue_id], begin_phy_offset=place)
        assert counts[topic, queue_id] == len(found)


def test_a_tenth_of_the_topics_reads_a_tenth_of_the_log(store):
    found, size = selected(store, topics=["Topic3"])
    assert len(found) == COUNT // 10
    assert size < 0.11 * open_log(store).end


def test_most_topics_are_walked(store):
    topics = [f"Topic{number}" for number in range(5)]
    splits = SelectedLog(log := open_log(store), shown(log, {"topics": topics})).splits()
    assert all(split.units is None for split in splits)


def test_a_file_that_is_deleted_while_a_plan_is_cut_is_told_by_who_reads_it(store_path):
    with rmqcore.open_store(store_path, mapped_file_size_commit_log=1 << 16) as store:
        for number in range(60):
            store.put("T", bytes(10_000), queue_id=number % 2)
    log = open_log(store_path)
    (start, path, _), (stop, _, _) = log.files[3:5]
    path.unlink()
    wanted = {"begin_ms": 0, "topic_rule": lambda _: (0, {})}
    splits = SelectedLog(log, wanted).splits(20_000)
    assert [split.start for split in splits[1:]] == [split.end for split in splits[:-1]]
    with pytest.raises(RecordsGoneError):
        [list(read(split)) for split in splits]
    found = [read(split, ["phy_offset"], on_damage=lambda _: None) for split in splits]
    places = [place for part in found for one in part for place in one.numbers("phy_offset")]
    assert len(places) > 40
    assert not any(start <= place < stop for place in places)


def test_a_file_that_its_writer_removes_again_is_not_the_end_of_the_log(store_path, monkeypatch):
    with rmqcore.open_store(store_path, mapped_file_size_commit_log=1 << 16) as opened:
        opened.put("T", b"one")
    end = open_log(store_path).end
    ahead = store_path / "commitlog" / f"{1 << 16:020d}"
    ahead.write_bytes(bytes(1 << 16))
    plan = import_module("rmqcore.scan.plan")
    listed = plan.numbered_files

    def listed_before_it_is_removed(directory):
        found = listed(directory)
        ahead.unlink(missing_ok=True)
        return found

    monkeypatch.setattr(plan, "numbered_files", listed_before_it_is_removed)
    assert open_log(store_path).end == end


@pytest.mark.parametrize("packed", INTACT, ids="-".join)
def test_every_topic_and_queue_of_a_golden_store(golden_store, packed):
    golden = golden_store(*packed)
    with rmqcore.open_store(golden.path, mode="r", config=golden.conf) as opened:
        queues = opened.queues()
    for topic, queue_id in queues:
        selection = {"topics": [topic], "queue_ids": [queue_id]}
        assert selected(golden.path, **selection)[0] == walked(golden.path, **selection)


def test_units_that_lie_are_told_or_walked_past(store, tmp_path):
    path = tmp_path / "store"
    shutil.copytree(store, path)
    (file,) = (path / "consumequeue/Topic3/1").iterdir()
    right = file.read_bytes()
    wanted = walked(path, topics=["Topic3"])

    def changed(number, at, value):
        data = bytearray(right)
        data[number * 20 + at] ^= value
        file.write_bytes(data)

    # a place where no record begins, and one of another topic's record far away
    changed(200, 7, 1)
    assert selected(path, topics=["Topic3"])[0] == wanted
    other = walked(path, topics=["Topic5"])
    place = other[len(other) // 2]
    data = bytearray(right)
    number = next(
        n for n in range(500) if int.from_bytes(right[n * 20 : n * 20 + 8], "big") > place
    )
    data[number * 20 : number * 20 + 8] = place.to_bytes(8, "big")
    file.write_bytes(data)
    with pytest.raises(CorruptConsumeQueueError, match="rebuild cq"):
        selected(path, topics=["Topic3"])


@pytest.mark.parametrize("first", [0, 3, 200, 480])
@pytest.mark.parametrize("place", [None, -7, 0, 1 << 62], ids=str)
def test_units_that_no_writer_leaves_hide_no_message(store, tmp_path, first, place):
    """A page of zeros, as a power cut leaves it, or of places that are none."""
    path = tmp_path / "store"
    shutil.copytree(store, path)
    (file,) = (path / "consumequeue/Topic3/1").iterdir()
    data = bytearray(file.read_bytes())
    for number in range(first, first + 20):
        head = bytes(8) if place is None else place.to_bytes(8, "big", signed=True)
        size = bytes(4) if place is None else data[number * 20 + 8 : number * 20 + 12]
        data[number * 20 : number * 20 + 12] = head + size
    file.write_bytes(data)
    for selection in (
        {"topics": ["Topic3"]},
        {"topics": ["Topic3"], "queue_ids": [1]},
        {"topics": ["Topic3"], "begin_phy_offset": 1_000_000, "end_phy_offset": 3_000_000},
        {"topics": ["Topic3"], "queue_offsets": {"Topic3": {1: (100, 300)}}},
    ):
        assert selected(path, **selection)[0] == walked(path, **selection)


def test_a_damaged_record_is_told_as_a_walk_tells_it(store, tmp_path):
    path = tmp_path / "store"
    shutil.copytree(store, path)
    place = walked(path, topics=["Topic3"])[700]
    file = path / "commitlog" / f"{place >> 20 << 20:020d}"
    data = bytearray(file.read_bytes())
    data[(place & 0xFFFFF) + 4] ^= 1
    file.write_bytes(data)
    with pytest.raises(CorruptRecordError) as caught:
        selected(path, topics=["Topic3"])
    assert caught.value.phy_offset == place
    log = open_log(path)
    wanted = shown(log, {"topics": ["Topic3"]})
    damaged = []
    rows = [
        len(batch)
        for split in SelectedLog(log, wanted).splits()
        for batch in read(split, ["phy_offset"], on_damage=damaged.append, **wanted)
    ]
    assert sum(rows) == COUNT // 10 - 1
    assert [one.phy_offset for one in damaged] == [place]


def test_a_queue_that_was_lost_is_found_in_the_log(store, tmp_path):
    path = tmp_path / "store"
    shutil.copytree(store, path)
    wanted = walked(path, topics=["Topic3"])
    shutil.rmtree(path / "consumequeue/Topic3/2")
    assert selected(path, topics=["Topic3"])[0] == wanted


def test_what_a_writer_has_not_given_its_queues_yet_is_walked(tmp_path):
    path = tmp_path / "store"
    with rmqcore.open_store(path) as opened:
        for number in range(3000):
            opened.put(f"T{number % 10}", b"%0200d" % number)
        log = open_log(path)
        splits = SelectedLog(log, shown(log, {"topics": ["T3"]})).splits()
        assert [split.units for split in splits] == [None]
        assert len(read_store(path, topics=["T3"]).to_arrow()) == 300


def test_beside_a_writer_queues_are_read_up_to_a_record_before_what_it_may_still_write(
    store, tmp_path, monkeypatch
):
    module = import_module("rmqcore.scan.plan")
    path = tmp_path / "store"
    shutil.copytree(store, path)
    wanted = walked(path, topics=["Topic3"])
    with rmqcore.open_store(path, mapped_file_size_commit_log=1 << 20):
        for size in (1000, 12_345, 600_000):
            monkeypatch.setattr(module, "_DISPATCHED_AT_ONCE", size)
            log = open_log(path)
            assert log.start < log.trusted_end <= log.known_end - size
            found, _ = selected(path, topics=["Topic3"])
            assert found == wanted
            splits = SelectedLog(log, shown(log, {"topics": ["Topic3"]})).splits()
            assert [split.units is None for split in splits] == [False, True]


# ---- times


@pytest.fixture(scope="module")
def long_store(tmp_path_factory):
    """A thousand messages a minute of store time, in files of 1 MiB, for an hour and a half."""
    path = tmp_path_factory.mktemp("long") / "store"
    clock = tmp_path_factory.mktemp("clock")
    del clock
    return written_over_time(path, lambda number: number // 100 * 6_000)


def written_over_time(path, after_ms):
    with rmqcore.open_store(path, mapped_file_size_commit_log=1 << 20) as opened:
        for start in range(0, COUNT, 100):
            opened.parts.files.tail.fixed_time_ms = 1_700_000_000_000 + after_ms(start)
            opened.put_messages(
                [
                    rmqcore.Message(f"T{start // 100 % 3}", b"%0200d" % number)
                    for number in range(start, start + 100)
                ]
            )
    return path


@pytest.mark.parametrize(
    "minutes", [(None, 2), (1, 2), (15, 17), (18, None), (0, 0), (30, 40), (19.95, None)]
)
def test_times_cut_both_ends(long_store, minutes):
    times = {
        name: 1_700_000_000_000 + int(value * 60_000)
        for name, value in zip(("begin_ms", "end_ms"), minutes, strict=True)
        if value is not None
    }
    found, size = selected(long_store, **times)
    assert found == walked(long_store, **times)
    begin, end = (minutes[0] or 0), (20 if minutes[1] is None else minutes[1])
    # ten seconds at each end for a clock that was set back
    assert size <= open_log(long_store).end * (max(0, min(end, 20) - begin) + 1) / 20


def test_a_clock_that_was_set_back_cuts_nothing(tmp_path):
    def after_ms(number):
        return number * 60 - (600_000 if number >= COUNT // 2 else 0)

    path = written_over_time(tmp_path / "store", after_ms)
    for begin, end in ((0, 100_000), (500_000, 560_000), (580_000, None)):
        times = {"begin_ms": 1_700_000_000_000 + begin}
        if end is not None:
            times["end_ms"] = 1_700_000_000_000 + end
        assert selected(path, **times)[0] == walked(path, **times) != []
