"""Killed at any step, a repair and an undo go on where they were, and nothing is lost."""

import os
import random
import shutil
import threading
from functools import partial

import pytest
from doctor.damage import assert_found, known_messages, log_files, overwrite, whole

import rmqcore
from golden.check import digest_tree
from rmqcore import doctor

pytestmark = pytest.mark.engine

FILE_SIZE = 1 << 14
SIZES = {
    "mapped_file_size_commit_log": FILE_SIZE,
    "mapped_file_size_consume_queue": 20 * 16,
    "max_hash_slot_num": 8,
    "max_index_num": 32,
}
#: what changes a disk, or waits until it is changed
CALLS = ("fsync", "pwrite", "ftruncate", "rename", "unlink", "utime", "mkdir", "rmdir")


class Killed(BaseException):
    """Stands for the end of the process: nothing in the code catches it."""


class Killer:
    """Ends whatever runs in this thread in front of the call with a number."""

    def __init__(self, monkeypatch):
        self.calls, self.at = 0, -1
        self.thread = threading.get_ident()
        for name in CALLS:
            monkeypatch.setattr(os, name, self._counted(getattr(os, name)))

    def _counted(self, function):
        def call(*args, **settings):
            if threading.get_ident() == self.thread:
                if self.calls == self.at:
                    raise Killed
                self.calls += 1
            return function(*args, **settings)

        return call

    def run(self, work, at=-1):
        """Run something; True when it was killed."""
        self.calls, self.at = 0, at
        try:
            work()
        except Killed:
            return True
        finally:
            self.at = -1
        return False


@pytest.fixture
def damaged(tmp_path):
    """A small store with every kind of damage, and the messages of which all bytes are left."""
    path = tmp_path / "damaged"
    with rmqcore.open_store(path, config=SIZES) as store:
        for number in range(60):
            store.put("T", b"%d" % number * 300, queue_id=number % 2, keys=f"k{number}")
    known = known_messages(path)
    files = log_files(path)
    overwrite(files[0], 3000, bytes(2500))
    files[1].write_bytes(files[1].read_bytes()[:9000])
    (path / "commitlog" / f"{777:020d}").write_bytes(b"stray")
    last = [file for file in files if file.read_bytes().strip(b"\0")][-1]
    overwrite(last, len(last.read_bytes().rstrip(b"\0")), b"torn")
    (path / "config" / "subscriptionGroup.json").write_text("{")
    (path / "config" / "topics.json").write_text("{")
    (path / "config" / "topics.json.bak").write_text('{"topicConfigTable":{}}')
    (path / "config" / "consumerOffset.json").write_text('{"offsetTable":{"T@g":{0:999}}}')
    (path / "checkpoint").write_bytes(b"\xff" * 40)
    (path / "abort").write_text("1")
    kinds = {step.kind for step in doctor.plan(path).steps}
    assert kinds == set(doctor.StepKind) - {doctor.StepKind.RESIZE}
    return path, whole(path, known, FILE_SIZE)


def moments(killer, work, seed, count):
    """Some calls to be killed at, of all that the work makes; all of them for a count of None."""
    assert not killer.run(work)
    every = range(killer.calls)
    return list(every) if count is None else random.Random(seed).sample(every, count)


def copy_of(path, number):
    return shutil.copytree(path, path.with_name(f"copy-{number}"))


def check_repair(damaged, monkeypatch, seed, count):
    path, left = damaged
    before = digest_tree(path)
    killer = Killer(monkeypatch)
    first = copy_of(path, "first")
    for number, at in enumerate(moments(killer, partial(doctor.repair, first), seed, count)):
        # of some moments each is followed by one of the two, of all by both
        for goes_on in (True, False) if count is None else [number % 2 == 0]:
            killed = copy_of(path, "killed")
            assert killer.run(partial(doctor.repair, killed), at), at
            if goes_on:
                assert doctor.repair(killed).clean, at
                assert_found(killed, left)
            doctor.undo(killed)
            assert digest_tree(killed) == before, at
            assert not (killed / "doctor").exists(), at
            shutil.rmtree(killed)


def check_undo(damaged, monkeypatch, seed, count):
    path, _ = damaged
    before = digest_tree(path)
    repaired = copy_of(path, "repaired")
    doctor.repair(repaired)
    killer = Killer(monkeypatch)
    first = shutil.copytree(repaired, path.with_name("first"))
    for at in moments(killer, partial(doctor.undo, first), seed, count):
        half = shutil.copytree(repaired, path.with_name("half"))
        assert killer.run(partial(doctor.undo, half), at), at
        doctor.undo(half)
        assert digest_tree(half) == before, at
        assert not (half / "doctor").exists(), at
        shutil.rmtree(half)


def test_a_repair_goes_on_where_it_was_killed(damaged, monkeypatch, seed):
    check_repair(damaged, monkeypatch, seed, 6)


def test_an_undo_goes_on_where_it_was_killed(damaged, monkeypatch, seed):
    check_undo(damaged, monkeypatch, seed, 6)


@pytest.mark.storm
def test_a_repair_goes_on_wherever_it_was_killed(damaged, monkeypatch, seed):
    check_repair(damaged, monkeypatch, seed, None)


@pytest.mark.storm
def test_an_undo_goes_on_wherever_it_was_killed(damaged, monkeypatch, seed):
    check_undo(damaged, monkeypatch, seed, None)
