"""Mode "r": a store opened for reading, while another process may write it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rmqcore.arguments import directory_path
from rmqcore.errors import CorruptConfigFileError, CorruptConsumeQueueError
from rmqcore.files.deleted_topics import DeletedTopics
from rmqcore.files.store_dir import StoreDir
from rmqcore.files.store_mark import StoreMark
from rmqcore.files.store_trace import TraceRow, read_trace
from rmqcore.native.format._numbers import SysFlag
from rmqcore.recovery.marked_queue_ends import MarkedQueueEnds
from rmqcore.store.follower import Follower, steady
from rmqcore.store.parts.reading import Reading
from rmqcore.store.readable_store import ReadableStore, broker_conf

if TYPE_CHECKING:
    from rmqcore.config import StoreConfig
    from rmqcore.derived.consume_queue_store import ConsumeQueueStore
    from rmqcore.derived.index_service import IndexService
    from rmqcore.files.commit_log import CommitLog

#: So many queues that lack messages are named.
_NAMED: Final = 8


class FollowedReading(Reading):
    """As `Reading`; each read looks again when its files have gone or changed in between.

    Args:
        path: the store's directory.
        follower: has the files.
        directory: of the store.
    """

    def __init__(self, path: Path, follower: Follower, directory: StoreDir) -> None:
        super().__init__(path, follower, follower)
        self._follower = follower
        self._directory = directory

    def list_anew(self) -> None:
        """Look which files there are; see `Follower.list_anew`."""
        self._follower.list_anew()

    get_message = steady(Reading.get_message)
    fetch = steady(Reading.fetch)
    queue_bounds = steady(Reading.queue_bounds)
    min_queue_offset = steady(Reading.min_queue_offset)
    max_queue_offset = steady(Reading.max_queue_offset)
    read_units = steady(Reading.read_units)
    query_message = steady(Reading.query_message)
    _query_each = steady(Reading._query_each)
    queue_offset_by_time = steady(Reading.queue_offset_by_time)
    message_at = steady(Reading.message_at)
    message_by_id = steady(Reading.message_by_id)
    message_in_log = steady(Reading.message_in_log)
    behind_blank = steady(Reading.behind_blank)
    behind_deleted = steady(Reading.behind_deleted)
    next_good = steady(Reading.next_good)

    @property
    @steady
    def min_phy_offset(self) -> int:
        """See `Reading.min_phy_offset`."""
        return super().min_phy_offset

    @property
    @steady
    def max_phy_offset(self) -> int:
        """See `Reading.max_phy_offset`."""
        return super().max_phy_offset

    @steady
    def queues(self) -> list[tuple[str, int]]:
        """(topic, queue id) of every queue, sorted.

        Raises:
            CorruptConsumeQueueError: there is none, though the log has messages that belong into
                one; not while a writer may still make them.
        """
        found = super().queues()
        if not found and not self._directory.is_locked():
            self._refuse_lost_queues()
        return found

    def _refuse_lost_queues(self) -> None:
        """Tell a store whose consume queues are lost from one that has none."""
        deleted = DeletedTopics(self._directory).load()
        for message in self.messages(on_damage=lambda *_: None):
            transaction = message.sys_flag & SysFlag.TRANSACTION_MASK
            if transaction in (
                0,
                SysFlag.TRANSACTION_COMMIT,
            ) and message.phy_offset >= deleted.counts_from(message.topic):
                raise CorruptConsumeQueueError(
                    self._directory.consume_queue,
                    -1,
                    "no consume queue is there, though the log has messages; rmqcore rebuild cq "
                    "STORE derives them again",
                )


class ReadOnlyMessageStore(ReadableStore):
    """A store opened with ``mode="r"``: takes no lock, writes nothing, follows its writer.

    Every read looks for what the writer, rmqcore or a Java broker, has added since.

    Threads: any; reads wait for each other only where files have to be looked at anew.
    """

    def __init__(self, path: str | os.PathLike[str], config: StoreConfig) -> None:
        self.path = directory_path("path", path).absolute()
        self._directory = StoreDir(self.path, config.store_path_commit_log)
        self._follower = Follower(self.path, config, self._directory)
        super().__init__(FollowedReading(self.path, self._follower, self._directory))

    @property
    def config(self) -> StoreConfig:
        """Settings that fit the files."""
        return self._follower.config

    @property
    def log(self) -> CommitLog:
        """The log, as far as it goes now."""
        return self._follower.log

    @property
    def consume_queues(self) -> ConsumeQueueStore:
        """All consume queues."""
        return self._follower.consume_queues

    @property
    def index(self) -> IndexService:
        """All index files."""
        return self._follower.index

    def refresh(self) -> None:
        """Look for what the writer has added or removed; every read does so by itself."""
        self._follower.refresh()

    # ---- what the store says of itself

    def broker_conf(self) -> str:
        """The ``broker.conf`` lines with which RocketMQ opens this store."""
        return broker_conf(self.config, self.path)

    def trace(self) -> list[TraceRow]:
        """The last 200 events of who has the store open for writing, or had it last, newest last.

        Empty where there is no trace, as in a store that RocketMQ has written.
        """
        return read_trace(self._directory.trace)

    def why_not_writable(self) -> str:
        """Why puts are refused: always, here."""
        return 'the store was opened with mode="r"'

    def missing(self, *, queues: bool = True) -> list[str]:
        """What the last writer had on the disk and the files no longer have, a line for each.

        Reads see a log or queues that end sooner or begin later. Empty while a writer may still add
        to them. Where nobody but RocketMQ has written, which leaves no mark of the ends, what
        queues know tells of a log that ends sooner, and of queues only those are told that begin
        later in a log that begins at 0. A file that it takes to tell, and that cannot be read, is
        a line, too. So is each queue that cannot be read, beside a writer, too, and an index.

        Args:
            queues: whether what queues have lost is told, too, or of the log alone.
        """
        lost = self._lost(queues=queues)
        unreadable = self.consume_queues.unreadable if queues else {}
        lines = [
            f"queue {topic}/{queue_id} cannot be read: {error}"
            for (topic, queue_id), error in sorted(unreadable.items())[:_NAMED]
        ]
        if len(unreadable) > _NAMED:
            lines.append(f"{len(unreadable) - _NAMED} other queues cannot be read")
        refusal = self._follower.index.refusal
        if queues and refusal is not None:
            lines.append(f"no key is looked up: {refusal}")
        return lines + lost

    def _lost(self, *, queues: bool) -> list[str]:
        """What the files no longer have, as `missing`."""
        mark = StoreMark(self._directory)
        try:
            mark.load()
            if self._directory.is_locked():
                return []
            deleted = DeletedTopics(self._directory).load()
        except (CorruptConfigFileError, OSError) as error:
            # all other reads do without these files
            return [str(error)]
        self.refresh()
        lost = [] if mark.is_known else self._lost_to_queues()
        if lost:
            return lost
        ends = MarkedQueueEnds(
            mark, deleted, self.log, self.consume_queues, clean_shutdown=True, lost_counts=True
        )
        log_end = self.max_phy_offset
        if ends.of_this_log and log_end < mark.log_end:
            return [f"the log ends at {log_end}, and has ended at {mark.log_end}"]
        found = []
        # whoever has written since may have had a retention
        is_as_closed = ends.closed_at(log_end) and not self._directory.was_aborted
        if is_as_closed and self.min_phy_offset > mark.first_offset:
            now, then = self.min_phy_offset, mark.first_offset
            found.append(f"the log begins at {now}, and has begun at {then}")
        if not queues:
            return found
        lacking = sorted(ends.lacking().items())
        for (topic, queue_id), end in lacking[:_NAMED]:
            queue = self.consume_queues.find(topic, queue_id)
            now = 0 if queue is None else queue.max_offset
            found.append(f"queue {topic}/{queue_id} ends at {now}, and has ended at {end}")
        if len(lacking) > _NAMED:
            found.append(f"{len(lacking) - _NAMED} other queues end sooner than they have")
        # retention has taken no file of a queue: its log is whole, or all is as it was closed
        begins_as_closed = is_as_closed and self.min_phy_offset == mark.first_offset
        is_sure = self.min_phy_offset == 0 or (begins_as_closed and mark.first_units is not None)
        begins = ends.lacking_first_files() if is_sure else {}
        for (topic, queue_id), queue in sorted(begins.items())[:_NAMED]:
            now = queue.min_offset
            found.append(f"queue {topic}/{queue_id} begins at {now}, and has begun sooner")
        if len(begins) > _NAMED:
            found.append(f"{len(begins) - _NAMED} other queues begin later than they have")
        return found

    def _lost_to_queues(self) -> list[str]:
        end, claimed = self.max_phy_offset, self._follower.claimed_end
        if claimed <= end or self._directory.was_aborted:
            return []
        return [f"the log ends at {end}, and consume queues know records up to {claimed}"]

    def close(self) -> None:
        """Close the files; idempotent."""
        self._follower.close()

    def __repr__(self) -> str:
        return f"ReadOnlyMessageStore({str(self.path)!r})"
