"""From a selection to splits: reads no more of the log than files, times and queues say is needed.

Store times rise with the offset, but for a clock that was set back; how far, `CLOCK_SLACK_MS`
allows for. Of topics and queues that hold a small part of the log only their own records are read,
where their consume queues say they lie.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from rmqcore.native.format._numbers import SMALLEST_RECORD_SIZE
from rmqcore.scan.plan import SPLIT_SIZE, LogPlan
from rmqcore.scan.queue_units import QueueUnits
from rmqcore.scan.queue_walk import GAP_MAX
from rmqcore.scan.selection import HIDDEN, Selection
from rmqcore.scan.split import Split
from rmqcore.scan.unit_files import QueueKey
from rmqcore.scan.unit_ranges import UnitRange

#: Between two records of a store the clock may have stepped back by up to this much.
CLOCK_SLACK_MS = 10_000
#: A selection is read through its queues when that reads less of the log than one part in this
#: many.
_PART = 3
#: How close the records of a selection lie is estimated from pieces of the log of this size.
_SAMPLE_SIZE = 256 << 10
_SAMPLES = 8
#: A selection of more queues than this is read through the log, without an estimate.
_SAMPLED_QUEUES_MAX = 256


class SelectedLog:
    """What of a log a selection needs.

    Attributes:
        low, high: physical offsets between which the selection lies.
        units: what is read through consume queues, up to ``walked_from``; None for nothing.
        walked_from: what lies behind is walked.
        bytes: of the log that are to be read, about.

    Args:
        plan: the log.
        selection: what is wanted; with a ``topic_rule`` that says which records of deleted topics
            are messages, or consume queues are not asked.
        start, end: physical offsets where records begin, as for `LogPlan.splits`.
    """

    def __init__(
        self,
        plan: LogPlan,
        selection: Selection,
        start: int | None = None,
        end: int | None = None,
    ) -> None:
        self._plan = plan
        self._selection = selection
        self._units = QueueUnits(plan.directory, plan.config)
        self._stored: dict[int, int | None] = {}
        self._rules: dict[str, tuple[int, dict[int, int]]] = {}
        self._known: list[UnitRange] | None = None
        self.low = max(plan.start, start or 0)
        self.high = max(self.low, plan.end if end is None else min(end, plan.end))
        self._cut_by_time()
        self.walked_from = self.low
        self.units: list[UnitRange] | None = None
        self.bytes = self.high - self.low
        self._ask_queues()

    # ---- times

    def _cut_by_time(self) -> None:
        begin_ms, end_ms = self._selection.get("begin_ms"), self._selection.get("end_ms")
        if (begin_ms is None and end_ms is None) or not self._clock_went_on():
            return
        if begin_ms is not None:
            self._cut_low(begin_ms - CLOCK_SLACK_MS)
        if end_ms is not None:
            self._cut_high(end_ms + CLOCK_SLACK_MS)

    def _clock_went_on(self) -> bool:
        """False when the first records of files tell that the clock was set back."""
        latest = 0
        for start, _, _ in self._plan.files:
            stored = self._stored_ms(start) if start < self.high else None
            if stored is not None:
                if stored < latest - CLOCK_SLACK_MS:
                    return False
                latest = max(latest, stored)
        return True

    def _cut_low(self, first_ms: int) -> None:
        """Leave out what was stored before a time; a record that is damaged is kept."""

        def reaches(phy_offset: int) -> bool:
            stored = self._stored_ms(phy_offset)
            return stored is None or stored >= first_ms

        for places in self._places():
            number = bisect_left(places, True, key=reaches)
            if number:
                self.low = max(self.low, places[number - 1])

    def _cut_high(self, last_ms: int) -> None:
        """Leave out what was stored behind a time."""

        def is_behind(phy_offset: int) -> bool:
            stored = self._stored_ms(phy_offset)
            return stored is not None and stored > last_ms

        for places in self._places():
            number = bisect_left(places, True, key=is_behind)
            if number < len(places):
                self.high = max(self.low, min(self.high, places[number]))

    def _stored_ms(self, phy_offset: int) -> int | None:
        """When the record at a place was stored; None where no good one is."""
        if phy_offset not in self._stored:
            record = self._plan.good_record_at(phy_offset)
            self._stored[phy_offset] = None if record is None else record.store_timestamp_ms
        return self._stored[phy_offset]

    def _places(self) -> Iterator[_Places]:
        """Where records begin, coarse and then finer: files, then the units of a few queues."""
        yield [start for start, _, _ in self._plan.files if self.low < start < self.high]
        for key in self._plan.cut_keys:
            yield _UnitPlaces(self._units, self._units.between(key, self.low, self.high))

    # ---- queues

    def _ask_queues(self) -> None:
        selection, high = self._selection, min(self.high, self._plan.trusted_end)
        topics = selection.get("topics")
        if topics is None or "topic_rule" not in selection or selection.get("uncommitted"):
            return
        keys = self._units.keys(topics, selection.get("queue_ids")) if high > self.low else None
        if keys is None or not self._units.are_whole(keys, self._plan.start, self._plan.end):
            return
        keys = self._shown(keys)
        found = [self._wanted(key, high) for key in keys]
        found = [units for units in found if units.count > 0]
        read = int(self._share_read(found, high) * (high - self.low)) if found else 0
        if self._units.are_sound and read * _PART < high - self.low:
            self.units, self.walked_from = found, high
            self.bytes = read + self.high - high

    def _share_read(self, ranges: list[UnitRange], high: int) -> float:
        """The share of the log that reading the records of units takes, estimated by samples."""
        width = min(_SAMPLE_SIZE, high - self.low)
        if len(ranges) > _SAMPLED_QUEUES_MAX:
            # an estimate for single records: bytes between near ones are read, too
            count = sum(units.count for units in ranges)
            return min(1.0, count * GAP_MAX / (high - self.low))
        read = 0
        for number in range(_SAMPLES):
            start = self.low + (high - self.low - width) * number // _SAMPLES
            parts = [self._places_near(units, start, width) for units in ranges]
            places = np.concatenate(parts)
            places = places[np.argsort(places[:, 0])]
            apart = places[1:, 0] - places[:-1, 0] - places[:-1, 1]
            read += int(places[:, 1].sum()) + int(apart[(apart > 0) & (apart <= GAP_MAX)].sum())
        return min(1.0, read / (_SAMPLES * width))

    def _places_near(self, units: UnitRange, start: int, width: int) -> NDArray[np.int64]:
        """Where records of some units lie in a piece of the log."""
        first = self._units.first_at_or_above(units.key, start, units)
        left = UnitRange(*units.key, first, units.end)
        places = self._units.places(left, width // SMALLEST_RECORD_SIZE + 1)
        return places[places[:, 0] < start + width]

    def _shown(self, keys: list[QueueKey]) -> list[QueueKey]:
        """The queues of which something is shown."""
        return [key for key in keys if self._shown_from(key) < HIDDEN]

    def _shown_from(self, key: QueueKey) -> int:
        """Physical offset from which on the records of a queue are rows."""
        topic, queue_id = key
        if topic not in self._rules:
            self._rules[topic] = self._selection["topic_rule"](topic)
        first, of_queues = self._rules[topic]
        return of_queues.get(queue_id, first)

    def queue_counts(self) -> dict[QueueKey, int]:
        """How many messages each queue has in the selection, as far as consume queues know.

        Tags, keys and times are not looked at. Needs a ``topic_rule``.
        """
        return {units.key: units.count for units in self._known_units()}

    def _known_units(self) -> list[UnitRange]:
        if self._known is None:
            topics = self._selection.get("topics")
            names = self._units.topics() if topics is None else topics
            keys: list[QueueKey] = []
            for topic in names:
                keys += self._units.keys([topic], self._selection.get("queue_ids")) or []
            found = [self._wanted(key, self.high) for key in self._shown(keys)]
            self._known = [units for units in found if units.count > 0]
        return self._known

    def end_of_rows(self, count: int) -> tuple[int | None, int] | None:
        """Where this many messages end, as consume queues know it.

        Args:
            count: messages, as `queue_counts` counts them.

        Returns:
            (physical offset behind the last of them, or None when there are not that many; how many
            there are up to there). None when queues lack messages, or the log contradicts them.
        """
        plan, topics = self._plan, self._selection.get("topics")
        if not self._units.are_all_known(topics, plan.start, plan.end):
            return None
        units = self._known_units()
        place = self._units.place_of_nth(units, count)
        if not self._units.are_sound:
            return None
        if place is None:
            return None, sum(one.count for one in units)
        record = self._plan.good_record_at(place[0])
        if record is None or record.size != place[1]:
            return None
        return record.end_offset, count

    def _wanted(self, key: QueueKey, high: int) -> UnitRange:
        low = min(high, max(self.low, self._shown_from(key)))
        units = self._units.between(key, low, high)
        bounds = self._selection.get("queue_offsets", {}).get(key[0], {}).get(key[1])
        if bounds is None:
            return units
        first = min(max(units.first, bounds[0]), units.end)
        return UnitRange(*key, first, max(first, min(units.end, bounds[1])))

    # ---- splits

    def splits(self, split_size: int = SPLIT_SIZE, row_max: int | None = None) -> list[Split]:
        """Cut what is to be read, in log order.

        Args:
            split_size: bytes that are read for one.
            row_max: messages of one, as consume queues count them; None for any number.
        """
        found = self._splits(split_size)
        return found if row_max is None else [part for s in found for part in self._cut(s, row_max)]

    def _cut(self, split: Split, row_max: int) -> list[Split]:
        """A split in parts of this many rows."""
        parts, start, left = [], split.start, self._known_units()
        while True:
            left = [self._between(units, start, split.end) for units in left]
            place = self._units.place_of_nth(left, row_max + 1)
            if place is None or self._plan.good_record_at(place[0]) is None:
                parts.append(self._part(split, start, split.end))
                return parts
            parts.append(self._part(split, start, place[0]))
            start = place[0]

    def _between(self, units: UnitRange, start: int, end: int) -> UnitRange:
        first = self._units.first_at_or_above(units.key, start, units)
        rest = UnitRange(*units.key, first, units.end)
        return UnitRange(*units.key, first, self._units.first_at_or_above(units.key, end, rest))

    def _part(self, split: Split, start: int, end: int) -> Split:
        if split.units is None:
            return self._plan.split(start, end)
        units = [self._between(units, start, end) for units in split.units]
        return self._plan.split(start, end, [one for one in units if one.count])

    def _splits(self, split_size: int) -> list[Split]:
        found = [] if self.units is None else self._unit_splits(split_size)
        if found is None:
            return self._plan.splits(split_size, self.low, self.high)
        if self.walked_from < self.high:
            found += self._plan.splits(
                split_size, self.walked_from, self.high, self._selection.get("topics")
            )
        return found

    def _unit_splits(self, split_size: int) -> list[Split] | None:
        """Those that are read through units; None where a unit names a place behind all."""
        left = self.units or []
        if not left:
            return []
        read = self.bytes - (self.high - self.walked_from)
        most = max(left, key=lambda units: units.count)
        count = min(max(1, math.ceil(read / max(1, split_size))), most.count)
        cuts = [self.low]
        for number in range(1, count):
            place = self._units.place(most.key, most.first + number * most.count // count, most.end)
            if place is not None and place[1] > cuts[-1]:
                cuts.append(place[1])
        splits = []
        for start, end in pairwise([*cuts, self.walked_from]):
            here, behind = [], []
            for units in left:
                cut = self._units.first_at_or_above(units.key, end, units)
                here.append(UnitRange(*units.key, units.first, cut))
                behind.append(UnitRange(*units.key, cut, units.end))
            left = behind
            splits.append(self._plan.split(start, end, [units for units in here if units.count]))
        return None if any(units.count for units in left) else splits


class _UnitPlaces:
    """Where the records of some units begin, as a sequence to bisect in."""

    def __init__(self, units: QueueUnits, within: UnitRange) -> None:
        self._units = units
        first, end = within.first, within.end
        # fillers at the end name no place
        while end > first and units.place(within.key, end - 1, end) is None:
            end -= 1
        self._within = UnitRange(*within.key, first, end)

    def __len__(self) -> int:
        return self._within.count

    def __getitem__(self, index: int) -> int:
        within = self._within
        place = self._units.place(within.key, within.first + index, within.end)
        return 0 if place is None else place[1]


_Places = list[int] | _UnitPlaces
