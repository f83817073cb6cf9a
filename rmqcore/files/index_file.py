"""One file of the hash index: which records carry a key.

The bytes are changed by the native module `_index`; this class owns the file, its geometry and its
header. A damaged index is derived from the log again, never trusted.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from rmqcore._codec import LAYOUT
from rmqcore._index import (
    HEADER_SIZE,
    INDEX_ENTRY_SIZE,
    INDEX_SLOT_SIZE,
    index_file_size,
    put_keys,
    read_header,
    walk_chain,
)
from rmqcore.errors import CorruptIndexError, Syncing
from rmqcore.files.file_time import renew_file_time
from rmqcore.files.kept_dirty import keep_dirty
from rmqcore.files.mapped_file import MappedFile, OpenFiles
from rmqcore.native.derive._entry_check import EntryCheck
from rmqcore.native.read._key_query import MappedIndex

if TYPE_CHECKING:
    from pathlib import Path


class IndexHeader(NamedTuple):
    """The first 40 bytes. Layout: docs/format/index-file.md, "Header"."""

    begin_timestamp_ms: int
    end_timestamp_ms: int
    begin_phy_offset: int
    end_phy_offset: int
    hash_slot_count: int
    index_count: int


def file_name_at(timestamp_ms: int) -> str:
    """Name of an index file created at a time: local time as yyyyMMddHHmmssSSS."""
    moment = time.localtime(timestamp_ms // 1000)
    return f"{time.strftime('%Y%m%d%H%M%S', moment)}{timestamp_ms % 1000:03d}"


def name_behind(name: str) -> str:
    """The next name behind one; it need not be a time: the order of the names is what counts."""
    return f"{int(name) + 1:0{len(name)}d}"


class IndexFile:
    """Header, hash slots and entries of one file.

    - Holds at most ``max_index_num - 1`` entries; entry 0 is never used.
    - Entries are in log order; ``end_phy_offset`` is that of the last.

    Args:
        path: the file.
        hash_slot_num, max_index_num: geometry; it decides the file's length.
        open_files: the bound on descriptors and mappings.
        writable: False reads through the descriptor only.

    Threads: one writer, any readers.
    Source: RocketMQ store/index/IndexFile.java.
    """

    def __init__(
        self,
        path: Path,
        hash_slot_num: int,
        max_index_num: int,
        open_files: OpenFiles,
        *,
        writable: bool = True,
    ) -> None:
        self.path = path
        self.hash_slot_num = hash_slot_num
        self.max_index_num = max_index_num
        self._final_header: IndexHeader | None = None
        self._mapped: MappedIndex | None = None
        self._reserved = False
        size = index_file_size(hash_slot_num, max_index_num)
        self._file = MappedFile(path, size, 0, open_files, writable=writable)

    def create(self, before: IndexHeader | None) -> None:
        """Create the file; it begins where the one before ended.

        Args:
            before: the header of that one, of which only the end counts; None for the first file.

        Raises:
            DiskFullError: no room; nothing is left behind.
        """
        self._file.create(whole=True)
        self._reserved = True
        if before is not None:
            time_ms, offset = before.end_timestamp_ms, before.end_phy_offset
            view = memoryview(self._file.region)
            for number, value in enumerate((time_ms, time_ms, offset, offset)):
                if value > 0:
                    view[8 * number : 8 * number + 8] = value.to_bytes(8, "big")

    def reserve(self) -> None:
        """Reserve the file whole before the mapping is written to.

        Raises:
            DiskFullError: there is no room.
        """
        if not self._reserved:
            self._file.reserve_from(0)
            self._reserved = True

    def check(self) -> None:
        """Compare length, header and count with the geometry.

        Raises:
            CorruptIndexError: they contradict each other.
        """
        length = self.path.stat().st_size
        if length != self._file.size:
            raise CorruptIndexError(
                self.path, -1, f"the file has {length} bytes, its geometry needs {self._file.size}"
            )
        header = self.header
        if header.index_count > self.max_index_num or header.hash_slot_count < 0:
            raise CorruptIndexError(
                self.path,
                -1,
                f"the header counts {header.index_count} entries in {header.hash_slot_count} "
                f"slots; there is room for {self.max_index_num - 1}",
            )
        if header.index_count > 1 and not (
            0 <= header.begin_phy_offset <= header.end_phy_offset and header.begin_timestamp_ms > 0
        ):
            raise CorruptIndexError(self.path, -1, f"the header is out of order: {header}")

    @property
    def header(self) -> IndexHeader:
        """The header as it stands now; that of a full file does not change any more."""
        if self._final_header is not None:
            return self._final_header
        header = IndexHeader(*read_header(self._file.read(0, HEADER_SIZE)))
        if header.index_count >= self.max_index_num:
            self._final_header = header
        return header

    @property
    def full(self) -> bool:
        """True when no entry fits any more."""
        return self.header.index_count >= self.max_index_num

    @property
    def entry_count(self) -> int:
        """Entries in the file."""
        return self.header.index_count - 1

    def newer_than(self, trusted_until_ms: int) -> bool:
        """True unless the file ends, with an entry, at or before a store time."""
        header = self.header
        return header.index_count <= 1 or header.end_timestamp_ms > trusted_until_ms

    def put_keys(
        self,
        key_hashes: memoryview[int],
        phy_offsets: memoryview[int],
        store_timestamps_ms: memoryview[int],
        start: int,
        stop: int,
    ) -> int:
        """Insert entries ``start`` to ``stop`` until the file is full; how many went in.

        Args:
            key_hashes: Java's hash of ``topic#key``, not negative, of each entry.
            phy_offsets: physical offset of each entry's record.
            store_timestamps_ms: store time of each entry's record, Unix milliseconds.
            start: number of the first entry of these to insert.
            stop: number behind the last one.

        Raises:
            DiskFullError: the file has holes, and there is no room to fill them.
        """
        self.reserve()
        return put_keys(
            self._file.region,
            self.hash_slot_num,
            self.max_index_num,
            key_hashes,
            phy_offsets,
            store_timestamps_ms,
            start,
            stop,
        )

    def select_phy_offsets(
        self, key_hash: int, max_offsets: int, begin_ms: int, end_ms: int
    ) -> tuple[list[int], int, bool]:
        """(physical offsets, newest first; chain steps; True when the chain was broken).

        Args:
            key_hash: Java's hash of ``topic#key``, not negative.
            max_offsets: at most this many.
            begin_ms: first store time that counts, Unix milliseconds; the index knows it to the
                second.
            end_ms: last store time that counts, Unix milliseconds.

        Raises:
            CorruptIndexError: its size contradicts the number of slots and entries.
        """
        handle = self._file.handle
        return walk_chain(
            self._file.region if self._file.writable else handle.fd,
            self.hash_slot_num,
            self.max_index_num,
            key_hash,
            begin_ms=begin_ms,
            end_ms=end_ms,
            max_offsets=max_offsets,
        )

    @property
    def mapped(self) -> MappedIndex:
        """What a key query needs of the file; it keeps the mapping alive."""
        if self._mapped is None:
            region = self._file.region
            self._mapped = MappedIndex(region, self.path, self.hash_slot_num, self.max_index_num)
        return self._mapped

    def entries_at_end(self) -> int:
        """How many of the last entries belong to the last record indexed."""
        header = self.header
        count = 0
        for number in range(header.index_count - 1, 0, -1):
            if self.entry(number)[1] != header.end_phy_offset:
                break
            count += 1
        return count

    def entry(self, number: int) -> tuple[int, int, int, int]:
        """(key_hash, phy_offset, time_diff_s, previous_entry) of an entry."""
        at = HEADER_SIZE + INDEX_SLOT_SIZE * self.hash_slot_num + INDEX_ENTRY_SIZE * number
        data = self._file.read(at, INDEX_ENTRY_SIZE)
        key_hash, phy_offset, time_diff_s, previous = (
            int.from_bytes(data[place : place + size], "big", signed=True)
            for place, size in LAYOUT["index_entry"].values()
        )
        return key_hash, phy_offset, time_diff_s, previous

    # ---- checking

    def check_entries(self) -> EntryCheck:
        """A check of the file against the keys of the log, which believes its header."""
        return EntryCheck(self._file.region, self.hash_slot_num, self.max_index_num, by_header=True)

    def check_bytes(self, before: IndexHeader | None) -> EntryCheck:
        """A check of the file against the keys of the log, which believes nothing in the file.

        Args:
            before: the header of the file before, as for `create`.
        """
        return EntryCheck(
            self._file.region,
            self.hash_slot_num,
            self.max_index_num,
            by_header=False,
            before_ms=0 if before is None else before.end_timestamp_ms,
        )

    def mend(self, check: EntryCheck) -> None:
        """Write header and slots for the entries that agreed; what lies behind them is free."""
        self._final_header = None
        self.reserve()
        check.mend()

    def zero_behind(self) -> None:
        """Make what lies behind the last entry read as zeros."""
        unused = INDEX_ENTRY_SIZE * (self.max_index_num - self.header.index_count)
        self._file.zero_from(self._file.size - unused)

    def flush(self) -> None:
        """Write through to the disk.

        Raises:
            OSError: the disk refused.
        """
        region = self._file.region
        try:
            with Syncing(self.path):
                region.sync()
        except OSError as error:
            keep_dirty(self._file, error)
            raise
        renew_file_time(self._file.handle.fd)

    def close(self) -> None:
        """Close the file."""
        self._mapped = None
        self._file.close()

    def destroy(self) -> None:
        """Remove the file."""
        self._mapped = None
        self._file.destroy()
