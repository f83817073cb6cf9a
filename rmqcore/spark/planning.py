"""From options to splits: what one batch, or one trigger of a stream, reads."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from typing import Any

from pyspark.sql.datasource import InputPartition

from rmqcore.config import load_config
from rmqcore.errors import ConfigError, RmqCoreError
from rmqcore.files.store_dir import StoreDir
from rmqcore.scan import (
    AnyLog,
    Selection,
    ShownTopics,
    Split,
    is_archive,
    open_any_log,
    select,
)
from rmqcore.scan.archive_log import ArchiveLog
from rmqcore.scan.joined_log import JoinedLog, JoinedTopics
from rmqcore.spark.options import EARLIEST, LATEST, ReadOptions, named_offsets
from rmqcore.spark.rows_wanted import rows_wanted
from rmqcore.spark.selection import check_ranges, check_selection
from rmqcore.spark.stream_start import as_begun
from rmqcore.spark.topic_choice import TopicChoice
from rmqcore.store.opening import open_store

_log = logging.getLogger(__name__)

SPLIT_SIZE = 256 << 20
_SPLIT_SIZE_MIN = 64 << 20
#: No split is larger. One takes a second or two: the cost of a task weighs little then, and a slow
#: task delays little.
_SPLIT_SIZE_MAX = 1 << 30


class LogPartition(InputPartition):
    """What one task reads.

    Attributes:
        split: a stretch of one log.
        broker: name of the store that the log belongs to.
        choice: the topics and queues that are read.
        besides: those whose rows have been read before; None for none.
        latest_phy_offset: where "latest" of ``startingOffsets`` is.
        archive_state: of the archive when this was planned, see `archive_state_of`.
        starting: what the stream began with, see `start_of`; None where the options say it.
    """

    def __init__(
        self,
        split: Split,
        broker: str,
        choice: TopicChoice,
        besides: TopicChoice | None = None,
        latest_phy_offset: int = 0,
        *,
        archive_state: str = "",
        starting: Any = None,
    ) -> None:
        super().__init__(split.start)
        self.starting = starting
        self.split = split
        self.archive_state = archive_state
        self.broker = broker
        self.choice = choice
        self.besides = besides
        self.latest_phy_offset = latest_phy_offset

    def selection(self, options: ReadOptions) -> Selection:
        """Which records of its split are rows."""
        topics = _Topics(dict(options.stores)[self.broker], options, self.archive_state)
        begun = as_begun(options, self.starting)
        return rows_wanted(begun, topics, self.choice, self.besides, self.latest_phy_offset)

    def __repr__(self) -> str:
        return f"LogPartition({self.broker}, {self.split.start} to {self.split.end})"


class _Topics:
    """What is shown of each topic of a store or an archive, for a task.

    Args:
        place: the store's directory, or the archive's URL.
        options: of the reader.
        archive_state: of the archive, which may have gone on since.
    """

    def __init__(self, place: str, options: ReadOptions, archive_state: str) -> None:
        self._place = place
        self._options = options
        self._state = archive_state

    def shown_topics(self, named: Iterable[str], *, services: bool) -> ShownTopics:
        """What is shown of each topic; arguments as those of `ShownTopics`."""
        names, options = tuple(named), self._options
        if is_archive(self._place):
            archive = _archive(self._place, options.storage_options, self._state)
            return archive.shown_topics(names, services=services)
        directory = StoreDir(self._place, load_config(options.config).store_path_commit_log)
        live = ShownTopics(directory, names, services=services)
        if options.archive is None:
            return live
        archive = _archive(options.archive, options.storage_options, self._state)
        return JoinedTopics(live, archive.shown_topics(names, services=True))


@lru_cache(maxsize=8)
def _archive(url: str, storage_options: tuple[tuple[str, str], ...], _state: str) -> ArchiveLog:
    """An archive, opened once by a worker that has many tasks of one state of it."""
    return ArchiveLog(url, dict(storage_options))


def archive_state_of(log: AnyLog) -> str:
    """Tells the state of a log's archive when it was opened from others; empty without one."""
    archive = log.archive if isinstance(log, JoinedLog) else log
    if not isinstance(archive, ArchiveLog):
        return ""
    return f"{archive.manifest.generation} {archive.manifest.writer}"


