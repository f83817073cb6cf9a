"""Numbers that records had by their own CRC of the whole record, though their headers say others.

A record in a gap may be whole but for its queue offset: reads that demand the CRC property refuse
it. Which number it had tells that property, out of those that its queue lacks there, whatever lies
beside it, and whether the queue is there or not.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import chain
from typing import Final

from rmqcore._codec import check_record, decode_record
from rmqcore.doctor.batch_numbers import NUMBER_AT, NUMBER_SIZE, WrongNumber
from rmqcore.doctor.log_survey import (
    FileSurvey,
    OffsetRange,
    OffsetRanges,
    last_with_records,
)
from rmqcore.doctor.wrong_queue_records import (
    has_place,
    is_had_again,
    places_named_by,
    wrong_number,
)
from rmqcore.errors import CorruptStoreError
from rmqcore.message import MessageExt
from rmqcore.scan.plan import LogPlan

#: So many numbers behind the one before, and before the one behind, are tried.
_TRIED_MAX: Final = 64
_CRC_PROPERTY: Final = b"__CRC32#"


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
    return [*_in_gaps(log, surveys, runs), *_at_the_end(log, surveys, runs)]


def _in_gaps(log: LogPlan, surveys: list[FileSurvey], runs: OffsetRanges) -> Iterator[WrongNumber]:
    for file in surveys:
        for gap in list(file.gaps):
            for record in _whole_records(log, gap.start, gap.stop):
                one = _proven(record, file, runs)
                if one is not None and is_had_again(log, surveys, one):
                    _add_places(runs, decode_record(record), one.number)
                    yield one


def _at_the_end(
    log: LogPlan, surveys: list[FileSurvey], runs: OffsetRanges
) -> Iterator[WrongNumber]:
    """Records behind the last one that the log has, which ends behind them then."""
    if (last := last_with_records(surveys)) < 0 or surveys[last].ends_in_blank:
        return
    file = surveys[last]
    for record in _whole_records(log, file.end, file.start + log.file_size):
        one = _proven(record, file, runs)
        if one is None:
            return
        message = decode_record(record)
        _add_places(runs, message, one.number)
        file.records, file.last_ms = file.records + 1, message.store_timestamp_ms
        file.end += len(record)
        file.used_behind = max(0, file.used_behind - len(record))
        yield one


def _whole_records(log: LogPlan, start: int, stop: int) -> Iterator[bytes]:
    """Records that follow one another and are whole but for what only their CRC property covers."""
    while start < stop and (record := log.record_at(start)) is not None:
        if start + len(record) > stop:
            return
        yield record
        start += len(record)


def _proven(record: bytes, file: FileSurvey, runs: OffsetRanges) -> WrongNumber | None:
    """A record with the number with which it agrees with its CRC property; None without one.

    That of a batch stands in a property, too; see `batch_numbers`.
    """
    message = decode_record(record)
    if "INNER_NUM" in message.properties or _CRC_PROPERTY not in record:
        return None
    tried, found = bytearray(record), runs.get((message.topic, message.queue_id), [])
    # what is in no queue yet, or never will be, has the number 0
    for number in _lacking_at(found, message.phy_offset) if has_place(message) else (0,):
        tried[NUMBER_AT : NUMBER_AT + NUMBER_SIZE] = number.to_bytes(NUMBER_SIZE, "big")
        try:
            check_record(tried, verify_crc_property=True)
        except CorruptStoreError:
            continue
        return wrong_number(message, number, file.path, "its CRC")
    return None


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


def _add_places(runs: OffsetRanges, message: MessageExt, number: int) -> None:
    """Let the runs have a record with its number, and with those of light queues."""
    if not has_place(message):
        return
    for place, (key, named) in enumerate(places_named_by(message)):
        first = named if place else number
        found = runs.setdefault(key, [])
        at = bisect_right(found, message.phy_offset, key=lambda one: one.phy_offset)
        found.insert(at, OffsetRange(first, first + 1, message.phy_offset))
