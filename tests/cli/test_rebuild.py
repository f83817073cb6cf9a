"""rebuild: byte for byte what was there, or what was lost; never beside a writer."""

import shutil

import pytest

from rmqcore import open_store
from rmqcore.cli.exit_codes import ExitCode

pytestmark = pytest.mark.engine


@pytest.mark.parametrize(("kind", "folder"), [("cq", "consumequeue"), ("index", "index")])
def test_what_is_there_comes_out_the_same(rmqcore, store, kind, folder):
    def files():
        return {p: p.read_bytes() for p in (store / folder).rglob("*") if p.is_file()}

    before = files()
    report = rmqcore("rebuild", kind, store, "--json").json
    assert report["identical"] is True
    assert report["records"] == 11
    assert files() == before
    assert rmqcore("rebuild", kind, store, "--jobs", 2, "--json").json["identical"] is True
    assert files() == before
    assert "byte for byte" in rmqcore("rebuild", kind, store).stdout


def test_lost_consume_queues_come_back(rmqcore, store):
    shutil.rmtree(store / "consumequeue")
    report = rmqcore("rebuild", "cq", store, "--jobs", 2, "--json").json
    assert report["identical"] is False
    assert rmqcore("cat", store, "Letters").stdout == "a\nb\nc\nd\ne\nA\nB\nC\nD\nE\n"


def test_a_lost_index_comes_back(rmqcore, store):
    for file in (store / "index").iterdir():
        file.unlink()
    refused = rmqcore("query", store, "--key", "c")
    assert (refused.exit_code, refused.stdout) == (ExitCode.STORE, "")
    assert "rmqcore rebuild index" in refused.stderr
    assert rmqcore("rebuild", "index", store).exit_code == 0
    assert rmqcore("query", store, "--key", "c").exit_code == 0


def test_a_store_that_is_open_for_writing_is_left_alone(rmqcore, store):
    with open_store(store):
        assert rmqcore("rebuild", "cq", store).exit_code == ExitCode.STORE


def test_damage_changes_nothing_until_it_may_be_skipped(rmqcore, store):
    with open_store(store, mode="r") as opened:
        offset = [message.phy_offset for message in opened.messages()][4]
    with (store / "commitlog" / f"{0:020d}").open("r+b") as stream:
        stream.seek(offset + 4)
        stream.write(b"\0\0\0\0")
    outcome = rmqcore("rebuild", "cq", store)
    assert outcome.exit_code == ExitCode.DAMAGED
    assert f"at {offset}: " in outcome.stderr
    skipped = rmqcore("rebuild", "cq", store, "--skip-damage", "--json")
    assert skipped.exit_code == 0
    assert [at for at, _ in skipped.json["damaged"]] == [offset]


def test_a_store_whose_log_lies_elsewhere(rmqcore, tmp_path):
    store, log = tmp_path / "store", tmp_path / "log"
    where = "-c", f"storePathCommitLog={log}"
    with open_store(store, store_path_commit_log=str(log)) as opened:
        opened.put("T", b"x", keys="k")
    for words in (
        ("verify", store),
        ("dump", store),
        ("rebuild", "cq", store),
        ("rebuild", "index", store),
        ("export", store, tmp_path / "out", "--topic", "T"),
    ):
        done = rmqcore(*words, *where)
        assert done.exit_code == 0, (words, done.stderr)
    assert not (store / "commitlog").exists()
    assert rmqcore("stat", store, *where, "--json").json["bytes"]["commitlog"]["length"] > 0
    refused = rmqcore("verify", store)
    assert refused.exit_code == 3
    assert "storePathCommitLog" in refused.stderr


@pytest.mark.parametrize(("kind", "folder"), [("cq", "consumequeue"), ("index", "index")])
def test_a_directory_that_is_a_link_stays_one(rmqcore, store, tmp_path, kind, folder):
    elsewhere = tmp_path / "other-disk"
    (store / folder).rename(elsewhere)
    (store / folder).symlink_to(elsewhere)
    before = sorted(path.name for path in store.iterdir())
    assert rmqcore("rebuild", kind, store, "--json").json["identical"] is True
    assert (store / folder).readlink() == elsewhere
    assert sorted(path.name for path in store.iterdir()) == before
    assert sorted(path.name for path in tmp_path.glob("other-disk*")) == ["other-disk"]
