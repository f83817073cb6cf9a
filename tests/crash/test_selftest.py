"""`rmqcore selftest` holds here, and notices a store that breaks its promises."""

import contextlib
import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from patience import until

from golden.stores import RELEASES
from rmqcore import (
    CorruptStoreError,
    Durability,
    StoreNotFoundError,
    StoreNotWritableError,
    open_store,
)
from rmqcore.doctor import selftest
from rmqcore.doctor.selftest import (
    Row,
    SelfTestReport,
    _system_calls,
    damage,
    failing_calls,
    kills,
    mounted,
    power_cuts,
    runner,
)
from rmqcore.doctor.selftest.block_log import BlockLog
from rmqcore.doctor.selftest.mounted import FILE_SYSTEMS, why_not
from rmqcore.files.mapped_file import MappedFile, OpenFiles
from rmqcore.files.mapped_file_queue import MappedFileQueue
from rmqcore.files.store_mark import StoreMark
from rmqcore.recovery.recovery import Recovery

pytestmark = pytest.mark.process

WITHOUT_CRC = {"enabled_append_prop_crc": False, "force_verify_prop_crc": False}


def ignore(*_):
    """Nobody looks at the progress."""


def check(report, rows):
    """Every promise held, and as many rows as there should be were tried."""
    assert [row.examples for row in report.rows if row.failures] == []
    assert report.clean
    assert sum(bool(row.cases) for row in report.rows) >= rows


def test_power_cuts_and_kills(seed):
    report = selftest.crash(cuts=60, kills=37, mounted=0, seed=seed, jobs=2)
    check(report, 4)
    assert [row.cases for row in report.rows if row.name == "kill -9"] == [37]


def test_failing_calls_and_damage(seed):
    check(selftest.faults(most=1, seed=seed), 15)


@pytest.mark.parametrize("release", RELEASES)
def test_damage_of_a_store_that_rocketmq_wrote(golden_store, seed, release):
    report = selftest.faults(most=60, seed=seed, jobs=2, store=golden_store(release, "small").path)
    check(report, 2)
    flipped, cut_short = report.rows
    assert flipped.cases == cut_short.cases == 60
    assert flipped.unprotected
    assert not cut_short.unprotected


@pytest.mark.storm
@pytest.mark.parametrize("release", RELEASES)
def test_every_byte_of_a_store_that_rocketmq_wrote(golden_store, seed, release):
    store = golden_store(release, "small").path
    size = sum(file.stat().st_size for file in store.rglob("*") if file.is_file())
    report = selftest.faults(most=size, seed=seed, jobs=2, store=store)
    check(report, 2)
    assert [row.cases for row in report.rows] == [size, size]


def test_a_store_to_damage_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(StoreNotFoundError):
        selftest.faults(store=tmp_path / "none")


@pytest.mark.storm
def test_many_power_cuts_and_kills(seed):
    check(selftest.crash(cuts=3000, kills=1000, mounted=0, seed=seed), 4)


@pytest.mark.storm
def test_every_failing_call_and_much_damage(seed):
    check(selftest.faults(most=1000, seed=seed), 15)


@pytest.mark.storm
@pytest.mark.parametrize("file_system", FILE_SYSTEMS)
def test_power_cuts_of_a_mounted_file_system(seed, file_system):
    if reason := why_not(file_system):
        pytest.skip(reason)
    task = {"task": "mounted", "file_system": file_system, "cuts": 60}
    (row,) = runner._run([task], seed, 1, None).rows
    assert (row.skipped, row.examples, row.cases) == ("", [], 60)
    assert row.acknowledged > 60


