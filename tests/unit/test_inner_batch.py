"""Topics with a batch consume queue: one record, one unit, many messages."""

from __future__ import annotations

import os
import shutil
import struct
import sys
from contextlib import suppress

import pytest
from patience import rounds

from rmqcore import GetMessageStatus, Message, MessageIllegalError, open_store
from rmqcore._codec import decode_batch, encode_batch
from rmqcore.doctor import Severity, repair, undo, verify
from rmqcore.errors import CorruptConsumeQueueError, CorruptStoreError
from rmqcore.files.batch_consume_queue import BatchConsumeQueue
from rmqcore.files.config_tables import TopicConfig
from rmqcore.files.store_dir import StoreDir
from rmqcore.services.reput import ReputMessageService

pytestmark = pytest.mark.engine

SIZES = {
    "mapped_file_size_commit_log": 65536,
    "mapper_file_size_batch_consume_queue": 460,
    "topic_queue_types": (("B", "BatchCQ"),),
}
INNER_BATCH = 0x80 | 0x40


def put_batch(store, count, first):
    body = encode_batch([Message("B", b"%d" % (first + n)) for n in range(count)])
    return store.put(
        "B", body, sys_flag=INNER_BATCH, properties={"INNER_NUM": str(count), "UNIQ_KEY": "u"}
    )


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"


def test_offsets_count_messages(path):
    with open_store(path, **SIZES) as store:
        firsts = []
        total = 0
        for number in range(25):
            receipt = put_batch(store, number % 4 + 1, total)
            firsts.append(receipt.queue_offset)
            total += number % 4 + 1
        assert firsts[:5] == [0, 1, 3, 6, 10]
        assert store.max_queue_offset("B", 0) == total
    assert (path / "batchconsumequeue" / "B" / "0").is_dir()
    assert not (path / "consumequeue" / "B").exists()
    with open_store(path, **SIZES) as store:
        assert store.max_queue_offset("B", 0) == total
        assert put_batch(store, 2, total).queue_offset == total
        bodies = []
        offset = 0
        while offset < store.max_queue_offset("B", 0):
            result = store.get_message("B", 0, offset, max_messages=3)
            assert result.status is GetMessageStatus.FOUND
            bodies += [m.body for one in result.messages for m in decode_batch(one.body)]
            offset = result.next_queue_offset
        assert bodies == [b"%d" % number for number in range(total + 2)]


def test_an_offset_inside_a_batch_finds_its_batch(path):
    with open_store(path, **SIZES) as store:
        put_batch(store, 3, 0)
        put_batch(store, 3, 3)
        result = store.get_message("B", 0, 1)
        assert [m.properties["INNER_BASE"] for m in result.messages] == ["0", "3"]
        assert result.next_queue_offset == 6


def test_the_unit_is_rocketmqs(path):
    with open_store(path, **SIZES) as store:
        receipt = put_batch(store, 3, 0)
        store.max_queue_offset("B", 0)
        file = next((path / "batchconsumequeue" / "B" / "0").iterdir())
        unit = struct.unpack(">qiqqqhii", file.read_bytes()[:46])
        assert unit == (0, receipt.store_size, 0, receipt.store_timestamp_ms, 0, 3, -1, 0)


@pytest.mark.parametrize("number", [None, "0", "-1", "x", "40000", "1" * 20])
def test_a_batch_says_how_many_it_holds(path, number):
    with open_store(path, **SIZES) as store, pytest.raises(MessageIllegalError, match="INNER_NUM"):
        store.put("B", b"x", sys_flag=INNER_BATCH, properties=number and {"INNER_NUM": number})


def test_a_plain_topic_takes_no_inner_batch(path):
    with open_store(path, **SIZES) as store, pytest.raises(MessageIllegalError):
        store.put("T", b"x", sys_flag=INNER_BATCH, properties={"INNER_NUM": "2"})


def test_a_topic_may_come_and_go_while_the_store_is_open(tmp_path):
    sizes = {name: value for name, value in SIZES.items() if name != "topic_queue_types"}
    batches = TopicConfig(topic_name="B", attributes={"queue.type": "BatchCQ"})
    with open_store(tmp_path / "store", **sizes) as store:
        with pytest.raises(MessageIllegalError, match="no batch consume queue"):
            put_batch(store, 3, 0)
        for _ in range(2):
            store.topics.put(batches)
            assert put_batch(store, 3, 0).queue_offset == 0
            assert put_batch(store, 2, 3).queue_offset == 3
            assert store.max_queue_offset("B", 0) == 5
            store.delete_topic("B")
        store.topics.put(TopicConfig(topic_name="B"))
        with pytest.raises(MessageIllegalError, match="no batch consume queue"):
            put_batch(store, 3, 0)


