"""`Disk`: what of a directory is on the disk for certain, and what a power cut may leave of it.

The system calls of the process are watched (`rmqcore.doctor.selftest._system_calls`, preloaded).
What a sync has covered is kept beside the files, as it was when the sync began. Of all else a cut
leaves the old state or the present one, page by page, name by name: a file's pages in any order,
one of ten torn between sectors; names of a directory in any order, but each name's changes in
theirs, and a rename inside a directory as one. A file that has been made keeps nothing without a
sync, and its name comes without its content or not at all.
"""

from __future__ import annotations

import ctypes
import os
import random
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple

from rmqcore.doctor.selftest import _system_calls
from rmqcore.doctor.selftest.workload import PAGE

_SECTOR: Final = 512
_TORN: Final = 0.1
#: The probabilities that what no sync covers is on the disk; each file of a cut draws one.
_SHARES: Final = (0.0, 0.1, 0.5, 0.9, 1.0)
SYNCS: Final = ("msync", "fsync", "fdatasync")
_NAMING: Final = ("rename", "link", "unlink", "mkdir")
_NO_FILE: Final = -1
_BY_NAME: Final = attrgetter("name")


class _File:
    """A file: what is on the disk, and what it had when its last name went."""

    __slots__ = ("last", "synced")

    def __init__(self, synced: bytes = b"") -> None:
        self.synced = bytearray(synced)
        self.last = b""

    def sync(self, content: bytes, at: int, size: int) -> None:
        """From here on the disk has a stretch, and the file's size."""
        if len(self.synced) < size:
            self.synced += bytes(size - len(self.synced))
        self.synced[at : at + len(content)] = content
        del self.synced[size:]

    def cut(self, live: bytes, rng: random.Random) -> bytes:
        """What a cut leaves."""
        share = rng.choice(_SHARES)
        if share == 1.0 or live == self.synced:
            return live
        size = len(live) if rng.random() < share else len(self.synced)
        most = max(len(live), len(self.synced))
        old, new = bytes(self.synced).ljust(most, b"\0"), live.ljust(most, b"\0")
        kept = bytearray(old)
        for at in range(0, most, PAGE):
            page = slice(at, at + PAGE)
            if old[page] == new[page]:
                continue
            if rng.random() < _TORN:
                for sector in range(at, min(at + PAGE, most), _SECTOR):
                    source = rng.choice((old, new))
                    kept[sector : sector + _SECTOR] = source[sector : sector + _SECTOR]
            elif rng.random() < share:
                kept[page] = new[page]
        return bytes(kept[:size].ljust(size, b"\0"))


class _Directory:
    """A directory: the names it has, those it has for certain, and the changes between."""

    __slots__ = ("certain", "listing", "pending")

    def __init__(self) -> None:
        self.listing: dict[str, _File | _Directory] = {}
        self.certain: dict[str, _File | _Directory] = {}
        self.pending: list[dict[str, _File | _Directory | None]] = []

    def note(self, found: dict[str, _File | _Directory]) -> None:
        """Note the names that are there now."""
        gone = {name: one for name, one in self.listing.items() if found.get(name) is not one}
        come = {name: one for name, one in found.items() if self.listing.get(name) is not one}
        for name, one in come.items():
            change: dict[str, _File | _Directory | None] = {name: one}
            for old, other in gone.items():
                if other is one and old not in come:
                    # a rename, which comes to the disk as one
                    change[old] = None
            self.pending.append(change)
        renamed = {name for change in self.pending for name in change}
        for name in gone:
            if name not in come and not (name in renamed and self._is_last_gone(name)):
                self.pending.append({name: None})
        self.listing = found

    def _is_last_gone(self, name: str) -> bool:
        """Whether the last change of a name took it away."""
        last = next(change for change in reversed(self.pending) if name in change)
        return last[name] is None

    def sync(self) -> None:
        """From here on the disk has all names."""
        self.certain = dict(self.listing)
        self.pending.clear()

    def cut(self, rng: random.Random) -> dict[str, _File | _Directory]:
        """The names that a cut leaves."""
        share = rng.choice(_SHARES)
        names, left_out = dict(self.certain), set[str]()
        for change in self.pending:
            if left_out.isdisjoint(change) and rng.random() < share:
                for name, one in change.items():
                    if one is None:
                        names.pop(name, None)
                    else:
                        names[name] = one
            else:
                left_out |= change.keys()
        return names


