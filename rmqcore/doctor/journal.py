"""The undo journal of a repair: what was there before, kept on the disk before it is changed.

A repair is a directory ``doctor/NNNN`` below the store:

- ``plan.json``: the plan; the directory appears with it, whole or not at all.
- ``journal.jsonl``: a line of JSON for each thing that was noted, in order, each with its CRC, the
  first one with the plan's. A line is on the disk before what it announces begins.
- ``N.before``: the bytes, the file or the directory that change N has replaced.
- ``N.after``: the bytes that change N writes; what was made to be put into the store, until it is.

Three changes are all there is: `patch` bytes of a file, `set_aside` a file or directory, `place`
one that was made before. Each saves what it is about to replace, notes that, changes, and notes
that it is done. Killed at any moment, the same calls in the same order go on where it was; `undo`
takes the changes back in reverse, and goes on as well.

Both go on only where the store is as the journal has left it: the first note has the stamps of all
files, each change says which it leaves, and of bytes that were being written each is the old one or
the new one. What was put meanwhile would be lost else.

Crash table of a change (what a kill behind each step leaves, and what going on does):

1. evidence is being copied: nothing has changed; it is copied anew
2. the change is noted as saved: it is made; made twice it is the same
3. the change is noted as done: the next one follows
"""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from rmqcore.doctor.kept_files import (
    Stamps,
    below,
    copy_bytes,
    crc_of,
    give_to,
    is_mixed_of,
    move,
    put_bytes,
    remove,
    stamps_below,
    stamps_of,
    write_at,
    write_pieces,
    write_whole,
)
from rmqcore.errors import CorruptStoreError, StoreError
from rmqcore.files.store_dir import (
    REPAIR_FINISHED,
    REPAIR_JOURNAL,
    REPAIRS_NAME,
    StoreDir,
    make_directory,
    room_at,
)
from rmqcore.rebuild.cold_store import sync_tree
from rmqcore.world import sync_directory, sync_fd, sync_file, wall_clock_ms