def test_a_lost_batch_queue_is_derived_again(path):
    with open_store(path, **SIZES) as store:
        for number in range(30):
            put_batch(store, 2, 2 * number)
        store.max_queue_offset("B", 0)
    files = {f.name: f.read_bytes() for f in (path / "batchconsumequeue" / "B" / "0").iterdir()}
    for name in files:
        (path / "batchconsumequeue" / "B" / "0" / name).unlink()
    with open_store(path, **SIZES) as store:
        assert store.max_queue_offset("B", 0) == 60
    derived = {f.name: f.read_bytes() for f in (path / "batchconsumequeue" / "B" / "0").iterdir()}
    assert derived == files


def flip(file, at, bits=0x21):
    data = bytearray(file.read_bytes())
    data[at] ^= bits
    file.write_bytes(data)


def assert_in_place(path, firsts, end, **settings):
    """Each batch is the answer at each of its offsets, and the next one goes on behind them."""
    with open_store(path, **SIZES | settings) as store:
        for offset, count in firsts:
            for inside in range(count):
                (found,) = store.get_message("B", 0, offset + inside, max_messages=1).messages
                assert found.properties["INNER_BASE"] == str(offset)
        assert store.max_queue_offset("B", 0) == end
        return store.recovery_report.findings


#: a byte of a field of a unit: physical offset, size, queue offset, count
@pytest.mark.parametrize("field", [0, 9, 28, 37])
def test_a_rotten_unit_is_written_anew(path, field):
    small = {"mapped_file_size_commit_log": 4096, "open_check_bytes": 4096}
    with open_store(path, **SIZES | small) as store:
        firsts = []
        for number in range(35):
            store.put("Other", b"x" * 200)
            count = number % 3 + 1
            firsts.append((put_batch(store, count, number).queue_offset, count))
        store.max_queue_offset("B", 0)
    files = sorted((path / "batchconsumequeue" / "B" / "0").iterdir())
    wanted = [file.read_bytes() for file in files]
    for number in (0, 1, len(files) - 1):
        # the middle unit of a file, and the queue's last one
        flip(files[number], field + 46 * 4)
        # a queue that is lost has the whole log walked, whatever an opening looks at
        shutil.rmtree(path / "consumequeue")
        findings = assert_in_place(path, firsts, sum(firsts[-1]), **small)
        assert any("B/0" in finding for finding in findings)
        assert [file.read_bytes() for file in files] == wanted
    assert verify(path, config=SIZES | small).clean


@pytest.mark.parametrize("byte", [28, 35, 36, 37])
def test_a_reader_beside_a_rotten_unit_gives_no_other_batch(path, byte):
    with open_store(path, **SIZES) as store:
        firsts = [put_batch(store, n % 3 + 1, n).queue_offset for n in range(6)]
    flip(next((path / "batchconsumequeue" / "B" / "0").iterdir()), 46 * 3 + byte)
    with open_store(path, mode="r", config=SIZES) as store:
        for first in firsts:
            with suppress(CorruptStoreError):
                for found in store.get_message("B", 0, first, max_messages=1).messages:
                    assert found.queue_offset == first


def clear(file, start, stop):
    data = file.read_bytes()
    file.write_bytes(data[:start] + bytes(stop - start) + data[stop:])


def swap(one, other):
    data = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(data)


#: 45 units in five files of ten; a unit's queue offset is at its byte 28
ROTTEN = {
    "the first batch's place": lambda files: flip(files[0], 32),
    "the last batch's place": lambda files: flip(files[4], 46 * 4 + 32),
    "a batch's place, high": lambda files: flip(files[2], 46 * 4 + 28, 0x40),
    "a batch's place, low": lambda files: flip(files[2], 46 * 4 + 35, 0x40),
    "a batch's place, negative": lambda files: flip(files[1], 46 * 5 + 28, 0x80),
    "a page at the first file's begin": lambda files: clear(files[0], 0, 46 * 5),
    "a page at the first file's end": lambda files: clear(files[0], 46 * 5, 460),
    "a page at a middle file's end": lambda files: clear(files[2], 46 * 5, 460),
    "a middle file": lambda files: clear(files[3], 0, 460),
    "the first two files": lambda files: swap(files[0], files[1]),
    "the last two files": lambda files: swap(files[3], files[4]),
}