def test_without_root_the_mounted_ones_say_so(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    row = mounted.mounted_cuts("ext4", 3, 1, tmp_path, ignore)
    assert row.cases == 0
    assert "needs root" in row.skipped


# ---- it notices


def test_a_disk_that_hears_of_no_flush_loses_what_was_acknowledged(tmp_path, seed):
    """The calls of this process are not watched: no flush is ever seen to reach the disk."""
    row = power_cuts.power_cuts("sync", 20, seed, tmp_path, ignore, tmp_path / "kept")
    assert row.failures
    assert any("acknowledged messages lost" in example for example in row.examples)
    assert list((tmp_path / "kept").iterdir())


def test_a_writer_that_acknowledges_what_it_has_not_put_is_noticed(tmp_path, monkeypatch):
    receipt = SimpleNamespace(durability=Durability.PAGE_CACHE)
    monkeypatch.setattr(kills, "put", lambda *_: receipt)
    row = kills.kills(20, 1, tmp_path, ignore, kept=tmp_path / "kept")
    assert row.failures
    assert "acknowledged messages lost" in row.examples[0]
    images = list((tmp_path / "kept").iterdir())
    assert len(images) == row.failures
    assert all((image / "commitlog").is_dir() for image in images)


def test_fields_without_a_checksum_are_told_apart(tmp_path, monkeypatch):
    """Without a CRC of the record RocketMQ's format protects many of its fields by nothing."""
    plain = partial(damage.open_for, **WITHOUT_CRC)
    monkeypatch.setattr(damage, "open_for", plain)
    flipped, _ = damage.damage(20, 1, tmp_path, ignore)
    assert (flipped.examples, flipped.cases) == ([], 20)
    assert flipped.unprotected


def test_a_wrong_answer_is_noticed(tmp_path, monkeypatch):
    plain = partial(damage.open_for, **WITHOUT_CRC)
    monkeypatch.setattr(damage, "open_for", plain)
    monkeypatch.setattr(damage, "_only_unprotected", lambda *_: False)
    flipped, _ = damage.damage(20, 1, tmp_path, ignore)
    assert flipped.failures
    assert "another answer to" in flipped.examples[0]


def test_a_call_fails_once_and_only_below_the_directory(tmp_path):
    once = failing_calls._FailOnce(tmp_path / "store", "open", 2)
    inside, outside = str(tmp_path / "store" / "lock"), str(tmp_path / "other")
    answers = [once.before("open", -100, 0, 0, path) for path in (inside, outside, inside, inside)]
    assert [bool(answer) for answer in answers] == [False, False, True, False]
    assert once.failed == inside


def cut_often(log, target, rng):
    """What 200 cuts at a log's end leave of the file `f`: its content, None where it is not."""
    left = []
    for number in range(200):
        place = target / str(number)
        log.cut(place, log.now, rng)
        left.append((place / "f").read_bytes() if (place / "f").exists() else None)
    return left


def test_a_cut_takes_what_no_flush_covered(tmp_path, rng):
    path = tmp_path / "live"
    path.mkdir()
    log = BlockLog(path)
    (path / "f").write_bytes(b"a" * 5000)
    log.observe()
    left = cut_often(log, tmp_path, rng)
    assert None in left
    assert b"a" * 5000 in left
    assert any(content is not None and b"\0" in content for content in left)


def test_a_cut_leaves_what_was_flushed(tmp_path, rng):
    path = tmp_path / "live"
    path.mkdir()
    log = BlockLog(path)
    (path / "f").write_bytes(b"a" * 5000)
    for place in (path / "f", path):
        fd = os.open(place, os.O_RDONLY)
        log.before("fsync", fd, 0, 0, None)
        log.after("fsync", fd, 0, 0, 0)
        os.close(fd)
    (path / "f").write_bytes(b"b" * 5000)
    log.observe()
    left = cut_often(log, tmp_path, rng)
    assert {bytes(sorted(set(content))) for content in left} <= {b"a", b"b", b"ab"}
    assert b"a" * 5000 in left


def test_a_flush_that_failed_covers_nothing(tmp_path, rng):
    path = tmp_path / "live"
    path.mkdir()
    log = BlockLog(path)
    (path / "f").write_bytes(b"a")
    fd = os.open(path, os.O_RDONLY)
    log.before("fsync", fd, 0, 0, None)
    log.after("fsync", fd, 0, 0, -1)
    os.close(fd)
    assert None in cut_often(log, tmp_path, rng)


def test_what_is_stored_beside_a_flush_is_not_covered_by_it(tmp_path, rng):
    path = tmp_path / "live"
    path.mkdir()
    (path / "f").write_bytes(b"a")
    log = BlockLog(path)
    log.beside = partial((path / "f").write_bytes, b"b")
    fd = os.open(path / "f", os.O_RDONLY)
    log.before("fsync", fd, 0, 0, None)
    log.after("fsync", fd, 0, 0, 0)
    os.close(fd)
    assert set(cut_often(log, tmp_path, rng)) == {b"a", b"b"}


def test_a_kill_leaves_what_was_written_and_no_more_of_it_on_the_disk(tmp_path, rng):
    path = tmp_path / "live"
    (path / "d").mkdir(parents=True)
    (path / "f").write_bytes(b"on the disk")
    log, inode = BlockLog(path), (path / "d").stat().st_ino
    (path / "f").write_bytes(b"in memory")
    (path / "d" / "g").write_bytes(b"new")
    moment = log.at_rest()
    (path / "f").write_bytes(b"after the kill")
    (path / "d" / "g").unlink()
    (path / "h").touch()
    log.observe()
    log.kill(moment)
    assert sorted(one.name for one in path.rglob("*")) == ["d", "f", "g"]
    assert (path / "f").read_bytes() == b"in memory"
    assert (path / "d" / "g").read_bytes() == b"new"
    assert (path / "d").stat().st_ino == inode
    left = cut_often(log, tmp_path, rng)
    assert {content.rstrip(b"\0") for content in left} >= {b"on the disk", b"in memory"}
    assert b"after the kill" not in left
    fd = os.open(path / "f", os.O_RDONLY)
    log.before("fsync", fd, 0, 0, None)
    log.after("fsync", fd, 0, 0, 0)
    os.close(fd)
    (tmp_path / "later").mkdir()
    assert set(cut_often(log, tmp_path / "later", rng)) == {b"in memory"}


def test_no_flush_begins_while_they_are_held(tmp_path):
    log, begun = BlockLog(tmp_path), []
    log.beside = partial(begun.append, True)
    log.block_flushes()
    fd = os.open(tmp_path, os.O_RDONLY)
    thread = threading.Thread(target=log.before, args=("fsync", fd, 0, 0, None))
    thread.start()
    log.at_rest()
    assert not begun
    log.let_flushes_go_on()
    thread.join()
    os.close(fd)
    assert begun


HEARS = """
import ctypes, mmap
from rmqcore.doctor.selftest import _system_calls
heard = []
class Watcher:
    def before(self, call, *_): return 0
    def after(self, call, fd, at, size, result): heard.append((call, result))
region = mmap.mmap(-1, 4096)
at = ctypes.addressof(ctypes.c_char.from_buffer(region))
msync = ctypes.CDLL(None).msync
msync.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
_system_calls.watch(Watcher())
for flags in (1, 4):
    msync(at, 4096, flags)
    heard.append(flags)
_system_calls.watch(None)
print(heard)
"""


def test_an_msync_that_waits_for_nothing_is_no_flush():
    env = os.environ | _system_calls.preload() | {"PYTHONPATH": os.pathsep.join(sys.path)}
    told = subprocess.run(
        [sys.executable, "-c", HEARS], env=env, capture_output=True, text=True, check=True
    )
    assert told.stdout.strip() == "[1, ('msync', 0), 4]"


def test_a_row_without_a_message_that_had_to_be_there_holds_nothing():
    good, empty = Row("good", "", 1, acknowledged=1), Row("empty", "", 1)
    assert (good.verdict, empty.verdict) == ("yes", "NO")
    report = SelfTestReport(1, [good, empty])
    assert not report.clean
    assert report.verdict == "a promise was BROKEN"
    assert "nothing is proved" in empty.why()[0]
    assert [row["holds"] for row in report.to_dict()["rows"]] == [True, False]


def test_a_row_that_was_skipped_is_said_to_be_and_holds_nothing():
    good, skipped = Row("good", "", 1, acknowledged=1), Row("left out", "", skipped="no root")
    assert (skipped.verdict, skipped.why()) == ("skipped", ["skipped: left out: no root"])
    assert not skipped.to_dict().get("holds")
    assert SelfTestReport(1, [good, skipped]).verdict == (
        "every promise that was tried held, 1 skipped"
    )
    nothing = SelfTestReport(1, [skipped])
    assert (nothing.clean, nothing.verdict) == (False, "nothing was tried")


def backing_files():
    """What lies behind the loop devices of this machine."""
    found = []
    for path in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):
            found.append(path.read_text())
    return "".join(found)


