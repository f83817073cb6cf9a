"""A bundle for a report: figures and findings, nothing that somebody has put or keeps secret."""

import json
import tarfile

import pytest

from golden.check import digest_tree
from rmqcore import open_store
from rmqcore.cli.exit_codes import ExitCode

pytestmark = pytest.mark.engine

SECRETS = ("b0dy", "k3y", "pr0perty", "s3cr3t", "t0k3n", "passw0rd")
PARTS = ("versions", "settings", "files", "stat", "trace", "last_messages", "explain", "verify")


def read(path):
    with tarfile.open(path) as archive:
        names = archive.getnames()
        assert all(name.startswith("rmqcore-debug/") for name in names)
        return {
            name.removeprefix("rmqcore-debug/"): archive.extractfile(name).read().decode()
            for name in names
        }


@pytest.fixture
def store(store_path):
    with open_store(store_path, mapped_file_size_commit_log=1 << 20) as opened:
        for _ in range(30):
            opened.put("Orders", b"b0dy", keys="k3y", properties={"p": "pr0perty"})
    return store_path


def test_a_bundle_has_every_part_and_no_secret(rmqcore, store, tmp_path):
    conf, log = tmp_path / "broker.conf", tmp_path / "broker.log"
    conf.write_text("flushDiskType=SYNC_FLUSH\n")
    log.write_text(
        "x" * 70_000
        + '\nopened {"secretKey": "s3cr3t"}, accessToken=t0k3n; password: passw0rd\nlast\n'
    )
    before = digest_tree(store)
    out = tmp_path / "report.tar.gz"
    told = rmqcore("debug", "bundle", store, "--out", out, "--log", log, "--config", conf, "--json")
    assert (told.exit_code, told.json["left_out"]) == (0, {})
    parts = read(out)
    assert set(parts) == {*(f"{name}.json" for name in PARTS), "logs/broker.log", "left_out.json"}
    everything = "".join(parts.values())
    assert [secret for secret in SECRETS if secret in everything] == []
    assert parts["logs/broker.log"].endswith("last\n")
    assert len(parts["logs/broker.log"]) <= 1 << 16
    assert json.loads(parts["verify.json"])["clean"]
    assert json.loads(parts["settings.json"])["given"]["flush_disk_type"] == "SYNC_FLUSH"
    last = json.loads(parts["last_messages.json"])
    assert [row["queue_offset"] for row in last] == list(range(10, 30))
    assert json.loads(parts["stat.json"])["topics"][0]["messages"] == 30
    assert digest_tree(store) == before
    assert out.stat().st_mode & 0o777 == 0o600


def test_a_damaged_store_is_bundled_all_the_same(rmqcore, store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with (store / "commitlog" / f"{0:020d}").open("r+b") as log:
        log.write(bytes(300))
    (store / "config" / "topics.json").write_text("{")
    said = rmqcore("debug", "bundle", store, "--log", "none.log")
    assert said.exit_code == 0
    assert "without logs/none.log  none.log: No such file or directory" in said.stdout
    assert "bodies, keys and properties" in said.stdout
    (out,) = tmp_path.glob("rmqcore-debug-*.tar.gz")
    assert not json.loads(read(out)["verify.json"])["clean"]
    again = rmqcore("debug", "bundle", store, "--out", out)
    assert again.exit_code == ExitCode.SYSTEM
    assert "exists" in again.stderr
    assert rmqcore("debug", "bundle", tmp_path / "none").exit_code == ExitCode.STORE
