"""Killed at any step, a repair and an undo go on where they were, and nothing is lost.

Neither goes on in a store that was written to meanwhile.
"""

import json
import os
import random
import shutil
import threading
from functools import partial

import pytest
from doctor.damage import SIZES, assert_found, damage_all, flip, log_files, overwrite
from syncs import watched

import rmqcore
from golden.check import digest_tree
from rmqcore import RepairUnfinishedError, StoreError, doctor
from rmqcore.doctor.kept_files import remove
from rmqcore.files.store_dir import REPAIR_JOURNAL, StoreDir
from rmqcore.rebuild.consume_queues import rebuild_consume_queues

pytestmark = pytest.mark.engine

#: what changes a disk; a sync, which waits until it is changed, is seen otherwise
CALLS = ("pwrite", "ftruncate", "rename", "unlink", "utime", "mkdir", "rmdir")


class Killed(BaseException):
    """Stands for the end of the process: nothing in the code catches it."""


class Killer:
    """Ends whatever runs in this thread in front of the call with a number."""

    def __init__(self, monkeypatch):
        self.calls, self.at = 0, -1
        self.thread = threading.get_ident()
        self.utime = os.utime
        for name in CALLS:
            monkeypatch.setattr(os, name, self._counted(getattr(os, name)))

    def _counted(self, function):
        def call(*args, **settings):
            # a flush that lets a file be of now is no step of a repair, and comes by the clock
            is_step = function is not self.utime or bool(settings)
            if is_step and threading.get_ident() == self.thread:
                self._count()
            return function(*args, **settings)

        return call

    def _count(self, *_):
        if self.calls == self.at:
            raise Killed
        self.calls += 1

    def run(self, work, at=-1):
        """Run something; True when it was killed."""
        self.calls, self.at = 0, at
        try:
            with watched(self._count):
                work()
        except Killed:
            return True
        finally:
            self.at = -1
        return False


@pytest.fixture(params=["", "consumequeue index checkpoint"])
def damaged(tmp_path, request):
    """A small store with every kind of damage, and the messages of which all bytes are left.

    Once more without what is derived: a repair has nothing to put in safety then.
    """
    path = tmp_path / "damaged"
    left = damage_all(path)
    for name in request.param.split():
        remove(path / name)
    kinds = {step.kind for step in doctor.plan(path).steps}
    # a field of a record is written as a place is covered
    fields = {doctor.StepKind.RENUMBER, doctor.StepKind.RESET_FLAG}
    assert kinds == set(doctor.StepKind) - {doctor.StepKind.RESIZE} - fields
    return path, left


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


def killed_within(work, path, monkeypatch, at=-2):
    """A copy of a store on which some work was begun, and killed in front of a call."""
    with monkeypatch.context() as patched:
        killer = Killer(patched)
        aside = copy_of(path, "aside")
        assert not killer.run(partial(work, aside))
        at %= killer.calls
        shutil.rmtree(aside)
        half = copy_of(path, f"half-{at}")
        assert killer.run(partial(work, half), at)
    return half


def written_meanwhile(half):
    """Open the store as it is, and put a message; where it lies."""
    with rmqcore.open_store(half, on_corruption="skip") as store:
        assert "unfinished" in store.recovery_report.findings[-1]
        return store.put("T", b"meanwhile")


@pytest.fixture
def holed(store_path):
    """A store that opens, without what is damaged: a hole in its log, and a torn tail."""
    with rmqcore.open_store(store_path, config=SIZES) as store:
        for number in range(60):
            store.put("T", b"%d" % number * 300, queue_id=number % 2, keys=f"k{number}")
    files = log_files(store_path)
    overwrite(files[0], 3000, bytes(2500))
    overwrite(files[-1], len(files[-1].read_bytes().rstrip(b"\0")), b"torn" * 99)
    return store_path


@pytest.mark.parametrize("work", [doctor.repair, doctor.undo])
def test_neither_goes_on_in_a_store_that_was_written_to(holed, monkeypatch, rng, work):
    path = holed
    if work is doctor.undo:
        doctor.repair(path)
    for at in [*(rng.randrange(1 << 20) for _ in range(3)), -2]:
        half = killed_within(work, path, monkeypatch, at)
        # else before it was begun, or behind its end
        if StoreDir(half).unfinished_repair() is not None:
            neither_goes_on(half)
        shutil.rmtree(half)


def neither_goes_on(half):
    put = written_meanwhile(half)
    before = digest_tree(half)
    assert "has changed" in doctor.plan(half).left[0]
    for go_on in (doctor.repair, doctor.undo):
        with pytest.raises(StoreError, match=r"has changed|an undo was interrupted"):
            go_on(half)
    assert digest_tree(half) == before
    with rmqcore.open_store(half, mode="r") as store:
        assert store.message_at(put.phy_offset).body == b"meanwhile"


def test_bytes_that_were_put_where_a_patch_was_being_made_are_told_without_times(
    holed, monkeypatch
):
    path = holed
    for go_on in (doctor.repair, doctor.undo):
        half = None
        at = 0
        while half is None:
            # a patch that is noted, and not done
            copy = killed_within(doctor.repair, path, monkeypatch, at)
            repair = StoreDir(copy).last_repair()
            journal = repair and (repair / REPAIR_JOURNAL).read_bytes()
            last = json.loads(journal.splitlines()[-1]) if journal else {}
            if last.get("kind") == "patch":
                half = copy
            else:
                shutil.rmtree(copy)
            at += 1
        file = half / last["path"]
        overwrite(file, last["start"] + 7, b"put")
        os.utime(file, ns=(last["time"], last["time"]))
        with pytest.raises(StoreError, match="has changed"):
            go_on(half)
        shutil.rmtree(half)


