"""Whole records behind the end of a log, or of one of its files, and what the queues say of them.

Behind the end of the log lies what was there before it was once cut.

When RocketMQ recovers from a crash it ends its log at the first place that is no record, and puts
what comes next there. It leaves the bytes behind, so whole records of before may follow the last
new one. They name their own physical offset, but they are older than what is in front of them.

A clock may have stepped back, so times prove nothing. What proves it is a number that was given
again: the queue leads to another whole record, in front, which has the very place that the record
behind names. The log had been cut in front of that one, so what follows it was cut off, too, unless
a queue leads there.

Behind an end-of-file record nothing counts, unless a queue leads there: then that is damage.

Source: RocketMQ store/MappedFileQueue.java, truncateDirtyFiles.
"""

from __future__ import annotations

from dataclasses import replace

from rmqcore._codec import decode_record
from rmqcore.doctor.foreign import deleted_topics, is_led_to, records_of, was_given_again
from rmqcore.doctor.log_survey import (
    FileSurvey,
    Gap,
    last_with_records,
    survey_again,
)
from rmqcore.native.format._numbers import SMALLEST_RECORD_SIZE
from rmqcore.rebuild.cold_store import light_queues
from rmqcore.scan.plan import LogPlan
from rmqcore.scan.unit_files import UnitFiles

_REASON = "what follows is in no queue, and its numbers were given again: the log was cut here"


def drop_stale_tail(log: LogPlan, surveys: list[FileSurvey]) -> None:
    """End the log in front of records that are left of a longer one.

    Args:
        log: as it will be repaired.
        surveys: of its files in their order; the last one with records is replaced.
    """
    number = last_with_records(surveys)
    if number < 0:
        return
    last = surveys[number]
    gap = next((one for one in last.gaps if _is_older(one, last)), None)
    if gap is None:
        return
    end = _stale_from(log, gap, last)
    if end is not None:
        before = _look_again(log, last, stop=end)
        used = last.end + last.used_behind - end
        surveys[number] = replace(before, used_behind=used, reason=_REASON)


def _is_older(gap: Gap, last: FileSurvey) -> bool:
    """True when time steps back at a gap, and does not come up again."""
    return max(gap.following_ms, last.last_ms) < gap.timestamp_ms


def _stale_from(log: LogPlan, gap: Gap, last: FileSurvey) -> int | None:
    """Where the log was cut: from there on its numbers were given again, and no queue leads there.

    None when nothing proves that it was.
    """
    end: int | None = None
    files = UnitFiles(log.directory, log.config.mapped_file_size_consume_queue)
    deleted = deleted_topics(log)
    try:
        for message in records_of(log, last, gap.start):
            if is_led_to(files, message):
                return None
            if end is None and was_given_again(log, files, message, gap.start, deleted):
                end = message.phy_offset
    finally:
        files.close()
    return gap.start if end == gap.stop else end


def look_behind_blanks(log: LogPlan, surveys: list[FileSurvey]) -> None:
    """Take an end-of-file record for damage where a queue leads to a whole record behind it.

    Args:
        log: of the store.
        surveys: of its files; those that are concerned are replaced.
    """
    files = UnitFiles(log.directory, log.config.mapped_file_size_consume_queue)
    try:
        for number, file in enumerate(surveys):
            record = log.record_at(file.behind_blank) if file.behind_blank >= 0 else None
            if record is not None and is_led_to(files, decode_record(record)):
                surveys[number] = _look_again(log, file, past_blank=True)
    finally:
        files.close()


def _look_again(
    log: LogPlan, file: FileSurvey, *, stop: int | None = None, past_blank: bool = False
) -> FileSurvey:
    return survey_again(
        file,
        log.config.mapped_file_size_commit_log,
        gap_min=SMALLEST_RECORD_SIZE,
        verify_crc_property=log.config.force_verify_prop_crc,
        multi_dispatch=light_queues(log),
        deleted=deleted_topics(log),
        stop=stop,
        past_blank=past_blank,
    )
