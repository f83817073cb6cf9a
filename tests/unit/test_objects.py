"""What every object store must do alike, and how its errors are told."""

import errno
import fcntl
import io
import os
import sys
from pathlib import Path

import pytest
from syncs import watched

from rmqcore.errors import DiskFullError, RmqCoreError
from rmqcore.files.objects import directory, open_objects, tries
from rmqcore.files.objects.errors import (
    ObjectAccessError,
    ObjectExistsError,
    ObjectMissingError,
    ObjectStoreError,
)

pytestmark = pytest.mark.engine

pytest.importorskip("pyarrow")
fsspec = pytest.importorskip("fsspec")
MemoryFileSystem = pytest.importorskip("fsspec.implementations.memory").MemoryFileSystem


def test_objects_are_created_once_in_every_place(tmp_path):
    for url in (str(tmp_path / "place"), (tmp_path / "url").as_uri(), "memory://test-objects"):
        objects = open_objects(url)
        objects.create("a/b", b"one", "")
        with pytest.raises(ObjectExistsError):
            objects.create("a/b", b"two", "")
        reader = objects.open("a/b")
        assert (reader.size, reader.read_at(1, 5)) == (3, b"ne")
        reader.close()
        if isinstance(objects, directory.DirectoryObjects):
            with (objects.path / "a" / ".c.tmp").open("w") as stream:
                fcntl.flock(stream, fcntl.LOCK_EX)
                with pytest.raises(ObjectExistsError, match="another process is writing it"):
                    objects.create("a/c", b"one", "")
        assert [(one.name, one.size) for one in objects.list("a")] == [("a/b", 3)]
        assert objects.list("none") == []
        objects.delete("a/b")
        with pytest.raises(ObjectMissingError):
            objects.open("a/b")


def test_objects_that_go_while_they_are_listed_are_left_out(tmp_path, monkeypatch):
    objects = open_objects(tmp_path)
    for name in ("a/one", "a/two"):
        objects.create(name, b"x", "")
    walk = os.walk

    def walked(*top, **named):
        for found in walk(*top, **named):
            objects.delete("a/one")
            yield found

    monkeypatch.setattr("os.walk", walked)
    assert [one.name for one in objects.list("a")] == ["a/two"]


