"""A store whose log lies elsewhere (``storePathCommitLog``) is whole for whoever reads it cold."""

import pytest

import rmqcore
from rmqcore import ConfigError, StoreLockedError, StoreNotFoundError
from rmqcore.config import load_config
from rmqcore.doctor import verify
from rmqcore.rebuild import rebuild_consume_queues, rebuild_index
from rmqcore.scan import plan, read_store
from rmqcore.transfer.export import export_store

pytestmark = pytest.mark.engine

COUNT = 40


@pytest.fixture
def config(tmp_path):
    return load_config(
        store_path_commit_log=str(tmp_path / "fast" / "log"),
        mapped_file_size_commit_log=4096,
        max_hash_slot_num=50,
        max_index_num=200,
    )


@pytest.fixture
def divided(store_path, config):
    with rmqcore.open_store(store_path, config=config) as store:
        for number in range(COUNT):
            store.put("T", b"%d" % number, keys=f"k{number}")
    assert not (store_path / "commitlog").exists()
    return store_path


def test_it_is_verified_scanned_and_exported(divided, config, tmp_path):
    report = verify(divided, config=config)
    assert report.clean, report.findings
    assert report.records == report.units == COUNT
    splits = plan(divided, config=config, split_size=4096)
    assert len(splits) > 1
    batches = read_store(divided, ("queue_offset",), config=config)
    assert sum(batch.num_rows for batch in batches) == COUNT
    parts = export_store(divided, tmp_path / "out", file_format="jsonl", config=config)
    assert sum(part.rows for part in parts) == COUNT


def test_it_is_rebuilt_as_it_was(divided, config):
    for rebuild in (rebuild_consume_queues, rebuild_index):
        report = rebuild(divided, config=config)
        assert report.records == COUNT
        assert report.identical
    assert not (divided / "commitlog").exists()


def test_without_its_setting_it_is_no_store_with_a_lost_log(divided):
    for refused in (
        lambda: verify(divided),
        lambda: plan(divided),
        lambda: rebuild_consume_queues(divided),
        lambda: rmqcore.open_store(divided, mode="r"),
        lambda: rmqcore.open_store(divided, create=False),
    ):
        with pytest.raises(StoreNotFoundError, match="storePathCommitLog"):
            refused()


def test_a_log_has_one_writer_whichever_store_it_belongs_to(tmp_path):
    log = str(tmp_path / "first" / "commitlog")
    with rmqcore.open_store(tmp_path / "first") as first:
        first.put("T", b"one")
        with pytest.raises(StoreLockedError, match="another handle of this process") as error:
            rmqcore.open_store(tmp_path / "second", store_path_commit_log=log)
        assert str(error.value.path) == log
        assert first.put("T", b"two").queue_offset == 1
    with rmqcore.open_store(tmp_path / "second", store_path_commit_log=log) as second:
        assert second.put("T", b"three").queue_offset == 2


@pytest.mark.parametrize("place", ["index", "index/log", "consumequeue", "batchconsumequeue/log"])
def test_it_does_not_lie_among_what_is_made_again_from_it(store_path, tmp_path, place):
    """An opening or a rebuild would remove it with the index, or with the consume queues."""
    store_path.mkdir()
    (tmp_path / "link").symlink_to(store_path)
    for path in (store_path, tmp_path / "link"):
        log = str(path / place)
        for refused in (
            lambda log=log: rmqcore.open_store(store_path, store_path_commit_log=log),
            lambda log=log: rebuild_index(
                store_path, config=load_config(store_path_commit_log=log)
            ),
        ):
            with pytest.raises(ConfigError, match="made again from the log"):
                refused()
    assert list(store_path.iterdir()) == []
