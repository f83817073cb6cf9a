"""Numbers, and flags, that records had by their own CRC of all, though their headers say others.

A record in a gap may be whole but for its queue offset: reads that demand the CRC property refuse
it. Which number it had tells that property, out of those that its queue lacks there, whatever lies
beside it, and whether the queue is there or not. So it tells whether it is a half message.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Final

from rmqcore._codec import check_record, decode_record
from rmqcore.doctor.batch_numbers import WrongNumber
from rmqcore.doctor.log_survey import (
    FileSurvey,
    Gap,
    OffsetRange,
    OffsetRanges,
    is_blank_at,
    last_with_records,
)
from rmqcore.doctor.wrong_queue_records import (
    CRC_PROPERTY,
    as_it_was,
    has_place,
    is_had_again,
    places_named_by,
    wrong_number,
)
from rmqcore.errors import CorruptStoreError
from rmqcore.files.log_walker import find_good_record
from rmqcore.files.mapped_file import MappedFile, OpenFiles
from rmqcore.message import MessageExt
from rmqcore.native.format._numbers import SysFlag
from rmqcore.scan.plan import LogPlan

#: So many numbers behind the one before, and before the one behind, are tried.
_TRIED_MAX: Final = 64
#: What makes a half message of a message, and of a half message one that was committed.
_BITS: Final = (SysFlag.TRANSACTION_PREPARED, SysFlag.TRANSACTION_COMMIT)


def add_proven_numbers(
    log: LogPlan, surveys: list[FileSurvey], runs: OffsetRanges
) -> list[WrongNumber]:
    """Take out of the gaps what has its number by its CRC; the runs get it.

    Args:
        log: of the store.
        surveys: of its files, with gaps where records contradict their CRC property.
        runs: what the log has of each queue.

    Returns:
        the records, with the numbers that they had.
    """
    found: list[WrongNumber] = []
    last = last_with_records(surveys)
    for number, file in enumerate(surveys):
        if number > max(0, last) and not surveys[number - 1].ends_in_blank:
            break
        found += _in_gaps(log, surveys, file, runs)
        if not file.ends_in_blank:
            found += _at_the_end(log, file, runs)
    return found


def _in_gaps(
    log: LogPlan, surveys: list[FileSurvey], file: FileSurvey, runs: OffsetRanges
) -> Iterator[WrongNumber]:
    for gap in list(file.gaps):
        for record in _whole_records(file, gap):
            one = _proven(record, file, runs)
            if one is not None and is_had_again(log, surveys, one):
                _have_again(file, runs, decode_record(as_it_was(record, one)))
                yield one


def _at_the_end(log: LogPlan, file: FileSurvey, runs: OffsetRanges) -> Iterator[WrongNumber]:
    """Records behind the last one that a file has, which ends behind them then."""
    begin, stop = file.end, file.start + log.file_size
    while (record := log.record_at(file.end)) is not None:
        one = _proven(record, file, runs)
        if one is None or file.end + len(record) > stop:
            break
        _have_again(file, runs, decode_record(as_it_was(record, one)))
        file.end += len(record)
        file.used_behind = max(0, file.used_behind - len(record))
        yield one
    ends_at = file.end - file.start
    file.ends_in_blank = file.end > begin and is_blank_at(file.path, ends_at, log.file_size)


def _whole_records(file: FileSurvey, gap: Gap) -> Iterator[bytes]:
    """What is whole in a gap but for what only the CRC property of a record covers."""
    size, stop = max(0, file.size), gap.stop - file.start
    mapped = MappedFile(file.path, size, file.start, OpenFiles(), writable=False)
    try:
        at = gap.start - file.start
        while found := find_good_record([mapped], at, stop, past_bad_sectors=True):
            at = found.phy_offset - file.start
            yield mapped.read_bytes(at, found.size)
            at += found.size
    finally:
        mapped.close()


def _proven(record: bytes, file: FileSurvey, runs: OffsetRanges) -> WrongNumber | None:
    """A record with the number, or flag, with which it agrees with its CRC; None without one.

    The number of a batch stands in a property, too; see `batch_numbers`.
    """
    message = decode_record(record)
    if "INNER_NUM" in message.properties or CRC_PROPERTY not in record:
        return None
    found = runs.get((message.topic, message.queue_id), [])
    # what is in no queue yet, or never will be, has the number 0
    for number in _lacking_at(found, message.phy_offset) if has_place(message) else (0,):
        one = wrong_number(message, number, file.path, "its CRC")
        if _agrees(as_it_was(record, one)):
            return one
    for bit in _BITS if message.sys_flag >= 0 else ():
        one = _other_flag(message, file.path, message.sys_flag ^ bit)
        if _agrees(as_it_was(record, one)):
            return one
    return None


def _other_flag(message: MessageExt, path: Path, flag: int) -> WrongNumber:
    what = f"the header says flag {message.sys_flag}, its CRC {flag}"
    saves = "the message, and whether a queue leads to it"
    return WrongNumber(message.phy_offset, message.queue_offset, path, what, saves, flag=flag)


def _agrees(record: bytes) -> bool:
    """Whether a record is the one that its CRC property tells of."""
    try:
        check_record(record, verify_crc_property=True)
    except CorruptStoreError:
        return False
    return True


def _lacking_at(runs: list[OffsetRange], phy_offset: int) -> Iterator[int]:
    """Numbers that a queue may have at a place: behind the one before, before the one behind."""
    at = bisect_right(runs, phy_offset, key=lambda one: one.phy_offset)
    low = runs[at - 1].stop if at else 0
    high = runs[at].first if at < len(runs) else low + _TRIED_MAX
    if high <= low:
        # the queue begins anew in between
        begun = range(min(high, _TRIED_MAX))
        return chain(range(low, low + _TRIED_MAX), begun)
    near = range(low, min(high, low + _TRIED_MAX))
    return chain(near, reversed(range(max(near.stop, high - _TRIED_MAX), high)))


def _have_again(file: FileSurvey, runs: OffsetRanges, message: MessageExt) -> None:
    """Count a record; let the runs have it with its number, and with those of light queues."""
    file.records += 1
    file.first_ms = file.first_ms or message.store_timestamp_ms
    file.last_ms = max(file.last_ms, message.store_timestamp_ms)
    if not has_place(message):
        return
    for key, first in places_named_by(message):
        found = runs.setdefault(key, [])
        at = bisect_right(found, message.phy_offset, key=lambda one: one.phy_offset)
        found.insert(at, OffsetRange(first, first + 1, message.phy_offset))
