"""The undo journal of a repair: what was there before, kept on the disk before it is changed.

A repair is a directory ``doctor/NNNN`` below the store:

- ``plan.json``: the plan; the directory appears with it, whole or not at all.
- ``journal.jsonl``: a line of JSON for each thing that was noted, in order. A line is on the disk
  before what it announces begins.
- ``N.before``: the bytes, the file or the directory that change N has replaced.
- ``N.after``: what was made to be put into the store, until it is.

Three changes are all there is: `patch` bytes of a file, `take_away` a file or directory, `place`
one that was made before. Each saves what it is about to replace, notes that, changes, and notes
that it is done. Killed at any moment, the same calls in the same order go on where it was; `undo`
takes the changes back in reverse, and goes on as well.

Crash table of a change (what a kill behind each step leaves, and what going on does):

1. evidence is being copied: nothing has changed; it is copied anew
2. the change is noted as saved: it is made; made twice it is the same
3. the change is noted as done: the next one follows
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from rmqcore.errors import CorruptStoreError, StoreError
from rmqcore.files.store_dir import StoreDir, make_directory, room_at, sync_directory, sync_file
from rmqcore.rebuild.cold_store import sync_tree

HOME_NAME = "doctor"
_PLAN = "plan.json"
_JOURNAL = "journal.jsonl"
_UNFINISHED = "unfinished"
_NUMBER = re.compile(r"\d{4}")
_BLOCK = 1 << 20
_ZEROS = bytes(_BLOCK)

Undone = Callable[[int, int], None]


class Journal:
    """One repair's journal.

    Args:
        directory: of the store.
        root: the journal's own directory, from `begin` or `latest`.

    Threads: one. The store is locked.
    """

    def __init__(self, directory: StoreDir, root: Path) -> None:
        self._directory = directory
        self.root = root
        self._notes, self._size = _notes(root / _JOURNAL)
        self._saved = {note["change"]: note for note in self._notes if "change" in note}
        self._done = {note["done"] for note in self._notes if "done" in note}
        self._prepared = {note["prepared"] for note in self._notes if "prepared" in note}
        self._steps = {note["step"] for note in self._notes if "step" in note}
        self._next = 0

    # ---- which journals there are

    @classmethod
    def latest(cls, directory: StoreDir) -> Journal | None:
        """The journal of the last repair that was not undone, None without one."""
        home = directory.path / HOME_NAME
        names = [path.name for path in home.iterdir()] if home.is_dir() else []
        numbers = sorted(name for name in names if _NUMBER.fullmatch(name))
        return cls(directory, home / numbers[-1]) if numbers else None

    @classmethod
    def begin(cls, directory: StoreDir, plan: dict[str, Any], lock_before: bytes | None) -> Journal:
        """Make the journal of a new repair.

        Args:
            directory: of the store.
            plan: is kept with it.
            lock_before: what the lock file held; None when it was not there.
        """
        home = directory.path / HOME_NAME
        before = cls.latest(directory)
        number = int(before.root.name) + 1 if before else 1
        fresh = home / _UNFINISHED
        shutil.rmtree(fresh, ignore_errors=True)
        make_directory(fresh)
        with room_at(fresh):
            _write_whole(fresh / _PLAN, json.dumps(plan, indent=1).encode())
            log = below(directory.path, directory.commit_log)
            lock = None if lock_before is None else lock_before.hex()
            note = {"lock_before": lock, "commit_log": log}
            _write_whole(fresh / _JOURNAL, (json.dumps(note) + "\n").encode())
        sync_directory(fresh)
        fresh.rename(home / f"{number:04d}")
        sync_directory(home)
        return cls(directory, home / f"{number:04d}")

    @staticmethod
    def clean_up(directory: StoreDir) -> None:
        """Remove what a kill has left of a journal that was not begun, or was undone."""
        home = directory.path / HOME_NAME
        shutil.rmtree(home / _UNFINISHED, ignore_errors=True)
        with suppress(OSError):
            home.rmdir()

    @property
    def plan(self) -> dict[str, Any]:
        """The plan as it was given to `begin`."""
        plan: dict[str, Any] = json.loads((self.root / _PLAN).read_text("utf-8"))
        return plan

    @property
    def commit_log(self) -> Path:
        """The directory of the log that was repaired."""
        return self._directory.path / (self._state("commit_log") or self._directory.commit_log)

    @property
    def finished(self) -> bool:
        """True when the repair came to its end."""
        return self._state("finished") is not None

    @property
    def undoing(self) -> bool:
        """True when it is being undone."""
        return self._state("undoing") is not None

    def _state(self, name: str) -> Any:
        return next((note[name] for note in self._notes if name in note), None)

    # ---- noting

    def _note(self, note: dict[str, Any]) -> None:
        with room_at(self.root):
            fd = os.open(self.root / _JOURNAL, os.O_WRONLY | os.O_CLOEXEC)
            try:
                data = (json.dumps(note) + "\n").encode()
                os.ftruncate(fd, self._size)
                _write_at(fd, self._size, data)
                os.fsync(fd)
                self._size += len(data)
            finally:
                os.close(fd)
        self._notes.append(note)

    def step_is_done(self, step: int) -> bool:
        """True when every change of a step was made."""
        return step in self._steps

    def note_step(self, step: int) -> None:
        """Note that every change of a step was made."""
        self._steps.add(step)
        self._note({"step": step})

    def go_to(self, step: int) -> None:
        """Begin a step, or begin it again."""
        self._next = step * 1000

    def finish(self) -> None:
        """Note that the repair came to its end, and how the store looked then."""
        self._note({"finished": stamps_of(self._directory)})

    # ---- the three changes

    def patch(
        self, path: Path, start: int, stop: int, size: int, pieces: Iterable[tuple[int, bytes]]
    ) -> None:
        """Write bytes of a file, which is made when it is missing; it keeps its time.

        Args:
            path: the file.
            start: position of the first byte that is replaced.
            stop: position behind the last one; up to the file's end, zeros where no piece is.
            size: bytes of the file afterwards.
            pieces: (position, bytes), all between ``start`` and ``stop``.
        """
        note = self._save(
            path, "patch", lambda before: _save_patch(path, start, stop, size, before)
        )
        if note is None:
            return
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if note["size"] is None:
                give_to(path.parent, path)
            with room_at(path):
                if stop >= size:
                    os.ftruncate(fd, start)
                os.ftruncate(fd, size)
                for position, data in pieces:
                    _write_at(fd, position, data)
                os.fsync(fd)
        finally:
            os.close(fd)
        self._keep_time(path, note)
        self._change_done(note)

    def take_away(self, path: Path) -> None:
        """Move a file or directory out of the store."""
        if not os.path.lexists(path) and f"{self._next}" not in self._saved:
            self._next += 1
            return
        note = self._save(path, "take_away", lambda _: {})
        if note is not None:
            _move(path, self.root / f"{note['change']}.before")
            self._change_done(note)

    def prepare(self, make: Callable[[Path], None]) -> Path:
        """Make a file or directory that `place` puts into the store; where it is.

        Args:
            make: makes it at the path that it is given; called again when it was interrupted.
        """
        name = str(self._next)
        self._next += 1
        fresh = self.root / f"{name}.after"
        if name not in self._prepared:
            _remove(fresh)
            make(fresh)
            if fresh.is_dir():
                sync_tree(fresh)
            else:
                sync_file(fresh)
            sync_directory(self.root)
            self._prepared.add(name)
            self._note({"prepared": name})
        return fresh

    def place(self, source: Path, path: Path) -> None:
        """Put what was prepared in a place; what is there is taken away."""
        self.take_away(path)
        name = str(source.relative_to(self.root))
        note = self._save(path, "place", lambda _: {"source": name})
        if note is not None:
            make_directory(path.parent)
            if source.exists():
                give_to(path.parent, source)
            _move(source, path)
            self._change_done(note)

    def _save(
        self, path: Path, kind: str, save: Callable[[Path], dict[str, Any]]
    ) -> dict[str, Any] | None:
        """Keep what a change replaces, and note that; None when the change was made already."""
        name = str(self._next)
        self._next += 1
        if name in self._done:
            return None
        note = self._saved.get(name)
        if note is None:
            facts = save(self.root / f"{name}.before")
            note = {
                "change": name,
                "kind": kind,
                "path": below(self._directory.path, path),
                **facts,
            }
            self._saved[name] = note
            self._note(note)
        return note

    def _change_done(self, note: dict[str, Any]) -> None:
        self._done.add(note["change"])
        self._note({"done": note["change"]})

    def _keep_time(self, path: Path, note: dict[str, Any]) -> None:
        """RocketMQ deletes a log file by the time of its last change."""
        if note["size"] is None:
            sync_directory(path.parent)
        else:
            os.utime(path, ns=(note["time"], note["time"]))

    # ---- undoing

    def refuse_undo_of_new(self) -> None:
        """Raise when the store was written to since the repair: that would be lost.

        Raises:
            StoreError: it was.
        """
        stamps = self._state("finished")
        if stamps is None or self.undoing:
            return
        now = stamps_of(self._directory)
        changed = sorted(name for name in stamps.keys() | now if stamps.get(name) != now.get(name))
        if changed:
            raise StoreError(
                f"{changed[0]} has changed since the repair ({len(changed)} files in all): undoing "
                f"would lose what was written since. Remove {self.root} to keep the store as it is"
            )

    def undo(self, progress: Undone | None = None) -> int:
        """Take every change back, in reverse; how many there were.

        Afterwards the journal is gone.
        """
        if not self.undoing:
            self._note({"undoing": True})
        changes = [note for note in self._notes if "change" in note]
        undone = {note["undone"] for note in self._notes if "undone" in note}
        for number, note in enumerate(sorted(changes, key=lambda n: -int(n["change"]))):
            if note["change"] not in undone:
                self._undo_change(note)
                self._note({"undone": note["change"]})
            if progress is not None:
                progress(number + 1, len(changes))
        lock = self._state("lock_before")
        put_back_lock(self._directory, None if lock is None else bytes.fromhex(lock))
        self._remove()
        return len(changes)

    def _undo_change(self, note: dict[str, Any]) -> None:
        path = self._directory.path / note["path"]
        before = self.root / f"{note['change']}.before"
        if note["kind"] == "take_away" and os.path.lexists(before):
            _move(before, path)
        elif note["kind"] == "place" and not (self.root / note["source"]).exists():
            _move(path, self.root / note["source"])
        elif note["kind"] == "patch":
            self._undo_patch(path, note, before)

    @staticmethod
    def _undo_patch(path: Path, note: dict[str, Any], before: Path) -> None:
        if note["size"] is None:
            path.unlink(missing_ok=True)
            sync_directory(path.parent)
            return
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            with room_at(path):
                if note["stop"] >= note["size"]:
                    os.ftruncate(fd, note["start"])
                os.ftruncate(fd, note["size"])
                for at, data in _blocks(before):
                    if os.pread(fd, len(data), note["start"] + at) != data:
                        _write_at(fd, note["start"] + at, data)
                os.fsync(fd)
        finally:
            os.close(fd)
        os.utime(path, ns=(note["time"], note["time"]))

    def _remove(self) -> None:
        home = self.root.parent
        gone = home / _UNFINISHED
        shutil.rmtree(gone, ignore_errors=True)
        self.root.rename(gone)
        sync_directory(home)
        shutil.rmtree(gone)
        with suppress(OSError):
            # other repairs may be noted there
            home.rmdir()


def put_back_lock(directory: StoreDir, before: bytes | None) -> None:
    """Give the lock file what it held before, None for none; locking a store writes into it."""
    path = directory.lock_file
    if before is None:
        path.unlink(missing_ok=True)
        sync_directory(directory.path)
    elif path.read_bytes() != before:
        _write_whole(path, before)


def below(root: Path, path: Path) -> str:
    """A path as it is kept: that below the store, so that a store may be moved; else absolute."""
    with suppress(ValueError):
        return str(path.relative_to(root))
    return str(path.absolute())


def _notes(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The notes, and the bytes that they take; a last one that is not whole announced nothing."""
    lines = path.read_bytes().split(b"\n")[:-1]
    notes = []
    for number, line in enumerate(lines):
        try:
            notes.append(json.loads(line))
        except ValueError as error:
            raise CorruptStoreError(path, -1, f"line {number + 1}: {error}") from error
    return notes, sum(len(line) + 1 for line in lines)


