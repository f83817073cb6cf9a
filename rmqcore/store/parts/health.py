"""`Health`: why a store takes no puts, and what services report of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmqcore.errors import DiskFullError
from rmqcore.services.running_flags import RunningFlag, RunningFlags

if TYPE_CHECKING:
    from rmqcore.files.store_trace import Note
    from rmqcore.native.log._tail import LogTail
    from rmqcore.store.parts.handle import Handle


class Health:
    """The flags of a store, which its log's tail obeys.

    Args:
        handle: says whether the store is open.
        tail: refuses puts, or a master's bytes, while a flag is up.
        note: takes down which flags are up.
        is_slave: whether the log is a master's.

    Attributes:
        flags: what is wrong, each with its reason.
    """

    def __init__(self, handle: Handle, tail: LogTail, note: Note, *, is_slave: bool) -> None:
        self._handle = handle
        self._tail = tail
        self._note = note
        self._is_slave = is_slave
        self._noted = RunningFlag(0)
        self.flags = RunningFlags(self._changed)

    # ---- what services report

    def service_failed(self, error: BaseException) -> None:
        """Refuse puts for good: a service has ended, or a flush has failed."""
        self.flags.raise_flag(
            RunningFlag.NOT_WRITEABLE,
            f"a background service ended: {type(error).__name__}: {error}; close the store, mend "
            "the cause and open it again",
        )

    def dispatch_refused(self, error: OSError | None) -> None:
        """Refuse puts while what is derived from them cannot be written; what was put stays."""
        what, full, reason = "consume queues or index", False, ""
        if isinstance(error, DiskFullError):
            full = True
            reason = f"no room for {what}: {error.path}: {error.reason}; puts resume when there is"
        self.flags.set_flag(RunningFlag.LOGIC_DISK_FULL, full, reason)
        reason = f"{what} cannot be written: {error}; tried again each second; puts resume then"
        broken = error is not None and not full
        self.flags.set_flag(RunningFlag.WRITE_LOGICS_QUEUE_ERROR, broken, reason)

    def commit_refused(self, error: DiskFullError | None) -> None:
        """Refuse puts while the transient pool finds no room in the log; what was put stays."""
        reason = None
        if error is not None:
            reason = f"no room for what the transient pool holds: {error.path}; puts resume then"
        self.flags.set_flag(RunningFlag.POOL_DISK_FULL, error is not None, reason)

    @property
    def no_room_to_dispatch(self) -> bool:
        """Whether puts are refused until what they bring finds room beside the log."""
        return RunningFlag.LOGIC_DISK_FULL in self.flags

    def begin(self) -> None:
        """Take puts from now on, or a master's bytes, as far as no flag is up."""
        self._changed(self.flags)

    def _changed(self, flags: RunningFlags) -> None:
        appends = flags.writeable and self._handle.usable
        self._tail.writable = appends and not self._is_slave
        self._tail.follows = appends and self._is_slave
        if flags.bits != self._noted:
            self._noted = flags.bits
            self._note("flag", flags.bits, flags.why_not_writable() or "none is up")

    # ---- why

    def why_not_writable(self) -> str | None:
        """Why puts are refused at this moment; None when they are not."""
        if self._handle.forked:
            return "this handle belongs to the parent process"
        if self._handle.closed:
            return "the store has been closed"
        if self._is_slave:
            return "the store is a slave's (brokerRole=SLAVE): put into its master"
        return self.flags.why_not_writable()

    def why_not_appended(self) -> str | None:
        """Why a master's bytes are refused at this moment; None when they are not."""
        if not self._is_slave:
            return "the store is no slave's: brokerRole=SLAVE lets it follow a master"
        return self.flags.why_not_writable()
