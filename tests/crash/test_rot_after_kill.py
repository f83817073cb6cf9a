"""A process that is killed takes no page with it: damage in what it had written is no torn tail."""

import json

import pytest
from children import die, run_child

import rmqcore
from crash.small_store import SETTINGS, check_against_log, numbers_in, put
from golden.check import digest_tree
from rmqcore.errors import CorruptRecordError
from rmqcore.services.reput import ReputMessageService

pytestmark = pytest.mark.process

COUNT = 60
MARK = "config/storeMark.json"


def killed(path, how="SYNC_FLUSH", last=None):
    """Put messages, perhaps do something more, and be killed."""

    def write(acknowledge):
        store = rmqcore.open_store(path, flush_disk_type=how, **SETTINGS)
        for number in range(COUNT):
            assert put(store, number).ok
            acknowledge(number)
        store.parts.log_services.reput.catch_up()
        if last is not None:
            last(store)
        die()

    code, acknowledged = run_child(write)
    assert code < 0
    assert len(acknowledged) == COUNT


def place_of(path, number):
    with rmqcore.open_store(path, mode="r") as store:
        message = list(store.messages())[number]
    return path / "commitlog" / f"{message.phy_offset // 4096 * 4096:020d}", message


def change(file, at, data):
    with file.open("r+b") as stream:
        stream.seek(at)
        stream.write(data)


def flip(path, number, at):
    file, message = place_of(path, number)
    at += message.phy_offset % 4096
    change(file, at, bytes([file.read_bytes()[at] ^ 1]))
    return message.phy_offset


def lose_checkpoint(path):
    (path / "checkpoint").unlink()


def zero_checkpoint(path):
    (path / "checkpoint").write_bytes(bytes(4096))


@pytest.mark.parametrize("how", ["SYNC_FLUSH", "ASYNC_FLUSH"])
@pytest.mark.parametrize("at", [5, 30, 89])
@pytest.mark.parametrize("number", [8, COUNT - 2, COUNT - 1])
@pytest.mark.parametrize("harm", [None, lose_checkpoint, zero_checkpoint])
def test_damage_after_a_kill_cuts_nothing_off(store_path, how, at, number, harm):
    killed(store_path, how)
    offset = flip(store_path, number, at)
    if harm is not None and (store_path / "checkpoint").exists():
        harm(store_path)
    before = digest_tree(store_path / "commitlog")
    for _ in range(2):
        with pytest.raises(CorruptRecordError) as caught:
            rmqcore.open_store(store_path, **SETTINGS)
        assert caught.value.phy_offset == offset
        assert digest_tree(store_path / "commitlog") == before
    with rmqcore.open_store(store_path, on_corruption="truncate", **SETTINGS) as store:
        assert numbers_in(store) == list(range(number))
        check_against_log(store)


def zero_record(path, number):
    file, message = place_of(path, number)
    change(file, message.phy_offset % 4096, bytes(message.store_size))
    return message.phy_offset


@pytest.mark.parametrize("number", [3, COUNT - 1])
def test_a_record_zeroed_after_a_kill_is_no_end(store_path, number):
    killed(store_path)
    offset = zero_record(store_path, number)
    with pytest.raises(rmqcore.errors.CorruptStoreError) as caught:
        rmqcore.open_store(store_path, **SETTINGS)
    assert caught.value.phy_offset == offset


def other_machine(path):
    mark = json.loads((path / MARK).read_text())
    (path / MARK).write_text(json.dumps(mark | {"machine": "another"}))


def lose_last_sector(path, number):
    """Zeros in place of a record's end from a sector's begin on; where the record begins."""
    file, message = place_of(path, number)
    end = message.phy_offset + message.store_size
    sector = (end - 1) // 512 * 512
    change(file, sector % 4096, bytes(end - sector))
    return message.phy_offset


