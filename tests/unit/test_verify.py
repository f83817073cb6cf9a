"""Verification is clean on what RocketMQ wrote, names each damage, and changes nothing."""

import shutil
import struct
import sys

import pytest

import rmqcore
from golden.check import digest_tree
from golden.stores import packed_stores
from rmqcore.config import load_config
from rmqcore.doctor import Severity, plan, repair, verify
from rmqcore.errors import ConfigError, StoreNotFoundError
from rmqcore.files.consume_queue import FILLER
from rmqcore.files.store_dir import StoreDir
from rmqcore.scan import unit_files

pytestmark = pytest.mark.logic

INTACT = [store for store in packed_stores() if store[1] != "crashed"]
CRASHED = [store for store in packed_stores() if store[1] == "crashed"]


def complaints(path, **settings):
    report = verify(path, **settings)
    return [f for f in report.findings if f.severity is not Severity.NOTE]


def parts(found):
    return {finding.part for finding in found}


@pytest.mark.parametrize("store", INTACT, ids="-".join)
def test_clean_and_untouched(golden_store, store):
    golden = golden_store(*store)
    before = digest_tree(golden.path)
    report = verify(golden.path)
    assert report.clean
    assert report.findings == []
    assert verify(golden.path, config=golden.conf, jobs=2).clean
    assert digest_tree(golden.path) == before
    with rmqcore.open_store(golden.path, mode="r") as opened:
        assert report.records == sum(1 for _ in opened.messages())
        assert report.queues == len(opened.queues())
        assert (report.min_phy_offset, report.max_phy_offset) == (
            opened.min_phy_offset,
            opened.max_phy_offset,
        )
    assert report.units >= len(golden.manifest["queues"])


@pytest.mark.engine
@pytest.mark.parametrize("store", CRASHED, ids="-".join)
def test_each_damage_of_a_crash_is_named_and_gone_after_recovery(golden_store, store):
    golden = golden_store(*store)
    found = complaints(golden.path)
    torn = golden.manifest["torn"]
    end = int(torn["file"]) + torn["position"]
    tail, queue, index, marker = found
    assert (tail.part, tail.phy_offset, tail.path.name) == ("log", end, torn["file"])
    assert (queue.part, queue.path.parts[-2:]) == ("consume queue", ("TopicA", "0"))
    assert "missing" in queue.what
    assert (index.part, marker.part) == ("index", "store")
    assert all(finding.how for finding in found)
    rmqcore.open_store(golden.path, config=golden.conf).close()
    assert complaints(golden.path) == []


def test_no_store_is_an_error(tmp_path):
    with pytest.raises(StoreNotFoundError):
        verify(tmp_path)


@pytest.fixture
def basic(golden_store):
    return golden_store("5.5.0", "basic").path


def log_file(path, number=3):
    return sorted((path / "commitlog").iterdir())[number]


def flip(file, at, bits=1):
    data = bytearray(file.read_bytes())
    data[at] ^= bits
    file.write_bytes(data)


def second_record(file):
    return int.from_bytes(file.read_bytes()[:4], "big")


@pytest.mark.parametrize("at", [0, 4, 8, 28, 84])
def test_a_flipped_bit_in_a_record_is_found_where_it_is(basic, at):
    file = log_file(basic)
    record = second_record(file)
    flip(file, record + at)
    found = complaints(basic)
    log = [finding for finding in found if finding.part == "log"]
    assert [(f.path, f.phy_offset) for f in log] == [(file, int(file.name) + record)]


def test_damage_in_several_files_is_found_in_one_run(basic):
    for number in (1, 5, 8):
        flip(log_file(basic, number), second_record(log_file(basic, number)) + 4)
    log = [finding for finding in complaints(basic) if finding.part == "log"]
    assert [f.path.name for f in log] == [log_file(basic, n).name for n in (1, 5, 8)]


def test_zeros_over_records_are_found(basic):
    file = log_file(basic)
    start = second_record(file)
    data = bytearray(file.read_bytes())
    data[start : start + 5000] = bytes(5000)
    file.write_bytes(data)
    log = [finding for finding in complaints(basic) if finding.part == "log"]
    assert log[0].phy_offset == int(file.name) + start
    assert "zeros" in log[0].what


def test_a_file_that_is_missing_or_cut_short_is_found(basic):
    middle = log_file(basic, 4)
    data = middle.read_bytes()
    middle.unlink()
    found = complaints(basic)
    assert any("missing" in f.what or "gone" in f.what for f in found if f.part == "log")
    middle.write_bytes(data[:1000])
    found = [f for f in complaints(basic) if f.part == "log"]
    assert any("1000 bytes" in finding.what for finding in found)


