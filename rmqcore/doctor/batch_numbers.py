"""Stored batches whose header has another queue offset than their property INNER_BASE.

Both are written alike. Queues are derived from the property, in RocketMQ too; a reader compares
the header with the queue, and so cannot hand such a batch out.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rmqcore._codec import LAYOUT, decode_record
from rmqcore.rebuild.consume_queues import queue_keys
from rmqcore.scan.plan import LogPlan
from rmqcore.scan.unit_files import QueueKey, UnitFiles

#: Where a record has its queue offset, and how many bytes it has.
NUMBER_AT, NUMBER_SIZE = LAYOUT["record_head"]["queue_offset"]
#: The same of its system flag.
FLAG_AT, FLAG_SIZE = LAYOUT["record_head"]["sys_flag"]


class WrongNumber(NamedTuple):
    """A record whose header has another queue offset, or another system flag, than it had.

    Attributes:
        phy_offset: of the record.
        number: the queue offset that it had, of a batch that of its first message.
        path: the log file.
        what: what is wrong, in words.
        saves: what is had again with that number.
        flag: the flag that it had; -1: that one is right.
    """

    phy_offset: int
    number: int
    path: Path
    what: str
    saves: str
    flag: int = -1


def wrong_numbers(log: LogPlan, files: UnitFiles, key: QueueKey) -> Iterator[WrongNumber]:
    """The batches of a queue whose header contradicts their property, which the queue has.

    Args:
        log: of the store.
        files: its consume queues.
        key: topic and number of the queue.
    """
    for phy_offset, size, base, _ in files.batches(key).tolist():
        record = log.record_at(phy_offset) if phy_offset >= log.start else None
        if record is None or len(record) != size:
            continue
        batch = decode_record(record)
        if batch.queue_offset != base and batch.properties.get("INNER_BASE") == str(base):
            what = (
                f"the header of a batch says queue offset {batch.queue_offset}, its property and "
                f"its queue {base}"
            )
            saves = "the messages of the batch, which nobody is given"
            yield WrongNumber(phy_offset, base, _path_at(log, phy_offset), what, saves)


def _path_at(log: LogPlan, phy_offset: int) -> Path:
    starts = [start for start, _, _ in log.files]
    return log.files[bisect_right(starts, phy_offset) - 1][1]


def all_wrong_numbers(log: LogPlan) -> list[WrongNumber]:
    """The same, of all queues, in log order.

    Args:
        log: of the store.
    """
    directory = log.directory
    files = UnitFiles(directory, log.config.mapped_file_size_consume_queue)
    try:
        keys = queue_keys(directory.batch_consume_queue)
        return sorted(one for key in keys for one in wrong_numbers(log, files, key))
    finally:
        files.close()
