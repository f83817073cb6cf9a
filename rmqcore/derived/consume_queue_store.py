"""The table of consume queues, and the dispatcher that fills them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rmqcore.errors import (
    UNREADABLE,
    CorruptConsumeQueueError,
    CorruptStoreError,
    do_each,
    is_bad_sector,
    is_broken,
)
from rmqcore.files.batch_consume_queue import BatchConsumeQueue, StoredQueue
from rmqcore.files.consume_queue import LIGHT_QUEUE_PREFIX, ConsumeQueue
from rmqcore.files.consume_queue_ext import ConsumeQueueExt
from rmqcore.files.mapped_file_queue import numbered_files
from rmqcore.files.store_dir import NOT_A_FILE, names_directory, queue_id_of, subdirectories
from rmqcore.files.unit_file import DAMAGED_UNIT, UNIT_HEAD
from rmqcore.native.format._numbers import BATCH_UNIT_SIZE
from rmqcore.world import sync_directory

if TYPE_CHECKING:
    from rmqcore.files.mapped_file import OpenFiles
    from rmqcore.files.store_dir import StoreDir
    from rmqcore.native.derive._dispatch import DispatchBatch, QueueStretch

_log = logging.getLogger("rmqcore")
#: A round of flushes writes through this many queues, however little is new in them.
_QUEUES_A_ROUND = 64


class ConsumeQueueStore:
    """Every consume queue of a store, by (topic, queue id).

    - A queue comes into being with its first message; looking for one creates nothing.
    - ``damaged`` says of queues whose files were found unusable why: they are empty until
      `drop_damaged`, and the whole log has to be dispatched again.
    - ``unreadable`` says it of another process's queues, by (topic, queue id): whoever looks for
      one is told so, and all others are read.

    Args:
        directory: where the store's files lie.
        file_size, batch_file_size: bytes of a queue's files.
        open_files: the bound on descriptors.
        writable: False follows another process's files.

    Threads: one dispatcher, any readers.
    Source: RocketMQ store/queue/ConsumeQueueStore.java.
    """

    def __init__(
        self,
        directory: StoreDir,
        file_size: int,
        batch_file_size: int,
        open_files: OpenFiles,
        *,
        writable: bool = True,
    ) -> None:
        self._directory = directory
        self._file_size = file_size
        self._batch_file_size = batch_file_size
        self._open_files = open_files
        self._writable = writable
        self._queues: dict[tuple[str, int], StoredQueue] = {}
        self.damaged: list[CorruptStoreError] = []
        self._unusable: list[StoredQueue] = []
        self.unreadable: dict[tuple[str, int], CorruptStoreError] = {}
        self.dispatched_timestamp_ms = 0
        #: of a slave's store: called with a queue whose numbers begin again with 0, to drop it
        self.begin_anew: Callable[[StoredQueue], None] | None = None
        #: by deleted topic: physical offset below which its records are not dispatched
        self.begun_at: dict[str, int] = {}
        self._sync_failure: OSError | None = None
        #: queues with units that are not on the disk, longest waiting first; each with the store
        #: time up to which it was complete there
        self._waiting: dict[StoredQueue, int] = {}

    # ---- opening

    def load(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Take in every queue directory; unusable ones are noted in ``damaged``."""
        found = list(self._queue_directories())
        extended = frozenset(subdirectories(self._directory.consume_queue_ext))
        for number, (topic, queue_id, directory, kind) in enumerate(found):
            queue = self._make(topic, queue_id, directory, kind, may_have_ext=topic in extended)
            try:
                queue.load()
            except CorruptStoreError as error:
                if not self._writable or error.reason == NOT_A_FILE:
                    raise
                self.doubt(queue, error)
            self._queues[topic, queue_id] = queue
            if progress is not None:
                progress(number + 1, len(found))

    def doubt(self, queue: StoredQueue, error: CorruptStoreError) -> None:
        """Note of a queue that its files are unusable, before `drop_damaged`.

        Args:
            queue: as it was loaded.
            error: what is wrong with it.
        """
        _log.warning("consume queue %s/%d is derived again: %s", queue.topic, queue.queue_id, error)
        self.damaged.append(error)
        self._unusable.append(queue)

    def doubt_names(self) -> None:
        """Let the next flush of a queue sync its names: a kill may have come before that."""
        for queue in self:
            queue.queue.unsynced = True

    def _roots(self) -> tuple[tuple[Path, type[StoredQueue]], ...]:
        return (
            (self._directory.consume_queue, ConsumeQueue),
            (self._directory.batch_consume_queue, BatchConsumeQueue),
        )

    def _queue_directories(self) -> Iterator[tuple[str, int, Path, type[StoredQueue]]]:
        for root, kind in self._roots():
            for topic in subdirectories(root):
                directory = root / topic
                for name in subdirectories(directory):
                    queue_id = queue_id_of(name)
                    if queue_id is not None and self._is_of_kind(topic, queue_id, kind):
                        yield topic, queue_id, directory / name, kind

    def _is_of_kind(self, topic: str, queue_id: int, kind: type[StoredQueue]) -> bool:
        """False of a queue that has units, for a directory of batches that has none."""
        plain, batches = (root / topic / str(queue_id) for root, _ in self._roots())
        return kind is ConsumeQueue or not plain.is_dir() or _holds_batches(batches)

    def _make(
        self,
        topic: str,
        queue_id: int,
        directory: Path,
        kind: type[StoredQueue],
        *,
        may_have_ext: bool = True,
    ) -> StoredQueue:
        size = self._file_size if kind is ConsumeQueue else self._batch_file_size
        queue = kind(directory, topic, queue_id, size, self._open_files, writable=self._writable)
        if may_have_ext and isinstance(queue, ConsumeQueue):
            ext = self._directory.consume_queue_ext / topic / str(queue_id)
            if ext.is_dir():
                queue.ext = ConsumeQueueExt(ext, self._open_files)
        return queue

    def drop_damaged(self) -> None:
        """Remove the files of unusable queues, so that they are derived from their first message.

        The caller makes sure that deriving is repeated when it is interrupted.
        """
        for queue in self._unusable:
            for path in queue.queue.directory.iterdir():
                if path.name.isdigit() and path.is_file():
                    path.unlink()
            queue.load()
        self._unusable.clear()

    def followed(self, *, sizes_fit: bool = False) -> list[StoredQueue]:
        """Every queue, new ones too, caught up with what another process has written.

        Readers see nothing of that before `show`. One with a damaged unit, or that the disk refuses
        to give, is left out, and unreadable from now on until it has caught up.

        Args:
            sizes_fit: so is one whose files have another size, or lack one: the size that files
                have is known.

        Raises:
            CorruptStoreError: it is not known, and may be another.
        """
        queues: list[StoredQueue] = []
        unreadable: dict[tuple[str, int], CorruptStoreError] = {}

        def take(key: tuple[str, int], caught_up: Callable[[], StoredQueue]) -> None:
            try:
                queues.append(caught_up())
            except CorruptStoreError as error:
                if error.reason != DAMAGED_UNIT and not sizes_fit:
                    raise
                unreadable[key] = error
            except OSError as error:
                if not is_bad_sector(error):
                    raise
                unreadable[key] = CorruptConsumeQueueError(error.filename, -1, UNREADABLE)

        for queue in self:
            if not self._is_removed(queue):
                take((queue.topic, queue.queue_id), queue.followed)
        for topic, queue_id, directory, kind in self._queue_directories():
            if (topic, queue_id) not in self._queues:
                load = partial(self._loaded, topic, queue_id, directory, kind)
                take((topic, queue_id), load)
        self.unreadable = unreadable
        return queues

    def _loaded(
        self, topic: str, queue_id: int, directory: Path, kind: type[StoredQueue]
    ) -> StoredQueue:
        queue = self._make(topic, queue_id, directory, kind)
        queue.load()
        return queue

    def followed_one(self, topic: str, queue_id: int) -> StoredQueue | None:
        """As `followed`, of one queue; None when there is no such.

        Args:
            topic: of the queue; one that is no name of a directory has none.
            queue_id: of the queue.

        Raises:
            CorruptConsumeQueueError: its files are none that a writer leaves.
        """
        queue = self._queues.get((topic, queue_id))
        if queue is not None and not self._is_removed(queue):
            return queue.followed()
        queue = None
        for root, kind in self._roots():
            directory = root / topic / str(queue_id)
            if not names_directory(topic) or not directory.is_dir():
                continue
            if self._is_of_kind(topic, queue_id, kind):
                queue = self._loaded(topic, queue_id, directory, kind)
        return queue

    def _is_removed(self, queue: StoredQueue) -> bool:
        """Forget a queue whose last file is gone: its topic was deleted, and perhaps made again."""
        last = queue.queue.last
        if last is None or not last.removed:
            return False
        self._queues.pop((queue.topic, queue.queue_id), None)
        return True

    def show(self, queue: StoredQueue) -> None:
        """Publish to readers a queue that has caught up."""
        key = queue.topic, queue.queue_id
        self._queues[key] = queue
        self.unreadable.pop(key, None)

    # ---- looking

    def find(self, topic: str, queue_id: int) -> StoredQueue | None:
        """The queue, or None.

        Args:
            topic: of the queue.
            queue_id: of the queue.

        Raises:
            CorruptStoreError: it is another process's, and unreadable.
        """
        error = self.unreadable.get((topic, queue_id))
        if error is not None:
            raise type(error)(error.path, error.phy_offset, error.reason)
        return self._queues.get((topic, queue_id))

    @property
    def table(self) -> dict[tuple[str, int], StoredQueue]:
        """Every queue by (topic, queue id); it changes as queues come and go."""
        return self._queues

    def __iter__(self) -> Iterator[StoredQueue]:
        return iter(list(self._queues.values()))

    def __len__(self) -> int:
        return len(self._queues)

    def keys(self) -> list[tuple[str, int]]:
        """(topic, queue id) of every queue, sorted."""
        return sorted(self._queues.keys() | self.unreadable.keys())

    # ---- dispatching

    def dispatch(self, batch: DispatchBatch) -> None:
        """Append each queue's units; what is there already stays.

        Raises:
            CorruptConsumeQueueError: a queue offset jumps too far to be true.
            DiskFullError: no room.
        """
        for stretch in batch.stretches():
            self.append(stretch)
        self.dispatched(batch)

    def append(self, stretch: QueueStretch) -> None:
        """Append the units of one queue; what is there already stays.

        Raises:
            CorruptConsumeQueueError: a queue offset jumps too far to be true.
            DiskFullError: no room.
        """
        begun_at = self.begun_at.get(stretch.topic)
        left = stretch if begun_at is None else stretch.since(begun_at)
        if left is None:
            return
        stretch = left
        queue = self._queues.get((stretch.topic, stretch.queue_id))
        if queue is not None and self.begin_anew is not None and _begins_again(stretch, queue):
            self.begin_anew(queue)
            queue = None
        queue = queue or self._create(stretch)
        if isinstance(queue, BatchConsumeQueue):
            queue.append_batches(stretch.batch_units)
        else:
            for first, units in stretch.plain():
                if not self.is_made_up(stretch.topic, stretch.queue_id, first):
                    queue.append_units(first, units)
        # after the units: a flush in between would forget the queue, and not have them
        self._waiting.setdefault(queue, self.dispatched_timestamp_ms)

    def is_made_up(self, topic: str, queue_id: int, number: int) -> bool:
        """True for a number that jumps too far, in a light queue: its producer may have written it.

        RocketMQ stores the numbers that come with a batch. Each message is in its own queue, too.

        Args:
            topic: of the queue; only those of light queues, ``%LMQ%...``, jump.
            queue_id: of the queue.
            number: queue offset that a record gives itself.
        """
        queue = self._queues.get((topic, queue_id))
        if not (topic.startswith(LIGHT_QUEUE_PREFIX) and isinstance(queue, ConsumeQueue)):
            return False
        made_up = queue.jumps_to(number)
        if made_up:
            _log.warning(
                "number %d of light queue %s, which ends at %d, is passed over: it jumps too far",
                number,
                topic,
                queue.unit_end,
            )
        return made_up

    def dispatched(self, batch: DispatchBatch) -> None:
        """Note that every queue of a batch has its units."""
        if batch.unaddressable_count:
            _log.warning(
                "%d records before %d name a topic or queue that cannot be one; they have no "
                "consume queue and are found by their physical offset only",
                batch.unaddressable_count,
                batch.end_offset,
            )
        if batch.record_count:
            self.dispatched_timestamp_ms = batch.store_timestamp

    def _create(self, stretch: QueueStretch) -> StoredQueue:
        queue = self._new(stretch.topic, stretch.queue_id, batches=stretch.inner_batch)
        self._open_files.check_there()
        # files that an interrupted deletion has left
        for _, path, _ in numbered_files(queue.queue.directory):
            path.unlink()
        self._queues[stretch.topic, stretch.queue_id] = queue
        return queue

    def _new(self, topic: str, queue_id: int, *, batches: bool) -> StoredQueue:
        kind: type[StoredQueue] = ConsumeQueue
        root = self._directory.consume_queue
        if batches:
            kind, root = BatchConsumeQueue, self._directory.batch_consume_queue
        return self._make(topic, queue_id, root / topic / str(queue_id), kind)

    # ---- maintaining

    def flush(self) -> int:
        """Write every queue through to the disk; the store time up to which they are complete.

        Raises:
            OSError: the disk refused, now or before: pages that a failed write has dropped must
                not be taken as stored.
        """
        timestamp_ms = self.dispatched_timestamp_ms
        self._sync(self, self._pop_waiting(list(self._waiting)))
        return timestamp_ms

    def flush_some(self, least_bytes: int) -> tuple[int, bool]:
        """Write the queues through to the disk that have many new units, and some others.

        The others are those that have waited longest: a thousand queues with a unit each are
        spread over some rounds, none of which holds up the disk.

        Args:
            least_bytes: of new units, with which a queue does not wait.

        Returns:
            (store time up to which all queues are complete, True when none was left out).

        Raises:
            OSError: as of `flush`.

        Source: RocketMQ store/MappedFileQueue.java, flush with flushConsumeQueueLeastPages.
        """
        timestamp_ms = self.dispatched_timestamp_ms
        waiting = list(self._waiting)
        chosen: list[StoredQueue] = []
        for queue in waiting:
            if len(chosen) < _QUEUES_A_ROUND or queue.unsynced_bytes >= least_bytes:
                chosen.append(queue)
        self._sync(chosen, self._pop_waiting(chosen))
        left = list(self._waiting.values())
        return min([timestamp_ms, *left]), len(chosen) == len(waiting)

    def _pop_waiting(self, queues: Iterable[StoredQueue]) -> dict[StoredQueue, int]:
        """Let queues wait no more; since when they did."""
        return {queue: self._waiting.pop(queue) for queue in queues if queue in self._waiting}

    def _sync(self, queues: Iterable[StoredQueue], waited: dict[StoredQueue, int]) -> None:
        if self._sync_failure is not None:
            raise self._sync_failure.with_traceback(None)
        names: dict[Path, None] = {}
        chosen = list(queues)
        try:
            for queue in chosen:
                queue.begin_flush()
            for queue in chosen:
                names.update(dict.fromkeys(queue.pop_unsynced()))
                queue.flush()
            for directory in names:
                # its topic may be deleted just now
                with suppress(FileNotFoundError):
                    sync_directory(directory)
        except BaseException as error:
            if is_broken(error):
                self._sync_failure = error
            # perhaps on an interrupt: the next flush does it again
            for queue, since_ms in waited.items():
                self._waiting[queue] = since_ms
                queue.queue.unsynced = True
            raise

    def end_phy_offset(self) -> int:
        """Physical offset behind the last record that any queue knows."""
        return max((queue.end_phy_offset for queue in self), default=0)

    def fit(self, min_phy_offset: int, end_phy_offset: int) -> int:
        """Drop the units of messages behind the log's end, and hide those before its first record.

        One queue after the other, so that the files of each are opened once.

        Args:
            min_phy_offset: physical offset of the log's first record.
            end_phy_offset: physical offset behind its last one.

        Returns:
            how many were dropped.

        Raises:
            OSError: a file cannot be cut or removed.
        """
        dropped = 0
        for queue in self:
            dropped += queue.truncate(end_phy_offset)
            queue.correct_min_offset(min_phy_offset)
        return dropped

    def blank_between(self, start_phy_offset: int, stop_phy_offset: int) -> int:
        """Put fillers in place of a damaged stretch's units; see `ConsumeQueue.blank_between`."""
        return sum(queue.blank_between(start_phy_offset, stop_phy_offset) for queue in self)

    def correct_min_offset(self, min_phy_offset: int) -> None:
        """Hide the units of messages that the log no longer has."""
        for queue in self:
            queue.correct_min_offset(min_phy_offset)

    def delete_before(self, min_phy_offset: int) -> int:
        """Remove files all of whose messages are gone; how many went.

        Raises:
            OSError: a file could not be removed; those of other queues were.
        """
        return sum(do_each(partial(queue.delete_before, min_phy_offset) for queue in self))

    def end_at(self, topic: str, queue_id: int, offset: int, *, batches: bool) -> None:
        """Set the next queue offset of a queue whose messages are gone from the log.

        Args:
            topic: of the queue, which is made when it is missing.
            queue_id: of the queue.
            offset: queue offset that its next message gets.
            batches: one that is made holds a unit for each stored batch.

        Raises:
            OSError: it cannot be written.
        """
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            queue = self._queues[topic, queue_id] = self._new(topic, queue_id, batches=batches)
        queue.end_at(offset)

    def cut_at(self, topic: str, queue_id: int, number: int) -> None:
        """Drop the units of one queue from a number on.

        Args:
            topic: of the queue.
            queue_id: of the queue.
            number: of the first unit that is dropped.

        Raises:
            OSError: a file cannot be cut or removed.
        """
        self._queues[topic, queue_id].cut_at(number)

    def drop(self, topic: str, queue_id: int) -> None:
        """Remove one queue and its files, to be derived again.

        Args:
            topic: of the queue; one that is not there is nothing to do.
            queue_id: of the queue.

        Raises:
            OSError: a file cannot be removed.
        """
        queue = self._queues.pop((topic, queue_id), None)
        if queue is not None:
            self._waiting.pop(queue, None)
            queue.destroy()

    def of_topic(self, topic: str) -> list[StoredQueue]:
        """The queues of a topic."""
        return [queue for queue in self if queue.topic == topic]

    def drop_topic(self, topic: str) -> list[StoredQueue]:
        """Know a topic's queues no more; which those were."""
        queues = self.of_topic(topic)
        self.forget_queues(queues)
        return queues

    def forget_queues(self, queues: Iterable[StoredQueue]) -> None:
        """Know queues no more; their files stay for `remove_files`."""
        for queue in queues:
            self._queues.pop((queue.topic, queue.queue_id), None)
            self._waiting.pop(queue, None)

    def remove_files(self, queues: Sequence[StoredQueue]) -> None:
        """Remove the files of queues that were taken out, and directories of topics without any.

        Raises:
            OSError: some files could not be removed; the next message removes them.
        """
        for queue in queues:
            queue.destroy()
        for topic in {queue.topic for queue in queues}:
            for root, _ in self._roots():
                with suppress(OSError):
                    (root / topic).rmdir()

    def remove_left(self, topic: str) -> None:
        """Remove the files of a topic's queues that are not known any more; without a dispatcher.

        Raises:
            OSError: some could not be removed.
        """
        for root, _ in self._roots():
            for name in subdirectories(root / topic):
                queue_id = queue_id_of(name)
                if queue_id is not None and (topic, queue_id) not in self._queues:
                    for _, path, _ in numbered_files(root / topic / name):
                        path.unlink()
                    with suppress(OSError):
                        (root / topic / name).rmdir()
            with suppress(OSError):
                (root / topic).rmdir()

    def clear(self) -> None:
        """Remove every queue and its files, so that all are derived again."""
        for topic, queue_id in self.keys():
            self.drop(topic, queue_id)
        self.damaged.clear()

    def close(self) -> None:
        """Close the files."""
        for queue in self:
            queue.close()


def _begins_again(stretch: QueueStretch, queue: StoredQueue) -> bool:
    """True for records behind all of a queue's whose numbers begin with 0 although it has some."""
    if stretch.first_queue_offset > 0 or queue.max_offset == 0:
        return False
    (phy_offset, _) = UNIT_HEAD.unpack_from(stretch.units)
    return bool(phy_offset >= queue.end_phy_offset)


def _holds_batches(directory: Path) -> bool:
    """True when a file of a directory of stored batches begins with a unit."""
    for _, path, _ in numbered_files(directory):
        # whoever writes the queue may remove it just now
        with suppress(FileNotFoundError), path.open("rb") as file:
            if any(file.read(BATCH_UNIT_SIZE)):
                return True
    return False
