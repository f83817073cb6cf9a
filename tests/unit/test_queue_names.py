"""Names of new queues and index files reach the disk with the flush before the checkpoint."""

import pytest

from rmqcore import open_store
from rmqcore.derived import consume_queue_store, index_service

pytestmark = pytest.mark.engine


def test_a_flush_brings_the_names_of_new_queues_to_the_disk(store_path, monkeypatch):
    synced = []
    for module in (consume_queue_store, index_service):
        monkeypatch.setattr(module, "sync_directory", synced.append)
    with open_store(store_path) as store:
        root = store_path / "consumequeue"
        store.put("T", b"x", queue_id=0, keys="k")
        store.put("T", b"x", queue_id=1)
        store.flush()
        assert {root / "T" / "0", root / "T" / "1", root / "T", root, store_path} <= set(synced)
        assert store_path / "index" in synced
        synced.clear()
        store.put("T", b"y", queue_id=0)
        store.flush()
        assert synced == []