def queue_file(path, topic="TopicA", queue="0", number=0):
    return sorted((path / "consumequeue" / topic / queue).iterdir())[number]


@pytest.mark.parametrize(("at", "what"), [(7, "not what"), (11, "not what"), (19, "tags code")])
def test_a_flipped_bit_in_a_unit_is_found(basic, at, what):
    file = queue_file(basic)
    flip(file, 20 * 7 + at)
    (found,) = complaints(basic)
    assert found.path == file.parent
    assert what in found.what
    assert "queue offset 7" in found.what


def test_a_hole_and_a_lost_file_are_found(basic):
    file = queue_file(basic)
    data = bytearray(file.read_bytes())
    data[60:120] = bytes(60)
    file.write_bytes(data)
    (found,) = complaints(basic)
    assert "3 units are missing from queue offset 3" in found.what
    file.unlink()
    (found,) = complaints(basic)
    assert "50 units are missing from queue offset 0" in found.what
    shutil.rmtree(basic / "consumequeue" / "TopicA")
    assert len(complaints(basic)) == 4


def test_units_that_no_record_stands_behind_are_found(basic):
    file = queue_file(basic, number=-1)
    data = bytearray(file.read_bytes())
    free = len(data.rstrip(b"\0"))
    free += -free % 20
    data[free : free + 40] = data[:40]
    file.write_bytes(data)
    (found,) = complaints(basic)
    assert "no record stands behind 2 units" in found.what
    strange = basic / "consumequeue" / "Ghost" / "0"
    strange.mkdir(parents=True)
    (strange / f"{0:020d}").write_bytes(bytes(data))
    assert {found.path for found in complaints(basic)} == {file.parent, strange}


def index_file(path, number=2):
    return sorted((path / "index").iterdir())[number]


HEADER, SLOTS = 40, 64


@pytest.mark.parametrize(
    "at",
    [
        0 + 23,  # begin offset
        0 + 31,  # end offset
        35,  # used slots
        39,  # entries
        HEADER + 3,  # a slot
        HEADER + 4 * SLOTS + 20 * 9 + 3,  # an entry's hash
        HEADER + 4 * SLOTS + 20 * 9 + 11,  # its offset
        HEADER + 4 * SLOTS + 20 * 9 + 4,  # its offset, far too high
        HEADER + 4 * SLOTS + 20 * 9 + 19,  # the entry before
    ],
)
def test_a_flipped_bit_in_an_index_file_is_found(basic, at):
    file = index_file(basic)
    flip(file, at)
    found = complaints(basic)
    assert parts(found) == {"index"}
    assert file in {finding.path for finding in found}


def test_an_index_file_that_holds_what_an_earlier_one_does_is_found(basic):
    index_file(basic, 3).write_bytes(index_file(basic, 1).read_bytes())
    found = complaints(basic)
    assert parts(found) == {"index"}
    assert any("out of the log's order" in finding.what for finding in found)


def test_a_lost_or_shortened_index_file_is_found(basic):
    file = index_file(basic)
    data = file.read_bytes()
    file.write_bytes(data[:-100])
    found = complaints(basic)
    assert parts(found) == {"index"}
    assert any("bytes" in finding.what for finding in found)
    file.unlink()
    (found,) = complaints(basic)
    assert "cannot be found" in found.what
    file.write_bytes(data)
    assert complaints(basic) == []


def test_an_index_whose_geometry_nothing_tells_is_a_finding_unless_it_is_given(basic):
    for file in (basic / "index").iterdir():
        file.write_bytes(file.read_bytes()[:-4])
    found = complaints(basic)
    assert parts(found) == {"index"}
    with pytest.raises(ConfigError):
        verify(basic, config={"maxHashSlotNum": 64, "maxIndexNum": 256})


def test_the_checkpoint_is_judged(basic):
    checkpoint = basic / "checkpoint"
    data = checkpoint.read_bytes()
    for broken, what in (
        (data[:10], "10 bytes"),
        (b"\xff" * 8 + data[8:], "negative"),
        (b"\x7f" + data[1:], "the newest record"),
        (data[:100], "100 bytes"),
    ):
        checkpoint.write_bytes(broken)
        (found,) = complaints(basic)
        assert found.part == "checkpoint"
        assert what in found.what
    checkpoint.unlink()
    report = verify(basic)
    assert report.clean
    assert [finding.severity for finding in report.findings] == [Severity.NOTE]