@pytest.mark.parametrize("what", ROTTEN)
@pytest.mark.parametrize("most", [1, 3, 256])
def test_a_reader_of_rotten_batches_misses_none_without_a_word(path, what, most):
    with open_store(path, **SIZES) as store:
        firsts = [put_batch(store, n % 3 + 1, n).queue_offset for n in range(45)]
    # as of a store that RocketMQ has written: nothing tells where its queues have ended
    shutil.rmtree(path / "config")
    ROTTEN[what](sorted((path / "batchconsumequeue" / "B" / "0").iterdir()))
    with suppress(CorruptStoreError), open_store(path, mode="r", config=SIZES) as store:
        found, offset = [], 0
        while offset < store.max_queue_offset("B", 0):
            result = store.get_message("B", 0, offset, max_messages=most)
            found += [message.queue_offset for message in result.messages]
            assert result.next_queue_offset > offset
            offset = result.next_queue_offset
        assert found == firsts
    found, told = [], []
    with suppress(CorruptStoreError), open_store(path, mode="r", config=SIZES) as store:
        for message in store.messages("B", on_damage=told.append):
            found.append(message.queue_offset)
            assert len(found) <= len(firsts)
        assert told or found == firsts


@pytest.mark.parametrize("number", [0, 9])
def test_a_batch_whose_place_rotted_moves_no_other(path, number):
    with open_store(path, **SIZES) as store:
        records = [put_batch(store, 2, n) for n in range(10, 20)]
    log = next((path / "commitlog").iterdir())
    record = records[number]
    name = b"INNER_BASE\x01"
    at = log.read_bytes().index(name, record.phy_offset) + len(name)
    flip(log, at, 4)
    queue = next((path / "batchconsumequeue" / "B" / "0").iterdir())
    units = queue.read_bytes()
    with pytest.raises(CorruptConsumeQueueError, match="doctor plan"):
        open_store(path, **SIZES)
    assert queue.read_bytes() == units
    repair(path, config=SIZES)
    assert_in_place(path, [(2 * n, 2) for n in range(10) if n != number], 20)


#: the test alone deletes files, when the service has had its first round
EXPIRING = {
    "mapped_file_size_commit_log": 4096,
    "retention_bytes": 12000,
    "clean_resource_interval_ms": 3_600_000,
}


def expired(store):
    """Delete what retention allows; the first offset left of the queue."""
    store.flush()
    store.delete_expired_files()
    return store.min_queue_offset("B", 0)


@pytest.mark.parametrize("open_check_bytes", [0, 1 << 30])
def test_a_queue_whose_first_batches_expired_keeps_its_offsets(path, open_check_bytes):
    settings = SIZES | EXPIRING
    with open_store(path, **settings) as store:
        rounds(store.parts.upkeep.retention)
        for number in range(100):
            put_batch(store, 10, 10 * number)
        low = expired(store)
        assert 0 < low < store.max_queue_offset("B", 0) == 1000
        wanted = [m.body for m in store.get_message("B", 0, low, max_messages=200).messages]
    first = min((path / "batchconsumequeue" / "B" / "0").iterdir())
    assert int(first.name) > 0
    kept = {"topic_queue_types": SIZES["topic_queue_types"]}
    for opening in ({"mode": "r"}, {"open_check_bytes": open_check_bytes}):
        with open_store(path, **opening, **kept) as store:
            assert (store.min_queue_offset("B", 0), store.max_queue_offset("B", 0)) == (low, 1000)
            result = store.get_message("B", 0, low, max_messages=200)
            assert [m.body for m in result.messages] == wanted
            assert result.next_queue_offset == 1000
            inside = store.get_message("B", 0, low + 15)
            assert inside.messages[0].properties["INNER_BASE"] == str(low + 10)
    assert not store.recovery_report.findings
    with open_store(path, **kept) as store:
        assert put_batch(store, 10, 1000).queue_offset == 1000
    assert verify(path).findings == []


def test_a_queue_all_of_whose_batches_expired_goes_on_at_its_end(path):
    settings = SIZES | EXPIRING
    with open_store(path, **settings) as store:
        rounds(store.parts.upkeep.retention)
        for number in range(100):
            put_batch(store, 10, 10 * number)
        for _ in range(20):
            store.put("Other", b"x" * 1000)
        assert expired(store) == store.max_queue_offset("B", 0) == 1000
    with open_store(path, **settings) as store:
        assert store.min_queue_offset("B", 0) == store.max_queue_offset("B", 0) == 1000
        assert put_batch(store, 10, 1000).queue_offset == 1000
        (message,) = store.get_message("B", 0, 1000).messages
        assert message.queue_offset == 1000


def test_batches_that_a_writer_has_not_dispatched_yet_are_a_note(path):
    derived = path / "batchconsumequeue" / "B" / "0"
    with open_store(path, **SIZES) as store:
        for number in range(30):
            put_batch(store, 2, 2 * number)
    file = sorted(derived.iterdir())[-1]
    data = file.read_bytes()
    file.write_bytes(data[:46].ljust(460, b"\0"))
    directory = StoreDir(path)
    directory.lock()
    try:
        (note,) = verify(path, config=SIZES).findings
        assert note.severity is Severity.NOTE
        file.write_bytes(data[:46] + bytes(46) + data[92:])
        (error,) = verify(path, config=SIZES).findings
        assert error.severity is Severity.ERROR
    finally:
        directory.unlock()