def test_whoever_is_killed_leaves_no_mount_behind(tmp_path):
    if reason := why_not("ext4"):
        pytest.skip(reason)
    task = {"task": "mounted", "file_system": "ext4", "cuts": 10**6}
    words = json.dumps(task | {"seed": 1, "scratch": str(tmp_path)})
    with subprocess.Popen(
        [sys.executable, "-m", "rmqcore.doctor.selftest.worker", words],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
    ) as worker:
        assert b"progress" in worker.stdout.readline()
        mounts = Path(f"/proc/{worker.pid}/mountinfo").read_text()
        assert str(tmp_path) in mounts
        assert str(tmp_path) in backing_files()
        assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
        worker.send_signal(signal.SIGKILL)
    until(lambda: str(tmp_path) not in backing_files(), "the loop devices are gone")


def test_a_package_of_the_same_name_in_the_working_directory_is_not_tried(tmp_path, monkeypatch):
    """Its copy is watched by nobody: every cut seemed to lose what was acknowledged."""
    (tmp_path / "rmqcore").mkdir()
    (tmp_path / "rmqcore" / "__init__.py").write_text("raise SystemExit('another one')\n")
    monkeypatch.chdir(tmp_path)
    report = selftest.crash(cuts=30, kills=0, mounted=0, seed=5)
    assert [row.failures for row in report.rows if row.cases] == [0, 0, 0]


