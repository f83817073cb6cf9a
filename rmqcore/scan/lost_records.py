"""What a store's log has lost, for who scans it: its rows are lacking, and nothing else says so."""

from __future__ import annotations

import logging

from rmqcore.files.store_mark import StoreMark
from rmqcore.scan.any_log import AnyLog
from rmqcore.scan.plan import LogPlan

_log = logging.getLogger(__name__)


def say_what_is_lost(log: AnyLog) -> None:
    """Log what the last writer of a store had on the disk, and its log no longer has.

    Nothing is said of an archive, of a store with one, and beside a writer.

    Args:
        log: of the store.
    """
    if not isinstance(log, LogPlan):
        return
    try:
        line = lost_records(log)
    except OSError as error:
        # all reads do without what tells it
        _log.warning("%s: whether records of its log are lost is not known: %s", log.place, error)
        return
    if line:
        text = "%s: %s, and rows of it are lacking; `rmqcore doctor %s` says what can be had again"
        _log.warning(text, log.place, line, log.place)


def lost_records(log: LogPlan) -> str:
    """Where a log ended or began that is shorter now, in words; empty for a whole one.

    Args:
        log: of the store; a writer may have gone on with it since.

    Raises:
        OSError: the mark, the lock or the log cannot be read.
    """
    mark = StoreMark(log.directory)
    mark.load()
    if log.directory.is_locked():
        return ""
    if not log.is_current():
        # what the mark knows was perhaps put behind its end
        log = LogPlan(log.directory, log.config, strict=False)
    if not mark.is_known:
        is_short = log.claimed_end > log.end and not log.directory.was_aborted
        known = f"and consume queues know records up to {log.claimed_end}"
        return f"the log ends at {log.end}, {known}" if is_short else ""
    if not _is_of(mark, log):
        return ""
    if log.end < mark.log_end:
        return f"the log ends at {log.end}, and has ended at {mark.log_end}"
    # whoever has written since may have had a retention
    as_closed = log.end == mark.log_end and not log.directory.was_aborted
    if as_closed and log.start > mark.first_offset:
        return f"the log begins at {log.start}, and has begun at {mark.first_offset}"
    return ""


def _is_of(mark: StoreMark, log: LogPlan) -> bool:
    """Whether a mark is of this log; where its first record is lost it is believed."""
    if not log.files or mark.first_offset < log.start:
        return True
    record = log.good_record_at(mark.first_offset)
    if record is None:
        return mark.first_offset == log.start
    return record.store_timestamp_ms == mark.first_timestamp_ms
