"""Every exception that rmqcore raises.

Expected outcomes (a full file, a missing queue) are values of `rmqcore.status`, never exceptions.
Each exception keeps its facts as attributes and builds its message from them.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, TypeGuard, TypeVar

T = TypeVar("T")
#: A refused value is shown up to this many characters.
_VALUE_SHOWN: Final = 200


class RmqCoreError(Exception):
    """Base of every error that rmqcore raises by itself.

    All of them survive pickling and copying, whatever the arguments of their constructors.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        args = self.args
        if isinstance(self, OSError) and self.filename is not None:
            args = (self.errno, self.strerror, self.filename)
        return _again, (type(self), args, dict(self.__dict__))


def _again(kind: type[RmqCoreError], args: tuple[Any, ...], facts: dict[str, Any]) -> RmqCoreError:
    """An error as it was, without its constructor, which may take other arguments."""
    error = kind.__new__(kind)
    if isinstance(error, OSError):
        OSError.__init__(error, *args)
    else:
        error.args = args
    error.__dict__.update(facts)
    return error


class ConfigError(RmqCoreError, ValueError):
    """A configuration value is unknown, out of range, or contradicts another or the store.

    Attributes:
        field: name of the setting, as the caller wrote it.
        value: the refused value.
        rule: what would be accepted.
        source: file and line that gave the value (``broker.conf:12``); None when a caller did.
    """

    def __init__(self, field: str, value: object, rule: str, source: str | None = None) -> None:
        self.field = field
        self.value = value
        self.rule = rule
        self.source = source
        super().__init__(f"{source + ': ' if source else ''}{field}={value!r}: {rule}")


class ConfigWarning(UserWarning):
    """A setting has no effect: a name in a file that nobody knows, a role that nobody serves."""


