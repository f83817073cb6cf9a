"""The transient store pool: messages wait in buffers, and files get them by commits."""

from __future__ import annotations

import pytest

from rmqcore import Durability, open_store
from rmqcore.files.transient_store_pool import TransientStorePool

SETTINGS = {
    "transient_store_pool_enable": True,
    "transient_store_pool_size": 3,
    "mapped_file_size_commit_log": 65536,
    "commit_interval_commit_log_ms": 60_000,
}


def test_a_receipt_says_memory_and_a_read_commits(tmp_path):
    with open_store(tmp_path / "s", **SETTINGS) as store:
        receipt = store.put("T", b"one", keys="K")
        assert receipt.durability is Durability.MEMORY
        assert store.get_message("T", 0, 0).messages[0].body == b"one"
        assert store.query_message("T", "K").messages[0].body == b"one"
        assert store.message_at(receipt.phy_offset).body == b"one"
        assert store.put("T", b"two", durability="disk").durability is Durability.DISK


def test_buffers_come_back_while_files_fill(tmp_path):
    bodies = [b"%d" % number * 700 for number in range(200)]
    with open_store(tmp_path / "s", **SETTINGS) as store:
        for body in bodies:
            store.put("T", body)
        assert [message.body for message in store.messages("T", 0)] == bodies
        assert len(store.log.queue.files) == 6
    with open_store(tmp_path / "s", mapped_file_size_commit_log=65536) as store:
        assert [message.body for message in store.messages("T", 0)] == bodies


def test_it_goes_on_in_a_file_that_was_begun(tmp_path):
    for number in range(3):
        with open_store(tmp_path / "s", **SETTINGS) as store:
            assert store.put("T", b"%d" % number).queue_offset == number
    with open_store(tmp_path / "s", mode="r") as store:
        assert [message.body for message in store.messages("T", 0)] == [b"0", b"1", b"2"]


def test_an_empty_pool_lends_nothing():
    pool = TransientStorePool(2, 4096)
    lent = [pool.borrow(), pool.borrow()]
    assert pool.borrow() is None
    pool.give_back(lent[0])
    assert pool.borrow() is lent[0]


@pytest.mark.parametrize("role", ["SLAVE"])
def test_a_slave_has_no_pool(tmp_path, role):
    with open_store(tmp_path / "s", broker_role=role, **SETTINGS) as store:
        assert store.put("T", b"x").durability is Durability.PAGE_CACHE
