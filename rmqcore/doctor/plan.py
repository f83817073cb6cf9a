"""The plan of a repair: what is wrong with a store, each step, what it saves and what it gives up.

Changes nothing: no lock is taken, no file is opened for writing.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rmqcore.config import StoreConfig, load_config
from rmqcore.doctor.batch_numbers import WrongNumber, all_wrong_numbers
from rmqcore.doctor.covering_records import has_placeholder
from rmqcore.doctor.findings import Severity, VerifyReport
from rmqcore.doctor.foreign import (
    FOREIGN_ADVICE,
    deleted_topics,
    foreign_files,
    told_of_foreign,
)
from rmqcore.doctor.journal import Journal
from rmqcore.doctor.kept_files import below, stamps_of
from rmqcore.doctor.log_survey import (
    FileSurvey,
    Gap,
    OffsetRanges,
    QueueKey,
    gaps_of,
    lacking,
    last_with_records,
    merged_runs,
    survey_log,
)
from rmqcore.doctor.lost_messages import LostMessage, lost_messages
from rmqcore.doctor.offset_tables import offsets_ahead
from rmqcore.doctor.proven_numbers import add_proven_numbers
from rmqcore.doctor.sizes import lenient_config, refuse_cut_log
from rmqcore.doctor.small_files import (
    TOLD_BY,
    checkpoint_problem,
    is_readable_json,
    other_generation,
)
from rmqcore.doctor.stale_tail import drop_stale_tail, look_behind_blanks
from rmqcore.doctor.step import Step, StepKind
from rmqcore.doctor.swapped_files import goes_on_behind, in_place, place_said_by, wrongly_named
from rmqcore.doctor.verify import Verification
from rmqcore.doctor.verify_files import leases_problem
from rmqcore.doctor.wrong_queue_records import add_wrong_queue_records, is_had_again
from rmqcore.errors import StoreError
from rmqcore.files.mapped_file_queue import numbered_files
from rmqcore.files.store_dir import StoreDir
from rmqcore.native.format._numbers import SMALLEST_RECORD_SIZE
from rmqcore.rebuild.cold_store import light_queues
from rmqcore.recovery.unfinished_repair import refuse_unfinished_restore
from rmqcore.scan.plan import LogPlan
from rmqcore.scan.runner import Runner
from rmqcore.scan.unit_files import UnitFiles

PLAN_VERSION = 1
#: When more files than this would be missing in front of a log file, its name counts as wrong.
MISSING_MAX = 4096
#: A repair keeps these sizes, whatever it changes.
SIZES = (
    "mapped_file_size_commit_log",
    "mapped_file_size_consume_queue",
    "mapper_file_size_batch_consume_queue",
    "max_hash_slot_num",
    "max_index_num",
)
_LOG_FILE: Final = re.compile(r"[0-9]{20}")
DoctorProgress = Callable[[str, int, int], None]


@dataclass(slots=True)
class RepairPlan:
    """What is wrong with a store, and what a repair would do.

    Attributes:
        path: the store's directory.
        steps: in the order in which they are done.
        lost: messages whose records are damaged or gone, as far as consume queues know them.
        unnamed: numbers of messages that the log lacks between two that it has, and of which no
            queue knows a place: (topic, queue id, first queue offset, offset behind).
        left: what a repair cannot put right, in words.
        log_end: physical offset where the log ends afterwards.
        last_timestamp_ms: store time of its last record.
        sizes: settings of the store's files.
        stamp: digest of names, lengths and times of all files when the plan was made.
        live: a writer has the store open.
        interrupted: a repair or an undo was begun and not finished: "repair", "undo" or "".
    """

    path: Path
    steps: list[Step] = field(default_factory=list)
    lost: list[LostMessage] = field(default_factory=list)
    unnamed: list[tuple[str, int, int, int]] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    log_end: int = 0
    last_timestamp_ms: int = 0
    sizes: dict[str, int] = field(default_factory=dict)
    stamp: str = ""
    live: bool = False
    interrupted: str = ""

    @property
    def clean(self) -> bool:
        """True when there is nothing to repair, and nothing that cannot be."""
        return not (self.steps or self.left or self.interrupted)

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain values, for JSON."""
        return {
            "version": PLAN_VERSION,
            "path": str(self.path),
            "clean": self.clean,
            "steps": [step.to_dict() for step in self.steps],
            "lost": [message.to_dict() for message in self.lost],
            "unnamed": [list(one) for one in self.unnamed],
            "left": self.left,
            "log_end": self.log_end,
            "last_timestamp_ms": self.last_timestamp_ms,
            "sizes": self.sizes,
            "stamp": self.stamp,
            "live": self.live,
            "interrupted": self.interrupted,
        }

    def check_places(self, directory: StoreDir) -> None:
        """Refuse a plan, which may have been edited, of what is no place of this store's.

        Raises:
            StoreError: a step names a file elsewhere, or bytes that are not in its file.
        """
        size = self.sizes.get("mapped_file_size_commit_log", 0)
        roots = [_absolute(root) for root in (directory.path, directory.commit_log)]
        for step in self.steps:
            path = _absolute(directory.path / step.path)
            inside = any(root in path.parents for root in roots)
            if inside and step.kind in (StepKind.COVER, StepKind.CUT_TAIL):
                first = int(path.name) if _LOG_FILE.fullmatch(path.name) else -1
                inside = 0 <= first <= step.start <= step.stop <= first + size
            if not inside:
                raise StoreError(f"the plan is damaged: no step of a repair changes {step.path} so")

    @classmethod
    def from_json(cls, text: str | bytes) -> RepairPlan:
        """The plan that was written as JSON, as by ``rmqcore doctor plan --out``.

        Raises:
            StoreError: it is no plan of this version.
        """
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise StoreError(f"this is no plan: {error}") from error
        return cls.from_dict(values if isinstance(values, dict) else {})

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> RepairPlan:
        """The plan that `to_dict` has written.

        Raises:
            StoreError: it is no plan of this version.
        """
        if values.get("version") != PLAN_VERSION:
            raise StoreError("this is no plan that this version of rmqcore has written")
        plain = ("left", "log_end", "last_timestamp_ms", "sizes", "stamp", "live", "interrupted")
        try:
            return cls(
                Path(values["path"]),
                [Step.from_dict(step) for step in values["steps"]],
                [LostMessage(**message) for message in values["lost"]],
                [(topic, queue, first, stop) for topic, queue, first, stop in values["unnamed"]],
                **{name: values[name] for name in plain},
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise StoreError(f"the plan is damaged: {error!r}") from error


def plan(
    store_path: str | os.PathLike[str],
    *,
    config: StoreConfig | str | Path | None = None,
    jobs: int | Runner = 1,
    progress: DoctorProgress | None = None,
) -> RepairPlan:
    """Say what is wrong with a store, and how `repair` would put it right; changes nothing.

    Args:
        store_path: the store's directory; only read, and may be read only.
        config: settings of the store, as for `open_store`. Sizes of files that are damaged
            themselves are best given.
        jobs: processes that walk the log, or what else runs a function over splits.
        progress: called with (phase, done, total) in bytes of log.

    Raises:
        StoreNotFoundError: no store is there.
        ConfigError: a setting that was given contradicts the files, or the only log file was cut
            short, so that its size has to be given.
    """
    loaded = load_config(config)
    directory = StoreDir(store_path, loaded.store_path_commit_log)
    directory.require()
    return Planner(directory, loaded, directory.is_locked()).run(jobs, progress)


def _absolute(path: Path) -> Path:
    """A path without ``..``; links stay."""
    return Path(os.path.abspath(path))  # noqa: PTH100 - resolve follows links


def stamp_of(directory: StoreDir) -> str:
    """A digest of names, lengths and times of a store's files, but for its lock and journals."""
    stamps = json.dumps(stamps_of(directory), sort_keys=True)
    return hashlib.sha256(stamps.encode()).hexdigest()


class Planner:
    """Makes one plan."""

    def __init__(self, directory: StoreDir, config: StoreConfig, live: bool) -> None:
        self._directory = directory
        self._given = config
        self._plan = RepairPlan(directory.path, live=live)
        self.runs: OffsetRanges = {}
        #: physical offset behind the last record, also where that contradicts its CRC property
        self._end_before = 0

    def run(self, jobs: int | Runner, progress: DoctorProgress | None) -> RepairPlan:
        """Make it.

        Args:
            jobs: processes that read the log side by side, or what runs them.
            progress: called with (what, bytes done, bytes in all); None for nobody.
        """
        plan = self._plan
        journal = Journal.latest(self._directory)
        if journal is not None and (journal.undoing or not journal.finished):
            plan.interrupted = "undo" if journal.undoing else "repair"
            try:
                journal.refuse_changed()
            except StoreError as error:
                plan.left.append(str(error))
            return plan
        plan.stamp = stamp_of(self._directory)
        try:
            refuse_unfinished_restore(self._directory)
        except StoreError as error:
            plan.left.append(str(error))
            return plan
        self._config = lenient_config(self._given, self._directory)
        if "mapped_file_size_commit_log" not in self._given.explicit and not plan.live:
            refuse_cut_log(self._config, self._directory)
        plan.sizes = {name: getattr(self._config, name) for name in SIZES}
        if self._name_misnamed():
            return plan
        self._plan_config_files()
        records_change = self._plan_log(jobs, progress)
        if plan.left:
            plan.steps.clear()
            return plan
        self._plan_derived(records_change, jobs, progress)
        self._plan_offsets()
        self._plan_ending()
        return plan

    def _add(self, kind: StepKind, path: Path, what: str, saves: str, **facts: Any) -> None:
        place = Path(below(self._directory.path, path))
        self._plan.steps.append(Step(kind, place, what, saves, **facts))

    def _name_misnamed(self) -> bool:
        """Name log files that have each other's names; whoever mixed them up knows why."""
        plan = self._plan
        for path, name in wrongly_named(numbered_files(self._directory.commit_log)):
            place = below(self._directory.path, path)
            what = f"by its first record, {place} is {name}; give it that name, and plan again"
            plan.left.append(what)
        return bool(plan.left)

    def _name_foreign(self, log: LogPlan, surveys: list[FileSurvey]) -> bool:
        """Name log files of another store; whoever put them there knows what was there before."""
        for file in foreign_files(log, surveys):
            place = below(self._directory.path, file.path)
            self._plan.left.append(f"{told_of_foreign(place)}; {FOREIGN_ADVICE}, and plan again")
        return bool(self._plan.left)

    # ---- config/*.json

    def _plan_config_files(self) -> None:
        root = self._directory.config
        for path in sorted(root.iterdir()) if root.is_dir() else ():
            if not path.name.endswith((".json", ".json.bak")) or is_readable_json(path):
                continue
            other = other_generation(path)
            what = "it cannot be read"
            if is_readable_json(other):
                saves = f"what {other.name} holds takes its place"
                gives_up = "" if path.name.endswith(".bak") else f"changes since {other.name}"
                self._add(StepKind.RESTORE_CONFIG, path, what, saves, gives_up=gives_up)
            else:
                saves = "the file can be written anew; its bytes are kept in the journal"
                told = TOLD_BY.get(path.name.removesuffix(".bak"), "its settings")
                gives_up = f"{told}: there is no readable generation of it"
                self._add(StepKind.DROP_CONFIG, path, what, saves, gives_up=gives_up)
        if what := leases_problem(self._directory):
            saves = "the store can be opened; its bytes are kept in the journal"
            gives_up = "which messages are leased: they come again"
            path = self._directory.consumer_leases
            self._add(StepKind.DROP_CONFIG, path, what, saves, gives_up=gives_up)

    # ---- the log

    def _plan_log(self, jobs: int | Runner, progress: DoctorProgress | None) -> bool:
        """Plan the steps of the log; False when no whole record goes, nor any comes."""
        size = self._config.mapped_file_size_commit_log
        files = self._regular_files(size)
        tell = None if progress is None else lambda done, total: progress("log", done, total)
        log = LogPlan(self._directory, self._config, strict=False)
        self._end_before = log.end
        deleted = deleted_topics(log)
        surveys = survey_log(
            self._directory.path,
            files,
            size,
            gap_min=SMALLEST_RECORD_SIZE,
            verify_crc_property=self._config.force_verify_prop_crc,
            multi_dispatch=light_queues(log),
            deleted=deleted,
            jobs=jobs,
            progress=tell,
        )
        if self._name_foreign(log, surveys):
            return False
        look_behind_blanks(log, surveys)
        drop_stale_tail(log, surveys)
        self.runs = merged_runs(surveys, deleted)
        wrong = add_proven_numbers(log, surveys, self.runs)
        wrong += add_wrong_queue_records(log, surveys, self.runs, deleted)
        wrong += [one for one in all_wrong_numbers(log) if is_had_again(log, surveys, one)]
        gaps = list(gaps_of(surveys, size))
        self._plan_lost(log, gaps, surveys)
        for file, gap in gaps:
            self._plan_gap(file, gap, size)
        self._plan_numbers(wrong)
        self._plan_sizes(surveys, size)
        self._plan_end(surveys, size)
        return any(
            step.kind in (StepKind.COVER, StepKind.RESIZE, StepKind.REMOVE_FILE)
            for step in self._plan.steps
        )

    def _regular_files(self, size: int) -> list[tuple[int, Path, int]]:
        """The log's files; one whose name is no offset of this log is taken out.

        Where the log lies is told by the files whose first records say that they are in place.
        """
        files = numbered_files(self._directory.commit_log)
        believed = [start for start, _, _ in in_place(files)]
        phases = [start % size for start in believed]
        common = max(phases, key=phases.count, default=0)
        regular: list[tuple[int, Path, int]] = []
        for number, (start, path, length) in enumerate(files):
            behind = regular[-1][0] if regular else start
            far = max(start - behind, believed[0] - start) > MISSING_MAX * size
            if (start % size != common or far) and place_said_by(path, start) == start:
                place = below(self._directory.path, path)
                what = f"by its records, {place} lies where its name says, but no log of files of "
                self._plan.left.append(f"{what}{size} bytes, as this one, has one there")
            elif start % size != common or far:
                saves = "the log is one sequence of files again"
                what = f"its name is no offset of a log of files of {size} bytes"
                gives_up = f"its {length} bytes, which are kept in the journal"
                self._add(StepKind.REMOVE_FILE, path, what, saves, gives_up=gives_up)
            else:
                regular.append(files[number])
        return regular

    def _plan_lost(
        self, log: LogPlan, gaps: list[tuple[FileSurvey, Gap]], surveys: list[FileSurvey]
    ) -> None:
        """Which messages are gone: by the queues' units, else by the numbers that lack."""
        plan = self._plan
        stretches = [(gap.start, gap.stop) for _, gap in gaps]
        last = last_with_records(surveys)
        if surveys and not plan.live:
            # without any whole record the log ends where it begins
            end = surveys[last].end if last >= 0 else surveys[0].start
            stretches.append((end, surveys[last].start + MISSING_MAX * log.file_size))
        queue_file_size = self._config.mapped_file_size_consume_queue
        plan.lost = lost_messages(self._directory, queue_file_size, stretches, self.runs, log)
        if not gaps:
            return
        known = {(one.topic, one.queue_id, one.queue_offset) for one in plan.lost}
        for (topic, queue_id), runs in sorted(self.runs.items()):
            for first, stop in lacking(runs):
                low, high = first, stop
                while low < high and (topic, queue_id, low) in known:
                    low += 1
                while high > low and (topic, queue_id, high - 1) in known:
                    high -= 1
                if low < high:
                    plan.unnamed.append((topic, queue_id, low, high))

    def _plan_gap(self, file: FileSurvey, gap: Gap, size: int) -> None:
        lost = [one for one in self._plan.lost if gap.start <= one.phy_offset < gap.stop]
        named = sum(has_placeholder(one) for one in lost)
        saves = "every record behind it; RocketMQ would end the log here"
        if named:
            saves += f"; {named} numbers of queues, by records that stand for what is lost"
        gives_up = f"{gap.stop - gap.start} bytes with {len(lost)} messages that queues know of"
        if gap.given_up:
            gives_up += f", and {gap.given_up} whole records: the place alone is too small for one"
        self._add(
            StepKind.COVER,
            file.path,
            gap.reason,
            saves,
            gives_up=gives_up,
            start=gap.start,
            stop=gap.stop,
            timestamp_ms=gap.timestamp_ms,
        )

    def _plan_numbers(self, numbers: list[WrongNumber]) -> None:
        for one in sorted(numbers):
            kind, number = StepKind.RENUMBER, one.number
            if one.flag >= 0:
                kind, number = StepKind.RESET_FLAG, one.flag
            self._add(kind, one.path, one.what, one.saves, start=one.phy_offset, number=number)

    def _plan_sizes(self, surveys: list[FileSurvey], size: int) -> None:
        last = last_with_records(surveys)
        for number, file in enumerate(surveys):
            if file.size in (-1, size) or number > last:
                continue
            if file.size > size and goes_on_behind(file.path, file.start, size):
                place = below(self._directory.path, file.path)
                what = f"{place} has whole records behind {size} bytes, the size of files here; "
                self._plan.left.append(f"{what}give the size that it had, and plan again")
            elif file.size > size or file.ends_in_blank or number == last:
                what = f"the file has {file.size} bytes, files here have {size}"
                saves = "RocketMQ opens no store with such a file"
                gives_up = f"{file.size - size} bytes behind its end" if file.size > size else ""
                end = file.start + file.size
                self._add(
                    StepKind.RESIZE,
                    file.path,
                    what,
                    saves,
                    gives_up=gives_up,
                    start=file.start,
                    stop=end,
                )

    def _plan_end(self, surveys: list[FileSurvey], size: int) -> None:
        """The tail behind the last whole record, and files that hold none."""
        last = last_with_records(surveys)
        plan = self._plan
        if last < 0:
            plan.log_end = surveys[0].start if surveys else 0
        else:
            file = surveys[last]
            plan.log_end, plan.last_timestamp_ms = file.end, file.last_ms
            if not file.ends_in_blank and file.used_behind and not plan.live:
                self._add(
                    StepKind.CUT_TAIL,
                    file.path,
                    f"{file.used_behind} bytes behind the last whole record: {file.reason}",
                    "the log ends behind its last whole record",
                    gives_up=f"{file.used_behind} bytes that are no part of the log",
                    start=file.end,
                    stop=file.start + size,
                )
        ended = False
        for file in surveys[last + 1 :]:
            # RocketMQ makes the next file beforehand: it is empty, and has its place
            ended |= file.size != size or file.used_behind > 0 or file.ends_in_blank
            if ended and file.size >= 0 and not plan.live:
                what = "no whole record is in it, nor behind it"
                saves = "the log ends behind its last whole record"
                gives_up = f"{file.used_behind} bytes without a whole record"
                self._add(StepKind.REMOVE_FILE, file.path, what, saves, gives_up=gives_up)

    # ---- what is derived

    def _plan_derived(
        self, records_change: bool, jobs: int | Runner, progress: DoctorProgress | None
    ) -> None:
        queues = index = "the log has changed" if records_change else ""
        if not records_change:
            # `verify` would take a repair's own lock for a writer's
            report = VerifyReport(self._directory.path, live=self._plan.live)
            place = StoreDir(self._directory.path, self._given.store_path_commit_log)
            Verification(place, self._given, report, check_crc=True, progress=progress).run(
                jobs, 0, None, deep=False
            )
            report.raise_unreadable()
            for finding in report.findings:
                if finding.severity is Severity.NOTE:
                    continue
                if finding.part == "consume queue":
                    queues = queues or finding.what
                elif finding.part == "index":
                    index = index or finding.what
            if 0 < self._plan.log_end < self._end_before:
                index = index or "it has keys of what is cut off"
        root = self._directory
        if queues:
            saves = "each message is found at its queue offset"
            self._add(StepKind.REBUILD_QUEUES, root.consume_queue, queues, saves)
        if index and (root.index.is_dir() or self._config.message_index_enable):
            self._add(StepKind.REBUILD_INDEX, root.index, index, "each key is found")

    def _plan_offsets(self) -> None:
        """Offsets of consumers and delay levels that are behind the end of their queue."""
        if self._plan.live:
            return
        ends: dict[QueueKey, int] = {}
        if any(step.kind is StepKind.REBUILD_QUEUES for step in self._plan.steps):
            ends = {key: runs[-1].stop for key, runs in self.runs.items() if runs}
            for one in filter(has_placeholder, self._plan.lost):
                key = one.topic, one.queue_id
                if one.phy_offset < self._plan.log_end:
                    ends[key] = max(ends.get(key, 0), one.queue_offset + 1)
        files = UnitFiles(self._directory, self._config.mapped_file_size_consume_queue)
        try:
            paths = offsets_ahead(
                self._directory, lambda key: ends.get(key) or files.queue_end(key)
            )
        finally:
            files.close()
        for path in paths:
            self._add(
                StepKind.SET_OFFSETS,
                path,
                "it has offsets that are negative, or behind the ends of queues",
                "consumers get what is put from now on; they would skip it up to there",
            )

    def _plan_ending(self) -> None:
        directory, plan = self._directory, self._plan
        # a writer goes on behind what was examined
        log = None if plan.live else LogPlan(directory, self._config, strict=False)
        problem = checkpoint_problem(directory, log)
        if plan.steps or problem:
            what = problem or "log, queues or index have changed"
            saves = "the next opening trusts what this repair has compared, and no more"
            self._add(StepKind.CHECKPOINT, directory.checkpoint, what, saves)
        if directory.was_aborted and not plan.live:
            what = "the last writer did not close the store"
            saves = "the next opening finds all in order, and does not recover"
            self._add(StepKind.CLEAR_ABORT, directory.abort, what, saves)
