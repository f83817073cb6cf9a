"""An archive in a place that fails while it is read, listed, or written to."""

import errno
import os
from contextlib import ExitStack

import pytest
from children import copies_of

import rmqcore
from rmqcore.errors import ConfigError, RecordsGoneError
from rmqcore.files.objects import directory, open_objects
from rmqcore.files.objects.errors import ArchiveError, ObjectAccessError, ObjectChangedError
from rmqcore.files.store_dir import RESTORE_MARK
from rmqcore.scan import object_file, read_store
from rmqcore.scan.manifest import Manifest, commit, load_manifest
from rmqcore.transfer.archive import Archiver, restore, verify_archive

pytestmark = pytest.mark.engine

pytest.importorskip("pyarrow")

FILE_SIZE = 1 << 16


@pytest.fixture
def archive(tmp_path):
    """Its directory, and the path of the second log file in it."""
    with rmqcore.open_store(tmp_path / "store", mapped_file_size_commit_log=FILE_SIZE) as store:
        for _ in range(100):
            store.put("T", b"x" * 2000)
    report = Archiver(tmp_path / "store", str(tmp_path / "archive")).run_once()
    assert len(report.files) == 3
    return tmp_path / "archive", tmp_path / "archive" / "commitlog" / report.files[1]


@pytest.mark.parametrize("error", [ObjectAccessError, PermissionError])
def test_a_manifest_counts_of_who_may_not_delete_the_older_ones(tmp_path, monkeypatch, error):
    """As of a bucket whose objects are kept for so many years, or a directory of another user."""
    asked = []

    def refuse(_, name):
        asked.append(name)
        raise error(name, "access was refused")

    objects, manifest = open_objects(tmp_path), Manifest(writer="one")
    with monkeypatch.context() as patch:
        patch.setattr(directory.DirectoryObjects, "delete", refuse)
        for _ in range(12):
            manifest = commit(objects, manifest)
    assert len(objects.list("manifest")) == load_manifest(objects).generation == 12
    # each has asked once
    assert len(asked) == 4
    assert commit(objects, manifest).generation == 13
    assert len(objects.list("manifest")) == 8


def test_a_file_that_is_cut_short_while_it_is_read_is_told(archive, tmp_path, monkeypatch):
    """On a mount somebody else may do that at any moment."""
    place, path = archive
    whole, read_at = path.read_bytes(), directory.FileReader.read_at

    def cut_first(reader, position, size):
        if position and str(reader._stream.name) == str(path):
            os.truncate(path, FILE_SIZE // 2)
        return read_at(reader, position, size)

    monkeypatch.setattr(object_file, "WINDOW_SIZE", 10_000)
    monkeypatch.setattr(directory.FileReader, "read_at", cut_first)
    for work in (
        lambda: list(read_store(place)),
        lambda: restore(str(place), tmp_path / "restored"),
    ):
        with pytest.raises(ObjectChangedError, match="was cut short"):
            work()
        path.write_bytes(whole)
    (finding,) = verify_archive(str(place)).findings
    assert "was cut short" in finding


def test_a_restoration_goes_on_while_a_child_of_the_one_that_failed_lives(archive, tmp_path):
    """The child has a copy of the descriptor that was locked."""
    place, restored = str(archive[0]), tmp_path / "restored"
    with ExitStack() as child:

        def fail(*_):
            child.enter_context(copies_of(restored / RESTORE_MARK))
            raise OSError(errno.EIO, "Input/output error")

        with pytest.raises(OSError, match="Input/output"):
            restore(place, restored, progress=fail)
        assert restore(place, restored).files == 3


def test_all_of_an_archive_is_verified_where_a_disk_does_not_give_some_of_it(archive, monkeypatch):
    place, path = archive
    pread, bad = os.pread, path.stat().st_ino

    def refuse(fd, *wanted):
        if os.fstat(fd).st_ino == bad:
            raise OSError(errno.EIO, "Input/output error")
        return pread(fd, *wanted)

    monkeypatch.setattr("os.pread", refuse)
    report = verify_archive(str(place))
    assert report.files == 3
    (finding,) = report.findings
    assert str(path) in finding


def test_places_that_are_no_archive_are_told(tmp_path):
    pytest.importorskip("fsspec")
    with pytest.raises(ArchiveError, match="no archive is here"):
        read_store("memory://nothing")
    with pytest.raises(ConfigError, match="no credentials in a URL") as error:
        read_store("s3://KEY:SECRET@bucket/p")
    assert "SECRET" not in str(error.value)
    with pytest.raises(ConfigError, match="aws_endpoint_url") as error:
        read_store("s3://bucket/p", storage_options={"aws_secret": "SECRET"})
    assert "SECRET" not in str(error.value)


def test_an_object_that_is_gone_is_told_with_its_url(archive):
    fsspec = pytest.importorskip("fsspec")
    url = "memory://archive-with-a-gap"
    Archiver(archive[0].parent / "store", url).run_once()
    name = f"{url}/commitlog/{archive[1].name}"
    fsspec.filesystem("memory").rm(name)
    with pytest.raises(RecordsGoneError, match=f"^{name} at "):
        list(read_store(url))
    told = []
    list(read_store(url, on_damage=told.append))
    assert [damage.path for damage in told] == [name]
