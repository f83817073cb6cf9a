"""What a disk refuses to give, as of a bad sector, is told with the name of the file."""

import errno
import os
import shutil
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import rmqcore
from rmqcore.config import StoreConfig
from rmqcore.doctor import Severity, VerifyReport, plan, repair, verify
from rmqcore.doctor.findings import FINDINGS_MAX
from rmqcore.errors import CorruptConsumeQueueError
from rmqcore.files.commit_log import LIKELY_RECORD_SIZE
from rmqcore.metaq import MessageStore, MetaConfig, SystemConfig
from rmqcore.rebuild import rebuild_consume_queues, rebuild_index
from rmqcore.rebuild.digest import tree_digest
from rmqcore.scan import open_log, queue_walk, read_store
from rmqcore.scan.dataset import StoreDataset

pytestmark = pytest.mark.engine


@pytest.fixture
def refuse(monkeypatch):
    """`refuse(path)`: reads of this file, or of those below it, are refused from now on.

    `refuse(path, first, stop)`: only those of bytes in there; a read gives what lies before.
    """
    refused = []
    pread, preadv, stretches = os.pread, os.preadv, queue_walk.read_stretches

    def allowed(fd, at, size):
        path = Path(f"/proc/self/fd/{fd}").readlink()
        for one, first, stop in refused:
            if path.is_relative_to(one) and at < stop and at + size > first:
                if at >= first:
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
                size = first - at
        return size

    def read_stretches(fd, file_start, places, into):
        for begin, end in places.tolist():
            if allowed(fd, begin - file_start, end - begin) < end - begin:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        return stretches(fd, file_start, places, into)

    monkeypatch.setattr(os, "pread", lambda fd, size, at: pread(fd, allowed(fd, at, size), at))
    monkeypatch.setattr(
        os, "preadv", lambda fd, to, at: preadv(fd, [to[0][: allowed(fd, at, len(to[0]))]], at)
    )
    monkeypatch.setattr(queue_walk, "read_stretches", read_stretches)
    return lambda path, first=0, stop=sys.maxsize: refused.append((path, first, stop))


@pytest.fixture
def written(store_path):
    with rmqcore.open_store(store_path) as store:
        for number in range(30):
            store.put("T", b"%d" % number, keys=f"k{number}")
    return store_path


def opened(read):
    def reads(path):
        with rmqcore.open_store(path, mode="r") as store:
            read(store)

    return reads


@pytest.mark.parametrize(
    ("part", "read"),
    [
        ("commitlog", opened(lambda store: list(store.messages()))),
        ("commitlog", opened(lambda store: store.get_message("T", 0, 0))),
        ("index", opened(lambda store: store.query_message("T", "k3"))),
        ("commitlog", lambda path: StoreDataset(path).to_table()),
    ],
)
def test_a_read_that_the_disk_refuses_names_the_file(written, refuse, part, read):
    refuse(written / part)
    with pytest.raises(OSError, match="Input/output error") as caught:
        read(written)
    assert Path(caught.value.filename).is_relative_to(written / part)


def test_a_queue_that_the_disk_refuses_to_give_is_named(written, refuse):
    refuse(written / "consumequeue/T/0")
    with (
        rmqcore.open_store(written, mode="r") as store,
        pytest.raises(CorruptConsumeQueueError, match="Input/output error") as caught,
    ):
        store.get_message("T", 0, 0)
    assert caught.value.path == written / "consumequeue/T/0/00000000000000000000"


def test_a_partition_that_the_disk_refuses_to_give_is_named(tmp_path, refuse):
    config = MetaConfig(SystemConfig(data_path=str(tmp_path), unflush_threshold=0), ["t"])
    with MessageStore("t", 0, config) as store:
        store.append(1, b"x")
        (segment,) = store.segments
        refuse(segment.messages.path)
        with pytest.raises(OSError, match="Input/output error") as caught:
            list(store.messages())
        assert caught.value.filename == str(segment.messages.path)


# ---- over a bad sector

SIZES = {"mapped_file_size_commit_log": 65536, "mapped_file_size_consume_queue": 400 * 20}
COUNT = 400


@pytest.fixture
def large(store_path):
    with rmqcore.open_store(store_path, **SIZES) as store:
        for number in range(COUNT):
            store.put("T", b"%03d" % number * 200, keys=f"k{number}")
            store.put("U", b"u")
    return store_path


def bodies(messages):
    return [bytes(message.body) for message in messages if message.topic == "T"]


def lost_in(path, first, stop):
    """Bodies of topic T whose records have a byte between two of the log."""
    with rmqcore.open_store(path, mode="r", **SIZES) as store:
        return [
            bytes(one.body)
            for one in store.messages()
            if one.topic == "T" and first - one.store_size < one.phy_offset < stop
        ]


def read_log(path, damage):
    with rmqcore.open_store(path, mode="r", **SIZES) as store:
        return bodies(store.messages(on_damage=damage.append))


