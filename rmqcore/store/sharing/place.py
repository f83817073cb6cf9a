"""Where the processes of a shared store meet: a lock on its directory, and a socket in it.

A broker's store is not shared: who appends staged records to it meets the broker at a name of the
system's, so that a copy of its directory finds no socket there.

The lock says who may own the store. It is taken before the store is opened and released after it
has been closed: whoever has it and finds the store locked knows of an owner that does not share.
"""

from __future__ import annotations

import fcntl
import math
import os
import select
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from rmqcore.chance import token_hex
from rmqcore.errors import CorruptStoreError, OwnerTimeoutError
from rmqcore.files.lock_owner import command_of, lock_owner
from rmqcore.files.store_dir import NOT_A_FILE, StoreDir, make_directory
from rmqcore.native.base._descriptor import Descriptor

SOCKET_NAME: Final = "rmqcore.sock"
#: A longer path, in bytes without its closing zero, cannot be a socket's.
_SOCKET_PATH_MAX: Final = 107
#: Below ``config/``: what the name has of chance at which a broker takes staged records.
APPENDS_NAME: Final = "appendsWord"
_WORD_SIZE: Final = 16
_BACKLOG: Final = 1024
_READ_AND_WRITE: Final = 0o666
#: The pid, uid and gid of the process that listens.
_CREDENTIALS: Final = struct.Struct("3i")


class MeetingPlace:
    """A store's directory as several processes use it.

    Args:
        path: the store's directory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: Descriptor | None = None
        #: the socket that `listen` has made

    # ---- the lock

    def try_lock(self) -> bool:
        """Take the right to own the store; False when another process, or handle, has it."""
        lock = Descriptor(os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            return False
        self._lock = lock
        return True

    def unlock(self) -> None:
        """Give the right back; idempotent. In a forked child the parent keeps it."""
        self._lock = None

    # ---- the socket

    def listen(self) -> socket.socket:
        """Put a new socket in the place of any that is there; only for who may own the store.

        Its permissions are the directory's.

        Raises:
            CorruptStoreError: a directory is where the socket belongs.
            OSError: the system refused.
        """
        if (self.path / SOCKET_NAME).is_dir():
            raise CorruptStoreError(self.path / SOCKET_NAME, -1, NOT_A_FILE)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            unfinished = self.path / f"{SOCKET_NAME}.new"
            unfinished.unlink(missing_ok=True)
            with self._address(unfinished.name) as address:
                listening.bind(address)
            directory = self.path.stat()
            with suppress(PermissionError):
                os.chown(unfinished, -1, directory.st_gid)
            unfinished.chmod(directory.st_mode & _READ_AND_WRITE)
            listening.listen(_BACKLOG)
            unfinished.rename(self.path / SOCKET_NAME)
        except BaseException:
            listening.close()
            raise
        return listening

    def connect(self, timeout_s: float) -> socket.socket | None:
        """A socket, not blocking, to the owner; None when nobody listens.

        Raises:
            OwnerTimeoutError: somebody listens and takes no connection.
            OSError: the system refused, such as for want of permission.
        """
        connecting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connecting.settimeout(timeout_s)
        try:
            with self._address() as address:
                connecting.connect(address)
            connecting.setblocking(False)
        except (FileNotFoundError, ConnectionRefusedError):
            connecting.close()
            return None
        except TimeoutError:
            connecting.close()
            raise self.hangs(timeout_s) from None
        except BaseException:
            connecting.close()
            raise
        return connecting

    def forget_socket(self) -> None:
        """Remove the socket; only for who has the lock.

        A directory that has been removed meanwhile, and made again, may have another owner's. What
        a disk keeps, as one that can only be read any more, is one at which nobody listens.
        """
        with suppress(OSError):
            lock = self._lock
            if lock is not None and os.path.samestat(self.path.stat(), os.fstat(lock.fileno())):
                (self.path / SOCKET_NAME).unlink()

    @contextmanager
    def _address(self, name: str = SOCKET_NAME) -> Iterator[str]:
        """A path of the socket that is short enough for the system; errors name the whole one."""
        whole = str(self.path / name)
        try:
            if len(os.fsencode(whole)) <= _SOCKET_PATH_MAX:
                yield whole
            else:
                fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    yield f"/proc/self/fd/{fd}/{name}"
                finally:
                    os.close(fd)
        except OSError as error:
            error.filename = whole
            raise

    # ---- who it is

    def hangs(self, timeout_s: float, owner: int | None = None) -> OwnerTimeoutError:
        """The error that names the owner, who has not answered.

        Args:
            timeout_s: how long was waited.
            owner: its process id; None finds it by the lock.
        """
        owner = owner or lock_owner(self.path)
        command = command_of(owner) if owner else None
        return OwnerTimeoutError(self.path, timeout_s * 1000, owner, command)


class AppendsPlace(MeetingPlace):
    """Where a broker takes staged records: a name of the system's for the store's directory.

    It is of the directory's device and inode, as others may know it by another path, of the
    broker's network namespace, and of a word that is drawn each time. That is in a file which the
    directory's owner and root alone may read: whoever else could take the name beforehand, and keep
    the others waiting. The name has no permissions: each side looks at whose process the other is
    (`may_append`).
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._word_path = StoreDir(path).config / APPENDS_NAME
        self._word = ""

    def listen(self) -> socket.socket:
        """Listen at a new name, and let those who may append know it.

        Raises:
            OSError: the system refused.
        """
        word = token_hex(_WORD_SIZE)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with self._address(word) as address:
                listening.bind(address)
            listening.listen(_BACKLOG)
            self._word = word
            self._publish(word)
        except BaseException:
            listening.close()
            raise
        return listening

    def _publish(self, word: str) -> None:
        make_directory(self._word_path.parent)
        unfinished = self._word_path.with_name(f"{APPENDS_NAME}.new")
        unfinished.unlink(missing_ok=True)
        fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            if os.geteuid() == 0:
                os.fchown(fd, self.path.stat().st_uid, -1)
            os.write(fd, word.encode())
        finally:
            os.close(fd)
        unfinished.rename(self._word_path)

    def connect(self, timeout_s: float) -> socket.socket | None:
        """As of any place; somebody who is not the directory's owner is nobody."""
        connected = super().connect(timeout_s)
        if connected is not None and not self.may_append(connected):
            connected.close()
            return None
        return connected

    def forget_socket(self) -> None:
        """Remove the file that names the socket; one of another store that is there stays."""
        with suppress(FileNotFoundError):
            if self._word_path.read_bytes() == self._word.encode():
                self._word_path.unlink()

    def may_append(self, connected: socket.socket) -> bool:
        """Tell whether the other side's process is root's, or of the directory's owner."""
        return _credentials_of(connected)[1] in (0, self.path.stat().st_uid)

    def _read_word(self) -> str:
        try:
            return self._word_path.read_text("ascii", "replace")
        except PermissionError as error:
            # a broker that would not take anything of this process
            raise FileNotFoundError(error.errno, error.strerror, error.filename) from error

    @contextmanager
    def _address(self, name: str = "") -> Iterator[str]:
        status = self.path.stat()
        word = name or self._read_word()
        yield f"\0rmqcore-appends-{status.st_dev:x}-{status.st_ino:x}-{word[: 2 * _WORD_SIZE]}"


