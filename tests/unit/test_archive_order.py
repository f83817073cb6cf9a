"""When an archive, and what is restored from it, has a file or a table."""

import importlib
from pathlib import Path

import pytest
from syncs import watched

from rmqcore import open_store
from rmqcore.errors import DiskFullError
from rmqcore.files.archive_note import archived_end
from rmqcore.files.store_dir import StoreDir
from rmqcore.scan import read_store
from rmqcore.transfer.archive import Archiver, archiver, restore

pytestmark = pytest.mark.engine

FILE_SIZE = 1 << 16


@pytest.fixture
def store(tmp_path):
    """The directory of a store with two sealed log files, and one that is not."""
    with open_store(tmp_path / "store", mapped_file_size_commit_log=FILE_SIZE) as opened:
        for _ in range(3):
            opened.put("T", bytes(40_000))
    return tmp_path / "store"


def test_a_file_is_on_the_disk_before_it_is_in_an_archive(store, tmp_path, monkeypatch):
    archive, synced = tmp_path / "archive", []

    def sync(path):
        synced.append(path.name)
        assert not (archive / "commitlog" / path.name).exists()

    monkeypatch.setattr(archiver, "sync_file", sync)
    report = Archiver(store, str(archive)).run_once()
    assert synced == report.files
    assert len(synced) == 2


def test_a_store_is_told_of_a_file_when_the_manifest_names_it(store, tmp_path, monkeypatch):
    """Retention goes by it: a kill in between must not cost the file."""
    told, commit = [], archiver.commit

    def committed(*what):
        told.append(archived_end(StoreDir(store)))
        return commit(*what)

    monkeypatch.setattr(archiver, "commit", committed)
    report = Archiver(store, str(tmp_path / "archive")).run_once()
    assert told == [0, FILE_SIZE]
    assert archived_end(StoreDir(store)) == report.end == 2 * FILE_SIZE


def test_a_deleted_topic_is_gone_before_the_next_file_is_full(store, tmp_path, monkeypatch):
    archive, one = tmp_path / "archive", Archiver(store, str(tmp_path / "archive"))
    assert one.run_once().files
    with open_store(store, mapped_file_size_commit_log=FILE_SIZE) as opened:
        opened.put("Kept", b"x")
        opened.delete_topic("T")
    assert not one.run_once().files
    restore(str(archive), tmp_path / "restored")
    for place in archive, tmp_path / "restored":
        assert not list(read_store(place, ("topic",)))
    # nothing has changed since: there is no manifest more, and a third round reads nothing
    there = list((archive / "manifest").iterdir())
    one.run_once()
    assert list((archive / "manifest").iterdir()) == there
    monkeypatch.setattr(archiver, "read_table", lambda *_: pytest.fail("nothing is read"))
    one.run_once()


def test_a_restored_file_is_on_the_disk_before_it_has_its_name(store, tmp_path):
    names = Archiver(store, str(tmp_path / "archive")).run_once().files
    log, synced = tmp_path / "restored" / "commitlog", []

    def note(call, fd):
        path = Path(f"/proc/self/fd/{fd}") if call == "fsync" else log
        if path.resolve().parent == log:
            synced.append((path.resolve().name, sum(1 for _ in log.glob("[0-9]*"))))

    with watched(note):
        restore(str(tmp_path / "archive"), tmp_path / "restored")
    assert synced == [(f".{name}.tmp", at) for at, name in enumerate(names)]


@pytest.mark.parametrize("what", ["sync_fd", "write_tables", "rebuild_consume_queues"])
def test_a_restoration_to_a_full_disk_goes_on_when_there_is_room(
    store, tmp_path, monkeypatch, what
):
    archive, restored = str(tmp_path / "archive"), tmp_path / "restored"
    report = Archiver(store, archive).run_once()

    def refuse(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(importlib.import_module("rmqcore.transfer.archive.restore"), what, refuse)
        with pytest.raises(DiskFullError, match="restored"):
            restore(archive, restored)
    assert restore(archive, restored).end == report.end


def test_a_file_that_retention_deletes_while_it_is_compared_ends_no_archiver(
    store, tmp_path, monkeypatch
):
    archive = str(tmp_path / "archive")
    report = Archiver(store, archive).run_once()
    compared, deleted = archiver.sha256_of, []

    def delete_and_compare(split):
        for path in sorted((store / "commitlog").iterdir())[:2]:
            path.unlink()
            deleted.append(path.name)
        return compared(split)

    monkeypatch.setattr(archiver, "sha256_of", delete_and_compare)
    assert Archiver(store, archive).run_once().end == report.end
    assert deleted == report.files
