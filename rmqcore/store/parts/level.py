"""`Level`: brings what is derived from the log level with what has been put, for who reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmqcore.errors import is_refusal
from rmqcore.native.base._lock import ReentrantLock

if TYPE_CHECKING:
    from rmqcore.derived.consume_queue_store import ConsumeQueueStore
    from rmqcore.files.commit_log_writer import CommitLogWriter
    from rmqcore.services.flush import GroupCommitService
    from rmqcore.services.reput import ReputMessageService
    from rmqcore.services.running_flags import RunningFlags
    from rmqcore.store.parts.handle import Handle
    from rmqcore.store.parts.settings import Settings


class Level:
    """Catches up with what has been put.

    Args:
        handle: says whether the store is open.
        settings: say how long the disk is waited for.
        writer: of the log.
        queues: all consume queues.
        reput: dispatches.
        group_commit: flushes what has to be on the disk before it is dispatched.
        flags: up, no flush helps.

    Threads: any.
    """

    def __init__(
        self,
        handle: Handle,
        settings: Settings,
        writer: CommitLogWriter,
        queues: ConsumeQueueStore,
        reput: ReputMessageService,
        group_commit: GroupCommitService,
        flags: RunningFlags,
    ) -> None:
        self._handle = handle
        self._settings = settings
        self._writer = writer
        self._queues = queues
        self._reput = reput
        self._group_commit = group_commit
        self._flags = flags
        self._unwaited = ReentrantLock()
        self._unwaited_end = 0

    def put_unwaited(self, end: int) -> None:
        """Note where a record ends that did not wait for a disk that others wait for.

        A read waits for it before it looks, so that it sees it.
        """
        with self._unwaited.within():
            self._unwaited_end = max(self._unwaited_end, end)

    def catch_up_all(self) -> None:
        """Catch up with all that has been put.

        Raises:
            StoreClosedError: the store is closed.
            CorruptStoreError: as of a dispatch. What the system refuses to take is no error here:
                what has been dispatched is still served.
        """
        handle = self._handle
        if handle.closed or handle.forked:
            handle.check_open()
        if handle.interrupted():
            self._dispatch(wait=False)
            return
        writer = self._writer
        if self._reput.offset < writer.tail.max_offset:
            if writer.flushed_offset < self._unwaited_end and self._flags.writeable:
                self._group_commit.try_wait(self._unwaited_end, self._settings.policy.timeout_ms)
            self._dispatch()

    def _dispatch(self, *, wait: bool = True) -> None:
        """Dispatch what the system takes; the store's flags tell of what it refuses."""
        try:
            self._reput.catch_up(wait=wait)
        except OSError as error:
            if not is_refusal(error):
                raise

    def catch_up_queue(self, topic: str, queue_id: int) -> None:
        """Catch up with one queue; while none of its own messages waits, others' go on waiting.

        So who reads one queue and puts into another leaves it to the reput service to dispatch many
        records at a time.

        Args:
            topic: of the queue; it need not exist.
            queue_id: of the queue; it need not exist.

        Raises:
            StoreClosedError: the store is closed.
        """
        handle = self._handle
        if handle.closed or handle.forked or not self.is_level(topic, queue_id):
            self.catch_up_all()

    def is_level(self, topic: str, queue_id: int) -> bool:
        """Tell whether no message of a queue waits; False also where that is not known.

        Arguments as those of `CatchesUp.is_level`.
        """
        tail = self._writer.tail
        if self._reput.offset >= tail.max_offset:
            return True
        # a slave's tail numbers nothing: it does not know what waits
        if tail.follows:
            return False
        queue = self._queues.find(topic, queue_id)
        return tail.next_queue_offset(topic, queue_id) == (queue.max_offset if queue else 0)

    def catch_up_log(self) -> None:
        """Catch up with the log and the index."""
        self.catch_up_all()
