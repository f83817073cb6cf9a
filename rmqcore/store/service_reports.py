"""What its services and its trace report of a store that is open for writing."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rmqcore.errors import DiskFullError
from rmqcore.services.running_flags import RunningFlag

if TYPE_CHECKING:
    from rmqcore.files.commit_log import CommitLog
    from rmqcore.files.commit_log_writer import CommitLogWriter
    from rmqcore.files.store_trace import Numbers, StoreTrace, TraceRow
    from rmqcore.native.log._tail import LogTail
    from rmqcore.recovery.report import RecoveryReport
    from rmqcore.services.allocate import AllocateMappedFileService
    from rmqcore.services.reput import ReputMessageService
    from rmqcore.services.running_flags import RunningFlags
    from rmqcore.services.store_stats import StoreStatsService

_PREPARE_AT = 4


class ServiceReports:
    """What services report to a store, and its trace; a part of `DefaultMessageStore`."""

    log: CommitLog
    flags: RunningFlags
    recovery_report: RecoveryReport
    _allocate: AllocateMappedFileService
    _closed: bool
    _forked: bool
    _is_slave: bool
    _log_writer: CommitLogWriter
    _noted_flags = RunningFlag(0)
    _reput: ReputMessageService
    _stats: StoreStatsService
    _tail: LogTail
    _trace: StoreTrace
    _was_clean: bool

    def _see_new(self) -> None:
        raise NotImplementedError

    # ---- what services report

    def _progressed(self, offset: int) -> None:
        """Make the next log file ready once a part of the current one is used."""
        file_size, end = self.log.queue.file_size, self._tail.max_offset
        self._stats.dispatch_lagged(end - offset)
        self._trace.dispatched()
        if end % file_size > file_size // _PREPARE_AT:
            behind = end - end % file_size + file_size
            self._allocate.prepare(self.log.queue.path_of(behind), behind)

    def _service_failed(self, error: BaseException) -> None:
        self.flags.raise_flag(
            RunningFlag.NOT_WRITEABLE,
            f"a background service ended: {type(error).__name__}: {error}; close the store, mend "
            "the cause and open it again",
        )

    def _dispatch_refused(self, error: OSError | None) -> None:
        """Refuse puts while what is derived from them cannot be written; what was put stays."""
        full, what = isinstance(error, DiskFullError), "consume queues or index"
        reason = f"no room for {what}: {error}; puts resume when there is"
        self.flags.set_flag(RunningFlag.LOGIC_DISK_FULL, full, reason)
        reason = f"{what} cannot be written: {error}; tried again each second, 30 times in all"
        broken = error is not None and not full
        self.flags.set_flag(RunningFlag.WRITE_LOGICS_QUEUE_ERROR, broken, reason)

    def _room_again(self) -> bool:
        if RunningFlag.LOGIC_DISK_FULL not in self.flags:
            return False
        self._see_new()
        return RunningFlag.LOGIC_DISK_FULL not in self.flags

    def _flags_changed(self, flags: RunningFlags) -> None:
        appends = flags.writeable and not (self._closed or self._forked)
        self._tail.writable = appends and not self._is_slave
        self._tail.follows = appends and self._is_slave
        self._note_flags(flags)

    # ---- the trace

    def trace(self) -> list[TraceRow]:
        """The store's last 200 events, newest last: puts, rolls, flushes, dispatches and the like.

        Those of earlier openings stand in front of its own; docs/cli.md says what they tell. Also
        of a store that is closed.
        """
        return self._trace.rows()

    def _note_opening(self) -> None:
        self._trace.open()
        left = "was closed in order" if self._was_clean else "was not closed"
        self._trace.note("open", os.getpid(), f"the store {left}")

    def _note_recovery(self) -> None:
        """Note what recovery has found; from now on rows have numbers."""
        report = self.recovery_report
        self._trace.watch(self._numbers)
        found = [f"{report.ending.value} from {report.start_offset}"]
        if report.dropped_bytes:
            found.append(f"{report.dropped_bytes} bytes cut off")
        for what in ("dropped_records", "units_dropped", "damaged", "findings"):
            value = getattr(report, what)
            if count := value if isinstance(value, int) else len(value):
                found.append(f"{count} {what}")
        self._trace.note("verdict", report.records, ", ".join(found))

    def _note_flags(self, flags: RunningFlags) -> None:
        if flags.bits != self._noted_flags:
            self._noted_flags = flags.bits
            self._trace.note("flag", flags.bits, flags.why_not_writable() or "none is up")

    def _numbers(self) -> Numbers:
        tail = self._tail
        return (
            tail.max_offset,
            self._log_writer.flushed_offset,
            self._reput.offset,
            tail.counts[0],
        )
