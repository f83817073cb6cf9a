"""Log files of another store, which were put among those of this one.

All of their records are whole and lie where they say, but their numbers collide with those that
are here. Taken into the queues, they would stand in front of this store's own messages.

Whose a file is the queues say: none of them leads to any record of a foreign one. That alone may
be a queue that was lost; so it also takes a number that an earlier record of the log has, by the
queue's word and its own, or units that lead into the middle of the file's records.

A topic that was deleted and made again has the same numbers twice. Where no note of its deletion is
left (RocketMQ keeps none), and its queues are those of before, nothing tells its files from foreign
ones: what is said of them must not cost their messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from rmqcore._codec import decode_record
from rmqcore.doctor.log_survey import FileSurvey
from rmqcore.doctor.wrong_queue_records import places_named_by
from rmqcore.errors import CorruptConfigFileError
from rmqcore.files.deleted_topics import DeletedTopics
from rmqcore.native.format._message_ext import MessageExt
from rmqcore.scan.plan import LogPlan
from rmqcore.scan.unit_files import UnitFiles

#: In a file with fewer collisions than this a single queue offset may have rotted; with as many,
#: its records are another store's.
_COLLISIONS_MIN = 2
#: What to do with such a file; whose its messages are only who put them there knows.
FOREIGN_ADVICE = (
    "where its messages are this store's, rmqcore rebuild cq STORE leads to them; where they are "
    "not, copy it before you move it away"
)


def told_of_foreign(name: str) -> str:
    """What is said of a foreign file.

    Args:
        name: how the file is called in a sentence.
    """
    return (
        f"by the queues, {name} is of another store, or of a topic that was deleted and made "
        "again: none leads to a record of it, and their numbers are others' here"
    )


def foreign_files(log: LogPlan, surveys: list[FileSurvey]) -> list[FileSurvey]:
    """The files of a log that are another store's.

    Args:
        log: of the store.
        surveys: of its files.
    """
    files = UnitFiles(log.directory, log.config.mapped_file_size_consume_queue)
    deleted = deleted_topics(log)
    try:
        return [file for file in surveys if file.records and _is_foreign(log, files, file, deleted)]
    finally:
        files.close()


def deleted_topics(log: LogPlan) -> DeletedTopics:
    """The topics of a store that were deleted; none where that cannot be read any more."""
    deleted = DeletedTopics(log.directory)
    with suppress(CorruptConfigFileError):
        deleted.load()
    return deleted


def is_led_to(files: UnitFiles, message: MessageExt) -> bool:
    """True when a queue that a record names leads to it.

    Args:
        files: the store's consume queues.
        message: a whole record of the log.
    """
    unit = message.phy_offset, message.store_size
    return any(
        files.unit_head(*place) == unit or unit[0] in files.batches(place[0])["phy_offset"]
        for place in places_named_by(message)
    )


def was_given_again(
    log: LogPlan, files: UnitFiles, message: MessageExt, before: int, deleted: DeletedTopics
) -> bool:
    """True when the queue leads to a whole record in front that names the very same place.

    A topic that was made again has each of its places twice: queues of before prove nothing.

    Args:
        log: in which the records lie.
        files: the store's consume queues.
        message: a whole record of the log.
        before: physical offset that the other record lies below.
        deleted: the store's topics that were deleted.
    """
    key = message.topic, message.queue_id
    phy_offset, size = files.unit_head(key, message.queue_offset)
    least = log.start
    if (since := deleted.since(message.topic)) <= message.phy_offset:
        least = max(least, since)
    record = log.record_at(phy_offset) if size > 0 and least <= phy_offset < before else None
    if record is None or len(record) != size:
        return False
    other = decode_record(record)
    return (other.topic, other.queue_id, other.queue_offset) == (*key, message.queue_offset)


def records_of(log: LogPlan, file: FileSurvey, start: int = -1) -> Iterator[MessageExt]:
    """Every whole record of a log file, from one of its gaps on or from its beginning.

    Args:
        log: in which the file is.
        file: the file, as it was surveyed.
        start: physical offset behind which they begin; -1 for all.
    """
    begins = [file.start, *(gap.stop for gap in file.gaps)]
    stops = [*(gap.start for gap in file.gaps), file.end]
    for begin, stop in zip(begins, stops, strict=True):
        at = begin
        while start < at < stop and (record := log.record_at(at)) is not None:
            yield decode_record(record)
            at += len(record)


def _is_foreign(log: LogPlan, files: UnitFiles, file: FileSurvey, deleted: DeletedTopics) -> bool:
    begins = (log.record_at(run.phy_offset) for found in file.runs.values() for run in found)
    firsts = [decode_record(record) for record in begins if record is not None]
    if any(is_led_to(files, message) for message in firsts):
        return False
    if not any(_collides(log, files, file, message, deleted) for message in firsts):
        return False
    count = 0
    for message in records_of(log, file):
        if is_led_to(files, message):
            return False
        count += _collides(log, files, file, message, deleted)
    return count >= _COLLISIONS_MIN


def _collides(
    log: LogPlan, files: UnitFiles, file: FileSurvey, message: MessageExt, deleted: DeletedTopics
) -> bool:
    """True when another record has a record's place, or its unit leads to where no record is."""
    return was_given_again(log, files, message, file.start, deleted) or _leads_astray(
        log, files, file, message
    )


def _leads_astray(log: LogPlan, files: UnitFiles, file: FileSurvey, message: MessageExt) -> bool:
    phy_offset, size = files.unit_head((message.topic, message.queue_id), message.queue_offset)
    if not (size > 0 and file.start <= phy_offset < file.end):
        return False
    if any(gap.start <= phy_offset < gap.stop for gap in file.gaps):
        return False
    record = log.record_at(phy_offset)
    return record is None or len(record) != size
