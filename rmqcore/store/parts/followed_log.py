"""`FollowedLog`: what replication needs of a store, on both sides, and nobody else.

The log as bytes at offsets, which a master sends and a slave appends; and what goes with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rmqcore.errors import CorruptRecordError, StoreNotWritableError
from rmqcore.native.format._message_ext import status_text
from rmqcore.native.format._next_record import ScanStatus, find_head, next_record
from rmqcore.native.log._tail import END_OF_FILE

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from typing_extensions import Buffer

    from rmqcore.files.commit_log_writer import CommitLogWriter
    from rmqcore.files.store_mark import StoreMark
    from rmqcore.services.arrival import ArrivalListener, MessageArrival
    from rmqcore.services.flush import GroupCommitService
    from rmqcore.services.reput import ReputMessageService
    from rmqcore.store.parts.confirmation import Confirmation
    from rmqcore.store.parts.handle import Handle
    from rmqcore.store.parts.health import Health
    from rmqcore.store.parts.reading import Reading
    from rmqcore.store.parts.settings import Settings
    from rmqcore.store.parts.slave_waits import SlaveWaits
    from rmqcore.store.parts.topics import Topics

#: Bytes of a log's end in which its last record is looked for first.
_TELLING: Final = 4096


class FollowedLog:
    """Bytes of the log: of any store to read, of one whose role is SLAVE to append.

    - A master's bytes are appended as they are, in the order of its log, without a hole.
    - Whole records are checked before anybody sees them, and dispatched like any other; a part of
      a record waits for the rest, and is dropped when the store is closed.
    - The end of a file is appended when the next file is there: without that, an opening ends the
      log in front of the end-of-file record, and what a promoted slave puts may take its place.

    Args:
        handle: says whether the store is open.
        settings: say whether readers see only what is on the disk.
        writer: of the log.
        mark: has the end that was compared with the other side's.
        reput: dispatches what comes.
        group_commit: flushes it.
        health: says why nothing is appended.
        reading: tells how far the log goes for readers.
        confirmation: lets puts wait for slaves.
        arrival: tells what has come.
        topics: follow what the master has deleted.

    Threads: one appends.
    Source: RocketMQ store/DefaultMessageStore.java, appendToCommitLog.
    Differs: RocketMQ appends whatever comes.
    """

    def __init__(
        self,
        handle: Handle,
        settings: Settings,
        writer: CommitLogWriter,
        mark: StoreMark,
        reput: ReputMessageService,
        group_commit: GroupCommitService,
        health: Health,
        reading: Reading,
        confirmation: Confirmation,
        arrival: MessageArrival,
        topics: Topics,
    ) -> None:
        self._handle = handle
        self._settings = settings
        self._writer = writer
        self._tail = writer.tail
        self._log = writer.log
        self._mark = mark
        self._reput = reput
        self._group_commit = group_commit
        self._health = health
        self._reading = reading
        self._confirmation = confirmation
        self._arrival = arrival
        self._topics = topics

    @property
    def appended_offset(self) -> int:
        """Physical offset behind the last byte appended; 0 for an empty log."""
        return self._tail.appended_offset

    @property
    def log_file_size(self) -> int:
        """Bytes of a log file."""
        return self._log.queue.file_size

    def has_room(self, size: int) -> bool:
        """Whether this many bytes can be appended without beginning another log file."""
        written = self._tail.appended_offset - self._writer.attached_offset
        return 0 < size < self._log.queue.file_size - written and bool(self._log.queue.files)

    def append_data(self, data: Buffer, phy_offset: int) -> None:
        """Append bytes of the master's log; an empty log begins with them.

        Args:
            data: as they lie in the master's log; records may be cut anywhere.
            phy_offset: where; the end of this log, or a multiple of the file size in an empty one.

        Raises:
            MessageIllegalError: they do not follow this log's end; nothing was written.
            CorruptRecordError: they are no records of this place; what lies before them in
                ``data``, up to the end of a log file, may have been appended, they were not.
            StoreNotWritableError: the store is no slave's, or takes nothing at this moment.
            DiskFullError: no room for the next log file; a later call tries again.
        """
        self._handle.check_open()
        begins = phy_offset > self.appended_offset == 0 or not self._log.queue.files
        if begins and self._tail.follows:
            self._check_beginning(data, phy_offset)
            self._reput.begin_at(phy_offset)
            self._writer.begin(phy_offset)
        with memoryview(data).cast("B") as rest:
            at = 0
            while at < len(rest):
                file_at = self._writer.attached_offset
                room = file_at + self._log.queue.file_size - phy_offset - at
                # the last byte of a file, which makes its end-of-file record whole, comes by itself
                piece = rest[at : at + max(1, room - 1)]
                if room == 1 and self._goes_on_at(phy_offset + at):
                    self._writer.make_next(file_at)
                answer = self._tail.append_data(piece, phy_offset + at)
                if answer is True:
                    at += len(piece)
                    if room == 1:
                        self._writer.roll(file_at)
                elif answer == END_OF_FILE:
                    self._writer.roll(file_at)
                else:
                    self._handle.check_open()
                    reason = (
                        self._health.why_not_appended() or "the store is being opened or closed"
                    )
                    raise StoreNotWritableError(reason)
        if self._settings.policy.waits_for_disk:
            # so that readers see it
            self._group_commit.flush_soon()

    def _goes_on_at(self, phy_offset: int) -> bool:
        return self._tail.follows and self.appended_offset == phy_offset

    def _check_beginning(self, data: Buffer, phy_offset: int) -> None:
        """Refuse first bytes with which no log begins: they decide where this log begins."""
        self._writer.check_beginning(phy_offset)
        file_size = self._log.queue.file_size
        with memoryview(data).cast("B") as all_of_it:
            status, _, _ = next_record(
                all_of_it,
                0,
                min(len(all_of_it), file_size),
                base_offset=phy_offset,
                file_end=phy_offset + file_size,
                verify_crc=True,
            )
        if status < 0 or status is ScanStatus.EMPTY:
            raise CorruptRecordError("the master's data", phy_offset, status_text(status))

    def drop_partial(self) -> int:
        """Take back a part of a record at the end; the offset behind the last whole one."""
        self._tail.drop_partial()
        return self._tail.appended_offset

    # ---- what is compared with the other side's

    @property
    def unsure_offset(self) -> int:
        """From here on a crash may have left other bytes than were appended.

        Recovery drops what is no record; a lost page of properties or of a topic makes a record
        that only the other side can tell from the right one, as no CRC covers them. It stays unsure
        until it was compared, however often the store is closed and opened meanwhile.
        """
        unsure = self._mark.unsure_from
        return self._log.max_offset if unsure < 0 else unsure

    def note_compared(self) -> None:
        """Note that all of the log was compared with the other side's, and is the same.

        Raises:
            OSError: that could not be written; it is compared again after the next opening.
        """
        self._mark.unsure_from = -1
        self._mark.store()

    def telling_end(self, size: int) -> int:
        """Where this many bytes of the log's end begin; more, where no record begins in these.

        The end of a large body, and zeros at the end of a file, are any log's; a record's head says
        when it was stored, and where.

        Args:
            size: bytes; above 0.
        """
        return self._telling(self.appended_offset, size)

    def _telling(self, end: int, size: int) -> int:
        asked, least = end - size, self._last_file(end)
        while (start := end - size) > least:
            found = self.bytes_at(start, size)
            if found and find_head(found, 0, len(found), base_offset=start) >= 0:
                return start
            size *= 2
        return min(asked, least)

    def _last_file(self, end: int) -> int:
        """Where the file begins that the last byte lies in, with a record."""
        return max(self._log.min_offset, end - 1 - (end - 1) % self._log.queue.file_size)

    def last_record(self) -> tuple[int, bytes] | None:
        """Where the last record begins that can be read, and its bytes; None in an empty log."""
        end = self.max_phy_offset
        if end <= self._log.min_offset:
            return None
        start = max(self._last_file(end), self._telling(end, _TELLING))
        found = self.bytes_at(start, end - start) or memoryview(b"")
        at = start + max(0, find_head(found, 0, len(found), base_offset=start))
        record = at, 0
        while at < end and (head := self._log.record_head(at)) is not None:
            record = at, head[0]
            at += head[0]
        return record[0], bytes(self.bytes_at(*record) or b"")

    def record_begin(self, phy_offset: int) -> int:
        """Where the record begins that holds a byte; the end of the log for one behind it."""
        file_size = self._log.queue.file_size
        at = max(self._log.min_offset, phy_offset - phy_offset % file_size)
        while (head := self._log.record_head(at)) is not None and at + head[0] <= phy_offset:
            at += head[0]
        return at

    # ---- what a master sends

    def bytes_at(self, phy_offset: int, size: int) -> memoryview | None:
        """Bytes of the log as they are, at most ``size``, of one file; None: there are none.

        Args:
            phy_offset: where to begin.
            size: bytes at most; fewer where the file or the log ends.

        Returns:
            a view of the file's pages, which holds them mapped.
        """
        view = self._log.view(phy_offset, size)
        if view is None:
            return None
        at = phy_offset - view.base_offset
        return memoryview(view.buffer)[at : min(view.end, at + size)]

    def store_time_at(self, phy_offset: int) -> int | None:
        """Store time of the record at an offset, Unix milliseconds; None when none begins there."""
        head = self._log.record_head(phy_offset)
        return None if head is None else head[1]

    def wait_for_slaves(self, slaves: SlaveWaits | None) -> None:
        """Let puts wait for slaves from now on; see `Confirmation.wait_for_slaves`."""
        self._confirmation.wait_for_slaves(slaves)

    def on_arrival(self, listener: ArrivalListener) -> Callable[[], None]:
        """Call a function whenever messages have come; see `MessageArrival.listen`."""
        return self._arrival.listen(listener)

    # ---- how far it goes

    @property
    def min_phy_offset(self) -> int:
        """Physical offset of the first byte of the log."""
        self._handle.check_open()
        return self._log.min_offset

    @property
    def max_phy_offset(self) -> int:
        """Physical offset behind the last byte of the log that can be read."""
        return self._reading.max_phy_offset

    # ---- what a master has deleted

    def why_not_appended(self) -> str | None:
        """Why a master's bytes are refused at this moment; None when they are not."""
        return self._health.why_not_appended()

    def has_messages(self, topic: str, behind: int = 0) -> bool:
        """Tell whether a topic has messages that can be read, behind a physical offset.

        Args:
            topic: by name; an unknown one has none.
            behind: physical offset; a topic whose messages all begin before it has none.
        """
        return self._topics.has_messages(topic, behind)

    def deletions(self) -> dict[str, int]:
        """Topics that were deleted: physical offset below which their records are."""
        return self._topics.deletions()

    def deleted_below(self, topic: str) -> int:
        """What `deletions` says of one topic; 0 for one that was not."""
        return self._topics.deleted_below(topic)

    def on_begin_anew(self, call: Callable[[str, Collection[int]], None]) -> None:
        """Call a function, on any thread, when what was consumed of a topic's queues is forgotten.

        The master has deleted the topic: their numbers begin again with 0.

        Args:
            call: takes topic and queue ids; the offsets are gone in memory, and not on the disk. An
                OSError of it is that of writing them.
        """
        self._topics.on_begin_anew = call

    def follow_deletion(self, topic: str, phy_offset: int) -> bool:
        """Delete of a topic what its master has deleted; see `Topics.follow_deletion`."""
        return self._topics.follow_deletion(topic, phy_offset)