class Disk:
    """One directory with all below it.

    Attributes:
        path: the directory.
        syncs: how many syncs of it have returned.
        on_sync, on_write: called before each sync, or write, of it is made; None: nobody.
        refuses: the calls that fail now, each with its errno.
        refused: how many calls have failed so.
        ended: whether what is done to the directory counts no more.
    """

    def __init__(self, disks: Disks, path: Path) -> None:
        """Take over a directory that is on the disk as it is."""
        self.path = path
        self.syncs = 0
        self.on_sync: Callable[[], None] | None = None
        self.on_write: Callable[[], None] | None = None
        self.refuses: Mapping[str, int] = {}
        self.refused = 0
        self.ended = False
        self._disks = disks
        self._text = str(path)
        self._root = _Directory()
        self._by_inode: dict[int, _File | _Directory] = {}
        self._scan(self._text, self._root, recurse=True)
        self._adopt(path, self._root)

    def _adopt(self, path: Path, directory: _Directory) -> None:
        directory.sync()
        for name, one in directory.listing.items():
            if isinstance(one, _Directory):
                self._adopt(path / name, one)
            else:
                one.synced = bytearray((path / name).read_bytes())

    # ---- what is there now

    def _scan(self, path: str, directory: _Directory, *, recurse: bool) -> None:
        by_inode = self._by_inode
        by_inode[os.stat(path).st_ino] = directory  # noqa: PTH116 - often called
        found: dict[str, _File | _Directory] = {}
        with os.scandir(path) as entries:
            for entry in sorted(entries, key=_BY_NAME):
                inode = entry.inode()
                one = by_inode.get(inode)
                kind = _Directory if entry.is_dir(follow_symlinks=False) else _File
                new = type(one) is not kind
                if one is None or new:
                    one = by_inode[inode] = kind()
                if (new or recurse) and isinstance(one, _Directory):
                    self._scan(entry.path, one, recurse=True)
                found[entry.name] = one
        directory.note(found)

    def name_changed(self, place: str) -> None:
        """A name has come, or gone, or stands for another file; a path below the directory."""
        path, _, name = place.rpartition("/")
        directory = self._directory(path)
        if directory is not None and not self._is_known(directory, name, place):
            self._scan(path, directory, recurse=False)

    def _is_known(self, directory: _Directory, name: str, place: str) -> bool:
        """Whether a name stands for the file that it stood for before."""
        one = directory.listing.get(name)
        if one is None:
            return False
        try:
            inode = os.stat(place).st_ino  # noqa: PTH116 - often called
        except FileNotFoundError:
            return False
        return self._by_inode.get(inode) is one

    def _directory(self, path: str) -> _Directory | None:
        one: _File | _Directory | None = self._root
        for part in path[len(self._text) + 1 :].split("/"):
            if part:
                one = one.listing.get(part) if isinstance(one, _Directory) else None
        return one if isinstance(one, _Directory) else None

    def name_goes(self, path: str) -> None:
        """A name is about to be taken from a file."""
        with suppress(FileNotFoundError, IsADirectoryError), open(path, "rb") as file:
            one = self._by_inode.get(os.fstat(file.fileno()).st_ino)
            if isinstance(one, _File):
                one.last = file.read()

    # ---- syncs

    def synced(self, inode: int, content: bytes, at: int, size: int) -> None:
        """A stretch of a file is on the disk.

        Args:
            inode: number of the file.
            content: of the whole file, as it is now.
            at: position of the stretch.
            size: bytes of the stretch.
        """
        one = self._by_inode.get(inode)
        if one is None:
            one = self._by_inode[inode] = _File()
        if isinstance(one, _File):
            one.sync(content, at, size)

    def names_synced(self, path: str) -> None:
        """The names of a directory are on the disk."""
        directory = self._directory(path)
        if directory is not None:
            self._scan(path, directory, recurse=False)
            directory.sync()

    # ---- ends

    def cut(self, target: Path, rng: random.Random) -> Disk:
        """Write into a new directory what a power cut leaves; the disk that has it.

        Args:
            target: of the new directory, outside of this one.
            rng: draws which pages and names that were not synced are there.
        """
        self._scan(self._text, self._root, recurse=True)
        live: dict[int, bytes] = {}
        self._read(self.path, self._root, live)
        _write_cut(target, self._root, rng, live)
        return Disk(self._disks, target)

    def _read(self, path: Path, directory: _Directory, live: dict[int, bytes]) -> None:
        for name, one in directory.listing.items():
            if isinstance(one, _Directory):
                self._read(path / name, one, live)
            else:
                live[id(one)] = (path / name).read_bytes()

    def kill(self, target: Path) -> Disk:
        """Write what is there into a new directory, with the same bytes counted as on the disk."""
        self._scan(self._text, self._root, recurse=True)
        shutil.copytree(self.path, target)
        following = Disk.__new__(Disk)
        following.path, following._text, following.syncs = target, str(target), 0
        following.on_sync = following.on_write = None
        following.refuses, following.refused = {}, 0
        following.ended = False
        following._disks, following._root = self._disks, self._root
        following._by_inode = {}
        following._rename(target, self._root)
        return following

    def _rename(self, path: Path, directory: _Directory) -> None:
        self._by_inode[path.stat().st_ino] = directory
        for name, one in directory.listing.items():
            if isinstance(one, _Directory):
                self._rename(path / name, one)
            else:
                self._by_inode[(path / name).stat().st_ino] = one