_PLAN = "plan.json"
_CRC = b', "crc32": "'
_UNFINISHED = "unfinished"
#: A disk writes so many bytes together, or none of them.
_SECTOR: Final = 512

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
        self._notes, self._size = _notes(root / REPAIR_JOURNAL)
        self._saved = {note["change"]: note for note in self._notes if "change" in note}
        self._done = {note["done"] for note in self._notes if "done" in note}
        self._prepared = {note["prepared"] for note in self._notes if "prepared" in note}
        self._steps = {note["step"] for note in self._notes if "step" in note}
        self._next = 0

    # ---- which journals there are

    @classmethod
    def latest(cls, directory: StoreDir) -> Journal | None:
        """The journal of the last repair that was not undone, None without one."""
        root = directory.last_repair()
        return None if root is None else cls(directory, root)

    @classmethod
    def begin(cls, directory: StoreDir, plan: dict[str, Any], lock_before: bytes | None) -> Journal:
        """Make the journal of a new repair.

        Args:
            directory: of the store.
            plan: is kept with it.
            lock_before: what the lock file held; None when it was not there.
        """
        home = directory.path / REPAIRS_NAME
        before = cls.latest(directory)
        number = int(before.root.name) + 1 if before else 1
        fresh = home / _UNFINISHED
        shutil.rmtree(fresh, ignore_errors=True)
        make_directory(fresh)
        with room_at(fresh):
            text = json.dumps(plan, indent=1).encode()
            write_whole(fresh / _PLAN, text)
            log = below(directory.path, directory.commit_log)
            lock = None if lock_before is None else lock_before.hex()
            note = {
                "lock_before": lock,
                "commit_log": log,
                "plan": zlib.crc32(text),
                "stamps": stamps_of(directory),
            }
            write_whole(fresh / REPAIR_JOURNAL, _line(note))
        sync_directory(fresh)
        fresh.rename(home / f"{number:04d}")
        sync_directory(home)
        return cls(directory, home / f"{number:04d}")

    @staticmethod
    def clean_up(directory: StoreDir) -> None:
        """Remove what a kill has left of a journal that was not begun, or was undone."""
        home = directory.path / REPAIRS_NAME
        shutil.rmtree(home / _UNFINISHED, ignore_errors=True)
        with suppress(OSError):
            home.rmdir()

    @property
    def plan(self) -> dict[str, Any]:
        """The plan as it was given to `begin`.

        Raises:
            CorruptStoreError: it is not that any more.
        """
        text = (self.root / _PLAN).read_bytes()
        if zlib.crc32(text) != self._state("plan"):
            raise _rotten(self.root / _PLAN, "it is")
        plan: dict[str, Any] = json.loads(text)
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
            fd = os.open(self.root / REPAIR_JOURNAL, os.O_WRONLY | os.O_CLOEXEC)
            try:
                data = _line(note)
                os.ftruncate(fd, self._size)
                write_at(fd, self._size, data)
                sync_fd(fd)
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
        """Note that the repair came to its end."""
        self._note(json.loads(REPAIR_FINISHED))

    # ---- the three changes

    def patch(
        self, path: Path, start: int, stop: int, size: int, pieces: Iterable[tuple[int, bytes]]
    ) -> None:
        """Write bytes of a file, which is made when it is missing; it keeps its time.

        Args:
            path: the file.
            start: position of the first byte that is replaced.
            stop: position behind the last one.
            size: bytes of the file afterwards.
            pieces: (position, bytes), all between ``start`` and ``stop``; zeros elsewhere.
        """

        def save(name: str) -> dict[str, Any]:
            after = ((at - start, data) for at, data in pieces)
            write_pieces(self._after(name), min(stop, size) - start, after)
            return _save_patch(path, start, stop, size, self._before(name))

        note = self._save(path, "patch", save)
        if note is None:
            return
        put_bytes(path, start, size, self._after(note["change"]), note["time"])
        if note["size"] is None:
            give_to(path.parent, path)
            sync_directory(path.parent)
        self._change_done(note)

    def set_aside(self, path: Path) -> None:
        """Move a file or directory out of the store; nothing when it is not there."""
        note = self._save(path, "take_away", lambda _: {})
        if note is not None:
            move(path, self._before(note["change"]))
            self._change_done(note)

    def prepare(self, make: Callable[[Path], None]) -> Path:
        """Make a file or directory that `place` puts into the store; where it is.

        Args:
            make: makes it at the path that it is given; called again when it was interrupted.
        """
        name = str(self._next)
        self._next += 1
        fresh = self._after(name)
        if name not in self._prepared:
            remove(fresh)
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
        """Put what was prepared in a place; what is there is taken away.

        Args:
            source: what was prepared, below the journal's directory.
            path: where it goes, a file or a directory.
        """
        self.set_aside(path)
        name = str(source.relative_to(self.root))
        note = self._save(path, "place", lambda _: {"source": name, "stamps": stamps_below(source)})
        if note is not None:
            make_directory(path.parent)
            if source.exists():
                give_to(path.parent, source)
            move(source, path)
            self._change_done(note)

    def _save(
        self, path: Path, kind: str, save: Callable[[str], dict[str, Any]]
    ) -> dict[str, Any] | None:
        """Keep what a change replaces, and note that; None when the change was made already."""
        name = str(self._next)
        self._next += 1
        if name in self._done:
            return None
        note = self._saved.get(name)
        if note is None:
            place = below(self._directory.path, path)
            note = {"change": name, "kind": kind, "path": place, **save(name)}
            self._saved[name] = note
            self._note(note)
        return note

    def _change_done(self, note: dict[str, Any]) -> None:
        self._done.add(note["change"])
        self._note({"done": note["change"]})

    def _before(self, name: str) -> Path:
        return self.root / f"{name}.before"

    def _after(self, name: str) -> Path:
        return self.root / f"{name}.after"

    # ---- what was written meanwhile

    def refuse_changed(self) -> None:
        """Raise when the store is not as the journal has left it: what was put would be lost.

        Raises:
            StoreError: it was written to.
            CorruptStoreError: what was replaced is not what was kept any more.
        """
        if "stamps" not in next(iter(self._notes), {}):
            raise StoreError(
                f"{self.root} is the journal of an earlier version, which cannot tell whether the "
                "store was written to since; move it away to keep the store as it is"
            )
        for note in self._not_undone():
            kept = self._before(note["change"])
            if "before_crc" in note and crc_of(kept) != note["before_crc"]:
                raise _rotten(kept, "it is")
        changed = self._changed()
        if changed:
            since = "" if self.finished else " was interrupted"
            raise StoreError(
                f"{changed[0]} has changed since the repair{since} ({len(changed)} files in all): "
                "going on with it, or undoing it, would lose what was written since. Move "
                f"{self.root} away to keep the store as it is, and plan again; what the repair "
                "had replaced by then lies there"
            )

    def _changed(self) -> list[str]:
        """Names of files that are neither as before the change that was begun, nor as behind it."""
        under_way, before = self._left()
        after = dict(before) if under_way is None else _stamps_behind(before, under_way)
        now = stamps_of(self._directory)
        for name, note in self._last_patches().items():
            place = self._directory.path / name
            sources = (self._before(note["change"]), self._after(note["change"]))
            if not place.exists():
                continue
            if not is_mixed_of(place, note["start"], *sources):
                # a file system in memory keeps no time of what is written through a mapping
                now[name] = []
            elif note is under_way:
                now[name] = after[name]
        return sorted(
            name
            for name in now.keys() | before.keys() | after.keys()
            if now.get(name) not in (before.get(name), after.get(name))
        )

    def _last_patches(self) -> dict[str, dict[str, Any]]:
        """The last patch of each file that was not undone, by the file's name."""
        return {note["path"]: note for note in self._not_undone() if note["kind"] == "patch"}

    def _left(self) -> tuple[dict[str, Any] | None, Stamps]:
        """The change that may be under way, and the stamps in front of it."""
        changes = self._not_undone()
        under_way = None
        if changes and (self.undoing or changes[-1]["change"] not in self._done):
            under_way = changes.pop()
        stamps: Stamps = self._state("stamps") or {}
        for note in changes:
            stamps = _stamps_behind(stamps, note)
        return under_way, stamps

    def _not_undone(self) -> list[dict[str, Any]]:
        """The notes of the changes that were made, or begun, in their order."""
        undone = {note["undone"] for note in self._notes if "undone" in note}
        return [note for note in self._in_order() if note["change"] not in undone]

    def _in_order(self) -> list[dict[str, Any]]:
        changes = (note for note in self._notes if "change" in note)
        return sorted(changes, key=lambda note: int(note["change"]))

    # ---- undoing

    def undo(self, progress: Undone | None = None) -> int:
        """Take every change back, in reverse; how many there were.

        Afterwards the journal is gone.
        """
        if not self.undoing:
            self._note({"undoing": True})
        changes = self._in_order()
        undone = {note["undone"] for note in self._notes if "undone" in note}
        for number, note in enumerate(reversed(changes)):
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
        before = self._before(note["change"])
        if note["kind"] == "take_away" and os.path.lexists(before):
            move(before, path)
        elif note["kind"] == "place" and not (self.root / note["source"]).exists():
            move(path, self.root / note["source"])
        elif note["kind"] == "patch" and note["size"] is not None:
            put_bytes(path, note["start"], note["size"], before, note["time"])
        elif note["kind"] == "patch":
            path.unlink(missing_ok=True)
            sync_directory(path.parent)

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
    """Give the lock file what it held before, None for none; locking a store writes into it.

    Args:
        directory: of the store.
        before: the file's bytes; None when there was none.
    """
    path = directory.lock_file
    if before is None:
        path.unlink(missing_ok=True)
        sync_directory(directory.path)
    elif path.read_bytes() != before:
        write_whole(path, before)


