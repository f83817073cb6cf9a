"""A reader of a store whose log has lost its records is told so, and not given an empty store."""

import shutil

import pyarrow as pa
import pytest

import rmqcore
from rmqcore.files.store_mark import StoreMark
from rmqcore.scan import open_log, read_store
from rmqcore.scan.dataset import StoreDataset
from rmqcore.scan.lost_records import lost_records, say_what_is_lost

pytestmark = pytest.mark.engine

SIZES = {"mapped_file_size_commit_log": 1 << 16, "mapped_file_size_consume_queue": 800}


def missing(path):
    with rmqcore.open_store(path, mode="r") as store:
        # who scans it hears the same of the log
        assert lost_records(open_log(path)) == "".join(store.missing(queues=False)[:1])
        return store.missing()


@pytest.fixture
def written(store_path):
    """A store with one log file, and where that ends."""
    with rmqcore.open_store(store_path, **SIZES) as store:
        for number in range(100):
            store.put("T", b"%d" % number)
        end = store.max_phy_offset
    return store_path, end


def log_files(path):
    return sorted((path / "commitlog").iterdir())


@pytest.mark.parametrize("size", [0, 1 << 16])
def test_a_log_without_a_record_is_missing(written, size):
    path, end = written
    log_files(path)[0].write_bytes(bytes(size))
    assert missing(path) == [f"the log ends at 0, and has ended at {end}"]


def test_log_files_that_have_changed_places_are_missing(store_path):
    with rmqcore.open_store(store_path, **SIZES) as store:
        while store.max_phy_offset < 3 << 15:
            store.put("T", b"x" * 1000)
        end = store.max_phy_offset
    first, second = log_files(store_path)
    data = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(data)
    assert missing(store_path) == [f"the log ends at 0, and has ended at {end}"]


def test_a_damaged_first_record_hides_no_lost_queue(written):
    path, _ = written
    (log,) = log_files(path)
    data = bytearray(log.read_bytes())
    data[88] ^= 1
    log.write_bytes(data)
    assert missing(path) == []
    shutil.rmtree(path / "consumequeue" / "T" / "0")
    (path / "consumequeue" / "T" / "0").mkdir()
    assert missing(path) == ["queue T/0 ends at 0, and has ended at 100"]


def test_what_another_log_has_ended_at_is_not_missing(written, tmp_path):
    path, _ = written
    with rmqcore.open_store(tmp_path / "other", **SIZES) as store:
        store.parts.files.tail.fixed_time_ms = 1_700_000_000_000
        store.put("T", b"another")
    shutil.rmtree(tmp_path / "other" / "config")
    shutil.copytree(path / "config", tmp_path / "other" / "config")
    assert missing(tmp_path / "other") == []


@pytest.mark.parametrize("release", ["5.5.0", "4.9.7"])
@pytest.mark.parametrize("kept", [0.0, 0.5])
@pytest.mark.parametrize("name", ["delayed", "basic", "aged"])
def test_a_log_of_rocketmqs_ends_where_its_queues_know_no_more(golden_store, release, name, kept):
    """RocketMQ leaves no mark; where it has stopped in order no queue knows more than the log."""
    golden = golden_store(release, name)
    assert missing(golden.path) == []
    with rmqcore.open_store(golden.path, mode="r") as store:
        end = store.max_phy_offset
    last = [file for file in log_files(golden.path) if any(file.read_bytes())][-1]
    data = last.read_bytes()
    used = len(data.rstrip(b"\0"))
    last.write_bytes(data[: int(used * kept)].ljust(len(data), b"\0"))
    with rmqcore.open_store(golden.path, mode="r") as store:
        now = store.max_phy_offset
        assert store.missing() == [
            f"the log ends at {now}, and consume queues know records up to {end}"
        ]


@pytest.mark.parametrize("release", ["5.5.0", "4.9.7"])
def test_what_a_crash_has_left_of_rocketmqs_log_may_be_behind_its_queues(golden_store, release):
    golden = golden_store(release, "crashed")
    last = [file for file in log_files(golden.path) if any(file.read_bytes())][-1]
    last.write_bytes(bytes(last.stat().st_size))
    assert missing(golden.path) == []


def test_a_log_that_begins_later_is_missing(store_path):
    with rmqcore.open_store(store_path, **SIZES) as store:
        while store.max_phy_offset < 3 << 15:
            store.put("T", b"x" * 1000)
    log_files(store_path)[0].unlink()
    assert missing(store_path)[0] == f"the log begins at {1 << 16}, and has begun at 0"


def by_store(path):
    with rmqcore.open_store(path, mode="r") as store:
        return store.arrow_dataset()


@pytest.mark.parametrize("read", [StoreDataset, read_store, by_store])
def test_who_scans_a_log_that_has_lost_records_is_told(written, caplog, read):
    path, end = written
    read(path)
    assert caplog.messages == []
    log_files(path)[0].write_bytes(bytes(1 << 16))
    read(path)
    (said,) = caplog.messages
    assert f"the log ends at 0, and has ended at {end}, and rows of it are lacking" in said
    assert f"`rmqcore doctor {path}` says what can be had again" in said


def test_what_was_put_since_a_log_was_looked_at_is_not_lost(store_path, caplog):
    with rmqcore.open_store(store_path, **SIZES) as store:
        store.put("T", b"1")
    with rmqcore.open_store(store_path) as store:
        log = open_log(store_path)
        store.put("T", b"2")
    say_what_is_lost(log)
    assert caplog.messages == []


def test_no_rows_count_as_lacking_where_the_mark_may_not_be_read(written, caplog, monkeypatch):
    def refused(_):
        raise PermissionError(13, "Permission denied", "storeMark.json")

    path, _ = written
    monkeypatch.setattr(StoreMark, "load", refused)
    assert sum(batch.num_rows for batch in map(pa.record_batch, read_store(path))) == 100
    (said,) = caplog.messages
    assert "whether records of its log are lost is not known" in said
    assert "Permission denied: 'storeMark.json'" in said
