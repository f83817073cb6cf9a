"""The directory of a store: where each file lies, the lock, and the marker of an open store.

Never reads or writes messages.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rmqcore.arguments import directory_path
from rmqcore.errors import (
    NO_ROOM,
    ConfigError,
    CorruptStoreError,
    DiskFullError,
    StoreLockedError,
    StoreNotFoundError,
)
from rmqcore.files.lock_owner import command_of, lock_owner
from rmqcore.native.base._descriptor import Descriptor
from rmqcore.native.base.lock_copies import LOCK_HOLDERS, LOCKING
from rmqcore.world import sync_directory, sync_fd, sync_found_name

LOCK_TEXT = b"lock"
QUEUE_ID_MAX = 2**31 - 1
#: Bytes of the longest name of a directory.
_NAME_MAX = 255
#: below the store: the journals of the doctor's repairs, each a directory named by its number
REPAIRS_NAME = "doctor"
REPAIR_JOURNAL = "journal.jsonl"
#: the last note of a repair that came to its end
REPAIR_FINISHED = b'{"finished": true}'
_FINISHED = b'{"finished": '
_REPAIR = re.compile(r"\d{4,}")
NOT_A_FILE = (
    "it is a directory, a pipe or a link to no file, where a store has a file; move it away"
)
#: This file is in a store while it is being restored, and stays there when that is killed.
RESTORE_MARK = "restore.unfinished"
#: The error says this of anything else in the place of a directory.
NOT_A_DIRECTORY = "it is no directory, as a store has there; move it away"
#: The error says this of an open store that is not at its path any more.
GONE = "it has been removed while it was open, or moved; close it, and open it where it is now"
#: Matches the names of a queue's files: the offset where each begins.
NUMBERED_FILE = re.compile(r"\d{20}")
# struct flock of 64-bit Linux: type, whence, start, size, pid; a pid of 0 is demanded
_FLOCK = struct.Struct("hhqqi4x")
#: An opening that has not come to its end is known by its lock on this byte of the lock file.
_UNSETTLED_BYTE = 1


def _lock_request(kind: int, at: int, size: int = 1) -> bytes:
    return _FLOCK.pack(kind, os.SEEK_SET, at, size, 0)


@contextmanager
def room_at(path: Path) -> Iterator[None]:
    """Say of a full disk where it is.

    Raises:
        DiskFullError: there was no room for what was done inside.
    """
    try:
        yield
    except DiskFullError:
        raise
    except OSError as error:
        if error.errno in NO_ROOM:
            raise DiskFullError(path, os.strerror(error.errno)) from error
        raise


def subdirectories(path: Path) -> list[str]:
    """Names of the directories in one, sorted; none when it is not there."""
    return sorted(entry.name for entry in entries_of(path) if leads_to(entry.is_dir))


def entries_of(path: Path) -> list[os.DirEntry[str]]:
    """The entries of a directory; none when it is not there, or none."""
    try:
        with os.scandir(path) as entries:
            return list(entries)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise
        return []


def leads_to(kind: Callable[[], bool]) -> bool:
    """Ask an entry of a directory for its kind; a link that leads in a circle has none."""
    try:
        return kind()
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        return False


def names_directory(topic: str) -> bool:
    """True for a topic that a directory can have: a damaged record, and a caller, may name any."""
    try:
        size = len(os.fsencode(topic))
    except UnicodeEncodeError:
        return False
    fits = size <= _NAME_MAX and topic not in ("", ".", "..")
    return fits and not {"/", "\0"} & set(topic)


def queue_id_of(name: str) -> int | None:
    """The queue id that a directory below a topic's is named after; None for any other name."""
    if not (name.isascii() and name.isdigit() and len(name) <= len(str(QUEUE_ID_MAX))):
        return None
    queue_id = int(name)
    return queue_id if queue_id <= QUEUE_ID_MAX and name == str(queue_id) else None


def _is_directory(path: Path) -> bool:
    """As ``path.is_dir()``, which from Python 3.14 on is False of what may not be looked at.

    Raises:
        PermissionError: of a directory above it.
    """
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def make_directory(path: Path, *, synced: bool = True, levels: int | None = None) -> None:
    """Create a directory and the missing ones above it so that they survive a power cut.

    Args:
        path: the directory.
        synced: False leaves it to the caller to bring the names to the disk.
        levels: how many directories may be missing; a store that has been removed is not begun
            anew by what still writes to it.

    Raises:
        FileNotFoundError: more are missing.
        CorruptStoreError: something else has the name of one.
    """
    first = None
    for directory in _made(path, levels):
        first = first or directory
        if synced:
            with room_at(directory):
                sync_directory(directory.parent)
    if synced:
        # the last one that was there may have been made by a caller who was killed
        sync_found_name(first.parent if first else path)


