"""`FollowedIndex`: the index of a store that another process writes, perhaps without an index."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rmqcore.derived.index_service import IndexQuery, IndexService
from rmqcore.errors import ConfigError, StoreError
from rmqcore.files.log_walker import walk_good_records_of
from rmqcore.files.store_mark import StoreMark
from rmqcore.native.base._lock import ReentrantLock
from rmqcore.native.derive._dispatch import DispatchBatch

if TYPE_CHECKING:
    from rmqcore.files.commit_log import CommitLog
    from rmqcore.files.mapped_file import OpenFiles
    from rmqcore.files.store_dir import StoreDir


class FollowedIndex(IndexService):
    """As `IndexService`; a key is not looked up where messages have keys that are in no index.

    The store's mark says that who has it open, or had it last, keeps no index; or nobody has it
    open, and there is no file of the index. Then the log behind it is looked at for keys, once.

    Args:
        directory: of the store.
        log: of the store.
        hash_slot_num, max_index_num: geometry of every file.
        open_files: the bound on descriptors and mappings.
        refusal: why no file of it can be looked into; None where they can.

    Attributes:
        refusal: as it was given.

    Threads: any readers.
    """

    def __init__(
        self,
        directory: StoreDir,
        log: CommitLog,
        hash_slot_num: int,
        max_index_num: int,
        open_files: OpenFiles,
        refusal: ConfigError | None = None,
    ) -> None:
        super().__init__(directory.index, hash_slot_num, max_index_num, open_files, clock_ms=None)
        self._store = directory
        self._log = log
        self.refusal = refusal
        self._looking = ReentrantLock()
        self._mark_is: tuple[int, int] | None = None
        self._without_index = False
        self._batch = DispatchBatch(row_count_max=4096, index_tags=False)
        #: physical offset behind the records of which it is known that their keys are filed
        self._looked_to = 0

    def query(
        self, topic: str, key: str, max_offsets: int, begin_ms: int, end_ms: int
    ) -> IndexQuery:
        """As `IndexService.query`.

        Raises:
            ConfigError: the geometry of its files cannot be told, or is none of theirs.
            StoreError: the last writer keeps no index, or it is lost, and there are keys behind it.
            CorruptStoreError: the index, or a file of the log, is damaged.
        """
        if self.refusal is not None:
            raise self.refusal
        with self._looking.within():
            why = None
            if self._writer_has_none():
                why = (
                    "who has written this store last had message_index_enable off, and keys are in "
                    "no index"
                )
            elif not (self.files or self.names() or self._store.is_locked()):
                why = f"no index is in {self._store.index}, and the log has keys"
            if why is not None and self._lacks_keys():
                raise StoreError(
                    f"no key is looked up: {why}; rmqcore rebuild index STORE derives it, and so "
                    "does an opening for writing with message_index_enable on"
                )
        return super().query(topic, key, max_offsets, begin_ms, end_ms)

    def names(self) -> list[str]:
        """As `IndexService.names`; none where they are refused."""
        return super().names() if self.refusal is None else []

    def _writer_has_none(self) -> bool:
        """What the mark says, which is read again when it was written."""
        mark = StoreMark(self._store)
        try:
            status = os.stat(mark.path)  # noqa: PTH116 - one system call, for each query
        except FileNotFoundError:
            return False
        found = status.st_ino, status.st_mtime_ns
        if found != self._mark_is:
            mark.load()
            self._mark_is, self._without_index = found, mark.without_index
        return self._without_index

    def _lacks_keys(self) -> bool:
        """Whether a record behind the last one in the index has a key."""
        filed, end = self.last_record(), self._log.max_offset
        at = max(self._looked_to, filed, self._log.min_offset)
        while at < end and (file := self._log.queue.find(at)) is not None:
            for _ in walk_good_records_of(file, self._batch.scan, at, end):
                offsets = self._batch.key_offsets[: self._batch.key_count].tolist()
                self._batch.clear()
                if offsets and offsets[-1] > filed:
                    return True
            at = self._looked_to = min(end, file.file_from_offset + file.size)
        return False
