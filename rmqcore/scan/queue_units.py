"""Where the messages of some queues lie, as their consume queues know it: counts and bisections.

Reads single units, never whole files; believes what it reads, so `LogPlan.trusted_end` says up to
where that may be done.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from rmqcore.config import StoreConfig
from rmqcore.errors import is_bad_sector
from rmqcore.files.consume_queue import LIGHT_QUEUE_PREFIX
from rmqcore.files.store_dir import StoreDir, names_directory, subdirectories
from rmqcore.files.store_mark import StoreMark
from rmqcore.files.unit_file import UNIT_HEAD
from rmqcore.native.format._numbers import FILLER_SIZE, UNIT_SIZE
from rmqcore.scan.unit_files import UNITS, QueueKey, UnitFiles
from rmqcore.scan.unit_ranges import UnitRange

#: This many units are read together in search of one that is no filler.
_LOOK_UNITS = 256


class QueueUnits:
    """Bisections in the consume queues of a store.

    Args:
        directory, config: of the store.

    Attributes:
        are_sound: False once units were seen that no writer leaves: what they say is not believed.
    """

    def __init__(self, directory: StoreDir, config: StoreConfig) -> None:
        self.are_sound = True
        self._directory = directory
        self._files = UnitFiles(directory, config.mapped_file_size_consume_queue)
        self._ranges: dict[QueueKey, UnitRange] = {}

    def keys(self, topics: Iterable[str], queue_ids: Iterable[int] | None) -> list[QueueKey] | None:
        """The queues of topics that have units; None where consume queues cannot tell them all.

        Args:
            topics: names.
            queue_ids: only queues with these ids; None for all.
        """
        chosen = None if queue_ids is None else set(queue_ids)
        found = []
        for topic in sorted(set(topics)):
            names = self._names(topic)
            if not names or topic.startswith(LIGHT_QUEUE_PREFIX):
                # the queues are lost, or hold batches, or what other topics have
                return None
            ids = sorted(int(name) for name in names)
            found += [(topic, queue_id) for queue_id in ids if chosen is None or queue_id in chosen]
        return found

    def _names(self, topic: str) -> list[str]:
        if not names_directory(topic):
            return []
        names = subdirectories(self._directory.consume_queue / topic)
        return [name for name in names if name.isascii() and name.isdigit()]

    def are_whole(self, keys: list[QueueKey], start: int, end: int) -> bool:
        """False when queues are known to lack messages that the log may have.

        Args:
            keys: queues that have files, as `keys` gives them.
            start: physical offset where the log begins.
            end: where it ends.
        """
        try:
            return self._are_whole(keys, start, end)
        except OSError as error:
            if not is_bad_sector(error):
                raise
            return False

    def _are_whole(self, keys: list[QueueKey], start: int, end: int) -> bool:
        mark = StoreMark(self._directory)
        mark.load()
        topics = {topic for topic, _ in keys}
        known = (
            (key, count)
            for key, count in mark.ends.items()
            if key[0] in topics and key not in mark.batch_queues
        )
        return (
            mark.derive_from < 0
            and mark.doubted_from < 0
            and all(self.range(key).end >= count for key, count in known)
            and all(self._is_whole(key, start, end) for key in keys)
        )

    def _is_whole(self, key: QueueKey, start: int, end: int) -> bool:
        """False when files are missing or short, or units are where or what they cannot be."""
        units = self.range(key)
        phy_offset, size = self._files.unit_head(key, units.first)
        # retention leaves the file that has the last unit before the log's beginning
        begins_later = units.first > 0 and phy_offset >= start and 0 < size < FILLER_SIZE
        # a writer may have added some since it was seen where the log ends
        last, _ = self._files.unit_head(key, units.end - 1)
        ends_later = last >= end and not self._directory.is_locked()
        return (
            not begins_later
            and not ends_later
            and self._files.has_no_gap(key)
            and self._files.is_blank_behind(key, units.end)
        )

    def range(self, key: QueueKey) -> UnitRange:
        """The units of a queue; looked up once."""
        found = self._ranges.get(key)
        if found is None:
            first, room = self._files.bounds(key)
            found = UnitRange(*key, first, self._end(key, first, room))
            self._ranges[key] = found
        return found

    def _end(self, key: QueueKey, first: int, room: int) -> int:
        """Number behind the last unit that has been written: zeros follow."""
        low, high, step = first, room, _LOOK_UNITS
        # most queues end in their first units
        while low < high and step < high - low:
            if self._files.unit_head(key, low + step)[1] <= 0:
                high = low + step
                break
            low, step = low + step + 1, step * 4
        while high - low > _LOOK_UNITS:
            middle = (low + high) // 2
            if self._files.unit_head(key, middle)[1] > 0:
                low = middle + 1
            else:
                high = middle
        units = np.frombuffer(self._files.units(key, low, high - low), UNITS)
        return low + _count_in_front(units["size"] > 0)

    def place(self, key: QueueKey, number: int, stop: int) -> tuple[int, int, int] | None:
        """(number, physical offset, size) of the first message from a unit on.

        None when only fillers come before ``stop``.

        Args:
            key: topic and queue id.
            number: of the first unit.
            stop: number behind the last one that is looked at.
        """
        while number < stop:
            data = self._files.units(key, number, min(_LOOK_UNITS, stop - number))
            for at in range(0, len(data), UNIT_SIZE):
                phy_offset, size = UNIT_HEAD.unpack_from(data, at)
                if 0 < size < FILLER_SIZE:
                    return number + at // UNIT_SIZE, phy_offset, size
            number += len(data) // UNIT_SIZE
        return None

    def first_at_or_above(
        self, key: QueueKey, phy_offset: int, within: UnitRange | None = None
    ) -> int:
        """Number of the first unit whose record begins at or behind a physical offset.

        Args:
            key: the queue.
            phy_offset: the offset.
            within: the units to look among; None for all.
        """
        bounds = within or self.range(key)
        low, high = bounds.first, bounds.end
        while high - low > _LOOK_UNITS:
            middle = (low + high) // 2
            found = self.place(key, middle, high)
            if found is not None and found[1] < phy_offset:
                low = found[0] + 1
            else:
                high = middle
        if low >= high:
            return low
        units = np.frombuffer(self._files.units(key, low, high - low), UNITS)
        self.are_sound &= _are_a_writers(units)
        messages = (units["size"] > 0) & (units["size"] < FILLER_SIZE)
        before = np.flatnonzero(messages & (units["phy_offset"] < phy_offset))
        return low + (int(before[-1]) + 1 if len(before) else 0)

    def between(self, key: QueueKey, low: int, high: int) -> UnitRange:
        """The units of a queue whose records begin in ``[low, high)``.

        Args:
            key: topic and queue id.
            low: physical offset at which records may begin.
            high: physical offset at which they no longer may.
        """
        bounds = self.range(key)
        first = self.first_at_or_above(key, low)
        end = self.first_at_or_above(key, high, UnitRange(*key, first, bounds.end))
        # what is left out has to lie where the log is left out
        begin, _ = self._files.unit_head(key, bounds.first)
        last, size = self._files.unit_head(key, bounds.end - 1)
        self.are_sound &= first == bounds.first or begin < low
        self.are_sound &= end == bounds.end or last >= high or size == FILLER_SIZE
        return UnitRange(*key, first, end)

    def places(self, units: UnitRange, most: int) -> NDArray[np.int64]:
        """(physical offset, size) of the messages of a range's first units, ``most`` of them.

        Args:
            units: a range of one queue.
            most: units at most that are looked at.

        Returns:
            int64, a row for each message; none for fillers.
        """
        part = UnitRange(*units.key, units.first, min(units.end, units.first + most))
        found = places_of(self._files, part)
        self.are_sound &= found is not None
        return np.empty((0, 2), np.int64) if found is None else found

    def place_of_nth(self, ranges: list[UnitRange], count: int) -> tuple[int, int] | None:
        """(physical offset, size) of the record that is number ``count`` of ranges in log order.

        Fillers count as well. None when there are not that many.

        Args:
            ranges: units of one queue or more.
            count: 1 for the first record.
        """
        if sum(units.count for units in ranges) < count:
            return None
        left, before = [units for units in ranges if units.count], 0
        places = [self._first_and_last(units) for units in left]
        low = min((first for first, _ in places), default=0)
        high = max((last for _, last in places), default=0) + 1
        # before `low` there are fewer records than are wanted, before `high` there are enough
        while high - low > 1:
            middle = (low + high) // 2
            cuts = [self.first_at_or_above(units.key, middle, units) for units in left]
            found = before + sum(cut - units.first for units, cut in zip(left, cuts, strict=True))
            if found < count:
                before, low = found, middle
                left = [
                    UnitRange(*units.key, cut, units.end)
                    for units, cut in zip(left, cuts, strict=True)
                    if cut < units.end
                ]
            else:
                high = middle
                left = [
                    UnitRange(*units.key, units.first, cut)
                    for units, cut in zip(left, cuts, strict=True)
                    if cut > units.first
                ]
        # what is left are units of the one record that begins at `low`
        found_places = [self.place(units.key, units.first, units.end) for units in left]
        return next(((at, size) for _, at, size in filter(None, found_places)), None)

    def _first_and_last(self, units: UnitRange) -> tuple[int, int]:
        first = self.place(units.key, units.first, units.end)
        last = self.place(units.key, units.end - 1, units.end) or first
        return (0, 0) if first is None or last is None else (first[1], last[1])

    def are_all_known(self, topics: Iterable[str] | None, start: int, end: int) -> bool:
        """Whether the units of queues are all messages that a log may have of topics.

        Args:
            topics: names; None for all that the log has.
            start: physical offset where the log begins.
            end: where it ends.
        """
        if topics is None:
            mark = StoreMark(self._directory)
            mark.load()
            roots = self._directory.consume_queue, self._directory.batch_consume_queue
            topics = {topic for root in roots for topic in subdirectories(root)}
            topics |= {topic for topic, _ in mark.ends}
        keys = self.keys(topics, None)
        return keys is not None and self.are_whole(keys, start, end) and self.are_sound

    def topics(self) -> list[str]:
        """Names of all topics that have queues of single messages of their own."""
        return [
            topic
            for topic in subdirectories(self._directory.consume_queue)
            if self._names(topic) and not topic.startswith(LIGHT_QUEUE_PREFIX)
        ]

    def close(self) -> None:
        """Close the files."""
        self._files.close()


def _count_in_front(values: NDArray[np.bool_]) -> int:
    """How many of the first values are true."""
    return len(values) if values.all() else int(values.argmin())


def _are_a_writers(units: NDArray[np.void]) -> bool:
    """Whether units that follow one another can be: messages in log order, and fillers."""
    places = units["phy_offset"][units["size"] != FILLER_SIZE]
    return bool((units["size"] > 0).all() and (places[1:] > places[:-1]).all())


def places_of(files: UnitFiles, units: UnitRange) -> NDArray[np.int64] | None:
    """(physical offset, size) of the messages of a range, a row each; no fillers.

    Args:
        files: of the store.
        units: a range of one queue.

    Returns:
        int64, two columns; None where some are none that a writer leaves.
    """
    found = np.frombuffer(files.units(units.key, units.first, units.count), UNITS)
    if not _are_a_writers(found):
        return None
    found = found[found["size"] < FILLER_SIZE]
    return np.stack((found["phy_offset"].astype(np.int64), found["size"].astype(np.int64)), 1)
