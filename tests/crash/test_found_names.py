"""What a killed process has made and not synced is synced by the next one that finds it."""

import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest
from syncs import watched

from rmqcore import Message, open_store
from rmqcore._codec import encode_batch
from rmqcore.derived import consume_queue_store, index_service
from rmqcore.files.mapped_file import MappedFile
from rmqcore.files.objects import open_objects
from rmqcore.files.objects.errors import ObjectExistsError
from rmqcore.metaq import MessageStore, MetaConfig, SystemConfig
from rmqcore.namesrv.kv_config import KVConfig
from rmqcore.transfer import export_store
from rmqcore.transfer.archive import Archiver

pytestmark = pytest.mark.engine

_INNER_BATCH = 0x80 | 0x40


@contextmanager
def synced():
    """The directories that this thread has synced."""
    found = set()

    def note(call, fd):
        if call == "fsync":
            found.add(Path(f"/proc/self/fd/{fd}").readlink())

    with watched(note):
        yield found


def test_an_opening_that_was_killed_behind_its_first_directory(tmp_path):
    path = tmp_path / "a" / "store"
    path.parent.mkdir()
    with synced() as found:
        open_store(path).close()
    assert {tmp_path, path.parent, path} <= found
    with synced() as found:
        open_store(path).close()
    assert path.parent in found


def test_the_directory_of_a_log_that_lies_elsewhere(tmp_path):
    (tmp_path / "logs" / "log").mkdir(parents=True)
    with synced() as found:
        open_store(tmp_path / "s", store_path_commit_log=str(tmp_path / "logs" / "log")).close()
    assert tmp_path / "logs" in found


def test_names_in_a_store_that_was_killed(tmp_path, monkeypatch):
    with open_store(tmp_path / "s") as store:
        store.put("T", b"x", keys="k")
        store.flush()
        shutil.copytree(tmp_path / "s", tmp_path / "killed")
    path, flushed = tmp_path / "killed", []
    for module in (consume_queue_store, index_service):
        monkeypatch.setattr(module, "sync_directory", flushed.append)
    with synced() as found:
        store = open_store(path)
    assert {path / "commitlog", path / "config"} <= found
    store.flush()
    store.close()
    root = path / "consumequeue"
    assert {root / "T" / "0", root / "T", root, path / "index"} <= set(flushed)


@pytest.mark.parametrize("lacking", [0, 1])
@pytest.mark.parametrize("kind", ["consumequeue", "batchconsumequeue"])
def test_units_in_a_store_that_was_killed(tmp_path, monkeypatch, kind, lacking):
    is_batch = kind == "batchconsumequeue"
    settings = {
        "mapped_file_size_consume_queue": 20 * 10,
        "mapper_file_size_batch_consume_queue": 46 * 10,
        "topic_queue_types": (("T", "BatchCQ"),) if is_batch else (),
    }
    with open_store(tmp_path / "s", **settings) as store:
        for _ in range(25):
            if is_batch:
                body, numbered = encode_batch([Message("T", b"x")]), {"INNER_NUM": "1"}
                store.put("T", body, sys_flag=_INNER_BATCH, properties=numbered)
            else:
                store.put("T", b"x")
        assert store.max_queue_offset("T", 0) == 25
        # services rename files of config/ beside this
        ignored = shutil.ignore_patterns("config")
        shutil.copytree(tmp_path / "s", tmp_path / "killed", ignore=ignored)
    folder = tmp_path / "killed" / kind / "T" / "0"
    # what had not been dispatched yet
    for file in sorted(folder.iterdir(), reverse=True)[:lacking]:
        file.unlink()
    flushed, sync = set(), MappedFile.sync

    def noted(file):
        flushed.add(file.path)
        sync(file)

    monkeypatch.setattr(MappedFile, "sync", noted)
    with open_store(tmp_path / "killed", **settings) as store:
        assert not store.recovery_report.clean_shutdown
        store.flush()
    files = set(folder.iterdir())
    assert len(files) == 3
    assert files <= flushed


def test_the_directory_of_an_export_that_was_killed(tmp_path):
    with open_store(tmp_path / "s") as store:
        store.put("T", b"x")
    (tmp_path / "a" / "e").mkdir(parents=True)
    with synced() as found:
        export_store(tmp_path / "s", tmp_path / "a" / "e", file_format="jsonl")
    assert tmp_path / "a" in found


def test_a_parent_that_may_not_be_read_is_no_failure(tmp_path, monkeypatch):
    def refused(path):
        raise PermissionError(13, "Permission denied", str(path))

    open_store(tmp_path / "s").close()
    monkeypatch.setattr("rmqcore.world.sync_directory", refused)
    open_store(tmp_path / "s").close()


def test_objects_of_an_archiver_that_was_killed(tmp_path):
    root = tmp_path / "archive"
    (root / "log").mkdir(parents=True)
    (root / "log" / "one").write_bytes(b"1")
    with synced() as found:
        objects = open_objects(str(root))
        with pytest.raises(ObjectExistsError):
            objects.create("log/one", b"1", "")
    assert {tmp_path, root, root / "log"} <= found
    with synced() as found:
        objects.create("log/two", b"2", "")
    assert root not in found


def test_a_manifest_is_on_the_disk_before_the_store_is_told_of_it(tmp_path):
    with open_store(tmp_path / "s", mapped_file_size_commit_log=1 << 16) as store:
        for _ in range(3):
            store.put("T", b"x" * 40_000)
    Archiver(tmp_path / "s", str(tmp_path / "archive")).run_once()
    with synced() as found:
        Archiver(tmp_path / "s", str(tmp_path / "archive")).run_once()
    assert tmp_path / "archive" / "manifest" in found


def test_a_partition_of_metaq(tmp_path):
    (tmp_path / "data" / "T-0").mkdir(parents=True)
    config = MetaConfig(SystemConfig(data_path=str(tmp_path / "data")))
    with synced() as found:
        MessageStore("T", 0, config).close()
    assert tmp_path / "data" in found
    with synced() as found:
        MessageStore("T", 1, config).close()
    assert {tmp_path, tmp_path / "data"} <= found


def test_the_key_values_of_a_name_server(tmp_path):
    (tmp_path / "a").mkdir()
    with synced() as found:
        KVConfig(str(tmp_path / "a" / "b" / "kv.json")).put("n", "k", "v")
    assert {tmp_path, tmp_path / "a"} <= found
