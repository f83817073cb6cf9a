"""The log of an archive: planned from its manifest alone, without a look at a log file."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from rmqcore.errors import CorruptStoreError, RecordsGoneError
from rmqcore.files.deleted_topics import DELETED_TOPICS_NAME, DeletedTopics
from rmqcore.files.log_walker import GoodRecord, good_record_at
from rmqcore.files.objects import open_objects
from rmqcore.files.objects.errors import ObjectMissingError
from rmqcore.files.store_dir import StoreDir
from rmqcore.scan.manifest import (
    ArchivedFile,
    Manifest,
    Page,
    files_of,
    load_manifest,
    read_table,
    require_manifest,
)
from rmqcore.scan.object_file import LOG_NAME, ObjectFile
from rmqcore.scan.plan import SPLIT_SIZE
from rmqcore.scan.selection import Selection
from rmqcore.scan.shown_topics import ShownTopics
from rmqcore.scan.split import Split
from rmqcore.scan.unit_files import QueueKey

#: An archive keeps these tables of a store.
TABLES = ("topics.json", DELETED_TOPICS_NAME, "subscriptionGroup.json")


class ArchiveLog:
    """The archived log files of a store, at a moment.

    Attributes:
        url: of the archive.
        manifest: what it has.
        start, end: physical offsets between which it has the log.
        file_size: bytes of every file.

    Args:
        url: of the archive, or its directory.
        storage_options: as for `open_objects`.

    Raises:
        ArchiveError: no archive is there.
        ObjectStoreError: it cannot be read.
    """

    def __init__(self, url: str, storage_options: Mapping[str, str] | None = None) -> None:
        self._options = tuple(sorted((storage_options or {}).items()))
        self._objects = open_objects(url, dict(self._options))
        self.url = self._objects.url
        self.manifest: Manifest = require_manifest(self._objects)
        self.start = self.manifest.start
        self.end = self.manifest.end
        self.file_size = self.manifest.file_size
        self._files: dict[tuple[Page, ...], list[ArchivedFile]] = {}
        self._deleted: DeletedTopics | None = None

    def is_current(self) -> bool:
        """True when nothing has been archived since this was made."""
        return load_manifest(self._objects).generation == self.manifest.generation

    @property
    def place(self) -> str:
        """Its URL, for errors."""
        return self.url

    @property
    def known_end(self) -> int:
        """Up to where manifests know every record: the end."""
        return self.end

    @property
    def trusted_end(self) -> int:
        """The same: an archive is not written while it is read."""
        return self.end

    @property
    def queue_count(self) -> int:
        """Consume queues: none, as manifests know what is in them."""
        return 0

    def files(
        self,
        low: int = 0,
        high: int | None = None,
        begin_ms: int | None = None,
        end_ms: int | None = None,
        topics: frozenset[str] | None = None,
    ) -> list[ArchivedFile]:
        """Its files that may have records between offsets and times, in log order.

        Args:
            low: physical offset.
            high: the same, not included; None for the end.
            begin_ms: store time; None for any.
            end_ms: the same, included.
            topics: leave out pages without messages of these; None for all.
        """
        stop = self.end if high is None else high
        pages = tuple(
            page
            for page in self.manifest.pages
            if _overlaps(page, low, stop)
            and _in_time(page, begin_ms, end_ms)
            and (topics is None or page.topics is None or not topics.isdisjoint(page.topics))
        )
        found = self._files.get(pages)
        if found is None:
            found = self._files[pages] = list(files_of(self._objects, self.manifest, pages))
        first = bisect_right(found, low, key=lambda one: one.end)
        behind = bisect_left(found, stop, key=lambda one: one.start)
        return [file for file in found[first:behind] if _in_time(file, begin_ms, end_ms)]

    def split(self, file: ArchivedFile, start: int, end: int) -> Split:
        """The split between two physical offsets of a file, where records begin.

        Args:
            file: the archived log file.
            start: physical offset where a record begins.
            end: physical offset behind the last record.
        """
        return Split(
            self.url,
            f"{self.url}/{LOG_NAME}",
            start,
            end,
            file.start,
            file.size,
            is_archived=True,
            tag=file.tag,
            storage_options=self._options,
        )

    def behind(self, split: Split) -> Split:
        """A split of the store, that is read here where its file has been deleted.

        The file may be archived, and deleted, after this was made.
        """
        if split.is_archived:
            return split
        return replace(split, archive=self.url, storage_options=self._options)

    def tail_at(self, phy_offset: int) -> int | None:
        """None: an archive's files do not change, see `LogPlan.tail_at`."""

    def file_start(self, phy_offset: int) -> int:
        """Where the file that holds a physical offset begins."""
        return phy_offset - (phy_offset - self.start) % self.file_size

    def cut_behind(self, start: int, split_size: int, high: int) -> int:
        """Where a split that begins at ``start`` and has about ``split_size`` bytes ends.

        Args:
            start: where a record begins.
            split_size: bytes.
            high: where the last split ends.
        """
        file = self.file_at(start)
        if file is None:
            return high
        cuts = (cut for cut in file.cuts if cut >= start + split_size)
        return min(next(cuts, file.end), high)

    # ---- records

    def file_at(self, phy_offset: int) -> ArchivedFile | None:
        """The file that has a physical offset; None for none."""
        found = self.files(phy_offset, phy_offset + 1)
        return found[0] if found else None

    def good_record_at(self, phy_offset: int) -> GoodRecord | None:
        """Where the good record at a physical offset ends, and its time; None for none."""
        file = self.opened(phy_offset)
        if file is None:
            return None
        try:
            return good_record_at(file, phy_offset - file.file_from_offset)
        except CorruptStoreError:
            return None
        finally:
            file.close()

    def record_at(self, phy_offset: int) -> bytes | None:
        """The good record at a physical offset, None for none."""
        found = self.good_record_at(phy_offset)
        file = None if found is None else self.opened(phy_offset)
        if found is None or file is None:
            return None
        try:
            return file.read_bytes(phy_offset - file.file_from_offset, found.size)
        finally:
            file.close()

    def opened(self, phy_offset: int) -> ObjectFile | None:
        """The file that has a physical offset, open; None for none."""
        file = self.file_at(phy_offset)
        if file is None:
            return None
        return ObjectFile(self.url, dict(self._options), file.start, file.size, tag=file.tag)

    def queues(self) -> dict[str, set[int]]:
        """Topics, and the queues of each, that have messages anywhere; hidden ones, too."""
        found: dict[str, set[int]] = {}
        for file in self.files():
            for topic, rows in (file.topics or {}).items():
                found.setdefault(topic, set()).update(row[0] for row in rows)
        return found

    def last_of_queue(self, topic: str, queue_id: int) -> GoodRecord | None:
        """The file with a queue's last message, and the last time in it; None for none.

        See `LogPlan.last_of_queue` for the arguments.
        """
        for file in reversed(self.files()):
            if any(row[0] == queue_id for row in (file.topics or {}).get(topic, ())):
                return GoodRecord(file.start, file.end, file.last_ms)
        return None

    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int] | None:
        """Queue offsets of a queue's first message here, and behind its last; None for none.

        Args:
            topic: topic of the queue.
            queue_id: number of the queue in its topic.
        """
        rows = [
            row
            for file in self.files()
            for row in (file.topics or {}).get(topic, ())
            if row[0] == queue_id
        ]
        return (min(row[3] for row in rows), max(row[4] for row in rows) + 1) if rows else None

    # ---- topics

    @property
    def deleted(self) -> DeletedTopics:
        """The topics that had been deleted when the last file was archived."""
        if self._deleted is None:
            with TemporaryDirectory(prefix="rmqcore-tables-") as place:
                write_tables(self._tables([DELETED_TOPICS_NAME]), Path(place))
                self._deleted = DeletedTopics(StoreDir(place)).load()
        return self._deleted

    def _tables(self, names: Sequence[str] = TABLES) -> Iterator[tuple[str, bytes]]:
        for name, sha256 in self.manifest.tables.items():
            if name in names:
                try:
                    yield name, read_table(self._objects, sha256)
                except ObjectMissingError as error:
                    raise RecordsGoneError(error.url, 0) from None

    def tables(self) -> list[tuple[str, bytes]]:
        """(name below ``config/``, bytes) of the store's tables that are kept.

        Raises:
            ArchiveError: one is not the one that was archived.
        """
        return list(self._tables())

    def shown_topics(self, named: Iterable[str], *, services: bool) -> ShownTopics:
        """What is shown of each topic; see `LogPlan.shown_topics`."""
        return ShownTopics.of(self.deleted, named, services=services, is_written=False)

    # ---- selections

    def select(
        self, selection: Selection, start: int | None = None, end: int | None = None
    ) -> SelectedArchive:
        """What of it a selection needs.

        Args:
            selection: which records are wanted.
            start: physical offset of the first record; None: where the log begins.
            end: physical offset behind the last record; None: where the log ends.
        """
        return SelectedArchive(self, selection, start, end)


