"""The disk runs full at every step; nothing is lost, and puts go on when there is room again."""

import contextlib
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from children import run_child
from doctor.damage import assert_found, damage_all

import rmqcore
from crash.small_store import SETTINGS, Sizes, check_against_log, numbers_in, put
from golden.check import digest_tree
from rmqcore import DiskFullError, PutMessageStatus, StoreNotWritableError, doctor
from rmqcore.rebuild import rebuild_consume_queues, rebuild_index

pytestmark = pytest.mark.process

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="mounts a tmpfs")


def fill(path, leave):
    """Take all room of a disk but `leave` bytes; remove the file to give it back."""
    ballast = path / "ballast"
    taken = 0
    with ballast.open("wb", buffering=0) as file:
        # again when somebody who writes beside this has taken a part of it meanwhile
        while True:
            stat = os.statvfs(path)
            free = stat.f_bavail * stat.f_frsize - leave
            if free <= 0 and taken:
                return ballast
            with contextlib.suppress(OSError):
                os.posix_fallocate(file.fileno(), taken, max(1, free))
                taken += max(1, free)
            if free <= 0:
                return ballast


def put_until_full(store, number, most=3000):
    """Put until it is refused; the acknowledged numbers and the error."""
    acknowledged = []
    for at in range(number, number + most):
        try:
            put(store, at)
        except (DiskFullError, StoreNotWritableError) as error:
            return acknowledged, error
        acknowledged.append(at)
    return acknowledged, None


