"""`Follower`: the files of a store that another process may write, as far as they go now."""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from rmqcore.config import StoreConfig
from rmqcore.derived.consume_queue_store import ConsumeQueueStore
from rmqcore.errors import (
    ConfigError,
    CorruptConsumeQueueError,
    CorruptStoreError,
    StoreClosedError,
)
from rmqcore.files.batch_consume_queue import StoredQueue
from rmqcore.files.commit_log import CommitLog
from rmqcore.files.log_walker import (
    GoodRecord,
    find_good_record,
    good_record_at,
    view_of,
    walk_file,
)
from rmqcore.files.mapped_file import MappedFile, OpenFiles
from rmqcore.files.mapped_file_queue import MappedFileQueue
from rmqcore.files.store_dir import StoreDir
from rmqcore.native.base._lock import ReentrantLock
from rmqcore.native.base._published import PublishedOffset
from rmqcore.native.columns._columns import ColumnDecoder
from rmqcore.native.format._next_record import RECORD_HEAD_SIZE, ScanStatus
from rmqcore.recovery.geometry import fitted_config, is_of_index
from rmqcore.recovery.unfinished_repair import report_unfinished_repair
from rmqcore.store.followed_index import FollowedIndex
from rmqcore.store.parts.general_reads import GeneralReads

_FIRST_READ_SIZE = 4096
_READ_SIZE = 1 << 20
#: After this many bytes of the log are walked, all consume queues are asked where it ends.
_WALK_MAX = 16 << 20
#: After this many looks what looks broken counts as damage; before, a writer may be adding to it.
_LOOKS = 3
#: While files go that were just listed, this many looks are made: a writer may be deleting one
#: after the other.
_LOOKS_AT_GONE = 100


_Read = TypeVar("_Read", bound=Callable[..., Any])


def steady(read: _Read) -> _Read:
    """A read that looks again when its files have gone or changed in between.

    Its object has ``list_anew``, as `Follower`.
    """

    @functools.wraps(read)
    def looks_again(follower: Any, /, *args: Any, **kwargs: Any) -> Any:
        broken = gone = 0
        while True:
            try:
                return read(follower, *args, **kwargs)
            except CorruptStoreError:
                broken += 1
                if broken == _LOOKS:
                    raise
            except FileNotFoundError:
                gone += 1
                if gone == _LOOKS_AT_GONE:
                    raise
            follower.list_anew()

    return cast("_Read", looks_again)


