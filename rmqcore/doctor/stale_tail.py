"""Whole records behind the end of a log: what was there before the log was once cut.

When RocketMQ recovers from a crash it ends its log at the first place that is no record, and puts
what comes next there. It leaves the bytes behind, so whole records of before may follow the last
new one. They name their own physical offset, but they are older than what is in front of them.

Source: RocketMQ store/MappedFileQueue.java, truncateDirtyFiles.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from rmqcore._codec import decode_record
from rmqcore.doctor.log_survey import (
    FileSurvey,
    Gap,
    has_offset,
    last_with_records,
    merged_runs,
    survey_until,
)
from rmqcore.files.unit_file import UNIT_HEAD
from rmqcore.native.format._message import MessageExt
from rmqcore.native.format._numbers import SMALLEST_RECORD_SIZE, SysFlag
from rmqcore.rebuild.cold_store import light_queues
from rmqcore.scan.plan import LogPlan
from rmqcore.scan.unit_files import UnitFiles

#: so many records behind a gap are looked at
_LOOKED_AT_MAX = 10_000
_REASON = "what follows is older and in no queue: it is left of a log that was cut"


def drop_stale_tail(log: LogPlan, surveys: list[FileSurvey]) -> None:
    """End the log in front of records that are left of a longer one."""
    number = last_with_records(surveys)
    if number < 0:
        return
    last = surveys[number]
    for gap in last.gaps:
        if _is_older(gap, last):
            before = survey_until(
                last,
                gap.start,
                log.config.mapped_file_size_commit_log,
                gap_min=SMALLEST_RECORD_SIZE,
                verify_crc_property=log.config.force_verify_prop_crc,
                multi_dispatch=light_queues(log),
            )
            if _is_left_over(log, gap, [*surveys[:number], before]):
                used = last.end + last.used_behind - gap.start
                surveys[number] = replace(before, used_behind=used, reason=_REASON)
                return


def _is_older(gap: Gap, last: FileSurvey) -> bool:
    """True when time steps back at a gap, and does not come up again."""
    return max(gap.following_ms, last.last_ms) < gap.timestamp_ms


def _is_left_over(log: LogPlan, gap: Gap, before: list[FileSurvey]) -> bool:
    """True when no queue leads to the records behind, and something else has their numbers."""
    runs = merged_runs(before)
    files = UnitFiles(log.directory, log.config.mapped_file_size_consume_queue)
    replaced = False
    try:
        for message in islice(_records(log, gap.stop), _LOOKED_AT_MAX):
            key, offset = (message.topic, message.queue_id), message.queue_offset
            known = files.has(key)
            phy_offset, _ = UNIT_HEAD.unpack_from(files.units(key, offset, 1))
            if known and phy_offset == message.phy_offset:
                return False
            replaced |= known or has_offset(runs.get(key, []), offset)
    finally:
        files.close()
    return replaced


def _records(log: LogPlan, at: int) -> Iterator[MessageExt]:
    """The records from an offset on that have a place in a queue of single messages."""
    while (record := log.record_at(at)) is not None:
        message = decode_record(record)
        kind = message.sys_flag & SysFlag.TRANSACTION_MASK
        if kind in (0, SysFlag.TRANSACTION_COMMIT) and not message.sys_flag & SysFlag.INNER_BATCH:
            yield message
        at += len(record)