def _stamps_behind(stamps: Stamps, note: dict[str, Any]) -> Stamps:
    """The stamps of a store's files behind a change."""
    path = note["path"]
    if note["kind"] == "patch":
        return stamps | {path: [note["size_after"], note["time"]]}
    left = {
        name: stamp
        for name, stamp in stamps.items()
        if name != path and not name.startswith(f"{path}/")
    }
    for name, stamp in note.get("stamps", {}).items():
        left[f"{path}/{name}" if name else path] = stamp
    return left


def _save_patch(path: Path, start: int, stop: int, size: int, before: Path) -> dict[str, Any]:
    """Copy what a patch replaces, and what it cuts off; the facts that undoing it needs."""
    if not path.exists():
        # to the second, which any file system can keep
        now = wall_clock_ms() // 1000 * 1_000_000_000
        return {"size": None, "start": start, "size_after": size, "time": now}
    facts = path.stat()
    if facts.st_size > size:
        stop = facts.st_size
    crc = copy_bytes(path, start, max(start, min(stop, facts.st_size)), before)
    return {
        "before_crc": crc,
        "size": facts.st_size,
        "start": start,
        "size_after": size,
        "time": facts.st_mtime_ns,
    }


def _line(note: dict[str, Any]) -> bytes:
    """A line of the journal."""
    text = json.dumps(note).encode()
    return text[:-1] + _CRC + b'%08x"}\n' % zlib.crc32(text)


def _note_in(line: bytes) -> dict[str, Any]:
    """The note of a line; ValueError when it is not what was written."""
    text, crc, told = line.rpartition(_CRC)
    if crc and told != b'%08x"}' % zlib.crc32(text + b"}"):
        raise ValueError("its checksum is that of another text")
    note: dict[str, Any] = json.loads(text + b"}" if crc else line)
    return note


def _notes(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The notes, and the bytes that they take; a last one that is not whole announced nothing.

    Those of an earlier version have no CRC; `Journal.refuse_changed` refuses them.
    """
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError as error:
        reason = f"the journal of a repair is missing; move {path.parent} away"
        raise CorruptStoreError(path, -1, reason) from error
    if lines and _is_torn(lines[-1]):
        lines.pop()
    notes = []
    for number, line in enumerate(lines):
        try:
            notes.append(_note_in(line))
        except ValueError as error:
            raise _rotten(path, f"line {number + 1} is") from error
        if _CRC not in line and "stamps" in notes[0]:
            raise _rotten(path, f"line {number + 1} is")
    return notes, sum(len(line) + 1 for line in lines)


def _is_torn(line: bytes) -> bool:
    """Whether a power cut has left a line's end, and zeros for a sector in front of it."""
    return line.startswith(b"\0") or bytes(_SECTOR) in line


def _rotten(path: Path, what: str) -> CorruptStoreError:
    reason = (
        f"{what} not what was written, and nothing was changed by it; move {path.parent} away to "
        "keep the store as it is, and plan again; what the repair had replaced lies there"
    )
    return CorruptStoreError(path, -1, reason)
