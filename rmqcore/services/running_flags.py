"""Running flags: why a store takes no puts at this moment."""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import IntFlag


class RunningFlag(IntFlag):
    """Reasons against reading or writing; the bits are RocketMQ's and appear in its admin tools.

    Of rmqcore's own: ``POOL_DISK_FULL``.
    """

    NOT_READABLE = 0x01
    NOT_WRITEABLE = 0x02
    WRITE_LOGICS_QUEUE_ERROR = 0x04
    WRITE_INDEX_FILE_ERROR = 0x08
    DISK_FULL = 0x10
    FENCED = 0x20
    LOGIC_DISK_FULL = 0x40
    POOL_DISK_FULL = 0x80


_AGAINST_PUTS = ~RunningFlag.NOT_READABLE
_DISK_FULL = RunningFlag.DISK_FULL | RunningFlag.LOGIC_DISK_FULL | RunningFlag.POOL_DISK_FULL
_USUAL_REASONS = {
    RunningFlag.NOT_READABLE: "the store is not readable",
    RunningFlag.NOT_WRITEABLE: "the store has been made read-only; open it again",
    RunningFlag.WRITE_LOGICS_QUEUE_ERROR: (
        "a consume queue could not be written; open the store again, it is derived from the log"
    ),
    RunningFlag.WRITE_INDEX_FILE_ERROR: (
        "the index could not be written; open the store again, it is derived from the log"
    ),
    RunningFlag.DISK_FULL: "the disk of the commit log is nearly full; puts resume below the limit",
    RunningFlag.FENCED: "another master has taken over; this one is fenced off",
    RunningFlag.LOGIC_DISK_FULL: (
        "the disk of the consume queues is nearly full; puts resume below the limit"
    ),
    RunningFlag.POOL_DISK_FULL: "the transient pool finds no room in the log; puts resume then",
}


class RunningFlags:
    """The set of `RunningFlag`, each with its reason in a sentence.

    - A flag that is raised twice keeps its first reason: what went wrong first.
    - ``writeable`` is a plain attribute: every put reads it.

    Threads: any.
    Source: RocketMQ store/RunningFlags.java.
    Differs: RocketMQ's ``getAndMake...`` answer with the former state in two opposite senses; here
        `raise_flag` and `clear_flag` tell whether they changed anything.
    """

    __slots__ = ("_lock", "_on_change", "_reasons", "bits", "writeable")

    def __init__(self, on_change: Callable[[RunningFlags], None] | None = None) -> None:
        """Begin with every flag down.

        Args:
            on_change: called after a flag went up or down, while changes wait.
        """
        self._lock = threading.RLock()
        self._on_change = on_change
        self._reasons: dict[RunningFlag, str] = {}
        self._refresh()

    def raise_flag(self, flag: RunningFlag, reason: str | None = None) -> bool:
        """Raise one flag.

        Args:
            flag: what is wrong.
            reason: a sentence for ``why_not_writable``; None takes the usual one.

        Returns:
            True when the flag was down before.
        """
        with self._lock:
            if flag in self._reasons:
                return False
            self._reasons[flag] = reason or _USUAL_REASONS[flag]
            self._refresh()
            return True

    def clear_flag(self, flag: RunningFlag) -> bool:
        """Take one flag down.

        Returns:
            True when it was up before.
        """
        with self._lock:
            cleared = self._reasons.pop(flag, None) is not None
            self._refresh()
            return cleared

    def set_flag(self, flag: RunningFlag, up: bool, reason: str | None = None) -> bool:
        """Raise or take down one flag; returns whether that changed anything.

        Args:
            flag: which.
            up: whether it is wrong now.
            reason: as that of `raise_flag`.
        """
        return self.raise_flag(flag, reason) if up else self.clear_flag(flag)

    def __contains__(self, flag: RunningFlag) -> bool:
        return bool(self.bits & flag)

    @property
    def disk_full(self) -> bool:
        """True when puts are refused for want of room, and for nothing else."""
        against = self.bits & _AGAINST_PUTS
        return bool(against) and not against & ~_DISK_FULL

    def why_not_writable(self) -> str | None:
        """The reasons why puts are refused, gravest first; None when they are not."""
        # a copy without the lock: a signal handler that closes the store inside it would wait for
        # services that wait for the lock
        known = dict(self._reasons)
        reasons = [known[flag] for flag in sorted(known) if flag & _AGAINST_PUTS]
        return "; ".join(reasons) or None

    def _refresh(self) -> None:
        bits = RunningFlag(0)
        for flag in self._reasons:
            bits |= flag
        self.bits = bits
        self.writeable = not bits & _AGAINST_PUTS
        if self._on_change is not None:
            self._on_change(self)

    def __repr__(self) -> str:
        return f"RunningFlags({self.bits!r})"