def peer_of(connected: socket.socket) -> int:
    """Process id of the owner that a socket is connected with."""
    return _credentials_of(connected)[0]


def _credentials_of(connected: socket.socket) -> tuple[int, int]:
    """Process id and user id of the process at the other end."""
    told = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(told)
    return int(pid), int(uid)


def readable(connected: socket.socket, timeout_s: float) -> bool:
    """Wait until a socket can be read; False when it is too late.

    Args:
        connected: a socket.
        timeout_s: for how long; infinity waits without end.
    """
    return bool(_ready(connected, select.POLLIN, timeout_s))


def writable(connected: socket.socket, timeout_s: float, *, or_readable: bool = False) -> bool:
    """Wait until a socket can be written; False when it is too late, or it can be read only.

    Args:
        connected: a socket.
        timeout_s: for how long; infinity waits without end.
        or_readable: also return when there is something to read.
    """
    events = select.POLLOUT | (select.POLLIN if or_readable else 0)
    return bool(_ready(connected, events, timeout_s) & ~select.POLLIN)


def _ready(connected: socket.socket, events: int, timeout_s: float) -> int:
    """What a socket is ready for; 0 when it is too late."""
    poll = select.poll()
    poll.register(connected, events)
    timeout_ms = None if timeout_s == math.inf else max(0.0, timeout_s) * 1000
    return next((ready for _, ready in poll.poll(timeout_ms)), 0)
