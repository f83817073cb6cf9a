"""Runs the self-tests, each kind in a process of its own, several side by side."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from rmqcore.chance import randrange
from rmqcore.doctor.selftest import _system_calls
from rmqcore.doctor.selftest.children import signal_name, worker
from rmqcore.doctor.selftest.mounted import FILE_SYSTEMS
from rmqcore.doctor.selftest.report import Progress, Row, SelfTestReport
from rmqcore.doctor.selftest.workload import MODES
from rmqcore.files.store_dir import StoreDir

#: a kind of test and its arguments, as the worker gets them
Task = dict[str, object]
_MEMORY = Path("/dev/shm")  # noqa: S108 - a file system in memory, in which a new directory is made
_SEED_BITS = 32
#: The system calls of these tasks are watched.
_WATCHED = ("power_cuts", "failing_calls")


def crash(
    *,
    cuts: int = 1000,
    kills: int = 200,
    mounted: int = 12,
    seed: int | None = None,
    jobs: int = 1,
    keep: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> SelfTestReport:
    """Cut the power of writers, and kill others.

    Args:
        cuts: power cuts that are replayed from a log of pages, in all modes together.
        kills: writers that are killed with SIGKILL.
        mounted: cuts of each file system that is mounted from an image; needs root.
        seed: gives the same random choices again; None chooses one.
        jobs: processes that work side by side.
        keep: a directory for stores that broke a promise, as the cut or the kill left them.
        progress: called as it goes on, from any thread.

    Raises:
        OSError: this is no Linux.
    """
    seed = _chosen(seed)
    modes = list(MODES)
    tasks: list[Task] = []
    for number, mode in enumerate(modes):
        share = cuts // len(modes) + (number < cuts % len(modes))
        tasks.append({"task": "power_cuts", "mode": mode, "cuts": share, "keep": _text(keep)})
    for part in range(jobs):
        first, end = kills * part // jobs, kills * (part + 1) // jobs
        count = end - first
        tasks.append(
            {"task": "kills", "part": part, "first": first, "count": count, "keep": _text(keep)}
        )
    tasks += [{"task": "mounted", "file_system": name, "cuts": mounted} for name in FILE_SYSTEMS]
    wanted = [task for task in tasks if task.get("cuts") or task.get("count")]
    return _run(wanted, seed, jobs, progress)


def faults(
    *,
    most: int = 200,
    seed: int | None = None,
    jobs: int = 1,
    store: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> SelfTestReport:
    """Let each system call of a store fail once; flip each byte; cut each file at each length.

    Args:
        most: cases of each row; where there are more, the seed says which are done.
        seed: gives the same choice again; None chooses one.
        jobs: processes that work side by side.
        store: a store of a few KB, copies of which are damaged; no system call fails then. None
            makes one.
        progress: called as it goes on, from any thread.

    Raises:
        OSError: this is no Linux.
        StoreNotFoundError: ``store`` is no store.
    """
    tasks: list[Task] = []
    if store is None:
        tasks.append({"task": "failing_calls", "most": most})
    else:
        StoreDir(store).require()
    for part in range(jobs):
        damage = {"task": "damage", "most": most, "part": part, "parts": jobs}
        tasks.append(damage | {"store": _text(store)})
    return _run(tasks, _chosen(seed), jobs, progress)


def _chosen(seed: int | None) -> int:
    return randrange(1 << _SEED_BITS) if seed is None else seed


def _text(path: str | os.PathLike[str] | None) -> str | None:
    return None if path is None else os.fspath(Path(path).resolve())


def _run(tasks: list[Task], seed: int, jobs: int, progress: Progress | None) -> SelfTestReport:
    if sys.platform != "linux":
        raise OSError(errno.ENOTSUP, "the self-tests watch system calls, which needs Linux")
    with ThreadPoolExecutor(jobs) as pool:
        rows = pool.map(partial(_run_task, seed=seed, progress=progress), tasks)
        return SelfTestReport(seed, _merged(row for some in rows for row in some))


def _merged(rows: Iterable[Row]) -> list[Row]:
    """One row of each name: parts that were done side by side are added up."""
    merged: dict[str, Row] = {}
    for row in rows:
        if row.name in merged:
            merged[row.name].add(row)
        else:
            merged[row.name] = row
    return list(merged.values())


def _run_task(task: Task, *, seed: int, progress: Progress | None) -> list[Row]:
    """Run one worker; a worker that dies is a failure of what it did."""
    in_memory = task["task"] != "mounted" and _MEMORY.is_dir()
    # a program that a watched process starts inherits the watching library, which needs Python:
    # tasks that start programs are not watched
    watched = _system_calls.preload() if task["task"] in _WATCHED else {}
    with tempfile.TemporaryDirectory(
        prefix="rmqcore-selftest-", dir=_MEMORY if in_memory else None, ignore_cleanup_errors=True
    ) as scratch:
        words = json.dumps(task | {"seed": seed, "scratch": scratch})
        with worker("rmqcore.doctor.selftest.worker", words, watched) as process:
            rows = _follow(process, progress, part=task.get("part"))
    if rows is None:
        name = " ".join(
            str(task[key]) for key in ("task", "mode", "file_system", "part") if key in task
        )
        row = Row(name, "the process that does it lives", cases=1)
        row.fail(f"it ended with {process.returncode} ({signal_name(process.returncode)})")
        return [row]
    return rows


def _follow(
    process: subprocess.Popen[str], progress: Progress | None, part: object
) -> list[Row] | None:
    rows = None
    for line in process.stdout or ():
        said = json.loads(line)
        if "rows" in said:
            rows = [Row(**row) for row in said["rows"]]
        elif progress is not None:
            name, done, total = said["progress"]
            progress(f"{name}, part {part}" if part else name, done, total)
    return rows
