"""One partition: thresholds, group commit, roll, offsets, holes, retention, failures."""

import gc
import os
import runpy
import threading
import time
from pathlib import Path

import pytest
from patience import TIMEOUT_S, until
from syncs import watched

from reference import metaq as reference
from rmqcore.errors import (
    CorruptStoreError,
    StoreClosedError,
    StoreNotWritableError,
)
from rmqcore.metaq import (
    ArchiveDeletePolicy,
    DiscardDeletePolicy,
    Hole,
    IllegalTopicError,
    MessageStore,
    MissingSegmentError,
    OffsetTooSmallError,
    World,
    commit,
    segments,
)
from rmqcore.metaq.segments import nearest_offset, segment_name

pytestmark = pytest.mark.engine


def fill(store, count=20, size=100):
    for i in range(1, count + 1):
        store.append(i, b"%06d" % i + b"x" * (size - 6))


# ---- append and flush ----


def test_what_is_appended_comes_back(open_store):
    store = open_store()
    location = store.append(7, b"payload", 0)
    assert (location.offset, location.length) == (0, 27)
    store.flush()
    (message,) = store.messages()
    assert (message.message_id, message.data, message.offset) == (7, b"payload", 0)
    assert (message.topic, message.partition) == ("t", 0)


def test_unflushed_appends_are_invisible_until_the_threshold(open_store):
    store = open_store(unflush_threshold=3)
    for i in range(1, 4):
        store.append(i, b"x")
    assert store.max_offset == 0
    store.append(4, b"x")
    assert store.max_offset == 4 * 21
    assert store.durability == "page_cache"


def test_the_interval_flushes_with_the_next_append(open_store):
    store = open_store(unflush_interval_ms=3_600_000)
    store.append(1, b"x")
    assert store.max_offset == 0
    store._tail.flush_interval_ms = 5
    passed_at = time.monotonic() + 0.02
    until(lambda: time.monotonic() > passed_at, "the interval")
    store.append(2, b"x")
    assert store.max_offset == 42


def test_group_commit_waits_for_the_disk(open_store):
    synced = []

    def sync(fd):
        synced.append(os.fstat(fd).st_size)

    store = open_store(unflush_threshold=0, world=World(sync=sync))
    location = store.append(1, b"x")
    assert synced[-1] >= location.offset + location.length == store.max_offset
    assert store.durability == "disk"


def test_one_flush_serves_everything_that_waits(open_store):
    entered, go_on, syncs = threading.Event(), threading.Event(), []

    def sync(_fd):
        syncs.append(1)
        entered.set()
        go_on.wait(TIMEOUT_S)

    store = open_store(unflush_threshold=0, world=World(sync=sync))
    futures = [store.append_async(1, b"first")]
    assert entered.wait(TIMEOUT_S)
    futures += [store.append_async(i, b"x" * i) for i in range(2, 50)]
    futures.append(store.append_many_async([(50, b"a", 0), (51, b"b", 0)]))
    assert not any(future.done() for future in futures)
    go_on.set()
    locations = [future.result(TIMEOUT_S) for future in futures]
    assert [a.offset + a.length for a in locations[:-1]] == [b.offset for b in locations[1:]]
    assert len(syncs) == 2


def test_a_library_that_replaces_queues_but_not_threads_is_no_hindrance(monkeypatch):
    """So gevent's patch_all(thread=False) does."""
    monkeypatch.setattr("queue.SimpleQueue", None)
    flushed = []
    one = runpy.run_path(commit.__file__)["CommitThread"]("flushes", lambda: flushed.append(1))
    one.wait()
    one.stop()
    assert flushed == [1]


def test_a_large_message_waits_for_the_disk_too(open_store):
    synced = []
    world = World(sync=lambda fd: synced.append(os.fstat(fd).st_size))
    store = open_store(unflush_threshold=0, world=world)
    store.append(1, b"x" * 600_000)
    assert synced[-1] == 600_020


@pytest.mark.parametrize("threshold", [0, 30])
def test_many_threads_lose_and_tear_nothing(open_store, threshold):
    store = open_store(unflush_threshold=threshold, max_segment_size=20_000)
    places = {}

    def work(thread):
        for i in range(100):
            message_id = thread * 1000 + i + 1
            places[message_id] = store.append(message_id, b"%d" % message_id * 10)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store.flush()
    found = {m.message_id: (m.offset, m.data) for m in store.messages()}
    assert found == {i: (p.offset, b"%d" % i * 10) for i, p in places.items()}
    assert len(store.segments) > 1


