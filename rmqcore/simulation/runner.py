"""`simulate`: many seeds, in processes side by side, and some of them twice."""

from __future__ import annotations

import errno
import json
import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rmqcore.doctor.selftest import Row, SelfTestReport, _system_calls
from rmqcore.doctor.selftest.children import worker
from rmqcore.doctor.selftest.report import Progress

#: One process runs this many seeds, one after the other.
_BATCH: Final = 50
#: One seed of each batch runs again with other hashes of texts, and has to give the same.
_HASH_SEEDS: Final = ("0", "1")
_BROKEN_MOST: Final = 3

#: A run in which one of these has never happened fails: it has not tried what it reports as tried.
MUST_COME_ABOUT: Final = (
    "send ok",
    "batch ok",
    "transaction ok",
    "delay ok",
    "timer ok",
    "delivered",
    "delivered again",
    "pop acknowledged",
    "fault kill",
    "fault power cut",
    "fault pause",
    "fault clock",
    "fault partition",
    "fault one way",
    "fault break",
    "fault slow",
    "fault loss",
    "fault restart",
    "fault delete",
    "topic deleted",
    "fault full disk",
    "fault failing disk",
    "fault promotion",
    "promoted",
    "fault reset",
    "fault crash",
    "a log beyond its quota",
    "offsets reset",
    "refused by a full disk",
    "refused by a failing disk",
    "started anew behind a failed disk",
    "died at a sync",
    "died at a write",
)


@dataclass(slots=True)
class SimulationReport(SelfTestReport):
    """The rows, and what the runs were together.

    Attributes:
        counts: what came about, how often.
        simulated_s: how long the runs lasted together.
        processor_s: the processor's time that they took.
    """

    counts: Counter[str] = field(default_factory=Counter)
    simulated_s: float = 0.0
    processor_s: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """The report for JSON."""
        told = SelfTestReport.to_dict(self)
        return {
            **told,
            "counts": dict(sorted(self.counts.items())),
            "simulated_s": round(self.simulated_s, 3),
            "processor_s": round(self.processor_s, 3),
        }

    @property
    def speed(self) -> float:
        """Simulated hours in an hour of one processor."""
        return self.simulated_s / self.processor_s if self.processor_s else 0.0


def simulate(
    *,
    seeds: int = 100,
    minutes: float = 1.0,
    seed: int = 0,
    jobs: int = 1,
    keep: str | os.PathLike[str] | None = None,
    plan: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> SimulationReport:
    """Run clusters, each from a seed of its own.

    Args:
        seeds: how many.
        minutes: simulated, that load and faults last in each, on the average.
        seed: the first; the others follow it.
        jobs: processes that work side by side.
        keep: a directory for the plans that broke a promise.
        plan: one that was kept: it is run, and nothing else.
        progress: called as it goes on, from any thread.

    Raises:
        OSError: this is no Linux.
    """
    if sys.platform != "linux":
        raise OSError(errno.ENOTSUP, "simulations watch system calls, which needs Linux")
    many = _Many(minutes, keep, progress, seeds if plan is None else 1)
    if plan is not None:
        task = {"first": 0, "count": 0, "minutes": minutes, "plan": os.fspath(plan)}
        for told in many.run(task, _HASH_SEEDS[0]):
            many.add(told)
        return many.report(seed, whole=False)
    batches = [
        (first, min(_BATCH, seed + seeds - first)) for first in range(seed, seed + seeds, _BATCH)
    ]
    with ThreadPoolExecutor(jobs) as pool:
        for _ in pool.map(many.batch, batches):
            pass
    return many.report(seed, whole=seeds >= 10 * _BATCH)


class _Many:
    """The runs of one call; its methods are called from several threads."""

    def __init__(
        self,
        minutes: float,
        keep: str | os.PathLike[str] | None,
        progress: Progress | None,
        count: int,
    ) -> None:
        self._minutes = minutes
        self._keep = None if keep is None else os.fspath(Path(keep).resolve())
        self._progress = progress
        self._count = count
        self._lock = threading.Lock()
        self._runs = Row(
            "clusters",
            "nothing acknowledged is lost, places and orders hold, all is delivered, it gets on",
        )
        self._twice = Row("run twice", "a seed is one run, whatever the hashes of texts are")
        self._counts: Counter[str] = Counter()
        self._simulated_s = self._processor_s = 0.0

    def batch(self, batch: tuple[int, int]) -> None:
        """Run some seeds, and the first of them again."""
        first, count = batch
        task = {"first": first, "count": count, "minutes": self._minutes, "keep": self._keep}
        traces = {}
        for told in self.run(task, _HASH_SEEDS[0]):
            traces[told["seed"]] = told["trace"]
            self.add(told)
        for told in self.run({**task, "count": 1}, _HASH_SEEDS[1]):
            with self._lock:
                self._twice.cases += 1
                self._twice.acknowledged += _acknowledged(told)
                if told["trace"] != traces.get(told["seed"]):
                    self._twice.fail(f"seed {told['seed']}: the second run was another")

    def run(self, task: dict[str, Any], hash_seed: str) -> Iterator[dict[str, Any]]:
        """Run a process; what it tells of each run."""
        environment = _system_calls.preload() | {"PYTHONHASHSEED": hash_seed}
        with worker("rmqcore.simulation.worker", json.dumps(task), environment) as process:
            yield from map(json.loads, process.stdout or ())
        if process.returncode:
            with self._lock:
                self._runs.fail(f"the process of {task} ended with {process.returncode}")

    def add(self, told: dict[str, Any]) -> None:
        """Count one run."""
        with self._lock:
            self._runs.cases += 1
            self._runs.acknowledged += _acknowledged(told)
            self._runs.elapsed_s += told["took_s"]
            self._counts.update(told["counts"])
            self._simulated_s += told["for_s"]
            self._processor_s += told["took_s"]
            if told["broken"]:
                kept = f" (kept in {told['kept']})" if told["kept"] else ""
                some = "; ".join(told["broken"][:_BROKEN_MOST])
                self._runs.fail(f"seed {told['seed']}{kept}: {some}")
            if self._progress is not None:
                self._progress("clusters", self._runs.cases, self._count)

    def report(self, seed: int, *, whole: bool) -> SimulationReport:
        """What has come of it; of many runs it also says what has not come about."""
        rows = [self._runs]
        if self._twice.cases:
            rows.append(self._twice)
        if whole:
            row = Row("coverage", "everything that is to happen has happened", len(MUST_COME_ABOUT))
            row.acknowledged = sum(self._counts.values())
            for name in MUST_COME_ABOUT:
                if not self._counts[name]:
                    row.fail(f"in no run: {name}")
            rows.append(row)
        return SimulationReport(seed, rows, self._counts, self._simulated_s, self._processor_s)


def _acknowledged(told: dict[str, Any]) -> int:
    return sum(count for name, count in told["counts"].items() if name.endswith(" ok"))