@ROOT_ONLY
@pytest.mark.parametrize("leave_kib", [0, 4, 8, 12, 20, 32, 64])
@pytest.mark.parametrize("how", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_full_disk_and_room_again(small_disk, how, leave_kib):
    disk = small_disk(2048)
    path = disk / "store"
    with rmqcore.open_store(path, flush_disk_type=how, allocate_ahead=0, **SETTINGS) as store:
        acknowledged = [n for n in range(100) if put(store, n).ok]
        ballast = fill(disk, leave_kib << 10)
        more, error = put_until_full(store, 100)
        assert error is not None
        assert str(path) in str(error) or "room" in str(error) or "space" in str(error), error
        assert str(error).count("[Errno") == isinstance(error, DiskFullError), error
        assert store.why_not_writable() is None or "pace" in store.why_not_writable()
        acknowledged += more
        # reads are served, as far as the queues could be written
        assert numbers_in(store) == acknowledged
        ballast.unlink()
        assert put(store, 9999).ok
        assert store.why_not_writable() is None
        acknowledged.append(9999)
        assert numbers_in(store) == acknowledged
        check_against_log(store)
    with rmqcore.open_store(path) as store:
        assert store.recovery_report.clean_shutdown
        assert numbers_in(store) == acknowledged
        check_against_log(store)


@ROOT_ONLY
@pytest.mark.parametrize("leave_kib", [0, 12, 64])
def test_a_table_that_finds_no_room_says_how_many_of_its_rows_are_stored(small_disk, leave_kib):
    pyarrow = pytest.importorskip("pyarrow")
    disk, numbers = small_disk(2048), iter(range(10_000))

    def put_table(store):
        rows = [next(numbers) for _ in range(100)]
        bodies = [b"%d " % row + b"x" * 200 for row in rows]
        done = store.put_columns(pyarrow.table({"body": bodies}), topic="T")
        return done, rows[: done.row_count]

    settings = SETTINGS | {"mapped_file_size_commit_log": 65_536, "allocate_ahead": 0}
    with rmqcore.open_store(disk / "store", **settings) as store:
        _, stored = put_table(store)
        ballast = fill(disk, leave_kib << 10)
        for _ in range(20):
            done, rows = put_table(store)
            stored += rows
        assert not done.ok
        assert "No space left" in done.reason
        ballast.unlink()
        done, rows = put_table(store)
        assert done.ok
        stored += rows
    with rmqcore.open_store(disk / "store") as store:
        assert [int(bytes(message.body).split()[0]) for message in store.messages()] == stored
        assert store.max_queue_offset("T", 0) == len(stored)


@ROOT_ONLY
def test_no_room_for_consume_queues_and_index(small_disk):
    """The log file has room left; what is derived from it has not."""
    disk = small_disk(2048)
    path = disk / "store"
    settings = SETTINGS | {"mapped_file_size_commit_log": 262_144, "allocate_ahead": 0}
    sizes = Sizes(consume_queue_file=200, slot_num=16, entry_num=64)
    with rmqcore.open_store(path, **settings) as store:
        acknowledged = [n for n in range(20) if put(store, n).ok]
        store.parts.log_services.reput.catch_up()
        ballast = fill(disk, 0)
        for number in range(20, 200):
            try:
                put(store, number)
            except StoreNotWritableError:
                break
            acknowledged.append(number)
        served = store.get_message("T0", 0, 0, max_messages=1000).messages
        assert [int(bytes(m.body).split()[0]) for m in served] == [
            number for number in acknowledged if number % 4 == 0
        ][: len(served)]
        assert str(path) in store.why_not_writable()
        assert numbers_in(store) == acknowledged
        ballast.unlink()
        assert store.get_message("T0", 0, 0, max_messages=1000).messages
        assert store.why_not_writable() is None
        assert put(store, 9999).ok
        acknowledged.append(9999)
        assert numbers_in(store) == acknowledged
        check_against_log(store, sizes)


@ROOT_ONLY
def test_no_room_at_closing(small_disk):
    disk = small_disk(2048)
    path = disk / "store"
    store = rmqcore.open_store(path, **SETTINGS | {"mapped_file_size_commit_log": 262_144})
    acknowledged = [n for n in range(20) if put(store, n).ok]
    store.flush()
    ballast = fill(disk, 0)
    acknowledged += [n for n in range(20, 120) if store.put_message(message(n)).ok]
    with contextlib.suppress(OSError):
        store.close()
    ballast.unlink()
    with rmqcore.open_store(path) as store:
        assert numbers_in(store) == acknowledged
        check_against_log(store)


def message(number):
    """The message that `put` puts."""
    kept = []

    class Recorder:
        def put(self, topic, body, **settings):
            kept.append(rmqcore.Message(topic, body, **settings))

    put(Recorder(), number)
    return kept[0]


@ROOT_ONLY
def test_no_room_to_open(small_disk):
    disk = small_disk(1024)
    ballast = fill(disk, 0)
    with pytest.raises(OSError, match=r"space|room") as caught:
        rmqcore.open_store(disk / "store", **SETTINGS)
    assert str(disk) in str(caught.value)
    ballast.unlink()
    with rmqcore.open_store(disk / "store", **SETTINGS) as store:
        assert put(store, 1).ok


@pytest.mark.parametrize("limit", [3000, 4096, 20_000])
def test_a_limit_on_file_sizes(store_path, limit):
    settings = SETTINGS | {"mapped_file_size_commit_log": 16_384}

    def work(acknowledge):
        store = rmqcore.open_store(store_path, allocate_ahead=0, **settings)
        for number in range(50):
            assert put(store, number).ok
            acknowledge(number)
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        for number in range(50, 500):
            result = store.put_message(message(number))
            if not result.ok:
                assert result.status is PutMessageStatus.CREATE_MAPPED_FILE_FAILED
                assert "commitlog" in result.reason
                break
            acknowledge(number)
        else:
            assert limit > 16_384
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        assert put(store, 9999).ok
        acknowledge(9999)
        store.close()

    code, acknowledged = run_child(work)
    assert code == 0
    with rmqcore.open_store(store_path) as store:
        assert numbers_in(store) == acknowledged
        check_against_log(store)


@pytest.mark.parametrize("part", ["", "commitlog", "consumequeue", "index", "config"])
def test_no_permission(store_path, part):
    with rmqcore.open_store(store_path, **SETTINGS) as store:
        for number in range(30):
            put(store, number)
    where = store_path / part
    entries = [where, *where.rglob("*")]

    def work(acknowledge):
        os.setgid(65534)
        os.setuid(65534)
        for mode in "ar":
            try:
                rmqcore.open_store(store_path, mode=mode).close()
            except PermissionError as error:
                acknowledge(100 + (str(where) in str(error)))

    for parent in store_path.parents:
        if Path(tempfile.gettempdir()) in parent.parents:
            parent.chmod(0o755)
    for entry in store_path.rglob("*"):
        os.chown(entry, 65534, 65534)
    os.chown(store_path, 65534, 65534)
    for entry in entries:
        entry.chmod(0)
    code, refused = run_child(work)
    assert code == 0
    assert set(refused) == {101}
    for entry in entries:
        entry.chmod(0o777)
    with rmqcore.open_store(store_path) as store:
        assert numbers_in(store) == list(range(30))


SPARSE = """
import contextlib, os, sys
import rmqcore
path, when = sys.argv[1], sys.argv[2]
def fill():
    with open(os.path.join(os.path.dirname(path), "ballast"), "wb", buffering=0) as file:
        at = 0
        for size in (1 << 20, 1 << 16, 4096):
            with contextlib.suppress(OSError):
                while True:
                    os.posix_fallocate(file.fileno(), at, size)
                    at += size
if when == "before":
    fill()
try:
    store = rmqcore.open_store(path, allocate_ahead=0)
    if when == "after":
        fill()
    for number in range(30_000):
        store.put("T", b"y" * 300, keys=f"n{number}")
        if number % 50 == 0:
            store.get_message("T", 0, 0)
except (rmqcore.DiskFullError, rmqcore.StoreNotWritableError):
    os._exit(7)
os._exit(0)
"""


@ROOT_ONLY
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_store_that_was_copied_sparse_meets_a_full_disk_in_order(small_disk, tmp_path, when):
    sizes = {"mapped_file_size_commit_log": 4 << 20, "max_hash_slot_num": 1000}
    disk = small_disk(24 * 1024)
    with rmqcore.open_store(
        tmp_path / "original", max_index_num=4000, allocate_ahead=0, **sizes
    ) as store:
        for number in range(100):
            store.put("T", b"x" * 100, keys=f"k{number}")
    copy = disk / "copy"
    subprocess.run(["cp", "-a", "--sparse=always", tmp_path / "original", copy], check=True)
    log = copy / "commitlog" / f"{0:020d}"
    assert log.stat().st_blocks * 512 < log.stat().st_size
    done = subprocess.run(
        [sys.executable, "-c", SPARSE, copy, when], capture_output=True, check=False, timeout=60
    )
    assert done.returncode == 7, done.stderr.decode()
    (disk / "ballast").unlink()
    with rmqcore.open_store(copy) as store:
        assert store.put("T", b"z").ok
        bodies = [bytes(message.body) for message in store.messages("T", 0)]
        assert bodies[:100] == [b"x" * 100] * 100
        assert bodies[-1] == b"z"


@ROOT_ONLY
def test_a_repair_and_its_undo_that_find_no_room_go_on_when_there_is(small_disk):
    disk = small_disk(1024)
    store = disk / "store"
    whole = damage_all(store)
    before = digest_tree(store)
    found_room = [False, False]
    for leave in range(0, 40 * 4096, 4096):
        ballast = fill(disk, leave)
        for number, work in enumerate((doctor.repair, doctor.undo)):
            try:
                work(store)
                found_room[number] = True
            except DiskFullError:
                assert leave < 39 * 4096
                ballast.unlink()
                work(store)
                ballast = fill(disk, leave)
            if work is doctor.repair:
                assert doctor.verify(store).clean
                assert_found(store, whole)
        ballast.unlink()
        assert digest_tree(store) == before
    assert found_room == [True, True]


@ROOT_ONLY
@pytest.mark.parametrize("derive", [rebuild_consume_queues, rebuild_index])
def test_what_was_derived_again_until_the_disk_was_full_takes_no_room(small_disk, derive):
    disk = small_disk(1024)
    with rmqcore.open_store(disk / "store", **SETTINGS) as store:
        for number in range(60):
            put(store, number)
    for path in (disk / "store").glob("[ci][on][nd]*/**/*"):
        if path.is_file():
            path.write_bytes(bytes(path.stat().st_size))
    before = digest_tree(disk / "store")
    for leave in (0, 8192):
        ballast = fill(disk, leave)
        with pytest.raises(DiskFullError):
            derive(disk / "store", config=SETTINGS)
        ballast.unlink()
        assert digest_tree(disk / "store") == before
    derive(disk / "store", config=SETTINGS)


@ROOT_ONLY
def test_an_opening_that_finds_no_room_to_note_what_it_does_says_so(small_disk):
    disk = small_disk(1024)
    with rmqcore.open_store(disk / "store", **SETTINGS) as store:
        for number in range(60):
            put(store, number)
    for path in (disk / "store" / "consumequeue").glob("*/*/*"):
        path.unlink()
    ballast = fill(disk, 0)
    with pytest.raises(DiskFullError):
        rmqcore.open_store(disk / "store", **SETTINGS)
    ballast.unlink()
    with rmqcore.open_store(disk / "store", **SETTINGS) as store:
        assert numbers_in(store) == list(range(60))
