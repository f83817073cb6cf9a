"""A file of staged records is what its writer left, or is refused; its rows are found by number.

What is noted of an append of them is true after a power cut, too.
"""

import fcntl
import os
import resource
import shutil
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from staged_rows import pairs, stage, three_files
from syncs import watched

from rmqcore import open_store
from rmqcore._codec import decode_record
from rmqcore.errors import MessageIllegalError, StoreError
from rmqcore.files.store_dir import make_directory
from rmqcore.store.append_ledger import Ledger, staging_root
from rmqcore.store.staged_appends import append_staged, finish_staged, is_under_way
from rmqcore.store.staged_records import StagedRecords, records_in

pytestmark = pytest.mark.engine


@pytest.fixture
def staged(store_path):
    """Twenty rows in five pieces."""
    columns = {
        "topic": [f"T{number % 3}" for number in range(20)],
        "queue_id": [number % 2 for number in range(20)],
        "body": [f"{number:0200d}" for number in range(20)],
    }
    return stage(store_path / "spark" / "folder" / "staged.rows", columns, piece_size=1400)


def numbers_in(pieces):
    return [int(decode_record(record).body) for piece in pieces for record in records_in(piece)]


def test_rows_are_found_by_their_number(staged):
    records = staged.records()
    assert (records.row_count, staged.message_count) == (20, 20)
    assert len(records.queues) == 6
    for first in range(21):
        assert numbers_in(records.pieces(first)) == list(range(first, 20))


def test_pieces_that_are_put_make_messages_with_places_of_the_store(staged, store_path):
    records = staged.records()
    with open_store(store_path) as store:
        store.put("T0", b"0")
        for piece in records.pieces():
            assert store.put_records(piece, records.queues).ok
        found = list(store.messages())[1:]
        assert [int(message.body) for message in found] == list(range(20))
        assert all(message.store_timestamp_ms for message in found)
        assert [m.queue_offset for m in found if (m.topic, m.queue_id) == ("T0", 0)] == [1, 2, 3, 4]


def test_a_file_is_refused_wherever_a_byte_has_flipped(staged):
    path = Path(staged.path)
    whole = path.read_bytes()
    for position in {*range(0, len(whole), 7), *range(len(whole) - 160, len(whole))}:
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        with pytest.raises(StoreError, match="damaged"):
            list(StagedRecords(staged.path, staged.size).pieces())
    for size in (0, 39, 41, len(whole) - 1):
        path.write_bytes(whole[:size])
        for said in (size, staged.size):
            with pytest.raises(StoreError, match=r"not complete|damaged"):
                StagedRecords(staged.path, said)
    path.unlink()
    with pytest.raises(StoreError, match="are gone"):
        staged.records()


def test_a_file_without_rows_has_no_pieces(tmp_path):
    empty = stage(tmp_path / "empty", {"body": pa.array([], pa.string())})
    assert list(empty.records().pieces()) == []


def test_a_writer_that_fails_leaves_no_file(tmp_path):
    for columns, settings in (
        ({"body": ["a", "b"], "tags": ["t", ""]}, {}),
        ({"body": ["a"]}, {"topic": "SCHEDULE_TOPIC_XXXX"}),
        ({"body": ["a"], "properties": pairs({"DELAY": "1"})}, {}),
    ):
        with pytest.raises(MessageIllegalError):
            stage(tmp_path / "bad", columns, **settings)
        assert list(tmp_path.iterdir()) == []


