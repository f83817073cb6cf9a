"""Writers that are killed with SIGKILL at random moments, each in the store of the one before.

What a process has stored is the kernel's when the process dies, whatever the disk: the stores are
best made in memory. They are small, so that opening and checking them, which each kill needs, is
cheap, and their files are so small that most writers roll several of them.
"""

from __future__ import annotations

import gc
import random
import shutil
import signal
from functools import partial
from pathlib import Path
from typing import Any

from rmqcore import Durability, MessageStore
from rmqcore.doctor.selftest.children import Say, broken, numbers, run_child
from rmqcore.doctor.selftest.files import Files, read_files, write_files
from rmqcore.doctor.selftest.report import Progress, Row
from rmqcore.doctor.selftest.workload import MODES, PAGE, check_store, open_for, put
from rmqcore.world import monotonic_s, sleep

_KILLS_A_STORE = 15
_PUTS_MAX = 60
#: How often a writer pauses behind a put, so that only the store's background threads work.
_PAUSES = 0.05
_PAUSE_S = 0.0002
#: No writer puts more messages than this.
_NUMBERS_A_WRITER = 100
#: seconds within which a writer that puts is killed
_LIFE_S = 0.002
#: The share of writers that are killed while they put; the others die while they open and check.
_IN_PUTS = 0.7
_SIZES: dict[str, Any] = {
    "mapped_file_size_commit_log": 3 * PAGE,
    "mapped_file_size_consume_queue": 400,
    "max_hash_slot_num": 50,
    "max_index_num": 150,
}
PROMISE = "what was acknowledged as page_cache is there, nothing is wrong, the store opens"


def kills(
    count: int,
    seed: int,
    scratch: Path,
    progress: Progress,
    *,
    first: int = 0,
    kept: Path | None = None,
) -> Row:
    """Kill ``count`` writers; the process must have no other thread, for it forks.

    Each writer opens the store that the one before has left, checks it, and puts. It is killed in
    any of these. What the last one has left is checked by one that lives.

    Args:
        count: how many writers are killed.
        seed: gives the same modes and delays again; what a writer does in them depends on the
            machine.
        scratch: a directory for the stores, best in memory.
        progress: called as it goes on.
        first: number of the first kill; the seed decides by number.
        kept: a directory for stores that broke the promise, as the kill left them.
    """
    row = Row("kill -9", PROMISE)
    begun = monotonic_s()
    path = scratch / "killed"
    is_frozen = gc.get_freeze_count() > 0
    _warm_up(path)
    left: Files = {}
    opening_s = _LIFE_S
    acknowledged: list[int] = []
    in_store = 0
    while row.cases < count:
        number = first + row.cases
        rng = random.Random(f"{seed}/kill/{number}")  # noqa: S311 - repeatable
        mode = rng.choice(sorted(MODES))
        in_puts = rng.random() < _IN_PUTS
        life_s = rng.random() * (_LIFE_S if in_puts else opening_s)
        if kept is not None:
            left = read_files(path)
        numbers_from = in_store * _NUMBERS_A_WRITER
        writer = partial(_write, path, mode, acknowledged, numbers_from, rng)
        child_begun = monotonic_s()
        said = run_child(writer, life_s=life_s, from_first_line=in_puts)
        if in_puts:
            opening_s = monotonic_s() - child_begun - life_s
        row.cases += 1
        in_store += 1
        row.acknowledged += len(acknowledged)
        what = broken(said)
        acknowledged = acknowledged + numbers(said)
        last = in_store == _KILLS_A_STORE or row.cases == count
        if last and not what:
            if kept is not None:
                left = read_files(path)
            what = broken(run_child(partial(_check, path, acknowledged)))
        if what:
            where = f"kill {number}, {mode}"
            if kept is not None:
                image = kept / f"kill-{seed}-{number}"
                write_files(image, left)
                where += f", kept in {image}"
            row.fail(f"{where}: {what}")
        if last or what:
            shutil.rmtree(path, ignore_errors=True)
            acknowledged, in_store = [], 0
        progress(row.name, row.cases, count)
    if not is_frozen:
        gc.unfreeze()
    row.elapsed_s = monotonic_s() - begun
    return row


def _warm_up(path: Path) -> None:
    """Do here once what each writer would do anew: import what an opening imports.

    What there is now is not looked at by the collector of a writer, which would copy its pages.
    """
    with _open(path, "sync") as store:
        put(store, 0)
        check_store(store, [])
    shutil.rmtree(path)
    gc.collect()
    gc.freeze()


def _open(path: Path, mode: str) -> MessageStore:
    return open_for(path, mode, **_SIZES)


def _write(
    path: Path, mode: str, acknowledged: list[int], first: int, rng: random.Random, say: Say
) -> None:
    store = _open(path, mode)
    check_store(store, acknowledged)
    say("checked")
    for number in range(first, first + _PUTS_MAX):
        if put(store, number).durability is not Durability.MEMORY:
            say(str(number))
        if rng.random() < _PAUSES:
            sleep(_PAUSE_S)
    signal.pause()


def _check(path: Path, acknowledged: list[int], say: Say) -> None:
    del say
    with _open(path, "sync") as store:
        check_store(store, acknowledged)
