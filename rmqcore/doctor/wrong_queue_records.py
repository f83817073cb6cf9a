"""Records whose header was damaged: the body is right, but they name another place in a queue.

The CRC of a record covers its body only. A header that names a wrong topic, queue or queue offset
is told by the consume queue that leads to the record, or by a queue offset that no queue can have.
Such a record would take the place of another message, or make a queue where none was.

A consume queue may be what is wrong, such as one whose file was swapped with another's, or whose
directory has another's name. So it is believed only where the log itself lacks the number between
two that it has, the units of these two lead to them, the record lies between them, and no record
that the queue contradicts is led to from the place that it names, or fits between the two that its
own queue has beside it. Of two records that name one place the queue may also say whose it is, when
it leads to the other one from another place. Else a record is kept, with the place that it names.

Where it is the number alone that is wrong, by the queue's word and by the numbers beside it in the
log, the record gets the one that it had. All others are given up.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path

import numpy as np

from rmqcore._codec import check_record, decode_record
from rmqcore.doctor.batch_numbers import (
    FLAG_AT,
    FLAG_SIZE,
    NUMBER_AT,
    NUMBER_SIZE,
    WrongNumber,
)
from rmqcore.doctor.log_survey import (
    FileSurvey,
    Gap,
    OffsetRange,
    OffsetRanges,
    QueueKey,
    gaps_of,
    has_offset,
    lacking,
    merged_batch_runs,
    present_runs,
)
from rmqcore.errors import CorruptStoreError
from rmqcore.files.consume_queue import HOLE_UNITS_MAX, LIGHT_QUEUE_PREFIX
from rmqcore.files.deleted_topics import DeletedTopics
from rmqcore.files.service_topics import HALF_TOPIC
from rmqcore.message import light_numbers
from rmqcore.native.format._message_ext import MessageExt
from rmqcore.native.format._numbers import (
    FILLER_SIZE,
    SMALLEST_RECORD_SIZE,
    UNIT_SIZE,
    SysFlag,
)
from rmqcore.rebuild.consume_queues import queue_keys
from rmqcore.scan.plan import LogPlan
from rmqcore.scan.unit_files import UNITS, UnitFiles

#: At most this many units of one queue are followed into the log.
_FOLLOWED_MAX = 10_000
#: No queue has a number from here on: its unit would lie where no file has a place.
_NUMBERS_END = 1 << 58
#: In each record that has a CRC of all of it.
CRC_PROPERTY = b"__CRC32#"
_TOPIC_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")
_REASON = "the body is whole, but the header names a place in a queue that is not the record's"


def add_wrong_queue_records(
    log: LogPlan, surveys: list[FileSurvey], runs: OffsetRanges, deleted: DeletedTopics
) -> list[WrongNumber]:
    """Make a gap of each record whose header names a wrong place; its claim goes from the runs.

    Args:
        log: of the store.
        surveys: of its files; get the gaps.
        runs: what the log has of each queue, but for topics that were deleted.
        deleted: these; where they say so, all runs of a queue are of one topic.

    Returns:
        of which it is known what number they had: these are no gaps, and have it in the runs.
    """
    places: set[int] = set()
    files = UnitFiles(log.directory, log.config.mapped_file_size_consume_queue)
    try:
        left_out = [
            one
            for key in queue_keys(log.directory.consume_queue)
            for one in _left_out(log, surveys, files, key, runs, deleted.counts_from(key[0]))
        ]
        for key, found in runs.items():
            _part_where_begun(log, files, key, found)
            is_told = deleted.since(key[0]) > log.start
            outliers = _outliers(files, key, found, of_one_topic=is_told)
            places.update(one.phy_offset for one in outliers)
        for key in queue_keys(log.directory.consume_queue):
            places.update(_contradicted(log, files, key, runs))
        for key, batch_runs in merged_batch_runs(surveys).items():
            places.update(_contradicted_batches(log, files, key, batch_runs))
        places.update(_dispossessed(log, files, runs))
        wrong = _given_up_or_renumbered(log, surveys, files, runs, sorted(places))
        return [*left_out, *wrong, *_jumped_at_ends(log, surveys, files, runs)]
    finally:
        files.close()


def _left_out(
    log: LogPlan,
    surveys: list[FileSurvey],
    files: UnitFiles,
    key: QueueKey,
    runs: OffsetRanges,
    begin: int,
) -> Iterator[WrongNumber]:
    """Records that say of themselves that no queue leads to them, as their queue does.

    - They name the very place from which it does, and say that they are half messages, or were
      rolled back. Those never get one: the bit that makes such a record of one has rotted.
    - Or they name a number that no queue can have, at an end of the one that leads to them.

    The runs get them, but for those of a topic that was deleted: they lie in front of `begin`.
    """
    found = runs.get(key, [])
    first, end = files.bounds(key)[0], files.end(key)
    inner = lacking(found)
    ends = [(first, found[0].first), (found[-1].stop, end)] if found else [(first, end)]
    for low, high in [*ends, *inner]:
        for number, message in list(_messages(log, files, key, low, high)):
            at = message.phy_offset
            file = _file_at(surveys, at)
            # behind the end lies what a writer has put since, or what is cut off
            if not begin <= at < file.end or _gap_at(surveys, at) is not None:
                continue
            one = _wrongly_left_out(message, key, number, found, file.path)
            if one is None:
                continue
            _insert(found, number, at)
            runs[key] = found
            for light, place in list(places_named_by(message))[1:]:
                if light in runs and not has_place(message):
                    _insert(runs[light], place, at)
            yield one


def _wrongly_left_out(
    message: MessageExt, key: QueueKey, number: int, runs: list[OffsetRange], path: Path
) -> WrongNumber | None:
    """A record as it was that a queue leads to from a number, where its header leaves it out."""
    named, named_number = (message.topic, message.queue_id), message.queue_offset
    if named == key and named_number == number and _has_rotted_to_half(message):
        return WrongNumber(
            message.phy_offset,
            number,
            path,
            "the header says that the message is in no queue, its queue that it is",
            "the message, which its queue leads to",
            flag=message.sys_flag & ~SysFlag.TRANSACTION_PREPARED,
        )
    is_beside = not runs or number in (runs[0].first - 1, runs[-1].stop)
    is_impossible = not 0 <= named_number < _NUMBERS_END
    if named == key and has_place(message) and is_beside and is_impossible:
        return wrong_number(message, number, path)
    return None


def _has_rotted_to_half(message: MessageExt) -> bool:
    """True for what is no half message, nor was rolled back, though its flag says so.

    One that its sender has sent as a half message is one, and one whose flag the CRC of the record
    agrees with is what it says, whatever leads to it.
    """
    if has_place(message) or message.sys_flag < 0:
        return False
    if message.properties.get("TRAN_MSG") == "true" and message.topic != HALF_TOPIC:
        return False
    record = bytes(message.record)
    if CRC_PROPERTY not in record:
        return True
    try:
        check_record(record, verify_crc_property=True)
    except CorruptStoreError:
        return True
    return False


def _insert(runs: list[OffsetRange], number: int, phy_offset: int) -> None:
    at = bisect_right(runs, phy_offset, key=lambda one: one.phy_offset)
    runs.insert(at, OffsetRange(number, number + 1, phy_offset))


def _given_up_or_renumbered(
    log: LogPlan,
    surveys: list[FileSurvey],
    files: UnitFiles,
    runs: OffsetRanges,
    places: list[int],
) -> list[WrongNumber]:
    """As `add_wrong_queue_records`, of records at these physical offsets."""
    messages = [decode_record(record) for at in places if (record := log.record_at(at)) is not None]
    for message in messages:
        if _gap_at(surveys, message.phy_offset) is not None:
            continue
        for key, queue_offset in places_named_by(message):
            _drop_claim(runs.get(key, []), message.phy_offset, queue_offset)
    found = []
    for message in messages:
        at = message.phy_offset
        file = _file_at(surveys, at)
        number = _number_beside(files, runs, message)
        if number is None and _gap_at(surveys, at) is None:
            gap = Gap(at, at + message.store_size, _REASON, message.store_timestamp_ms)
            file.gaps.append(gap)
            file.gaps.sort(key=lambda gap: gap.start)
        elif number is not None:
            one = wrong_number(message, number, file.path)
            if is_had_again(log, surveys, one):
                found.append(one)
            else:
                _drop_claim(runs[message.topic, message.queue_id], at, number)
    return found


def is_had_again(log: LogPlan, surveys: list[FileSurvey], one: WrongNumber) -> bool:
    """Tell whether a record is whole as it was; then it is in no gap any more.

    In a gap lies a record that contradicts its CRC property, which covers the number, where reads
    demand that.

    Args:
        log: of the store.
        surveys: of its files.
        one: the record.
    """
    file, gap = _file_at(surveys, one.phy_offset), _gap_at(surveys, one.phy_offset)
    if gap is None:
        # it may lie behind the last whole record, too
        return one.phy_offset < file.end
    record = as_it_was(log.record_at(one.phy_offset) or b"", one)
    try:
        check_record(record, verify_crc_property=True)
    except CorruptStoreError:
        return False
    parts = replace(gap, stop=one.phy_offset), replace(gap, start=one.phy_offset + len(record))
    left = [part for part in parts if part.stop > part.start]
    if any(part.stop - part.start < SMALLEST_RECORD_SIZE for part in left):
        return False
    at = file.gaps.index(gap)
    file.gaps[at : at + 1] = left
    return True


def as_it_was(record: bytes, one: WrongNumber) -> bytes:
    """The bytes of a record with the number, and the flag, that it had.

    Args:
        record: as it is in the log.
        one: what it had.
    """
    raw = bytearray(record)
    raw[NUMBER_AT : NUMBER_AT + NUMBER_SIZE] = one.number.to_bytes(NUMBER_SIZE, "big")
    if one.flag >= 0:
        raw[FLAG_AT : FLAG_AT + FLAG_SIZE] = one.flag.to_bytes(FLAG_SIZE, "big")
    return bytes(raw)


def _gap_at(surveys: list[FileSurvey], phy_offset: int) -> Gap | None:
    """The gap that a physical offset lies in; None for none."""
    gaps = _file_at(surveys, phy_offset).gaps
    return next((gap for gap in gaps if gap.start <= phy_offset < gap.stop), None)


def _file_at(surveys: list[FileSurvey], phy_offset: int) -> FileSurvey:
    """The file that a physical offset lies in."""
    return surveys[bisect_right(surveys, phy_offset, key=lambda file: file.start) - 1]


def wrong_number(
    message: MessageExt, number: int, path: Path, by: str = "its queue"
) -> WrongNumber:
    """A record whose header has another number than it had.

    Args:
        message: of the record.
        number: that it had.
        path: of its log file.
        by: what says so.
    """
    what = f"the header says queue offset {message.queue_offset}, {by} {number}"
    saves = f"the message under its number, which {by} says"
    return WrongNumber(message.phy_offset, number, path, what, saves)


def _jumped_at_ends(
    log: LogPlan, surveys: list[FileSurvey], files: UnitFiles, runs: OffsetRanges
) -> Iterator[WrongNumber]:
    """Records at the ends of queues whose numbers jump ahead, by their queues' word alone.

    Where something is damaged in front of one, the queue may be what is wrong: RocketMQ passes over
    the lost number in a queue, and not in records. So it is where the number goes on in the log:
    RocketMQ puts a message at the begin of a queue whose units a power cut has zeroed.
    """
    damaged = [gap.start for _, gap in gaps_of(surveys, log.file_size)]
    in_file = log.config.mapped_file_size_consume_queue // UNIT_SIZE
    for key, found in runs.items():
        if len(found) < 2 or found[-1].stop - found[-1].first > 1:
            continue
        *before, one = found
        last, size = files.unit_head(key, before[-1].stop - 1)
        # the only one of a topic that was made again; no file of others begins with its number
        alone = files.end(key) == 1 and one.first % in_file > 0 and before[-1].stop != one.first
        is_sure = alone or (size > 0 and before[-1].phy_offset <= last < one.phy_offset)
        since = before[-1].phy_offset if alone else last
        is_sure &= bisect_right(damaged, since) == bisect_right(damaged, one.phy_offset)
        record = log.record_at(one.phy_offset)
        if record is None or not is_sure or _leads_from(files, key, one.first, one):
            continue
        found.pop()
        number = _number_beside(files, runs, message := decode_record(record))
        if number is None:
            found.append(one)
        else:
            yield wrong_number(message, number, _file_at(surveys, one.phy_offset).path)


def _number_beside(files: UnitFiles, runs: OffsetRanges, message: MessageExt) -> int | None:
    """The number that a record had in the queue that it names, if nothing but that is wrong.

    The queue leads to the record from it, and the messages beside it in the log have those before
    and behind; where the queue is lost, both of them do, or it is its first one. The runs get it.
    What is in light queues, too, has numbers of them.
    """
    key, *others = (key for key, _ in places_named_by(message))
    found = runs.get(key, [])
    if others or not has_place(message) or "INNER_NUM" in message.properties:
        return None
    at = bisect_right(found, message.phy_offset, key=lambda one: one.phy_offset)
    before, behind = found[:at][-1:], found[at : at + 1]
    is_lost = files.bounds(key) == (0, 0)
    if not is_lost and (files.end(key) == 1 or (behind and behind[0].first == 1)):
        # whatever a topic that was deleted has in front of it
        before = [OffsetRange(0, 0, 0)]
    numbers = {one.stop for one in before} | {one.first - 1 for one in behind}
    if len(numbers) != 1:
        return None
    number = numbers.pop()
    one = OffsetRange(number, number + 1, message.phy_offset)
    # in front of number 1 is no other than 0
    is_between = bool(behind) and (bool(before) or number == 0)
    is_sure = is_between if is_lost else _leads_from(files, key, number, one)
    if number < 0 or not is_sure:
        return None
    found.insert(at, one)
    return number


def _part_where_begun(
    log: LogPlan, files: UnitFiles, key: QueueKey, runs: list[OffsetRange]
) -> None:
    """Part a run at the record with which the queue begins, whatever number it has now.

    What is before it is of a topic that was deleted, and has ended with the number before.
    """
    phy_offset, size = files.unit_head(key, 0)
    number = bisect_right(runs, phy_offset, key=lambda one: one.phy_offset) - 1
    record = log.record_at(phy_offset) if 0 < size < FILLER_SIZE and number >= 0 else None
    if record is None or len(record) != size:
        return
    one, first = runs[number], decode_record(record).queue_offset
    if one.phy_offset < phy_offset and one.first < first < one.stop:
        behind = OffsetRange(first, one.stop, phy_offset)
        runs[number : number + 1] = [one._replace(stop=first), behind]


def _outliers(
    files: UnitFiles, key: QueueKey, runs: list[OffsetRange], *, of_one_topic: bool
) -> Iterator[OffsetRange]:
    """Runs of one message with an offset that neither what is before nor behind it agrees with.

    Or with a topic that has a character that no topic's name has.

    What is behind may be what is wrong, where the queue has the message in its place. What is of a
    topic that was made again since only has to be no further away than any queue allows.
    """
    past = 0 if of_one_topic else len(runs) - len(present_runs(files, key, runs))
    no_topic = not (key[0].startswith(LIGHT_QUEUE_PREFIX) or _TOPIC_NAME.fullmatch(key[0]))
    for number, one in enumerate(runs):
        before = runs[number - 1].stop if number else one.first
        after = runs[number + 1].first if number + 1 < len(runs) else 0
        too_far = one.first - before > HOLE_UNITS_MAX
        steps_back = number >= past and 0 < after <= one.first
        if one.stop - one.first != 1:
            continue
        # numbers rise: it had this one when its unit was made
        falls = one.first < before and _leads_from(files, key, before, one)
        # the ones beside it leave the number that it had, and no other
        falls |= number > 0 and one.first < before == after - 1
        is_wrong = steps_back or no_topic or falls
        is_wrong |= _leads_from_before(files, key, one, runs, number + 1)
        if too_far or (is_wrong and not _leads_from(files, key, one.first, one)):
            yield one


def _leads_from(files: UnitFiles, key: QueueKey, number: int, one: OffsetRange) -> bool:
    """True when a unit leads to the first record of a run.

    The physical offset of one that is not there, and of a filler, is 0, as of the first record of
    the log.
    """
    phy_offset, size = files.unit_head(key, number)
    return phy_offset == one.phy_offset and 0 < size < FILLER_SIZE


def _leads_from_before(
    files: UnitFiles, key: QueueKey, one: OffsetRange, runs: list[OffsetRange], number: int
) -> bool:
    """True when the queue has a record directly in front of the run with a number, as the log.

    So the first record of a queue whose log retention has cut is told, which has nothing before it.
    """
    if number == len(runs) or runs[number].first == 0:
        return False
    following = runs[number]
    return _leads_from(files, key, following.first, following) and _leads_from(
        files, key, following.first - 1, one
    )


def _contradicted(
    log: LogPlan, files: UnitFiles, key: QueueKey, runs: OffsetRanges
) -> Iterator[int]:
    """Records that the queue leads to, for offsets that no record names though the next ones are.

    Both ends of what lacks have to be led to: a directory or a file with another's name proves
    nothing. A record whose queue ends with it, or begins, keeps the place that it names.
    """
    found = runs.get(key, [])
    # a queue offset that steps back may be the damaged one, or the first of a topic that was made
    # again
    for low, high in sorted({*lacking(found), *lacking(present_runs(files, key, found))}):
        ends = [
            *_messages(log, files, key, low - 1, low),
            *_messages(log, files, key, high, high + 1),
        ]
        if len(ends) < 2 or not all(_agrees(message, key, at) for at, message in ends):
            continue
        (_, before), (_, behind) = ends
        stretch: list[tuple[int, MessageExt]] = []
        for queue_offset, message in _messages(log, files, key, low, high):
            if not before.phy_offset < message.phy_offset < behind.phy_offset:
                continue
            if stretch and queue_offset > stretch[-1][0] + 1:
                yield from _named_wrongly(files, key, runs, stretch)
                stretch = []
            stretch.append((queue_offset, message))
        yield from _named_wrongly(files, key, runs, stretch)


def _dispossessed(log: LogPlan, files: UnitFiles, runs: OffsetRanges) -> Iterator[int]:
    """Records that name a place which another one has, and that the unit of another place leads to.

    The other one has it by the queue's word and by its own.
    """
    suspects: dict[int, tuple[QueueKey, int]] = {}
    for key, found in runs.items():
        firsts, stops = sorted(one.first for one in found), sorted(one.stop for one in found)
        # no unit leads to what is of a topic that was deleted, however numbers step back
        for one in found:
            claims = bisect_right(firsts, one.first) - bisect_right(stops, one.first)
            if claims < 2:
                continue
            # of a longer run, too: those behind may go on from the number that the first one names
            for _, owner in _messages(log, files, key, one.first, one.first + 1):
                if owner.phy_offset != one.phy_offset and _agrees(owner, key, one.first):
                    suspects[one.phy_offset] = key, one.first
    for key in queue_keys(log.directory.consume_queue) if suspects else ():
        for queue_offset, phy_offset, _ in _units(files, key, *files.bounds(key)):
            if suspects.get(phy_offset, (key, queue_offset)) != (key, queue_offset):
                yield phy_offset


def _contradicted_batches(
    log: LogPlan, files: UnitFiles, key: QueueKey, runs: list[OffsetRange]
) -> Iterator[int]:
    """Stored batches on either side of a break in the numbers that have others than the queue.

    The queue is believed where the batches beside go on from each other.
    """
    units = files.batches(key)
    ends = units["base"] + units["count"]
    for one in runs[1:]:
        at = int(np.searchsorted(units["phy_offset"], one.phy_offset))
        for number in range(max(at - 1, 0), min(at + 1, len(units))):
            beside = slice(max(number - 1, 0), number + 2)
            follow = (units["base"][beside][1:] == ends[beside][:-1]).all()
            phy_offset, size, base, count = units[number].item()
            record = log.record_at(phy_offset) if phy_offset >= log.start else None
            if follow and record is not None and len(record) == size:
                named = decode_record(record).properties
                if (named.get("INNER_BASE"), named.get("INNER_NUM")) != (str(base), str(count)):
                    yield phy_offset


def _named_wrongly(
    files: UnitFiles, key: QueueKey, runs: OffsetRanges, stretch: list[tuple[int, MessageExt]]
) -> Iterator[int]:
    """Records of a stretch of units that all contradict theirs, where the queue is believed."""
    if not any(_is_right(files, runs, key, message) for _, message in stretch):
        yield from (message.phy_offset for _, message in stretch)


def _is_right(files: UnitFiles, runs: OffsetRanges, key: QueueKey, message: MessageExt) -> bool:
    """True when a record has the places that it names, whatever the queue says that leads to it."""
    places = list(places_named_by(message))
    asked = places[1:] if key[0].startswith(LIGHT_QUEUE_PREFIX) else places[:1]
    return bool(asked) and all(
        _is_led_to(files, message, *place) or _fits(runs, message.phy_offset, *place)
        for place in asked
    )


def _is_led_to(files: UnitFiles, message: MessageExt, key: QueueKey, queue_offset: int) -> bool:
    """True when the unit of a place that a record names leads to it."""
    unit = message.phy_offset, message.store_size
    return has_place(message) and files.unit_head(key, queue_offset) == unit


def _fits(runs: OffsetRanges, phy_offset: int, key: QueueKey, queue_offset: int) -> bool:
    """True when a record has a place alone, or in a run, and others have those beside it."""
    found = runs.get(key, [])
    number = bisect_right(found, phy_offset, key=lambda one: one.phy_offset) - 1
    if number >= 0 and found[number].first < queue_offset < found[number].stop - 1:
        return True
    claims = sum(one.first <= queue_offset < one.stop for one in found)
    beside = queue_offset - 1, queue_offset + 1
    return claims == 1 and all(has_offset(found, offset) for offset in beside)


def _messages(
    log: LogPlan, files: UnitFiles, key: QueueKey, low: int, high: int
) -> Iterator[tuple[int, MessageExt]]:
    """(queue offset, message) of whole records that some of the queue's units lead to."""
    for queue_offset, phy_offset, size in islice(_units(files, key, low, high), _FOLLOWED_MAX):
        record = log.record_at(phy_offset) if phy_offset >= log.start else None
        if record is not None and len(record) == size:
            message = decode_record(record)
            if "INNER_NUM" not in message.properties:
                yield queue_offset, message


