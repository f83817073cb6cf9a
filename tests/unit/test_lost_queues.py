"""A cold store whose consume queues are lost is not taken for an empty one."""

import shutil

import pytest

import rmqcore
from rmqcore import CorruptConsumeQueueError
from rmqcore.files.store_dir import StoreDir
from rmqcore.rebuild import rebuild_consume_queues

pytestmark = pytest.mark.engine


def opened_cold(path):
    return rmqcore.open_store(path, mode="r")


@pytest.fixture
def written(store_path):
    with rmqcore.open_store(store_path) as store:
        store.put("T", b"x")
    return store_path


def test_mode_r_says_that_queues_are_lost(written):
    shutil.rmtree(written / "consumequeue")
    with opened_cold(written) as store:
        for read in (store.queues, lambda: list(store.messages("T"))):
            with pytest.raises(CorruptConsumeQueueError, match="rmqcore rebuild cq"):
                read()
        assert [message.body for message in store.messages()] == [b"x"]
        rebuild_consume_queues(written)
        assert store.queues() == [("T", 0)]


def test_a_writer_may_still_make_the_queues(written):
    shutil.rmtree(written / "consumequeue")
    with opened_cold(written) as store:
        directory = StoreDir(written)
        directory.lock()
        try:
            assert store.queues() == []
        finally:
            directory.unlock()


def test_a_store_has_no_queues_when_all_that_it_had_is_deleted_or_prepared(written):
    with rmqcore.open_store(written) as store:
        store.delete_topic("T")
        store.put("T", b"half", sys_flag=4)
    with opened_cold(written) as store:
        assert store.queues() == []
    with rmqcore.open_store(written) as store:
        store.put("U", b"z")
    shutil.rmtree(written / "consumequeue")
    with opened_cold(written) as store, pytest.raises(CorruptConsumeQueueError):
        store.queues()
