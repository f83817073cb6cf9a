"""A disk whose power fails: of a page that was not flushed, old or new content is left."""

import os
import stat
import threading
from pathlib import Path

from rmqcore.world import watch_syncs

PAGE = 4096


class FaultDisk:
    """Keeps each file's bytes as of its last sync, page by page; hears of every sync of the world.

    A file goes by its inode, and is held open so that no other gets that number.
    """

    def __init__(self):
        self.flushed, self.held = {}, {}
        self.lock = threading.Lock()
        self.begun = threading.local()
        watch_syncs(self)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        watch_syncs(None)
        for fd in self.held.values():
            os.close(fd)

    def before(self, call, fd, at, size, path):
        """Take what the sync is sure to cover: what is there when it begins."""
        self.begun.sync = None
        path, start = mapped_at(at) if call == "msync" else (f"/proc/self/fd/{fd}", 0)
        if path is None:
            return 0
        reading = os.open(path, os.O_RDONLY)
        facts = os.fstat(reading)
        if stat.S_ISREG(facts.st_mode):
            self.keep(facts.st_ino, reading)
            # whole pages
            stop = -(-(start + size) // PAGE) * PAGE if call == "msync" else facts.st_size
            self.begun.sync = facts.st_ino, os.pread(reading, stop - start, start), start
        os.close(reading)
        return 0

    def after(self, call, fd, at, size, result):
        """Count it as on the disk when the sync did not fail."""
        if result == 0 and self.begun.sync is not None:
            self.note(*self.begun.sync)

    def keep(self, inode, fd):
        with self.lock:
            if inode not in self.held:
                self.held[inode] = os.dup(fd)

    def note(self, inode, data, start):
        with self.lock:
            old = bytearray(self.flushed.get(inode, b"").ljust(start, b"\0"))
            old[start : start + len(data)] = data
            self.flushed[inode] = bytes(old)

    def note_all(self, path):
        """Count everything below a directory as on the disk."""
        for file in path.rglob("*"):
            if file.is_file():
                fd = os.open(file, os.O_RDONLY)
                inode = os.fstat(fd).st_ino
                self.keep(inode, fd)
                os.close(fd)
                data = file.read_bytes()
                self.note(inode, data, 0)

    def cut(self, path, target, rng):
        """Copy a store as the power cut leaves it.

        The lock is held while files are read: no sync returns meanwhile, so none of them says
        that something is on the disk which is not in `flushed`.
        """
        target.mkdir()
        with self.lock:
            flushed, files = dict(self.flushed), snapshot(path)
        for file, found in files.items():
            copy = target / file.relative_to(path)
            if found is None:
                copy.mkdir(parents=True, exist_ok=True)
                continue
            # a queue may have been made between the look at its directory and that at its files
            copy.parent.mkdir(parents=True, exist_ok=True)
            inode, now = found
            old = flushed.get(inode, b"").ljust(len(now), b"\0")[: len(now)]
            if file.name in ("lock", "abort") or file.parent.name == "config":
                old = now
            likely = rng.choice([0.0, 0.1, 0.5, 0.9])
            pages = [
                (now if rng.random() < likely else old)[at : at + PAGE]
                for at in range(0, len(now), PAGE)
            ]
            copy.write_bytes(b"".join(pages))
        self.note_all(target)


def mapped_at(address):
    """(path, offset) of what is mapped at an address; (None, 0) of a file that has been removed."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        area, _, offset, _, inode, *path = line.split(None, 5)
        first, last = (int(number, 16) for number in area.split("-"))
        if first <= address < last:
            return now_at(path[0], int(inode)), int(offset, 16) + address - first
    return None, 0


def now_at(path, inode):
    """Where a mapped file is now: one that was made without a name goes on as a removed one."""
    if not path.endswith(" (deleted)"):
        return path
    with os.scandir(os.path.dirname(path)) as entries:  # noqa: PTH120 - what the kernel says
        return next((entry.path for entry in entries if entry.inode() == inode), None)


def snapshot(path):
    """(inode, bytes) of every file below a directory, None for a directory; of one moment.

    A store's services rename files beside this: what is gone when it is read begins anew.
    """
    while True:
        try:
            files = sorted(path.rglob("*"))
            return {file: None if file.is_dir() else read(file) for file in files}
        except FileNotFoundError:
            continue


def read(file):
    with file.open("rb") as opened:
        return os.fstat(opened.fileno()).st_ino, opened.read()