@pytest.mark.engine
def test_a_checkpoint_later_than_the_last_record_is_in_order_where_the_clock_was_set_back(
    store_path,
):
    start_ms = 1_700_000_000_000
    with rmqcore.open_store(store_path) as store:
        for back_ms in (0, 5000):
            store.parts.files.tail.fixed_time_ms = start_ms - back_ms
            store.put("T", b"x")
            store.flush()
    assert struct.unpack_from(">q", (store_path / "checkpoint").read_bytes()) == (start_ms,)
    assert verify(store_path).findings == []
    assert plan(store_path).clean
    with (store_path / "checkpoint").open("r+b") as file:
        file.write(struct.pack(">3q", start_ms, start_ms + 1, start_ms))
    (found,) = complaints(store_path)
    assert found.what == (
        f"logics_msg_timestamp_ms is {start_ms + 1}, the newest record was stored at {start_ms}"
    )
    (step,) = plan(store_path).steps
    assert step.what == f"its times go up to {start_ms + 1}, the newest record's is {start_ms}"


@pytest.mark.engine
def test_half_a_letter_in_a_name_of_a_table_is_no_queue(store_path):
    rmqcore.open_store(store_path).close()
    offsets = store_path / "config" / "consumerOffset.json"
    offsets.parent.mkdir(exist_ok=True)
    offsets.write_text('{"offsetTable":{"T\\ud800@g":{0:1},"U@g":{0:-9}}}')
    (found,) = complaints(store_path)
    assert "'0' has offset -9" in found.what
    assert repair(store_path).clean


@pytest.mark.engine
@pytest.mark.parametrize("name", ["Topic!", "\\ud800", "x" * 300])
def test_a_name_that_rotted_in_the_table_of_topics_bars_no_opening(store_path, name):
    with rmqcore.open_store(store_path) as store:
        store.put("T", b"x")
    topics = store_path / "config" / "topics.json"
    topics.parent.mkdir(exist_ok=True)
    topics.write_text(f'{{"topicConfigTable":{{"{name}":{{"perm":6}},"U":{{"perm":4}}}}}}')
    with rmqcore.open_store(store_path) as store:
        assert store.topics.get("U").perm == 4
        store.put("U", b"x")


@pytest.mark.engine
def test_a_checkpoint_goes_back_with_a_log_that_is_cut(store_path):
    with rmqcore.open_store(store_path) as store:
        for number in range(3):
            store.parts.files.tail.fixed_time_ms = 1_700_000_000_000 + number
            last = store.put("T", b"x")
    (file,) = (store_path / "commitlog").iterdir()
    with file.open("r+b") as stream:
        stream.seek(last.phy_offset)
        stream.write(b"x")
    rmqcore.open_store(store_path, on_corruption="truncate").close()
    assert verify(store_path).clean


@pytest.mark.parametrize("text", [b"", b"\0" * 50, b"{", b'{"a": NaN}', b"\xff\xfe"])
def test_a_config_file_that_cannot_be_read_is_found(basic, text):
    (basic / "config").mkdir(exist_ok=True)
    (basic / "config" / "topics.json").write_bytes(text)
    (found,) = complaints(basic)
    assert (found.part, found.path.name) == ("config", "topics.json")


def test_consumers_ahead_of_their_queue_are_found(basic):
    (basic / "config").mkdir(exist_ok=True)
    file = basic / "config" / "consumerOffset.json"
    file.write_text('{"offsetTable":{"TopicA@g":{0:5,1:99999999},"TopicA@h":{0:-1}}}')
    found = complaints(basic)
    assert [finding.severity for finding in found] == [Severity.WARNING, Severity.ERROR]


def test_foreign_files_are_notes(basic):
    (basic / "notes.txt").write_text("mine")
    (basic / "commitlog" / "readme").write_text("mine")
    (basic / "consumequeue" / "TopicA" / "notes").write_text("mine")
    report = verify(basic)
    assert report.clean
    assert len(report.findings) == 3


@pytest.mark.engine
def test_a_live_store_is_clean_while_it_is_written(store_path):
    with rmqcore.open_store(store_path) as store:
        for number in range(3000):
            store.put("T", b"x" * 100, queue_id=number % 3, keys=f"k{number}", tags="a")
        report = verify(store_path)
        assert report.live
        assert [f for f in report.findings if f.severity is not Severity.NOTE] == []
        assert report.records == 3000
    report = verify(store_path)
    assert not report.live
    assert report.clean


