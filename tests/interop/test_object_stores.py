"""Archives and Delta tables in emulators of Google's and Azure's object stores."""

import hashlib
import importlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from patience import until

import rmqcore
from rmqcore.errors import ConfigError
from rmqcore.files.objects import azure_writer, gcs_writer, open_objects
from rmqcore.files.objects.errors import (
    ArchiveConflictError,
    ObjectAccessError,
    ObjectExistsError,
)
from rmqcore.lake import TableFollower
from rmqcore.lake.target import TableChangedError
from rmqcore.scan.dataset import StoreDataset
from rmqcore.transfer.archive import Archiver, restore, verify_archive

fs = pytest.importorskip("pyarrow.fs")
deltalake = pytest.importorskip("deltalake")
delta_target = pytest.importorskip("rmqcore.lake.delta_target")
EMULATORS = Path(os.environ.get("RMQCORE_EMULATORS", "no emulators"))

pytestmark = [
    pytest.mark.peers,
    pytest.mark.skipif(not EMULATORS.is_dir(), reason="scripts/stores_lane runs them"),
]

#: Google's second API, which its emulator has half of.
XML_API = str(Path(__file__).parents[1] / "gcs_xml.py")
#: What every Azurite has, as its documents say.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@contextmanager
def running(told, log, *command):
    """Start an emulator that says its port; gives the port."""
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as one:
        try:
            until(lambda: re.search(told, log.read_text()), f"{command[0]} listens")
            yield int(re.search(told, log.read_text())[1])
        finally:
            one.kill()


@pytest.fixture(scope="module", params=["gs", "abfs"])
def place(request, tmp_path_factory, free_port):
    """The URL of a prefix, storage options for it, and those of deltalake."""
    home = tmp_path_factory.mktemp(request.param)
    if request.param == "gs":
        with pytest.MonkeyPatch.context() as patch:
            # bench/grpc is none of the packages that Google's client looks for
            patch.setattr(sys, "path", [one for one in sys.path if not one.endswith("/bench")])
            importlib.import_module("google.cloud.storage")
        program = str(EMULATORS / "gcs/fake-gcs-server")
        asked = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(free_port)]
        asked += ["-public-host", f"127.0.0.1:{free_port}", "-backend", "memory"]
        told = r"server started at http://127\.0\.0\.1:(\d+)"
        with (
            running(told, home / "log", program, *asked) as port,
            running(r"port (\d+)", home / "xml.log", sys.executable, XML_API, str(port)) as xml,
        ):
            options = {"endpoint_override": f"127.0.0.1:{port}", "scheme": "http"}
            fs.GcsFileSystem(anonymous=True, project_id="any", **options).create_dir("lake")
            account = {"gcs_base_url": f"http://127.0.0.1:{xml}", "disable_oauth": True}
            account |= dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
            of_delta = {"google_service_account_key": json.dumps(account), "allow_http": "true"}
            yield "gs://lake/an archive ü", {**options, "anonymous": "true"}, of_delta
        return
    program = str(EMULATORS / "azurite/node_modules/.bin/azurite-blob")
    asked = ["--location", str(home), "--blobPort", "0", "--skipApiVersionCheck"]
    told = r"successfully listens on http://127\.0\.0\.1:(\d+)"
    with running(told, home / "log", program, *asked) as port:
        options = {"account_key": KEY}
        for kind in ("blob", "dfs"):
            options[f"{kind}_storage_authority"] = f"127.0.0.1:{port}"
            options[f"{kind}_storage_scheme"] = "http"
        fs.AzureFileSystem(ACCOUNT, **options).create_dir("lake")
        of_delta = {
            "azure_storage_account_name": ACCOUNT,
            "azure_storage_account_key": KEY,
            "azure_endpoint": f"http://127.0.0.1:{port}/{ACCOUNT}",
            "allow_http": "true",
        }
        yield f"abfs://lake@{ACCOUNT}.dfs.core.windows.net/an archive ü", options, of_delta