def test_one_seed_makes_the_same_cuts(tmp_path):
    path = tmp_path / "live"
    path.mkdir()
    log = BlockLog(path)
    for letter in b"abc":
        (path / "f").write_bytes(bytes([letter]) * 9000)
        log.observe()
    left = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        left.append(cut_often(log, tmp_path / name, random.Random(3)))
    assert left[0] == left[1]
    assert len(set(left[0])) > 10


# ---- what it has found here


def test_files_made_ahead_may_have_names_and_no_length(tmp_path):
    """Of files that were made one after the other a power cut may leave any without its length."""
    directory = tmp_path / "commitlog"
    directory.mkdir()
    for offset, size in ((0, 4096), (4096, 0), (8192, 4096)):
        (directory / f"{offset:020d}").write_bytes(b"\0" * size)
    (directory / f"{0:020d}").write_bytes(b"x" * 4096)
    reading = MappedFileQueue(directory, 4096, OpenFiles(), writable=False)
    reading.load()
    assert [file.file_from_offset for file in reading.files] == [0]
    queue = MappedFileQueue(directory, 4096, OpenFiles())
    queue.load()
    assert [file.file_from_offset for file in queue.files] == [0]
    assert [file.name for file in directory.iterdir()] == [f"{0:020d}"]


def test_files_go_from_the_last_to_the_first_on_the_disk_too(tmp_path, monkeypatch):
    """A power cut that takes one in front of another would leave a gap, and no opening."""
    directory, seen = tmp_path / "commitlog", []
    directory.mkdir()
    for offset, size in ((0, 4096), (4096, 0), (8192, 4096)):
        (directory / f"{offset:020d}").write_bytes(b"\0" * size)
    (directory / f"{0:020d}").write_bytes(b"x" * 4096)
    monkeypatch.setattr(
        "rmqcore.files.mapped_file_queue.sync_directory",
        lambda path: seen.append(len(list(path.iterdir()))),
    )
    queue = MappedFileQueue(directory, 4096, OpenFiles())
    queue.load()
    assert seen == [2, 1]
    queue.close()


