"""Log files created ahead of need, so that a roll does not wait for the disk."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from rmqcore.errors import StoreClosedError, StoreNotWritableError
from rmqcore.files.mapped_file import MappedFile
from rmqcore.files.mapped_file_queue import OFFSET_MAX
from rmqcore.native.base._lock import ReentrantLock
from rmqcore.services.service import Service
from rmqcore.services.standing import Standing
from rmqcore.world import sync_directory

_log = logging.getLogger("rmqcore")
_HOUR_S: Final = 3600.0


class AllocateMappedFileService(Service):
    """Makes the next log files in the background: reserved, mapped, warm.

    - A file that is made ahead and not used is removed when the service stops; one that was handed
      out stays at hand until the next, for a caller that was interrupted before he could use it.
    - Files are used in order; one that is older than the newest taken is never made.
    - A file that cannot be made is no error here: `ready_file` tries again when it is needed.
    - A file stands behind all others: none is made behind one that could not be, and none is
      removed in front of one that cannot be.

    Args:
        make: creates the file for (path, offset), reserved whole.
        file_size: bytes of a log file.
        ahead: how many files to keep ready.
        warm: True makes their pages resident before they are used.
        sync_every: bytes after which a warm-up forces what it touched; 0 never.
        lock_budget: bytes that may be locked in memory; 0 locks nothing.
        check_there: raises when files of these names are another store's, which stay.

    Source: RocketMQ store/AllocateMappedFileService.java.
    Differs: RocketMQ gives up after 5 s and refuses the put; here the file is made on the spot.
    """

    def __init__(
        self,
        make: Callable[[Path, int], MappedFile],
        file_size: int,
        *,
        ahead: int,
        warm: bool,
        sync_every: int,
        lock_budget: int,
        check_there: Callable[[], object] = bool,
    ) -> None:
        super().__init__("AllocateMappedFileService")
        self._check_there = check_there
        self._make = make
        self._file_size = file_size
        self._ahead = ahead
        self._warm = warm
        self._sync_every = sync_every
        self._lock_budget = lock_budget
        self._locked: list[MappedFile] = []
        self._ready: dict[int, MappedFile] = {}
        self._wanted: dict[int, Path] = {}
        #: where a file may have been left that could not be used
        self._left: dict[int, Path] = {}
        self._making = ReentrantLock()
        self._newest = -1
        self._ends = False
        self._standing = Standing()

    def prepare(self, path: Path, offset: int) -> None:
        """Ask for the file that begins at ``offset``, and for those behind it.

        Args:
            path: of that file, beside which the others are made.
            offset: physical offset of its first byte.
        """
        for number in range(self._ahead):
            start = offset + number * self._file_size
            if self._newest < start <= OFFSET_MAX - self._file_size and start not in self._ready:
                self._wanted.setdefault(start, path.with_name(f"{start:020d}"))
        if self._wanted:
            self.wakeup()

    def ready_file(self, path: Path, offset: int) -> MappedFile:
        """The ready file that begins at ``offset``, made now when it is not there yet.

        Args:
            path: of the file, whose directory exists.
            offset: physical offset of its first byte.

        Raises:
            DiskFullError: no room.
            StoreNotWritableError: this thread is making a file; the call comes from a signal
                handler or a finalizer that runs inside.
            OSError: the system refused.
        """
        with self._making.within():
            if self._making.depth > 1:
                raise StoreNotWritableError(
                    "this thread is just making the next log file, and this put comes from a "
                    "signal handler or a finalizer inside; put again later"
                )
            self._wanted.pop(offset, None)
            for older in [start for start in self._ready if start < offset]:
                del self._ready[older]
            if offset not in self._ready:
                self._make_ready(path, offset)
            # not before: those behind it are made by then, and would stand behind a hole
            self._newest = max(self._newest, offset)
            file = self._ready[offset]
        if self.active:
            following = offset + self._file_size
            self.prepare(path.with_name(f"{following:020d}"), following)
            if self._locked:
                self.wakeup()
        return file

    def _make_ready(self, path: Path, offset: int) -> None:
        self._left[offset] = path
        try:
            self._ready[offset] = self._make(path, offset)
        except OSError:
            # a file behind this one would stand behind a hole
            self._wanted.clear()
            raise
        del self._left[offset]

    def begin(self) -> None:
        """As `Service.begin`."""
        self._ends = False
        super().begin()

    def end(self) -> None:
        """As `Service.end`; the next file that was asked for is made no more."""
        self._ends = True
        super().end()

    def run(self, now: float) -> float:
        """Let go of full files, and make every file that was asked for."""
        self._unlock_finished(self._newest)
        self._make_all()
        return _HOUR_S

    def _make_all(self) -> None:
        while self._wanted and not self._ends:
            # puts may have gone on to the next file meanwhile: its room is for the one made now
            self._unlock_finished(self._newest)
            with self._making.within():
                if not self._wanted:
                    return
                offset = min(self._wanted)
                path = self._wanted.pop(offset)
                if offset <= self._newest or offset in self._ready:
                    continue
                try:
                    self._make_ready(path, offset)
                except OSError as error:
                    self._standing.note("making a log file ahead of need", error)
                    return
                self._standing.end("making a log file ahead of need")
                file = self._ready[offset]
            if self._warm:
                self._warm_up(file)

    def _warm_up(self, file: MappedFile) -> None:
        lock = sum(other.size for other in self._locked) + file.size <= self._lock_budget
        with self._making.within():
            if self._ready.get(file.file_from_offset) is not file:
                return
            region = file.region
        # puts may already use the file: a warm-up changes none of its bytes
        result = region.warm_up(sync_every=self._sync_every, lock=lock, expect_empty=False)
        if result.locked:
            self._locked.append(file)
        elif lock:
            self._lock_budget = 0
            _log.warning("log files are not locked in memory: mlock was refused, %s", result)

    def _unlock_finished(self, offset: int) -> None:
        """Unlock from memory the pages of full files, those before ``offset``."""
        finished = [file for file in self._locked if file.file_from_offset < offset]
        self._locked = [file for file in self._locked if file.file_from_offset >= offset]
        for file in finished:
            # retention may have removed it
            with suppress(StoreClosedError):
                file.region.unlock_memory()

    def last(self, *, ended: bool) -> None:
        """Remove files that were made and not used."""
        with self._making.within():
            self._wanted.clear()
            # the newest first, and gone before the next: neither a kill nor a power cut in between
            # leaves a hole in front of one
            left = {at: path for at, path in self._left.items() if path.exists()}
            unused = sorted((at for at in self._ready | left if at > self._newest), reverse=True)
            for number, offset in enumerate(unused):
                file = self._ready.get(offset)
                path = left[offset] if file is None else file.path
                try:
                    if number:
                        sync_directory(path.parent)
                    if file is None:
                        self._check_there()
                        path.unlink()
                    else:
                        file.destroy()
                except OSError as error:
                    _log.warning("%s stays, empty, as well as those before it: %s", path, error)
                    break
            self._ready.clear()