@pytest.fixture(scope="module")
def free_port():
    """A port that was free a moment ago."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.fixture(scope="module")
def archive(place, tmp_path_factory):
    """An archive there, and one of the same store in a directory."""
    url, options, _ = place
    home = tmp_path_factory.mktemp("archive")
    with rmqcore.open_store(home / "store", mapped_file_size_commit_log=1 << 18) as store:
        for number in range(4000):
            store.put(f"T{number % 3}", b"order %d" % number, queue_id=number % 2)
    here = Archiver(home / "store", str(home / "archive")).run_once()
    there = Archiver(home / "store", url, storage_options=options).run_once()
    assert there.files == here.files
    return url, options, home / "archive"


def test_it_is_read_verified_and_restored_as_that_of_a_directory(archive, tmp_path):
    url, options, directory = archive
    dataset = StoreDataset(url, storage_options=options)
    assert dataset.to_table().equals(StoreDataset(directory).to_table())
    assert verify_archive(url, storage_options=options).findings == []
    restored = restore(url, tmp_path / "store", storage_options=options)
    assert restored.records == dataset.count_rows() > 0


def test_an_object_is_made_once_whoever_else_makes_it_at_that_time(place, tmp_path, monkeypatch):
    url, options, _ = place
    # several requests an object
    monkeypatch.setattr(azure_writer, "_BLOCK_SIZE", 4 << 20)
    monkeypatch.setattr(gcs_writer, "_PIECE_SIZE", 4 << 20)
    objects = open_objects(f"{url} of two", options)
    ends = threading.Barrier(2)

    def make(letter):
        content = letter * (12 << 20)
        path = tmp_path / letter.decode()
        path.write_bytes(content)
        ends.wait()
        try:
            return letter, objects.create("one", path, hashlib.sha256(content).hexdigest())
        except ObjectExistsError:
            return None

    with ThreadPoolExecutor(2) as pool:
        (made,) = filter(None, pool.map(make, (b"a", b"b")))
    reader = objects.open("one")
    assert (reader.tag, reader.read_at(0, 99 << 20)) == (made[1], made[0] * (12 << 20))
    with pytest.raises(ObjectExistsError):
        objects.create("one", b"", hashlib.sha256(b"").hexdigest())
    for _ in range(2):
        objects.delete("one")
    assert objects.list("") == []


def test_two_archivers_collide_and_nothing_is_overwritten(place, tmp_path):
    url, options, _ = place
    there = {"storage_options": options}
    for name in ("one", "another"):
        with rmqcore.open_store(tmp_path / name, mapped_file_size_commit_log=1 << 16) as store:
            for number in range(1000):
                store.put("T", f"{name} {number}".encode())
    first, late = (Archiver(tmp_path / "one", f"{url} of both", **there) for _ in range(2))
    assert first.run_once().files
    with pytest.raises(ArchiveConflictError, match="another store"):
        Archiver(tmp_path / "another", f"{url} of both", **there).run_once()
    with rmqcore.open_store(tmp_path / "one", mapped_file_size_commit_log=1 << 16) as store:
        late.run_once()
        for number in range(1000):
            store.put("T", f"later {number}".encode())
    assert late.run_once().files
    with pytest.raises(ArchiveConflictError, match="another archiver"):
        first.run_once()
    assert verify_archive(f"{url} of both", **there).clean


def test_a_delta_table_there_has_each_message_once(place, tmp_path, monkeypatch):
    url, _, given = place
    table = f"{url.partition(':')[0]}://lake/table"
    for body in (b"a", b"b"):
        with rmqcore.open_store(tmp_path / "store", mapped_file_size_commit_log=1 << 16) as store:
            store.put("T", body)
        follower = TableFollower(tmp_path / "store", table, topic="T", storage_options=given)
        assert [follower.run_once().rows for _ in range(2)] == [1, 0]
    assert deltalake.DeltaTable(table, storage_options=given).count() == 2
    history = deltalake.DeltaTable(table, storage_options=given).history()
    assert KEY not in str(history)
    # of two who commit at once the store lets one in
    with rmqcore.open_store(tmp_path / "store", mapped_file_size_commit_log=1 << 16) as store:
        store.put("T", b"c")
    with_day = delta_target.with_day

    def another_first(rows):
        monkeypatch.setattr(delta_target, "with_day", with_day)
        assert follower.run_once().rows == 1
        return with_day(rows)

    monkeypatch.setattr(delta_target, "with_day", another_first)
    with pytest.raises(TableChangedError):
        follower.run_once()
    assert deltalake.DeltaTable(table, storage_options=given).count() == 3


def test_what_is_no_option_and_who_is_not_let_in_is_told(archive):
    url, options, _ = archive
    with pytest.raises(ConfigError, match=r"pyarrow\.fs"):
        StoreDataset(url, storage_options={**options, "nothing": "x"})
    if url.startswith("gs:"):
        with pytest.raises(ConfigError, match=r"pyarrow\.fs"):
            StoreDataset(url, storage_options={**options, "retry_time_limit": "soon"})
        return
    wrong = "AAAA" + KEY[4:]
    there = open_objects(url, {**options, "account_key": wrong})
    for ask in (lambda: there.list(""), lambda: there.create("x", b"", "")):
        with pytest.raises(ObjectAccessError) as caught:
            ask()
        assert wrong not in str(caught.value)
