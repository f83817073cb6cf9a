"""A log file has its room on the disk before a record is stored through its mapping."""

import pytest

from rmqcore import open_store

pytestmark = pytest.mark.engine

SIZE = 1 << 20


def log_file(store_path):
    (file,) = (store_path / "commitlog").iterdir()
    return file


def reserved(path):
    return 512 * path.stat().st_blocks


def test_a_new_file_is_reserved_whole(store_path):
    with open_store(store_path, mapped_file_size_commit_log=SIZE, allocate_ahead=0):
        assert reserved(log_file(store_path)) >= SIZE


def test_the_holes_of_a_file_that_was_copied_are_reserved_before_it_is_written_on(store_path):
    settings = {"mapped_file_size_commit_log": SIZE, "allocate_ahead": 0}
    with open_store(store_path, **settings) as store:
        end = store.put("T", b"x").store_size
    file = log_file(store_path)
    data = file.read_bytes()[:end]
    file.unlink()
    file.write_bytes(data)
    with file.open("r+b") as copy:
        copy.truncate(SIZE)
    assert reserved(file) < SIZE
    with open_store(store_path, **settings) as store:
        store.put("T", b"y")
        assert reserved(file) >= SIZE
        assert len(list(store.messages())) == 2