class MessageIllegalError(RmqCoreError, ValueError):
    """A message breaks a limit of the format (topic, properties, body) and was not stored.

    Attributes:
        reason: which limit, and what would be accepted.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class ArgumentError(MessageIllegalError, TypeError):
    """An argument of a call has a wrong type, range or name; nothing was done.

    Attributes:
        argument: its name.
        value: what was given; Ellipsis when the name itself is wrong.
        rule: what would be accepted.
    """

    def __init__(self, argument: str, value: object, rule: str) -> None:
        self.argument = argument
        self.value = value
        self.rule = rule
        given = "" if value is ... else f"={_shown(value)}: expected"
        super().__init__(f"{argument}{given} {rule}")


class RowIllegalError(MessageIllegalError):
    """A row of a table is no message; nothing of its batch was stored.

    Attributes:
        row: its number, 0 for the first row of the table.
        column: name of the column; empty where it is none in particular.
        rule: what is wrong with it, or what would be accepted.
        stored_count: rows of the batches before that are stored.
    """

    def __init__(self, row: int, column: str, rule: str, stored_count: int = 0) -> None:
        self.row = row
        self.column = column
        self.rule = rule
        self.stored_count = stored_count
        before = f" ({stored_count} rows of the batches before are stored)" if stored_count else ""
        place = f"row {row}, column {column}" if column else f"row {row}"
        super().__init__(f"{place}: {rule}{before}")


def _shown(value: object) -> str:
    """A value as errors show it; only its type where it has no text."""
    try:
        return _short(repr(value))
    except Exception:  # noqa: BLE001 - whatever its own method raises, or a RecursionError
        return f"<{type(value).__name__}>"


def _short(text: str) -> str:
    return text if len(text) <= _VALUE_SHOWN else text[: _VALUE_SHOWN - 3] + "..."


def is_refusal(error: BaseException) -> TypeGuard[OSError]:
    """True when the operating system has refused a call.

    False for what a signal handler has raised inside one: its ``TimeoutError`` is an OSError, too,
    but has no number, and nothing was refused.
    """
    return isinstance(error, OSError) and error.errno is not None


#: The system's codes for a file that cannot be opened now.
_NOT_OPENED: Final = (errno.EMFILE, errno.ENFILE, errno.EACCES, errno.EPERM)


class SyncRefusedError(OSError):
    """A sync failed with a code that an opening has, too; see `Syncing`."""


def is_broken(error: BaseException) -> TypeGuard[OSError]:
    """True for a refusal that may have cost bytes, which no later call brings back.

    Where there was no room, no descriptor or no right to open a file, nothing was lost: a later
    call does what this one could not.
    """
    full = isinstance(error, DiskFullError)
    opening = not isinstance(error, SyncRefusedError)
    return is_refusal(error) and not full and not (opening and error.errno in _NOT_OPENED)


def do_each(works: Iterable[Callable[[], T]]) -> list[T]:
    """Do several things, each whatever the system refuses those before it; what each gives.

    Raises:
        OSError: the first refusal, when all have been tried.
    """
    given: list[T] = []
    first: OSError | None = None
    for work in works:
        try:
            given.append(work())
        except OSError as error:
            if not is_refusal(error):
                raise
            first = first or error
    if first is not None:
        raise first
    return given


#: reason of what the disk refuses to give
UNREADABLE: Final = os.strerror(errno.EIO)


def is_bad_sector(error: BaseException) -> TypeGuard[OSError]:
    """True when the disk cannot give what lies in one place of a file; other places it may."""
    return is_refusal(error) and error.errno == errno.EIO


class Naming:
    """Gives what the system refuses inside it the name of a file: calls by descriptor have none.

    Args:
        path: of the file.
    """

    __slots__ = ("_path",)

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None and is_refusal(error) and error.filename is None:
            error.filename = os.fspath(self._path)


class Syncing(Naming):
    """As `Naming`, of a sync: what is refused inside it may have cost bytes, whatever the code.

    What writes to a file over a network, or for a program, fails with any code, also of a right.

    Args:
        path: of the file, which is open.
    """

    __slots__ = ()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        super().__exit__(kind, error, trace)
        if error is not None and is_refusal(error) and error.errno in _NOT_OPENED:
            raise SyncRefusedError(error.errno, error.strerror, error.filename) from error


class StoreError(RmqCoreError):
    """The store cannot do what was asked in the state it is in."""


class StoreClosedError(StoreError):
    """The store, file or buffer was used after it had been closed."""


class StoreForkedError(StoreError):
    """A store handle was used in a child process; the parent still owns it. Open it again."""


class StoreNotFoundError(StoreError, FileNotFoundError):
    """No store lies at this path (and mode "r" creates none).

    Attributes:
        path: the directory that was asked for.
    """

    def __init__(self, path: str | Path, reason: str = "no RocketMQ store here") -> None:
        self.path = Path(path)
        self.reason = reason
        super().__init__(f"{path}: {reason}")

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class StoreLockedError(StoreError, OSError):
    """Another process, or another handle of this process, has the store open for writing.

    Attributes:
        path: the lock file.
        owner: process id of the owner, when the system tells it.
        command: the owner's command line, when the system tells it.
    """

    def __init__(
        self, path: str | Path, owner: int | None = None, command: str | None = None
    ) -> None:
        self.path = Path(path)
        self.owner = owner
        self.command = command
        if owner == os.getpid():
            by = f"another handle of this process ({owner})"
        else:
            by = _process(owner, command) if owner else "another process or handle"
        OSError.__init__(
            self,
            errno.EWOULDBLOCK,
            f"the store is open for writing in {by}; close it there, open it in all processes with "
            'rmqcore.open_shared, or read it with mode="r"',
            str(path),
        )


class RepairUnfinishedError(StoreError):
    """A repair of the store by the doctor, or its undo, was begun and is not finished.

    Attributes:
        path: the store's directory.
        journal: the directory of the repair's journal.
    """

    def __init__(self, path: str | Path, journal: str | Path) -> None:
        self.path = Path(path)
        self.journal = Path(journal)
        super().__init__(
            f"{path}: a repair, or its undo, is unfinished, so nothing was opened or changed; "
            f"rmqcore doctor repair {path} goes on with it, and rmqcore doctor undo {path} takes "
            'it back. Opened with on_corruption="truncate" or "skip", the store is what it is '
            f"now, and neither works any more; move {journal} away then"
        )


class OwnerTimeoutError(StoreError, TimeoutError):
    """The process that owns a shared store does not answer: it is stopped, or it hangs.

    Whether it has done what was asked, or will when it goes on, is not known.

    Attributes:
        path: the store's directory.
        timeout_ms: how long was waited.
        owner: its process id, when the system tells it.
        command: its command line, when the system tells it.
    """

    def __init__(
        self,
        path: str | Path,
        timeout_ms: float,
        owner: int | None = None,
        command: str | None = None,
    ) -> None:
        self.path = Path(path)
        self.timeout_ms = timeout_ms
        self.owner = owner
        self.command = command
        super().__init__(
            f"{path}: the store's owner, {_process(owner, command)}, has not answered for "
            f"{timeout_ms:.0f} ms; let it go on, or end it: then another process takes over"
        )


class OwnerLostError(StoreError, ConnectionError):
    """The owner of a shared store has ended during a call that cannot be made a second time.

    Whether it has done what was asked is not known.

    Attributes:
        path: the store's directory.
        method: what was called.
    """

    def __init__(self, path: str | Path, method: str) -> None:
        self.path = Path(path)
        self.method = method
        super().__init__(
            f"{path}: the store's owner has ended before it answered {method}; whether it was done "
            "is not known, and it is not safe to be done twice"
        )


def _process(owner: int | None, command: str | None) -> str:
    """A process as errors name it."""
    if not owner:
        return "another process"
    return f"process {owner} ({_short(command)})" if command else f"process {owner}"


class StoreNotWritableError(StoreError):
    """The store refuses writes; the reason says why and what would lift it.

    Attributes:
        reason: the same sentence as ``store.why_not_writable()``.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class PutMessageError(StoreError):
    """A put failed for a reason that is not the caller's message.

    Attributes:
        status: the `PutMessageStatus`.
    """

    def __init__(self, status: object, reason: str) -> None:
        self.status = status
        self.reason = reason
        super().__init__(f"{getattr(status, 'name', status)}: {reason}")


