"""One table of keys and values in memory."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from typing import Final, TypeAlias

#: When more entries than this change together, all keys are sorted anew.
_SORTED_FROM: Final = 64
#: The times at which entries end are thinned out when there are this many, and twice as many as
#: entries.
DUE_AT_LEAST: Final = 64
#: The records of this many last calls of other processes are known, for a call whose answer was
#: lost.
CALLS_KNOWN: Final = 1024
#: A record takes about this many bytes beside its key and value.
RECORD_HEAD_SIZE: Final = 128

#: key, value or None, and when it is gone: Unix ms, 0 for never
Change: TypeAlias = tuple[bytes, bytes | None, int]


class Table:
    """Its entries, their keys in order, and when they expire."""

    def __init__(self) -> None:
        #: by key: the value, and the Unix time in ms from which on it is gone, 0 for never
        self.entries: dict[bytes, tuple[bytes, int]] = {}
        self.keys: list[bytes] = []
        self.due: list[tuple[int, bytes]] = []
        #: records of the topic, from the group's offset on
        self.records = 0
        #: bytes that its entries take when they are put anew
        self.size = 0
        #: by call, the oldest first: queue offset and number of the records that it has put, in
        #: this process or in a former owner that may not have answered
        self.made: dict[str, list[tuple[int, int]]] = {}

    def note(self, call: str, made: Sequence[tuple[int, int]]) -> None:
        """Remember what a call has put, for when its answer is lost.

        Args:
            call: its name; empty for one that nobody repeats.
            made: (queue offset, count) of each run of records, in the order of the log.
        """
        if call and made:
            known = self.made.setdefault(call, [])
            for offset, count in made:
                begin, number = known[-1] if known else (offset, 0)
                if begin + number == offset:
                    known[-1:] = [(begin, number + count)]
                else:
                    known.append((offset, count))
            while len(self.made) > CALLS_KNOWN:
                del self.made[next(iter(self.made))]

    def apply(self, changes: Sequence[Change]) -> None:
        """Make some changes, one after the other; a value of None deletes."""
        if len(changes) > _SORTED_FROM:
            self.load(changes)
            return
        for key, value, expires_ms in changes:
            known = key in self.entries
            self._set(key, value, expires_ms)
            if value is None and known:
                del self.keys[bisect_left(self.keys, key)]
            elif value is not None and not known:
                insort(self.keys, key)

    def load(self, changes: Iterable[Change]) -> None:
        """As `apply`, for very many: the keys are sorted once."""
        for change in changes:
            self._set(*change)
        self.keys = sorted(self.entries)

    def _set(self, key: bytes, value: bytes | None, expires_ms: int) -> None:
        old = self.entries.pop(key, None) if value is None else self.entries.get(key)
        if old is not None:
            self.size -= len(key) + len(old[0]) + RECORD_HEAD_SIZE
        if value is None:
            return
        self.size += len(key) + len(value) + RECORD_HEAD_SIZE
        self.entries[key] = value, expires_ms
        if expires_ms:
            heappush(self.due, (expires_ms, key))
            if len(self.due) > max(DUE_AT_LEAST, 2 * len(self.entries)):
                # keys that are set again long before they end would fill this list
                self.due = sorted((due, each) for each, (_, due) in self.entries.items() if due)

    def expire(self, now_ms: int) -> None:
        """Drop what has expired; no record is needed, as a reader sees it too."""
        gone: list[Change] = []
        while self.due and self.due[0][0] <= now_ms:
            expires_ms, key = heappop(self.due)
            if self.entries.get(key, (b"", 0))[1] == expires_ms:
                gone.append((key, None, 0))
        if gone:
            self.apply(gone)

    def range(
        self, first: bytes, last: bytes | None, max_entries: int
    ) -> list[tuple[bytes, bytes]]:
        """The entries from a key on and before another, by key; 0 ``max_entries`` for all.

        Args:
            first: the key to begin at, which need not be there.
            last: the key to end before; None to the end.
            max_entries: at most this many.

        Returns:
            (key, value) of each.
        """
        start = bisect_left(self.keys, first)
        stop = len(self.keys) if last is None else bisect_left(self.keys, last)
        if max_entries:
            stop = min(stop, start + max_entries)
        return [(key, self.entries[key][0]) for key in self.keys[start:stop]]
