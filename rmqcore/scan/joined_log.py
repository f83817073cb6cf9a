"""Archive and store as one log: what retention has deleted below is answered from above."""

from __future__ import annotations

from collections.abc import Iterable

from rmqcore.files.log_walker import GoodRecord
from rmqcore.files.objects.errors import ArchiveError
from rmqcore.scan.archive_log import ArchiveLog, SelectedArchive
from rmqcore.scan.plan import SPLIT_SIZE, LogPlan
from rmqcore.scan.selected import SelectedLog
from rmqcore.scan.selection import HIDDEN, Selection
from rmqcore.scan.shown_topics import ShownTopics
from rmqcore.scan.split import Split
from rmqcore.scan.unit_files import QueueKey


class JoinedLog:
    """The log of a store, and in front of it that of its archive.

    Attributes:
        archive, live: the two; what both have is read from the store.
        start, end: physical offsets of the whole.

    Raises:
        ArchiveError: there is a gap between them, or they are not of one store.
    """

    def __init__(self, archive: ArchiveLog, live: LogPlan) -> None:
        self.archive = archive
        self.live = live
        self.border = live.start if live.files else archive.end
        if archive.end < self.border:
            reason = (
                f"the archive ends at {archive.end}, and {live.directory.path} begins at "
                f"{self.border}: what was between is in neither; was it deleted before it was "
                "archived?"
            )
            raise ArchiveError(archive.url, reason)
        if live.files and archive.file_size != live.file_size:
            reason = f"its files have {archive.file_size} bytes, those of {live.directory.path} "
            raise ArchiveError(archive.url, f"{reason}{live.file_size}: another store's archive")
        self.start = min(archive.start, self.border)
        self.end = max(live.end, self.border)

    @property
    def place(self) -> str:
        """The store's directory, for errors."""
        return self.live.place

    @property
    def known_end(self) -> int:
        """Up to where queues or manifests know records."""
        return max(self.live.known_end, self.border)

    @property
    def trusted_end(self) -> int:
        """Up to where queues or manifests know every record."""
        return max(self.live.trusted_end, self.border)

    @property
    def queue_count(self) -> int:
        """Consume queues of the store that have files."""
        return self.live.queue_count

    def is_current(self) -> bool:
        """True when the store's log still begins and ends where it did."""
        return self.live.is_current()

    def shown_topics(self, named: Iterable[str], *, services: bool) -> ShownTopics:
        """What is shown of each topic: what neither store nor archive knows as deleted.

        See `LogPlan.shown_topics` for the arguments.
        """
        names = tuple(named)
        return JoinedTopics(
            self.live.shown_topics(names, services=services),
            self.archive.shown_topics(names, services=True),
        )

    def select(
        self, selection: Selection, start: int | None = None, end: int | None = None
    ) -> SelectedJoined:
        """What of it a selection needs; see `ArchiveLog.select`."""
        return SelectedJoined(self, selection, start, end)

    def good_record_at(self, phy_offset: int) -> GoodRecord | None:
        """Where the good record at a physical offset ends, and its time; None for none."""
        part = self.archive if phy_offset < self.border else self.live
        return part.good_record_at(phy_offset)

    def record_at(self, phy_offset: int) -> bytes | None:
        """The good record at a physical offset, None for none."""
        part = self.archive if phy_offset < self.border else self.live
        return part.record_at(phy_offset)

    def tail_at(self, phy_offset: int) -> int | None:
        """A checksum of what the store has in front of a physical offset; see `LogPlan.tail_at`."""
        return self.live.tail_at(phy_offset)

    def file_start(self, phy_offset: int) -> int:
        """Where the file that holds a physical offset begins."""
        part = self.archive if phy_offset < self.border else self.live
        return part.file_start(phy_offset)

    def cut_behind(self, start: int, split_size: int, high: int) -> int:
        """Where a split of about ``split_size`` bytes ends; as `LogPlan.cut_behind`."""
        if start < self.border:
            return self.archive.cut_behind(start, split_size, min(high, self.border))
        return self.live.cut_behind(start, split_size, high)

    def queues(self) -> dict[str, set[int]]:
        """Topics, and the queues of each, that either knows."""
        found = self.archive.queues()
        for topic, queue_ids in self.live.queues().items():
            found[topic] = found.get(topic, set()) | queue_ids
        return found

    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int] | None:
        """Queue offsets of a queue's first message, and behind its last; None for none.

        See `LogPlan.queue_range` for the arguments.
        """
        ranges = [
            found
            for part in (self.archive, self.live)
            if (found := part.queue_range(topic, queue_id)) is not None
        ]
        if not ranges:
            return None
        return min(first for first, _ in ranges), max(end for _, end in ranges)

    def last_of_queue(self, topic: str, queue_id: int) -> GoodRecord | None:
        """The last record that a queue knows; None for none.

        See `LogPlan.last_of_queue` for the arguments.
        """
        found = self.live.last_of_queue(topic, queue_id)
        return found or self.archive.last_of_queue(topic, queue_id)


class JoinedTopics(ShownTopics):
    """A topic is shown from where on the store and the archive show it."""

    def __init__(self, live: ShownTopics, archived: ShownTopics) -> None:
        self.seen = live.seen
        self._live = live
        self._archived = archived

    def rule(self, topic: str) -> tuple[int, dict[int, int]]:
        """The `TopicRule` of the two."""
        first, begins = self._live.rule(topic)
        since, _ = self._archived.rule(topic)
        if since == HIDDEN or first >= since:
            # one that was made since the last file was archived, or is there again
            return first, begins
        return since, {queue_id: max(since, begin) for queue_id, begin in begins.items()}


class SelectedJoined:
    """What of archive and store a selection needs; as `SelectedLog`.

    Attributes:
        bytes: of the log that are to be read, about.
    """

    def __init__(
        self,
        log: JoinedLog,
        selection: Selection,
        start: int | None = None,
        end: int | None = None,
    ) -> None:
        self._archive = log.archive
        high = log.end if end is None else end
        self._parts: list[SelectedArchive | SelectedLog] = []
        if (start or 0) < log.border and log.archive.start < log.border:
            self._parts.append(log.archive.select(selection, start, min(high, log.border)))
        if high > log.border and log.live.files:
            self._parts.append(SelectedLog(log.live, selection, start, end))
        self.bytes = sum(part.bytes for part in self._parts)

    def splits(self, split_size: int = SPLIT_SIZE, row_max: int | None = None) -> list[Split]:
        """Cut what is to be read, in log order; arguments as those of `SelectedLog.splits`."""
        found = [split for part in self._parts for split in part.splits(split_size, row_max)]
        # retention may delete a file of the store before it is read
        return [self._archive.behind(split) for split in found]

    def queue_counts(self) -> dict[QueueKey, int]:
        """How many messages each queue has in the selection, as far as it is known."""
        found: dict[QueueKey, int] = {}
        for part in self._parts:
            for key, count in part.queue_counts().items():
                found[key] = found.get(key, 0) + count
        return found

    def end_of_rows(self, count: int) -> tuple[int | None, int] | None:
        """Where so many messages end; as `SelectedLog.end_of_rows`."""
        rows = 0
        for part in self._parts:
            told = part.end_of_rows(count - rows)
            if told is None:
                return None
            if told[0] is not None:
                return told[0], rows + told[1]
            rows += told[1]
        return None, rows