def write_tables(tables: Iterable[tuple[str, bytes]], root: Path) -> None:
    """Write a store's tables below its directory.

    Args:
        tables: (file name below ``config/``, content) of each; one that is there is replaced.
        root: of the store; made when it is missing.

    Raises:
        OSError: the system refused.
    """
    config = StoreDir(root).config
    config.mkdir(parents=True, exist_ok=True)
    for name, data in tables:
        (config / name).write_bytes(data)


def _overlaps(part: Page | ArchivedFile, low: int, high: int) -> bool:
    return part.end > low and part.start < high


def _in_time(part: Page | ArchivedFile, begin_ms: int | None, end_ms: int | None) -> bool:
    return (begin_ms is None or part.last_ms >= begin_ms) and (
        end_ms is None or part.first_ms <= end_ms
    )


class SelectedArchive:
    """What of an archive a selection needs; as `SelectedLog`.

    Attributes:
        low, high: physical offsets between which the selection lies.
        files: that may have rows of it.
        bytes: of the log that are to be read, about.

    Args:
        log: the archive.
        selection: what is wanted.
        start, end: physical offsets where records begin.
    """

    def __init__(
        self,
        log: ArchiveLog,
        selection: Selection,
        start: int | None = None,
        end: int | None = None,
    ) -> None:
        self._log = log
        self._selection = selection
        self.low = max(log.start, start or 0)
        self.high = max(self.low, log.end if end is None else min(end, log.end))
        self._first = max(self.low, selection.get("begin_phy_offset", self.low))
        self._stop = min(self.high, selection.get("end_phy_offset", self.high))
        begin_ms, end_ms = selection.get("begin_ms"), selection.get("end_ms")
        topics = selection.get("topics")
        self._topics = None if topics is None else frozenset(topics)
        pages_of = None if selection.get("uncommitted") else self._topics
        found = log.files(self._first, self._stop, begin_ms, end_ms, pages_of)
        ids = selection.get("queue_ids")
        self._queue_ids = None if ids is None else frozenset(ids)
        self.files = [file for file in found if self._may_have_rows(file)]
        self.bytes = sum(
            min(file.end, self.high) - max(file.start, self.low) for file in self.files
        )

    def _may_have_rows(self, file: ArchivedFile) -> bool:
        if file.topics is None or self._selection.get("uncommitted"):
            # what is no message is in no queue
            return True
        return any(True for _ in self._rows(file))

    def _rows(self, file: ArchivedFile) -> Iterator[tuple[QueueKey, int]]:
        """(queue, messages) of a file's queues that the selection wants; offsets cut them."""
        bounds = self._selection.get("queue_offsets", {})
        for topic, rows in (file.topics or {}).items():
            if self._topics is not None and topic not in self._topics:
                continue
            for queue_id, count, _, first, last in rows:
                if self._queue_ids is not None and queue_id not in self._queue_ids:
                    continue
                low, high = bounds.get(topic, {}).get(queue_id, (first, last + 1))
                wanted = min(high, last + 1) - max(low, first)
                if wanted > 0:
                    yield (topic, queue_id), min(count, wanted)

    def splits(self, split_size: int = SPLIT_SIZE, row_max: int | None = None) -> list[Split]:
        """Cut what is to be read, in log order; a split lies in one file.

        Args:
            split_size: bytes that are read for one.
            row_max: messages of one, about, as manifests count them; None for any number.
        """
        return [split for file in self.files for split in self._of_file(file, split_size, row_max)]

    def _of_file(self, file: ArchivedFile, split_size: int, row_max: int | None) -> Iterator[Split]:
        begins = [file.start, *file.cuts, file.end]
        # what is asked for need not be where a record begins
        low = max(self.low, begins[bisect_right(begins, max(file.start, self._first)) - 1])
        high = min(self.high, begins[bisect_left(begins, min(file.end, self._stop))])
        if row_max is not None and file.rows > row_max:
            split_size = min(split_size, max(1, file.size * row_max // file.rows))
        start = low
        for cut in (*(one for one in file.cuts if low < one < high), high):
            if cut - start >= split_size or cut == high:
                yield self._log.split(file, start, cut)
                start = cut

    def queue_counts(self) -> dict[QueueKey, int]:
        """How many messages each queue has in the files of the selection, as manifests know."""
        found: dict[QueueKey, int] = {}
        for file in self.files:
            for key, count in self._rows(file):
                found[key] = found.get(key, 0) + count
        return found

    def end_of_rows(self, count: int) -> tuple[int | None, int] | None:
        """Where so many messages end: manifests do not know it, but that there are not so many."""
        known = all(file.topics is not None for file in self.files)
        if known and (total := sum(self.queue_counts().values())) < count:
            return None, total
        return None
