"""Consume queues against the log, both ways: what is missing, and what no record stands behind."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rmqcore._codec import decode_record
from rmqcore.doctor.batch_numbers import wrong_numbers
from rmqcore.doctor.findings import VERIFY_AGAIN, Severity, VerifyReport
from rmqcore.files.mapped_file_queue import no_files, numbered_files
from rmqcore.files.store_dir import NOT_A_FILE
from rmqcore.native.format._numbers import FILLER_SIZE
from rmqcore.rebuild.consume_queues import queue_keys
from rmqcore.scan.audit import AuditReport, QueueProblem, stretches_of
from rmqcore.scan.plan import LogPlan
from rmqcore.scan.unit_files import LOOK_UNITS, UNITS, QueueKey, UnitFiles, empty_units

_REBUILD = "rebuild the consume queues: rmqcore rebuild cq STORE"
_WHOSE = "rmqcore doctor plan STORE says whether the queues tell whose it is"
#: So many units of a stretch that no record stands behind are followed into the log.
_LOOKED_AT = 16
_SAVED = "a whole record is there; rmqcore doctor plan STORE says what a repair saves"
_WORDS = {
    "late": "{count} units from queue offset {first} on are not dispatched yet",
    "missing": "{count} units are missing from queue offset {first} on",
    "different": "{count} units from queue offset {first} on are not what the log demands",
    "tags": "{count} units from queue offset {first} on have a tags code that no record has",
    "order": "{count} records claim queue offset {first} and on, which earlier records have",
}


def check_queues(log: LogPlan, merged: AuditReport, report: VerifyReport) -> list[int]:
    """Report what the audit found, then look for units that no record stands behind.

    Returns:
        physical offsets of whole records that units lead to, and that the log does not come to.

    Args:
        log: of the store.
        merged: what the walk over the whole log has found.
        report: gets what is found.
    """
    file_size = log.config.mapped_file_size_consume_queue
    unreadable = merged.unreadable
    files = UnitFiles(log.directory, file_size, unreadable=unreadable)
    led_to: list[int] = []
    try:
        emptied = merged.topics.emptied(lambda key: not files.has_any(key), merged.first_records)
        report.units = sum(
            b - a for key, runs in merged.runs.items() if key not in emptied for a, b in runs
        )
        of_deleted = {path(key) for key in emptied for path in (files.path, files.batch_path)}
        problems = [one for one in merged.problems if one.path not in of_deleted]
        # derived again, the queue of a place that two records name would have the earlier one
        how = _WHOSE if any(one.kind == "order" for one in problems) else _REBUILD
        for problem in problems:
            late = report.live and problem.kind == "missing" and _lags(files, problem)
            _report_problem(problem, "late" if late else problem.kind, report, how)
        report.finding_count += max(0, merged.problem_count - len(merged.problems))
        for key in queue_keys(log.directory.consume_queue):
            report.queues += 1
            _check_files(files.path(key), file_size, report)
            check = _QueueCheck(log, files, key, report, how)
            check.run(merged.runs.get(key, []))
            led_to += check.led_to
        for key in queue_keys(log.directory.batch_consume_queue):
            report.queues += 1
            batch_file_size = log.config.mapper_file_size_batch_consume_queue
            _check_files(files.batch_path(key), batch_file_size, report)
            _check_batches(log, files, key, merged.batches.get(key, []), report)
    finally:
        files.close()
    for path in sorted(unreadable):
        report.add_unreadable("consume queue", path)
    return led_to


def _lags(files: UnitFiles, problem: QueueProblem) -> bool:
    """True when units that were missing have come since, or nothing lies behind them yet."""
    key = problem.path.parent.name, int(problem.path.name)
    if problem.path == files.batch_path(key):
        batches = files.batches(key)
        return (
            not len(batches)
            or problem.first > int(batches["base"][-1])
            or bool((batches["phy_offset"] == problem.phy_offset).any())
        )
    stop = min(problem.first + problem.count, files.end(key))
    for at in range(problem.first, stop, LOOK_UNITS):
        units = np.frombuffer(files.units(key, at, min(LOOK_UNITS, stop - at)), UNITS)
        if empty_units(units).any():
            return False
    return True


def _report_problem(problem: QueueProblem, kind: str, report: VerifyReport, how: str) -> None:
    severity = Severity.ERROR
    if kind == "late":
        severity = Severity.NOTE
        how = VERIFY_AGAIN
    elif kind == "tags":
        severity = Severity.WARNING
        how = f"give messageDelayLevel if it is not RocketMQ's default, else {how}"
    elif kind == "order":
        how = f"the log itself has two messages for one place; {_WHOSE}"
    what = _WORDS[kind].format(count=problem.count, first=problem.first)
    report.add(severity, "consume queue", problem.path, problem.phy_offset, what, how)


def _check_files(directory: Path, file_size: int, report: VerifyReport) -> None:
    """Lengths of a queue's files, that none is missing between two, and that they are files."""
    for path in no_files(directory):
        report.add(Severity.ERROR, "consume queue", path, -1, NOT_A_FILE, _REBUILD)
    found = numbered_files(directory)
    for number, (start, path, size) in enumerate(found):
        if size != file_size and not (report.live and number == len(found) - 1):
            report.add(
                Severity.ERROR,
                "consume queue",
                path,
                -1,
                f"the file has {size} bytes, files here have {file_size}",
                _REBUILD,
            )
        if not number and start % file_size:
            what = f"no file of {file_size} bytes of a queue begins there"
            report.add(Severity.ERROR, "consume queue", path, -1, what, _REBUILD)
        if number and start != found[number - 1][0] + file_size:
            report.add(
                Severity.ERROR,
                "consume queue",
                path.parent,
                -1,
                f"a file is missing before {path.name}",
                _REBUILD,
            )