def interrupt_at(number, work):
    """Raise in place of the return of the so-manieth call inside of `append_batches`."""
    calls = []

    def profile(frame, event, _):
        inside = frame.f_code is BatchConsumeQueue.append_batches.__code__
        if inside and event == "c_return":
            calls.append(event)
            if len(calls) == number:
                sys.setprofile(None)
                raise KeyboardInterrupt

    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)


def test_batches_whose_dispatch_is_interrupted_come_once(path, monkeypatch):
    monkeypatch.setattr(ReputMessageService, "run", lambda *_: 60.0)
    number = interrupted = 0
    with open_store(path, **SIZES) as store:
        while interrupted == number:
            number += 1
            put_batch(store, 2, 4 * number - 4)
            put_batch(store, 2, 4 * number - 2)
            try:
                interrupt_at(number, lambda: store.max_queue_offset("B", 0))
            except KeyboardInterrupt:
                interrupted += 1
            assert store.max_queue_offset("B", 0) == 4 * number
            found = store.get_message("B", 0, 0, max_messages=100).messages
            assert [m.queue_offset for m in found] == list(range(0, 4 * number, 2))
        assert interrupted > 5


def test_verify_names_a_missing_file_of_a_batch_queue(path):
    with open_store(path, **SIZES) as store:
        for number in range(35):
            put_batch(store, 2, 2 * number)
    assert verify(path).clean
    (path / "batchconsumequeue" / "B" / "0" / f"{460:020d}").unlink()
    found = [finding.what for finding in verify(path).findings]
    assert f"a file is missing before {920:020d}" in found


def test_verify_names_a_batch_whose_tags_code_rotted(path):
    with open_store(path, **SIZES) as store:
        for number in range(5):
            put_batch(store, 2, 2 * number)
    flip(next((path / "batchconsumequeue" / "B" / "0").iterdir()), 46 * 2 + 15)
    (finding,) = verify(path).findings
    assert finding.what == "2 units from queue offset 4 on have a tags code that no record has"


@pytest.mark.parametrize("start", [0, 920])
def test_the_hole_of_a_batch_file_that_was_made_far_too_long_is_not_read(path, start):
    with open_store(path, **SIZES) as store:
        for number in range(25):
            put_batch(store, 2, 2 * number)
    os.truncate(path / "batchconsumequeue" / "B" / "0" / f"{start:020d}", 1 << 40)
    assert not verify(path).clean
    assert repair(path).clean
    with open_store(path) as store:
        found = store.get_message("B", 0, 0, max_messages=100).messages
        assert [one.queue_offset for one in found] == list(range(0, 50, 2))


@pytest.mark.parametrize("mode", ["a", "r"])
@pytest.mark.parametrize("zeros", [0, 460])
def test_a_directory_of_batches_without_any_hides_no_queue(store_path, mode, zeros):
    with open_store(store_path) as store:
        store.put("T", b"x")
    batches = store_path / "batchconsumequeue" / "T" / "0"
    batches.mkdir(parents=True)
    if zeros:
        (batches / f"{0:020d}").write_bytes(bytes(zeros))
    with open_store(store_path, mode=mode) as store:
        for _ in range(2):
            assert [one.body for one in store.get_message("T", 0, 0).messages] == [b"x"]
        assert store.recovery_report.findings == [] if mode == "a" else True


@pytest.mark.parametrize("named", [4, 8, 6 + (1 << 20), 1 << 60])
def test_a_batch_whose_header_names_another_number_than_its_property_is_put_right(path, named):
    """Its queue follows from the property: nothing else tells that nobody is given the batch."""

    def read():
        with open_store(path, mode="r") as store:
            batches = list(store.messages("B", 0))
        return [message.body for batch in batches for message in decode_batch(batch.body)]

    with open_store(path, **SIZES) as store:
        receipts = [put_batch(store, 2, 2 * number) for number in range(6)]
    log = path / "commitlog" / f"{0:020d}"
    before, at = log.read_bytes(), receipts[3].phy_offset
    log.write_bytes(before[: at + 20] + named.to_bytes(8, "big") + before[at + 28 :])
    rotted = log.read_bytes()
    with pytest.raises(CorruptStoreError):
        read()
    (finding,) = verify(path).findings
    assert (finding.severity, finding.phy_offset) == (Severity.ERROR, at)
    assert "puts the number back" in finding.how
    assert repair(path).clean
    assert log.read_bytes() == before
    assert read() == [b"%d" % number for number in range(12)]
    undo(path)
    assert log.read_bytes() == rotted