@contextmanager
def files_of_at_most(size):
    """What grows beyond it is refused, as by a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_file_that_has_no_room_is_named_and_is_not_left(tmp_path):
    path, ledger = tmp_path / "folder" / "staged.rows", Ledger(tmp_path, "job-1")
    with files_of_at_most(100), pytest.raises(OSError, match="too large") as caught:
        stage(path, {"body": ["a" * 200]})
    assert caught.value.filename == str(path)
    assert not path.exists()
    staged = stage(path, {"body": ["a"]})
    with files_of_at_most(10), pytest.raises(OSError, match="too large") as caught:
        ledger.begin(0, 0, [staged])
    assert caught.value.filename == str(tmp_path / "job-1.appending.new")


def test_a_file_is_on_the_disk_when_its_task_says_so(tmp_path):
    synced = []

    def note(_call, fd):
        path = Path(f"/proc/self/fd/{fd}").resolve()
        synced.append((path.name, path.stat().st_size))

    with watched(note):
        staged = stage(tmp_path / "folder" / "staged.rows", {"body": ["a", "b"]})
    assert synced[-2] == ("staged.rows", staged.size)
    assert synced[-1][0] == "folder"


@pytest.mark.parametrize("died_behind", [0, 1, 3])
def test_a_ledger_says_nothing_that_a_power_cut_could_take_back(
    staged, store_path, monkeypatch, died_behind
):
    noted, synced, save = [], set(), Ledger._save
    slow = {"flush_interval_commit_log_ms": 3_600_000}
    with open_store(store_path, **slow) as store:
        root = staging_root(store.path)
        make_directory(root)

        def saved(path, facts):
            writer = store.parts.files.writer
            noted.append((path.suffix, writer.flushed_offset == store.max_phy_offset))
            with watched(lambda _call, fd: synced.add(Path(f"/proc/self/fd/{fd}").resolve())):
                save(path, facts)

        monkeypatch.setattr(Ledger, "_save", staticmethod(saved))
        store.put("T0", b"other")
        if died_behind:
            store.flush()
            Ledger(root, "job-1").begin(0, store.max_phy_offset, [staged])
            records = staged.records()
            for piece, _ in zip(records.pieces(), range(died_behind), strict=False):
                store.put_records(piece, records.queues)
        assert append_staged(store, "job-1", 0, [staged]) == 20 - 4 * died_behind
        assert len(list(store.messages())) == 21
    assert noted == [(".appending", True)] * (3 if died_behind else 1) + [(".json", True)]
    assert synced == {root, root / "job-1.appending.new", root / "job-1.json.new"}


@pytest.mark.parametrize("left", ["moved", "copied"])
def test_an_append_that_died_is_finished_where_the_store_is_now(store_path, tmp_path, left):
    """Moved, copied, or the former owner had its directory under another path."""
    files = three_files(store_path)
    with open_store(store_path) as store:
        Ledger(staging_root(store.path), "job-1").begin(0, store.max_phy_offset, files)
        records = files[0].records()
        store.put_records(next(records.pieces()), records.queues)
        there = len(list(store.messages()))
    here = tmp_path / "here"
    if left == "moved":
        store_path.rename(here)
    else:
        shutil.copytree(store_path, here)
    with open_store(here) as store:
        assert finish_staged(store) == {"job-1": 600 - there}
        assert len(list(store.messages())) == 600
    assert not list(staging_root(here).glob("staging-*"))
    if left == "copied":
        # the other store has its own append to finish
        with open_store(store_path) as store:
            assert finish_staged(store) == {"job-1": 600 - there}


def test_a_copy_without_the_rows_of_an_append_leaves_it_to_the_store_that_was_copied(
    store_path, tmp_path
):
    files = three_files(store_path)
    with open_store(store_path) as store:
        Ledger(staging_root(store.path), "job-1").begin(0, store.max_phy_offset, files)
    here = tmp_path / "here"
    shutil.copytree(store_path, here, ignore=lambda *_: ["staging-test"])
    with open_store(here) as store, pytest.raises(StoreError, match=r"here/.*rows are gone"):
        finish_staged(store)
    with open_store(store_path) as store:
        assert finish_staged(store) == {"job-1": 600}


def test_rows_of_an_append_that_died_stay_where_the_store_is_now(store_path, tmp_path):
    files = three_files(store_path)
    with open_store(store_path) as store:
        Ledger(staging_root(store.path), "job-1").begin(0, store.max_phy_offset, files)
    here = tmp_path / "here"
    store_path.rename(here)
    folder = staging_root(here) / "staging-test"
    os.utime(folder, (0, 0))
    with open_store(here) as store:
        append_staged(store, "job-2", 0, [])
        assert finish_staged(store) == {"job-1": 600}


def test_an_append_that_a_killed_process_has_noted_is_so_on_the_disk_before_its_rows_go(
    staged, store_path
):
    synced = []

    def note(call, fd):
        if call == "fsync":
            path = Path(f"/proc/self/fd/{fd}").resolve()
            synced.append((path, Path(staged.path).exists()))

    with open_store(store_path) as store:
        root = staging_root(store.path)
        make_directory(root)
        (root / "job-1.json").write_text('{"number": 0}')
        with watched(note):
            assert append_staged(store, "job-1", 0, [staged]) == 0
    assert (root, True) in synced
    assert not Path(staged.path).exists()


def test_who_looks_whether_staged_files_are_appended_leaves_no_lock_to_a_child(
    tmp_path, monkeypatch
):
    """A child that is forked meanwhile has a copy of its descriptor."""
    copies, flock = [], fcntl.flock

    def fork_after(fd, kind):
        flock(fd, kind)
        if not copies:
            copies.append(os.dup(fd))

    with monkeypatch.context() as patch:
        patch.setattr("fcntl.flock", fork_after)
        assert not is_under_way(tmp_path)
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        for one in (*copies, fd):
            os.close(one)