def _write_cut(
    target: Path, directory: _Directory, rng: random.Random, live: dict[int, bytes]
) -> None:
    target.mkdir(parents=True)
    for name, one in directory.cut(rng).items():
        if isinstance(one, _Directory):
            _write_cut(target / name, one, rng, live)
        else:
            (target / name).write_bytes(one.cut(live.get(id(one), one.last), rng))


class _Region(NamedTuple):
    """Where a file is mapped."""

    disk: Disk
    start: int
    size: int
    offset: int
    inode: int
    path: str
    #: when it was mapped
    size_then: int

    def file_size(self) -> int:
        """The size of the file; that of then when it has got another name since, or none."""
        with suppress(FileNotFoundError):
            status = os.stat(self.path)  # noqa: PTH116 - often called
            if status.st_ino == self.inode:
                return status.st_size
        return self.size_then


def is_watched() -> bool:
    """Whether the system calls of this process can be watched."""
    return _system_calls.__file__ in os.environ.get("LD_PRELOAD", "").split(":")


class Disks:
    """All disks of a cluster: hears of the process's system calls, and tells the one concerned."""

    def __init__(self) -> None:
        self._disks: dict[str, Disk] = {}
        self._regions: dict[int, _Region] = {}
        #: of the call that is being made
        self._path = ""
        #: whether anybody wants to hear of writes, which are many
        self._wanted = False

    def watch_writes(self, disk: Disk, on_write: Callable[[], None] | None) -> None:
        """Call a function before each write of a disk; None: nobody.

        Args:
            disk: of this cluster.
            on_write: gets no arguments; what it raises is raised by the write.
        """
        disk.on_write = on_write
        self._wanted = any(each.on_write is not None for each in self._disks.values())

    def add(self, disk: Disk) -> None:
        """Watch a disk, in place of any other of its directory."""
        self._disks[str(disk.path)] = disk

    def remove(self, disk: Disk) -> None:
        """Watch it no more."""
        disk.ended = True
        self._disks.pop(str(disk.path), None)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Hear of system calls meanwhile."""
        _system_calls.watch(self)
        try:
            yield
        finally:
            _system_calls.watch(None)
            _system_calls.raise_again()

    def _disk_of(self, path: str) -> Disk | None:
        while path:
            disk = self._disks.get(path)
            if disk is not None:
                return disk
            path = path.rpartition("/")[0]
        return None

    # ---- what the system calls tell

    def before(self, call: str, fd: int, at: int, size: int, path: str | None) -> int:
        """Note a call that is about to be made, or refuse it; see `_system_calls.watch`.

        Args:
            call: name of the system call.
            fd: its arguments: a descriptor, or -1.
            at: a position, or an address.
            size: bytes.
            path: its path; None where it has none.

        Returns:
            the ``errno`` with which it fails; 0: it is made.
        """
        del size
        refused = self._refused(call, fd, at, path)
        if refused:
            return refused
        if path is not None:
            if call == "open" and not at & os.O_CREAT:
                return 0
            self._path = _absolute(fd, path)
            if call in ("rename", "unlink"):
                disk = self._disk_of(self._path)
                if disk is not None:
                    disk.name_goes(self._path)
        elif call in SYNCS:
            disk = self._of_region(at) if call == "msync" else self._of_descriptor(fd)
            if disk is not None and not disk.ended and disk.on_sync is not None:
                disk.on_sync()
        elif call == "write" and self._wanted:
            disk = self._of_descriptor(fd)
            if disk is not None and not disk.ended and disk.on_write is not None:
                disk.on_write()
        return 0

    def _refused(self, call: str, fd: int, at: int, path: str | None) -> int:
        """With what a disk that is full, or fails, refuses a call; 0: it does not."""
        for disk in self._disks.values():
            if call in disk.refuses:
                break
        else:
            return 0
        if call == "open" and not at & os.O_CREAT:
            return 0
        found: Disk | None
        if path is not None:
            place = _absolute(fd, path)
            if call == "open" and os.path.exists(place):  # noqa: PTH110 - often called
                return 0
            found = self._disk_of(place)
        else:
            found = self._of_region(at) if call == "msync" else self._of_descriptor(fd)
        if found is None or found.ended or call not in found.refuses:
            return 0
        found.refused += 1
        return found.refuses[call]

    def after(self, call: str, fd: int, at: int, size: int, result: int) -> None:
        """Note what a call has done; see `_system_calls.watch`.

        Args:
            call: name of the system call.
            fd: its arguments: a descriptor, or -1.
            at: a position, flags or an address.
            size: bytes.
            result: what it has returned: for ``mmap`` the address.
        """
        if result == _NO_FILE:
            return
        if call == "mmap":
            self._mapped(fd, at, size, result)
        elif call == "msync":
            self._synced_region(at, size)
        elif call in SYNCS:
            self._synced_file(fd)
        elif call in _NAMING or (call == "open" and at & os.O_CREAT):
            disk = self._disk_of(self._path.rpartition("/")[0])
            if disk is not None:
                disk.name_changed(self._path)

    def _of_descriptor(self, fd: int) -> Disk | None:
        return self._disk_of(_path_of(fd))

    def _of_region(self, at: int) -> Disk | None:
        region = self._region_at(at)
        return None if region is None else region.disk

    def _region_at(self, at: int) -> _Region | None:
        for start, region in self._regions.items():
            if start <= at < start + region.size:
                return region
        return None

    def _mapped(self, fd: int, at: int, size: int, start: int) -> None:
        path = _path_of(fd)
        disk = self._disk_of(path)
        for other, region in list(self._regions.items()):
            if other < start + size and start < other + region.size:
                # it has been unmapped
                del self._regions[other]
        if disk is not None:
            status = os.fstat(fd)
            self._regions[start] = _Region(
                disk, start, size, at, status.st_ino, path, status.st_size
            )

    def _synced_region(self, at: int, size: int) -> None:
        region = self._region_at(at)
        if region is not None and not region.disk.ended:
            content = ctypes.string_at(at, min(size, region.start + region.size - at))
            region.disk.syncs += 1
            # the size of a file goes to the disk with any page of it
            first = region.offset + at - region.start
            region.disk.synced(region.inode, content, first, region.file_size())

    def _synced_file(self, fd: int) -> None:
        disk = self._of_descriptor(fd)
        if disk is None:
            return
        disk.syncs += 1
        status = os.fstat(fd)
        if stat.S_ISDIR(status.st_mode):
            disk.names_synced(_path_of(fd))
            return
        with open(f"/proc/self/fd/{fd}", "rb", buffering=0) as file:
            disk.synced(status.st_ino, file.readall(), 0, status.st_size)


def _absolute(fd: int, path: str) -> str:
    return path if path.startswith("/") or fd < 0 else f"{_path_of(fd)}/{path}"


def _path_of(fd: int) -> str:
    return os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115 - as a text
