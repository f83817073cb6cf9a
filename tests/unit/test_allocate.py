"""Log files made ahead of need."""

import errno
import os
import threading
from pathlib import Path

import pytest
from patience import until
from syncs import watched

from rmqcore import open_store
from rmqcore.errors import DiskFullError, StoreNotWritableError
from rmqcore.files.mapped_file import MappedFile, OpenFiles
from rmqcore.services.allocate import AllocateMappedFileService
from rmqcore.services.runner import Threads

pytestmark = pytest.mark.engine

SIZE = 65536


@pytest.fixture
def service(tmp_path):
    errors, open_files, runner = [], OpenFiles(), Threads()

    def make(path, offset):
        file = MappedFile(path, SIZE, offset, open_files)
        file.create(whole=True)
        return file

    made = AllocateMappedFileService(make, SIZE, ahead=2, warm=True, sync_every=4096, lock_budget=0)
    made.start = lambda: runner.start(made, errors.append)
    made.stop = lambda: runner.stop(made)
    made.path_of = lambda offset: tmp_path / f"{offset:020d}"
    yield made
    made.stop()
    assert not errors


def test_the_next_two_are_made_and_warm(service):
    service.start()
    first = service.ready_file(service.path_of(0), 0)
    assert first.path.exists()
    until(service.path_of(2 * SIZE).exists, "the file after the next")
    second = service.ready_file(service.path_of(SIZE), SIZE)
    assert second.file_from_offset == SIZE
    until(service.path_of(3 * SIZE).exists, "one more")


def test_what_was_not_used_is_removed(service):
    service.start()
    service.ready_file(service.path_of(0), 0)
    until(service.path_of(2 * SIZE).exists, "the file after the next")
    assert service.stop()
    assert sorted(path.name for path in service.path_of(0).parent.iterdir()) == [f"{0:020d}"]


def test_a_kill_while_unused_files_are_removed_leaves_no_hole(service, monkeypatch):
    removed, destroy = [], MappedFile.destroy

    def noting(file):
        removed.append(file.file_from_offset)
        destroy(file)

    monkeypatch.setattr(MappedFile, "destroy", noting)
    service.start()
    service.ready_file(service.path_of(0), 0)
    until(service.path_of(2 * SIZE).exists, "the file after the next")
    assert service.stop()
    assert removed == [2 * SIZE, SIZE]


def test_a_power_cut_while_unused_files_are_removed_leaves_no_hole(service):
    service.start()
    service.ready_file(service.path_of(0), 0)
    until(service.path_of(2 * SIZE).exists, "the file after the next")
    left = []

    def note(_call, _fd):
        left.append(sorted(int(path.name) for path in service.path_of(0).parent.iterdir()))

    with watched(note):
        service.stop()
    assert left == [[0, SIZE]]


def refuse(*_):
    raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.logic
def test_no_file_is_made_behind_one_that_cannot_be(service, monkeypatch):
    make = service._make
    service.ready_file(service.path_of(0), 0)
    service.prepare(service.path_of(SIZE), SIZE)
    monkeypatch.setattr(service, "_make", refuse)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        service.ready_file(service.path_of(SIZE), SIZE)
    monkeypatch.setattr(service, "_make", make)
    service.run(0.0)
    assert [path.name for path in service.path_of(0).parent.iterdir()] == [f"{0:020d}"]


@pytest.mark.logic
def test_the_file_that_could_not_be_made_is_made_before_those_behind_it(service, monkeypatch):
    """A put that still found room had the one behind it made: a killed store was damaged."""
    with monkeypatch.context() as refusing:
        refusing.setattr(service, "_make", refuse)
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            service.ready_file(service.path_of(SIZE), SIZE)
    service.begin()
    service.prepare(service.path_of(SIZE), SIZE)
    service.run(0.0)
    found = sorted(path.name for path in service.path_of(0).parent.iterdir())
    assert found == [f"{SIZE:020d}", f"{2 * SIZE:020d}"]


