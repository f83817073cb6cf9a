"""One row of the comparison: what it asks, what it is to reach, and what was measured."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field


@dataclass(slots=True)
class Row:
    """Rates of both sides, pair by pair.

    Attributes:
        name: short name, used in the history.
        title: what both sides do.
        at_least: ratio wanted; None where none is.
        aim: ratio hoped for.
        unit: of a rate, "M/s" or "k/s" of messages, or "MiB" where less is better.
        did: messages and bytes of one round, threads, flush mode, dispatch: filled by the run.
        pairs: (Java, rmqcore), in the order measured.
        beside: a limit or a target that is not a ratio, in words.
    """

    name: str
    title: str
    at_least: float | None
    aim: float | None = None
    unit: str = "M/s"
    did: str = ""
    pairs: list[tuple[float, float]] = field(default_factory=list)
    beside: str = ""

    @property
    def ratios(self) -> list[float]:
        """How many times better rmqcore was, pair by pair."""
        if self.unit == "MiB":
            return [java / ours for java, ours in self.pairs]
        return [ours / java for java, ours in self.pairs]

    @property
    def ratio(self) -> float:
        """The median of the pairs."""
        return statistics.median(self.ratios)

    @property
    def java(self) -> float:
        """Java's median."""
        return statistics.median(pair[0] for pair in self.pairs)

    @property
    def ours(self) -> float:
        """The median of rmqcore."""
        return statistics.median(pair[1] for pair in self.pairs)

    @property
    def verdict(self) -> str:
        """Whether the ratio is what it should be."""
        if self.at_least is None:
            return ""
        if self.aim is not None and self.ratio >= self.aim:
            return "aim"
        return "ok" if self.ratio >= self.at_least else "below"


def new_rows() -> dict[str, Row]:
    """The rows of the comparison with Apache RocketMQ's store, with nothing measured yet."""
    rows = [
        Row("put", "put, async flush, 1 thread", 6, 12),
        Row("put_dispatch", "put and dispatch, 1 thread", 6, 12),
        Row("put_message", "put_message, prepared messages, 1 thread", None),
        Row("put_4", "put, async flush, 4 threads", 5, 10),
        Row("batch_encoded", "put in batches of 64, encoded bodies", 6, 10),
        Row("batch_list", "put in batches of 64, a list of messages", None),
        Row("put_columns", "put a table (Java: batches of 64, a list of messages)", 2, 4),
        Row("put_1k", "put, 1 KiB bodies, 1 thread", 4, 8),
        Row("sync_1", "put, sync flush, 1 caller", 1.0, 1.2, "k/s"),
        Row("sync_8", "put, sync flush, 8 threads", 1.5, 2, "k/s"),
        Row("sync_8_async", "put, sync flush, 8 asyncio tasks", None, None, "k/s"),
        Row("sync_64", "put, sync flush, 64 threads", 2.5, 3.5, "k/s"),
        Row("sync_64_async", "put, sync flush, 64 asyncio tasks", 2.5, 6, "k/s"),
        Row("get", "get, 32 a call, sizes read", 1.0, 2),
        Row("get_decoded", "get, 32 a call, decoded", 0.8, 1.5),
        Row("scan", "scan to Arrow columns (Java: get, decoded)", 8, 15),
        Row("query", "query by key", 3, 6),
        Row("open_lost", "open, consume queues, index, checkpoint lost", 8, 15),
        Row("open_killed", "open after kill -9", 5, 10),
        Row("memory", "anonymous memory at Java's own full rate", 8, None, "MiB"),
        Row("sustained", "put over eight file rolls, 1 thread", None),
        Row("cold", "put into a cold file, 1 thread", None),
    ]
    return {row.name: row for row in rows}