def test_what_comes_between_a_flush_and_a_roll_is_flushed_before_the_next_segment(open_store):
    flushed = []

    def at(name):
        if name == "before_roll":
            flushed.append(store.max_offset)

    store = open_store(unflush_threshold=1000, world=World(failpoint=at))
    store.append(1, b"x")
    store._roll(store.segments[-1])
    assert flushed == [21]
    assert [message.message_id for message in store.messages()] == [1]


def test_a_refused_flush_ends_appends_for_good(open_store):
    broken = []

    def sync(_fd):
        if broken:
            raise OSError(5, "Input/output error")

    store = open_store(unflush_threshold=0, world=World(sync=sync))
    store.append(1, b"good")
    broken.append(True)
    with pytest.raises(StoreNotWritableError, match="refused a flush"):
        store.append(2, b"lost?")
    broken.clear()
    depths = set()
    for _ in range(3):
        with pytest.raises(StoreNotWritableError) as caught:
            store.append(3, b"never")
        depths.add(len(caught.traceback))
    # who is told again is told nothing of who was told before
    assert len(depths) == 1
    assert "refused a flush" in store.why_not_writable()
    assert [m.message_id for m in store.messages()] == [1]


def test_a_refused_flush_of_a_threshold_is_told_to_the_append_that_reached_it(open_store):
    def sync(_fd):
        raise OSError(5, "Input/output error")

    store = open_store(unflush_threshold=2, world=World(sync=sync))
    store.append(1, b"x")
    store.append(2, b"x")
    for _ in range(2):
        with pytest.raises(StoreNotWritableError, match="refused a flush"):
            store.append(3, b"x")
    with pytest.raises(StoreNotWritableError):
        store.flush()


def test_a_roll_that_fails_lets_the_full_segment_grow(open_store, monkeypatch, caplog):
    store = open_store(max_segment_size=100)
    fill(store, 1)
    real = os.open

    def full(path, flags, *args, **options):
        if str(path).endswith(".meta") and flags & os.O_CREAT:
            raise OSError(28, "No space left on device")
        return real(path, flags, *args, **options)

    monkeypatch.setattr(os, "open", full)
    fill(store, 3)
    assert caplog.text.count("the full one grows on") == 1
    assert (len(store.segments), store.max_offset) == (2, 120 + 360)
    monkeypatch.undo()
    fill(store, 1)
    assert [s.start for s in store.segments] == [0, 120, 600]


def test_a_roll_leaves_a_file_alone_that_it_has_not_made(open_store, caplog):
    store = open_store(max_segment_size=100)
    foreign = store.path / segment_name(120)
    foreign.write_bytes(b"of a copy that is put back")
    fill(store, 2)
    assert foreign.read_bytes() == b"of a copy that is put back"
    assert ([s.start for s in store.segments], store.max_offset) == ([0, 240], 240)
    assert "the full one grows on" in caplog.text


def test_a_refused_flush_fails_every_waiting_future(open_store):
    go_on = threading.Event()

    def sync(_fd):
        go_on.wait(TIMEOUT_S)
        raise OSError(5, "Input/output error")

    store = open_store(unflush_threshold=0, world=World(sync=sync))
    futures = [store.append_async(i, b"x") for i in range(1, 10)]
    go_on.set()
    assert all(isinstance(f.exception(TIMEOUT_S), StoreNotWritableError) for f in futures)