class FlushTimeoutError(StoreError, TimeoutError):
    """The message is in the log, but the disk did not confirm it in time.

    Attributes:
        phy_offset: where the record lies; it may still reach the disk.
    """

    def __init__(self, phy_offset: int, reason: str) -> None:
        self.phy_offset = phy_offset
        self.reason = reason
        super().__init__(f"the record at {phy_offset}: {reason}")


#: The system's codes for a file that cannot grow: the disk, a quota or the process's limit is
#: full.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class DiskFullError(StoreNotWritableError, OSError):
    """The file system has no room, or its fill ratio is above the configured limit."""

    def __init__(self, path: str | Path, reason: str = "no space left") -> None:
        self.path = Path(path)
        self.reason = reason
        OSError.__init__(self, errno.ENOSPC, reason, str(path))


class RecordsGoneError(StoreError):
    """The log no longer has what was planned to be read: retention has deleted it meanwhile.

    Attributes:
        path: the file that is gone.
        phy_offset: the first byte that was wanted.
    """

    def __init__(self, path: str | Path, phy_offset: int) -> None:
        self.path = Path(path)
        self.phy_offset = phy_offset
        super().__init__(
            f"{path} at {phy_offset}: the file has been deleted since the read was planned; plan "
            "again to read what is left"
        )


class CorruptStoreError(StoreError):
    """Bytes of the store contradict its format.

    Attributes:
        path: the file, or the store's directory.
        phy_offset: byte position in the commit log, or in the file named; -1 when it has none.
        reason: what was found and what was expected.
    """

    def __init__(self, path: str | Path, phy_offset: int, reason: str) -> None:
        self.path = Path(path)
        self.phy_offset = phy_offset
        self.reason = reason
        at = f" at {phy_offset}" if phy_offset >= 0 else ""
        super().__init__(f"{path}{at}: {reason}")


class CorruptRecordError(CorruptStoreError):
    """A commit-log record has a wrong magic, length or CRC."""


class CorruptIndexError(CorruptStoreError):
    """An index file contradicts its own header, its length or the log."""


class CorruptConsumeQueueError(CorruptStoreError):
    """A consume-queue file has a wrong length, or a unit contradicts the log."""


class CorruptCheckpointError(CorruptStoreError):
    """The checkpoint holds what cannot be a time."""


class CorruptConfigFileError(CorruptStoreError):
    """A JSON file below ``config/`` and its backup can both not be parsed."""
