"""Messages of a topic in the order of the log, page by page, without a limit."""

from __future__ import annotations

import heapq
import struct
from dataclasses import dataclass
from typing import Final

from rmqcore.errors import CorruptStoreError
from rmqcore.message import MessageExt
from rmqcore.native.format._numbers import FILLER_SIZE
from rmqcore.web.source import Source, Store

_UNIT: Final = struct.Struct(">qiq")
_UNIT_SIZE: Final = 20
#: Where a part of a queue has not enough, one that is so many times wider is looked at.
_WIDER: Final = 8
#: So many units are looked at together where a queue has none but fillers.
_SPAN_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class LogPage:
    """Messages of a topic, the newest first.

    Attributes:
        messages: at most as many as were asked for.
        older, newer: physical offset to go on from to either side; None at the end.
        damaged: by physical offset, why a message that belongs here cannot be read.
    """

    messages: list[MessageExt]
    older: int | None
    newer: int | None
    damaged: dict[int, str]


def log_page(
    source: Source,
    topic: str,
    queue_id: int | None,
    count: int,
    *,
    before: int | None = None,
    after: int | None = None,
    begin_ms: int = 0,
    end_ms: int | None = None,
) -> LogPage:
    """Messages of a topic in log order, which is that of their store times.

    Args:
        source: where they are.
        topic: which.
        queue_id: of one queue only.
        count: at most so many.
        before: only records that begin below this physical offset.
        after: only records that begin above this one, the nearest; the other way round.
        begin_ms: earliest store time.
        end_ms: latest store time, included; None has no end.
    """
    store = source.store
    numbers = source.queues().get(topic, []) if queue_id is None else [queue_id]
    stretches = [_UnitRange(store, topic, number, begin_ms, end_ms) for number in numbers]
    places: list[int] = []
    if after is not None:
        found = [place for each in stretches for place in each.above(after, count + 1)]
        places = heapq.nsmallest(count + 1, found)
        more, places = len(places) > count, places[:count][::-1]
        newer, older = (places[0] if more else None), (places[-1] if places else None)
    else:
        found = [place for each in stretches for place in each.below(before, count + 1)]
        places = heapq.nlargest(count + 1, found)
        more, places = len(places) > count, places[:count]
        older = places[-1] if more else None
        newer = places[0] if before is not None and places else None
    messages: list[MessageExt] = []
    damaged: dict[int, str] = {}
    for place in places:
        try:
            message = store.message_at(place)
        except CorruptStoreError as error:
            damaged[place] = str(error)
            continue
        if message is None:
            damaged[place] = f"no record begins at {place}, and the queue says that one does"
        else:
            messages.append(message)
    return LogPage(messages, older, newer, damaged)


class _UnitRange:
    """The units of one queue between two times."""

    def __init__(
        self, store: Store, topic: str, queue_id: int, begin_ms: int, end_ms: int | None
    ) -> None:
        self._store, self._topic, self._queue_id = store, topic, queue_id
        self._low = store.min_queue_offset(topic, queue_id)
        self._high = store.max_queue_offset(topic, queue_id)
        if begin_ms:
            self._low = store.queue_offset_by_time(topic, queue_id, begin_ms)
        if end_ms is not None:
            self._high = store.queue_offset_by_time(topic, queue_id, end_ms + 1)
        #: where the first record behind it begins; None: there is none
        self._end = self._place_from(self._high, store.max_queue_offset(topic, queue_id))

    def below(self, before: int | None, count: int) -> list[int]:
        """Places of the last so many records that begin below a physical offset."""
        high, span = self._high if before is None else self._first_at(before), count
        # a unit may stand for several messages
        while True:
            low = max(self._low, high - span)
            found = [place for place in self._places(low, high - low) if self._is_in(place, before)]
            if len(found) >= count or low == self._low:
                return found[-count:]
            span *= _WIDER

    def above(self, after: int, count: int) -> list[int]:
        """Places of the first so many records that begin above a physical offset."""
        low, span = self._first_at(after + 1), count
        while True:
            high = min(self._high, low + span)
            found = [place for place in self._places(low, high - low) if self._is_in(place, None)]
            found = [place for place in found if place > after]
            if len(found) >= count or high == self._high:
                return found[:count]
            span *= _WIDER

    def _is_in(self, place: int, before: int | None) -> bool:
        """Tell whether a record lies before another, and before the end of the stretch."""
        return (before is None or place < before) and (self._end is None or place < self._end)

    def _places(self, start: int, count: int) -> list[int]:
        """Where the records of some units begin; a filler has none."""
        if count <= 0:
            return []
        units = self._store.read_units(self._topic, self._queue_id, start, count)
        whole = len(units) // _UNIT_SIZE * _UNIT_SIZE
        return [
            place for place, size, _ in _UNIT.iter_unpack(units[:whole]) if 0 < size < FILLER_SIZE
        ]

    def _place_from(self, start: int, stop: int) -> int | None:
        """Where the first record of the units from a queue offset on begins; None without one."""
        span = 1
        while start < stop:
            found = self._places(start, min(span, stop - start))
            if found:
                return found[0]
            start += span
            span = min(_WIDER * span, _SPAN_MAX)
        return None

    def _first_at(self, phy_offset: int) -> int:
        """The first queue offset whose record begins at a physical offset or behind it."""
        low, high = self._low, self._high
        while low < high:
            middle = (low + high) // 2
            found = self._place_from(middle, high)
            if found is None or found >= phy_offset:
                high = middle
            else:
                low = middle + 1
        return low