def test_a_log_file_in_front_of_others_may_have_lost_its_length(tmp_path):
    """None of them was flushed: what is in front of it is there, and the store opens."""
    sizes = {"mapped_file_size_commit_log": 1 << 14}
    with open_store(tmp_path / "made", **sizes, flush_interval_commit_log_ms=3_600_000) as store:
        places = [store.put("T", b"%d" % number * 300).phy_offset for number in range(120)]
        shutil.copytree(tmp_path / "made", tmp_path / "cut")
    log = sorted((tmp_path / "cut" / "commitlog").iterdir())
    assert len(log) > 3
    os.truncate(log[1], 0)
    (tmp_path / "cut" / "checkpoint").unlink(missing_ok=True)
    with open_store(tmp_path / "cut", **sizes) as store:
        kept = [message.phy_offset for message in store.messages("T")]
        assert kept == [place for place in places if place < 1 << 14]
        assert store.put("T", b"goes on").queue_offset == len(kept)


def test_a_log_whose_only_file_has_no_length_keeps_it(store_path, monkeypatch):
    """Without it an opening that was cut off in front of the queues would leave a lost log."""
    sizes = {"mapped_file_size_commit_log": 1 << 16}
    with open_store(store_path, **sizes) as store:
        store.put("T", b"x")
    (file,) = (store_path / "commitlog").iterdir()
    os.truncate(file, 0)
    (store_path / "abort").touch()

    def cut_off(_):
        raise KeyboardInterrupt

    with pytest.raises(CorruptStoreError, match="the log ends here"):
        # no kill takes a file's length
        open_store(store_path, **sizes)
    monkeypatch.setattr(StoreMark, "this_machine", lambda _: "started anew")
    with monkeypatch.context() as patch:
        patch.setattr(Recovery, "run", cut_off)
        with pytest.raises(KeyboardInterrupt):
            open_store(store_path, **sizes)
    assert file.exists()
    with open_store(store_path, **sizes) as store:
        assert store.max_queue_offset("T", 0) == 0
        assert store.put("T", b"y").ok


def test_an_empty_file_in_front_of_records_is_refused(tmp_path):
    directory = tmp_path / "commitlog"
    directory.mkdir()
    (directory / f"{0:020d}").touch()
    (directory / f"{4096:020d}").write_bytes(b"x" * 4096)
    with pytest.raises(CorruptStoreError, match="the file has 0 bytes"):
        MappedFileQueue(directory, 4096, OpenFiles()).load()


def test_an_index_file_without_its_length_says_nothing_of_sizes(store_path):
    sizes = {"max_hash_slot_num": 100, "max_index_num": 400}
    with open_store(store_path, **sizes) as store:
        store.put("T", b"x", keys="K")
    (file,) = (store_path / "index").iterdir()
    os.truncate(file, 0)
    with open_store(store_path, **sizes) as store:
        assert len(store.query_message("T", "K").messages) == 1


def test_a_log_file_that_cannot_be_mapped_is_not_left_behind(store_path, monkeypatch):
    def refused(*_, **__):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    with open_store(store_path, mapped_file_size_commit_log=8192, allocate_ahead=0) as store:
        store.put("T", b"x" * 5000)
        with monkeypatch.context() as patch:
            patch.setattr(MappedFile, "begin_writes", refused)
            with pytest.raises(StoreNotWritableError, match="allocate"):
                store.put("T", b"x" * 5000)
        assert len(list((store_path / "commitlog").iterdir())) == 1
        assert store.put("T", b"x" * 5000).ok