def test_a_store_that_is_closed_and_dropped_leaves_no_descriptor(config, tmp_path):
    gc.collect()
    gc.disable()
    try:
        with MessageStore("t", 0, config()) as store:
            fill(store)
        del store
        links = [link.readlink() for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
        assert not [link for link in links if tmp_path in link.parents]
    finally:
        gc.enable()


def test_closing_completes_what_waits_on_disk(open_store):
    synced = []

    def sync(fd):
        # all of them wait when the store begins to close
        until(lambda: store._commit._stopped, "the closing")
        synced.append(os.fstat(fd).st_size)

    store = open_store(unflush_threshold=0, world=World(sync=sync))
    futures = [store.append_async(i, b"x") for i in range(1, 6)]
    store.close()
    assert all(future.done() for future in futures)
    assert synced[-1] == 5 * 21
    with pytest.raises(StoreClosedError):
        store.append(9, b"x")
    store.close()


# ---- segments ----


def test_a_full_segment_is_followed_by_the_next(open_store):
    store = open_store(max_segment_size=500)
    fill(store, 12)
    starts = [segment.start for segment in store.segments]
    assert starts == [0, 600, 1200]
    names = sorted(p.name for p in store.path.glob("*.meta"))
    assert names == [segment_name(s) for s in starts]
    assert [s.messages.mutable for s in store.segments] == [False, False, True]
    store.flush()
    assert [m.message_id for m in store.messages()] == list(range(1, 13))


def test_a_log_may_begin_anywhere(open_store):
    store = open_store(offset_if_create=12_345)
    assert store.append(1, b"x").offset == 12_345
    store.flush()
    assert (store.min_offset, store.max_offset) == (12_345, 12_366)
    assert (store.path / segment_name(12_345)).exists()


def test_nearest_offset_table(tmp_path):
    class Fake:
        def __init__(self, size):
            self.high_water_mark = size

    from rmqcore.metaq import Segment

    segments = tuple(Segment(i * 1024, Fake(1024)) for i in range(4))
    table = {-100: 0, 1023: 0, 1024: 1024, 2536: 2048, 3073: 3072, 4096: 4096, 16384: 4096}
    assert {o: nearest_offset(segments, o) for o in table} == table


def test_slices_end_at_the_segment_and_outside_there_is_none(open_store):
    store = open_store(max_segment_size=500, unflush_threshold=0)
    fill(store, 12)
    assert store.slice(0, 10_000).size_in_bytes == 600
    assert store.slice(599, 10_000).size_in_bytes == 1
    assert store.slice(600, 50).read() == (store.path / segment_name(600)).read_bytes()[:50]
    assert store.slice(store.max_offset, 10) is None
    with pytest.raises(OffsetTooSmallError):
        store.slice(-1, 10)


def test_iteration_starts_and_stops_at_records(open_store):
    store = open_store(unflush_threshold=0)
    places = [store.append(i, b"x" * i).offset for i in range(1, 10)]
    assert [m.message_id for m in store.messages(places[2], places[5])] == [3, 4, 5]
    with pytest.raises(CorruptStoreError):
        list(store.messages(places[2] + 1))


def test_a_message_larger_than_the_read_size_is_iterated(open_store):
    store = open_store(unflush_threshold=0)
    store.append_many([(1, b"a" * 3_000_000, 0), (2, b"b", 0)])
    assert [len(m.data) for m in store.messages()] == [3_000_000, 1]


def write_segments(path, starts_and_contents):
    path.mkdir(parents=True, exist_ok=True)
    for start, content in starts_and_contents:
        (path / segment_name(start)).write_bytes(content)


A, B, C = (reference.encode(i, b"x" * 30) for i in (1, 2, 3))


def test_a_hole_left_by_the_original_does_not_stop_the_start(open_store, tmp_path):
    write_segments(tmp_path / "meta" / "t-0", [(0, A), (100, B), (150, C)])
    store = open_store()
    assert store.holes == (Hole(50, 100),)
    with pytest.raises(MissingSegmentError) as caught:
        store.slice(60, 10)
    assert (caught.value.phy_offset, caught.value.next_offset) == (60, 100)
    assert store.nearest_offset(60) == 100
    with pytest.raises(MissingSegmentError):
        list(store.messages())
    assert [m.message_id for m in store.messages(across_holes=True)] == [1, 2, 3]
    assert store.append(4, b"goes on").offset == 200


def test_a_truncated_middle_segment_ends_at_its_last_whole_message(open_store, tmp_path):
    write_segments(tmp_path / "meta" / "t-0", [(0, A + B[:-3]), (100, C)])
    store = open_store()
    assert store.holes == (Hole(50, 100),)
    assert [m.message_id for m in store.messages(across_holes=True)] == [1, 3]


def test_overlapping_segments_are_refused(open_store, tmp_path):
    write_segments(tmp_path / "meta" / "t-0", [(0, A + B), (50, C)])
    with pytest.raises(CorruptStoreError, match="overlaps") as caught:
        open_store()
    assert caught.value.phy_offset == 50
    assert caught.value.path.name == segment_name(0)


def test_damage_in_an_old_segment_is_found_when_it_is_read(open_store, tmp_path):
    damaged = bytearray(A + B)
    damaged[70] ^= 1
    write_segments(tmp_path / "meta" / "t-0", [(0, bytes(damaged)), (100, C)])
    store = open_store()
    got = []
    with pytest.raises(CorruptStoreError) as caught:
        got.extend(store.messages())
    assert caught.value.phy_offset == 50


@pytest.mark.parametrize("mode", ["r", "a"])
def test_damage_in_the_newest_segment_hides_no_message_behind_it(open_store, tmp_path, mode):
    """MetaQ leaves no mark: whole messages behind it tell damage from a torn end."""
    damaged = bytearray(A + B + C)
    damaged[70] ^= 1
    path = tmp_path / "meta" / "t-0"
    write_segments(path, [(0, bytes(damaged))])
    store = open_store(mode=mode)
    if mode == "a":
        # cut off, and kept beside
        assert store.recovery.saved.read_bytes() == bytes(damaged)[50:]
        return
    with pytest.raises(CorruptStoreError) as caught:
        list(store.messages())
    assert (caught.value.path, caught.value.phy_offset) == (path, 50)
    assert [message.message_id for message in store.messages(100)] == [3]


def test_files_that_are_no_segments_are_left_alone(open_store, tmp_path):
    path = tmp_path / "meta" / "t-0"
    write_segments(path, [(0, A)])
    far = f"{2**63 - 1:020d}.meta"
    for name in ("notes.meta", "x.txt", f"{2**70}.meta", far, "00000000000000000000.meta.arc"):
        (path / name).write_text("?")
    (path / "00000000000000000050.meta").mkdir()
    store = open_store()
    assert {p.name for p in store.foreign} == {"notes.meta", f"{2**70}.meta", far}
    store.append(2, b"x")
    assert (path / "notes.meta").read_text() == "?"


def test_a_lost_newest_segment_is_noticed(open_store, tmp_path):
    store = open_store(max_segment_size=500, unflush_threshold=0)
    fill(store, 12)
    end = store.max_offset
    store.close()
    (store.path / segment_name(1200)).unlink()
    (store.path / segment_name(600)).unlink()
    with pytest.raises(CorruptStoreError, match="confirmed to be on disk"):
        open_store()
    for path in store.path.glob("*.meta"):
        path.unlink()
    with pytest.raises(CorruptStoreError, match=str(end)):
        open_store()
    assert open_store(repair=True).append(1, b"x").offset == end


def test_a_directory_without_a_mark_opens(open_store, tmp_path):
    write_segments(tmp_path / "meta" / "t-0", [(0, A), (50, B + b"torn")])
    (tmp_path / "meta" / "t-0" / "high-water-mark").write_bytes(b"nonsense")
    store = open_store()
    assert store.recovery.truncated == 4
    assert store.max_offset == 100


# ---- retention ----


def aged(store, hours):
    for segment, age in zip(store.segments, hours, strict=False):
        moment = time.time() - age * 3600
        os.utime(segment.messages.path, (moment, moment))


def test_old_segments_go_oldest_first_and_leave_no_hole(open_store):
    store = open_store(max_segment_size=100, delete_policy=DiscardDeletePolicy(3_600_000))
    fill(store, 5)
    aged(store, [3, 2, 0, 2])
    view = store.slice(0, 100)
    gone = store.run_delete_policy()
    assert [p.name for p in gone] == [segment_name(0), segment_name(120)]
    assert store.min_offset == 240
    assert not any(p.exists() for p in gone)
    assert len(view.read()) == 100
    store.close()
    assert open_store(max_segment_size=100).holes == ()


def test_a_segment_that_an_operator_has_removed_keeps_none_behind_it(open_store):
    store = open_store(max_segment_size=100, delete_policy=DiscardDeletePolicy(3_600_000))
    fill(store, 5)
    aged(store, [3, 2, 0, 2])
    store.segments[0].messages.path.unlink()
    assert [p.name for p in store.run_delete_policy()] == [segment_name(0), segment_name(120)]
    assert store.min_offset == 240


@pytest.mark.parametrize("compress", [False, True])
def test_an_old_segment_is_archived_by_one_thread(open_store, compress):
    """An operator asks for it while the schedule packs the same one."""

    class Twice(ArchiveDeletePolicy):
        def process(self, path):
            assert store.run_delete_policy() == []
            super().process(path)

    store = open_store(max_segment_size=100, delete_policy=Twice(3_600_000, compress))
    fill(store, 3)
    aged(store, [3, 0])
    assert [p.name for p in store.run_delete_policy()] == [segment_name(0)]
    suffix = ".zip" if compress else ".arc"
    kept = [path.name for path in store.path.glob(f"*{suffix}*")]
    assert kept == [segment_name(0) + suffix]


def test_the_newest_segment_stays_however_old(open_store):
    store = open_store(delete_policy=DiscardDeletePolicy(0))
    fill(store)
    aged(store, [99])
    assert store.run_delete_policy() == []


def test_a_policy_that_fails_keeps_the_segment(open_store):
    class Broken(DiscardDeletePolicy):
        def process(self, path):
            raise OSError(28, "No space left on device")

    store = open_store(max_segment_size=100, delete_policy=Broken(0), unflush_threshold=0)
    fill(store, 3)
    aged(store, [3, 2])
    with pytest.raises(OSError, match="No space"):
        store.run_delete_policy()
    assert len(list(store.messages())) == 3


# ---- replay ----


def test_replay_stores_only_what_is_missing(open_store):
    store = open_store(unflush_threshold=0)
    rows = [(1, b"one", 0), (2, b"two", 0)]
    stored = store.append_many(rows)
    crc = reference.checksum(b"".join(reference.encode(*row) for row in rows))
    assert store.replay_append(stored.offset, stored.length, crc, rows) is None
    again = store.replay_append(stored.offset, stored.length, crc ^ 1, rows)
    assert again.offset == stored.length
    beyond = store.replay_append(10**6, stored.length, crc, rows)
    assert beyond.offset == 2 * stored.length
    for length in (-5, 0, 2**31 - 1):
        assert store.replay_append(0, length, crc, rows) is not None
    assert len(list(store.messages())) == 12


def test_replay_of_what_was_deleted_since_stores_nothing(open_store):
    store = open_store(max_segment_size=50, unflush_threshold=0)
    store.append_many([(1, b"x" * 100, 0)])
    store.append(2, b"y")
    aged(store, [999])
    store.run_delete_policy()
    assert store.replay_append(0, 120, 1, [(1, b"x" * 100, 0)]) is None


@pytest.mark.parametrize("topic", ["", "..", "a/b", "a\0b", "x" * 300])
def test_a_topic_cannot_leave_the_data_path(config, topic):
    with pytest.raises(IllegalTopicError):
        MessageStore(topic, 0, config())


def test_a_reader_passes_over_what_is_deleted_while_it_opens(open_store, monkeypatch):
    store = open_store(max_segment_size=100, delete_policy=DiscardDeletePolicy(-1))
    for number in range(1, 9):
        store.append(number, b"x" * 60)
    listed = segments.segment_files
    before = listed(store.path)
    assert len(store.run_delete_policy()) > 1
    answers = iter([before])
    monkeypatch.setattr(segments, "segment_files", lambda path: next(answers, listed(path)))
    assert open_store(mode="r").min_offset == store.min_offset > 0


def test_old_segments_go_one_by_one(open_store):
    store = open_store(max_segment_size=100, delete_policy=DiscardDeletePolicy(-1))
    for number in range(1, 9):
        store.append(number, b"x" * 60)
    left = []

    def note(_call, fd):
        if Path(f"/proc/self/fd/{fd}").readlink() == store.path:
            left.append(len(list(store.path.glob("*.meta"))))

    with watched(note):
        gone = store.run_delete_policy()
    assert left == [len(store.segments) + at for at in reversed(range(len(gone)))]
    assert len(gone) > 1


def test_a_relative_path_stays_where_it_was(open_store, config, tmp_path, monkeypatch):
    """As for a program that goes elsewhere, where another store of that name lies."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there" / "meta" / "t-1").mkdir(parents=True)
    settings = config(data_path="meta", max_segment_size=400, unflush_threshold=0)
    with MessageStore("t", 0, settings) as store:
        monkeypatch.chdir(tmp_path / "there")
        fill(store)
        with MessageStore("t", 1, settings) as opened_there:
            fill(opened_there)
        assert store.max_offset == opened_there.max_offset
    for partition in ("t-0", "t-1"):
        assert len(list((tmp_path / "meta" / partition).glob("*.meta"))) > 1
    assert list((tmp_path / "there").rglob("*.meta")) == []
