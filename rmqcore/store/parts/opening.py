"""Opening a store for writing: lock, recover, make the parts, let them begin; or undo all that."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from rmqcore.files.store_trace import error_words
from rmqcore.recovery.geometry import fitted_config
from rmqcore.recovery.unfinished_repair import (
    refuse_unfinished_restore,
    report_unfinished_repair,
)
from rmqcore.store.parts.all_parts import Parts
from rmqcore.store.parts.files import StoreFiles
from rmqcore.store.parts.settings import Settings

if TYPE_CHECKING:
    from rmqcore.config import StoreConfig
    from rmqcore.files.store_dir import StoreDir
    from rmqcore.files.store_trace import Numbers, StoreTrace
    from rmqcore.recovery.report import RecoveryProgress, RecoveryReport
    from rmqcore.services.delay_schedule import QueueAtDelivery
    from rmqcore.services.runner import Runner
    from rmqcore.store.parts.handle import Handle
    from rmqcore.world import World


class Opening:
    """One try to open a store.

    Args:
        handle: is open from when the lock is held.
        directory: of the store.
        trace: takes down what happens.
        progress: called while the store is being recovered.
    """

    def __init__(
        self,
        handle: Handle,
        directory: StoreDir,
        trace: StoreTrace,
        progress: Callable[[RecoveryProgress], None] | None,
    ) -> None:
        self._handle = handle
        self._directory = directory
        self._trace = trace
        self._progress = progress
        #: False until recovery begins: an opening that fails before that leaves an abort file as
        #: it is
        self._was_clean = False
        self._files: StoreFiles | None = None
        self._parts: Parts | None = None

    def run(
        self,
        config: StoreConfig,
        runner: Runner,
        keep_from: Callable[[], int | None] | None,
        queue_at_delivery: QueueAtDelivery,
        world: World,
    ) -> Parts:
        """Open it.

        Args:
            config: what is asked for; the sizes of files that are there win.
            runner: runs the services.
            keep_from: see `Upkeep`.
            queue_at_delivery: see `Upkeep`.
            world: tells the time, and lets it pass.

        Raises:
            StoreLockedError, CorruptStoreError, OSError: see `rmqcore.open_store`; everything is
                as it was, but for what recovery has mended.
        """
        directory = self._directory
        try:
            directory.create()
            directory.lock()
            self._handle.closed = False
            # only with the lock: a repair may have been killed just before the lock was free
            refuse_unfinished_restore(directory)
            told = report_unfinished_repair(directory, config.on_corruption)
            settings = Settings(fitted_config(config, directory))
            self._files = files = StoreFiles(
                directory, settings.config, settings.policy, self._trace, world
            )
            report = self._recovered(files)
            report.findings += told
            self._parts = parts = Parts(
                self._handle,
                settings,
                files,
                report,
                self._trace,
                runner,
                keep_from,
                queue_at_delivery,
                world,
            )
            self._note_recovery(parts)
            parts.begin()
            directory.settle()
        except BaseException as error:
            self._abandon(error)
            raise
        return parts

    def _recovered(self, files: StoreFiles) -> RecoveryReport:
        self._was_clean = not self._directory.was_aborted
        self._directory.sync_found_names()
        # an opening that was refused before this has changed nothing
        self._trace.open()
        left = "was closed in order" if self._was_clean else "was not closed"
        self._trace.note("open", os.getpid(), f"the store {left}")
        self._directory.mark_running()
        return files.recover(self._progress, clean_shutdown=self._was_clean)

    def _abandon(self, error: BaseException) -> None:
        """Close everything after opening has failed."""
        self._trace.note("close", words=f"not opened: {error_words(error)}")
        self._handle.closed = True
        try:
            if self._parts is not None:
                self._parts.upkeep.stop()
            if self._files is not None:
                self._files.close()
            if self._was_clean:
                # a marker that stays lets the next opening look more closely
                with suppress(OSError):
                    self._directory.clear_running()
        finally:
            self._trace.let_go()
            self._directory.unlock()

    def _note_recovery(self, parts: Parts) -> None:
        """Note what recovery has found; from now on rows have numbers."""
        files, reput, report = parts.files, parts.log_services.reput, parts.recovery_report

        def numbers() -> Numbers:
            tail = files.tail
            return tail.max_offset, files.writer.flushed_offset, reput.offset, tail.counts[0]

        self._trace.watch(numbers)
        found = [f"{report.ending.value} from {report.start_offset}"]
        if report.dropped_bytes:
            found.append(f"{report.dropped_bytes} bytes cut off")
        for what in ("dropped_records", "units_dropped", "damaged", "findings"):
            value = getattr(report, what)
            if count := value if isinstance(value, int) else len(value):
                found.append(f"{count} {what}")
        self._trace.note("verdict", report.records, ", ".join(found))
