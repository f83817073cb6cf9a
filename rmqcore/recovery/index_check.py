"""Compares an existing index with the log while recovery walks over the log.

A file that is wrong in any way is derived again, with all behind it. What RocketMQ does otherwise
than rmqcore, the entries of one record filed twice, is no fault.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

from rmqcore.derived.index_service import keys_filed

if TYPE_CHECKING:
    from rmqcore.derived.index_service import IndexService
    from rmqcore.native.derive._dispatch import DispatchBatch
    from rmqcore.native.derive._entry_check import EntryCheck


class IndexCheck:
    """Compares entries with the keys that the log has, in log order, over one walk.

    Entries of records before the walk are compared with each other only.

    Attributes:
        wrong: number of the first index file that contradicts the log or itself; None for none.
    """

    def __init__(self, index: IndexService) -> None:
        self.wrong: int | None = None
        self._over = not any(file.entry_count for file in index.files)
        self._files = index.files
        self._resume_offset = index.resume_offset
        self._resume_keys = index.resume_keys
        self._number = -1
        self._check: EntryCheck | None = None

    def compare(self, batch: DispatchBatch) -> None:
        """Compare the keys of one stretch of the log that are filed already."""
        if self._over:
            return
        stop = keys_filed(batch, self._resume_offset, self._resume_keys)
        if stop and self._check is None:
            self._begin(int(batch.key_offsets[0]))
        if self._check is not None:
            self._compare(batch, stop, self._check)
            if stop < batch.key_count and not self._over:
                self._note()

    def end(self, log_end: int) -> None:
        """The walk is over: entries that are left have no record.

        Args:
            log_end: physical offset; a file that knows records from there on is not looked at.
        """
        under_check = self._check is not None and not self._over
        if under_check and self._files[self._number].header.end_phy_offset < log_end:
            self._note()

    def _note(self) -> None:
        self.wrong, self._over = self._number, True

    def _begin(self, phy_offset: int) -> None:
        """Go to the first entry of the record at a physical offset, or of one behind it."""
        ends = [file.header.end_phy_offset >= phy_offset for file in self._files]
        self._number = ends.index(True) - 1 if True in ends else len(ends) - 2
        check = self._next_file()
        if check is not None and not check.pass_over(phy_offset):
            self._note()

    def _next_file(self) -> EntryCheck | None:
        """Go on in the next file that has entries; None when there is none."""
        for number in range(self._number + 1, len(self._files)):
            if self._files[number].entry_count:
                self._number = number
                self._check = self._files[number].check_entries()
                return self._check
        return None

    def _compare(self, batch: DispatchBatch, stop: int, check: EntryCheck) -> None:
        columns = batch.key_hashes, batch.key_offsets, batch.key_timestamps
        at = 0
        while not self._over:
            at += check.compare(*columns, at, stop)
            if check.next_entry < check.limit:
                phy_offset = self._files[self._number].entry(check.next_entry)[1]
                if at == stop and (not stop or phy_offset != batch.key_offsets[stop - 1]):
                    return
                at = self._pass_record(batch, at, stop, phy_offset)
                continue
            if not check.fits():
                self._note()
            elif (following := self._next_file()) is not None:
                check = following
            elif at == stop:
                self._over = True
            else:
                self._note()

    def _pass_record(self, batch: DispatchBatch, at: int, stop: int, phy_offset: int) -> int:
        """Pass over the entries of a record that are filed twice, or in another order.

        Of the keys before ``stop``, ``at`` were found; the first key behind the record is returned.
        """
        low = bisect_left(batch.key_offsets, phy_offset, 0, stop)
        high = bisect_right(batch.key_offsets, phy_offset, low, stop)
        keys = batch.key_hashes[low:high].tolist()
        check, file = self._check, self._files[self._number]
        if check is None or not low <= at <= high or not check.pass_over(phy_offset + 1):
            self._note()
            return at
        filed = set()
        for number in range(check.next_entry - 1, 0, -1):
            key_hash, offset, _, _ = file.entry(number)
            if offset != phy_offset:
                break
            filed.add(key_hash)
        if not filed <= set(keys) or not set(keys[at - low :]) <= filed:
            self._note()
        return high
