"""`rmqcore selftest` holds here, and notices a store that breaks its promises."""

import errno
import os
import random
from functools import partial

import pytest

from golden.stores import RELEASES
from rmqcore import CorruptStoreError, Durability, StoreNotFoundError, open_store
from rmqcore.doctor import selftest
from rmqcore.doctor.selftest import damage, failing_calls, kills, mounted, power_cuts
from rmqcore.doctor.selftest.block_log import BlockLog
from rmqcore.doctor.selftest.mounted import FILE_SYSTEMS, why_not
from rmqcore.files.mapped_file import MappedFile, OpenFiles
from rmqcore.files.mapped_file_queue import MappedFileQueue
from rmqcore.files.store_mark import StoreMark
from rmqcore.recovery.recovery import Recovery

pytestmark = pytest.mark.process


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
def test_power_cuts_of_a_mounted_file_system(tmp_path, seed, file_system):
    if reason := why_not(file_system):
        pytest.skip(reason)
    row = mounted.mounted_cuts(file_system, 60, seed, tmp_path, ignore)
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
    monkeypatch.setattr(kills, "put", lambda *_: Durability.PAGE_CACHE)
    row = kills.kills(20, 1, tmp_path, ignore, kept=tmp_path / "kept")
    assert row.failures
    assert "acknowledged messages lost" in row.examples[0]
    images = list((tmp_path / "kept").iterdir())
    assert len(images) == row.failures
    assert all((image / "commitlog").is_dir() for image in images)


def test_fields_without_a_checksum_are_told_apart(tmp_path, monkeypatch):
    """Without a CRC of the record RocketMQ's format protects many of its fields by nothing."""
    plain = partial(damage.open_for, enabled_append_prop_crc=False)
    monkeypatch.setattr(damage, "open_for", plain)
    flipped, _ = damage.damage(20, 1, tmp_path, ignore)
    assert (flipped.examples, flipped.cases) == ([], 20)
    assert flipped.unprotected


def test_a_wrong_answer_is_noticed(tmp_path, monkeypatch):
    plain = partial(damage.open_for, enabled_append_prop_crc=False)
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
    log.acknowledged()
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
    log.acknowledged()
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


def test_one_seed_makes_the_same_cuts(tmp_path):
    path = tmp_path / "live"
    path.mkdir()
    log = BlockLog(path)
    for letter in b"abc":
        (path / "f").write_bytes(bytes([letter]) * 9000)
        log.acknowledged()
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
            with pytest.raises(OSError, match="allocate"):
                store.put("T", b"x" * 5000)
        assert len(list((store_path / "commitlog").iterdir())) == 1
        assert store.put("T", b"x" * 5000).ok
