"""Verifies the small files of a store: checkpoint, configuration, markers; and unknown files."""

from __future__ import annotations

import re
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

from rmqcore.doctor.findings import Severity, VerifyReport
from rmqcore.doctor.offset_tables import (
    CONSUMER_OFFSETS_NAME,
    DELAY_OFFSETS_NAME,
    TABLES,
    entries_of,
)
from rmqcore.errors import CorruptCheckpointError, CorruptConfigFileError, is_bad_sector
from rmqcore.files.config_file import unsealed
from rmqcore.files.deleted_topics import DELETED_TOPICS_NAME
from rmqcore.files.lease_journal import LeaseJournal
from rmqcore.files.store_checkpoint import CHECKPOINT_MEND, StoreCheckpoint
from rmqcore.files.store_dir import RESTORE_MARK, StoreDir, queue_id_of, subdirectories
from rmqcore.files.store_mark import MARK_NAME
from rmqcore.files.timer_check import TIMER_TOPIC, TimerCheck
from rmqcore.files.zeros import read_small
from rmqcore.java.json import parse_java_json
from rmqcore.native.format._numbers import CHECKPOINT_SIZE
from rmqcore.scan.audit import AuditReport
from rmqcore.scan.log_walk import Damage
from rmqcore.scan.plan import LogPlan
from rmqcore.scan.read import read
from rmqcore.scan.unit_files import QueueKey, UnitFiles

#: The names that RocketMQ and rmqcore give to files in a store's directory.
_KNOWN = re.compile(
    r"commitlog|consumequeue|consumequeue_ext|batchconsumequeue|index|config|checkpoint|abort"
    r"|abort\.bak|lock|rmqcore\.sock|compaction|timerwheel|timerlog|epochFileCheckpoint(\.bak)?"
    r"|brokerIdentity"
    r"|rocksdbstore|doctor|transaction|timerDequeue.*|pop|broker\.conf|.*\.conf|restore\.unfinished"
)
#: files with a checksum
_SEALED = (MARK_NAME, DELETED_TOPICS_NAME)
_SPLIT_SIZE = 64 << 20
_SET_BACK = "rmqcore doctor repair STORE sets it to the end"
_CONFIG_SUFFIXES = (".json", ".json.bak")
_NUMBERED = re.compile(r"\d{20}")
_INDEX_NAME = re.compile(r"\d{1,19}")


def check_small_files(log: LogPlan, merged: AuditReport, report: VerifyReport) -> None:
    """Check everything that is neither log, consume queue nor index.

    Args:
        log: of the store.
        merged: what the walk over the whole log has found.
        report: gets what is found.
    """
    _check_markers(log, report)
    with report.past_bad_sectors("checkpoint"):
        _check_checkpoint(log, merged, report)
    _check_config(log, report)
    _check_foreign(log, report)


def _check_markers(log: LogPlan, report: VerifyReport) -> None:
    directory = log.directory
    if directory.was_aborted and not report.live:
        report.add(
            Severity.WARNING,
            "store",
            directory.abort,
            -1,
            "the last writer did not close the store",
            "open the store for writing: recovery brings it into order",
        )
    for unfinished, path, how in (
        ("repair, or its undo,", directory.unfinished_repair(), "rmqcore doctor repair, or undo,"),
        ("restoration", directory.path / RESTORE_MARK, "rmqcore restore URL"),
    ):
        if path is not None and path.exists():
            what = f"a {unfinished} was begun and is not finished: no opening takes the store"
            report.add(Severity.ERROR, "store", path, -1, what, f"{how} goes on with it")


def _check_checkpoint(log: LogPlan, merged: AuditReport, report: VerifyReport) -> None:
    path = log.directory.checkpoint
    checkpoint = StoreCheckpoint(path)
    how = CHECKPOINT_MEND
    try:
        found = checkpoint.load()
    except CorruptCheckpointError as error:
        report.add(
            Severity.ERROR, "checkpoint", path, -1, error.reason.removesuffix(f"; {how}"), how
        )
        return
    if not found:
        if merged.records and not report.live:
            what = "there is none; the next opening compares the whole log"
            report.add(Severity.NOTE, "checkpoint", path, -1, what)
        return
    size = path.stat().st_size
    if size != CHECKPOINT_SIZE:
        what = f"it has {size} bytes, a checkpoint has {CHECKPOINT_SIZE}"
        report.add(Severity.WARNING, "checkpoint", path, -1, what, how)
    if report.live or not merged.records:
        return
    newest, latest = merged.last_timestamp_ms, max(checkpoint.times_ms)
    if latest > newest:
        newest = newest_store_ms(log, latest)
    for name in ("physic_msg_timestamp_ms", "logics_msg_timestamp_ms", "index_msg_timestamp_ms"):
        value = getattr(checkpoint, name)
        if value > newest:
            what = f"{name} is {value}, the newest record was stored at {newest}"
            report.add(Severity.WARNING, "checkpoint", path, -1, what, how)


