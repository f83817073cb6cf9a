"""Cuts the power of repairs; test_power_cut.py starts it, so that its system calls are watched."""

import json
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path

from doctor.damage import damage_all

from golden.check import digest_tree
from rmqcore import doctor
from rmqcore.doctor.journal import Journal
from rmqcore.doctor.selftest import _system_calls
from rmqcore.doctor.selftest.block_log import BlockLog
from rmqcore.files.store_dir import StoreDir


def times_of(path):
    """When each file was changed, by its path below a directory."""
    files = (file for file in path.rglob("*") if file.is_file())
    return {str(file.relative_to(path)): file.stat().st_mtime_ns for file in files}


def give_times(target, former, latter):
    """Let files say what they said before the cut, as a disk does.

    Args:
        target: the store as the cut has left it.
        former: (digests, times) of the files before the repair.
        latter: the same behind it.
    """
    journal = Journal.latest(StoreDir(target))
    changes = [] if journal is None else journal._in_order()
    placed = tuple(note["path"] for note in changes if note["kind"] == "place")
    for name, digest in digest_tree(target).items():
        new = digest == latter[0].get(name) and (
            name.startswith(placed) or digest != former[0].get(name)
        )
        of = latter if new or name not in former[1] else former
        if name in of[1]:
            os.utime(target / name, ns=(of[1][name],) * 2)


def main():
    """Repair a store, and undo what a cut has left of that, so often; say how often it was."""
    count, seed = json.loads(sys.argv[1])
    rng, cuts, undone = random.Random(seed), 0, 0
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="repairs-", dir=memory) as scratch:
        path, target = Path(scratch) / "store", Path(scratch) / "cut"
        damage_all(path)
        before = digest_tree(path)
        former = before, times_of(path)
        log = BlockLog(path)
        _system_calls.watch(log)
        doctor.repair(path)
        _system_calls.watch(None)
        _system_calls.raise_again()
        latter = digest_tree(path), times_of(path)
        while cuts < count:
            moment = log.any_moment(rng)
            log.cut(target, moment, rng, names_in_order=True)
            give_times(target, former, latter)
            journal = Journal.latest(StoreDir(target))
            if journal is None or not journal.finished:
                # a finished one asks for the times of files, which a cut does not keep
                undone += doctor.undo(target).changes > 0
                now = digest_tree(target)
                wrong = {name for name in before.keys() | now if before.get(name) != now.get(name)}
                assert not wrong, (moment, wrong)
                cuts += 1
            shutil.rmtree(target)
    print(undone)


if __name__ == "__main__":
    main()
