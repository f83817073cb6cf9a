"""Policies: their words, ages, archives, and what happens when packing fails."""

import os
import zipfile
from pathlib import Path

import pytest
from syncs import watched

from rmqcore.errors import ConfigError
from rmqcore.metaq import ArchiveDeletePolicy, DiscardDeletePolicy, parse_delete_policy

pytestmark = pytest.mark.logic

HOUR = 3_600_000


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("delete,168", DiscardDeletePolicy(168 * HOUR)),
        ("delete,2h", DiscardDeletePolicy(2 * HOUR)),
        ("delete,90m", DiscardDeletePolicy(90 * 60_000)),
        ("delete,5s", DiscardDeletePolicy(5_000)),
        ("archive,1", ArchiveDeletePolicy(HOUR)),
        ("archive,1,true", ArchiveDeletePolicy(HOUR, compress=True)),
        ("archive,1,false", ArchiveDeletePolicy(HOUR)),
    ],
)
def test_words(text, policy):
    assert parse_delete_policy(text) == policy


@pytest.mark.parametrize("text", ["", "delete", "delete,", "delete,-1", "delete,1d", "burn,1"])
def test_other_words_are_refused(text):
    with pytest.raises(ConfigError, match="deletePolicy"):
        parse_delete_policy(text)


@pytest.fixture
def old(tmp_path):
    path = tmp_path / "00000000000000000000.meta"
    path.write_bytes(b"content" * 1000)
    os.utime(path, (1_000_000, 1_000_000))
    return path


def test_an_age_is_older_than(old):
    policy = DiscardDeletePolicy(5_000)
    assert not policy.can_delete(old, 1_000_005_000)
    assert policy.can_delete(old, 1_000_005_001)


def test_deleting(old):
    DiscardDeletePolicy(0).process(old)
    assert not old.exists()


def test_archiving_renames(old):
    ArchiveDeletePolicy(0).process(old)
    assert [p.name for p in old.parent.iterdir()] == [f"{old.name}.arc"]


def test_archiving_packs(old):
    ArchiveDeletePolicy(0, compress=True).process(old)
    (packed,) = old.parent.iterdir()
    assert packed.name == f"{old.name}.zip"
    with zipfile.ZipFile(packed) as archive:
        assert archive.read(old.name) == b"content" * 1000


def test_an_archive_and_its_name_are_on_the_disk_before_the_segment_goes(old):
    synced = []

    def note(_call, fd):
        there = sorted(path.suffix for path in old.parent.iterdir())
        synced.append((Path(f"/proc/self/fd/{fd}").resolve().suffix, there))

    with watched(note):
        ArchiveDeletePolicy(0, compress=True).process(old)
    assert synced == [(".tmp", [".meta", ".tmp"]), ("", [".meta", ".zip"])]


def test_packing_that_fails_keeps_the_segment(old, monkeypatch):
    def full(*_args, **_options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(zipfile.ZipFile, "write", full)
    with pytest.raises(OSError, match="No space"):
        ArchiveDeletePolicy(0, compress=True).process(old)
    assert [p.name for p in old.parent.iterdir()] == [old.name]


@pytest.mark.parametrize(("compress", "suffix"), [(False, "arc"), (True, "zip")])
def test_no_archive_is_written_over_by_one_of_the_same_name(old, compress, suffix):
    policy, name = ArchiveDeletePolicy(HOUR, compress=compress), old.name
    policy.process(old)
    first = old.with_name(f"{name}.{suffix}")
    content = first.read_bytes()
    old.write_bytes(b"of a partition begun anew")
    policy.process(old)
    second = old.with_name(f"{name}-2.{suffix}")
    assert sorted(old.parent.iterdir()) == sorted([first, second])
    assert first.read_bytes() == content


def test_a_segment_that_a_kill_has_left_beside_its_archive_is_archived_once(old):
    policy, content = ArchiveDeletePolicy(HOUR, compress=True), old.read_bytes()
    policy.process(old)
    old.write_bytes(content)
    os.utime(old, (1_000_000, 1_000_000))
    policy.process(old)
    assert [path.name for path in old.parent.iterdir()] == [f"{old.name}.zip"]