def open_plan(path: str, options: ReadOptions, before: AnyLog | None = None) -> AnyLog:
    """The log of a store or an archive as it is now.

    Args:
        path: directory of a store, or URL of an archive.
        options: of the reader.
        before: the same log, some time ago, as for `open_log`.

    Raises:
        StoreNotFoundError: no store is there.
        ConfigError: a setting contradicts the files.
        CorruptStoreError: a log file has another length, or is missing between two.
        ArchiveError: no archive is there, or it does not reach up to the store.
        ObjectStoreError: the archive cannot be read.
    """
    return open_any_log(
        path,
        config=options.config,
        archive=options.archive,
        storage_options=dict(options.storage_options),
        before=before,
    )


def _say_what_is_missing(path: str, options: ReadOptions) -> None:
    """Log what a store's last writer had on the disk and its files no longer have."""
    if is_archive(path) or options.archive is not None:
        return
    # whoever plans says why it cannot be opened, or reads the log without what is unreadable
    with (
        suppress(RmqCoreError, OSError),
        open_store(path, mode="r", config=options.config) as store,
    ):
        for line in store.missing(queues=False):
            text = (
                "%s: %s, and rows of it are lacking; `rmqcore doctor %s` says what can be had again"
            )
            _log.warning(text, path, line, path)


def batch_partitions(options: ReadOptions) -> list[LogPartition]:
    """What a batch reads, cut for parallel tasks.

    Raises:
        ConfigError: an option that only a stream has, one that no batch can follow, or offsets
            of a topic or queue that there is not.
        StoreError: with ``failOnDataLoss``, offsets that were deleted or are not there yet.
        StoreNotFoundError, CorruptStoreError: as `open_plan`.
    """
    _check_batch(options)
    for _, path in options.stores:
        _say_what_is_missing(path, options)
    plans = [(broker, open_plan(path, options)) for broker, path in options.stores]
    check_selection(options, (plan for _, plan in plans))
    check_ranges(options, (plan for _, plan in plans))
    choice = TopicChoice.of(options)
    logs = [
        (broker, select(plan, rows_wanted(options, plan, choice)), archive_state_of(plan))
        for broker, plan in plans
    ]
    size = split_size(options, sum(log.bytes for _, log, _ in logs))
    low = -1 if options.starting_phy_offset is None else options.starting_phy_offset
    high = options.ending_phy_offset
    return [
        LogPartition(split, broker, choice, archive_state=state)
        for broker, log, state in logs
        for split in log.splits(size, options.max_partition_records)
        if split.end > low and (high is None or split.start < high)
    ]


def split_size(options: ReadOptions, total: int) -> int:
    """Bytes that a split should have when ``total`` bytes are to be read.

    Args:
        options: of the reader.
        total: bytes of the log.
    """
    if options.max_partition_bytes is not None:
        size = options.max_partition_bytes
    elif options.slots is not None:
        # a little more than a slot's share, as a split ends behind a whole record
        size = (total + total // 64) // options.slots
        size = min(max(size, _SPLIT_SIZE_MIN), _SPLIT_SIZE_MAX)
    else:
        size = SPLIT_SIZE
    if options.min_partitions is not None:
        size = min(size, total // options.min_partitions)
    return max(1, size)


def _check_batch(options: ReadOptions) -> None:
    for name, value in (
        ("maxBytesPerTrigger", options.max_bytes_per_trigger),
        ("maxOffsetsPerTrigger", options.max_offsets_per_trigger),
        ("minOffsetsPerTrigger", options.min_offsets_per_trigger),
    ):
        if value is not None:
            raise ConfigError(name, value, "only a stream has triggers: use spark.readStream")
    starts, ends = options.starting_offsets, options.ending_offsets
    if starts == "latest" or LATEST in named_offsets(starts):
        raise ConfigError("startingOffsets", starts, "latest, -1, is empty; only for streams")
    if ends == "earliest" or EARLIEST in named_offsets(ends):
        raise ConfigError("endingOffsets", ends, "earliest, -2, is empty")