def read_topic(path, damage):
    with rmqcore.open_store(path, mode="r", **SIZES) as store:
        return bodies(store.messages("T", on_damage=damage.append))


def scan(path, damage, **chosen):
    found = read_store(
        path,
        ("topic", "body"),
        config=StoreConfig(**SIZES),
        on_damage=None if damage is None else damage.append,
        **chosen,
    )
    rows = [row for batch in found for row in pa.record_batch(batch).to_pylist()]
    return [row["body"] for row in rows if row["topic"] == "T"]


def scan_topic(path, damage):
    return scan(path, damage, topics=["T"])


@pytest.mark.parametrize("read", [read_log, read_topic, scan, scan_topic])
@pytest.mark.parametrize("file", [1, -1], ids=["between", "last"])
def test_what_lies_around_a_bad_sector_is_read(large, refuse, read, file):
    path = sorted((large / "commitlog").iterdir())[file]
    first, stop = 8192, 12288
    begin = int(path.name)
    lost, damage = lost_in(large, begin + first, begin + stop), []
    everything = read(large, damage)
    assert lost
    assert (len(everything), damage) == (COUNT, [])
    refuse(path, first, stop)
    assert read(large, damage) == [body for body in everything if body not in lost]
    assert {str(one.path) for one in damage} == {str(path)}
    assert {one.reason for one in damage} == {"Input/output error"}


def test_a_record_that_cannot_be_read_and_is_as_large_as_what_is_read_at_once(store_path, refuse):
    with rmqcore.open_store(store_path) as store:
        store.put("T", b"x")
        beside = store.max_phy_offset - 1
        store.put("T", b"x" * (LIKELY_RECORD_SIZE - beside))
        assert store.max_phy_offset == beside + 1 + LIKELY_RECORD_SIZE
        store.put("T", b"y")
    (path,) = (store_path / "commitlog").iterdir()
    refuse(path, 8192, 12288)
    damage = []
    with rmqcore.open_store(store_path, mode="r") as store:
        assert bodies(store.messages(on_damage=damage.append)) == [b"x", b"y"]
    assert [one.reason for one in damage] == ["Input/output error"]


def test_one_record_that_is_asked_for_is_refused_and_not_missing(large, refuse):
    path = sorted((large / "commitlog").iterdir())[1]
    with rmqcore.open_store(large, mode="r", **SIZES) as store:
        place = next(one.phy_offset for one in store.messages() if one.phy_offset > int(path.name))
    refuse(path)
    log = open_log(large, config=StoreConfig(**SIZES))
    with pytest.raises(OSError, match="Input/output error"):
        log.record_at(place)


def test_nobody_listens(large, refuse):
    path = sorted((large / "commitlog").iterdir())[1]
    refuse(path, 8192, 12288)
    found = []
    with (
        rmqcore.open_store(large, mode="r", **SIZES) as store,
        pytest.raises(OSError, match="Input/output error") as caught,
    ):
        found.extend(store.messages())
    # all that lies before has been handed out
    assert found[-1].phy_offset + found[-1].store_size > int(path.name) + 8192 - 1024
    assert caught.value.filename == str(path)


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize(
    ("part", "first", "stop"),
    [
        ("commitlog", 8192, 12288),
        ("commitlog", 0, sys.maxsize),
        ("consumequeue/T/0", 4096, 8192),
        ("consumequeue/T/0", 0, sys.maxsize),
        ("index", 0, 4096),
        ("index", 4096, 8192),
    ],
)
def test_verify_names_a_bad_sector_and_looks_at_the_rest(large, refuse, part, first, stop, deep):
    path = min((large / part).iterdir())
    with (large / "checkpoint").open("r+b") as stream:
        stream.write(bytes([255] * 8))
    refuse(path, first, stop)
    report = verify(large, config=StoreConfig(**SIZES), deep=deep)
    named = [one for one in report.findings if "Input/output error" in one.what]
    assert [one.path for one in named] == [path]
    assert "another disk" in named[0].how
    # what is looked at last was looked at
    assert report.findings[-1].part == "checkpoint"


def test_verify_names_a_checkpoint_that_cannot_be_read_and_looks_at_the_rest(large, refuse):
    path = large / "checkpoint"
    (large / "config" / "topics.json").write_text("{")
    refuse(path)
    report = verify(large, config=StoreConfig(**SIZES))
    assert [one.path for one in report.findings if "Input/output error" in one.what] == [path]
    assert any(one.part == "config" for one in report.findings)


