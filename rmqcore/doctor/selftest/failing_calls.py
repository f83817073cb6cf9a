"""Each system call of a store fails once, in turn, as a full or a broken disk makes it fail."""

from __future__ import annotations

import errno
import random
import shutil
import threading
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

from rmqcore import Durability, RmqCoreError
from rmqcore.doctor.selftest import _system_calls
from rmqcore.doctor.selftest.children import Say, broken, numbers, run_child
from rmqcore.doctor.selftest.report import Progress, Row
from rmqcore.doctor.selftest.workload import (
    PAGE,
    BrokenPromiseError,
    check_store,
    open_for,
    put,
)
from rmqcore.world import monotonic_s

#: system call -> what it fails with; 0: it writes half of what it was given
FAILURES = {
    "msync": errno.EIO,
    "fsync": errno.EIO,
    "fdatasync": errno.EIO,
    "fallocate": errno.ENOSPC,
    "ftruncate": errno.ENOSPC,
    "mkdir": errno.ENOSPC,
    "write": errno.ENOSPC,
    "short write": 0,
    "mmap": errno.ENOMEM,
    "mlock": errno.ENOMEM,
    "open": errno.EMFILE,
    "link": errno.EIO,
    "rename": errno.EIO,
    "unlink": errno.EIO,
}
_MODES = ("sync", "async", "pool")
_PUTS = 60
#: Log files so small that some are rolled; the other files are small anyhow.
_LOG_FILE: dict[str, Any] = {"mapped_file_size_commit_log": 2 * PAGE}
PROMISE = (
    "a typed error or none; read-only after a failed flush of the log; what was acknowledged is "
    "there; the store opens"
)


class _FailOnce:
    """Counts the calls that concern a directory, and lets one of them fail.

    Attributes:
        seen: how many of each call there were.
        failed: the path of the one that failed; empty as long as none did.
    """

    def __init__(self, directory: Path, call: str = "", number: int = 0) -> None:
        self.seen: Counter[str] = Counter()
        self.failed = ""
        self._directory = str(directory)
        self._regions: dict[int, tuple[int, str]] = {}
        self._call = call
        self._left = number
        self._lock = threading.Lock()

    def before(self, call: str, fd: int, at: int, size: int, path: str | None) -> int:
        """Let the call fail when it is the one."""
        place = path or self._path_of(call, fd, at)
        if not place.startswith(self._directory):
            return 0
        with self._lock:
            for name in (call, f"short {call}") if call == "write" and size > 1 else (call,):
                self.seen[name] += 1
                if name == self._call:
                    self._left -= 1
                    if self._left == 0:
                        self.failed = place
                        return FAILURES[name] or -(size // 2)
        return 0

    @property
    def flush_of_log_failed(self) -> bool:
        """Whether the call that failed was to bring records to the disk."""
        return self._call in ("msync", "fdatasync") and "/commitlog/" in self.failed

    def after(self, call: str, fd: int, at: int, size: int, result: int) -> None:
        """Remember which file is mapped where."""
        del at
        if call == "mmap" and result != -1:
            self._regions[result] = (size, self._path_of(call, fd, 0))

    def _path_of(self, call: str, fd: int, at: int) -> str:
        if call in ("msync", "mlock"):
            for start, (size, path) in reversed(self._regions.items()):
                if start <= at < start + size:
                    return path
            return ""
        return str(Path(f"/proc/self/fd/{fd}").readlink()) if fd >= 0 else ""


def failing_calls(most: int, seed: int, scratch: Path, progress: Progress) -> list[Row]:
    """Let every system call of a short writer fail once; one row a call.

    Args:
        most: cases of one row; where there are more, the seed says which are done.
        seed: gives the same choice again.
        scratch: a directory for the stores.
        progress: called as it goes on.
    """
    rows = []
    seen = {mode: _count(scratch / "store", mode) for mode in _MODES}
    for call, error in FAILURES.items():
        name = f"{call} fails with {errno.errorcode[error]}" if error else call
        row = Row(name, PROMISE)
        begun = monotonic_s()
        cases = [(mode, n) for mode in _MODES for n in range(1, seen[mode][call] + 1)]
        random.Random(f"{seed}/{call}").shuffle(cases)  # noqa: S311 - repeatable
        for mode, number in cases:
            if row.cases == most:
                break
            # how often threads make a call differs: a case whose call does not come is none
            _fail(row, scratch / "store", mode, call, number)
            progress(row.name, row.cases, min(len(cases), most))
        row.elapsed_s = monotonic_s() - begun
        if not row.cases:
            row.skipped = "the store makes no such call here"
        rows.append(row)
    return rows


def _count(path: Path, mode: str) -> Counter[str]:
    said = run_child(partial(_write, path, mode, _FailOnce(path)))
    shutil.rmtree(path)
    if what := broken(said):
        raise BrokenPromiseError(f"without any failure: {what}")
    seen: Counter[str] = Counter()
    for line in said:
        call, tab, count = line.partition("\t")
        if tab:
            seen[call] = int(count)
    return seen


def _fail(row: Row, path: Path, mode: str, call: str, number: int) -> None:
    said = run_child(partial(_write, path, mode, _FailOnce(path, call, number)))
    hit = next((line for line in said if line.startswith("failed at ")), "")
    if hit or broken(said):
        acknowledged = numbers(said)
        row.cases += 1
        # and the message that is put after the store was opened again
        row.acknowledged += len(acknowledged) + 1
        what = broken(said) or broken(run_child(partial(_check, path, acknowledged)))
        if what:
            row.fail(f"{mode}, call {number} {hit}: {what}")
    shutil.rmtree(path, ignore_errors=True)


def _write(path: Path, mode: str, watcher: _FailOnce, say: Say) -> None:
    """Open, put, read, flush, close; go on whatever is refused, as long as it is said in order."""
    _system_calls.watch(watcher)
    try:
        _use(path, mode, watcher, say)
    except (RmqCoreError, OSError):
        if not watcher.failed:
            raise
    finally:
        _system_calls.watch(None)
    _system_calls.raise_again()
    if watcher.failed:
        say(f"failed at {watcher.failed}")
    for call, count in watcher.seen.items():
        say(f"{call}\t{count}")


def _use(path: Path, mode: str, watcher: _FailOnce, say: Say) -> None:
    # what warms files up under SYNC_FLUSH flushes them, too, and none of these flushes is the log's
    warm = {"warm_mapped_file_enable": mode != "sync", "lock_memory_bytes": 1 << 20}
    with open_for(path, mode, **_LOG_FILE, **warm) as store:
        for number in range(_PUTS):
            was_broken = watcher.flush_of_log_failed
            try:
                durability = put(store, number).durability
            except (RmqCoreError, OSError):
                if not watcher.failed:
                    raise
                continue
            if durability is not Durability.MEMORY:
                if was_broken and durability is Durability.DISK:
                    raise BrokenPromiseError(f"{number} acknowledged after a flush has failed")
                say(str(number))
            if number % 20 == 0:
                check_store(store, ())
                store.flush()
        if watcher.flush_of_log_failed and store.why_not_writable() is None:
            raise BrokenPromiseError("a flush of the log has failed, and the store takes puts")


def _check(path: Path, acknowledged: list[int], say: Say) -> None:
    del say
    with open_for(path, "sync", **_LOG_FILE) as store:
        check_store(store, acknowledged)
        put(store, 10 * _PUTS)
    with open_for(path, "sync", **_LOG_FILE) as store:
        check_store(store, [*acknowledged, 10 * _PUTS])
