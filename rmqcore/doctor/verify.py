"""Verification of a store, cold or live: the log, what is derived from it, and the small files.

Changes nothing, opens nothing for writing, and maps nothing: a file that is cut short meanwhile is
a finding.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rmqcore.config import StoreConfig, load_config
from rmqcore.doctor.findings import COPY, Severity, VerifyReport
from rmqcore.doctor.foreign import FOREIGN_ADVICE, foreign_files, told_of_foreign
from rmqcore.doctor.log_survey import survey_log
from rmqcore.doctor.sizes import lenient_config
from rmqcore.doctor.verify_deep import check_deeply
from rmqcore.doctor.verify_files import check_small_files
from rmqcore.doctor.verify_index import check_index
from rmqcore.doctor.verify_queues import check_queues
from rmqcore.errors import UNREADABLE, ConfigError, Naming
from rmqcore.files.mapped_file_queue import numbered_files
from rmqcore.files.store_dir import StoreDir
from rmqcore.native.format._numbers import SMALLEST_RECORD_SIZE
from rmqcore.rebuild.cold_store import light_queues
from rmqcore.rebuild.digest import next_data
from rmqcore.recovery.geometry import fitted_config, is_of_index
from rmqcore.recovery.judge import BLANK_IN_FRONT
from rmqcore.scan.audit import AuditReport, audit
from rmqcore.scan.plan import LogPlan
from rmqcore.scan.runner import Runner, run
from rmqcore.scan.split import Split
from rmqcore.world import monotonic_s

SPLIT_SIZE = 64 << 20
_BLOCK = 1 << 20
_ZEROS = bytes(_BLOCK)
_RECOVER = "open the store for writing: recovery cuts the torn tail off"
_REMOVED = "open the store for writing: that removes it"
_COVER = "rmqcore doctor repair STORE covers it"
_SAVE_BEHIND = "rmqcore doctor repair STORE saves what follows"
_MEND_LOG = (
    "rmqcore doctor repair STORE saves what follows; rmqcore cat, tail and export read it with "
    '--skip-damaged; opened with on_corruption="skip", the store goes on without what is damaged'
)

VerifyProgress = Callable[[str, int, int], None]


def verify(
    store_path: str | os.PathLike[str],
    *,
    config: StoreConfig | str | Path | None = None,
    jobs: int | Runner = 1,
    check_crc: bool = True,
    deep: bool = False,
    start_phy_offset: int = 0,
    max_duration_s: float | None = None,
    progress: VerifyProgress | None = None,
) -> VerifyReport:
    """Look at every byte of a store that means anything.

    Args:
        store_path: the store's directory; only read.
        config: settings of the store, as for `open_store`. Where delay levels are not RocketMQ's
            own, they are needed to judge the tags codes of delayed messages.
        jobs: processes that walk the log, or what else runs a function over splits.
        check_crc: compare each body with its CRC.
        deep: also look at the time of each record, and unpack each compressed body.
        start_phy_offset: look at the log from here on only, where a record begins. Files that are
            derived from the log are not looked at then.
        max_duration_s: seconds after which the walk over the log ends; the report says where.
            Files that are derived from the log are not looked at then.
        progress: called with (phase, done, total): "log", "deep" and "index" in bytes.

    Returns:
        a report; ``clean`` when there is nothing but notes.

    Raises:
        StoreNotFoundError: no store is there.
        ConfigError: a setting that was given contradicts the files.
    """
    loaded = load_config(config)
    directory = StoreDir(store_path, loaded.store_path_commit_log)
    directory.require()
    report = VerifyReport(directory.path, live=directory.is_locked())
    check = Verification(directory, loaded, report, check_crc, progress)
    ends_at = None if max_duration_s is None else monotonic_s() + max_duration_s
    return check.run(jobs, start_phy_offset, ends_at, deep=deep)


class Verification:
    """One verification, which adds to a report."""

    def __init__(
        self,
        directory: StoreDir,
        config: StoreConfig,
        report: VerifyReport,
        check_crc: bool,
        progress: VerifyProgress | None,
    ) -> None:
        self._directory = directory
        self._config = config
        self._report = report
        self._check_crc = check_crc
        self._progress = progress
        self._index_is_known = True

    def run(
        self, jobs: int | Runner, start: int, ends_at: float | None, *, deep: bool
    ) -> VerifyReport:
        """Look at the store as the arguments of `verify` say.

        Args:
            jobs: processes that read the log side by side, or what runs them.
            start: physical offset to begin at.
            ends_at: `monotonic_s` from which on it reads no further; None for no end.
            deep: also look into each record.
        """
        began = monotonic_s()
        log, report = self._plan(), self._report
        report.min_phy_offset, report.max_phy_offset = log.start, log.end
        self._check_log_files(log)
        splits = log.splits(SPLIT_SIZE, start)
        merged = self._walk(log, splits, jobs, ends_at)
        if deep:
            tell = None if self._progress is None else partial(self._progress, "deep")
            seen = [split for split in splits if split.end <= report.verified_to]
            check_deeply(log, seen, report, jobs, tell)
        if report.complete and start <= log.start:
            self._check_behind(log)
            with report.past_bad_sectors("log"):
                self._check_foreign_files(log, merged)
            led_to = check_queues(log, merged, report)
            with report.past_bad_sectors("log"):
                self._check_blanks(log, led_to)
            with report.past_bad_sectors("index"):
                if self._index_is_known:
                    check_index(log, report, self._progress)
            check_small_files(log, merged, report)
        report.elapsed_s = monotonic_s() - began
        return report

    def _plan(self) -> LogPlan:
        try:
            config = fitted_config(self._config, self._directory, past_bad_sectors=True)
        except ConfigError as error:
            if is_of_index(error) and error.value is None:
                self._report.add(
                    Severity.ERROR,
                    "index",
                    self._directory.index,
                    -1,
                    error.rule.partition("; ")[0],
                    "give maxHashSlotNum and maxIndexNum of the broker that wrote them, or let "
                    "rmqcore doctor repair STORE derive the index again",
                )
                self._directory.index = self._directory.path / "index-of-unknown-geometry"
                self._index_is_known = False
            config = lenient_config(self._config, self._directory)
        return LogPlan(self._directory, config, strict=False)

    # ---- the log

    def _check_log_files(self, log: LogPlan) -> None:
        for number, (start, path, size) in enumerate(log.files):
            if number and start != log.files[number - 1][0] + log.file_size:
                self._report.add(
                    Severity.ERROR,
                    "log",
                    self._directory.commit_log,
                    log.files[number - 1][0] + log.file_size,
                    f"a file is missing before {path.name}",
                    "put it back from a copy, or rmqcore doctor repair STORE goes on without it",
                )
            if size == log.file_size or (self._report.live and number == len(log.files) - 1):
                continue
            self._report.add(
                Severity.ERROR,
                "log",
                path,
                start + min(size, log.file_size),
                f"the file has {size} bytes, files here have {log.file_size}",
                "rmqcore doctor repair STORE makes it whole; opened with "
                'on_corruption="truncate" the log ends there',
            )
        self._check_empty_files(log.files[-1][0] if log.files else -1)

    def _check_empty_files(self, last: int) -> None:
        for start, path, size in numbered_files(self._directory.commit_log):
            if size or self._report.live:
                continue
            if start > last:
                what = "the file is empty: it was made ahead, and lost its length"
                self._report.add(Severity.WARNING, "log", path, -1, what, _REMOVED)
            else:
                what = "the file is empty, and records follow in others"
                self._report.add(Severity.ERROR, "log", path, start, what, _COVER)

    def _walk(
        self, log: LogPlan, splits: list[Split], jobs: int | Runner, ends_at: float | None
    ) -> AuditReport:
        work = partial(
            audit,
            queue_file_size=log.config.mapped_file_size_consume_queue,
            delays_ms=log.config.delay_levels_ms,
            multi_dispatch=light_queues(log),
            verify_crc=self._check_crc,
            verify_crc_property=self._check_crc and log.config.force_verify_prop_crc,
            live=self._report.live,
        )
        tell = None if self._progress is None else partial(self._progress, "log")
        merged = AuditReport()
        self._report.verified_to = splits[0].start if splits else log.end
        for split, part in zip(splits, run(work, splits, jobs=jobs, progress=tell), strict=True):
            _merge(merged, part)
            self._report.verified_to = split.end
            if ends_at is not None and monotonic_s() >= ends_at and split is not splits[-1]:
                self._report.complete = False
                break
        self._report.records = merged.records
        for damage in merged.damaged:
            self._report.add(
                Severity.ERROR,
                "log",
                Path(damage.path),
                damage.phy_offset,
                f"{damage.reason}; good records go on at {damage.next_offset}",
                COPY if damage.reason == UNREADABLE else _MEND_LOG,
            )
        return merged

    def _check_behind(self, log: LogPlan) -> None:
        """What lies behind the end of the log has to be zeros."""
        if self._report.live:
            return
        for start, path, size in log.files:
            begin = max(log.end - start, 0)
            if start + size <= log.end or (begin and log.ends_in_blank):
                continue
            found = -1
            with self._report.past_bad_sectors("log"):
                found = _first_used(path, begin)
            if found >= 0:
                self._report.add(
                    Severity.ERROR,
                    "log",
                    path,
                    log.end if begin else start + found,
                    "the log ends here, but bytes that are no good record lie behind: a torn tail",
                    _RECOVER,
                )
                return

    def _check_blanks(self, log: LogPlan, led_to: list[int]) -> None:
        """Name the end-of-file records behind which queues lead to whole records."""
        for file in () if self._report.live else log.files:
            if not any(file[0] <= place < file[0] + log.file_size for place in led_to):
                continue
            (found,) = survey_log(
                self._directory.path,
                [file],
                log.file_size,
                gap_min=SMALLEST_RECORD_SIZE,
                multi_dispatch=light_queues(log),
            )
            if found.ends_in_blank and any(found.end < place for place in led_to):
                self._report.add(
                    Severity.ERROR, "log", found.path, found.end, BLANK_IN_FRONT, _SAVE_BEHIND
                )

    def _check_foreign_files(self, log: LogPlan, merged: AuditReport) -> None:
        """Name log files of another store: what is found in the queues below comes from them."""
        if self._report.live:
            return
        kinds = "order", "different"
        places = [one.phy_offset for one in merged.problems if one.kind in kinds]
        for file in log.files:
            if not any(file[0] <= place < file[0] + log.file_size for place in places):
                continue
            surveys = survey_log(
                self._directory.path,
                [file],
                log.file_size,
                gap_min=SMALLEST_RECORD_SIZE,
                multi_dispatch=light_queues(log),
            )
            for found in foreign_files(log, surveys):
                what, advice = told_of_foreign("it"), f"{FOREIGN_ADVICE}, and verify again"
                self._report.add(Severity.ERROR, "log", found.path, found.start, what, advice)


def _merge(into: AuditReport, part: AuditReport) -> None:
    into.records += part.records
    into.bytes += part.bytes
    into.damaged += part.damaged
    into.unreadable |= part.unreadable
    for problem in part.problems:
        into.note(problem)
    into.problem_count += part.problem_count - len(part.problems)
    into.topics.extend(part.topics)
    for key, phy_offset in part.first_records.items():
        into.first_records[key] = max(into.first_records.get(key, 0), phy_offset)
    into.last_timestamp_ms = max(into.last_timestamp_ms, part.last_timestamp_ms)
    for key, stretches in part.runs.items():
        known = into.runs.setdefault(key, [])
        for first, stop in stretches:
            if known and known[-1][1] == first:
                known[-1] = (known[-1][0], stop)
            else:
                known.append((first, stop))
    for key, offsets in part.batches.items():
        into.batches.setdefault(key, []).extend(offsets)


def _first_used(path: Path, at: int) -> int:
    """Position of the first block from ``at`` on that is not all zeros, -1 for none."""
    with path.open("rb", buffering=0) as stream, Naming(path):
        fd = stream.fileno()
        while (at := next_data(fd, at)) >= 0 and (block := os.pread(fd, _BLOCK, at)):
            if block != _ZEROS[: len(block)]:
                return at
            at += len(block)
    return -1
