"""Holding an existing index against the log while recovery walks over it.

A file that is wrong in any way is derived again, with all behind it. What RocketMQ does otherwise
than rmqcore, the entries of one record filed twice, is no fault.

Floor: F6.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rmqcore._dispatch import DispatchBatch
    from rmqcore.files.index_file import IndexFile
    from rmqcore.services.index_service import IndexService

#: entries of files whose chains are looked at; beyond, opening a store would take too long
_CHAINED_ENTRIES_MAX = 8_000_000
_TIME_DIFF_MAX = 0x7FFFFFFF
_MIX = np.uint64(0x9E3779B97F4A7C15)


class IndexCheck:
    """Compares entries with the keys that the log has, in log order.

    Attributes:
        wrong: number of the first index file that contradicts the log or itself; None for none.
    """

    def __init__(self, index: IndexService) -> None:
        self.wrong: int | None = None
        self._files = index.files
        self._resume_offset = index.resume_offset
        self._resume_keys = index.resume_keys
        self._looked_at: set[int] = set()
        self._budget = _CHAINED_ENTRIES_MAX

    def take(self, batch: DispatchBatch) -> None:
        """Compare the keys of one stretch of the log that are filed already."""
        offsets = np.asarray(batch.key_offsets)[: batch.key_count]
        low, high = offsets.searchsorted([self._resume_offset, self._resume_offset + 1])
        stop = int(min(low + self._resume_keys, high))
        if not stop:
            return
        first, last = int(offsets[0]), int(offsets[stop - 1])
        numbers, parts = [], []
        for number, file in enumerate(self._files):
            header = file.header
            if header.index_count > 1 and header.end_phy_offset >= first:
                if header.begin_phy_offset > last:
                    break
                self._look_at(number, file)
                entries = file.entries()
                low = int(entries["phy_offset"].searchsorted(first, "left"))
                high = int(entries["phy_offset"].searchsorted(last, "right"))
                numbers.append((number, low, high))
                parts.append(entries[low:high])
        self._compare(batch, stop, numbers, parts)

    def _note(self, number: int) -> None:
        self.wrong = number if self.wrong is None else min(self.wrong, number)

    def _look_at(self, number: int, file: IndexFile) -> None:
        """Compare a file's header, slots and chains with its entries, once."""
        if number in self._looked_at:
            return
        self._looked_at.add(number)
        self._budget -= file.entry_count
        if self._budget >= 0 and not chains_fit(file):
            self._note(number)

    def _compare(
        self,
        batch: DispatchBatch,
        stop: int,
        numbers: list[tuple[int, int, int]],
        parts: list[NDArray[np.void]],
    ) -> None:
        offsets = np.asarray(batch.key_offsets)[:stop]
        hashes = np.asarray(batch.key_hashes)[:stop]
        found = np.concatenate(parts) if parts else np.empty(0, [("phy_offset", "i8")])
        if len(found) != stop or not (
            np.array_equal(found["phy_offset"], offsets)
            and np.array_equal(found["key_hash"], hashes)
        ):
            self._compare_sets(offsets, hashes, found)
            return
        at = 0
        for number, low, high in numbers:
            times = np.asarray(batch.key_timestamps)[at : at + high - low]
            if not _times_fit(self._files[number], low, high, times):
                self._note(number)
            at += high - low

    def _compare_sets(
        self, offsets: NDArray[np.int64], hashes: NDArray[np.int32], found: NDArray[np.void]
    ) -> None:
        wanted = dict(zip(_mixed(offsets, hashes).tolist(), offsets.tolist(), strict=True))
        there = {}
        if len(found):
            there_offsets = found["phy_offset"].astype(np.int64)
            mixed = _mixed(there_offsets, found["key_hash"].astype(np.int32))
            there = dict(zip(mixed.tolist(), there_offsets.tolist(), strict=True))
        odd = wanted.keys() ^ there.keys()
        if odd:
            offset = min((wanted | there)[one] for one in odd)
            ends = [file.header.end_phy_offset >= offset for file in self._files]
            self._note(ends.index(True) if True in ends else len(ends) - 1)


def _mixed(offsets: NDArray[np.int64], hashes: NDArray[np.int32]) -> NDArray[np.uint64]:
    mixed: NDArray[np.uint64] = offsets.astype(np.uint64) * _MIX ^ hashes.astype(np.uint64)
    return mixed


def _times_fit(file: IndexFile, low: int, high: int, times: NDArray[np.int64]) -> bool:
    """True when entries, and the header where it speaks of one of them, have the records' times."""
    if low == high:
        return True
    header = file.header
    entries = file.entries()[low:high]
    wanted = np.clip((times - header.begin_timestamp_ms) // 1000, 0, _TIME_DIFF_MAX)
    skip = 1 if low == 0 else 0  # the first entry's time counts from the file before
    if not np.array_equal(entries["time_diff"][skip:], wanted[skip:]):
        return False
    if low == 0 and times[0] != header.begin_timestamp_ms:
        return False
    return high < file.entry_count or bool(times[-1] == header.end_timestamp_ms)


def chains_fit(file: IndexFile) -> bool:
    """True when header, slots and links are those that the entries make."""
    header, entries, slots = file.header, file.entries(), file.slots()
    offsets = entries["phy_offset"].astype(np.int64)
    if offsets[0] != header.begin_phy_offset or offsets[-1] != header.end_phy_offset:
        return False
    if (entries["key_hash"] < 0).any() or (np.diff(offsets) < 0).any():
        return False
    slot = entries["key_hash"].astype(np.int64) % file.hash_slot_num
    order = np.argsort(slot, kind="stable")
    same = slot[order][1:] == slot[order][:-1]
    previous = np.zeros(len(entries), np.int64)
    previous[order[1:][same]] = order[:-1][same] + 1
    heads = np.zeros(file.hash_slot_num, np.int64)
    heads[slot] = np.arange(1, len(entries) + 1)
    return np.array_equal(entries["previous"], previous) and np.array_equal(slots, heads)