class Follower:
    """Follows the writer of a store: its log, queues and index.

    - The end of the log is found record by record; one that is not whole yet is not handed out.
    - Bytes are read, not mapped, so a file that its writer cuts short is an error, no crash.

    Args:
        path: the store's directory.
        asked: settings; the sizes that files have win.
        directory: of the store.

    Attributes:
        config: settings that fit the files.
        log, consume_queues, index: as they are read; others take their places when files turn out
            to have another size.
        reader: reads them.
        closed: whether reads are refused.
        claimed_end: physical offset behind the last record that a queue knew when all were looked
            at, whether the log has it or not.

    Threads: any; they wait for each other only where files have to be looked at anew.
    """

    def __init__(self, path: Path, asked: StoreConfig, directory: StoreDir) -> None:
        self._path = path
        self._asked = asked
        self._directory = directory
        directory.require()
        report_unfinished_repair(self._directory, None)
        self.closed = False
        self._following = ReentrantLock()
        self._begin()
        _FOLLOWERS.add(self)

    def _begin(self) -> None:
        """Open all, with nothing of what was open before."""
        self._opened = False
        self._decoder = ColumnDecoder(("store_size",), row_max=4096, verify_crc=True)
        self._open_files = OpenFiles(mappings_max=self._asked.max_mapped_files)
        self._open()
        self._is_inherited = False

    @steady
    def _open(self) -> None:
        self.config = self._fitted_config()
        #: the kinds of queues of which a file has said how large all are, and whether one of the
        #: index has
        self._sized: set[type[StoredQueue]] = set()
        self._index_sized = False
        #: physical offset behind the last whole record that was seen
        self._end = 0
        #: an end of the log behind which no good record was found
        self._nothing_behind = -1
        self._open_log()
        self._open_derived()
        self._follow_all()
        self._opened = True

    def _fitted_config(self) -> StoreConfig:
        """With the sizes of the files; an index without a geometry is refused to who asks it."""
        self._index_refusal: ConfigError | None = None
        try:
            return fitted_config(self._asked, self._directory, past_bad_sectors=True)
        except ConfigError as error:
            if not is_of_index(error):
                raise
            self._index_refusal = error
        return fitted_config(self._asked, self._directory, index=False)

    def _open_log(self) -> None:
        config = self.config
        queue = MappedFileQueue(
            self._directory.commit_log,
            config.mapped_file_size_commit_log,
            self._open_files,
            writable=False,
        )
        queue.load()
        self.log = CommitLog(queue, PublishedOffset(), demand_crc=config.force_verify_prop_crc)

    def _open_derived(self) -> None:
        config = self.config
        self.consume_queues = ConsumeQueueStore(
            self._directory,
            config.mapped_file_size_consume_queue,
            config.mapper_file_size_batch_consume_queue,
            self._open_files,
            writable=False,
        )
        self.index = FollowedIndex(
            self._directory,
            self.log,
            config.max_hash_slot_num,
            config.max_index_num,
            self._open_files,
            self._index_refusal,
        )
        self.reader = GeneralReads(self.log, self.consume_queues, self.index)
        #: where the log began when a queue's minimum was last corrected, by (topic, queue id)
        self._begins: dict[tuple[str, int], int] = {}

    # ---- following the writer

    @steady
    def refresh(self) -> None:
        """Look for what the writer has added or removed; every read does so by itself."""
        self._check_open()
        with self._following.within():
            self._follow_all()

    def _follow_all(self) -> None:
        queues = self._follow_derived()
        self.claimed_end = max((queue.end_phy_offset for queue in queues), default=0)
        self.log.queue.follow()
        self._find_end(queues)
        for queue in queues:
            try:
                self._show(queue)
            except CorruptConsumeQueueError as error:
                self.consume_queues.unreadable[queue.topic, queue.queue_id] = error

    def catch_up_queue(self, topic: str, queue_id: int) -> None:
        """Catch up with one queue; see `CatchesUp.catch_up_queue`.

        Raises:
            StoreClosedError: the store is closed.
            CorruptStoreError: the files are none that a writer leaves.
        """
        self._check_open()
        with self._following.within():
            if not self._is_settled():
                self._follow_all()
                return
            queue = self.consume_queues.followed_one(topic, queue_id)
            if queue is not None and type(queue) not in self._sized:
                self._follow_all()
                return
            self.log.queue.follow()
            if not self._find_end([] if queue is None else [queue], walk_max=_WALK_MAX):
                self._follow_all()
            elif queue is not None:
                self._show(queue)

    @steady
    def is_level(self, topic: str, queue_id: int) -> bool:
        """False, since another process may have put something; see `CatchesUp.is_level`."""
        return False

    def catch_up_log(self) -> None:
        """Catch up with the log and the index."""
        self._check_open()
        with self._following.within():
            if self._index_refusal is not None:
                # its writer may have derived it again
                self._sized.clear()
            if self._is_settled():
                self.index.follow()
                self.log.queue.follow()
                if self._find_end([], walk_max=_WALK_MAX):
                    return
            self._follow_all()

    def list_anew(self) -> None:
        """Look which files there are, where a file that was known has gone, too."""
        if not self._opened:
            return
        with self._following.within():
            self.log.queue.follow()
            self.index.follow()
            for queue in self.consume_queues:
                queue.queue.follow()

    def _follow_derived(self) -> list[StoredQueue]:
        """Take in new queues and index files; the first of their kind say how large all are.

        Returns:
            every queue; what is new of it is not shown yet.
        """
        sizes_fit = False
        while True:
            queues: list[StoredQueue] = []
            try:
                queues = self.consume_queues.followed(sizes_fit=sizes_fit)
                self.index.follow()
            except CorruptStoreError:
                if sizes_fit:
                    raise
                sizes_fit = self._sizes_fit(queues)
                if sizes_fit:
                    continue
            else:
                if self._sizes_fit(queues):
                    return queues
            self._open_derived()

    def _is_settled(self) -> bool:
        """Whether it is known how large files are; of an index without any nothing is to be."""
        return bool(self._sized) and (self._index_sized or not self.index.names())

    def _sizes_fit(self, queues: list[StoredQueue]) -> bool:
        """True when the files that were seen have the sizes that they were opened with."""
        kinds = {type(queue) for queue in queues}
        if self._is_settled() and kinds <= self._sized:
            return True
        refusal, config = self._index_refusal, self._fitted_config()
        if config == self.config and (refusal is None or self._index_refusal is not None):
            # a queue that its writer has just begun may have no file yet
            self._sized |= {type(queue) for queue in queues if queue.queue.files}
            self._index_sized = bool(self.index.files)
            return True
        if config.mapped_file_size_commit_log != self.config.mapped_file_size_commit_log:
            self.config = config
            self._open_log()
        self.config = config
        return False

    def _show(self, queue: StoredQueue) -> None:
        """Publish to readers the units whose records the log has; a queue's file may have more."""
        key = queue.topic, queue.queue_id
        begin, end = self.log.min_offset, self.log.max_offset
        if queue.end_phy_offset > end:
            self._check_last_unit(queue, end)
            queue.truncate(end)
        if self._begins.get(key) != begin:
            queue.correct_min_offset(begin)
            self._begins[key] = begin
        self.consume_queues.show(queue)

    @staticmethod
    def _check_last_unit(queue: StoredQueue, end: int) -> None:
        unit = queue.unit_at(queue.max_offset - 1)
        if unit is not None and unit[0] < end:
            raise CorruptConsumeQueueError(
                queue.queue.directory,
                unit[0],
                f"the last unit says {unit[1]} bytes, the log ends at {end}; open the store for "
                "writing, which derives it again",
            )

    def catch_up_all(self) -> None:
        """Catch up with what has been put."""
        self.refresh()

    def _find_end(self, queues: Iterable[StoredQueue], walk_max: int | None = None) -> bool:
        """Move the end of the log over the whole records that follow it.

        Args:
            queues: what may know of an end further on.
            walk_max: bytes to walk at most.

        Returns:
            False when there was more to walk; all that was walked counts.

        Raises:
            StoreNotFoundError: the store has been deleted.
        """
        if not self.log.queue.files:
            self._directory.require()
        end = max(self._end, self._known_end(queues), self.log.min_offset)
        while True:
            whole = self._walk_from(end, walk_max)
            found = self._good_behind_damage(queues) if whole else None
            if found is None:
                return whole
            end = found.end_offset

    def _walk_from(self, end: int, walk_max: int | None) -> bool:
        """As `_find_end`, from a place on up to which the log goes at least."""
        files = [
            file for file in self.log.queue.files if file.file_from_offset + file.size > self._end
        ]
        for file in files:
            file.set_positions(max(0, min(end - file.file_from_offset, file.size)))
        whole = True
        for file in files:
            if file.file_from_offset + file.size <= end:
                continue
            stop = file.size
            if walk_max is not None:
                stop = min(stop, end + walk_max - file.file_from_offset)
            if not self._walk(file, stop):
                whole = stop == file.size or file.wrote_position < stop
                break
        self._end = self.log.queue.max_offset
        self.log.end.move_to(self._end)
        return whole

    def _good_behind_damage(self, queues: Iterable[StoredQueue]) -> GoodRecord | None:
        """The first good record behind the log's end, in a store that was closed.

        What is there is damage then; without a close it may be a put that was never finished.
        """
        end = self._end
        files = [file for file in self.log.queue.files if file.file_from_offset + file.size > end]
        if not files or end == self._nothing_behind:
            return None
        at = max(0, end - files[0].file_from_offset)
        begun = any(files[0].read(at, min(RECORD_HEAD_SIZE, files[0].size - at)))
        claimed = any(queue.end_phy_offset > end for queue in queues)
        if not (begun or claimed) or self._directory.was_aborted:
            return None
        found = find_good_record(files, at + 1)
        if found is None:
            self._nothing_behind = end
        return found

    def _known_end(self, queues: Iterable[StoredQueue]) -> int:
        """The end of the newest record that a queue knows and the log has."""
        for queue in sorted(queues, key=lambda queue: -queue.end_phy_offset):
            if queue.end_phy_offset <= self._end:
                break
            unit = queue.unit_at(queue.max_offset - 1)
            file = self.log.queue.find(unit[0]) if unit else None
            if unit is None or file is None:
                continue
            record = good_record_at(file, unit[0] - file.file_from_offset)
            if record is not None and record.end_offset == queue.end_phy_offset:
                return record.end_offset
        return self._end

    def _walk(self, file: MappedFile, stop: int) -> bool:
        """Walk one file up to ``stop`` or a little further; True when all of it holds records."""
        if file.wrote_position >= stop:
            return file.full
        file_end = file.file_from_offset + file.size
        at = file.file_from_offset + file.wrote_position
        for step in walk_file(
            view_of(file),
            self._decoder.decode,
            at,
            file_end,
            file_end=file_end,
            piece_size=_READ_SIZE,
            first_piece_size=_FIRST_READ_SIZE,
        ):
            if step.status is ScanStatus.CAPACITY:
                self._decoder.take()
            at = file_end if step.status is ScanStatus.BLANK else step.phy_offset
            if at >= file.file_from_offset + stop:
                break
        file.set_positions(at - file.file_from_offset)
        return at == file_end

    def _check_open(self) -> None:
        if self.closed:
            raise StoreClosedError(f"{self._path}: the store has been closed")
        if self._is_inherited:
            with self._following.within():
                if self._is_inherited:
                    self._begin()

    def after_fork_in_child(self) -> None:
        """Let a forked child begin anew: another thread of its parent was perhaps following."""
        self._following = ReentrantLock()
        self._is_inherited = True

    def close(self) -> None:
        """Close the files; idempotent."""
        self.closed = True
        self.log.close()
        self.consume_queues.close()
        self.index.close()


#: every store of this process that is open for reading
_FOLLOWERS: Final[weakref.WeakSet[Follower]] = weakref.WeakSet()


def _begin_anew_in_child() -> None:
    for follower in list(_FOLLOWERS):
        follower.after_fork_in_child()


os.register_at_fork(after_in_child=_begin_anew_in_child)
