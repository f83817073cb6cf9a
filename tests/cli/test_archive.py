"""archive and restore; and what reads a directory reads an archive."""

import pytest

from rmqcore import open_store
from rmqcore.cli.failures import ExitCode

pytestmark = pytest.mark.engine


def test_an_archive_is_made_followed_verified_exported_explained_and_restored(
    rmqcore, store_path, tmp_path, monkeypatch
):
    with open_store(store_path, mapped_file_size_commit_log=64 << 10) as opened:
        for number in range(1000):
            opened.put("Orders", b"%0100d" % number, queue_id=number % 2, keys=f"k{number}")
    url = (tmp_path / "archive").as_uri()
    done = rmqcore("archive", store_path, url, "--json").json
    assert (done["start"], done["end"]) == (0, len(done["files"]) * 65536)
    assert rmqcore("archive", store_path, url).stdout.startswith("0 files, 0 B archived")

    pauses = []

    def pause(seconds):
        pauses.append(seconds)
        if len(pauses) == 2:
            raise KeyboardInterrupt
        with open_store(store_path, mapped_file_size_commit_log=64 << 10) as opened:
            for number in range(1000):
                opened.put("Orders", b"%0100d" % number, queue_id=number % 2)

    monkeypatch.setattr("rmqcore.cli.archive.sleep", pause)
    followed = rmqcore("archive", store_path, url, "--follow", "--every", "5s", "--json")
    assert followed.exit_code == ExitCode.INTERRUPTED
    assert pauses == [5, 5]
    end = followed.json["end"]
    assert end > done["end"]

    verified = rmqcore("verify", url, "--json").json
    assert (verified["clean"], verified["end"]) == (True, end)
    parts = rmqcore("export", url, tmp_path / "out", "--topic", "Orders", "--json").json["parts"]
    assert sum(part["rows"] for part in parts) == verified["records"]
    for words in (("--topic", "Orders", "--queue", 1, "--offset", 9), ("--phy-offset", 0), ()):
        assert rmqcore("doctor", "explain", url, *words, "--json").json["found"]
    gone = rmqcore("doctor", "explain", url, "--topic", "Orders", "--offset", 99_999)
    assert "has the offsets 0 to " in gone.stdout
    told = rmqcore("restore", url, tmp_path / "restored", "--json").json
    assert (told["end"], told["records"]) == (end, verified["records"])
    assert rmqcore("restore", url, store_path).exit_code == ExitCode.STORE

    damaged = tmp_path / "archive" / "commitlog" / f"{0:020d}"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\1")
    assert rmqcore("verify", url).exit_code == ExitCode.FINDINGS
    assert rmqcore("verify", "s3://KEY:SECRET@bucket/p").exit_code == ExitCode.USAGE