def test_a_place_that_cannot_be_listed_is_not_taken_for_an_empty_one(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(tries, "sleep", lambda _: None)
    for url in (str(tmp_path), "memory://test-listing"):
        objects = open_objects(url)
        objects.create("a/b", b"one", "")
        with monkeypatch.context() as patch:
            patch.setattr("os.scandir", refuse)
            patch.setattr(MemoryFileSystem, "ls", refuse)
            with pytest.raises(OSError, match="Input/output"):
                objects.list("a")
        assert [one.name for one in objects.list("a")] == ["a/b"]


def test_what_others_make_or_replace_is_seen_by_who_has_looked_before():
    """File systems of fsspec keep what they have listed once."""
    there, kept = {"one": 1}, {}

    class Keeps(fsspec.AbstractFileSystem):
        cachable = False

        def ls(self, path, detail=True, **_):
            kept.update({} if kept else there)
            place = path if path.endswith("/a") else path.rpartition("/")[0]
            return [
                {"name": f"{place}/{name}", "size": tag, "type": "file", "ETag": str(tag)}
                for name, tag in kept.items()
            ]

        def invalidate_cache(self, path=None):
            kept.clear()

    fsspec.register_implementation("keeps", Keeps, clobber=True)
    objects = open_objects("keeps://place")
    assert [one.name for one in objects.list("a")] == ["a/one"]
    assert objects.open("a/one").tag == "1"
    there["one"] = 2
    assert (objects.open("a/one").tag, objects.open("a/one").size) == ("2", 2)
    there["two"] = 1
    assert [one.name for one in objects.list("a")] == ["a/one", "a/two"]


def test_an_object_is_on_the_disk_before_it_has_its_name_and_then_its_name_is(tmp_path):
    objects, synced = open_objects(str(tmp_path)), []
    objects.create("a/first", b"1", "")

    def note(call, fd):
        assert call == "fsync"
        path = Path(f"/proc/self/fd/{fd}").readlink()
        synced.append((path.name, (tmp_path / "a" / "second").exists()))

    with watched(note):
        objects.create("a/second", b"2", "")
    assert synced == [(".second.tmp", False), ("a", True)]


def test_half_an_object_gives_a_full_disk_its_room_back(tmp_path, monkeypatch):
    objects, content = open_objects(str(tmp_path / "archive")), tmp_path / "content"
    content.write_bytes(b"x" * 100)

    def half(source, stream, _):
        stream.write(source.read(50))
        stream.flush()
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("shutil.copyfileobj", half)
        with pytest.raises(DiskFullError):
            objects.create("a/b", content, "")
    assert list((tmp_path / "archive" / "a").iterdir()) == []
    objects.create("a/b", content, "")
    assert (tmp_path / "archive" / "a" / "b").read_bytes() == b"x" * 100


@pytest.mark.parametrize("size", [100, 100_000])
def test_an_object_of_any_size_that_a_full_disk_does_not_take_is_named(tmp_path, monkeypatch, size):
    """Closed, a file writes once more what is in its buffer."""

    class OnFullDisk(io.FileIO):
        def write(self, _):
            raise OSError(errno.ENOSPC, "No space left on device")

    objects = open_objects(str(tmp_path / "archive"))
    monkeypatch.setattr("os.fdopen", lambda *file: io.BufferedRandom(OnFullDisk(*file)))
    with pytest.raises(DiskFullError, match=r"archive/\.a\.tmp"):
        objects.create("a", b"x" * size, "")
    assert list((tmp_path / "archive").iterdir()) == []


def test_somebody_elses_error_is_told_without_credentials(monkeypatch):
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token-of-the-environment")
    options = {"aws_secret_access_key": "a-secret", "aws_region": "here", "key": "another"}
    found = OSError("AWS Error ACCESS_DENIED: a-secret, another, token-of-the-environment, here")
    error = tries.told(found, "s3://bucket", options)
    assert type(error) is ObjectAccessError
    assert str(error).endswith("access was refused: AWS Error ACCESS_DENIED: ***, ***, ***, here")
    monkeypatch.setattr(tries, "sleep", lambda _: None)
    with pytest.raises(ObjectStoreError, match="cut short"):
        tries.tried(lambda: b"ab", "s3://bucket/a", {}, whole=3)
    token = {"sas_token": "?sv=1&sig=c2Vj%3D&se=2", "blob_storage_scheme": "http"}
    found = OSError("http://account/x?comp=block&se=2&sig=c2Vj%3D, signature c2Vj=")
    told = str(tries.told(found, "abfs://c/x", token))
    assert told.endswith("http://account/x?comp=block&se=2&sig=***, signature ***")
    in_a_name = OSError("When reading key 'AccessDenied-403' in bucket '404': AWS Error UNKNOWN")
    assert type(tries.told(in_a_name, "s3://bucket", {})) is ObjectStoreError


@pytest.mark.parametrize(
    ("told", "error"),
    [
        ({"code": 412}, ObjectExistsError),
        ({"code": 403}, ObjectAccessError),
        ({"code": 503}, ObjectStoreError),
        ({"status_code": 409, "error_code": "BlobAlreadyExists"}, ObjectExistsError),
        ({"status_code": 409, "error_code": "ContainerBeingDeleted"}, ObjectStoreError),
        ({"status_code": 404, "error_code": "BlobNotFound"}, ObjectMissingError),
    ],
)
def test_what_google_s_and_azure_s_clients_raise_is_known(told, error):
    found = Exception("something")
    vars(found).update(told)
    assert type(tries.told(found, "gs://bucket/name", {})) is error


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        (412, "PreconditionFailed", ObjectExistsError),
        # another write of the name is under way, as of one's own whose answer was not waited for
        (409, "ConditionalRequestConflict", ObjectStoreError),
    ],
)
def test_what_s3_answers_to_a_condition_is_known(status, code, error):
    found = Exception("something")
    found.response = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    assert type(tries.told(found, "s3://bucket/name", {})) is error


@pytest.mark.parametrize(
    ("url", "package", "extra"),
    [
        ("gs://bucket/a", "google.cloud", "gcs"),
        ("abfs://container@account.dfs.core.windows.net/a", "azure.storage.blob", "azure"),
    ],
)
def test_writing_to_a_store_without_its_client_says_what_to_install(
    monkeypatch, url, package, extra
):
    monkeypatch.setitem(sys.modules, package, None)
    options = {"anonymous": "true"} if extra == "gcs" else {"account_key": "a2V5"}
    with pytest.raises(RmqCoreError, match=rf"pip install 'rmqcore\[{extra}\]'"):
        open_objects(url, options).create("name", b"", "")
