"""`Flushing`: writes the store through to the disk: the log, what is derived from it, tables."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from rmqcore.errors import StoreNotWritableError, is_broken
from rmqcore.native.base._lock import locks_held

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rmqcore.files.config_tables import ConfigTable
    from rmqcore.services.flush import FlushConsumeQueueService, LogFlusher
    from rmqcore.store.parts.handle import Handle
    from rmqcore.store.parts.health import Health
    from rmqcore.store.parts.level import Level


class Flushing:
    """Flushes for those who ask for it.

    Args:
        handle: says whether the store is open.
        flusher: flushes the log.
        level: catches up with what has been put.
        derived: flushes consume queues and index, and writes the checkpoint.
        tables: below ``config/``, that are written with them.
        health: hears of a disk that refuses.
    """

    def __init__(
        self,
        handle: Handle,
        flusher: LogFlusher,
        level: Level,
        derived: FlushConsumeQueueService,
        tables: Sequence[ConfigTable],
        health: Health,
    ) -> None:
        self._handle = handle
        self._flusher = flusher
        self._level = level
        self._derived = derived
        self._tables = tables
        self._health = health

    def flush(self) -> int:
        """Write everything put so far to the disk, with derived files, consumer offsets and topics.

        Returns:
            the flushed physical offset.

        Raises:
            DiskFullError: there is no room; nothing is lost, and a later call tries again.
            OSError: the disk refused; the store takes no puts any more, unless only the checkpoint
                or tables below ``config/`` could not be written.
            StoreNotWritableError: the call comes from a signal handler or a finalizer inside
                another call of this thread, and cannot wait.
        """
        self._handle.check_open()
        if self._handle.interrupted():
            raise StoreNotWritableError(
                "a signal handler or a finalizer inside another call cannot wait; flush again later"
            )
        try:
            flushed = self._flusher.flush()
            self._level.catch_up_all()
            self._derived.flush_files()
        except OSError as error:
            if is_broken(error):
                self._health.service_failed(error)
            raise
        self._derived.write_checkpoint()
        self.persist_tables()
        return flushed

    def flush_log(self) -> None:
        """Write the log through to the disk, for a table that must not be written before it.

        `flush` is for callers that hold no lock; this is for one that holds the table's.

        Raises:
            OSError: the disk refused, now or before.
            StoreClosedError: the store is closed.
            StoreNotWritableError: the call comes from inside another call of this thread, and
                cannot wait.
        """
        self._handle.check_open()
        if locks_held() > 1:
            raise StoreNotWritableError("the log cannot be flushed inside another call; later")
        self._flusher.flush()

    def try_flush_log(self) -> None:
        """Flush the log, where the disk takes it, for who has to read all that was put.

        A put that was interrupted, or has not waited long enough, cannot be read before that.
        """
        with suppress(OSError, StoreNotWritableError):
            self.flush_log()

    def persist_tables(self) -> None:
        """Write the tables that have changed.

        Raises:
            OSError: one cannot be written.
        """
        for table in self._tables:
            table.persist()
