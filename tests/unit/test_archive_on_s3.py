"""An archive on a real S3 server, and whatever may go wrong between here and there."""

import hashlib
import pickle
import threading
from dataclasses import replace

import pytest
from s3_server import ACCESS_KEY, BUCKET, SECRET_KEY, Proxy, s3_server

import rmqcore
from rmqcore.files.objects import open_objects, tries
from rmqcore.files.objects.errors import (
    ArchiveConflictError,
    ObjectAccessError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectStoreError,
)
from rmqcore.scan import ArchiveLog, object_file, read_store
from rmqcore.scan.dataset import StoreDataset
from rmqcore.scan.manifest import commit, load_manifest
from rmqcore.transfer.archive import Archiver, restore, verify_archive

pytestmark = pytest.mark.process

boto3 = pytest.importorskip("boto3")
pa = pytest.importorskip("pyarrow")
pytest.importorskip("moto")

FILE_SIZE = 1 << 18
COLUMNS = ("topic", "queue_offset", "phy_offset", "body")


@pytest.fixture(scope="module")
def server():
    with s3_server() as port:
        yield port


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("s3") / "store"
    with rmqcore.open_store(path, mapped_file_size_commit_log=FILE_SIZE) as opened:
        for number in range(2000):
            opened.put(f"T{number % 3}", b"x" * 300 + b"%d" % number, queue_id=number % 2)
    return path


@pytest.fixture
def s3(server, monkeypatch, request):
    """A proxy before an S3 server, told to all by the environment, as AWS's tools take it."""
    proxy = Proxy(server)
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    proxy.waits = []
    monkeypatch.setattr(tries, "sleep", proxy.waits.append)
    proxy.client = boto3.client("s3")
    proxy.client.create_bucket(Bucket=BUCKET)
    proxy.archive = f"s3://{BUCKET}/{request.node.name}"
    proxy.asked.clear()
    yield proxy
    proxy.client.close()
    proxy.close()


def rows(place, **settings):
    found = [batch.to_arrow() for batch in read_store(place, COLUMNS, **settings)]
    return pa.Table.from_batches(found)


def test_what_was_archived_is_read_verified_and_restored(s3, store, tmp_path, monkeypatch):
    monkeypatch.setattr(object_file, "WINDOW_SIZE", 100_000)
    report = Archiver(store, s3.archive).run_once()
    assert len(report.files) == 3
    end = report.end
    of_store = rows(store, end_phy_offset=end)
    assert rows(s3.archive) == of_store
    assert StoreDataset(s3.archive).count_rows() == of_store.num_rows
    assert verify_archive(s3.archive).clean
    restore(s3.archive, tmp_path / "restored")
    assert rows(tmp_path / "restored") == of_store
    # the keys are nowhere where somebody may see them
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name)
    options = {
        "aws_access_key_id": ACCESS_KEY,
        "aws_secret_access_key": SECRET_KEY,
        "aws_endpoint_url": s3.url,
    }
    log = ArchiveLog(s3.archive, options)
    split = pickle.loads(pickle.dumps(log.select({}).splits()[0]))
    assert dict(split.storage_options) == options
    dataset = StoreDataset(s3.archive, storage_options=options)
    assert dataset.count_rows() == of_store.num_rows
    for shown in (repr(split), repr(dataset), dataset._repr_html_(), str(vars(report_of(store)))):
        assert SECRET_KEY not in shown


def report_of(store):
    """What the store itself keeps of its archive."""

    class Kept:
        text = (store / "config" / "archive.json").read_text()

    return Kept


def test_what_fails_for_a_moment_is_tried_again(s3, store):
    options = {"request_timeout_s": "0.5"}
    s3.faults = [
        ["PUT", "commitlog/00000000000000000000", 1, 500],
        ["PUT", "commitlog/00000000000000262144", 1, "unheard"],
        ["PUT", "manifest/0000000002", 1, "unheard"],
        ["PUT", "commitlog/00000000000000524288", 1, "slow"],
    ]
    report = Archiver(store, s3.archive, storage_options=options).run_once()
    assert len(report.files) == 3
    assert len(s3.waits) == 4
    s3.faults = [
        ["HEAD", "commitlog/00000000000000000000", 2, 500],
        ["GET", "commitlog/00000000000000262144", 2, "cut"],
        ["GET", "commitlog/00000000000000524288", 1, "slow"],
        ["GET", "manifest", 1, 503],
    ]
    assert rows(s3.archive, storage_options=options) == rows(store, end_phy_offset=report.end)
    assert all(fault[2] == 0 for fault in s3.faults)


