"""Archives in emulators of Google's and Azure's object stores are read as those of a directory."""

import os
import re
import socket
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest
from patience import until

import rmqcore
from rmqcore.errors import ConfigError
from rmqcore.files.objects.errors import ObjectAccessError
from rmqcore.lake import TableFollower
from rmqcore.scan.dataset import StoreDataset
from rmqcore.transfer.archive import Archiver, restore, verify_archive

fs = pytest.importorskip("pyarrow.fs")
EMULATORS = Path(os.environ.get("RMQCORE_EMULATORS", "no emulators"))

pytestmark = [
    pytest.mark.peers,
    pytest.mark.skipif(not EMULATORS.is_dir(), reason="scripts/stores_lane runs them"),
]

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
    """The URL of a prefix, storage options for it, and a file system to write with."""
    home = tmp_path_factory.mktemp(request.param)
    if request.param == "gs":
        program = str(EMULATORS / "gcs/bin/gcp-storage-emulator")
        asked = ["start", "--host", "127.0.0.1", "--port", str(free_port), "--in-memory"]
        told = r"Starting server at 127\.0\.0\.1:(\d+)"
        with running(told, home / "log", program, *asked, "--default-bucket", "lake") as port:
            options = {"endpoint_override": f"127.0.0.1:{port}", "scheme": "http"}
            files = fs.GcsFileSystem(anonymous=True, **options)
            yield "gs://lake/an archive ü", {**options, "anonymous": "true"}, files
        return
    program = str(EMULATORS / "azurite/node_modules/.bin/azurite-blob")
    asked = ["--location", str(home), "--blobPort", "0", "--skipApiVersionCheck"]
    told = r"successfully listens on http://127\.0\.0\.1:(\d+)"
    with running(told, home / "log", program, *asked) as port:
        options = {"account_key": KEY}
        for kind in ("blob", "dfs"):
            options[f"{kind}_storage_authority"] = f"127.0.0.1:{port}"
            options[f"{kind}_storage_scheme"] = "http"
        files = fs.AzureFileSystem(ACCOUNT, **options)
        files.create_dir("lake")
        yield f"abfs://lake@{ACCOUNT}.dfs.core.windows.net/an archive ü", options, files


@pytest.fixture(scope="module")
def free_port():
    """A port that was free a moment ago."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.fixture(scope="module")
def archive(place, tmp_path_factory):
    """An archive there, and the same one in a directory."""
    url, options, files = place
    home = tmp_path_factory.mktemp("archive")
    with rmqcore.open_store(home / "store", mapped_file_size_commit_log=1 << 18) as store:
        for number in range(4000):
            store.put(f"T{number % 3}", b"order %d" % number, queue_id=number % 2)
    Archiver(home / "store", str(home / "archive")).run_once()
    for path in sorted((home / "archive").rglob("*")):
        if path.is_file():
            name = f"lake/an archive ü/{path.relative_to(home / 'archive')}"
            with files.open_output_stream(name) as stream:
                stream.write(path.read_bytes())
    return url, options, home / "archive"


def test_it_is_read_verified_and_restored_as_that_of_a_directory(archive, tmp_path):
    url, options, directory = archive
    dataset = StoreDataset(url, storage_options=options)
    assert dataset.to_table().equals(StoreDataset(directory).to_table())
    assert verify_archive(url, storage_options=options).findings == []
    restored = restore(url, tmp_path / "store", storage_options=options)
    assert restored.records == dataset.count_rows() > 0


def test_a_delta_table_in_azure_s_store_has_each_message_once(archive, tmp_path):
    deltalake = pytest.importorskip("deltalake")
    url, options, _ = archive
    if url.startswith("gs:"):
        # its emulator does not list as deltalake asks
        return
    given = {
        "azure_storage_account_name": ACCOUNT,
        "azure_storage_account_key": KEY,
        "azure_endpoint": f"http://{options['blob_storage_authority']}/{ACCOUNT}",
        "allow_http": "true",
    }
    for body in (b"a", b"b"):
        with rmqcore.open_store(tmp_path / "store", mapped_file_size_commit_log=1 << 16) as store:
            store.put("T", body)
        follower = TableFollower(
            tmp_path / "store", "abfs://lake/table", topic="T", storage_options=given
        )
        assert [follower.run_once().rows for _ in range(2)] == [1, 0]
    assert deltalake.DeltaTable("abfs://lake/table", storage_options=given).count() == 2
    history = deltalake.DeltaTable("abfs://lake/table", storage_options=given).history()
    assert KEY not in str(history)


def test_what_is_no_option_and_who_is_not_let_in_is_told(archive):
    url, options, _ = archive
    with pytest.raises(ConfigError, match=r"pyarrow\.fs"):
        StoreDataset(url, storage_options={**options, "nothing": "x"})
    if url.startswith("gs:"):
        with pytest.raises(ConfigError, match=r"pyarrow\.fs"):
            StoreDataset(url, storage_options={**options, "retry_time_limit": "soon"})
        return
    wrong = "AAAA" + KEY[4:]
    with pytest.raises(ObjectAccessError) as caught:
        StoreDataset(url, storage_options={**options, "account_key": wrong})
    assert wrong not in str(caught.value)
