"""A log that comes to the end of all offsets: puts are refused, what is there stays readable."""

import pytest

from rmqcore import CorruptStoreError, Message, StoreNotWritableError, open_store

pytestmark = pytest.mark.engine

SIZE = 8192
SIZES = {
    "mapped_file_size_commit_log": SIZE,
    "mapped_file_size_consume_queue": 2000,
    "max_hash_slot_num": 50,
    "max_index_num": 200,
}


def begin_log_at(path, start):
    directory = path / "commitlog"
    directory.mkdir(parents=True)
    (directory / f"{start:020d}").write_bytes(bytes(SIZE))


@pytest.mark.parametrize("ahead", [0, 2])
def test_a_log_ends_with_the_last_offset(store_path, ahead):
    begin_log_at(store_path, 2**63 - 3 * SIZE)
    count = 0
    with open_store(store_path, allocate_ahead=ahead, **SIZES) as store:
        while store.put_message(Message("T", b"x" * 500, keys="k")).ok:
            count += 1
        with pytest.raises(StoreNotWritableError, match="the end of all offsets"):
            store.put("T", b"x" * 500)
        assert len(list(store.messages("T", 0))) == count > 20
    for _ in range(2):
        with open_store(store_path, **SIZES) as store:
            assert len(list(store.messages("T", 0))) == count
            with pytest.raises(StoreNotWritableError):
                store.put("T", b"x" * 500)


def test_a_file_behind_the_last_offset_is_no_file_of_a_log(store_path):
    begin_log_at(store_path, 2**63 - SIZE)
    with pytest.raises(CorruptStoreError), open_store(store_path, **SIZES):
        pass
