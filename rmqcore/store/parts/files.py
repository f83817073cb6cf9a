"""`StoreFiles`: the files of a store that is open for writing, put together and recovered."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rmqcore.config import BrokerRole
from rmqcore.derived.consume_queue_store import ConsumeQueueStore
from rmqcore.derived.index_service import IndexService
from rmqcore.errors import CorruptConfigFileError, DiskFullError, MessageIllegalError
from rmqcore.files.archive_note import shorten_archive_note
from rmqcore.files.commit_log import CommitLog
from rmqcore.files.commit_log_writer import CommitLogWriter
from rmqcore.files.config_tables import TopicConfigTable
from rmqcore.files.consumer_offset_table import ConsumerOffsetTable
from rmqcore.files.deleted_topics import DeletedTopics
from rmqcore.files.import_note import end_imports
from rmqcore.files.kept_cuts import KeptCuts
from rmqcore.files.mapped_file import MappedFile, OpenFiles
from rmqcore.files.mapped_file_queue import MappedFileQueue
from rmqcore.files.readers_of_lost import begin_groups_anew, note_found_end
from rmqcore.files.service_topics import TABLE_PREFIX
from rmqcore.files.store_checkpoint import StoreCheckpoint
from rmqcore.files.store_mark import StoreMark
from rmqcore.files.transient_store_pool import TransientStorePool
from rmqcore.native.base._published import PublishedOffset
from rmqcore.native.derive._dispatch import DispatchBatch
from rmqcore.native.log._tail import LogTail
from rmqcore.recovery.light_queues import derives_light_queues
from rmqcore.recovery.recovery import Recovery
from rmqcore.services.allocate import AllocateMappedFileService
from rmqcore.store.parts.general_reads import GeneralReads

if TYPE_CHECKING:
    from rmqcore.config import StoreConfig
    from rmqcore.files.config_tables import TopicConfig
    from rmqcore.files.store_dir import StoreDir
    from rmqcore.files.store_trace import StoreTrace
    from rmqcore.recovery.report import RecoveryProgress, RecoveryReport
    from rmqcore.services.flush_policy import FlushPolicy
    from rmqcore.world import World

#: A stretch of the log ends when it has this many units, or more where there are many queues.
_STRETCH_UNITS: Final = 1 << 13
#: A stretch that recovery reads ends at this many units at the latest, however many queues there
#: are: two stretches are in memory at a time.
_STRETCH_UNITS_MAX: Final = 1 << 18

_log = logging.getLogger("rmqcore")


class StoreFiles:
    """One object a file kind; nothing is read before `recover`.

    Args:
        directory: of the store, locked.
        config: with the sizes that the files have.
        policy: how bytes get to the disk.
        trace: takes down what is done to files.
        world: its clock is the store's.

    Attributes:
        tail: the end of the log, which puts append to.
        no_room: why recovery has not dispatched the whole log: nothing may be put before it is.
        log: the log as it is read.
        writer: rolls and flushes it.
        allocate: makes its files ahead of need.
        consume_queues, index: what is derived from it; the index may be None.
        reader: reads all of these.
        batch: what dispatch works in, once the files are recovered.
        checkpoint, mark, deleted, topics: files of a table each.
    """

    def __init__(
        self,
        directory: StoreDir,
        config: StoreConfig,
        policy: FlushPolicy,
        trace: StoreTrace,
        world: World,
    ) -> None:
        self._config = config
        self._world = world
        self._open_files = OpenFiles(mappings_max=config.max_mapped_files)
        self._open_files.check_there = directory.check_there
        self.directory = directory
        self.tail = LogTail(
            config.store_host,
            config.effective_max_message_size,
            append_crc=config.appends_prop_crc,
            multi_dispatch=config.numbers_light_queues,
        )
        self.tail.durability = policy.put_reaches
        self.allocate = AllocateMappedFileService(
            self._made_file,
            config.mapped_file_size_commit_log,
            ahead=config.allocate_ahead,
            warm=config.warm_mapped_file_enable,
            sync_every=policy.warm_up_sync_size,
            lock_budget=config.lock_memory_bytes,
            check_there=directory.check_there,
        )
        self.log, self.writer = self._log_and_writer(policy, trace)
        self.consume_queues = ConsumeQueueStore(
            directory,
            config.mapped_file_size_consume_queue,
            config.mapper_file_size_batch_consume_queue,
            self._open_files,
        )
        self.index = self._index(world.clock_ms) if config.message_index_enable else None
        self.reader = GeneralReads(self.log, self.consume_queues, self.index)
        self.checkpoint = StoreCheckpoint(directory.checkpoint, trace.note)
        self.mark = StoreMark(directory, trace.note)
        self.no_room: DiskFullError | None = None
        self.reader.doubt = self._doubt_from
        self.deleted = DeletedTopics(directory)
        self.topics = TopicConfigTable(directory.config, clock=world.clock_ms)
        self.topics.check_there = directory.check_there

    def _doubt_from(self, phy_offset: int) -> None:
        """Let the next opening mend a queue that a get has found damaged."""
        try:
            self.mark.doubt_from(phy_offset)
        except OSError as error:
            _log.warning("what the next opening has to derive is noted later: %s", error)

    def _made_file(self, path: Path, offset: int) -> MappedFile:
        return self.writer.make_file(path, offset)

    def _log_and_writer(
        self, policy: FlushPolicy, trace: StoreTrace
    ) -> tuple[CommitLog, CommitLogWriter]:
        config, file_size = self._config, self._config.mapped_file_size_commit_log
        pool = None
        if policy.through_pool:
            pool = TransientStorePool(config.transient_store_pool_size, file_size)
        log = CommitLog(
            MappedFileQueue(self.directory.commit_log, file_size, self._open_files),
            self.tail.end if pool is None else PublishedOffset(),
            mapped=pool is None,
            demand_crc=config.force_verify_prop_crc,
        )
        writer = CommitLogWriter(
            log,
            self.tail,
            self.allocate,
            pool,
            large_folios=policy.large_folios,
            note=trace.note,
        )
        return log, writer

    def _index(self, clock_ms: Callable[[], int]) -> IndexService:
        slots, most = self._config.max_hash_slot_num, self._config.max_index_num
        return IndexService(self.directory.index, slots, most, self._open_files, clock_ms=clock_ms)

    def _new_batch(self, row_count_max: int) -> DispatchBatch:
        return DispatchBatch(
            row_count_max=row_count_max,
            row_count_enough=_STRETCH_UNITS,
            delays_ms=self._config.delay_levels_ms,
            multi_dispatch=derives_light_queues(self._config, self.directory, self.mark.ends),
        )

    # ---- opening and closing

    def recover(
        self, progress: Callable[[RecoveryProgress], None] | None, *, clean_shutdown: bool
    ) -> RecoveryReport:
        """Read the files, and bring what is derived level with the log.

        Args:
            progress: called now and then.
            clean_shutdown: whether the store was closed in order.

        Raises:
            CorruptStoreError: the log is damaged, and the settings do not say what is to be done.
        """
        self.checkpoint.load()
        self.checkpoint.distrust_future(self._world.clock_ms())
        self.mark.load()
        marked_end = self.mark.log_end if self.mark.is_known else None
        for table in (self.topics, self.deleted, self.mark):
            table.discard_unfinished()
        self.log.load(
            lengthen=self._config.on_corruption != "raise",
            any_lost=not (clean_shutdown or self.mark.is_of_this_machine),
        )
        self.batch = self._new_batch(1 << 15)
        batches = self._new_batch(_STRETCH_UNITS_MAX), self._new_batch(_STRETCH_UNITS_MAX)
        recovery = Recovery(
            self.writer,
            self.consume_queues,
            self.index,
            self.checkpoint,
            self.mark,
            self.deleted.load(clean_shutdown=clean_shutdown),
            self._config,
            batches,
            clean_shutdown=clean_shutdown,
            progress=progress,
            keep_cut=KeptCuts(self.directory.path).keep,
            begins_anew=self._forget_consumed,
            on_cut=self._read_tables_again,
            world=self._world,
        )
        report, self.no_room = recovery.run(), recovery.no_room
        self.batch.index_tags = batches[0].index_tags
        shorten_archive_note(self.directory, report.end_offset)
        end_imports(self.directory, report.end_offset)
        try:
            was_slaves = self.topics.follows and self._config.broker_role is not BrokerRole.SLAVE
            note_found_end(
                self.directory.config, report.end_offset, marked_end, was_slaves=was_slaves
            )
        except (OSError, CorruptConfigFileError) as error:
            _log.warning("a broker will not know where the log ended: %s", error)
        self._begin_topics()
        return report

    def _forget_consumed(self, topic: str, queue_id: int) -> None:
        """Let groups begin with a queue of a topic that was made again; as `begin_queue_anew`.

        Raises:
            OSError: it cannot be written.
        """
        begin_groups_anew(self.directory.config, [(topic, queue_id)], self._world.clock_ms)

    def _read_tables_again(self) -> None:
        """Let tables of keys and values begin with their oldest messages.

        Of what they were put anew with, some may be gone; what was before it is there.

        Raises:
            OSError: it cannot be written.
        """
        offsets = ConsumerOffsetTable(self.directory.config, clock=self._world.clock_ms)
        tables = [pair for pair in offsets.pairs() if pair[0].startswith(TABLE_PREFIX)]
        for topic, group in tables:
            for queue_id in offsets.queues(topic, group):
                offsets.advance(topic, group, queue_id, 0)
        offsets.persist_removal()

    def _begin_topics(self) -> None:
        """Tell the end of the log where each queue goes on, and which take inner batches."""
        self.number_queues()
        tell_queue_types(self.tail, self._config, self.topics)
        self.topics.on_put = self._set_queue_type

    def number_queues(self) -> None:
        """Tell the end of the log where each queue goes on; all of it has been dispatched."""
        for queue in self.consume_queues:
            # a topic that no put may name needs no next offset; it can still be read
            with suppress(MessageIllegalError):
                self.tail.set_next_queue_offset(queue.topic, queue.queue_id, queue.max_offset)

    def _set_queue_type(self, topic: TopicConfig) -> None:
        tell_queue_type(self.tail, self._config, topic)

    @property
    def derived(self) -> Iterator[ConsumeQueueStore | IndexService]:
        """What is filled from the log."""
        yield self.consume_queues
        if self.index is not None:
            yield self.index

    def close(self) -> None:
        """Close the files; idempotent."""
        self.writer.close()
        for part in self.derived:
            part.close()


def tell_queue_types(tail: LogTail, config: StoreConfig, topics: Iterable[TopicConfig]) -> None:
    """Tell the end of a log which topics take inner batches.

    Args:
        tail: that is told.
        config: of the store.
        topics: of the store.
    """
    for name, kind in config.topic_queue_types:
        tail.set_batch_queue(name, kind == "BatchCQ")
    for topic in topics:
        # a topic that no put may name: its name may have rotted in the file
        with suppress(MessageIllegalError):
            tell_queue_type(tail, config, topic)


def tell_queue_type(tail: LogTail, config: StoreConfig, topic: TopicConfig) -> None:
    """Tell the end of a log whether a topic takes inner batches.

    Args:
        tail: that is told.
        config: of the store.
        topic: as the store's table has it.
    """
    kind = topic.attributes.get("queue.type", config.queue_type(topic.topic_name))
    tail.set_batch_queue(topic.topic_name, kind == "BatchCQ")