def test_what_does_not_come_right_is_told_without_a_secret(s3, store):
    Archiver(store, s3.archive).run_once()
    for fault, kind, tried in (
        (["GET", "commitlog/", 99, 500], ObjectStoreError, tries.TRIES_MAX),
        (["GET", "commitlog/", 99, 403], ObjectAccessError, 1),
        (["HEAD", "commitlog/", 99, 403], ObjectAccessError, 1),
        (["GET", "commitlog/", 99, "cut"], ObjectStoreError, tries.TRIES_MAX),
    ):
        s3.faults = [fault]
        s3.waits.clear()
        with pytest.raises(kind) as error:
            rows(s3.archive)
        assert type(error.value) is kind
        assert len(s3.waits) == tried - 1
        assert str(error.value).startswith(f"{s3.archive}/commitlog/")
        assert SECRET_KEY not in repr(error.value)
        assert ACCESS_KEY not in repr(error.value)
    s3.faults = [["PUT", "", 99, 403]]
    with pytest.raises(ObjectAccessError) as error:
        Archiver(store, f"{s3.archive}-2").run_once()
    assert ACCESS_KEY not in repr(error.value)
    assert verify_archive(s3.archive).clean


def test_a_restoration_goes_on_behind_what_fails(s3, store, tmp_path):
    options = {"request_timeout_s": "0.5"}
    end = Archiver(store, s3.archive).run_once().end
    s3.faults = [
        ["GET", "commitlog/00000000000000000000", 1, "cut"],
        ["GET", "commitlog/00000000000000262144", 1, "slow"],
        ["GET", "commitlog/00000000000000524288", 99, 403],
    ]
    with pytest.raises(ObjectAccessError) as error:
        restore(s3.archive, tmp_path / "again", storage_options=options)
    assert SECRET_KEY not in repr(error.value)
    with pytest.raises(rmqcore.errors.StoreError):
        rmqcore.open_store(tmp_path / "again")
    s3.faults = [["GET", "commitlog/00000000000000524288", 2, 500]]
    assert restore(s3.archive, tmp_path / "again", storage_options=options).end == end
    assert rows(tmp_path / "again") == rows(store, end_phy_offset=end)


def test_an_object_that_is_replaced_is_told_also_while_it_is_read(s3, store):
    Archiver(store, s3.archive).run_once()
    place, name = s3.archive.removeprefix(f"s3://{BUCKET}/"), f"{FILE_SIZE:020d}"
    key = f"{place}/commitlog/{name}"
    data = s3.client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
    # whose records are good, but are not what was archived
    other = data[:-1] + b"\1"

    def replace():
        s3.client.put_object(Bucket=BUCKET, Key=key, Body=other)

    s3.faults = [["GET", key, 1, replace]]
    with pytest.raises(ObjectChangedError, match="tag"):
        rows(s3.archive)
    with pytest.raises(ObjectChangedError, match="tag"):
        rows(s3.archive)
    s3.client.delete_object(Bucket=BUCKET, Key=key)
    assert "deleted" in verify_archive(s3.archive).findings[0]


def test_an_archive_of_another_kind_of_store_is_read_where_it_was_copied_to(s3, store):
    Archiver(store, s3.archive).run_once()
    objects = open_objects(s3.archive)
    manifest = load_manifest(objects)

    def retagged(tag):
        files = tuple(replace(file, tag=tag) for file in manifest.files)
        number = load_manifest(objects).generation
        commit(objects, replace(manifest, generation=number, files=files))
        return rows(s3.archive).num_rows

    google_s, azure_s = "1795753439604777", '"0x1C6C8AC91165730"'
    assert retagged(google_s) == retagged(azure_s) > 0
    with pytest.raises(ObjectChangedError, match="tag"):
        retagged('"another"')


@pytest.mark.peers
def test_of_two_archivers_one_goes_on(s3, store):
    ends, errors = [], []

    def work():
        try:
            ends.append(Archiver(store, s3.archive).run_once().end)
        except ArchiveConflictError as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ends) + len(errors) == 3
    end = Archiver(store, s3.archive).run_once().end
    assert set(ends) <= {end}
    assert rows(s3.archive) == rows(store, end_phy_offset=end)


def test_no_object_is_overwritten(s3):
    objects = open_objects(s3.archive)
    objects.create("manifest/one", b"one", hashlib.sha256(b"one").hexdigest())
    with pytest.raises(ObjectExistsError):
        objects.create("manifest/one", b"two", hashlib.sha256(b"two").hexdigest())
    assert objects.open("manifest/one").read_at(0, 9) == b"one"
    with pytest.raises(rmqcore.errors.StoreError, match="no archive is here"):
        ArchiveLog(f"s3://{BUCKET}/none")