def stamps_of(directory: StoreDir) -> dict[str, list[int]]:
    """Bytes and time of each file of a store, but for its lock, its trace and the journals."""
    stamps = {}
    passed_over = (directory.lock_file, directory.trace)
    for root in {directory.path, directory.commit_log}:
        for parent, folders, names in os.walk(root):
            if Path(parent) == directory.path:
                folders[:] = [name for name in folders if name != HOME_NAME]
            for name in names:
                path = Path(parent) / name
                if path not in passed_over and path.exists():
                    facts = path.stat()
                    stamps[below(directory.path, path)] = [facts.st_size, facts.st_mtime_ns]
    return stamps


def _write_whole(path: Path, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        _write_at(fd, 0, data)
        os.fsync(fd)
    finally:
        os.close(fd)


def _write_at(fd: int, position: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        count = os.pwrite(fd, view, position)
        position, view = position + count, view[count:]


def _blocks(path: Path) -> Iterator[tuple[int, bytes]]:
    with path.open("rb", buffering=0) as stream:
        at = 0
        while data := os.pread(stream.fileno(), _BLOCK, at):
            yield at, data
            at += len(data)


def _copy_bytes(path: Path, start: int, stop: int, target: Path) -> None:
    """Copy a part of a file; long zeros stay holes."""
    out = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        with room_at(target), path.open("rb", buffering=0) as stream:
            os.ftruncate(out, stop - start)
            for at in range(start, stop, _BLOCK):
                data = os.pread(stream.fileno(), min(_BLOCK, stop - at), at)
                if data != _ZEROS[: len(data)]:
                    _write_at(out, at - start, data)
            os.fsync(out)
    finally:
        os.close(out)
    sync_directory(target.parent)


def _move(source: Path, target: Path) -> None:
    """Move a file or directory, also to another disk; done before, it stays done."""
    if os.path.lexists(source):
        try:
            source.rename(target)
        except OSError:
            if source.is_dir() or source.stat().st_dev == target.parent.stat().st_dev:
                raise
            part = target.with_name(target.name + ".part")
            shutil.copy2(source, part)
            give_to(source, part)
            sync_file(part)
            part.rename(target)
            sync_directory(target.parent)
            source.unlink()
        sync_directory(source.parent)
        sync_directory(target.parent)


def give_to(example: Path, path: Path) -> None:
    """Make what root has made another's, so that a broker can open it; with all that is below.

    Args:
        example: whose owner and group it gets.
        path: the file or directory.
    """
    if os.geteuid() == 0:
        owner = example.stat()
        for one in (path, *path.rglob("*")):
            os.chown(one, owner.st_uid, owner.st_gid)


def _save_patch(path: Path, start: int, stop: int, size: int, before: Path) -> dict[str, Any]:
    """Copy what a patch replaces, and what it cuts off; the facts that undoing it needs."""
    if not path.exists():
        return {"size": None}
    facts = path.stat()
    if facts.st_size > size:
        stop = facts.st_size
    stop = max(start, min(stop, facts.st_size))
    _copy_bytes(path, start, stop, before)
    return {"size": facts.st_size, "start": start, "stop": stop, "time": facts.st_mtime_ns}


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
