"""Verifies the small files of a store: checkpoint, configuration, markers; and unknown files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from rmqcore.doctor.findings import Severity, VerifyReport
from rmqcore.errors import CorruptCheckpointError
from rmqcore.files.store_checkpoint import CHECKPOINT_MEND, StoreCheckpoint
from rmqcore.files.store_dir import queue_id_of
from rmqcore.java.json import parse_java_json
from rmqcore.native.format._numbers import CHECKPOINT_SIZE
from rmqcore.scan.audit import AuditReport
from rmqcore.scan.plan import LogPlan
from rmqcore.scan.unit_files import UnitFiles

#: what RocketMQ and rmqcore keep in a store's directory
_KNOWN = re.compile(
    r"commitlog|consumequeue|consumequeue_ext|batchconsumequeue|index|config|checkpoint|abort"
    r"|abort\.bak|lock|compaction|timerwheel|timerlog|epochFileCheckpoint(\.bak)?|brokerIdentity"
    r"|rocksdbstore|transaction|timerDequeue.*|pop|broker\.conf|.*\.conf"
)
_CONFIG_SUFFIXES = (".json", ".json.bak")
_NUMBERED = re.compile(r"\d{20}")
_INDEX_NAME = re.compile(r"\d{1,19}")


def check_small_files(log: LogPlan, merged: AuditReport, report: VerifyReport) -> None:
    """Check everything that is neither log, consume queue nor index."""
    _check_markers(log, report)
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
    for name in ("physic_msg_timestamp_ms", "logics_msg_timestamp_ms", "index_msg_timestamp_ms"):
        value = getattr(checkpoint, name)
        if value > merged.last_timestamp_ms:
            what = f"{name} is {value}, the last record was stored at {merged.last_timestamp_ms}"
            report.add(Severity.WARNING, "checkpoint", path, -1, what, how)


# ---- config/*.json


def _check_config(log: LogPlan, report: VerifyReport) -> None:
    root = log.directory.config
    if not root.is_dir():
        return
    for path in sorted(root.iterdir()):
        if not path.name.endswith(_CONFIG_SUFFIXES):
            continue
        value = _parsed(path, report)
        if path.name == "consumerOffset.json" and isinstance(value, dict):
            _check_offsets(log, path, value, report)


def _parsed(path: Path, report: VerifyReport) -> Any:
    try:
        text = path.read_text("utf-8")
        return parse_java_json(text)
    except (ValueError, json.JSONDecodeError, OSError) as error:
        backup = path.with_name(path.name + ".bak")
        severity = Severity.WARNING if path.suffix == ".bak" else Severity.ERROR
        how = f"{backup.name} takes its place at the next opening" if backup.is_file() else ""
        report.add(severity, "config", path, -1, f"it cannot be read: {error}", how)
        return None


def _check_offsets(log: LogPlan, path: Path, value: dict[str, Any], report: VerifyReport) -> None:
    """Consumers cannot be ahead of their queue."""
    table = value.get("offsetTable")
    files = UnitFiles(log.directory, log.config.mapped_file_size_consume_queue)
    for name, queues in table.items() if isinstance(table, dict) else ():
        topic = name.partition("@")[0]
        for queue_id, offset in queues.items() if isinstance(queues, dict) else ():
            if not str(queue_id).isdigit() or not isinstance(offset, int) or offset < 0:
                what = f"{name}: queue {queue_id!r} has offset {offset!r}"
                report.add(Severity.ERROR, "config", path, -1, what)
            elif files.has((topic, int(queue_id))):
                behind = files.bounds((topic, int(queue_id)))[1]
                if offset > behind:
                    what = f"{name} has consumed queue {queue_id} up to {offset}, it ends before"
                    report.add(Severity.WARNING, "config", path, -1, what)


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
