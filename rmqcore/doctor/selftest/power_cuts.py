"""Power cuts without a disk that loses power: states that a store's files may be left in.

A round makes a `Recording` and opens many states that a cut may leave of it. Every second round has
a kill in its middle. The next round begins with one of the cuts, so that recovery is cut, too.
"""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from rmqcore import MessageStore
from rmqcore.doctor.selftest.recording import Recording
from rmqcore.doctor.selftest.report import Progress, Row
from rmqcore.doctor.selftest.workload import PAGE, check_store, open_for
from rmqcore.world import monotonic_s

_CUTS_A_ROUND = 20
#: After this many rounds a new store is begun.
_GENERATIONS = 4
#: The first store time and the step between two: so far apart that what the checkpoint says
#: decides about single records.
_BEGIN_MS, _STEP_MS = 1_700_000_000_000, 700
#: How many bytes at the log's end an opening compares; with 0 of them checkpoint and mark alone
#: decide.
_OPEN_CHECKS = (0, 1 << 30)
#: The sizes of a log file, one store after the other.
_LOG_FILES = (3 * PAGE, 10 * PAGE)
PROMISE = "what was acknowledged as disk is there, nothing is wrong, the store opens"


def power_cuts(
    mode: str, cuts: int, seed: int, scratch: Path, progress: Progress, kept: Path | None = None
) -> Row:
    """Cut the power of writers ``cuts`` times.

    Args:
        mode: one of the `workload.MODES`.
        cuts: how many states are opened.
        seed: gives the same choices again. In which order threads put, and when those in the
            background flush, is not decided by it.
        scratch: a directory for the stores, best in memory.
        progress: called as it goes on.
        kept: a directory for states that broke the promise, as the cut left them.
    """
    row = Row(f"power cuts, {mode}", PROMISE)
    begun = monotonic_s()
    cutter = _Cutter(row, mode, seed, scratch, kept)
    for number in itertools.count():
        for _ in cutter.round(number, min(_CUTS_A_ROUND, cuts - row.cases)):
            progress(row.name, row.cases, cuts)
        if row.cases >= cuts:
            break
    row.elapsed_s = monotonic_s() - begun
    return row


class _Cutter:
    """Rounds of one mode, each in what one of the cuts before has left."""

    def __init__(self, row: Row, mode: str, seed: int, scratch: Path, kept: Path | None) -> None:
        self._row, self._mode, self._seed, self._kept = row, mode, seed, kept
        self._base, self._target = scratch / "base", scratch / "cut"
        self._next = scratch / "next"
        self._clock = itertools.count(_BEGIN_MS, _STEP_MS)
        self._broken = False

    def round(self, number: int, cuts: int) -> Iterator[None]:
        """Record once, and cut this many times; yields behind each cut."""
        rng = random.Random(f"{self._seed}/{self._mode}/{number}")  # noqa: S311 - repeatable
        log_file = _LOG_FILES[number // _GENERATIONS % len(_LOG_FILES)]
        if self._broken or number % _GENERATIONS == 0:
            shutil.rmtree(self._base, ignore_errors=True)
            self._base.mkdir(parents=True)
            self._broken = False
        try:
            opened = partial(_open, self._base, self._mode, log_file)
            recording = Recording(self._base, opened, self._clock, rng, killed=number % 2 == 1)
        except Exception as error:  # noqa: BLE001 - whatever it is, the promise is broken
            self._row.cases += 1
            self._row.fail(f"round {number}, before a cut: {type(error).__name__}: {error}")
            self._broken = True
            yield
            return
        most = -1
        for cut in range(cuts):
            moment, state = recording.log.any_moment(rng), rng.getstate()
            recording.log.cut(self._target, moment, rng)
            must = recording.durable_at(moment)
            self._row.cases += 1
            self._row.acknowledged += len(must)
            try:
                store = _open(self._target, self._mode, log_file, rng)
                dropped = _check(store, must, recording.order_at(moment))
            except Exception as error:  # noqa: BLE001 - whatever it is, the promise is broken
                where = (
                    f"round {number}, cut {cut}{self._keep(recording, moment, state, number, cut)}"
                )
                self._row.fail(f"{where}: {type(error).__name__}: {error}")
            else:
                if dropped > most:
                    # the next round begins where there is most to be cleared
                    most = dropped
                    shutil.rmtree(self._next, ignore_errors=True)
                    _cut_again(recording, self._next, moment, state)
            shutil.rmtree(self._target)
            yield
        shutil.rmtree(self._base)
        self._broken = most < 0
        if not self._broken:
            self._next.rename(self._base)

    def _keep(self, recording: Recording, moment: int, state: Any, number: int, cut: int) -> str:
        """Keep what a cut has left that broke the promise; says where."""
        if self._kept is None:
            return ""
        image = self._kept / f"{self._mode}-{self._seed}-{number}-{cut}"
        shutil.rmtree(image, ignore_errors=True)
        self._kept.mkdir(parents=True, exist_ok=True)
        _cut_again(recording, image, moment, state)
        return f", kept in {image}"


def _cut_again(recording: Recording, image: Path, moment: int, state: Any) -> None:
    """Leave once more what a cut has left, for which the random numbers were in a state."""
    rng = random.Random(0)  # noqa: S311 - repeatable
    rng.setstate(state)
    recording.log.cut(image, moment, rng)


def _open(path: Path, mode: str, log_file: int, rng: random.Random) -> MessageStore:
    return open_for(
        path,
        mode,
        mapped_file_size_commit_log=log_file,
        open_check_bytes=rng.choice(_OPEN_CHECKS),
    )


def _check(opened: MessageStore, must: list[int], order: list[int]) -> int:
    """Look for what must be there; how many bytes the opening has cut off."""
    with opened as store:
        found = list(check_store(store, must))
        dropped: int = store.recovery_report.dropped_bytes  # type: ignore[attr-defined]
    if found != order[: len(found)]:
        raise ValueError("a message is missing before one that is there")
    return dropped
