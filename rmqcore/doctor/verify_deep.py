"""What only a record by record look finds: times that go back, bodies that cannot be unpacked."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from rmqcore._codec import decode_record
from rmqcore.doctor.findings import Severity, VerifyReport
from rmqcore.errors import RmqCoreError
from rmqcore.native.format._numbers import SysFlag
from rmqcore.scan.log_walk import Damage
from rmqcore.scan.plan import LogPlan
from rmqcore.scan.read import read
from rmqcore.scan.runner import Runner, run
from rmqcore.scan.split import Split

_COLUMNS = ("phy_offset", "store_size", "store_timestamp", "sys_flag")
_PLACES_MAX = 100


@dataclass(slots=True)
class DeepReport:
    """What one split has.

    Attributes:
        first_ms, last_ms: store time of its first and its last record; 0 without any.
        first: physical offset of its first record.
        set_back: (physical offset, milliseconds) of records that are older than the one before.
        packed: (physical offset, reason) of bodies that cannot be unpacked.
    """

    first_ms: int = 0
    last_ms: int = 0
    first: int = -1
    set_back: list[tuple[int, int]] = field(default_factory=list)
    packed: list[tuple[int, str]] = field(default_factory=list)


def check_deeply(
    log: LogPlan,
    splits: list[Split],
    report: VerifyReport,
    jobs: int | Runner,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Look at every record of some splits.

    Args:
        log: of the store.
        splits: what of it is read.
        report: gets what is found.
        jobs: processes that read side by side, or what runs them.
        progress: called with (bytes done, bytes in all); None for nobody.
    """
    last_ms, told = 0, 0
    for part in run(look_deeply, splits, jobs=jobs, progress=progress):
        if part.first >= 0 and part.first_ms < last_ms:
            part.set_back.insert(0, (part.first, last_ms - part.first_ms))
        last_ms = part.last_ms or last_ms
        for phy_offset, back_ms in part.set_back[: max(0, _PLACES_MAX - told)]:
            what = f"the record is {back_ms} ms older than the one before: the clock was set back"
            how = "offsets by time are found by halving, and may be off around it"
            report.add(Severity.NOTE, "log", log.directory.commit_log, phy_offset, what, how)
        told += len(part.set_back)
        for phy_offset, reason in part.packed:
            what = f"the body is marked as compressed, and cannot be unpacked: {reason}"
            how = "its CRC is right, so the producer has sent it so"
            report.add(Severity.NOTE, "log", log.directory.commit_log, phy_offset, what, how)


def look_deeply(split: Split) -> DeepReport:
    """Look at the records of one split; damage is passed over, the audit tells of it."""
    found = DeepReport()
    for batch in read(split, _COLUMNS, uncommitted=True, on_damage=_pass_over):
        offsets = batch.numbers("phy_offset")
        # the column counts microseconds
        times = batch.numbers("store_timestamp") // 1000
        if not len(offsets):
            continue
        if found.first < 0:
            found.first, found.first_ms = int(offsets[0]), int(times[0])
            before = times[:1]
        else:
            before = np.array([found.last_ms])
        back = np.concatenate((before, times[:-1])) - times
        for number in np.flatnonzero(back > 0).tolist():
            if len(found.set_back) < _PLACES_MAX:
                found.set_back.append((int(offsets[number]), int(back[number])))
        packed = np.flatnonzero(batch.numbers("sys_flag") & SysFlag.COMPRESSED)
        for number in packed.tolist():
            place = int(offsets[number]), int(batch.numbers("store_size")[number])
            reason = _unpacked(split, *place)
            if reason and len(found.packed) < _PLACES_MAX:
                found.packed.append((place[0], reason))
        found.last_ms = int(times[-1])
    return found


def _unpacked(split: Split, phy_offset: int, size: int) -> str:
    """Why the body of a record cannot be unpacked; empty when it can."""
    start = split.file_start(phy_offset)
    try:
        with split.path_at(start).open("rb", buffering=0) as stream:
            record = os.pread(stream.fileno(), size, phy_offset - start)
        decode_record(record).decompressed_body()
    except (RmqCoreError, ValueError, OSError) as error:
        return str(error)
    return ""


def _pass_over(damage: Damage) -> None:
    pass