def test_an_unfinished_repair_is_told_to_whoever_opens_the_store(damaged, monkeypatch, caplog):
    half = killed_within(doctor.repair, damaged[0], monkeypatch)
    before = digest_tree(half)
    for work in (rmqcore.open_store, rebuild_consume_queues):
        with pytest.raises(RepairUnfinishedError, match=r"doctor repair .* goes on") as told:
            work(half)
        assert told.value.journal == half / "doctor" / "0001"
    rmqcore.open_store(half, mode="r").close()
    assert "is unfinished" in caplog.text
    (told,) = [one for one in doctor.verify(half).findings if one.path == half / "doctor" / "0001"]
    assert told.severity is doctor.Severity.ERROR
    assert digest_tree(half) == before
    assert doctor.repair(half).clean
    rmqcore.open_store(half).close()


def test_a_repair_that_was_killed_just_before_the_lock_is_told_too(damaged, monkeypatch):
    half = killed_within(doctor.repair, damaged[0], monkeypatch)
    home, aside, lock = half / "doctor", half.parent / "doctor", StoreDir.lock
    for work in (rmqcore.open_store, rebuild_consume_queues):
        home.rename(aside)

        def locked(directory):
            aside.rename(home)
            lock(directory)

        monkeypatch.setattr(StoreDir, "lock", locked)
        with pytest.raises(RepairUnfinishedError):
            work(half)
        monkeypatch.setattr(StoreDir, "lock", lock)
        assert not StoreDir(half).is_locked()
    assert doctor.repair(half).clean


@pytest.mark.parametrize("finished", [True, False])
def test_a_journal_that_has_rotted_is_not_believed(damaged, monkeypatch, seed, finished):
    """It says where to write, and the undo that has believed it removes what was replaced."""
    if finished:
        store = copy_of(damaged[0], "repaired")
        doctor.repair(store)
    else:
        store = killed_within(doctor.repair, damaged[0], monkeypatch)
    before, root, rng = digest_tree(store), StoreDir(store).last_repair(), random.Random(seed)
    kept = [path for path in root.iterdir() if path.name.endswith("000.before")]
    names = [REPAIR_JOURNAL, *[path.name for path in kept if path.is_file()]]
    names += [] if finished else ["plan.json"]
    for name in [name for name in names for _ in range(5)]:
        if "before" in name and not json.loads(note_of(root, name)).get("before_crc"):
            continue
        size = (root / name).stat().st_size
        at, bit = rng.randrange(size - 1), 1 << rng.randrange(7)
        flip(root / name, at, bit)
        go_on = doctor.repair if name == "plan.json" else doctor.undo
        with pytest.raises(StoreError, match=r"not what was written|has changed|earlier version"):
            go_on(store)
        flip(root / name, at, bit)
        assert digest_tree(store) == before, (name, at, bit)
    doctor.undo(store)
    assert digest_tree(store) == digest_tree(damaged[0])


@pytest.mark.parametrize("left", [b"\0", b'{"change": "0", ' + bytes(512)])
def test_a_line_whose_end_alone_came_before_a_power_cut_has_announced_nothing(
    damaged, monkeypatch, left
):
    for go_on in (doctor.undo, doctor.repair):
        store = killed_within(doctor.repair, damaged[0], monkeypatch)
        journal = StoreDir(store).last_repair() / REPAIR_JOURNAL
        with journal.open("ab") as file:
            file.write(left + b'"kind": "patch", "crc32": "00000000"}\n')
        go_on(store)
        if go_on is doctor.undo:
            assert digest_tree(store) == digest_tree(damaged[0])
        else:
            rmqcore.open_store(store).close()
        shutil.rmtree(store)


def note_of(root, name):
    """The line of the journal about the change whose evidence has a name."""
    change = f'"change": "{name.removesuffix(".before")}"'
    lines = (root / REPAIR_JOURNAL).read_text("utf-8").splitlines()
    return next(line for line in lines if change in line)


def test_a_journal_of_an_earlier_version_locks_nobody_out(damaged):
    store = damaged[0]
    doctor.repair(store)
    journal = StoreDir(store).last_repair() / REPAIR_JOURNAL
    first, *notes, _ = map(json.loads, journal.read_text("utf-8").splitlines())
    notes = [first, *notes, {"finished": first.pop("stamps")}]
    for note in notes:
        note.pop("crc32", None)
    journal.write_text("".join(json.dumps(note) + "\n" for note in notes), "utf-8")
    with pytest.raises(StoreError, match="of an earlier version"):
        doctor.undo(store)
    assert doctor.plan(store).clean
    rmqcore.open_store(store).close()


@pytest.mark.storm
def test_a_repair_goes_on_wherever_it_was_killed(damaged, monkeypatch, seed):
    check_repair(damaged, monkeypatch, seed, None)


@pytest.mark.storm
def test_an_undo_goes_on_wherever_it_was_killed(damaged, monkeypatch, seed):
    check_undo(damaged, monkeypatch, seed, None)