def make_directories(*paths: Path) -> None:
    """As `make_directory` of each, in this order; one with several new names is synced once.

    Raises:
        CorruptStoreError: something else has the name of one.
    """
    made = [directory for path in paths for directory in _made(path)]
    parents = {directory.parent: directory for directory in made}
    for parent, directory in parents.items():
        with room_at(directory):
            sync_directory(parent)
    for found in parents.keys() - set(made):
        # who made it may have been killed
        sync_found_name(found)


def _made(path: Path, levels: int | None = None) -> Iterator[Path]:
    """Create a directory and the missing ones above it; yields each that it has created."""
    missing: list[Path] = []
    while not path.is_dir() and len(missing) != levels:
        missing.append(path)
        path = path.parent
    for directory in reversed(missing):
        with room_at(directory):
            try:
                directory.mkdir(exist_ok=True)
            except FileExistsError as error:
                raise CorruptStoreError(directory, -1, NOT_A_DIRECTORY) from error
        yield directory


def refuse_other_kinds(*directories: Path) -> None:
    """Refuse what has the name of a directory, and is none.

    Raises:
        CorruptStoreError: something is none.
    """
    for path in directories:
        if os.path.lexists(path) and not path.is_dir():
            raise CorruptStoreError(path, -1, NOT_A_DIRECTORY)


def _is_circle(path: Path) -> bool:
    """True for a link that leads to itself."""
    try:
        path.stat()
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


