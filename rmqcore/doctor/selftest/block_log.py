"""What a disk may hold after a power cut: a log of a store's pages, names and flushes.

The system calls of the process are watched. When a flush begins, when it ends, and whenever its
user asks, the pages and names that have changed are noted; when a flush returns, what it covered is
on the disk: what was there when it began, and nothing that was stored beside it. A cut takes a
moment of this log: of everything that no flush covered, any state that it had since may be on the
disk or not, page by page and directory by directory, in any order. Of a torn page the sectors come
from two states. A kill takes nothing: whoever comes next goes on with what is there, and the disk
has no more of it than before.
"""

from __future__ import annotations

import os
import random
import shutil
import stat
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Generic, TypeVar

from rmqcore.doctor.selftest import _system_calls
from rmqcore.doctor.selftest.workload import PAGE
from rmqcore.world import sleep

_SECTOR = 512
#: The probability that a page which is cut between two states is torn.
_TORN = 0.1
#: The probabilities that what no flush covered is on the disk; each file of a cut draws one.
_SHARES = (0.0, 0.1, 0.5, 0.9, 1.0)
_ZEROS = bytes(PAGE)
_FLUSHES = ("msync", "fsync", "fdatasync")
#: A directory in which nothing changes for this long counts as being at rest.
_REST_S = 0.002
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

    def forget_after(self, moment: int) -> None:
        """Nothing has happened since a moment."""
        kept = bisect_right(self.since, moment)
        del self.since[kept:], self.states[kept:]
        kept = bisect_right(self.flushed_at, moment)
        del self.flushed_at[kept:], self.flushed[kept:]

    def possible(self, moment: int) -> list[State]:
        """What the disk may have at a moment, oldest first; the first is certain to be reached."""
        first = self.flushed[bisect_right(self.flushed_at, moment) - 1]
        return self.states[first : bisect_right(self.since, moment)]

    def at(self, moment: int) -> State:
        """The state at a moment."""
        return self.states[bisect_right(self.since, moment) - 1]

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

    @property
    def changed_last(self) -> int:
        return max(self.size.since[-1], *(page.since[-1] for page in self.pages), -1)

    def forget_after(self, moment: int) -> None:
        self.size.forget_after(moment)
        for page in self.pages:
            page.forget_after(moment)
        size = self.size.states[-1]
        self.content = b"".join(page.states[-1] for page in self.pages)[:size].ljust(size, b"\0")

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
        beside: called when a flush has begun, of which it then is no part; None calls nobody.

    Threads: any.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.now = 0
        self.beside: Callable[[], None] | None = None
        self._lock = threading.Lock()
        self._begun = threading.local()
        #: when each flush of a directory began, and when it returned
        self._names: list[tuple[int, int]] = []
        #: moments at which a flush has returned
        self._flushed_at: list[int] = []
        self._flushes_go_on = threading.Event()
        self._flushes_go_on.set()
        self._by_inode: dict[int, _File | _Directory] = {}
        self._regions: dict[int, tuple[int, int, int]] = {}
        self._root = _Directory()
        self._observe()
        for one in self._by_inode.values():
            one.flush(self.now, self.now)

    def before(self, call: str, fd: int, at: int, size: int, path: str | None) -> int:
        """Note what a flush will cover.

        Args:
            call: name of the system call.
            fd: its arguments: a descriptor, or -1.
            at: a position, or an address.
            size: bytes.
            path: its path; None where it has none.

        Returns:
            0: the call is made.
        """
        del fd, at, size, path
        if call in _FLUSHES:
            self._flushes_go_on.wait()
            with self._lock:
                self._begun.moment = self._observe()
            beside = self.beside
            if beside is not None:
                beside()
        return 0

    def after(self, call: str, fd: int, at: int, size: int, result: int) -> None:
        """Note what a flush has covered, and what it or another call has changed.

        Args:
            call: name of the system call.
            fd: its arguments: a descriptor, or -1.
            at: a position, or an address.
            size: bytes.
            result: what it has returned: for ``mmap`` the address.
        """
        with self._lock:
            if call == "mmap":
                self._note_region(result, size, os.fstat(fd).st_ino, at)
                return
            done = self._observe()
            if call in _FLUSHES and result == 0:
                begun = self._begun.moment
                self._flushed_at.append(done)
                if call == "msync":
                    self._flush_region(at, size, begun, done)
                elif (one := self._by_inode.get(os.fstat(fd).st_ino)) is not None:
                    one.flush(begun, done)
                    if isinstance(one, _Directory):
                        self._names.append((begun, done))

    def observe(self) -> int:
        """Note the present state; return its moment."""
        _system_calls.keep_quiet(True)
        try:
            with self._lock:
                return self._observe()
        finally:
            _system_calls.keep_quiet(False)

    # ---- kills

    def block_flushes(self) -> None:
        """From now on no flush begins, as none does of a process that is about to be killed."""
        self._flushes_go_on.clear()

    def at_rest(self) -> int:
        """Wait until nothing changes any more; returns a moment at which nothing did."""
        moment, before = self.observe(), -1
        while before != self._changed_last():
            before = self._changed_last()
            sleep(_REST_S)
            moment = self.observe()
        return moment

    def _changed_last(self) -> int:
        """The last moment at which something was seen to be another than before."""
        return max(one.changed_last for one in self._everything())

    def kill(self, moment: int) -> None:
        """Leave the directory as it was at a moment at rest, as if its user had died then.

        He must have ended, and be watched no more. What he did since is undone, and forgotten.
        """
        for one in list(self._everything()):
            one.forget_after(moment)
        self.now = moment
        self._flushed_at = [one for one in self._flushed_at if one <= moment]
        self._names = [one for one in self._names if one[1] <= moment]
        self._regions.clear()
        self._root.restore(self.path)
        self._flushes_go_on.set()
        self._by_inode = dict(self._root.inodes(self.path))

    def let_flushes_go_on(self) -> None:
        """Undo `block_flushes`."""
        self._flushes_go_on.set()

    def _everything(self) -> Iterator[_File | _Directory]:
        return self._root.everything({})

    # ---- power cuts

    def any_moment(self, rng: random.Random) -> int:
        """A moment for a cut: half of them just before a flush returns, when most is at stake."""
        if self._flushed_at and rng.random() < 0.5:
            return max(1, rng.choice(self._flushed_at) - 1)
        return rng.randint(1, self.now)

    def cut(
        self, target: Path, moment: int, rng: random.Random, *, names_in_order: bool = False
    ) -> None:
        """Write into a new directory what the disk has after a cut at a moment.

        Args:
            target: the directory.
            moment: when.
            rng: decides what is there.
            names_in_order: names come to the disk in the order in which they were changed, as with
                a journal; else each directory for itself, and a file that was moved from one to
                another may be in both or in none.
        """
        names_at = None
        if names_in_order:
            certain = max((begun for begun, done in self._names if done <= moment), default=1)
            names_at = rng.randint(certain, moment)
        self._root.cut(target, moment, rng, names_at)

    def _note_region(self, start: int, size: int, inode: int, offset: int) -> None:
        for other, (length, _, _) in list(self._regions.items()):
            if other < start + size and start < other + length:
                # it has been unmapped
                del self._regions[other]
        self._regions[start] = (size, inode, offset)

    def _flush_region(self, at: int, size: int, begun: int, done: int) -> None:
        for start, (length, inode, offset) in self._regions.items():
            if start <= at < start + length:
                one = self._by_inode.get(inode)
                first = offset + at - start
                if isinstance(one, _File):
                    one.flush(begun, done, first // PAGE, -(-(first + size) // PAGE))

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

    @property
    def changed_last(self) -> int:
        return self.listing.since[-1]

    def forget_after(self, moment: int) -> None:
        self.listing.forget_after(moment)

    def everything(self, seen: dict[int, _File | _Directory]) -> Iterator[_File | _Directory]:
        """This one, and all that is or was below it, each once."""
        seen[id(self)] = self
        yield self
        for state in self.listing.states:
            for one in state.values():
                if id(one) in seen:
                    continue
                if isinstance(one, _Directory):
                    yield from one.everything(seen)
                else:
                    seen[id(one)] = one
                    yield one

    def restore(self, target: Path) -> None:
        """Let a directory have what this one had last; it stays the same one."""
        listing = self.listing.states[-1]
        target.mkdir(exist_ok=True)
        for path in list(target.iterdir()):
            if path.is_dir() and not isinstance(listing.get(path.name), _Directory):
                shutil.rmtree(path)
            elif not path.is_dir():
                path.unlink()
        for name, one in listing.items():
            if isinstance(one, _Directory):
                one.restore(target / name)
            else:
                (target / name).write_bytes(one.content)

    def inodes(self, target: Path) -> Iterator[tuple[int, _File | _Directory]]:
        """(inode, what it is) of all that lies in a directory as this one was last."""
        yield target.stat().st_ino, self
        for name, one in self.listing.states[-1].items():
            if isinstance(one, _Directory):
                yield from one.inodes(target / name)
            else:
                yield (target / name).stat().st_ino, one

    def cut(self, target: Path, moment: int, rng: random.Random, names_at: int | None) -> None:
        target.mkdir()
        if names_at is None:
            listing = self.listing.choose(moment, rng.choice(_SHARES), rng)
        else:
            listing = self.listing.at(names_at)
        for name, one in listing.items():
            if isinstance(one, _Directory):
                one.cut(target / name, moment, rng, names_at)
            else:
                (target / name).write_bytes(one.cut(moment, rng))
