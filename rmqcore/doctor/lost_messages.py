"""Which messages lay in a damaged stretch of the log, as far as the consume queues know them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from rmqcore._codec import decode_record
from rmqcore.doctor.log_survey import OffsetRange, OffsetRanges, QueueKey, has_offset, present_runs
from rmqcore.doctor.wrong_queue_records import places_named_by
from rmqcore.files.store_dir import StoreDir
from rmqcore.native.format._numbers import SMALLEST_RECORD_SIZE
from rmqcore.rebuild.consume_queues import queue_keys
from rmqcore.scan.plan import LogPlan
from rmqcore.scan.unit_files import UNITS, UnitFiles

#: So many units on either side of a lost message's are followed into the log.
_FOLLOWED_MAX = 32


@dataclass(frozen=True, slots=True, order=True)
class LostMessage:
    """A message whose record is damaged, or gone.

    Attributes:
        phy_offset: where its record began.
        size: bytes of the record.
        topic, queue_id, queue_offset: its place in a queue.
        count: messages of a stored batch, else 1.
    """

    phy_offset: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    count: int = 1

    def to_dict(self) -> dict[str, object]:
        """The message's place as plain values, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        last = f" to {self.queue_offset + self.count - 1}" if self.count > 1 else ""
        return f"{self.topic}/{self.queue_id} offset {self.queue_offset}{last}"


def lost_messages(
    directory: StoreDir,
    queue_file_size: int,
    stretches: Sequence[tuple[int, int]],
    runs: OffsetRanges,
    log: LogPlan | None = None,
) -> list[LostMessage]:
    """The messages that consume queues know inside of some stretches of the log, in log order.

    A unit counts when its neighbours in the queue agree that it lies between them, no whole record
    has its queue offset, and those of its queue before and behind have lesser and greater ones. The
    directory of a queue, or a file in it, may be another's: then its neighbours lead to records of
    that one.

    Args:
        directory: of the store.
        queue_file_size: bytes of a consume-queue file.
        stretches: (start, stop) physical offsets, in order.
        runs: queue offsets that the log has.
        log: where the neighbours lead to; None does not follow them.
    """
    if not stretches:
        return []
    edges = np.array(stretches, np.int64).reshape(-1, 2)
    found: list[LostMessage] = []
    made_again: dict[QueueKey, OffsetRange] = {}
    files = UnitFiles(directory, queue_file_size)
    try:
        for key in queue_keys(directory.consume_queue):
            known = runs.get(key, [])
            present = present_runs(files, key, known)
            lost = list(_of_queue(files, key, edges, present))
            found += lost if log is None else _led_to_by_own(log, files, key, lost)
            if len(present) < len(known) and present[0].first > 0:
                made_again[key] = present[0]
        for key in queue_keys(directory.batch_consume_queue):
            units = files.batches(key)
            inside = np.flatnonzero(_inside(units, edges))
            for number in inside if log is None else _batches_of_own(log, key, units, inside):
                phy_offset, size, base, count = units[number].item()
                found.append(LostMessage(phy_offset, size, *key, base, count))
    finally:
        files.close()
    for key, first in made_again.items():
        found += _beginning(stretches, key, first, found)
    return sorted(found)


def _led_to_by_own(
    log: LogPlan, files: UnitFiles, key: QueueKey, lost: list[LostMessage]
) -> Iterator[LostMessage]:
    """Those of a queue's messages whose units are its own, by the units beside them."""
    own = iter(lost)
    for first, stop in _neighbours([one.queue_offset for one in lost]):
        stretch = list(islice(own, stop - first))
        low = max(first - _FOLLOWED_MAX, 0)
        before = enumerate(_heads(files.units(key, low, first - low)), low)
        behind = enumerate(_heads(files.units(key, stop, _FOLLOWED_MAX)), stop)
        if _is_own(log, key, reversed(list(before)), behind):
            yield from stretch


def _heads(units: bytes) -> list[tuple[int, int]]:
    """(physical offset, size) of each unit."""
    return [(phy_offset, size) for phy_offset, size, _ in np.frombuffer(units, UNITS).tolist()]


def _batches_of_own(
    log: LogPlan, key: QueueKey, units: NDArray[np.void], lost: NDArray[np.intp]
) -> Iterator[int]:
    """As `_led_to_by_own`, of a queue of stored batches: which of the units."""
    for first, stop in _neighbours(lost.tolist()):
        before, behind = (
            [(base, (phy_offset, size)) for phy_offset, size, base, _ in beside.tolist()]
            for beside in (
                units[max(first - _FOLLOWED_MAX, 0) : first],
                units[stop : stop + _FOLLOWED_MAX],
            )
        )
        if _is_own(log, key, reversed(before), behind):
            yield from range(first, stop)


