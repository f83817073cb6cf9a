"""What a disk may hold after a power cut: a log of a store's pages, names and flushes.

The system calls of the process are watched. Before each flush, and whenever a message is
acknowledged, the pages and names that have changed are noted; when a flush returns, what it covered
is on the disk. A cut takes a moment of this log: of everything that no flush covered, any state
that it had since may be on the disk or not, page by page and directory by directory, in any order.
Of a torn page the sectors come from two states.
"""

from __future__ import annotations

import os
import random
import stat
import threading
from bisect import bisect_right
from pathlib import Path
from typing import Generic, TypeVar

from rmqcore.doctor.selftest import _system_calls
from rmqcore.doctor.selftest.workload import PAGE

_SECTOR = 512
#: how often a page that is cut between two states is torn
_TORN = 0.1
#: how likely it is that what no flush covered is on the disk; one of them for each file of a cut
_SHARES = (0.0, 0.1, 0.5, 0.9, 1.0)
_ZEROS = bytes(PAGE)
_FLUSHES = ("msync", "fsync", "fdatasync")
State = TypeVar("State")


class _History(Generic[State]):
    """The states that something had, each from a moment on, and which the disk has for certain."""

    def __init__(self, at_first: State) -> None:
        self.since = [-1]
        self.states = [at_first]
        self.flushed_at = [-1]
        self.flushed = [0]

    def note(self, moment: int, state: State) -> None:
        """Note a state, when it is another one."""
        if state != self.states[-1]:
            self.since.append(moment)
            self.states.append(state)

    def flush(self, begun: int, done: int) -> None:
        """From ``done`` on the disk has the state of ``begun``, or a later one."""
        index = bisect_right(self.since, begun) - 1
        if index > self.flushed[-1]:
            self.flushed_at.append(done)
            self.flushed.append(index)

    def possible(self, moment: int) -> list[State]:
        """What the disk may have at a moment, oldest first; the first is certain to be reached."""
        first = self.flushed[bisect_right(self.flushed_at, moment) - 1]
        return self.states[first : bisect_right(self.since, moment)]

    def choose(self, moment: int, share: float, rng: random.Random) -> State:
        """What the disk has after a cut at a moment."""
        states = self.possible(moment)
        return rng.choice(states[1:]) if len(states) > 1 and rng.random() < share else states[0]


class _File:
    """A file's pages and size."""

    def __init__(self) -> None:
        self.content = b""
        self.size: _History[int] = _History(0)
        self.pages: list[_History[bytes]] = []

    def note(self, moment: int, content: bytes) -> None:
        if content == self.content:
            return
        self.size.note(moment, len(content))
        while len(self.pages) * PAGE < len(content):
            self.pages.append(_History(_ZEROS))
        for index, page in enumerate(self.pages):
            page.note(moment, content[index * PAGE : (index + 1) * PAGE].ljust(PAGE, b"\0"))
        self.content = content

    def flush(self, begun: int, done: int, first: int = 0, stop: int | None = None) -> None:
        self.size.flush(begun, done)
        for page in self.pages[first:stop]:
            page.flush(begun, done)

    def cut(self, moment: int, rng: random.Random) -> bytes:
        share = rng.choice(_SHARES)
        data = bytearray()
        for page in self.pages:
            chosen = page.choose(moment, share, rng)
            if rng.random() < _TORN:
                other = rng.choice(page.possible(moment))
                chosen = b"".join(
                    rng.choice((chosen, other))[at : at + _SECTOR] for at in range(0, PAGE, _SECTOR)
                )
            data += chosen
        size = self.size.choose(moment, share, rng)
        return bytes(data[:size].ljust(size, b"\0"))


class BlockLog:
    """The pages, names and flushes of one directory while a store in it is used.

    Attributes:
        now: the present moment; the log's first is 0.

    Threads: any.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.now = 0
        self._lock = threading.Lock()
        self._begun = threading.local()
        self._by_inode: dict[int, _File | _Directory] = {}
        self._regions: dict[int, tuple[int, int, int]] = {}
        self._root = _Directory()
        self._observe()
        for one in self._by_inode.values():
            one.flush(self.now, self.now)

    def before(self, call: str, fd: int, at: int, size: int, path: str | None) -> int:
        """Note what a flush will cover."""
        del fd, at, size, path
        if call in _FLUSHES:
            with self._lock:
                self._begun.moment = self._observe()
        return 0

    def after(self, call: str, fd: int, at: int, size: int, result: int) -> None:
        """Note what a flush has covered, and what another call has changed."""
        with self._lock:
            if call == "mmap":
                self._regions[result] = (size, os.fstat(fd).st_ino, at)
            elif call not in _FLUSHES:
                self._observe()
            elif result == 0:
                self.now += 1
                begun = self._begun.moment
                if call == "msync":
                    self._flush_region(at, size, begun)
                elif (one := self._by_inode.get(os.fstat(fd).st_ino)) is not None:
                    one.flush(begun, self.now)

    def acknowledged(self) -> int:
        """Note the present state; return its moment."""
        _system_calls.keep_quiet(True)
        try:
            with self._lock:
                return self._observe()
        finally:
            _system_calls.keep_quiet(False)

    def cut(self, target: Path, moment: int, rng: random.Random) -> None:
        """Write into a new directory what the disk has after a cut at a moment."""
        self._root.cut(target, moment, rng)

    def _flush_region(self, at: int, size: int, begun: int) -> None:
        for start, (length, inode, offset) in self._regions.items():
            if start <= at < start + length:
                one = self._by_inode.get(inode)
                first = offset + at - start
                if isinstance(one, _File):
                    one.flush(begun, self.now, first // PAGE, -(-(first + size) // PAGE))

    def _observe(self) -> int:
        self.now += 1
        seen: dict[int, _File | _Directory] = {}
        self._observe_directory(self.path, self._root, seen)
        self._by_inode = seen
        return self.now

    def _observe_directory(
        self, path: Path, directory: _Directory, seen: dict[int, _File | _Directory]
    ) -> None:
        try:
            entry = path.stat()
            names = sorted(os.listdir(path))  # noqa: PTH208 - names, for their speed
        except FileNotFoundError:
            return
        seen[entry.st_ino] = directory
        listing: dict[str, _File | _Directory] = {}
        for name in names:
            place = path / name
            try:
                status = place.stat()
                content = b"" if stat.S_ISDIR(status.st_mode) else place.read_bytes()
            except FileNotFoundError:
                continue
            kind = _Directory if stat.S_ISDIR(status.st_mode) else _File
            one = seen.get(status.st_ino) or self._by_inode.get(status.st_ino)
            if not isinstance(one, kind):
                one = kind()
            listing[name] = one
            seen[status.st_ino] = one
            if isinstance(one, _File):
                one.note(self.now, content)
            else:
                self._observe_directory(place, one, seen)
        directory.listing.note(self.now, listing)


class _Directory:
    """What names a directory has."""

    def __init__(self) -> None:
        self.listing: _History[dict[str, _File | _Directory]] = _History({})

    def flush(self, begun: int, done: int) -> None:
        self.listing.flush(begun, done)

    def cut(self, target: Path, moment: int, rng: random.Random) -> None:
        target.mkdir()
        listing = self.listing.choose(moment, rng.choice(_SHARES), rng)
        for name, one in listing.items():
            if isinstance(one, _Directory):
                one.cut(target / name, moment, rng)
            else:
                (target / name).write_bytes(one.cut(moment, rng))
