"""What an opening would decide about a store, found out without changing a byte of it.

The walk begins where recovery's does and the same judge decides; what recovery would derive, drop
or cut off is left as it is.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from rmqcore.config import OnCorruption
from rmqcore.derived.consume_queue_store import ConsumeQueueStore
from rmqcore.derived.index_service import IndexService
from rmqcore.errors import CorruptConfigFileError, CorruptStoreError
from rmqcore.files.commit_log import CommitLog
from rmqcore.files.config_tables import TopicConfigTable
from rmqcore.files.consume_queue import (
    HOLE_UNITS_MAX,
    LIGHT_QUEUE_PREFIX,
    ConsumeQueue,
    jumped,
)
from rmqcore.files.consumer_offset_table import ConsumerOffsetTable
from rmqcore.files.delay_offset_table import DelayOffsetTable
from rmqcore.files.deleted_topics import DeletedTopics
from rmqcore.files.mapped_file import OpenFiles
from rmqcore.files.mapped_file_queue import MappedFileQueue, cut_short, numbered_files
from rmqcore.files.store_checkpoint import StoreCheckpoint
from rmqcore.files.store_dir import NOT_A_FILE, refuse_other_kinds
from rmqcore.files.store_mark import StoreMark
from rmqcore.files.unit_file import UNIT_HEAD
from rmqcore.files.zeros import holds_nothing
from rmqcore.native.base._published import PublishedOffset
from rmqcore.native.derive._dispatch import DispatchBatch
from rmqcore.native.format._next_record import ScanStatus
from rmqcore.native.format._numbers import UNIT_SIZE
from rmqcore.recovery.geometry import fitted_config
from rmqcore.recovery.light_queues import derives_light_queues
from rmqcore.recovery.queue_check import QueueCheck
from rmqcore.recovery.recovery import DerivedAnew, Recovery
from rmqcore.recovery.unfinished_repair import refuse_unfinished_restore
from rmqcore.recovery.walk import Walk
from rmqcore.world import REAL, World

if TYPE_CHECKING:
    from rmqcore.config import StoreConfig
    from rmqcore.files.batch_consume_queue import StoredQueue
    from rmqcore.files.commit_log_writer import CommitLogWriter
    from rmqcore.files.mapped_file import MappedFile
    from rmqcore.files.store_dir import StoreDir
    from rmqcore.native.derive._dispatch import QueueStretch

QueueKey = tuple[str, int]


def try_opening(directory: StoreDir, given: StoreConfig, *, world: World = REAL) -> None:
    """Raise what opening a store for writing raises, as far as its bytes decide.

    Args:
        directory: of the store; nobody has it open for writing.
        given: settings as for `open_store`.
        world: whose clock tells times that have not come yet.

    Raises:
        RmqCoreError: the opening would be refused, with this.
        OSError: the system refuses to read what the opening reads.
    """
    given.check_for_writing()
    refuse_unfinished_restore(directory)
    config = fitted_config(given, directory)
    open_files = OpenFiles(mappings_max=config.max_mapped_files)
    with _in_silence():
        _try(directory, config, open_files, world)


def _try(directory: StoreDir, config: StoreConfig, open_files: OpenFiles, world: World) -> None:
    checkpoint, mark = StoreCheckpoint(directory.checkpoint), StoreMark(directory)
    deleted = DeletedTopics(directory)
    checkpoint.load()
    checkpoint.distrust_future(world.clock_ms())
    mark.load()
    if mark.path.is_dir():
        # an opening has to write it
        raise CorruptConfigFileError(mark.path, -1, NOT_A_FILE)
    TopicConfigTable(directory.config, clock=world.clock_ms)
    ConsumerOffsetTable(directory.config, clock=world.clock_ms)
    if config.deliver_delayed:
        DelayOffsetTable(directory.config, clock=world.clock_ms)
    clean_shutdown = not directory.was_aborted
    any_lost = not (clean_shutdown or mark.is_of_this_machine)
    log = _log_of(directory, config, open_files, any_lost=any_lost)
    queues = _Queues(
        directory,
        config.mapped_file_size_consume_queue,
        config.mapper_file_size_batch_consume_queue,
        open_files,
        writable=False,
    )
    index = None
    if config.message_index_enable:
        slots, most = config.max_hash_slot_num, config.max_index_num
        index = IndexService(directory.index, slots, most, open_files, clock_ms=None)
    light_queues = derives_light_queues(config, directory, mark.ends)
    batches = tuple(
        DispatchBatch(delays_ms=config.delay_levels_ms, multi_dispatch=light_queues)
        for _ in range(2)
    )
    try:
        _Trial(
            cast("CommitLogWriter", _LogAlone(log)),
            queues,
            index,
            checkpoint,
            mark,
            deleted.load(),
            config,
            cast("tuple[DispatchBatch, DispatchBatch]", batches),
            clean_shutdown=clean_shutdown,
        ).decide()
    finally:
        for batch in batches:
            batch.clear()
        for part in (queues, index, log.queue):
            if part is not None:
                part.close()


def _log_of(
    directory: StoreDir, config: StoreConfig, open_files: OpenFiles, *, any_lost: bool
) -> CommitLog:
    size = config.mapped_file_size_commit_log
    queue = MappedFileQueue(directory.commit_log, size, open_files, writable=False)
    log = CommitLog(queue, PublishedOffset(), demand_crc=config.force_verify_prop_crc)
    log.load(any_lost=any_lost)
    last = queue.last
    if last is not None and last.size < size and config.on_corruption is OnCorruption.RAISE:
        short = last.size
        last.size = size
        if not holds_nothing(last.path):
            raise cut_short(last, short)
        last.size = short
    return log


@contextmanager
def _in_silence() -> Iterator[None]:
    """Keep what recovery says of its doings from the log: nothing is done."""
    here = threading.get_ident()
    logger = logging.getLogger("rmqcore")

    def others(record: logging.LogRecord) -> bool:
        return record.thread != here

    logger.addFilter(others)
    try:
        yield
    finally:
        logger.removeFilter(others)


class _LogAlone(NamedTuple):
    """Stands for the writer of a log to which nothing is written."""

    log: CommitLog


class _Queues(ConsumeQueueStore):
    """The queues as they are; what is appended or dropped goes nowhere."""

    def __init__(self, *parts: Any, **settings: Any) -> None:
        super().__init__(*parts, **settings)
        #: where queues would end with what was appended
        self._ends: dict[QueueKey, int] = {}
        #: queues that are begun anew, as their files cannot be used
        self._anew: set[QueueKey] = set()

    def load(self, progress: object = None) -> None:
        for topic, queue_id, directory, kind in self._queue_directories():
            queue = self._make(topic, queue_id, directory, kind)
            try:
                queue.load()
                last = queue.queue.last
                if last is not None and last.size < queue.queue.file_size:
                    raise cut_short(last, last.size)
            except CorruptStoreError as error:
                if error.reason == NOT_A_FILE:
                    raise
                self.damaged.append(error)
                self._anew.add((topic, queue_id))
            self._queues[topic, queue_id] = queue

    def drop_damaged(self) -> None:
        pass

    def append(self, stretch: QueueStretch) -> None:
        """Raise where no queue can be made, or goes on.

        Raises:
            CorruptStoreError: something else has the name of its directory.
            CorruptConsumeQueueError: a queue offset jumps too far to be true.
        """
        key = stretch.topic, stretch.queue_id
        queue = self._queues.get(key) or self._new(*key, batches=stretch.inner_batch)
        directory = queue.queue.directory
        if key not in self._ends:
            refuse_other_kinds(directory.parent, directory)
        is_light = key[0].startswith(LIGHT_QUEUE_PREFIX)
        there = queue.queue.files and key not in self._anew
        for first, units in stretch.plain():
            end = self._ends.get(key, queue.unit_end if there else first)
            if isinstance(queue, ConsumeQueue) and not is_light and first - end > HOLE_UNITS_MAX:
                raise jumped(directory, first, end)
            self._ends[key] = max(end, first + len(units) // UNIT_SIZE)

    def drop(self, topic: str, queue_id: int) -> None:
        self._queues.pop((topic, queue_id), None)
        self._ends.pop((topic, queue_id), None)

    def cut_at(self, topic: str, queue_id: int, number: int) -> None:
        self._ends[topic, queue_id] = number

    def end_at(self, topic: str, queue_id: int, offset: int, *, batches: bool) -> None:
        pass


class _QueueCheck(QueueCheck):
    """Compares numbers; of each queue only what is there already tells of a hole."""

    def __init__(self, *parts: Any, **settings: Any) -> None:
        super().__init__(*parts, **settings)
        self._asked: set[QueueKey] = set()

    def _compare(self, queue: ConsumeQueue, first: int, units: memoryview) -> None:
        if first + len(units) // UNIT_SIZE >= queue.max_offset:
            # where the queue would end with what recovery appends or writes anew
            queue.end_phy_offset = sum(UNIT_HEAD.unpack_from(units, len(units) - UNIT_SIZE))

    def _has_hole(self, stretch: QueueStretch, queue: StoredQueue | None) -> bool:
        key = stretch.topic, stretch.queue_id
        if key in self._asked:
            return key in self.holes
        self._asked.add(key)
        return super()._has_hole(stretch, queue)


class _DerivedAnew(DerivedAnew):
    """Notes nothing."""

    def begin_at(self, number: int) -> None:
        pass


class _Walk(Walk):
    """Takes a log file without a byte for the zeros that an opening makes of it."""

    def _walk_file(self, file: MappedFile, verify: bool) -> int | None:
        if file.size:
            return super()._walk_file(file, verify)
        following = self._judge.at_no_record(file, 0, ScanStatus.EMPTY)
        return file.file_from_offset if following is None else None


class _Trial(Recovery):
    """A recovery that decides, and does nothing."""

    walk = _Walk
    queue_check = _QueueCheck
    derived_anew = _DerivedAnew

    def decide(self) -> None:
        """Raise what the recovery of this store raises."""
        self._queues.load()
        if self._index is not None:
            self._index.load()
        walk = self._new_walk(None)
        try:
            if self._log.queue.files:
                self._walk_log(walk, self._marked_queue_ends())
            elif empty := numbered_files(self._log.queue.directory):
                # an opening keeps the first one, which a power cut has left without its length
                self._refuse_lost_end(empty[0][0], self._marked_queue_ends())
        finally:
            walk.end()

    def _save_progress(self, walk: Walk, number: int) -> None:
        pass

    def _cut(self, walk: Walk, end: int) -> None:
        walk.wait()
