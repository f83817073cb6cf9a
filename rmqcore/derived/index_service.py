"""The index files of a store in time order, and the dispatcher that fills them."""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

from rmqcore._index import index_hash
from rmqcore.errors import CorruptIndexError, DiskFullError, is_broken, is_refusal
from rmqcore.files.index_file import IndexFile, file_name_at, name_behind
from rmqcore.files.store_dir import make_directory
from rmqcore.native.base._lock import ReentrantLock
from rmqcore.native.read._key_query import may_hold_hits
from rmqcore.world import sync_directory

if TYPE_CHECKING:
    from rmqcore.files.mapped_file import OpenFiles
    from rmqcore.native.derive._dispatch import DispatchBatch

_log = logging.getLogger("rmqcore")
#: A chain that looks broken is walked this many times before it counts as damage: another process
#: may be adding to it.
_LOOKS = 3
#: A directory that changes while it is listed is listed again; after this many times the last
#: listing counts.
_LISTINGS_MAX = 32


@dataclass(slots=True)
class IndexQuery:
    """What a look-up in the index did.

    Attributes:
        phy_offsets: candidates, newest first; the caller compares topic, key and time.
        files: (file name, looked into, chain steps, candidates) for each index file.
        key_hash: the hash that was looked for.
    """

    key_hash: int
    phy_offsets: list[int] = field(default_factory=list)
    files: list[tuple[str, bool, int, int]] = field(default_factory=list)


def keys_filed(batch: DispatchBatch, resume_offset: int, resume_keys: int) -> int:
    """How many of the first keys of a stretch of the log have entries.

    Args:
        batch: the stretch.
        resume_offset: physical offset of the last record that has entries.
        resume_keys: how many of its keys have one.
    """
    offsets, count = batch.key_offsets, batch.key_count
    first = bisect_left(offsets, resume_offset, 0, count)
    behind = bisect_right(offsets, resume_offset, first, count)
    return min(first + resume_keys, behind)


