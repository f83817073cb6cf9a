"""MessageStore: one partition, its segments, its one writer and its flushes.

Invariants:
    - Appends go to the newest segment alone, one after the other; a roll keeps them out.
    - An acknowledged append is in the log: on disk with group commit, in the page cache without.
    - After a failed sync the store takes no more appends; it never retries as if nothing happened.
    - Readers see bytes below the high-water mark only, and take no lock.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from pathlib import Path

from rmqcore.errors import (
    StoreClosedError,
    StoreError,
    StoreForkedError,
    StoreNotFoundError,
    StoreNotWritableError,
)
from rmqcore.metaq._message_set import checksum as checksum_of
from rmqcore.metaq._message_set import encode_many
from rmqcore.metaq._segment_tail import Location, SegmentTail
from rmqcore.metaq.commit import CommitThread
from rmqcore.metaq.delete_policy import DeletePolicy, parse_delete_policy
from rmqcore.metaq.errors import IllegalTopicError, MissingSegmentError, OffsetTooSmallError
from rmqcore.metaq.file_message_set import disk_error
from rmqcore.metaq.meta_config import MetaConfig
from rmqcore.metaq.partition_reader import PartitionReader
from rmqcore.metaq.segments import (
    DirectoryLock,
    HighWaterMark,
    Hole,
    Segment,
    create_segment,
    load_partition,
    segment_name,
)
from rmqcore.status import Durability
from rmqcore.world import REAL, World, sync_directory, sync_found_name

Row = tuple[int, bytes, int]

_LOG = logging.getLogger(__name__)


class MessageStore(PartitionReader):
    """One partition of one topic.

    Attributes:
        recovery: what was done to the newest segment at opening, None when it was created.
        holes: offsets that no segment holds.
        durability: what an append that returned promises.

    Source: MetaQ MessageStore.java.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        config: MetaConfig,
        *,
        mode: str = "a",
        delete_policy: DeletePolicy | None = None,
        offset_if_create: int = 0,
        fast_boot: bool = False,
        repair: bool = False,
        world: World = REAL,
        on_unflushed: Callable[[MessageStore], object] | None = None,
    ) -> None:
        """Open a partition, or create it.

        Args:
            topic: name; it becomes part of a directory's name.
            partition: 0 or more.
            config: thresholds, sizes and the data path.
            mode: ``"a"`` locks, recovers and appends; ``"r"`` does none of that.
            delete_policy: None: the topic's own.
            offset_if_create: where a new log begins (a slave's follows its master's).
            fast_boot: do not read what is known to be on disk.
            repair: open although bytes are lost that were on disk; what is cut is kept beside.
            world: durable flush, failpoints, clock.
            on_unflushed: called once when the first unflushed append follows a flush.

        Raises:
            CorruptStoreError: segments overlap, or bytes that were on disk are damaged or gone.
            StoreLockedError: somebody else has the partition open for appending.
            StoreNotFoundError: mode "r" and no such directory.
        """
        check_topic(topic)
        own = config.topic_config(topic)
        super().__init__(topic, partition, Path(own.data_path).expanduser())
        self._config = config
        self._world = world
        self._on_unflushed = on_unflushed
        self._own_policy = delete_policy
        self._group_commit = own.unflush_threshold <= 0
        self.durability = Durability.DISK if self._group_commit else Durability.PAGE_CACHE
        self._lock = threading.Lock()
        self._retiring = threading.Lock()
        self._reason: StoreError | None = None
        self._roll_failed = False  # said once
        self._commit: CommitThread | None = None
        self._directory_lock: DirectoryLock | None = None
        self._mark: HighWaterMark | None = None
        writable = mode == "a"
        if writable:
            make_directory(self.path)
            self._directory_lock = DirectoryLock(self.path)
        elif not self.path.is_dir():
            raise StoreNotFoundError(self.path, "no MetaQ partition here")
        try:
            self._load(writable, offset_if_create, fast_boot, repair)
        except BaseException:
            self._release()
            raise

    def _load(self, writable: bool, offset_if_create: int, fast_boot: bool, repair: bool) -> None:
        self._mark = HighWaterMark(self.path, writable=writable)
        loaded = load_partition(
            self.path,
            writable=writable,
            acknowledged=self._mark.read(),
            offset_if_create=offset_if_create,
            fast_boot=fast_boot,
            repair=repair,
            world=self._world,
        )
        self._segments = loaded.segments
        self.recovery = loaded.recovery
        self.holes: tuple[Hole, ...] = loaded.holes
        self.foreign = loaded.foreign
        if writable:
            self._sync_names()
            self._adopt(self._segments[-1])
            self._note_mark()
            self._commit = CommitThread(f"metaq-{self.topic}-{self.partition}", self._commit_round)
            _LIVE.add(self)
        else:
            self._tail = SegmentTail(-1, str(self.path), 0, 0)
            self._reason = StoreNotWritableError(f'{self.path} was opened with mode="r"')

    # ---- append ----

    def append(self, message_id: int, data: bytes, flag: int = 0, checksum: int = -1) -> Location:
        """Store one message and return where it lies.

        Args:
            message_id: the broker's id, see `IdWorker`.
            data: attribute block and payload, see `encode_data`.
            flag: bit 0 when ``data`` begins with an attribute block.
            checksum: what the sender computed; -1: it did not.

        Raises:
            MessageIllegalError: too large, wrong checksum, or indistinguishable from zeros.
            DiskFullError: nothing of the message was stored.
            StoreError: the store takes no appends; the text says why.

        Durability: `durability`; with group commit the call waits for the disk.
        """
        while True:
            tail = self._tail
            try:
                location = tail.append(message_id, data, flag, checksum)
                break
            except (OSError, StoreClosedError) as error:
                self._reconsider(tail, error)
        if tail.due:
            self._attend(tail)
        return location

    def append_async(
        self, message_id: int, data: bytes, flag: int = 0, checksum: int = -1
    ) -> Future[Location]:
        """Store one message; the future completes at `durability`, and the call never waits for it.

        Raises: as `append`, before anything was stored. The future fails when the disk does.
        """
        while True:
            tail = self._tail
            try:
                return self._promise(tail, tail.append(message_id, data, flag, checksum))
            except (OSError, StoreClosedError) as error:
                self._reconsider(tail, error)

    def append_many(self, messages: Iterable[Row]) -> Location:
        """Store ``(message_id, data, flag)`` rows as one location, all or nothing."""
        rows = list(messages)
        buffer = encode_many(rows)
        while True:
            tail = self._tail
            try:
                location = tail.append_buffer(buffer, len(rows))
                break
            except (OSError, StoreClosedError) as error:
                self._reconsider(tail, error)
        if tail.due:
            self._attend(tail)
        return location

    def append_many_async(self, messages: Iterable[Row]) -> Future[Location]:
        """Store rows as one location; the future completes at `durability`."""
        rows = list(messages)
        buffer = encode_many(rows)
        while True:
            tail = self._tail
            try:
                return self._promise(tail, tail.append_buffer(buffer, len(rows)))
            except (OSError, StoreClosedError) as error:
                self._reconsider(tail, error)

    def replay_append(
        self, offset: int, length: int, checksum: int, messages: Iterable[Row]
    ) -> Location | None:
        """Store the rows of a replayed transaction unless they are stored already.

        Args:
            offset: where the transaction log says that they lie.
            length: bytes that it says they take.
            checksum: CRC of all those bytes, headers included.
            messages: ``(message_id, data, flag)`` rows.

        Returns:
            None when they lie there (or lay there, and the delete policy has taken them since),
            else where they have been stored now.

        Source: MetaQ MessageStore.java, replayAppend.
        """
        try:
            stored = self.read(offset, length) if length >= 0 else b""
        except (OffsetTooSmallError, MissingSegmentError):
            return None
        if length > 0 and len(stored) == length and checksum_of(stored) == checksum:
            return None
        return self.append_many(messages)

    # ---- flush ----

    def flush(self) -> None:
        """Make every appended byte durable and visible.

        Raises:
            StoreNotWritableError: the disk refused, now or before.
        """
        if self._reason is None and self._commit is not None:
            self._commit.wait()
        elif self._reason is not None and self.unflushed:
            raise self._reason.with_traceback(None)

    @property
    def unflushed(self) -> bool:
        """True while appended bytes wait for `flush`."""
        last = self._segments[-1].messages
        return last.size_in_bytes > last.high_water_mark

    def why_not_writable(self) -> str | None:
        """Why appends are refused; None while they are taken."""
        return None if self._reason is None else str(self._reason)

    def refresh_settings(self) -> None:
        """Take over what a reload changed; group commit stays as it was."""
        with self._lock:
            if self._reason is None:
                self._adopt(self._segments[-1])

    # ---- retention ----

    def run_delete_policy(self, now_ms: int | None = None) -> list[Path]:
        """Take out old segments, oldest first, up to the first that has to stay.

        Differs: the original goes on behind one that stays, and may leave a hole which stops its
        next start.

        Args:
            now_ms: Unix time, milliseconds; None: the clock's.

        Returns:
            The files that were taken out of the log; none while another thread takes some out.
        """
        if not self._retiring.acquire(blocking=False):
            return []
        try:
            return self._retire(self._world.clock_ms() if now_ms is None else now_ms)
        finally:
            self._retiring.release()

    def _retire(self, now_ms: int) -> list[Path]:
        own = self._config.topic_config(self.topic).delete_policy
        policy = self._own_policy or parse_delete_policy(own)
        gone = []
        for segment in self._segments[:-1]:
            path = segment.messages.path
            if self._reason is not None:
                break
            try:
                if not policy.can_delete(path, now_ms):
                    break
                self._world.failpoint("before_delete")
                policy.process(path)
            except FileNotFoundError:
                if path.exists():
                    raise
                # an operator has removed it
            with self._lock:
                self._segments = tuple(s for s in self._segments if s is not segment)
            gone.append(path)
            # one by one: a power cut that keeps the older of two leaves a hole
            sync_directory(self.path)
            self._world.failpoint("after_delete")
        return gone

    # ---- life ----

    def close(self) -> None:
        """Flush, complete every waiting future, and let others in. Closing twice is harmless."""
        if isinstance(self._reason, StoreForkedError | StoreClosedError):
            return
        try:
            if self._commit is not None:
                self._commit.stop()
                self._tail.hold()
                self._tail.close()
                self._tail.let_go()
                if self._reason is None:
                    self._sync()
        finally:
            self._reason = StoreClosedError(f"{self.path} is closed")
            # the next owner is to find no segment that somebody here still takes out
            with self._retiring:
                for segment in self._segments[-1:]:
                    segment.messages.abandon()
                self._release()

    def __enter__(self) -> MessageStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _adopt(self, segment: Segment) -> None:
        """Append to this segment from now on, under the topic's settings of this moment."""
        own = self._config.topic_config(self.topic)
        self._tail = segment.messages.tail
        self._tail.size_limit = self._config.system.max_segment_size
        if self._group_commit:
            self._tail.flush_threshold = -1
        else:
            self._tail.flush_threshold = max(0, own.unflush_threshold)
            self._tail.flush_interval_ms = max(0, own.unflush_interval_ms)

    def _reconsider(self, tail: SegmentTail, error: Exception) -> None:
        """Return when the next segment has taken over from this tail, else raise the reason."""
        with self._lock:
            if self._reason is None and self._tail is not tail:
                return
            raise self._explain(error) from error

    def _attend(self, tail: SegmentTail) -> None:
        """Do what an append has made due, and wait for it."""
        if not self._group_commit:
            self._notice(tail)
        if tail.flush_due and self._commit is not None:
            self._commit.wait()

    def _promise(self, tail: SegmentTail, location: Location) -> Future[Location]:
        """Hand out the future of what was just written; do what it has made due."""
        if not self._group_commit:
            self._notice(tail)
        asked = None
        if tail.flush_due and self._commit is not None:
            asked = self._commit.ask(location)
        if asked is not None and self._group_commit:
            return asked
        done: Future[Location] = Future()
        done.set_result(location)
        return done

    def _commit_round(self) -> None:
        """Flush, and begin the next segment when this one is full; in the commit thread."""
        self._sync()
        last = self._segments[-1]
        if last.messages.size_in_bytes >= self._config.system.max_segment_size:
            self._roll(last)

    def _roll(self, last: Segment) -> None:
        """Begin the next segment; while that fails, the full one grows on."""
        tail = self._tail
        tail.hold()
        try:
            self._sync()
            self._world.failpoint("before_roll")
            path = self.path / segment_name(last.stop)
            try:
                following = create_segment(self.path, last.stop, world=self._world)
                self._sync_names()
            except OSError as error:
                # what is there already is not this store's to remove
                if not isinstance(error, FileExistsError):
                    path.unlink(missing_ok=True)
                if not self._roll_failed:
                    _LOG.warning("%s: no new segment (%s); the full one grows on", path, error)
                self._roll_failed = True
                return
            self._roll_failed = False
            self._world.failpoint("after_roll")
            with self._lock:
                self._segments = (*self._segments, following)
                self._adopt(following)
                last.messages.abandon()
        finally:
            tail.let_go()

    def _sync(self) -> None:
        """Flush what was written; the first time that fails ends all appends."""
        if self._reason is not None:
            raise self._reason.with_traceback(None)
        last = self._segments[-1]
        self._tail.noticed = False
        if last.messages.size_in_bytes == last.messages.high_water_mark:
            return
        try:
            last.messages.flush()
        except OSError as error:
            self._reason = StoreNotWritableError(
                f"{self.path}: the disk refused a flush ({error.strerror}); what was not "
                "confirmed may be lost; open the store again once the disk is well"
            )
            self._tail.close()
            raise self._reason from error
        self._note_mark()

    def _note_mark(self) -> None:
        """Remember what is on disk; an older mark is right too, so a failure is no failure."""
        if self._mark is not None:
            try:
                self._mark.note(self.max_offset)
            except OSError as error:
                _LOG.warning("%s: not written (%s)", self._mark.path, error)

    def _notice(self, tail: SegmentTail) -> None:
        """Tell, once a flush, that something waits for the next one."""
        if not tail.noticed:
            tail.noticed = True
            if self._on_unflushed is not None:
                self._on_unflushed(self)

    def _sync_names(self) -> None:
        if self._directory_lock is not None:
            self._directory_lock.sync()

    def _explain(self, error: Exception) -> Exception:
        """The error a caller gets: why the store is closed, or what the disk said."""
        if self._reason is not None:
            return self._reason.with_traceback(None)
        last = self._segments[-1].messages
        if isinstance(error, StoreClosedError):
            self._reason = StoreNotWritableError(
                f"{self.path}: a failed write could not be taken back; open the store again"
            )
            return self._reason
        return disk_error(error, last.path) if isinstance(error, OSError) else error

    def _release(self) -> None:
        if self._mark is not None:
            self._mark.close()
        if self._directory_lock is not None:
            self._directory_lock.release()

    def _after_fork_in_child(self) -> None:
        """The parent owns the partition: nothing here writes, flushes or unlocks any more."""
        self._lock = threading.Lock()
        self._reason = StoreForkedError(f"{self.path} was opened in the parent process")
        self._segments[-1].messages.abandon()


def make_directory(path: Path) -> None:
    """Create a directory and the missing ones above it so that they survive a power cut.

    Raises:
        OSError: the system refused.
    """
    missing, found = [], path
    while not found.is_dir():
        missing.append(found)
        found = found.parent
    # who made it may have been killed before its name was on the disk
    sync_found_name(found)
    for directory in reversed(missing):
        directory.mkdir(exist_ok=True)
        sync_directory(directory.parent)


def check_topic(topic: str) -> None:
    """Refuse a topic whose name could leave the data directory.

    Raises:
        IllegalTopicError: the name is empty, too long for a file name, or holds ``/`` or NUL.
    """
    if not topic or "/" in topic or "\0" in topic or topic in {".", ".."}:
        raise IllegalTopicError(f"{topic!r} is no topic: a name without / and NUL")
    if len(os.fsencode(topic)) > 200:
        raise IllegalTopicError(f"{topic[:20]!r}...: a topic has at most 200 bytes")


_LIVE: weakref.WeakSet[MessageStore] = weakref.WeakSet()


def _after_fork() -> None:
    for store in tuple(_LIVE):
        store._after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork)
