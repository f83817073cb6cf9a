"""Why a message is not found, why a store takes no puts, why a file will be deleted.

Reads only, beside a writer too, and believes nothing: each sentence is what the bytes say.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from rmqcore._codec import decode_message_id, decode_record
from rmqcore._index import index_hash
from rmqcore.config import StoreConfig, load_config
from rmqcore.doctor.covering_records import GAP_TOPIC, LOST_FLAG
from rmqcore.doctor.explain_archive import ArchiveQuestion
from rmqcore.doctor.explanation import Explanation
from rmqcore.doctor.journal import Journal
from rmqcore.doctor.log_survey import is_blank_at, survey_log
from rmqcore.doctor.sizes import lenient_config
from rmqcore.doctor.verify_files import leases_problem
from rmqcore.errors import ArgumentError, RmqCoreError, StoreLockedError
from rmqcore.files.archive_note import archived_end
from rmqcore.files.consume_queue import FILLER
from rmqcore.files.index_file import IndexFile
from rmqcore.files.lock_owner import command_of, lock_owner
from rmqcore.files.log_walker import find_good_record
from rmqcore.files.mapped_file import MappedFile, OpenFiles
from rmqcore.files.store_dir import StoreDir
from rmqcore.native.format._message_ext import MessageExt
from rmqcore.native.format._numbers import SMALLEST_RECORD_SIZE, SysFlag
from rmqcore.rebuild.cold_store import light_queues
from rmqcore.rebuild.index_files import open_index
from rmqcore.recovery.judge import BLANK_IN_FRONT, SAVED_BY_REPAIR
from rmqcore.recovery.trial import try_opening
from rmqcore.scan.any_log import is_archive
from rmqcore.scan.archive_log import ArchiveLog
from rmqcore.scan.plan import LogPlan
from rmqcore.scan.unit_files import UNITS, UnitFiles
from rmqcore.services.retention import CleanCommitLogService, LogFileInfo, disk_usage
from rmqcore.services.running_flags import RunningFlags

_CHAIN_SHOWN = 64
_FILES_SHOWN = 8


def explain(
    store_path: str | os.PathLike[str],
    *,
    topic: str | None = None,
    queue_id: int = 0,
    queue_offset: int | None = None,
    key: str | None = None,
    message_id: str | None = None,
    phy_offset: int | None = None,
    config: StoreConfig | str | Path | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> Explanation:
    """Say why a message is not found, or without one, why the store takes no puts.

    Args:
        store_path: the store's directory; only read, also beside a writer. Or an archive, by its
            URL or its directory.
        topic: with ``queue_offset`` or ``key``.
        queue_id: of the topic, with ``queue_offset``.
        queue_offset: the message's number in its queue.
        key: one of its keys, or its unique key.
        message_id: its offset id.
        phy_offset: where its record begins.
        config: settings of the store, as for `open_store`; retention is judged by them.
        storage_options: of an archive, as for `rmqcore.scan.open_any_log`.

    Raises:
        StoreNotFoundError: no store is there.
        ArchiveError, ObjectStoreError: no archive is there, or it cannot be read.
        ArgumentError: a message id that is none, or arguments that do not name one message.
    """
    named = [name is not None for name in (queue_offset, key, message_id, phy_offset)]
    if sum(named) > 1 or (topic is None) is (queue_offset is not None or key is not None):
        rule = "a topic with a queue offset or a key, a message id, a physical offset, or nothing"
        raise ArgumentError("message", ..., f"is to be named by {rule}")
    asked: _Question | ArchiveQuestion
    if is_archive(store_path):
        asked = ArchiveQuestion(ArchiveLog(os.fspath(store_path), storage_options))
    else:
        loaded = load_config(config)
        directory = StoreDir(store_path, loaded.store_path_commit_log)
        directory.require()
        log = LogPlan(directory, lenient_config(loaded, directory), strict=False)
        asked = _Question(log, loaded)
    if topic is not None and queue_offset is not None:
        return asked.by_queue_offset(topic, queue_id, queue_offset)
    if topic is not None and key is not None:
        return asked.by_key(topic, key)
    if message_id is not None:
        try:
            host, phy_offset = decode_message_id(message_id)
        except ValueError as error:
            raise ArgumentError("message_id", message_id, f"an offset id: {error}") from error
        asked.note("message id", f"stored by {host} at physical offset {phy_offset}")
    if phy_offset is not None:
        return asked.by_phy_offset(phy_offset)
    return asked.of_archive() if isinstance(asked, ArchiveQuestion) else asked.of_store()


class _Question:
    """One question to one store."""

    def __init__(self, log: LogPlan, given: StoreConfig) -> None:
        self._log = log
        self._given = given
        self._answer = Explanation("")

    def note(self, what: str, there: str) -> None:
        """Add what was looked at, and what is there."""
        self._answer.facts.append((what, there))

    def _because(self, reason: str, advice: str = "", *, found: bool = False) -> Explanation:
        self._answer.reason, self._answer.advice, self._answer.found = reason, advice, found
        return self._answer

    # ---- a message

    def by_queue_offset(self, topic: str, queue_id: int, queue_offset: int) -> Explanation:
        """Why a message is not found by its number."""
        self._answer.question = f"the message {topic}/{queue_id} offset {queue_offset}"
        files = UnitFiles(self._log.directory, self._log.config.mapped_file_size_consume_queue)
        try:
            return self._in_queue(files, topic, queue_id, queue_offset)
        finally:
            files.close()

    def _in_queue(
        self, files: UnitFiles, topic: str, queue_id: int, queue_offset: int
    ) -> Explanation:
        queue = topic, queue_id
        end = files.queue_end(queue)
        if end is None:
            self.note("consume queue", f"{files.path(queue)} has no file")
            advice = "rmqcore doctor plan STORE says whether the log has messages of it"
            return self._because("the store has no such queue", advice)
        if files.has_batches(queue):
            return self._in_batches(files, queue, queue_offset, end)
        first = files.bounds(queue)[0]
        self.note("consume queue", f"its files have the offsets {first} to {end}, the latter not")
        if queue_offset >= end:
            return self._because(f"the queue ends at {end}: it has not been put yet, or not here")
        if queue_offset < first:
            return self._because(f"the queue begins at {first}: what lies before was deleted")
        raw = files.units(queue, queue_offset, 1)
        phy_offset, size, tags_code = np.frombuffer(raw, UNITS)[0].item()
        self.note("its unit", f"physical offset {phy_offset}, {size} bytes, tags code {tags_code}")
        if raw == FILLER or not size:
            what = "a filler" if raw == FILLER else "zeros"
            advice = "rmqcore doctor plan STORE compares the queue with the log"
            return self._because(f"{what} stands in its place: the log had no such message", advice)
        answer = self._record(phy_offset)
        message = self._message(phy_offset)
        if message is not None:
            named = f"{message.topic}/{message.queue_id} offset {message.queue_offset}"
            asked = f"{topic}/{queue_id} offset {queue_offset}"
            if named != asked and not topic.startswith("%LMQ%"):
                advice = "rmqcore doctor repair STORE derives the queue again"
                return self._because(f"the unit leads to the record of {named}", advice)
        return answer

    def _in_batches(
        self, files: UnitFiles, queue: tuple[str, int], queue_offset: int, end: int
    ) -> Explanation:
        units = files.batches(queue)
        first = int(units["base"][0])
        self.note("queue of batches", f"it has the offsets {first} to {end}, the latter not")
        if queue_offset >= end:
            return self._because(f"the queue ends at {end}: it has not been put yet, or not here")
        low, high = units["base"] <= queue_offset, queue_offset < units["base"] + units["count"]
        held = np.flatnonzero(low & high)
        if not len(held):
            return self._because("no batch of the queue holds this offset")
        phy_offset, size, base, count = units[held[0]].item()
        there = f"physical offset {phy_offset}, {size} bytes, offsets {base} to {base + count - 1}"
        self.note("its batch", there)
        return self._record(int(phy_offset))

    def by_phy_offset(self, phy_offset: int) -> Explanation:
        """Why no message is found at a physical offset."""
        self._answer.question = f"the message at physical offset {phy_offset}"
        return self._record(phy_offset)

    def _message(self, phy_offset: int) -> MessageExt | None:
        record = self._log.record_at(phy_offset)
        return None if record is None else decode_record(record)

    def _record(self, phy_offset: int) -> Explanation:
        """What lies at a physical offset."""
        log = self._log
        self.note("log", f"physical offsets {log.start} to {log.end}")
        if phy_offset < log.start:
            reason = f"the log begins at {log.start}: retention has deleted the file that it was in"
            return self._because(reason)
        if phy_offset >= log.end:
            return self._because(f"the log ends at {log.end}: nothing is stored there yet")
        message = self._message(phy_offset)
        if message is None:
            return self._no_record(phy_offset)
        named = f"{message.topic}/{message.queue_id} offset {message.queue_offset}"
        self.note("record", f"{named}, {message.store_size} bytes")
        if message.topic and GAP_TOPIC.startswith(message.topic) and message.sys_flag & 0xC == 0xC:
            return self._because("a repair has covered damaged bytes here")
        if message.flag == LOST_FLAG:
            return self._because("it was lost; a repair has put a record in its place")
        transaction = message.sys_flag & SysFlag.TRANSACTION_MASK
        if transaction in (SysFlag.TRANSACTION_PREPARED, SysFlag.TRANSACTION_MASK):
            state = "rolled back" if transaction == SysFlag.TRANSACTION_MASK else "prepared only"
            return self._because(f"it is whole, but {state}: no queue has such a message")
        blank = self._blank_before(phy_offset)
        if blank is not None:
            self.note("log", f"{BLANK_IN_FRONT} at {blank}: a walk over it does not come here")
            reason = "it is there, and whole, behind an end-of-file record: only queues lead to it"
            return self._because(reason, SAVED_BY_REPAIR, found=True)
        return self._because("it is there, and whole", found=True)

    def _no_record(self, phy_offset: int) -> Explanation:
        """Why there is none: bytes that are damaged, or the inside of another record."""
        found = self._files_at(phy_offset)
        if not found:
            advice = "rmqcore doctor plan STORE says what can be saved"
            return self._because("the log file that it was in is missing", advice)
        file = found[0]
        start = phy_offset - file.file_from_offset
        before = self._record_around(file, start)
        if before is not None:
            return self._because(f"no record begins here: it is inside of the one at {before}")
        following = find_good_record(found, start + 1)
        goes_on = "none follows" if following is None else f"one follows at {following.phy_offset}"
        self.note("bytes", file.read_bytes(start, min(32, file.size - start)).hex(" ", -4))
        advice = "rmqcore doctor plan STORE says what can be saved"
        if following and is_blank_at(file.path, start, file.size):
            return self._because(f"{BLANK_IN_FRONT} here; {goes_on}", advice)
        return self._because(f"no whole record is here; {goes_on}", advice)

    def _blank_before(self, phy_offset: int) -> int | None:
        """Where an end-of-file record stands before a record in its file; None for nowhere."""
        for file in self._files_at(phy_offset):
            (found,) = survey_log(
                self._log.directory.path,
                [(file.file_from_offset, file.path, file.size)],
                self._log.file_size,
                gap_min=SMALLEST_RECORD_SIZE,
                multi_dispatch=light_queues(self._log),
            )
            if found.ends_in_blank and found.end < phy_offset:
                return found.end
        return None

    def _record_around(self, file: MappedFile, start: int) -> int | None:
        """The whole record that a position is inside of, None for none."""
        at = 0
        while (record := find_good_record([file], at)) is not None:
            if record.phy_offset > file.file_from_offset + start:
                return None
            if record.end_offset > file.file_from_offset + start:
                return record.phy_offset
            at = record.end_offset - file.file_from_offset
        return None

    def _files_at(self, phy_offset: int) -> list[MappedFile]:
        opened = OpenFiles()
        return [
            MappedFile(path, min(size, self._log.file_size), start, opened, writable=False)
            for start, path, size in self._log.files
            if start <= phy_offset < start + min(size, self._log.file_size)
        ]

    # ---- a key

    def by_key(self, topic: str, key: str) -> Explanation:
        """Which slot a key probes, and which entries its chain leads to."""
        self._answer.question = f"messages of {topic} with the key {key}"
        config, directory = self._log.config, self._log.directory
        key_hash = index_hash(f"{topic}#{key}")
        slot = key_hash % config.max_hash_slot_num
        self.note("hash", f"{key_hash} of {topic}#{key}; slot {slot} of {config.max_hash_slot_num}")
        index = open_index(self._log, directory.index)
        findings = [str(error) for error in index.load()]
        count = len(index.files)
        try:
            matches = sum(self._probe(file, key_hash, topic, key) for file in index.files)
        finally:
            index.close()
        for finding in findings:
            self.note("index", finding)
        if matches:
            return self._because(f"it leads to {matches} of them", found=True)
        if not count:
            return self._because("the store has no index file", "rmqcore rebuild index STORE")
        advice = "rmqcore verify STORE compares the index with the keys of the log"
        return self._because("no entry of the slot's chains leads to a message with it", advice)

    def _probe(self, file: IndexFile, key_hash: int, topic: str, key: str) -> int:
        """Walk the chain of one file; how many messages have the key."""
        offsets, steps, broken = file.select_phy_offsets(key_hash, _CHAIN_SHOWN, 0, 2**63 - 1)
        state = "; the chain is broken" if broken else ""
        there = f"{steps} entries in the slot's chain, {len(offsets)} with this hash{state}"
        self.note(f"index file {file.path.name}", there)
        matches = 0
        for phy_offset in offsets:
            message = self._message(phy_offset)
            if message is None:
                there = "no whole record is there"
            else:
                has = message.topic == topic and key in (*message.keys, message.unique_key)
                name = f"{message.topic}/{message.queue_id} offset {message.queue_offset}"
                there = f"{name}{'' if has else ': another key of the same hash'}"
                matches += has
            self.note(f"physical offset {phy_offset}", there)
        return matches

    # ---- the store

    def of_store(self) -> Explanation:
        """Why the store takes no puts, and which log files will be deleted."""
        self._answer.question = "the store"
        against = list(self._against_puts())
        for what, there, _ in against:
            self.note(what, there)
        for name, why in self._deletions():
            self.note(f"log file {name}", why)
        if against:
            self._answer.in_use = [what for what, _, _ in against] == ["lock"]
            return self._because(against[0][1], against[0][2])
        advice = "rmqcore verify STORE says whether every record of it is whole"
        return self._because("nothing is against opening it for writing", advice, found=True)

    def _against_puts(self) -> Iterator[tuple[str, str, str]]:
        """(what was looked at, what is against puts, what helps)."""
        directory, config = self._log.directory, self._log.config
        if directory.is_locked():
            yield "lock", _locked_by(directory), "close it there, or put through that process"
        journal = Journal.latest(directory)
        if journal is not None and (journal.undoing or not journal.finished):
            yield (
                "journal",
                f"a repair or its undo was interrupted: {journal.root}",
                "rmqcore doctor repair STORE, or undo STORE, goes on where it was",
            )
        opens = False
        if not directory.is_locked():
            try:
                try_opening(directory, self._given)
                opens = True
            except (RmqCoreError, OSError) as error:
                yield "opening", " ".join(str(error).split()), "rmqcore doctor plan STORE"
        if what := leases_problem(directory):
            yield "leases", what, "rmqcore doctor plan STORE"
        for path in (directory.path, directory.commit_log):
            if os.statvfs(path).f_flag & os.ST_RDONLY:
                yield "disk", f"{path} is mounted read-only", "mount it for writing"
            elif not os.access(path, os.W_OK):
                yield "permission", f"{path} cannot be written by this user", "change its owner"
        usage, limit = disk_usage(directory.commit_log), config.disk_space_warning_level_ratio
        if usage.percent > limit:
            there = f"{usage.percent} % of the disk is in use; above {limit} % puts are refused"
            yield "disk", there, "make room, or let retention delete"
        for start, path, size in () if opens else self._log.files:
            if size != self._log.file_size:
                there = f"{path.name} has {size} bytes, files here have {self._log.file_size}"
                yield "log file", there, "rmqcore doctor plan STORE"
            elif start > self._log.files[0][0] and not self._has_before(start):
                there = f"a file is missing before {path.name}"
                yield "log file", there, "rmqcore doctor plan STORE"

    def _has_before(self, start: int) -> bool:
        return any(other == start - self._log.file_size for other, _, _ in self._log.files)

    def _deletions(self) -> Iterator[tuple[str, str]]:
        """(name, why) of the first log files that retention would delete by these settings."""
        files = [
            LogFileInfo(
                name=path.name,
                file_from_offset=start,
                size=size,
                modified_ms=path.stat().st_mtime_ns // 1_000_000,
            )
            for start, path, size in self._log.files
        ]
        directory, config = self._log.directory, self._log.config
        archived = archived_end(directory) if config.keep_unarchived else None
        cleaner = CleanCommitLogService(
            config,
            _Files(files),
            RunningFlags(),
            usage=partial(disk_usage, directory.commit_log),
            archived_end=lambda: archived,
        )
        for file in files[:_FILES_SHOWN]:
            why = cleaner.why_will_be_deleted(file)
            if why is None:
                return
            yield file.name, f"a broker with these settings deletes it: {why}"


class _Files:
    """Log files that nothing deletes, for the cleaner that is only asked."""

    def __init__(self, files: Sequence[LogFileInfo]) -> None:
        self._files = files

    def log_files(self) -> Sequence[LogFileInfo]:
        return self._files

    def delete_log_file(self, file: LogFileInfo) -> bool:
        return False


def _locked_by(directory: StoreDir) -> str:
    owner = lock_owner(directory.lock_file)
    command = None if owner is None else command_of(owner)
    return str(StoreLockedError(directory.lock_file, owner, command).strerror)