@pytest.fixture
def lagging(store_path):
    """A store whose writer is at work and has dispatched the first 1000 of its 4000 messages."""

    def put(count):
        with rmqcore.open_store(store_path) as store:
            for number in range(count):
                store.put("T", b"x" * 100, queue_id=number % 3, keys=f"k{number}", tags="a")

    def behind(name):
        return store_path.with_name(name)

    put(1000)
    for name in ("index", "consumequeue"):
        shutil.copytree(store_path / name, behind(name))
    put(3000)
    for name in ("index", "consumequeue"):
        shutil.rmtree(store_path / name)
        behind(name).rename(store_path / name)
    directory = StoreDir(store_path)
    directory.lock()
    yield store_path
    directory.unlock()


@pytest.mark.engine
def test_what_a_writer_has_not_dispatched_yet_is_a_note(lagging):
    report = verify(lagging)
    assert report.live
    assert report.clean
    assert {(f.severity, f.part) for f in report.findings} == {
        (Severity.NOTE, "consume queue"),
        (Severity.NOTE, "index"),
    }
    assert len(report.findings) == 4
    (index,) = (finding for finding in report.findings if finding.part == "index")
    assert index.what.startswith("6000 keys of records from ")


@pytest.mark.engine
def test_what_lies_before_the_end_of_a_live_store_is_no_lag(lagging):
    (queue,) = (lagging / "consumequeue" / "T" / "1").iterdir()
    with queue.open("r+b") as stream:
        stream.seek(100 * 20)
        stream.write(bytes(3 * 20))
        stream.seek(200 * 20)
        stream.write(FILLER)
    (index,) = (lagging / "index").iterdir()
    with index.open("r+b") as stream:
        stream.seek(HEADER + 4 * load_config(None).max_hash_slot_num + 20 * 500)
        stream.write(b"\xff" * 4)
    found = complaints(lagging)
    assert {(f.severity, f.part) for f in found} == {
        (Severity.ERROR, "consume queue"),
        (Severity.ERROR, "index"),
    }
    assert [finding.what for finding in found if finding.part == "consume queue"] == [
        "3 units are missing from queue offset 100 on",
        "1 units are missing from queue offset 200 on",
    ]
    assert any("1 keys of records" in finding.what for finding in found)


def test_the_report_is_plain_values(golden_store):
    golden = golden_store("5.5.0", "crashed")
    import json

    report = verify(golden.path)
    values = json.loads(json.dumps(report.as_dict()))
    assert values["clean"] is False
    assert values["findings"][0]["severity"] == "error"
    assert str(report.findings[0]).startswith("error: ")


def test_progress_is_told_in_bytes(golden_store):
    told = []
    verify(golden_store("5.5.0", "basic").path, progress=lambda *done: told.append(done))
    assert {phase for phase, _, _ in told} == {"log", "index"}
    for phase in ("log", "index"):
        done = [(d, total) for p, d, total in told if p == phase]
        assert done[-1][0] == done[-1][1] > 0


def test_any_damage_gives_findings_and_never_a_crash(golden_store, rng):
    golden = golden_store("5.5.0", "lmq")
    files = [path for path in sorted(golden.path.rglob("*")) if path.is_file()]
    files = [path for path in files if path.name not in ("abort.bak", "position-checkpoint")]
    for _ in range(60):
        file = rng.choice(files)
        data = file.read_bytes()
        if not data:
            continue
        broken = bytearray(data)
        at = rng.randrange(len(data))
        way = rng.randrange(3)
        if way == 0:
            broken[at] ^= 1 << rng.randrange(8)
        elif way == 1:
            broken[at : at + 64] = rng.randbytes(min(64, len(data) - at))
        else:
            del broken[at:]
        file.write_bytes(broken)
        try:
            verify(golden.path, config=golden.conf)
        except ConfigError:
            assert way == 2
        finally:
            file.write_bytes(data)
    assert verify(golden.path, config=golden.conf).clean


def test_the_time_is_over_and_it_goes_on_where_it_was(basic, monkeypatch):
    monkeypatch.setattr(sys.modules["rmqcore.doctor.verify"], "SPLIT_SIZE", 1 << 16)
    whole = verify(basic)
    assert whole.complete
    first = verify(basic, max_duration_s=0)
    assert not first.complete
    assert first.clean
    assert 0 < first.verified_to < whole.max_phy_offset
    rest = verify(basic, start_phy_offset=first.verified_to)
    assert rest.complete
    assert rest.clean
    assert first.records + rest.records == whole.records


