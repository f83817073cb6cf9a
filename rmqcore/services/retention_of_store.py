"""Retention's view of a store: its log files, and what is derived from them.

Floor: F6; imports services.retention, files.commit_log and services below.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from rmqcore.config import StoreConfig
from rmqcore.files.commit_log import CommitLog
from rmqcore.running_flags import RunningFlags
from rmqcore.services.consume_queue_store import ConsumeQueueStore
from rmqcore.services.index_service import IndexService
from rmqcore.services.retention import (
    CleanCommitLogService,
    CleanConsumeQueueService,
    LogFileInfo,
    RetentionService,
    disk_usage,
)


class RetainedStore(Protocol):
    """The parts of a store that grow old."""

    path: Path
    config: StoreConfig
    log: CommitLog
    consume_queues: ConsumeQueueStore
    index: IndexService | None
    flags: RunningFlags


class _LogFiles:
    def __init__(self, log: CommitLog) -> None:
        self._log = log

    def log_files(self) -> Sequence[LogFileInfo]:
        """All files, oldest first."""
        files = []
        for file in self._log.queue.files:
            stat = file.path.stat()
            files.append(
                LogFileInfo(
                    file.path.name,
                    file.file_from_offset,
                    stat.st_size,
                    stat.st_mtime_ns // 1_000_000,
                )
            )
        return files

    def delete_log_file(self, file: LogFileInfo) -> bool:
        """Delete the oldest file; a reader's view of it stays good."""
        first = self._log.queue.files[0]
        if first.file_from_offset != file.file_from_offset:
            return False
        self._log.queue.remove_first(1)
        return True


class _Derived:
    def __init__(self, store: RetainedStore) -> None:
        self._store = store

    @property
    def min_phy_offset(self) -> int:
        """Physical offset of the oldest byte in the log."""
        return self._store.log.min_offset

    def delete_expired_consume_queue_files(self, min_phy_offset: int) -> int:
        """Delete consume-queue files that point only below the offset."""
        return self._store.consume_queues.delete_before(min_phy_offset)

    def delete_expired_index_files(self, min_phy_offset: int) -> int:
        """Delete index files that point only below the offset."""
        index = self._store.index
        return 0 if index is None else index.delete_before(min_phy_offset)


def retention_of(
    store: RetainedStore, clock_ms: Callable[[], int], on_error: Callable[[BaseException], None]
) -> RetentionService:
    """The retention service of a store; nothing is deleted before it is started."""
    directory = store.log.queue.directory
    return RetentionService(
        CleanCommitLogService(
            store.config,
            _LogFiles(store.log),
            store.flags,
            clock=clock_ms,
            usage=lambda: disk_usage(directory),
        ),
        CleanConsumeQueueService(_Derived(store)),
        clock=clock_ms,
        interval_s=store.config.clean_resource_interval_ms / 1000,
        on_error=on_error,
    )
