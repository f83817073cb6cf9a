"""The disk begins with much that a sync waits for before that sync."""

import pyarrow as pa
import pytest
from held_time import HeldTime
from syncs import watched

from rmqcore.config import load_config
from rmqcore.files import unit_file
from rmqcore.store import staged_records
from rmqcore.store.message_store import DefaultMessageStore
from rmqcore.store.staged_records import StagedWriter

pytestmark = pytest.mark.engine


def test_a_staged_file_goes_to_the_disk_while_it_is_written(tmp_path, monkeypatch):
    begun = []
    monkeypatch.setattr(staged_records, "_AT_ONCE", 10_000)
    monkeypatch.setattr(
        staged_records, "begin_sync", lambda _fd, at, size: begun.append((at, at + size))
    )
    with StagedWriter(tmp_path / "a.rows", load_config(None), piece_size=3000) as writer:
        writer.put_table(pa.table({"body": [b"x" * 500] * 100}), topic="T")
        size = writer.finish()
    assert [low for low, _ in begun] == [0, *(high for _, high in begun[:-1])]
    assert all(high - low >= 10_000 for low, high in begun)
    assert size - 10_000 < begun[-1][1] <= size


def test_a_flush_begins_with_all_queues_before_it_waits_for_one(store_path, monkeypatch):
    calls, held = [], HeldTime()

    def begin(fd, _at, _size):
        calls.append(("begin", fd))

    def sync(call, fd):
        if call == "fdatasync":
            calls.append(("sync", fd))

    monkeypatch.setattr(unit_file, "begin_sync", begin)
    config = load_config(None, message_index_enable=False)
    # the store's own flush service would write a queue before the test does
    with DefaultMessageStore(store_path, config, world=held.world, runner=held.services) as store:
        for queue_id in range(3):
            store.put("T", b"x", queue_id=queue_id)
        store.consume_queues.flush()
        calls.clear()
        for queue_id in range(3):
            store.put("T", b"y", queue_id=queue_id)
        store.parts.level.catch_up_all()
        with watched(sync):
            store.consume_queues.flush()
    begun = [fd for call, fd in calls[:3] if call == "begin"]
    assert len(begun) == 3
    assert sorted(fd for call, fd in calls if call == "sync") == sorted(begun)