@pytest.mark.parametrize("read", [read_log, read_topic, scan, scan_topic])
def test_an_index_that_cannot_be_read_keeps_no_message_from_being_read(store_path, refuse, read):
    sizes = {**SIZES, "max_hash_slot_num": 500, "max_index_num": 2000}
    with rmqcore.open_store(store_path, **sizes) as store:
        for number in range(10):
            store.put("T", b"%d" % number, keys=f"k{number}")
    (path,) = (store_path / "index").iterdir()
    refuse(path)
    damage = []
    assert read(store_path, damage) == [b"%d" % number for number in range(10)]
    assert damage == []
    report = verify(store_path)
    assert [one.path for one in report.findings if "Input/output error" in one.what] == [path]
    # whoever writes does not go on without it
    with pytest.raises(OSError, match="Input/output error") as caught:
        rmqcore.open_store(store_path)
    assert caught.value.filename == str(path)


def test_no_consumed_offset_counts_as_ahead_of_a_queue_that_cannot_be_read(large, refuse):
    table = large / "config" / "consumerOffset.json"
    table.write_text(f'{{"offsetTable":{{"T@g":{{0:{COUNT}}}}}}}')
    refuse(large / "consumequeue/T/0", 4096, 8192)
    report = verify(large, config=StoreConfig(**SIZES))
    assert not [one for one in report.findings if one.part == "config"]


def test_the_unreadable_end_of_a_log_is_not_hidden(large, refuse):
    path = max((large / "commitlog").iterdir())
    refuse(path, 4096)
    damage = []
    with pytest.raises(OSError, match="Input/output error"):
        scan(large, damage)
    report = verify(large, config=StoreConfig(**SIZES))
    assert any(one.path == path and "Input/output" in one.what for one in report.findings)


def test_the_first_record_of_the_last_file_that_cannot_be_read_does_not_end_the_log(
    store_path, refuse
):
    with rmqcore.open_store(store_path, **SIZES) as store:
        for _ in range(8):
            store.put("T", b"x" * 10_000)
    # as a kill leaves it whose queues are not on the disk
    (store_path / "abort").touch()
    shutil.rmtree(store_path / "consumequeue")
    path = max((store_path / "commitlog").iterdir())
    refuse(path, 4096, 8192)
    with pytest.raises(OSError, match="Input/output error") as caught:
        scan(store_path, None)
    assert caught.value.filename == str(path)
    damage = []
    assert len(scan(store_path, damage)) == 7
    assert [one.reason for one in damage] == ["Input/output error"]
    report = verify(store_path, config=StoreConfig(**SIZES))
    assert [one.what[:18] for one in report.findings if one.path == path] == ["Input/output error"]


def test_a_queue_that_cannot_be_read_does_not_keep_others_from_being_read(large, refuse):
    refuse(large / "consumequeue/T/0")
    with rmqcore.open_store(large, mode="r", **SIZES) as store:
        damage = []
        assert len(list(store.messages("U", on_damage=damage.append))) == COUNT
        assert not damage
        assert list(store.messages("T", on_damage=damage.append)) == []
        assert len(damage) == 1
        assert len(bodies(store.messages())) == COUNT
        assert any("T/0" in line and "cannot be read" in line for line in store.missing())


@pytest.mark.parametrize("mend", [plan, repair])
@pytest.mark.parametrize(
    ("part", "first"),
    [
        ("commitlog", 8192),
        ("consumequeue/T/0", 4096),
        ("index", 1 << 16),
        ("checkpoint", 0),
        ("config/storeMark.json", 0),
    ],
)
def test_no_repair_takes_what_the_disk_refuses_for_damage(large, refuse, part, first, mend):
    path = large / part
    if path.is_dir():
        path, *_ = sorted(path.iterdir())
    if path.suffix == ".json":
        shutil.copy(path, path.with_name(path.name + ".bak"))
    refuse(path, first, first + 4096)
    with pytest.raises(OSError, match="Input/output error") as caught:
        mend(large, config=StoreConfig(**SIZES))
    assert caught.value.filename == str(path)
    assert not (large / "doctor").exists()


def test_a_bad_sector_behind_all_that_a_report_has_room_for_is_known(store_path):
    report = VerifyReport(store_path)
    for number in range(FINDINGS_MAX):
        report.add(Severity.ERROR, "consume queue", store_path, number, "damaged")
    path = store_path / "consumequeue"
    for _ in range(2):
        report.add_unreadable("consume queue", path)
    assert (len(report.findings), report.finding_count) == (FINDINGS_MAX, FINDINGS_MAX + 1)
    with pytest.raises(OSError, match="Input/output error") as caught:
        report.raise_unreadable()
    assert caught.value.filename == str(path)


@pytest.mark.parametrize("rebuild", [rebuild_consume_queues, rebuild_index])
def test_no_rebuild_passes_over_what_the_disk_refuses(large, refuse, rebuild):
    path = min((large / "commitlog").iterdir())
    before = tree_digest(large / "consumequeue"), tree_digest(large / "index")
    refuse(path, 8192, 12288)
    with pytest.raises(OSError, match="Input/output error") as caught:
        rebuild(large, config=StoreConfig(**SIZES), skip_damage=True)
    assert caught.value.filename == str(path)
    assert (tree_digest(large / "consumequeue"), tree_digest(large / "index")) == before
