"""The order of recovery's steps: first the end of the log, then consume queues and index.

The log is walked record by record from a file that is known to be good. Three endings are told
apart: zeros, where nothing was written yet; a torn tail, which was never acknowledged as on disk
and is cut off; and damage in front of records that are good, which is never cut off silently.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from rmqcore.config import OnCorruption
from rmqcore.errors import CorruptConsumeQueueError, CorruptStoreError, DiskFullError
from rmqcore.files.deleted_topics import goes_on_across
from rmqcore.files.kept_dirty import sync_or_keep_dirty
from rmqcore.files.unit_file import UNIT_HEAD
from rmqcore.recovery.index_tags import index_has_tags
from rmqcore.recovery.judge import BLANK_IN_FRONT, SAVED_BY_REPAIR, Judge
from rmqcore.recovery.marked_queue_ends import MarkedQueueEnds
from rmqcore.recovery.put_off import can_be_dispatched
from rmqcore.recovery.queue_check import QueueCheck
from rmqcore.recovery.report import RecoveryProgress, RecoveryReport
from rmqcore.recovery.suspect_index_files import SuspectIndexFiles
from rmqcore.recovery.walk import Walk
from rmqcore.recovery.walk_start import WalkStart
from rmqcore.services.flush_policy import FlushPolicy
from rmqcore.world import REAL, World

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rmqcore.config import StoreConfig
    from rmqcore.derived.consume_queue_store import ConsumeQueueStore
    from rmqcore.derived.index_service import IndexService
    from rmqcore.files.batch_consume_queue import StoredQueue
    from rmqcore.files.commit_log import CommitLog
    from rmqcore.files.commit_log_writer import CommitLogWriter
    from rmqcore.files.deleted_topics import DeletedTopics
    from rmqcore.files.mapped_file import MappedFile
    from rmqcore.files.store_checkpoint import StoreCheckpoint
    from rmqcore.files.store_mark import QueueKey, StoreMark
    from rmqcore.native.derive._dispatch import DispatchBatch

_log = logging.getLogger("rmqcore")
#: (files of the log from the cut on, physical offset, bytes) -> where they are kept, in words
KeepCut: TypeAlias = Callable[["Iterable[MappedFile]", int, int], str]
#: What was derived is flushed after each such time of walking.
SAVE_EVERY_S = 1.0


class DerivedAnew:
    """Notes from which file of the log on everything is being derived, before it is changed.

    Whatever interrupts that, the next opening goes on from there. It knows nothing of the recovery,
    whose working arrays are so given back as soon as it has ended.

    Args:
        log: the log.
        mark: where it is noted.
        queues: what is derived.

    Attributes:
        walked_first: number of the file of the log that the walk began with.
    """

    def __init__(self, log: CommitLog, mark: StoreMark, queues: ConsumeQueueStore) -> None:
        self.walked_first = 0
        self._log = log
        self._mark = mark
        self._queues = queues
        #: what an opening that was interrupted has found, see `StoreMark`
        self._interrupted, self._queues_from_before = mark.derive_from >= 0, mark.queues_from_before

    def begin_at(self, number: int) -> None:
        """Note it, and bring the note to the disk.

        Args:
            number: of the file.
        """
        offset = self._log.queue.files[number].file_from_offset
        self._mark.derive_again_from(offset, self._queues.keys)

    def may_have_filled(self, key: QueueKey) -> bool:
        """Whether an opening that was interrupted may have filled a queue that has files."""
        before = self._queues_from_before
        return self._interrupted and (before is None or key not in before)


class Recovery:
    """One recovery of one store that is open for writing.

    - Interrupted, it begins again where it had brought everything to the disk: at the end of a log
      file, after each second of an unclean start, log, queues, index and checkpoint are written
      through.
    - Before it drops or writes anew what lies in front of the part of the log that it would walk
      anyway, the mark says from where on the walk for that has to begin.

    Args:
        writer: of the log; its end is set, nothing is put.
        queues, index, checkpoint, mark, deleted: the parts of the store; index None when there is
            none.
        config: the store's settings.
        batches: the kernel's working arrays, twice.
        clean_shutdown: False when the abort marker was found.
        progress: called now and then with a `RecoveryProgress`.
        keep_cut: copies what is about to be cut off the log, and says where to; see `KeptCuts`.
        begins_anew: see `QueueCheck`.
        on_cut: called before the log is made shorter than it was.
        world: whose clock says when progress is saved, and how long it took.

    Source: RocketMQ store/CommitLog.java, recoverNormally and recoverAbnormally.
    """

    walk = Walk
    queue_check = QueueCheck
    derived_anew = DerivedAnew

    def __init__(
        self,
        writer: CommitLogWriter,
        queues: ConsumeQueueStore,
        index: IndexService | None,
        checkpoint: StoreCheckpoint,
        mark: StoreMark,
        deleted: DeletedTopics,
        config: StoreConfig,
        batches: tuple[DispatchBatch, DispatchBatch],
        *,
        clean_shutdown: bool,
        progress: Callable[[RecoveryProgress], None] | None = None,
        keep_cut: KeepCut | None = None,
        begins_anew: Callable[[str, int], object] = lambda *_: None,
        on_cut: Callable[[], object] = bool,
        world: World = REAL,
    ) -> None:
        self._log = writer.log
        self._writer = writer
        self._queues = queues
        self._index = index
        self._checkpoint = checkpoint
        self._mark = mark
        self._deleted = deleted
        self._config = config
        self._batches = batches
        self._clean_shutdown = clean_shutdown
        self._progress = progress
        self._keep_cut, self._on_cut = keep_cut, on_cut
        self._world = world
        self._start = WalkStart(writer.log, checkpoint, mark, clean_shutdown=clean_shutdown)
        self.report = RecoveryReport(clean_shutdown=clean_shutdown)
        self.no_room: DiskFullError | None = None
        #: physical offset below which the whole log is known to be on the disk
        self._on_disk = 0
        self._saved_at = 0.0
        self._derived_anew = derived_anew = self.derived_anew(writer.log, mark, queues)
        self._left: SuspectIndexFiles | None = None
        self._queue_check = self.queue_check(
            queues,
            writer.log,
            deleted,
            lambda: derived_anew.begin_at(0),
            lambda: derived_anew.begin_at(derived_anew.walked_first),
            begins_anew,
            derived_anew.may_have_filled,
            left_by_crash=not clean_shutdown,
        )
        #: True when every page that was written is there: only the machine's power takes pages
        #: away
        self._all_there = clean_shutdown or mark.is_of_this_machine

    def run(self) -> RecoveryReport:
        """Recover.

        Raises:
            CorruptStoreError: the log is damaged in front of good records, or (after a clean
                shutdown) lacks records that the consume queues know. Nothing has been changed in
                the log. ``on_corruption`` says what else to do.
        """
        began = self._world.monotonic_s()
        self._load_queues()
        self._load_index()
        walk = self._new_walk(self._index)
        try:
            if self._left is not None:
                self._left.drop_behind_hole(walk.keys_between)
            if self._log.queue.files:
                self._walk_log(walk, self._marked_queue_ends())
            else:
                self._start_empty()
            self._note_machine()
        finally:
            walk.end()
            if self._left is not None:
                self._left.close()
        self.report.elapsed_s = self._world.monotonic_s() - began
        return self.report

    def _new_walk(self, index: IndexService | None) -> Walk:
        """The walk over the log, with its judge."""
        self._judge = Judge(
            self._log.queue,
            self._config.on_corruption,
            self.report,
            clean_shutdown=self._clean_shutdown,
            no_page_lost=self._all_there,
            flushed_until_ms=self._checkpoint.physic_msg_timestamp_ms,
            known_end=self._queues.end_phy_offset(),
        )
        return self.walk(
            self._log,
            self._judge,
            self._queue_check,
            index,
            self._left,
            self._batches,
            self._config,
            self.report,
            self._torn_since_ms(),
        )

    def _torn_since_ms(self) -> int | None:
        """Since when records may lack sectors that no CRC covers; None: none does.

        Under SYNC_FLUSH all that was answered for is on the disk, whatever its properties hold.
        """
        if self._all_there or FlushPolicy.of(self._config).waits_for_disk:
            return None
        return self._checkpoint.physic_msg_timestamp_ms

    # ---- derived files

    def _load_queues(self) -> None:
        self._queues.load(self._report_queues)
        if not self._clean_shutdown:
            self._queues.doubt_names()
        self.report.findings += [str(error) for error in self._queues.damaged]
        for topic in sorted({queue.topic for queue in self._queues if self._was_put_to(queue)}):
            self._undo_deletion(topic)
        for queue in self._queues:
            # a deletion that was interrupted goes on
            if queue.end_phy_offset <= self._deleted.since(queue.topic) > 0:
                self._queues.drop(queue.topic, queue.queue_id)

    def _was_put_to(self, queue: StoredQueue) -> bool:
        """True for a queue whose numbers go on across its topic's deletion.

        Only a kill between the first note of a deletion and the end of the topic's old numbers
        leaves that, when something was put meanwhile.
        """
        since = self._deleted.since(queue.topic)
        return since > 0 and goes_on_across(queue, since, self._log)

    def _undo_deletion(self, topic: str) -> None:
        """Keep a topic whose deletion was interrupted before it dropped anything."""
        mine = self._queues.of_topic(topic)
        firsts = [unit[0] for queue in mine if (unit := queue.unit_at(queue.min_offset))]
        self._deleted.delete({topic: min(firsts)})
        self.report.findings.append(
            f"topic {topic}: its deletion was interrupted before anything was dropped, and did not "
            "take place"
        )

    def _load_index(self) -> None:
        if self._index is None:
            return
        self.report.findings += [str(error) for error in self._index.load()]
        if not self._clean_shutdown:
            self._index.doubt_names()
        trusted = None if self._clean_shutdown else self._checkpoint.index_msg_timestamp_ms
        self._left = SuspectIndexFiles(self._index, trusted)
        tags = index_has_tags(self._index, self._log.message_at)
        for batch in self._batches:
            batch.index_tags = tags

    def _marked_queue_ends(self) -> MarkedQueueEnds:
        return MarkedQueueEnds(
            self._mark,
            self._deleted,
            self._log,
            self._queues,
            clean_shutdown=self._clean_shutdown,
        )

    def _report_queues(self, done: int, total: int) -> None:
        if self._progress is not None and (done == total or done % 256 == 0):
            self._progress(RecoveryProgress("queues", done, total))

    def _start_empty(self) -> None:
        if self._queues.keys():
            self.report.findings.append("the log is empty, so every consume queue was dropped")
            self._queues.clear()
        self._checkpoint.lower(0)
        if self._left is not None:
            self._left.drop_from(0)

    # ---- the walk

    def _doubt_begins(self, walk: Walk, ends: MarkedQueueEnds) -> None:
        """Have queues derived anew of which the log has messages in front of their first file."""
        suspects = ends.lacking_first_files()
        for key in sorted(self._with_messages_before(walk, suspects)):
            files = suspects[key].queue
            reason = f"a file is missing before {files.files[0].path.name}"
            error = CorruptConsumeQueueError(files.directory, -1, reason)
            self._queues.doubt(suspects[key], error)
            self.report.findings.append(str(error))

    def _with_messages_before(
        self, walk: Walk, queues: dict[QueueKey, StoredQueue]
    ) -> set[QueueKey]:
        """The queues that have a record in the log in front of that of their first unit."""
        units = {key: queue.unit_at(queue.min_offset) for key, queue in queues.items()}
        firsts = {key: unit[0] for key, unit in units.items() if unit is not None}
        start, stop = self._log.min_offset, max(firsts.values(), default=0)
        found = set()
        for batch in walk.scan_range(start, stop):
            for stretch in batch.stretches():
                key = stretch.topic, stretch.queue_id
                if key in firsts and UNIT_HEAD.unpack_from(stretch.units)[0] < firsts[key]:
                    found.add(key)
            if self._progress is not None:
                done = batch.end_offset - start
                self._progress(RecoveryProgress("log", min(done, stop - start), stop - start))
        return found

    def _walk_log(self, walk: Walk, ends: MarkedQueueEnds) -> None:
        self._doubt_begins(walk, ends)
        start = self._start
        checked_from = start.checked_from()
        index_resumes_at = None if self._index is None else self._index.resume_offset
        usual = start.walked_from(checked_from, index_resumes_at, self._config.open_check_bytes)
        lacking = ends.lacking()
        first = 0
        if not self._queues.damaged:
            first = start.derived_from(ends.needed_from(lacking), usual)
        if first < usual or self._queues.damaged:
            self._derived_anew.begin_at(first)
        if self._mark.doubted_from >= 0:
            first = min(first, start.file_at(self._mark.doubted_from))
        anew = bool(lacking) or first < usual or self._mark.derive_from >= 0
        self._queues.drop_damaged()
        end = self._walk(walk, first, checked_from)
        _, emptied = self._judge_walk(walk, anew=anew)
        holes = frozenset(self._queue_check.holes)
        again = bool(holes or (first > 0 and ends.lacking().keys() - emptied))
        while again:
            self._refuse_full(walk)
            self._derived_anew.begin_at(0)
            self._queue_check.from_the_beginning()
            walk.wait()
            if self._left is not None and not self._clean_shutdown:
                self._left.finish()
            end = self._walk(walk, 0, checked_from)
            again, emptied = self._judge_walk(walk, anew=True)
        self.report.findings += [
            f"consume queue {topic}/{queue_id} lacked units and was derived again"
            for topic, queue_id in sorted((holes | lacking.keys()) - emptied)
        ]
        self.report.findings += self._queue_check.findings()
        self._tell_of_blanks()
        self.report.findings += [
            f"the log has no message of consume queue {topic}/{queue_id}; it goes on at its end"
            for topic, queue_id in ends.restore(end, emptied)
        ]
        self._refuse_lost_end(end, ends)
        self._cut(walk, end)

    def _refuse_full(self, walk: Walk) -> None:
        """Put nothing off of a walk that derives more than what a dispatch goes on with."""
        if walk.no_room is not None:
            raise walk.no_room

    def _judge_walk(self, walk: Walk, *, anew: bool) -> tuple[bool, set[QueueKey]]:
        """What a walk has shown: whether there are new holes; queues that were emptied.

        Args:
            walk: which.
            anew: whether queues are derived anew by it.

        Raises:
            DiskFullError: there is no room for them.
        """
        if anew:
            self._refuse_full(walk)
        again = self._queue_check.judge_begins()
        self._queue_check.cut_foreign()
        return again, self._queue_check.drop_emptied()

    def _refuse_lost_end(self, end: int, ends: MarkedQueueEnds) -> None:
        """Refuse a log that ends in front of records which queues know, and no crash has taken."""
        known = self._queues.end_phy_offset()
        raising = self._config.on_corruption is OnCorruption.RAISE
        if self._all_there and known > end and raising and not ends.closed_at(end):
            raise CorruptStoreError(
                self._log.queue.directory,
                end,
                f"the log ends here, but consume queues know records up to {known}; rmqcore doctor "
                "plan STORE says what a repair saves. Read the store as it is with "
                'mode="r", or open it with on_corruption="truncate" to go on without them',
            )

    def _tell_of_blanks(self) -> None:
        """Say where a blank stands in front of a whole record to which its queue leads."""
        for blank, phy_offset in self._judge.behind_blanks.items():
            message = self._log.message_at(phy_offset)
            queue = message and self._queues.find(message.topic, message.queue_id)
            unit = queue and message and queue.unit_at(message.queue_offset)
            if unit and unit[0] == phy_offset:
                path = self._log.queue.path_of(blank - blank % self._log.queue.file_size)
                finding = f"{path} at {blank}: {BLANK_IN_FRONT}; {SAVED_BY_REPAIR}"
                _log.warning("%s", finding)
                self.report.findings.append(finding)

    def _walk(self, walk: Walk, first: int, checked_from: int) -> int:
        """Walk the files from number ``first`` on; the physical offset where the log ends."""
        files = self._log.queue.files
        self._derived_anew.walked_first = first
        start = self._on_disk = files[first].file_from_offset
        last = files[max(first, self._start.last_written_file())]
        total = last.file_from_offset + last.size - start
        self._saved_at = self._world.monotonic_s()

        def walked(number: int) -> None:
            file = files[number]
            due = self._world.monotonic_s() - self._saved_at >= SAVE_EVERY_S
            unclean = not self._clean_shutdown and number >= checked_from
            if due and (unclean or self._mark.derive_from >= 0):
                self._save_progress(walk, number)
                self._saved_at = self._world.monotonic_s()
            if self._progress is not None:
                done = file.file_from_offset + file.size - start
                self._progress(RecoveryProgress("log", min(done, total), total))

        return walk.run(first, checked_from, walked)

    def _save_progress(self, walk: Walk, number: int) -> None:
        """Bring what was walked and derived to the disk, so that the next recovery begins here.

        Args:
            walk: the walk.
            number: of the last file of the log that was walked.
        """
        walk.wait()
        if walk.no_room is not None:
            return
        walked = self._log.queue.files[: number + 1]
        for file in walked:
            if file.file_from_offset >= self._on_disk:
                sync_or_keep_dirty(file)
        self._on_disk = walked[-1].file_from_offset + walked[-1].size
        self._queues.flush()
        checkpoint = self._checkpoint
        if self._left is not None:
            checkpoint.index_msg_timestamp_ms = max(
                checkpoint.index_msg_timestamp_ms, self._left.flush()
            )
        if walk.timestamp_ms > checkpoint.min_timestamp_ms:
            checkpoint.physic_msg_timestamp_ms = max(
                checkpoint.physic_msg_timestamp_ms, walk.timestamp_ms
            )
            checkpoint.logics_msg_timestamp_ms = max(
                checkpoint.logics_msg_timestamp_ms, walk.timestamp_ms
            )
            checkpoint.flush()
        if self._mark.derive_from >= 0:
            self._mark.derive_from = self._on_disk
            self._mark.store()

    # ---- afterwards

    def _cut(self, walk: Walk, end: int) -> None:
        walk.wait()
        self.report.end_offset = end
        if self.report.dropped_bytes or end < self._mark.log_end:
            self._on_cut()
        self._keep_what_is_cut(end)
        # what is put next is not older than what was lost, and nothing of it is on the disk
        self._checkpoint.lower(walk.timestamp_ms)
        self._writer.set_end(end, self._written_through(end))
        self.report.units_dropped = self._queues.fit(self._log.min_offset, end)
        if self.report.units_dropped or not self._clean_shutdown:
            self._drop_empty_queues()
        for start, stop in self._judge.passed_over:
            self.report.units_dropped += self._queues.blank_between(start, stop)
        if self._judge.passed_over:
            # the first ones may be fillers now
            self._queues.correct_min_offset(self._log.min_offset)
        deriving = max(self._mark.derive_from, self._mark.doubted_from) >= 0
        self._deleted.fit(self._log.min_offset, end, deriving=deriving)
        if self._index is not None and self._left is not None:
            self._cut_index(walk, self._index, self._left, end)
        if deriving and walk.no_room is None:
            self._queues.flush()
            self._mark.derive_from = self._mark.doubted_from = -1
        self._note_put_off(walk, end)

    def _note_put_off(self, walk: Walk, end: int) -> None:
        """Say up to where all is derived, and what has to be when the disk has room."""
        self.report.derived_to, self.no_room = end, walk.no_room
        if walk.no_room is not None:
            self.report.derived_to = start = min(end, walk.derived_to)
            rest = walk.scan_range(start, end)
            if self._judge.passed_over or not can_be_dispatched(rest, self._queues, self._deleted):
                raise walk.no_room
            finding = f"{walk.no_room}: the log is dispatched from {start} on when there is"
            _log.warning("%s", finding)
            self.report.findings.append(finding)

    def _keep_what_is_cut(self, end: int) -> None:
        """Copy what lies behind the log's new end, before a byte of it is zeroed."""
        size = self.report.dropped_bytes
        if self._keep_cut is None or size == 0:
            return
        files = self._log.queue.files[self._start.file_at(end) :]
        self.report.cut_kept = self._keep_cut(files, end, size)
        _log.warning("%s: %s", self._log.queue.directory, self.report.cut_kept)

    def _note_machine(self) -> None:
        """Note that the store is in order, on the machine as it runs now, and what is unsure.

        And where a log ends now that was longer, before anything is put there.
        """
        if self.report.end_offset < self._mark.log_end:
            ends = {(queue.topic, queue.queue_id): queue.max_offset for queue in self._queues}
            self._mark.shorten(self.report.end_offset, ends)
        self._mark.machine = self._mark.this_machine()
        self._mark.without_index = self._index is None
        if not self._clean_shutdown:
            start, known = self.report.start_offset, self._mark.unsure_from
            self._mark.unsure_from = start if known < 0 else min(start, known)
        try:
            self._mark.store()
        except OSError as error:
            # the mark then names another machine, so the next opening examines more
            _log.warning("the store's mark stays as it is: %s", error)

    def _drop_empty_queues(self) -> None:
        """Let go of queues none of whose messages survived: they were created just before."""
        for queue in list(self._queues):
            if queue.max_offset == 0:
                self._queues.drop(queue.topic, queue.queue_id)

    def _written_through(self, end: int) -> int:
        """Physical offset below which the log is on the disk.

        After a kill the end of the walked files may be in memory only, and a later record must not
        be acknowledged as on disk before them: the first flush writes them through. Where readers
        see only what is on the disk, it is brought there now.
        """
        if self._clean_shutdown:
            return end
        if not FlushPolicy.of(self._config).waits_for_disk:
            return self._on_disk
        for file in self._log.queue.files:
            if file.file_from_offset + file.size > self._on_disk:
                sync_or_keep_dirty(file)
        return end

    def _cut_index(
        self, walk: Walk, index: IndexService, left: SuspectIndexFiles, end: int
    ) -> None:
        """Drop what contradicts the log, and the keys behind its end; derive that again."""
        if not self._clean_shutdown:
            left.finish()
        resume = index.resume_offset
        wrong = None
        if walk.index_check is not None:
            if walk.no_room is None:
                walk.index_check.end(end)
            wrong = walk.index_check.wrong
        if wrong is not None:
            finding = f"{index.files[wrong].path}: the index contradicts the log from here on"
            _log.warning("%s; it is derived again", finding)
            self.report.findings.append(f"{finding}; it was derived again")
            index.drop_from(wrong)
        index.truncate(end)
        if index.resume_offset < resume:
            self.report.index_from = max(index.resume_offset, self._log.min_offset)
            try:
                for batch in walk.scan_range(self.report.index_from, end):
                    index.dispatch(batch)
            except DiskFullError as error:
                walk.put_off(error, self.report.index_from)
