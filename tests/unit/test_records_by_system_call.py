"""Large pieces of records are written to the log's file by a system call, small ones are mapped."""

import mmap
import os

import pyarrow as pa
import pytest

from rmqcore import Message, open_store
from rmqcore.files.commit_log_writer import CommitLogWriter
from rmqcore.native.base._mapped import Descriptor
from rmqcore.native.columns._encode_columns import ColumnEncoder
from rmqcore.native.log._records_in import RecordAppender
from rmqcore.native.log._tail import LogTail

pytestmark = pytest.mark.logic

FILE_SIZE = 1 << 16
HOST = "10.1.2.3:10911"
LARGE, SMALL = 4096, 200


def a_file(folder, name):
    """An empty log file; its descriptor and its mapping."""
    fd = os.open(folder / name, os.O_RDWR | os.O_CREAT)
    os.truncate(fd, FILE_SIZE)
    return Descriptor(fd), mmap.mmap(fd, FILE_SIZE)


def appended(body_size, mapped, descriptor):
    """The bytes of a log that begins in a mapping, and got a record and a piece of three."""
    tail = LogTail(HOST, 1 << 16)
    tail.attach(mapped, 0, 0, descriptor)
    tail.writable, tail.fixed_time_ms = True, 1_795_219_234_933
    tail.put_message(Message("T", b"the first one"))
    bodies = [bytes([65 + row]) * body_size for row in range(3)]
    limits = {"body_max": 1 << 16, "log_file_size": FILE_SIZE, "store_host": HOST}
    encoder = ColumnEncoder(pa.table({"body": bodies}), topic="T", **limits)
    encoder.next_batch()
    piece = encoder.next_piece(1 << 20)
    assert RecordAppender(tail, encoder.queues).append(piece, 0).message_count == 3
    end = tail.wrote_position
    tail.detach()
    return mapped[:end]


@pytest.fixture
def mapped_only(tmp_path):
    """What `appended` leaves by the mapping alone."""

    def found(body_size):
        return appended(body_size, a_file(tmp_path, "mapped")[1], None)

    return found


@pytest.mark.parametrize("body_size", [LARGE, SMALL])
def test_the_log_has_the_same_bytes_either_way(tmp_path, mapped_only, body_size):
    descriptor, mapped = a_file(tmp_path, "log")
    assert appended(body_size, mapped, descriptor) == mapped_only(body_size)


def test_a_large_piece_takes_the_descriptor_but_for_the_word_that_shows_it(tmp_path, mapped_only):
    other, _ = a_file(tmp_path, "other")
    log = appended(LARGE, a_file(tmp_path, "log")[1], other)
    whole = mapped_only(LARGE)
    begin = int.from_bytes(whole[:4])
    written = (tmp_path / "other").read_bytes()[: len(whole)]
    assert written == bytes(begin + 4) + whole[begin + 4 :]
    assert log == whole[: begin + 4].ljust(len(whole), b"\0")


def test_what_the_system_does_not_take_goes_through_the_mapping(tmp_path, mapped_only):
    _, mapped = a_file(tmp_path, "log")
    refusing = Descriptor(os.open(tmp_path / "log", os.O_RDONLY))
    assert appended(LARGE, mapped, refusing) == mapped_only(LARGE)


class Noted:
    """In place of a log's end: what it was attached to."""

    def attach(self, _buffer, _file_from_offset, _wrote_position, descriptor):
        self.descriptor = descriptor


@pytest.mark.engine
@pytest.mark.parametrize("large_folios", [True, False])
def test_a_store_whose_puts_wait_for_the_disk_writes_single_pages(store_path, large_folios):
    noted = Noted()
    with open_store(store_path) as store:
        log = store.parts.files.log
        CommitLogWriter(log, noted, None, large_folios=large_folios).attach()
        assert noted.descriptor is (log.queue.last.handle if large_folios else None)
