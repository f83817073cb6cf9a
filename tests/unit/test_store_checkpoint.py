"""The checkpoint: what it keeps, and what a file that a kill left unfinished means."""

import struct

import pytest

from rmqcore import open_store
from rmqcore.errors import CorruptCheckpointError
from rmqcore.files.store_checkpoint import StoreCheckpoint
from rmqcore.native.format._numbers import CHECKPOINT_SIZE

pytestmark = pytest.mark.logic


def times_of(checkpoint):
    return (
        checkpoint.physic_msg_timestamp_ms,
        checkpoint.logics_msg_timestamp_ms,
        checkpoint.index_msg_timestamp_ms,
    )


def test_what_is_flushed_is_loaded(tmp_path):
    written = StoreCheckpoint(tmp_path / "checkpoint")
    assert not written.load()
    written.physic_msg_timestamp_ms = 9_000
    written.logics_msg_timestamp_ms = 8_000
    written.index_msg_timestamp_ms = 7_000
    written.flush()
    assert written.path.stat().st_size == CHECKPOINT_SIZE
    read = StoreCheckpoint(written.path)
    assert read.load()
    assert times_of(read) == (9_000, 8_000, 7_000)
    assert read.min_timestamp_ms == 5_000


@pytest.mark.parametrize(
    ("size", "times"), [(0, (0, 0, 0)), (8, (9_000, 0, 0)), (16, (9_000, 8_000, 0))]
)
def test_what_a_short_file_lacks_is_zero(tmp_path, size, times):
    path = tmp_path / "checkpoint"
    path.write_bytes(struct.pack(">3q", 9_000, 8_000, 7_000)[:size])
    checkpoint = StoreCheckpoint(path)
    assert checkpoint.load()
    assert times_of(checkpoint) == times
    checkpoint.flush()
    assert path.stat().st_size == CHECKPOINT_SIZE


@pytest.mark.parametrize("garbage", [b"garbage", b"\x7f" * CHECKPOINT_SIZE])
def test_bytes_of_something_else_are_no_times(tmp_path, caplog, garbage):
    path = tmp_path / "checkpoint"
    path.write_bytes(garbage)
    checkpoint = StoreCheckpoint(path)
    assert checkpoint.load()
    with caplog.at_level("WARNING", "rmqcore"):
        checkpoint.distrust_future(1_795_000_000_000)
    assert times_of(checkpoint) == (0, 0, 0)
    assert "still to come" in caplog.text


def test_a_clock_that_was_set_back_a_little_costs_nothing(tmp_path):
    checkpoint = StoreCheckpoint(tmp_path / "checkpoint")
    checkpoint.physic_msg_timestamp_ms = 1_795_003_600_000
    checkpoint.distrust_future(1_795_000_000_000)
    assert checkpoint.physic_msg_timestamp_ms == 1_795_003_600_000


def test_a_negative_time_is_refused(tmp_path):
    path = tmp_path / "checkpoint"
    path.write_bytes(struct.pack(">5q", 1, -1, 1, 0, 0).ljust(CHECKPOINT_SIZE, b"\0"))
    with pytest.raises(CorruptCheckpointError, match="negative times"):
        StoreCheckpoint(path).load()


@pytest.mark.engine
@pytest.mark.parametrize("clean", [True, False])
def test_a_store_opens_with_a_checkpoint_of_no_bytes(store_path, clean):
    with open_store(store_path) as store:
        store.put("T", b"body")
    (store_path / "checkpoint").write_bytes(b"")
    if not clean:
        (store_path / "abort").touch()
    with open_store(store_path) as store:
        assert store.recovery_report.clean_shutdown == clean
        (message,) = store.get_message("T", 0, 0).messages
        assert bytes(message.body) == b"body"


@pytest.mark.engine
def test_a_record_whose_time_rotted_lets_the_store_open_again(store_path):
    with open_store(store_path) as store:
        receipt = store.put("T", b"body")
    with (store_path / "commitlog" / f"{0:020d}").open("r+b") as log:
        log.seek(receipt.phy_offset + 56)
        log.write(b"\xff")
    for _ in range(2):
        with open_store(store_path) as store:
            (message,) = store.get_message("T", 0, 0).messages
            assert message.body == b"body"