@pytest.mark.logic
@pytest.mark.parametrize("removable", [False, True])
def test_a_file_that_can_be_neither_used_nor_removed_stands_behind_no_hole(
    service, monkeypatch, removable
):
    """The system refuses to map the file that was made, and to remove it."""
    make = service._make

    def unusable(path, offset):
        file = make(path, offset)
        if offset == 2 * SIZE:
            refuse()
        return file

    monkeypatch.setattr(service, "_make", unusable)
    service.ready_file(service.path_of(0), 0)
    service.prepare(service.path_of(SIZE), SIZE)
    service.run(0.0)
    with monkeypatch.context() as refusing:
        if not removable:
            refusing.setattr(os, "unlink", refuse)
            refusing.setattr(Path, "unlink", refuse)
        service.last(ended=True)
    names = sorted(int(path.name) for path in service.path_of(0).parent.iterdir())
    assert names == ([0] if removable else [0, SIZE, 2 * SIZE])


@pytest.mark.logic
@pytest.mark.parametrize("number", [1, 2])
def test_what_cannot_be_removed_keeps_those_before_it(service, monkeypatch, number):
    destroy = MappedFile.destroy

    def refusing(file):
        if file.file_from_offset == number * SIZE:
            refuse()
        destroy(file)

    service.ready_file(service.path_of(0), 0)
    service.prepare(service.path_of(SIZE), SIZE)
    service.run(0.0)
    monkeypatch.setattr(MappedFile, "destroy", refusing)
    service.last(ended=True)
    names = sorted(int(path.name) for path in service.path_of(0).parent.iterdir())
    assert names == [0, SIZE, 2 * SIZE][: number + 1]


@pytest.mark.logic
def test_no_file_is_made_behind_one_that_has_no_room(service, monkeypatch):
    make = service._make

    def full(path, offset):
        if offset == SIZE:
            raise DiskFullError(path, "No space left on device")
        return make(path, offset)

    monkeypatch.setattr(service, "_make", full)
    service.ready_file(service.path_of(0), 0)
    service.prepare(service.path_of(SIZE), SIZE)
    with pytest.raises(DiskFullError):
        service.ready_file(service.path_of(SIZE), SIZE)
    service.run(0.0)
    assert not service.path_of(2 * SIZE).exists()


@pytest.mark.logic
def test_a_caller_that_was_interrupted_gets_the_same_file_again(service):
    taken = service.ready_file(service.path_of(0), 0)
    assert service.ready_file(service.path_of(0), 0) is taken
    service.stop()
    assert taken.path.exists()


@pytest.mark.logic
def test_a_leftover_of_zeros_is_taken_over_and_data_is_not(service):
    service.path_of(0).write_bytes(bytes(100))
    assert service.ready_file(service.path_of(0), 0).path.stat().st_size == SIZE
    service.path_of(SIZE).write_bytes(b"data")
    with pytest.raises(FileExistsError):
        service.ready_file(service.path_of(SIZE), SIZE)
    assert service.path_of(SIZE).read_bytes() == b"data"


def test_no_room_ahead_is_no_error(tmp_path):
    full = []

    def make(path, offset):
        if full:
            raise DiskFullError(path)
        file = MappedFile(path, SIZE, offset, OpenFiles())
        file.create(whole=True)
        return file

    errors = []
    service = AllocateMappedFileService(
        make, SIZE, ahead=1, warm=False, sync_every=0, lock_budget=0
    )
    runner = Threads()
    runner.start(service, errors.append)
    full.append(True)
    service.prepare(tmp_path / f"{0:020d}", 0)
    with pytest.raises(DiskFullError):
        service.ready_file(tmp_path / f"{0:020d}", 0)
    full.clear()
    assert service.ready_file(tmp_path / f"{0:020d}", 0).path.exists()
    assert service.active
    runner.stop(service)
    assert not errors


