"""A log that has lost its end and goes on without: nothing derived knows more than it."""

import pytest

from rmqcore import open_store

pytestmark = pytest.mark.engine


def test_keys_of_what_is_put_next_are_filed(store_path):
    with open_store(store_path, mapped_file_size_commit_log=1 << 16) as store:
        receipts = [store.put("T", b"x" * 50, keys=f"k{number}") for number in range(6)]
    (file,) = (store_path / "commitlog").iterdir()
    end = receipts[3].phy_offset
    with file.open("r+b") as log:
        log.seek(end)
        log.write(bytes((1 << 16) - end))
    with open_store(store_path, on_corruption="truncate") as store:
        assert store.max_phy_offset == end
        again = [store.put("T", b"x" * 50, keys=f"n{number}") for number in range(3)]
        assert [one.phy_offset for one in again] == [one.phy_offset for one in receipts[3:]]
        for number in range(3):
            assert len(store.query_message("T", f"n{number}").messages) == 1
            assert len(store.query_message("T", f"k{number}").messages) == 1
            assert not store.query_message("T", f"k{number + 3}").messages
        assert store.max_queue_offset("T", 0) == 6
