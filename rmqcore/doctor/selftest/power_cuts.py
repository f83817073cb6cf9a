"""Power cuts without a disk that loses power: states that a store's files may be left in.

A round records a writer in a `BlockLog` and opens many states that a cut may leave of it. The next
round begins with one of them, so that recovery is cut, too.
"""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path

from rmqcore import Durability
from rmqcore.doctor.selftest import _system_calls
from rmqcore.doctor.selftest.block_log import BlockLog
from rmqcore.doctor.selftest.report import Progress, Row
from rmqcore.doctor.selftest.workload import check_store, open_for, put

_CUTS_A_ROUND = 100
#: rounds after which a new store is begun
_GENERATIONS = 4
PROMISE = "what was acknowledged as disk is there, nothing is wrong, the store opens"


class _Recording:
    """One writer: its log, and what was acknowledged at which moment."""

    def __init__(self, path: Path, mode: str, found: list[int], rng: random.Random) -> None:
        self.log = BlockLog(path)
        self.put = list(found)
        #: pairs (moment, how many of `put` must be there)
        self.durable = [(0, len(found))]
        _system_calls.watch(self.log)
        try:
            self._write(path, mode, rng)
        finally:
            _system_calls.watch(None)
        _system_calls.raise_again()

    def _write(self, path: Path, mode: str, rng: random.Random) -> None:
        store = open_for(path, mode)
        try:
            first = self.put[-1] + 1 if self.put else 0
            for number in range(first, first + rng.choice((5, 40, 120))):
                self.put.append(number)
                if put(store, number) is Durability.DISK:
                    self._acknowledge()
                if rng.random() < 0.03:
                    store.flush()
                    self._acknowledge()
                if rng.random() < 0.03:
                    time.sleep(0.006)
            if rng.random() < 0.5:
                _system_calls.watch(None)
        finally:
            store.close()

    def _acknowledge(self) -> None:
        self.durable.append((self.log.acknowledged(), len(self.put)))

    def durable_at(self, moment: int) -> list[int]:
        """The messages that a cut at a moment may not take."""
        return self.put[: max(count for at, count in self.durable if at <= moment)]


def power_cuts(
    mode: str, cuts: int, seed: int, scratch: Path, progress: Progress, kept: Path | None = None
) -> Row:
    """Cut the power of a writer ``cuts`` times.

    Args:
        mode: one of the `workload.MODES`.
        cuts: how many states are opened.
        seed: gives the same puts and the same choices again. When the background threads flush is
            not decided by it.
        scratch: a directory for the stores, best in memory.
        progress: called as it goes on.
        kept: a directory for states that broke the promise, as the cut left them.
    """
    row = Row(f"power cuts, {mode}", PROMISE)
    begun = time.monotonic()
    found: list[int] = []
    round_number = 0
    while row.cases < cuts:
        rng = random.Random(f"{seed}/{mode}/{round_number}")  # noqa: S311 - repeatable
        base, target = scratch / "base", scratch / "cut"
        if round_number % _GENERATIONS == 0:
            shutil.rmtree(base, ignore_errors=True)
            base.mkdir(parents=True)
            found = []
        recording = _Recording(base, mode, found, rng)
        next_base = scratch / "next"
        for number in range(min(_CUTS_A_ROUND, cuts - row.cases)):
            moment = rng.randint(1, recording.log.now)
            state = rng.getstate()
            recording.log.cut(target, moment, rng)
            if number == 0:
                shutil.rmtree(next_base, ignore_errors=True)
                shutil.copytree(target, next_base)
            must = recording.durable_at(moment)
            row.cases += 1
            row.acknowledged += len(must)
            try:
                there = _check(target, mode, must, recording.put)
                if number == 0:
                    found = there
            except Exception as error:  # noqa: BLE001 - whatever it is, the promise is broken
                where = f"round {round_number}, cut {number}"
                if kept is not None:
                    rng.setstate(state)
                    image = kept / f"{mode}-{seed}-{round_number}-{number}"
                    shutil.rmtree(image, ignore_errors=True)
                    kept.mkdir(parents=True, exist_ok=True)
                    recording.log.cut(image, moment, rng)
                    where += f", kept in {image}"
                row.fail(f"{where}: {type(error).__name__}: {error}")
                if number == 0:
                    round_number += _GENERATIONS - 1 - round_number % _GENERATIONS
            shutil.rmtree(target)
            progress(row.name, row.cases, cuts)
        shutil.rmtree(base)
        next_base.rename(base)
        round_number += 1
    row.elapsed_s = time.monotonic() - begun
    return row


def _check(path: Path, mode: str, must: list[int], written: list[int]) -> list[int]:
    with open_for(path, mode) as store:
        found = check_store(store, must)
    if found != written[: len(found)]:
        raise ValueError("a message is missing before one that is there")
    return found