@pytest.mark.logic
def test_a_call_inside_a_call_is_refused(tmp_path):
    answers = []

    def make(path, offset):
        with pytest.raises(StoreNotWritableError, match="again"):
            service.ready_file(path, offset)
        answers.append(offset)
        return MappedFile(path, SIZE, offset, OpenFiles())

    service = AllocateMappedFileService(
        make, SIZE, ahead=0, warm=False, sync_every=0, lock_budget=0
    )
    service.ready_file(tmp_path / "0", 0)
    assert answers == [0]


@pytest.mark.parametrize("way", ["populate", "touch"])
@pytest.mark.parametrize("sync_every", [0, 4096])
def test_a_warm_up_beside_a_writer_changes_nothing(tmp_path, way, sync_every):
    """It once stored zeros into a file that puts had begun to use."""
    file = MappedFile(tmp_path / "log", 256 * 4096, 0, OpenFiles())
    file.create(whole=True)
    region, stop, warmed = file.region, threading.Event(), []

    def warm():
        while not stop.is_set():
            region.warm_up(way=way, sync_every=sync_every, expect_empty=False)
            warmed.append(way)

    thread = threading.Thread(target=warm)
    thread.start()
    view = memoryview(region)
    value = 0
    while value < 200 or len(warmed) < 3:
        value += 1
        for at in range(0, len(view), 4096):
            view[at] = value % 256
        assert bytes(view[::4096]) == bytes([value % 256]) * 256
        assert thread.is_alive()
    stop.set()
    thread.join()
    view.release()
    file.close()


def starts(files):
    return [file.file_from_offset for file in list(files)]


@pytest.mark.logic
def test_a_round_that_goes_on_lets_full_files_go_too(service):
    service._lock_budget = 2 * SIZE
    warm_up, locked = service._warm_up, []

    def warm_up_and_use(file):
        """As puts do that need the file at once, and ask for the next."""
        warm_up(file)
        start = file.file_from_offset
        locked.append(start in starts(service._locked))
        service.ready_file(file.path, start)
        if len(locked) < 6:
            service._wanted[start + SIZE] = service.path_of(start + SIZE)

    service._warm_up = warm_up_and_use
    service._wanted[0] = service.path_of(0)
    service.run(0.0)
    assert locked == [True] * 6


def test_full_files_are_let_go_out_of_memory_again(tmp_path):
    open_files, unlocked = OpenFiles(), []

    def make(path, offset):
        file = MappedFile(path, SIZE, offset, open_files)
        file.create(whole=True)
        return file

    service = AllocateMappedFileService(
        make,
        SIZE,
        ahead=1,
        warm=True,
        sync_every=0,
        lock_budget=2 * SIZE,
    )
    runner = Threads()
    runner.start(service, unlocked.append)
    for number in range(6):
        offset = number * SIZE
        service.prepare(tmp_path / f"{offset:020d}", offset)
        until(lambda at=offset: at in starts(service._locked), "the file is locked")
        service.ready_file(tmp_path / f"{offset:020d}", offset)
        until(lambda at=offset: min(starts(service._locked)) >= at, "full files are let go")
    runner.stop(service)
    assert not unlocked


def test_a_file_is_made_where_nothing_is_mounted_at_proc(tmp_path, monkeypatch):
    monkeypatch.setattr("rmqcore.files.mapped_file._DESCRIPTORS", str(tmp_path / "proc/self/fd"))
    file = MappedFile(tmp_path / "0", SIZE, 0, OpenFiles())
    file.create(whole=True)
    assert file.path.stat().st_size == SIZE
    assert [path.name for path in tmp_path.iterdir()] == ["0"]
    file.close()


def test_of_two_threads_that_find_a_file_full_one_goes_on_in_the_next(store_path):
    with open_store(store_path, mapped_file_size_commit_log=SIZE) as store:
        for _ in range(2):
            store.put("T", bytes(SIZE // 2))
        writer, end = store.parts.files.writer, store.max_phy_offset
        assert writer.attached_offset == SIZE
        # the other one comes when the first has rolled
        writer.roll(0)
        assert store.max_phy_offset == end
        assert store.put("T", b"small").phy_offset == end
