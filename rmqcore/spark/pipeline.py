"""The whole pipeline, compared at every step: audit, rebuild, traffic, export, SQL."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from rmqcore.scan import DEFAULT_COLUMNS
from rmqcore.spark.analysis import traffic
from rmqcore.spark.jobs import audit, export, rebuild_consume_queues
from rmqcore.spark.plot import page, table, traffic_picture
from rmqcore.spark.reader import read
from rmqcore.world import monotonic_s

_QUERY = (
    "SELECT topic, count(*) AS messages, count(DISTINCT queue_id) AS queues, "
    "sum(length(body)) AS bytes FROM {log} GROUP BY topic ORDER BY messages DESC, topic"
)


@dataclass(frozen=True, slots=True)
class PipelineStep:
    """What one step did.

    Attributes:
        name: of the step.
        messages: how many it looked at.
        size: bytes of log, or of the files it wrote.
        seconds: wall time.
        note: what was found.
        ok: whether it is what the other steps say.
    """

    name: str
    messages: int
    size: int
    seconds: float
    note: str
    ok: bool


@dataclass(slots=True)
class PipelineReport:
    """All steps, and the tables behind them.

    Attributes:
        store: the store's directory.
        steps: in order.
        topics: rows of the query: topic, messages, queues, bytes of bodies.
        minutes: rows of the traffic: topic, minute, messages, bytes, latencies.
    """

    store: str
    steps: list[PipelineStep] = field(default_factory=list)
    topics: list[dict[str, Any]] = field(default_factory=list)
    minutes: list[dict[str, Any]] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """True when every step agrees."""
        return all(step.ok for step in self.steps)

    def as_dict(self) -> dict[str, Any]:
        """The report as plain values, for JSON."""
        return {
            "ok": self.ok,
            "store": self.store,
            "steps": [asdict(step) for step in self.steps],
            "topics": self.topics,
        }

    def as_html(self) -> str:
        """The report as a page, with a picture of the traffic."""
        steps = [
            (s.name, s.messages, s.size / 1e6, s.seconds, s.note, "ok" if s.ok else "FAILED")
            for s in self.steps
        ]
        topics = [tuple(row.values()) for row in self.topics]
        minutes = [tuple(row.values()) for row in self.minutes]
        return page(
            f"{Path(self.store).name}: what is in the log",
            [
                traffic_picture(self.minutes),
                table("Steps", (("step", "messages", "MB", "seconds", "found", ""), steps)),
                table("Topics", (("topic", "messages", "queues", "bytes of bodies"), topics)),
                table("Minutes", (tuple(self.minutes[0]) if self.minutes else (), minutes)),
            ],
        )


def run_pipeline(
    spark: SparkSession, store: str | os.PathLike[str], target: str | os.PathLike[str]
) -> PipelineReport:
    """Audit a cold store, rebuild its consume queues, measure it, export it, and ask in SQL.

    Args:
        spark: the session.
        store: the store's directory; its consume queues are written anew.
        target: directory that the Parquet files go to.
    """
    return _Pipeline(spark, Path(store), Path(target)).run()


class _Pipeline:
    def __init__(self, spark: SparkSession, store: Path, target: Path) -> None:
        self._spark = spark
        self._store = store
        self._target = target
        self._report = PipelineReport(str(store))
        self._messages = -1

    def run(self) -> PipelineReport:
        steps: tuple[tuple[str, Callable[[], tuple[int, int, str, bool]]], ...] = (
            ("audit", self._audit),
            ("rebuild queues", self._rebuild),
            ("traffic", self._traffic),
            ("export", self._export),
            ("SQL", self._query),
        )
        for name, step in steps:
            began = monotonic_s()
            messages, size, note, ok = step()
            seconds = monotonic_s() - began
            self._report.steps.append(PipelineStep(name, messages, size, seconds, note, ok))
        return self._report

    def _audit(self) -> tuple[int, int, str, bool]:
        report = audit(self._spark, self._store)
        size = report.max_phy_offset - report.min_phy_offset
        note = f"every CRC, {report.units:,} units in {report.queues} queues"
        if not report.clean:
            note = str(report.findings[0])
        return report.records, size, note, report.clean

    def _rebuild(self) -> tuple[int, int, str, bool]:
        report = rebuild_consume_queues(self._spark, self._store)
        size = self._report.steps[0].size
        note = f"{report.files} files, " + (
            "the same byte for byte" if report.identical else "NOT the same"
        )
        return report.records, size, note, report.identical

    def _traffic(self) -> tuple[int, int, str, bool]:
        rows = [row.asDict() for row in traffic(self._spark, self._store).collect()]
        self._report.minutes = rows
        self._messages = sum(row["messages"] for row in rows)
        size = sum(row["bytes"] for row in rows)
        minutes = len({row["minute"] for row in rows})
        slowest = max((row["p99_ms"] for row in rows), default=0.0)
        note = f"{minutes} minutes, {slowest:.0f} ms p99 from birth to storing"
        return self._messages, size, note, True

    def _export(self) -> tuple[int, int, str, bool]:
        parts = export(self._spark, self._store, self._target, columns=DEFAULT_COLUMNS)
        rows = sum(part.rows for part in parts)
        note = f"{len(parts)} Parquet files"
        return rows, sum(part.bytes for part in parts), note, rows == self._messages

    def _query(self) -> tuple[int, int, str, bool]:
        log = read(self._spark, self._store, columns=("topic", "queue_id", "body"))
        files = self._spark.read.schema(log.schema).parquet(str(self._target))
        ours, theirs = (
            [row.asDict() for row in self._spark.sql(_QUERY, log=frame).collect()]
            for frame in (log, files)
        )
        self._report.topics = ours
        messages = sum(row["messages"] for row in ours)
        note = f"{len(ours)} topics, the log and the Parquet files " + (
            "agree" if ours == theirs else "DIFFER"
        )
        size = sum(row["bytes"] for row in ours)
        return messages, size, note, ours == theirs and messages == self._messages