class StoreDir:
    """Paths of one store, its lock and its abort marker.

    - The lock is an open-file-description lock on byte 0 of ``lock``: it excludes a running Java
      broker as well as a second open in this process, and ends with this process. Another one, on
      the directory of the log, excludes a store elsewhere that has the same log.
    - Byte 1 of ``lock`` is locked from there on until `settle`: what was written may still change.
    - ``abort`` exists while a store is open for writing, or was not closed.

    Args:
        path: the store's root directory (``storePathRootDir``).
        commit_log: another directory for the commit log, or None.

    Raises:
        ConfigError: the log would lie among files that are removed and made again from it.

    Source: RocketMQ store/config/StorePathConfigHelper.java, DefaultMessageStore.java.
    """

    def __init__(self, path: str | os.PathLike[str], commit_log: str | None = None) -> None:
        self.path = directory_path("path", path)
        self.commit_log = Path(commit_log) if commit_log else self.path / "commitlog"
        self.consume_queue = self.path / "consumequeue"
        self.consume_queue_ext = self.path / "consumequeue_ext"
        self.batch_consume_queue = self.path / "batchconsumequeue"
        self.index = self.path / "index"
        self.config = self.path / "config"
        self.consumer_leases = self.config / "consumerLeases.log"
        self.trace = self.config / "storeTrace"
        self.checkpoint = self.path / "checkpoint"
        self.abort = self.path / "abort"
        self.lock_file = self.path / "lock"
        #: descriptors that hold the locks; the log's is last, and is closed first
        self._locks: list[Descriptor] = []
        if commit_log:
            self._refuse_log_among_derived()

    def _refuse_log_among_derived(self) -> None:
        log = self.commit_log.resolve()
        for derived in (self.consume_queue, self.batch_consume_queue, self.index):
            if log.is_relative_to(derived.resolve()):
                raise ConfigError(
                    "store_path_commit_log",
                    str(self.commit_log),
                    f"outside {derived}, whose files are removed and made again from the log",
                )

    def __reduce__(self) -> tuple[Any, ...]:
        # another process that is told where a store lies has no lock of it
        return StoreDir, (self.path, str(self.commit_log))

    def exists(self) -> bool:
        """True when a store, even an empty one, lies here."""
        return _is_directory(self.commit_log)

    def require(self) -> None:
        """Raise unless a store lies here.

        Raises:
            StoreNotFoundError: the directory, or the commit log below it, is missing.
            CorruptStoreError: a file lies where a directory belongs, or the other way round.
        """
        if self.path.is_file():
            raise StoreNotFoundError(self.path, "a file; give the directory of the store it is in")
        if not _is_directory(self.path):
            raise StoreNotFoundError(self.path, "no such directory")
        if not self.exists():
            raise StoreNotFoundError(self.path, self._no_log())
        self._refuse_wrong_kinds()

    def _refuse_wrong_kinds(self) -> None:
        derived = (self.consume_queue, self.batch_consume_queue, self.index, self.config)
        refuse_other_kinds(self.commit_log, *derived, self.path / REPAIRS_NAME)
        files = [self.checkpoint, self.abort, self.lock_file]
        if self.commit_log.is_dir():
            log = self.commit_log.iterdir()
            files += (path for path in log if NUMBERED_FILE.fullmatch(path.name))
        for path in files:
            # retention may have removed it just now
            if not path.is_file() and os.path.lexists(path):
                raise CorruptStoreError(path, -1, NOT_A_FILE)
        for path in self.config.iterdir() if self.config.is_dir() else ():
            # a directory is told by whoever reads it, a link to nowhere is replaced
            if not (path.is_file() or path.is_dir()) and (path.exists() or _is_circle(path)):
                raise CorruptStoreError(path, -1, NOT_A_FILE)

    def _no_log(self) -> str:
        """Why no store is here: a store whose log lies elsewhere has consume queues."""
        if any(self.path.glob("*.meta")) or any(self.path.glob("*/*.meta")):
            return "no commitlog directory here: it is a store of MetaQ, see rmqcore metaq --help"
        if not (self.consume_queue.is_dir() or self.batch_consume_queue.is_dir()):
            return "no commitlog directory here, so no store"
        return (
            f"consume queues are here, but no log in {self.commit_log}; set store_path_commit_log "
            "(storePathCommitLog) to the directory where it is"
        )

    def create(self) -> None:
        """Create the directories that every store has.

        Raises:
            CorruptStoreError: a file lies where a directory belongs, or the other way round.
        """
        self._refuse_wrong_kinds()
        # of those that are there `sync_found_names` and `mark_running` sync the names
        make_directories(self.path, self.commit_log, self.consume_queue, self.index, self.config)

    def sync_found_names(self) -> None:
        """Bring names to the disk that an opening which was killed has left in memory.

        Of the directories each time: nothing in them tells who has made them. Of what lies in the
        log and in ``config`` after an end that was not in order. What lies in the store's own
        directory `mark_running` syncs.

        Raises:
            OSError: the disk refused.
        """
        sync_found_name(self.path)
        if self.commit_log.parent != self.path:
            sync_found_name(self.commit_log)
        if self.was_aborted:
            sync_directory(self.commit_log)
            sync_directory(self.config)

    def lock(self) -> None:
        """Take the store for writing.

        Raises:
            StoreLockedError: another process, or another handle of this one, has it.
        """
        with LOCKING:
            LOCK_HOLDERS.add(self)
            self._lock()

    def _lock(self) -> None:
        lock = Descriptor(os.open(self.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644))
        fd = lock.fileno()
        # both bytes at once: nobody sees the lock of a store that is not recovered yet without the
        # other one
        request = _lock_request(fcntl.F_WRLCK, 0, _UNSETTLED_BYTE + 1)
        try:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, request)
        except (BlockingIOError, PermissionError):
            owner = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, request))[4]
            lock.close()
            if owner <= 0:
                owner = lock_owner(self.lock_file)
            raise StoreLockedError(self.lock_file, owner, owner and command_of(owner)) from None
        self._locks.append(lock)
        try:
            if os.pread(fd, len(LOCK_TEXT), 0) != LOCK_TEXT:
                with room_at(self.lock_file):
                    os.pwrite(fd, LOCK_TEXT, 0)
                    sync_fd(fd)
            self._lock_log()
        except BaseException:
            self.unlock()
            raise

    def settle(self) -> None:
        """Say that what was written stays as it is: the store is recovered, and is appended to."""
        fd = self._locks[0].fileno()
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _lock_request(fcntl.F_UNLCK, _UNSETTLED_BYTE))

    def why_unsettled(self) -> str | None:
        """Why what lies in the log may still change, told to who keeps a copy; None: it stays.

        Of a store that RocketMQ is opening this cannot be told.
        """
        if self.is_locked():
            opening = self._is_byte_locked(_UNSETTLED_BYTE)
            return "the store is being opened or repaired" if opening else None
        if self.was_aborted:
            return "the store was not closed in order; open it for writing, which ends its log"
        if self.unfinished_repair() or self.unfinished_restore():
            return "a repair or a restoration of the store has not come to its end"
        return None

    def _lock_log(self) -> None:
        """Take the log, which may lie elsewhere, where another store may have it, too."""
        try:
            found = os.open(self.commit_log, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        lock = Descriptor(found)
        # before it is locked, so that an interrupt leaves no descriptor that nobody closes
        self._locks.append(lock)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = lock_owner(self.commit_log)
            command = command_of(owner) if owner else None
            raise StoreLockedError(self.commit_log, owner, command) from None
        except OSError:
            # a network file system may have no locks of directories
            self._locks.remove(lock)
            lock.close()

    def unlock(self) -> None:
        """Give the store back; idempotent."""
        with LOCKING:
            while self._locks:
                # a child that was forked just now has copies, with which it would stay locked; what
                # the system says of it is of no use
                with suppress(OSError):
                    if len(self._locks) > 1:
                        fcntl.flock(self._locks[-1], fcntl.LOCK_UN)
                    else:
                        request = _lock_request(fcntl.F_UNLCK, 0, _UNSETTLED_BYTE + 1)
                        fcntl.fcntl(self._locks[0], fcntl.F_OFD_SETLK, request)
                self._locks.pop().close()

    def after_fork_in_child(self) -> None:
        """Close the copies that a forked child has; the parent keeps the store."""
        while self._locks:
            self._locks.pop().close()

    @property
    def is_ours(self) -> bool:
        """True between `lock` and `unlock`."""
        return bool(self._locks)

    def check_there(self) -> None:
        """Raise unless the store that is locked is still the one at the path.

        Whoever writes, makes or removes a file by its name asks this first: it may be another
        store's. Of a store that is not locked here nothing is said.

        Raises:
            StoreNotFoundError: it has been removed; another one may be at the path.
        """
        if not self._locks:
            return
        with suppress(FileNotFoundError):
            if os.path.samestat(self.lock_file.stat(), os.fstat(self._locks[0].fileno())):
                return
        raise StoreNotFoundError(self.path, GONE)

    def is_locked(self) -> bool:
        """True when this or another process has the store open for writing."""
        return self._is_byte_locked(0)

    def _is_byte_locked(self, at: int) -> bool:
        try:
            fd = os.open(self.lock_file, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _lock_request(fcntl.F_WRLCK, at))
        finally:
            os.close(fd)
        return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)

    def mark_running(self) -> None:
        """Create the abort marker; its content is this process's id, as RocketMQ writes it.

        On a full disk it has none: that it is there is what counts, and a store has to be opened
        for its messages to be consumed, and its files deleted.

        Raises:
            DiskFullError: there is no room for its name, either.
        """
        with room_at(self.abort):
            self.abort.touch()
            try:
                self.abort.write_text(str(os.getpid()), encoding="ascii")
            except OSError as error:
                if error.errno not in NO_ROOM:
                    raise
            sync_directory(self.path)

    def clear_running(self) -> None:
        """Remove the abort marker: the store was closed in order."""
        self.abort.unlink(missing_ok=True)
        sync_directory(self.path)

    def last_repair(self) -> Path | None:
        """The directory of the last repair by the doctor that was not undone; None without one."""
        home = self.path / REPAIRS_NAME
        names = subdirectories(home)
        repairs = [(int(name), name) for name in names if _REPAIR.fullmatch(name)]
        return home / max(repairs)[1] if repairs else None

    def unfinished_repair(self) -> Path | None:
        """The same, when that repair, or its undo, did not come to its end."""
        repair = self.last_repair()
        if repair is None:
            return None
        with suppress(FileNotFoundError):
            *notes, _ = (repair / REPAIR_JOURNAL).read_bytes().split(b"\n")
            # journals of earlier versions say more behind it
            if notes and notes[-1].startswith(_FINISHED):
                return None
        return repair

    def unfinished_restore(self) -> str | None:
        """The URL of the archive that the store is being restored from; None: it is not.

        Raises:
            CorruptStoreError: a directory is where the file that says so belongs.
        """
        mark = self.path / RESTORE_MARK
        try:
            return mark.read_text("utf-8", "replace")
        except FileNotFoundError:
            return None
        except IsADirectoryError as error:
            raise CorruptStoreError(mark, -1, NOT_A_FILE) from error

    @property
    def was_aborted(self) -> bool:
        """True when the last writer did not close the store."""
        return self.abort.exists()
