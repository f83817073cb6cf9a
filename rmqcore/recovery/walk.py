"""Recovery's walk over the log: records go to queues and index, other places to the judge."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmqcore.config import OnCorruption
from rmqcore.errors import DiskFullError
from rmqcore.files.log_walker import FileWalk, Kernel, view_of, walk_good_records
from rmqcore.native.format._next_record import ScanStatus
from rmqcore.recovery.helper_thread import HelperThread
from rmqcore.recovery.index_check import IndexCheck

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from _typeshed import ReadableBuffer

    from rmqcore.config import StoreConfig
    from rmqcore.derived.index_service import IndexService
    from rmqcore.files.commit_log import CommitLog
    from rmqcore.files.mapped_file import MappedFile
    from rmqcore.native.derive._dispatch import DispatchBatch
    from rmqcore.recovery.judge import Judge
    from rmqcore.recovery.queue_check import QueueCheck
    from rmqcore.recovery.report import RecoveryReport
    from rmqcore.recovery.suspect_index_files import SuspectIndexFiles


class Walk:
    """Walks the files of the log record by record, and feeds what is derived from them.

    - Each file gives its stretches to `queues` at once; their keys are filed in a second thread
      while the next stretch is scanned.
    - Dispatching is idempotent, so a walk may begin earlier than it must, and again.
    - What the disk has no room for is not derived, nor is anything behind it.

    Args:
        log: the log.
        judge: decides about places where no good record is.
        queues: fed with each stretch.
        index, left: hold the keys, and file them; None when there is no index.
        batches: the kernel's working arrays, twice: while one is filled, the keys of the other are
            filed.
        config: which CRCs are demanded.
        report: counts the records.
        torn_since_ms: a power cut may have torn records stored then, or later; None: none.

    Attributes:
        no_room: where a full disk has ended what is derived; None: all was.
        derived_to: physical offset from which on it has to be dispatched then.
    """

    def __init__(
        self,
        log: CommitLog,
        judge: Judge,
        queues: QueueCheck,
        index: IndexService | None,
        left: SuspectIndexFiles | None,
        batches: tuple[DispatchBatch, DispatchBatch],
        config: StoreConfig,
        report: RecoveryReport,
        torn_since_ms: int | None,
    ) -> None:
        self._log = log
        self._judge = judge
        self._queues = queues
        self._index = index
        self._left = left
        self._batches = batches
        self._batch = batches[0]
        self._config = config
        self._report = report
        self._torn = {} if torn_since_ms is None else {"torn_since_ms": torn_since_ms}
        self._keys = HelperThread()
        self.index_check: IndexCheck | None = None
        #: store time of the last record that was walked
        self.timestamp_ms = 0
        self.no_room: DiskFullError | None = None
        self.derived_to = 0
        #: where the two stretches end that were handed on last
        self._ends = 0, 0

    def run(self, first: int, checked_from: int, walked: Callable[[int], None]) -> int:
        """Walk the files from number ``first`` on.

        Args:
            first: number of the file to begin with.
            checked_from: number of the first file whose records are compared with their CRC; where
                damage is to be skipped, all of them are.
            walked: called with the number of each file that has been walked to its end.

        Returns:
            the physical offset where the log ends.

        Raises:
            CorruptRecordError: the judge says that it is damaged.
        """
        files = self._log.queue.files
        self._report.start_offset = files[first].file_from_offset
        self._report.records = 0
        self.no_room, self._ends = None, (self._report.start_offset, self._report.start_offset)
        if self._index is not None:
            self.index_check = IndexCheck(self._index)
        for number in range(first, len(files)):
            verify = number >= checked_from or self._config.on_corruption is OnCorruption.SKIP
            end = self._walk_file(files[number], verify)
            if end is not None:
                return end
            walked(number)
        return files[-1].file_from_offset + self._log.queue.file_size

    def _walk_file(self, file: MappedFile, verify: bool) -> int | None:
        """Walk one file; the end of the log when it ends here, else None."""
        start, file_end = file.file_from_offset, file.file_from_offset + file.size
        walk = FileWalk(view_of(file), self._kernel(verify), start, file_end, file_end=file_end)
        for step in walk:
            self._hand_on()
            if step.status is ScanStatus.BLANK:
                return self._judge.at_blank(file, step.phy_offset - start)
            if not step.is_good:
                following = self._judge.at_no_record(file, step.phy_offset - start, step.status)
                if following is None:
                    return step.phy_offset
                walk.go_on(following.phy_offset)
        return None

    def _kernel(self, verify: bool) -> Kernel:
        verify = verify and self._config.check_crc_on_recover
        by_property = verify and self._config.force_verify_prop_crc

        def scan(
            buffer: ReadableBuffer, at: int, stop: int, /, *, base_offset: int
        ) -> tuple[int, int]:
            return self._batch.scan(
                buffer,
                at,
                stop,
                base_offset=base_offset,
                verify_crc=verify,
                verify_crc_property=by_property,
                **self._torn,
            )

        return scan

    def _hand_on(self) -> None:
        """Hand on what was scanned last, and scan into the other batch from now on."""
        batch = self._batch
        if self.no_room is None:
            try:
                self._queues.dispatch(batch)
            except DiskFullError as error:
                self.put_off(error, self._ends[0])
        self._report.records += batch.record_count
        if batch.record_count:
            self.timestamp_ms = batch.store_timestamp
        # the keys before these are in now, so the arrays that held them are free
        self.wait()
        if batch.record_count:
            self._ends = self._ends[1], batch.end_offset
        self._batch = self._batches[batch is self._batches[0]]
        self._keys.start(lambda: self._file_keys(batch))

    def _file_keys(self, batch: DispatchBatch) -> None:
        if self.no_room is None:
            if self.index_check is not None:
                self.index_check.compare(batch)
            if self._left is not None:
                self._left.dispatch(batch)
        batch.clear()

    def put_off(self, error: DiskFullError, derived_to: int) -> None:
        """Derive nothing more: the store does it when there is room.

        Args:
            error: what the disk has no room for.
            derived_to: physical offset in front of which all is derived.
        """
        self.derived_to = derived_to if self.no_room is None else min(derived_to, self.derived_to)
        self.no_room = error

    def wait(self) -> None:
        """Return when every key that was walked over is filed."""
        try:
            self._keys.wait()
        except DiskFullError as error:
            self.put_off(error, self._ends[0])

    def end(self) -> None:
        """End the second thread."""
        self._keys.end()

    # ---- parts of the log once more

    def scan_range(self, start: int, end: int) -> Iterator[DispatchBatch]:
        """Scan the good records between two physical offsets, one stretch at a time.

        Args:
            start: physical offset of a record.
            end: physical offset behind the last one.

        Yields:
            always the same batch, which is emptied after each.

        Raises:
            CorruptStoreError: a file has become shorter than it was.
        """
        batch = self._batch
        kernel = self._kernel(self._config.on_corruption is OnCorruption.SKIP)
        for _ in walk_good_records(self._log.queue, kernel, start, end):
            yield batch
            batch.clear()

    def keys_between(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """(physical offset, how many keys) of each record with keys in a range of the log.

        Args:
            start: physical offset of a record; what is in front of the log is passed over.
            end: physical offset behind the last one.
        """
        for batch in self.scan_range(max(start, self._log.min_offset), end):
            offsets = batch.key_offsets[: batch.key_count].tolist()
            counts: dict[int, int] = {}
            for offset in offsets:
                counts[offset] = counts.get(offset, 0) + 1
            yield from counts.items()
