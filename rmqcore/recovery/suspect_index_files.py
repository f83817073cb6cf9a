"""Index files after a crash: kept up to the first entry that inserting the keys would not write.

Such a file may be partly on the disk, so its header, slots and name say nothing; entries count as
far as they are, byte for byte, those of the log's keys.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from rmqcore.derived.index_service import keys_filed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rmqcore.derived.index_service import IndexService
    from rmqcore.files.index_file import IndexFile
    from rmqcore.native.derive._dispatch import DispatchBatch
    from rmqcore.native.derive._entry_check import EntryCheck

_log = logging.getLogger("rmqcore")


class SuspectIndexFiles:
    """Files the keys of a walk, and finds those in their place that a crash has left.

    Args:
        index: the index, loaded; files that are not trusted are taken from it.
        trusted_until_ms: after an unclean end, the checkpoint's index time: a file that ends later
            may be partly on disk, and so may all behind it. None trusts every file.
    """

    def __init__(self, index: IndexService, trusted_until_ms: int | None) -> None:
        self._index = index
        #: suspect files behind the index's last one, not looked at yet
        self._left: list[IndexFile] = []
        #: checks the index's last file while that is a suspect one; None else
        self._check: EntryCheck | None = None
        if trusted_until_ms is not None:
            newer = (n for n, file in enumerate(index.files) if file.newer_than(trusted_until_ms))
            self._left = index.give_up(next(newer, len(index.files)))

    def dispatch(self, batch: DispatchBatch) -> None:
        """File the keys of one stretch of the log.

        Raises:
            DiskFullError: no room for a new file.
        """
        index, stop = self._index, batch.key_count
        start = keys_filed(batch, index.resume_offset, index.resume_keys)
        columns = batch.key_hashes, batch.key_offsets, batch.key_timestamps
        while start < stop and (check := self._current_check()) is not None:
            done = check.compare(*columns, start, stop)
            if done:
                start += done
                index.note_filed(batch, start)
            if start < stop:
                self._end_check(check)
        index.dispatch(batch)

    def _current_check(self) -> EntryCheck | None:
        """Of the file in which the next key may be; None when the rest is to be filed anew."""
        if self._check is None and self._left:
            file = self._left.pop(0)
            files = self._index.files
            self._check = file.check_bytes(files[-1].header if files else None)
            self._index.append_file(file)
        return self._check

    def _end_check(self, check: EntryCheck) -> None:
        """Go on behind the entries that are there, in the next file when this one is full."""
        self._check = None
        if check.next_entry == 1:
            self.drop_from(len(self._index.files) - 1)
            return
        self._index.files[-1].mend(check)
        if not self._index.files[-1].full:
            self._drop_left()

    def _drop_left(self) -> None:
        left, self._left = self._left, []
        self._index.remove(left)

    def drop_from(self, number: int) -> None:
        """Remove the index's files from a number on, and all that were left behind them."""
        self._check = None
        self._index.drop_from(number)
        self._drop_left()

    def drop_behind_hole(
        self, keys_between: Callable[[int, int], Iterator[tuple[int, int]]]
    ) -> None:
        """Remove the files behind a hole, so that all from there on is derived again.

        Args:
            keys_between: (physical offset, number of keys) of each record with keys in a range of
                the log.
        """
        end, keys = -1, 0
        for number, file in enumerate(self._index.files):
            header = file.header
            if header.index_count <= 1:
                continue
            for offset, count in keys_between(max(end, 0), header.begin_phy_offset):
                if count > (keys if offset == end else 0):
                    _log.warning("%s: files before it are missing", file.path)
                    self.drop_from(number)
                    return
            end, keys = header.end_phy_offset, file.entries_at_end()

    def finish(self) -> None:
        """When every key has been dispatched: remove what the crash has left beyond."""
        if self._check is not None:
            self._end_check(self._check)
        self._drop_left()
        if self._index.files:
            self._index.files[-1].zero_behind()

    def flush(self) -> int:
        """Write the index through to the disk; the time up to which it is there."""
        if self._check is not None:
            self._index.files[-1].mend(self._check)
        return self._index.flush()

    def close(self) -> None:
        """Let go of what was not looked at."""
        for file in self._left:
            file.close()
        self._left = []