@pytest.mark.parametrize("left", [other_machine, lambda path: None])
def test_a_record_whose_properties_a_power_cut_has_torn_is_no_message(store_path, left):
    """No CRC covers them; a kill takes no page with it."""

    def with_long_properties(store):
        for number in range(3):
            store.put("L", b"b", properties={"TRACE": "t" * 600}, keys=f"k{number}")

    killed(store_path, "ASYNC_FLUSH", with_long_properties)
    lose_checkpoint(store_path) if (store_path / "checkpoint").exists() else None
    offset = lose_last_sector(store_path, COUNT + 1)
    left(store_path)
    with rmqcore.open_store(store_path, flush_disk_type="ASYNC_FLUSH", **SETTINGS) as store:
        cut = left is other_machine
        assert len(list(store.messages("L"))) == (1 if cut else 3)
        assert (store.max_phy_offset == offset) is cut


def test_after_a_power_cut_what_was_not_flushed_is_a_torn_tail(store_path):
    killed(store_path, "ASYNC_FLUSH")
    offset = flip(store_path, COUNT - 5, 89)
    lose_checkpoint(store_path) if (store_path / "checkpoint").exists() else None
    other_machine(store_path)
    with rmqcore.open_store(store_path, **SETTINGS) as store:
        assert store.recovery_report.ending == "torn"
        assert store.recovery_report.end_offset == offset
        assert store.recovery_report.dropped_records == 4
        check_against_log(store)


@pytest.mark.parametrize("clock_ms", [None, -60_000, 60_000])
@pytest.mark.parametrize("machine", ["same", "other"])
def test_a_batch_that_was_killed_before_it_was_published_is_a_torn_tail(
    store_path, monkeypatch, clock_ms, machine
):
    monkeypatch.setattr(ReputMessageService, "catch_up", lambda _self, **_: None)

    def put_batch(store):
        store.flush()
        if clock_ms is not None:
            store.parts.files.tail.fixed_time_ms = (
                store.parts.files.tail.last_store_timestamp_ms + clock_ms
            )
        store.put_messages([rmqcore.Message("T1", b"batch %d" % number) for number in range(4)])

    killed(store_path, last=put_batch)
    monkeypatch.undo()
    file, message = place_of(store_path, COUNT)
    assert message.body == b"batch 0"
    change(file, message.phy_offset % 4096, bytes(4))
    if machine == "other":
        other_machine(store_path)
    with rmqcore.open_store(store_path, **SETTINGS) as store:
        assert store.recovery_report.ending == "torn"
        assert store.recovery_report.dropped_records == 3
        assert numbers_in(store) == list(range(COUNT))
        check_against_log(store)


def test_a_batch_that_was_published_is_no_torn_tail(store_path):
    def put_batch(store):
        store.put_messages([rmqcore.Message("T1", b"batch %d" % number) for number in range(4)])
        store.get_message("T1", 0, 0)

    killed(store_path, last=put_batch)
    file, message = place_of(store_path, COUNT)
    change(file, message.phy_offset % 4096, bytes(4))
    with pytest.raises(CorruptRecordError):
        rmqcore.open_store(store_path, **SETTINGS)


def test_a_clock_set_back_lets_no_file_go_unchecked(store_path):
    """The checkpoint's time is later than that of files which were put after it."""
    start_ms = 1_700_000_000_000

    def write(_):
        store = rmqcore.open_store(store_path, **SETTINGS)
        store.parts.files.tail.fixed_time_ms = start_ms
        for number in range(COUNT // 2):
            put(store, number)
        store.flush()
        store.parts.upkeep.runner.stop(store.parts.log_services.flush_queues)
        store.parts.files.tail.fixed_time_ms = start_ms - 3_600_000
        for number in range(COUNT // 2, COUNT):
            put(store, number)
        store.parts.log_services.reput.catch_up()
        die()

    run_child(write)
    file, message = place_of(store_path, COUNT - 20)
    assert file != sorted((store_path / "commitlog").iterdir())[-1]
    flip(store_path, COUNT - 20, 89)
    other_machine(store_path)
    with pytest.raises(CorruptRecordError) as caught:
        rmqcore.open_store(store_path, **SETTINGS)
    assert caught.value.phy_offset == message.phy_offset