def newest_store_ms(log: LogPlan, enough_ms: int) -> int:
    """Store time of the newest record, 0 without any.

    Where a clock was set back that is not the last one, so all are looked at, from the end on.

    Args:
        log: of the store; what is damaged is passed over.
        enough_ms: a record of this time or a later one ends the search.
    """
    newest = 0
    for split in reversed(log.splits(_SPLIT_SIZE)):
        for batch in read(split, ("store_timestamp",), uncommitted=True, on_damage=_pass_over):
            # the column counts microseconds
            newest = max(newest, int(batch.numbers("store_timestamp").max(initial=0)) // 1000)
            if newest >= enough_ms:
                return newest
    return newest


def _pass_over(damage: Damage) -> None:
    """The walk over the log has told of it."""


# ---- config/*.json


def _check_config(log: LogPlan, report: VerifyReport) -> None:
    root = log.directory.config
    if not root.is_dir():
        return
    for path in sorted(root.iterdir()):
        if not path.name.endswith(_CONFIG_SUFFIXES):
            continue
        value = _parsed(path, report)
        if path.name in (CONSUMER_OFFSETS_NAME, DELAY_OFFSETS_NAME) and isinstance(value, dict):
            _check_offsets(log, path, value, report)
    with report.past_bad_sectors("consume queue"):
        _check_timer(log, report)
    with report.past_bad_sectors("config"):
        _check_leases(log, report)


def _check_leases(log: LogPlan, report: VerifyReport) -> None:
    leases = LeaseJournal(log.directory.consumer_leases)
    with suppress(CorruptConfigFileError):
        deque(leases.entries(), maxlen=0)
    if leases.damaged_at >= 0 and not report.live:
        what = (
            f"it is damaged at {leases.damaged_at}: what groups acknowledged after that comes again"
        )
        how = "the next opening keeps a copy beside it, consumerLeases.log.damaged"
        report.add(Severity.WARNING, "config", leases.path, -1, what, how)
    if problem := leases_problem(log.directory):
        how = "rmqcore doctor repair STORE takes it out"
        report.add(Severity.ERROR, "config", log.directory.consumer_leases, -1, problem, how)


def config_value(path: Path) -> Any:
    """What a file of ``config/``, or a backup of one, holds.

    Raises:
        ValueError: it cannot be read, its checksum is that of another text, or it is not the table
            that its name says.
        OSError: the system does not let it be read.
    """
    text, name = read_small(path).decode(), path.name.removesuffix(".bak")
    if name in _SEALED:
        text = unsealed(text)
    if table := TABLES.get(name):
        table.check(text)
    return parse_java_json(text)


def leases_problem(directory: StoreDir) -> str:
    """Why the leases of a store's groups cannot be read; empty for no reason."""
    try:
        deque(LeaseJournal(directory.consumer_leases).entries(), maxlen=0)
    except CorruptConfigFileError as error:
        return error.reason
    return ""


def _parsed(path: Path, report: VerifyReport) -> Any:
    try:
        return config_value(path)
    except (ValueError, OSError) as error:
        if is_bad_sector(error):
            report.add_unreadable("config", path)
            return None
        backup = path.with_name(path.name + ".bak")
        severity = Severity.WARNING if path.suffix == ".bak" else Severity.ERROR
        how = ""
        with suppress(ValueError, OSError):
            config_value(backup)
            how = f"{backup.name} takes its place at the next opening"
        report.add(severity, "config", path, -1, f"it cannot be read: {error}", how)
        return None


def _check_timer(log: LogPlan, report: VerifyReport) -> None:
    """The timer cannot be ahead of its queue."""
    files = UnitFiles(log.directory, log.config.mapped_file_size_consume_queue)
    try:
        end = files.queue_end((TIMER_TOPIC, 0))
    finally:
        files.close()
    timer = TimerCheck(log.directory.config)
    try:
        is_ahead = end is not None and not report.live and timer.set_back(end) is not None
    except CorruptConfigFileError as error:
        report.add(Severity.ERROR, "config", timer.path, -1, error.reason)
        return
    if is_ahead:
        what = f"timer messages count as delivered behind {end}, where {TIMER_TOPIC} ends"
        report.add(Severity.WARNING, "config", timer.path, -1, what, _SET_BACK)


def _check_offsets(log: LogPlan, path: Path, value: dict[str, Any], report: VerifyReport) -> None:
    """Neither a consumer nor a delay level can be ahead of its queue."""
    roots = log.directory.consume_queue, log.directory.batch_consume_queue
    # a table may have a hundred thousand entries of topics without messages
    topics = {topic for root in roots for topic in subdirectories(root)}
    ends: dict[QueueKey, int | None] = {}
    files = UnitFiles(log.directory, log.config.mapped_file_size_consume_queue)
    try:
        for table, key, owner, queue in entries_of(path.name, value):
            offset = table[key]
            if queue is None or type(offset) is not int or offset < 0:
                what = f"{owner}: queue {key!r} has offset {offset!r}"
                report.add(Severity.ERROR, "config", path, -1, what)
                continue
            if queue not in ends:
                ends[queue] = None
                with report.past_bad_sectors("consume queue"):
                    ends[queue] = files.queue_end(queue) if queue[0] in topics else None
            end = ends[queue]
            if end is not None and offset > end and not report.live:
                what = (
                    f"{owner} has consumed {queue[0]}/{queue[1]} up to {offset}, it ends at {end}"
                )
                report.add(Severity.WARNING, "config", path, -1, what, _SET_BACK)
    finally:
        files.close()


# ---- foreign files


def _check_foreign(log: LogPlan, report: VerifyReport) -> None:
    directory = log.directory
    _report_foreign(directory.path, _KNOWN, report, directories=True)
    _report_foreign(directory.commit_log, _NUMBERED, report)
    _report_foreign(directory.index, _INDEX_NAME, report)
    for root in (directory.consume_queue, directory.batch_consume_queue):
        for queue in sorted(root.glob("*/*")) if root.is_dir() else ():
            if queue.is_dir() and queue_id_of(queue.name) is not None:
                _report_foreign(queue, _NUMBERED, report)
            else:
                report.add(Severity.NOTE, "store", queue, -1, "it is no queue; left alone")


def _report_foreign(
    root: Path, known: re.Pattern[str], report: VerifyReport, *, directories: bool = False
) -> None:
    for path in sorted(root.iterdir()) if root.is_dir() else ():
        if not known.fullmatch(path.name) or (path.is_dir() and not directories):
            report.add(Severity.NOTE, "store", path, -1, "it belongs to nobody; left alone")
