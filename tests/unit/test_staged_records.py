"""A file of staged records is what its writer left, or is refused; its rows are found by number."""

from pathlib import Path

import pyarrow as pa
import pytest
from staged_rows import pairs, stage

from rmqcore import open_store
from rmqcore._codec import decode_record
from rmqcore.errors import MessageIllegalError, StoreError
from rmqcore.store.staged_records import StagedRecords, records_in

pytestmark = pytest.mark.engine


@pytest.fixture
def staged(tmp_path):
    """Twenty rows in five pieces."""
    columns = {
        "topic": [f"T{number % 3}" for number in range(20)],
        "queue_id": [number % 2 for number in range(20)],
        "body": [f"{number:0200d}" for number in range(20)],
    }
    return stage(tmp_path / "folder" / "staged.rows", columns, piece_size=1400)


def numbers_in(pieces):
    return [int(decode_record(record).body) for piece in pieces for record in records_in(piece)]


def test_rows_are_found_by_their_number(staged):
    records = staged.records()
    assert (records.row_count, staged.message_count) == (20, 20)
    assert len(records.queues) == 6
    for first in range(21):
        assert numbers_in(records.pieces(first)) == list(range(first, 20))


def test_pieces_that_are_put_make_messages_with_places_of_the_store(staged, store_path):
    records = staged.records()
    with open_store(store_path) as store:
        store.put("T0", b"0")
        for piece in records.pieces():
            assert store.put_records(piece, records.queues).ok
        found = list(store.messages())[1:]
        assert [int(message.body) for message in found] == list(range(20))
        assert all(message.store_timestamp_ms for message in found)
        assert [m.queue_offset for m in found if (m.topic, m.queue_id) == ("T0", 0)] == [1, 2, 3, 4]


def test_a_file_is_refused_wherever_a_byte_has_flipped(staged):
    path = Path(staged.path)
    whole = path.read_bytes()
    for position in {*range(0, len(whole), 7), *range(len(whole) - 160, len(whole))}:
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        with pytest.raises(StoreError, match="damaged"):
            list(StagedRecords(staged.path, staged.size).pieces())
    for size in (0, 39, 41, len(whole) - 1):
        path.write_bytes(whole[:size])
        for said in (size, staged.size):
            with pytest.raises(StoreError, match=r"not complete|damaged"):
                StagedRecords(staged.path, said)
    path.unlink()
    with pytest.raises(StoreError, match="are gone"):
        staged.records()


def test_a_file_without_rows_has_no_pieces(tmp_path):
    empty = stage(tmp_path / "empty", {"body": pa.array([], pa.string())})
    assert list(empty.records().pieces()) == []


def test_a_writer_that_fails_leaves_no_file(tmp_path):
    for columns, settings in (
        ({"body": ["a", "b"], "tags": ["t", ""]}, {}),
        ({"body": ["a"]}, {"topic": "SCHEDULE_TOPIC_XXXX"}),
        ({"body": ["a"], "properties": pairs({"DELAY": "1"})}, {}),
    ):
        with pytest.raises(MessageIllegalError):
            stage(tmp_path / "bad", columns, **settings)
        assert list(tmp_path.iterdir()) == []