@pytest.mark.engine
def test_a_clock_that_was_set_back_is_found_by_a_deep_look(store_path):
    times = iter([5000, 6000, 2000, 7000])
    with rmqcore.open_store(store_path) as store:
        for _ in range(4):
            store.put("T", b"x")
    log = sorted((store_path / "commitlog").iterdir())[0]
    data, at = bytearray(log.read_bytes()), 0
    for time_ms in times:
        data[at + 56 : at + 64] = time_ms.to_bytes(8, "big")
        at += int.from_bytes(data[at : at + 4], "big")
    log.write_bytes(data)
    assert not any("older" in finding.what for finding in verify(store_path).findings)
    (found,) = [one for one in verify(store_path, deep=True).findings if "older" in one.what]
    assert found.severity is Severity.NOTE
    assert "4000 ms" in found.what


@pytest.mark.engine
def test_many_findings_of_one_kind_hide_none_of_another(store_path, monkeypatch):
    monkeypatch.setattr("rmqcore.doctor.findings.FINDINGS_MAX", 2)
    with rmqcore.open_store(store_path) as store:
        for _ in range(3):
            # a producer may mark as compressed what is not
            store.put_message(rmqcore.Message("T", b"x", sys_flag=1))
    flip(max((store_path / "consumequeue/T/0").iterdir()), 7)
    report = verify(store_path, deep=True)
    assert not report.clean
    assert report.finding_count > len(report.findings)
    found = [(one.part, one.severity) for one in report.findings]
    assert found[:2] == [("log", Severity.NOTE)] * 2
    assert ("consume queue", Severity.ERROR) in found
    assert not [name for name in report.as_dict() if name.startswith("_")]


def test_a_delay_level_and_a_consumer_ahead_of_their_queues_are_found(golden_store):
    path = golden_store("5.5.0", "delayed").path
    config = path / "config"
    config.mkdir(exist_ok=True)
    assert verify(path).clean
    level = next((path / "consumequeue" / "SCHEDULE_TOPIC_XXXX").iterdir())
    (config / "delayOffset.json").write_text(f'{{"offsetTable":{{{int(level.name) + 1}:99}}}}')
    (found,) = complaints(path)
    assert found.path.name == "delayOffset.json"
    assert "up to 99" in found.what
    (config / "delayOffset.json").write_text('{"offsetTable":{"x":1}}')
    (found,) = complaints(path)
    assert found.severity is Severity.ERROR


@pytest.mark.engine
def test_a_sealed_file_with_another_checksum_is_found(store_path):
    with rmqcore.open_store(store_path) as store:
        store.put("T", b"x")
    mark = store_path / "config" / "storeMark.json"
    mark.write_text(mark.read_text().replace('"logEnd":', '"logEnd":1'))
    (found,) = complaints(store_path)
    assert "checksum" in found.what


@pytest.mark.engine
def test_batches_that_overlap_are_found(store_path):
    settings = {"mapper_file_size_batch_consume_queue": 46 * 100}
    with rmqcore.open_store(store_path, config=settings) as store:
        store.put("T", b"x")
    queue = store_path / "batchconsumequeue" / "B" / "0"
    queue.mkdir(parents=True)
    unit = struct.Struct(">qiqqqhii")
    units = [unit.pack(n * 100, 100, 0, 0, base, 3, -1, 0) for n, base in enumerate((0, 3, 4))]
    (queue / f"{0:020d}").write_bytes(b"".join(units).ljust(46 * 100, b"\0"))
    assert any("do not lie behind" in finding.what for finding in complaints(store_path))


@pytest.mark.engine
def test_offsets_of_topics_without_messages_make_nobody_look_for_their_queues(
    tmp_path, monkeypatch
):
    with rmqcore.open_store(tmp_path / "s") as store:
        store.put("T", b"x")
        for topic in ("T", "Gone", "Gone2"):
            for group in ("a", "b"):
                store.consumer_offsets.commit(topic, group, 0, 0)
    looked, listed = [], unit_files.numbered_files

    def noted(directory):
        looked.append(directory.parent.name)
        return listed(directory)

    monkeypatch.setattr(unit_files, "numbered_files", noted)
    assert verify(tmp_path / "s").clean
    assert "T" in looked
    assert not {"Gone", "Gone2"} & set(looked)