class IndexService:
    """Index files, oldest first; keys go into the last one.

    - Entries are in log order across the files; `resume_offset` is the last record that has any,
      `resume_keys` how many of its keys are there, so that dispatching again doubles nothing.
    - Files are derived: one that contradicts itself is removed and derived again.

    Args:
        directory: where the files lie.
        hash_slot_num, max_index_num: geometry of every file.
        open_files: the bound on descriptors and mappings.
        clock_ms: wall clock, for the names of new files; None follows another process's files.

    Threads: one dispatcher, any readers.
    Source: RocketMQ store/index/IndexService.java.
    Differs: RocketMQ indexes the last record twice when it is dispatched again.
    """

    def __init__(
        self,
        directory: Path,
        hash_slot_num: int,
        max_index_num: int,
        open_files: OpenFiles,
        *,
        clock_ms: Callable[[], int] | None,
    ) -> None:
        self.directory = directory
        self.files: list[IndexFile] = []
        self._change = ReentrantLock()
        self.resume_offset = -1
        self.resume_keys = 0
        self._hash_slot_num = hash_slot_num
        self._max_index_num = max_index_num
        self._open_files = open_files
        self._writable = clock_ms is not None
        #: there where a file is made
        self._clock_ms = cast("Callable[[], int]", clock_ms)
        self._dirty: set[IndexFile] = set()
        self._unsynced: set[Path] = set()
        self._dirty_lock = ReentrantLock()
        self._sync_failure: OSError | None = None

    # ---- opening

    def names(self) -> list[str]:
        """Names of the index files on disk, oldest first."""
        if not self.directory.is_dir():
            return []
        return sorted(
            path.name
            for path in self.directory.iterdir()
            if path.name.isascii() and path.name.isdigit() and path.is_file()
        )

    def load(self) -> list[CorruptIndexError]:
        """Load the files; one that contradicts itself is removed, and every file behind it.

        Returns:
            what was found wrong.
        """
        found: list[CorruptIndexError] = []
        files: list[IndexFile] = []
        for name in self.names():
            file = self._open(name)
            try:
                self._check_behind(files, file)
            except CorruptIndexError as error:
                if not self._writable:
                    continue
                found.append(error)
            if found:
                file.destroy()
            else:
                files.append(file)
        self.files = files
        if files and self._writable:
            # where there is no room, filing the first key raises it
            with suppress(DiskFullError):
                files[-1].reserve()
        self._find_resume()
        return found

    def doubt_names(self) -> None:
        """Let the next flush sync the names of the files: a kill may have come before that."""
        if self.files:
            self._names_changed(self.directory)

    def _open(self, name: str) -> IndexFile:
        return IndexFile(
            self.directory / name,
            self._hash_slot_num,
            self._max_index_num,
            self._open_files,
            writable=self._writable,
        )

    @staticmethod
    def _check_behind(files: list[IndexFile], file: IndexFile) -> None:
        file.check()
        if not files:
            return
        before, after = files[-1].header, file.header
        if before.index_count < files[-1].max_index_num:
            raise CorruptIndexError(
                file.path, -1, f"the file before it, {files[-1].path.name}, is not full"
            )
        if after.index_count > 1 and after.begin_phy_offset < before.end_phy_offset:
            raise CorruptIndexError(
                file.path,
                -1,
                f"it begins with the record at {after.begin_phy_offset}, before the end of "
                f"{files[-1].path.name}",
            )

    def _find_resume(self) -> None:
        self.resume_offset, self.resume_keys = -1, 0
        for file in reversed(self.files):
            header = file.header
            if header.index_count > 1:
                count = file.entries_at_end()
                if self.resume_offset < 0:
                    self.resume_offset, self.resume_keys = header.end_phy_offset, count
                elif header.end_phy_offset == self.resume_offset:
                    self.resume_keys += count
                if count < header.index_count - 1:
                    return

    def last_record(self) -> int:
        """Physical offset of the last record that has entries; -1 for none."""
        headers = (file.header for file in reversed(self.files))
        return next((one.end_phy_offset for one in headers if one.index_count > 1), -1)

    def give_up(self, number: int) -> list[IndexFile]:
        """Forget the files from a number on; they stay on disk, and the caller owns them."""
        given, self.files = self.files[number:], self.files[:number]
        self._find_resume()
        return given

    def append_file(self, file: IndexFile) -> None:
        """Take a file that exists already as the last one."""
        self.files = [*self.files, file]

    def remove(self, files: list[IndexFile]) -> None:
        """Remove files that were given up."""
        for file in files:
            file.destroy()
        if files:
            self._names_changed(self.directory)

    def drop_from(self, number: int) -> None:
        """Remove the files from a number on, so that they are derived again."""
        self.remove(self.give_up(number))

    def truncate(self, end_phy_offset: int) -> None:
        """Remove the files that know records behind the end of the log."""
        for number, file in enumerate(self.files):
            if file.header.index_count > 1 and file.header.end_phy_offset >= end_phy_offset:
                self.drop_from(number)
                return

    def follow(self) -> None:
        """Take in files that another process has created or removed meanwhile."""
        known = {file.path.name: file for file in self.files}
        names = self.names()
        if names == list(known):
            return
        for _ in range(_LISTINGS_MAX):
            # a listing may show a file, and not the one made before it; two equal ones do not
            before, names = names, self.names()
            if names == before:
                break
        self.files = [known.get(name) or self._open(name) for name in names]

    # ---- dispatching

    def dispatch(self, batch: DispatchBatch) -> None:
        """Insert the keys of one stretch of the log; keys that the index has already are left out.

        Raises:
            DiskFullError: no room for a new file; the keys before it are in, and dispatching the
                same stretch again goes on behind them.
        """
        try:
            self._file_keys(batch)
        except BaseException:
            # perhaps on an interrupt: keys are in the file that are not counted yet
            if self.files:
                with self._dirty_lock.within():
                    self._dirty.add(self.files[-1])
                self._find_resume()
            raise

    def _file_keys(self, batch: DispatchBatch) -> None:
        start, stop = keys_filed(batch, self.resume_offset, self.resume_keys), batch.key_count
        columns = batch.key_hashes, batch.key_offsets, batch.key_timestamps
        while start < stop:
            file = self.files[-1] if self.files else None
            if file is None or file.full:
                file = self._roll(file)
            done = file.put_keys(*columns, start, stop)
            if done:
                start += done
                self.note_filed(batch, start)

    def _names_changed(self, directory: Path) -> None:
        """Note that names in a directory are to reach the disk with the next flush."""
        with self._dirty_lock.within():
            self._unsynced.add(directory)

    def note_filed(self, batch: DispatchBatch, stop: int) -> None:
        """Note that the first ``stop`` keys of a stretch have entries now.

        Args:
            batch: the stretch, with its keys in the order of the log.
            stop: how many of them; at least one.
        """
        file = self.files[-1]
        # a file that is in the set already is synced by a flush that has not yet emptied the set
        if file not in self._dirty:
            with self._dirty_lock.within():
                self._dirty.add(file)
        last = batch.key_offsets[stop - 1]
        if last >= self.resume_offset:
            self.resume_offset = last
            self.resume_keys = stop - bisect_left(batch.key_offsets, last, 0, stop)

    def _roll(self, full: IndexFile | None) -> IndexFile:
        if not self.files:
            make_directory(self.directory, synced=False, levels=1)
            self._names_changed(self.directory.parent)
        name = file_name_at(self._clock_ms())
        if full is not None:
            self._sync_full(full)
            if name <= full.path.name:
                # the clock was set back, perhaps by years; the order of the names counts alone
                name = name_behind(full.path.name)
        file = self._open(name)
        try:
            file.create(None if full is None else full.header)
        except BaseException:
            file.destroy()
            raise
        try:
            self._names_changed(self.directory)
            with self._change.within():
                self.files = [*self.files, file]
        except BaseException:
            # on an interrupt the next call would make another file behind this one
            if file not in self.files:
                file.destroy()
            raise
        return file

    # ---- looking

    def query(
        self, topic: str, key: str, max_offsets: int, begin_ms: int, end_ms: int
    ) -> IndexQuery:
        """Candidates for a key, newest first, from the newest file to the oldest.

        Source: RocketMQ store/index/IndexService.java, queryOffset.
        Differs: files are left out by their own times only, whatever the order of the clock.

        Args:
            topic: as the message has it.
            key: one of the message's keys, or its unique key.
            max_offsets: at most this many.
            begin_ms: first store time that counts, Unix milliseconds.
            end_ms: last store time that counts, Unix milliseconds.

        Raises:
            CorruptIndexError: a hash chain is broken, so hits may be missing.
        """
        answer = IndexQuery(index_hash(f"{topic}#{key}"))
        for file in reversed(self.files):
            header = file.header
            times = header.begin_timestamp_ms, header.end_timestamp_ms
            inside = may_hold_hits(header.index_count, *times, begin_ms, end_ms)
            steps = 0
            found: list[int] = []
            if inside:
                for _ in range(_LOOKS):
                    found, steps, broken = file.select_phy_offsets(
                        answer.key_hash, max_offsets - len(answer.phy_offsets), begin_ms, end_ms
                    )
                    if not broken:
                        break
                if broken:
                    raise CorruptIndexError(
                        file.path,
                        -1,
                        "a hash chain is broken, so hits may be missing; open the store for "
                        "writing, which derives the file again, or rebuild the index",
                    )
            answer.files.append((file.path.name, inside, steps, len(found)))
            answer.phy_offsets += found
            if len(answer.phy_offsets) >= max_offsets:
                break
        return answer

    # ---- maintaining

    def flush(self) -> int:
        """Write the changed files through to the disk; the time up to which the index is there.

        Raises:
            OSError: the disk refused, now or before: pages that a failed write has dropped must
                not be taken as stored.
        """
        self.check_synced()
        end_ms = self.files[-1].header.end_timestamp_ms if self.files else 0
        with self._dirty_lock.within():
            dirty, self._dirty = self._dirty, set()
            unsynced, self._unsynced = self._unsynced, set()
        try:
            for file in dirty:
                self._sync(file)
            for directory in unsynced:
                sync_directory(directory)
        except BaseException as error:
            if is_broken(error):
                self._sync_failure = error
            # perhaps on an interrupt: the next flush does it again
            with self._dirty_lock.within():
                self._dirty |= dirty
                self._unsynced |= unsynced
            raise
        return end_ms

    def check_synced(self) -> None:
        """Say whether all that was to go to the disk went there, or may still.

        Raises:
            OSError: the disk refused it.
        """
        if self._sync_failure is not None:
            raise self._sync_failure.with_traceback(None)

    def _sync_full(self, file: IndexFile) -> None:
        """Write a full file through to the disk; where that is refused, a flush hears of it."""
        try:
            self._sync(file)
        except OSError as error:
            if not is_refusal(error):
                raise
        else:
            with self._dirty_lock.within():
                self._dirty.discard(file)

    def _sync(self, file: IndexFile) -> None:
        """Write a file through to the disk; a refusal is final, for a later try proves nothing."""
        self.check_synced()
        try:
            file.flush()
        except OSError as error:
            if is_broken(error):
                self._sync_failure = error
            raise

    def delete_before(self, min_phy_offset: int) -> int:
        """Remove files all of whose records are gone, never the last; how many went.

        Raises:
            OSError: a file could not be removed; it and those behind it stay.
        """
        gone = 0
        while True:
            with self._change.within():
                oldest = self.files[0] if len(self.files) > 1 else None
                if oldest is None or oldest.header.end_phy_offset >= min_phy_offset:
                    return gone
                self.files = self.files[1:]
            try:
                oldest.destroy()
            except OSError:
                with self._change.within():
                    self.files = [oldest, *self.files]
                raise
            gone += 1

    def close(self) -> None:
        """Close the files."""
        for file in self.files:
            file.close()
        self.files = []
