"""Wires retention to a store: its log files, and what is derived from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from rmqcore.config import StoreConfig
from rmqcore.derived.consume_queue_store import ConsumeQueueStore
from rmqcore.derived.index_service import IndexService
from rmqcore.files.commit_log import CommitLog
from rmqcore.files.store_trace import Note
from rmqcore.services.retention import (
    CleanCommitLogService,
    CleanConsumeQueueService,
    CommitLogFiles,
    RetentionService,
    disk_usage,
)
from rmqcore.services.running_flags import RunningFlags


class RetainedStore(Protocol):
    """The parts of a store that grow old."""

    config: StoreConfig
    log: CommitLog
    consume_queues: ConsumeQueueStore
    index: IndexService | None
    flags: RunningFlags


def retention_of(
    store: RetainedStore,
    clock_ms: Callable[[], int],
    note: Note,
    *,
    needed_from: Callable[[], int],
    keep_from: Callable[[], int | None],
) -> RetentionService:
    """The retention service of a store; nothing is deleted before it is started.

    Args:
        store: whose files are deleted.
        clock_ms: Unix time in milliseconds.
        note: takes down which log files are deleted.
        needed_from: physical offset from which on the store reads, see `CommitLogFiles`.
        keep_from: physical offset that still has to be read, see `CleanCommitLogService`.
    """
    queue = store.log.queue
    parts = (store.log.mapped, store.consume_queues, store.index)
    derived = [part for part in parts if part is not None]
    return RetentionService(
        CleanCommitLogService(
            store.config,
            CommitLogFiles(queue, needed_from, note),
            store.flags,
            clock=clock_ms,
            usage=lambda: disk_usage(queue.directory),
            keep_from=keep_from,
        ),
        CleanConsumeQueueService(lambda: store.log.min_offset, *derived),
        clock=clock_ms,
        interval_s=store.config.clean_resource_interval_ms / 1000,
    )