class _QueueCheck:
    """Looks at the units of one queue that the log does not demand."""

    def __init__(
        self, log: LogPlan, files: UnitFiles, key: QueueKey, report: VerifyReport, how: str
    ) -> None:
        self._log = log
        self._files = files
        self._key = key
        self._report = report
        self._how = how
        #: physical offsets of whole records that the log does not come to
        self.led_to: list[int] = []

    def run(self, runs: list[tuple[int, int]]) -> None:
        at, behind = self._files.bounds(self._key)
        for start, stop in sorted(runs):
            self._look(at, min(start, behind), used=True, ends=False)
            at = max(at, stop)
        if not (self._report.live and runs):
            self._look(at, behind, used=not runs, ends=True)

    def _look(self, start: int, stop: int, *, used: bool, ends: bool) -> None:
        """Judge units that the log does not demand.

        Args:
            start: number of the first unit.
            stop: behind the last.
            used: units of expired messages are in order here.
            ends: the queue may end here: zeros are in order up to the last unit.
        """
        for low, high in self._files.stretches(self._key, start, stop):
            used = self._look_between(start, low, used=used, ends=ends)
            used = self._look_at(low, high, used=used, ends=ends)
            start = high
        self._look_between(start, stop, used=used, ends=ends)

    def _look_between(self, start: int, stop: int, *, used: bool, ends: bool) -> bool:
        """Judge units that no file has, which are zeros; see `_look`."""
        if start < stop and not ends:
            what = f"{stop - start} units from queue offset {start} on are zeros between units"
            path = self._files.path(self._key)
            self._report.add(Severity.ERROR, "consume queue", path, -1, what, self._how)
        return used and not (ends and start < stop)

    def _look_at(self, start: int, stop: int, *, used: bool, ends: bool) -> bool:
        """Judge units of files; whether expired messages may still follow."""
        units = np.frombuffer(self._files.units(self._key, start, stop - start), UNITS)
        zero = (units["phy_offset"] == 0) & (units["size"] == 0) & (units["tags_code"] == 0)
        # behind the last message, too: an opening ends queues where they ended before
        filler = (units["phy_offset"] == 0) & (units["size"] == FILLER_SIZE)
        good = filler | (zero & ends)
        if used:
            end = units["phy_offset"].astype(np.int64) + units["size"]
            expired = (units["phy_offset"] >= 0) & (units["size"] > 0) & (end <= self._log.start)
            good |= expired
            # behind the first zeros the queue has ended
            used = not (ends and zero.any())
        if ends and not zero.all():
            last = int(np.flatnonzero(~zero)[-1])
            good[:last] &= ~zero[:last]
        for low, high in stretches_of(~good):
            self._report_stretch(start + low, units[low:high])
        return used

    def _report_stretch(self, first: int, units: np.ndarray) -> None:
        if not units["size"].any():
            what = f"{len(units)} units from queue offset {first} on are zeros between units"
            offset = -1
        else:
            offset = int(units["phy_offset"][0])
            what = f"no record stands behind {len(units)} units from queue offset {first} on"
        if offset >= self._log.end:
            what += "; they point behind the end of the log"
        some = enumerate(units[:_LOOKED_AT], first)
        saved = any(self._leads_to_owner(number, unit.item()) for number, unit in some)
        how = _SAVED if saved else self._how
        self._report.add(
            Severity.ERROR,
            "consume queue",
            self._files.path(self._key),
            offset,
            what,
            how,
        )

    def _leads_to_owner(self, number: int, unit: tuple[int, int, int]) -> bool:
        """True when a whole record has a unit's place, or names another number of its queue.

        The log does not come to the first one. The other one's number has rotted: derived again,
        the queue would lack it.
        """
        phy_offset, size, _ = unit
        record = self._log.record_at(phy_offset) if phy_offset >= self._log.start else None
        if record is None or len(record) != size:
            return False
        named = decode_record(record)
        if (named.topic, named.queue_id) != self._key:
            return False
        if named.queue_offset == number:
            self.led_to.append(phy_offset)
        return True


def _check_batches(
    log: LogPlan, files: UnitFiles, key: QueueKey, offsets: list[int], report: VerifyReport
) -> None:
    units = files.batches(key)
    if report.live:
        return
    stray = (units["phy_offset"] >= log.start) & ~np.isin(units["phy_offset"], offsets)
    for low, high in stretches_of(stray):
        report.add(
            Severity.ERROR,
            "consume queue",
            files.batch_path(key),
            int(units["phy_offset"][low]),
            f"no record stands behind {high - low} batches from number {low} on",
            _REBUILD,
        )
    for one in wrong_numbers(log, files, key):
        report.add(
            Severity.ERROR,
            "log",
            one.path,
            one.phy_offset,
            one.what,
            "nobody is given its messages; rmqcore doctor repair STORE puts the number back",
        )
    ends = units["base"] + units["count"]
    wrong = (units["base"][1:] < ends[:-1]) | (units["phy_offset"][1:] <= units["phy_offset"][:-1])
    for low, high in stretches_of(wrong):
        report.add(
            Severity.ERROR,
            "consume queue",
            files.batch_path(key),
            int(units["phy_offset"][low + 1]),
            f"{high - low} batches from number {low + 1} on do not lie behind the one before",
            _REBUILD,
        )
    report.units += len(offsets)