def _neighbours(numbers: list[int]) -> list[tuple[int, int]]:
    """(first, behind the last) of each stretch of rising numbers without a gap."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and number == found[-1][1]:
            found[-1] = found[-1][0], number + 1
        else:
            found.append((number, number + 1))
    return found


def _is_own(log: LogPlan, key: QueueKey, *sides: Iterable[tuple[int, tuple[int, int]]]) -> bool:
    """False when units beside lead to records, and on no side to one that names their places."""
    told = [_names_place(log, key, side) for side in sides]
    return True in told or False not in told


def _names_place(
    log: LogPlan, key: QueueKey, units: Iterable[tuple[int, tuple[int, int]]]
) -> bool | None:
    """Whether the first whole record that units lead to names that place; None without any."""
    for queue_offset, (phy_offset, size) in units:
        record = log.record_at(phy_offset) if size > 0 and phy_offset >= log.start else None
        if record is not None and len(record) == size:
            return (key, queue_offset) in places_named_by(decode_record(record))
    return None


def _beginning(
    stretches: Sequence[tuple[int, int]],
    key: QueueKey,
    first: OffsetRange,
    known: list[LostMessage],
) -> list[LostMessage]:
    """The first messages of a topic that was made again, of which not even units are left.

    Only numbers that begin again, with 0 and 1, tell that what follows is no repetition of what
    was deleted. Where they lay nobody knows: they get places that no other lost message needs.
    """
    size = SMALLEST_RECORD_SIZE + len(key[0].encode())
    own = {one.queue_offset: one for one in known if key == (one.topic, one.queue_id)}
    made: list[LostMessage] = []
    for number in reversed(range(min(first.first, 2))):
        if number not in own:
            taken = sorted([*known, *made])
            behind = [one.phy_offset for one in own.values() if one.queue_offset > number]
            place = _free_place(stretches, min(behind, default=first.phy_offset), size, taken)
            if place is None:
                break
            own[number] = LostMessage(place, size, *key, number)
            made.append(own[number])
    return made


def _free_place(
    stretches: Sequence[tuple[int, int]], high: int, size: int, taken: list[LostMessage]
) -> int | None:
    """The last place before a physical offset that has room for a record beside others."""
    for start, stop in reversed(stretches):
        inside = [one for one in taken if start <= one.phy_offset < stop]
        lows = [start, *(one.phy_offset + one.size for one in inside)]
        limits = [*(one.phy_offset for one in inside), stop]
        for low, limit in reversed(list(zip(lows, limits, strict=True))):
            place = min(limit, high) - SMALLEST_RECORD_SIZE - size
            if place >= low:
                return place if place - low >= SMALLEST_RECORD_SIZE else low
    return None


def _of_queue(
    files: UnitFiles, key: QueueKey, edges: NDArray[np.int64], runs: list[OffsetRange]
) -> list[LostMessage]:
    first, behind = files.bounds(key)
    found = []
    for start, stop in files.stretches(key, first, behind):
        # one unit more on either side tells whether the outer ones are in order
        low, high = max(first, start - 1), min(behind, stop + 1)
        units = np.frombuffer(files.units(key, low, high - low), UNITS)
        good = _inside(units, edges) & _in_order(units)
        if low == 0 and good[0] and runs and runs[-1].phy_offset < units["phy_offset"][0]:
            # a topic that was made again has nothing left of before
            runs = []
        for number in np.flatnonzero(good).tolist():
            queue_offset = low + number
            phy_offset, size, _ = units[number].item()
            if start <= queue_offset < stop and _fits(runs, phy_offset, queue_offset):
                found.append(LostMessage(phy_offset, size, *key, queue_offset))
    return found


def _fits(runs: list[OffsetRange], phy_offset: int, queue_offset: int) -> bool:
    """True when a message can have had a queue offset, by what the log has of its queue."""
    number = bisect_left(runs, phy_offset, key=lambda one: one.phy_offset)
    behind_former = not number or runs[number - 1].stop <= queue_offset
    before_next = number == len(runs) or queue_offset < runs[number].first
    return behind_former and before_next and not has_offset(runs, queue_offset)


def _inside(units: NDArray[np.void], edges: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which units speak of a record inside of a stretch."""
    offsets = units["phy_offset"].astype(np.int64)
    sizes = units["size"].astype(np.int64)
    number = np.searchsorted(edges[:, 0], offsets, "right") - 1
    inside: NDArray[np.bool_] = (number >= 0) & (sizes >= SMALLEST_RECORD_SIZE)
    inside &= sizes <= edges[number, 1] - offsets
    return inside


def _in_order(units: NDArray[np.void]) -> NDArray[np.bool_]:
    """Which units lie between their neighbours, as far as those have a place."""
    offsets = units["phy_offset"].astype(np.int64)
    used = units["size"] > 0
    good = np.ones(len(units), bool)
    good[1:] &= ~used[:-1] | (offsets[:-1] < offsets[1:])
    good[:-1] &= ~used[1:] | (offsets[:-1] < offsets[1:])
    return good