def _units(files: UnitFiles, key: QueueKey, low: int, high: int) -> Iterator[tuple[int, int, int]]:
    """(queue offset, physical offset, size) of the queue's units between two offsets."""
    for start, stop in files.stretches(key, low, min(high, files.end(key))):
        units = np.frombuffer(files.units(key, start, stop - start), UNITS)
        used = (units["size"] > 0) & (units["size"] != FILLER_SIZE)
        for number in np.flatnonzero(used).tolist():
            phy_offset, size, _ = units[number].item()
            yield start + number, phy_offset, size


def has_place(message: MessageExt) -> bool:
    """True for a kind of record that queues lead to."""
    kind = message.sys_flag & SysFlag.TRANSACTION_MASK
    return kind in (0, SysFlag.TRANSACTION_COMMIT)


def places_named_by(message: MessageExt) -> Iterator[tuple[QueueKey, int]]:
    """The places that a record names: that in its own queue, then those in light queues."""
    yield (message.topic, message.queue_id), message.queue_offset
    for name, number in light_numbers(message):
        light = name.startswith(LIGHT_QUEUE_PREFIX)
        yield (name, 0 if light else message.queue_id), number


def _agrees(message: MessageExt, key: QueueKey, queue_offset: int) -> bool:
    """True when a record names the very place that led to it, and is of a kind that has one."""
    return has_place(message) and (key, queue_offset) in places_named_by(message)


def _drop_claim(found: list[OffsetRange], phy_offset: int, queue_offset: int) -> None:
    """Take one message out of the runs of a queue."""
    own = (at for at, one in enumerate(found) if one.phy_offset == phy_offset)
    within = (
        at
        for at, one in enumerate(found)
        if one.stop - one.first > 1 and one.phy_offset < phy_offset
    )
    for number in chain(own, within):
        one = found[number]
        if one.first <= queue_offset < one.stop:
            # the next message lies somewhere behind
            behind = one._replace(first=queue_offset + 1, phy_offset=phy_offset + 1)
            parts = one._replace(stop=queue_offset), behind
            found[number : number + 1] = [part for part in parts if part.first < part.stop]
            return
