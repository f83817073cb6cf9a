"""What a run found: tables, docs/benchmarks.md with its picture, a line of history."""

from __future__ import annotations

import json
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from backends import Backend
from growth import Cost, Opening
from limits import Limits
from neighbours import Neighbour
from rows import Row

ROOT = Path(__file__).parent.parent.parent
DOCUMENT = ROOT / "docs" / "benchmarks.md"
PICTURE = ROOT / "docs" / "benchmarks.svg"
HISTORY = ROOT / "bench" / "history.jsonl"
_BEGIN, _END = "<!-- figures: written by make bench-peers -->", "<!-- end of figures -->"
_WORDS = {"aim": "aim reached", "ok": "reached", "below": "**below**", "": ""}


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that one complete run measured."""

    machine: dict[str, str]
    limits: Limits
    rows: dict[str, Row]
    latencies: list[tuple[str, str, dict]]
    neighbours: list[Neighbour]
    backends: list[Backend]
    costs: list[Cost]
    openings: list[Opening]

    def tables(self) -> str:
        """All tables, in Markdown."""
        parts = [self._facts(), _comparison(self.rows)]
        if self.latencies:
            parts.append(_latency(self.latencies))
        if self.neighbours:
            parts.append(_python(self.neighbours))
        if self.backends:
            parts.append(backend_table(self.backends))
        if self.costs:
            parts.append(_growth(self.costs, self.openings))
        return "\n".join(parts)

    def _facts(self) -> str:
        facts = [f"{name}: {value}" for name, value in self.machine.items()]
        best = self.limits
        facts += [
            f"memcpy into a warm mapped file: {best.copy_rate / 1e9:.1f} GB/s",
            f"CRC-32: {best.crc_rate / 1e9:.1f} GB/s",
        ]
        return "".join(f"- {fact}\n" for fact in facts)

    def write(self) -> None:
        """Put the tables into the document, draw the picture, add to the history."""
        before, _, rest = DOCUMENT.read_text("utf-8").partition(_BEGIN)
        after = rest.partition(_END)[2]
        text = f"{before}{_BEGIN}\n\n{self.tables()}\n{_END}{after}"
        DOCUMENT.write_text(text, "utf-8")
        draw(self.rows, PICTURE)
        with HISTORY.open("a", encoding="utf-8") as file:
            file.write(json.dumps(self._line()) + "\n")

    def _line(self) -> dict:
        command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return {
            "sha": done.stdout.strip(),
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "machine": self.machine,
            "limits": {name: round(value) for name, value in asdict(self.limits).items()},
            "figures": {
                row.name: {
                    "java": float(f"{row.java:.4g}"),
                    "rmqcore": float(f"{row.ours:.4g}"),
                    "ratio": round(row.ratio, 2),
                }
                for row in self.rows.values()
            },
            "python": {
                one.name: {"rate": round(one.rate), "ratio": round(one.ratio, 1)}
                for one in self.neighbours
            },
            "backends": {
                f"{one.program} {one.name}": {
                    "rate": round(one.rate),
                    "ratio": round(one.ratio, 1),
                }
                for one in self.backends
            },
        }


def _table(head: str, lines: list[list[str]]) -> str:
    columns = head.split("|")
    rows = [columns, ["---"] * len(columns), *lines]
    return "".join("| " + " | ".join(row) + " |\n" for row in rows)


def _comparison(rows: dict[str, Row]) -> str:
    scales = {"M/s": 1e6, "k/s": 1e3, "MiB": 1.0}
    lines, notes = [], []
    for row in rows.values():
        scale = scales[row.unit]
        wanted = "" if row.at_least is None else f"{row.at_least:g}"
        if row.aim is not None:
            wanted += f" (aim {row.aim:g})"
        figures = (f"{side / scale:.3g} {row.unit}" for side in (row.java, row.ours))
        ratios = (f"{part:.2f}" for part in (row.ratio, min(row.ratios), max(row.ratios)))
        lines.append([row.title, *figures, *ratios, wanted, _WORDS[row.verdict]])
        beside = f" {row.beside}." if row.beside else ""
        notes.append(f"- *{row.title}*: {row.did}.{beside}\n")
    head = "operation|RocketMQ 5.5.0|rmqcore|ratio, median|min|max|at least|"
    return f"{_table(head, lines)}\nWhat both sides did:\n\n{''.join(notes)}"


def _latency(latencies: list[tuple[str, str, dict]]) -> str:
    names = {"java": "RocketMQ 5.5.0", "rmqcore": "rmqcore"}
    lines = []
    for title, side, found in latencies:
        figures = [f"{found[part] / 1e3:,.1f}" for part in ("p50", "p99", "p999", "max")]
        lines.append([title, names[side], *figures, f"{found['messages']:,}"])
    head = "a put, in microseconds, while|side|p50|p99|p99.9|max|puts"
    return _table(head, lines)


def _python(found: list[Neighbour]) -> str:
    lines = [
        [
            one.name,
            one.durability,
            "yes" if one.survives else f"no: {one.survived} of 200",
            f"{one.rate:,.0f}",
            f"{one.ratio:,.0f}",
        ]
        for one in sorted(found, key=lambda one: -one.rate)
    ]
    head = "Python peer|a put is in|survives kill -9|puts a second|rmqcore, same durability: times"
    return _table(head, lines)


def backend_table(found: list[Backend]) -> str:
    """The queues of other programs, each beside ours at its durability."""
    lines = [
        [
            f"{one.program} {one.name}",
            one.durability,
            f"{one.rate:,.0f}",
            one.ours[0],
            f"{one.our_rate:,.0f}",
            f"{one.ratio:,.1f}",
        ]
        for one in found
    ]
    head = "backend|survives|in and out, a second|ours|in and out, a second|times"
    return _table(head, lines)


def _growth(costs: list[Cost], openings: list[Opening]) -> str:
    lines = [
        [
            f"{c.messages:,}",
            f"{c.queues:,}",
            f"{c.put_us:.2f}",
            f"{c.get_us:.3f}",
            f"{c.query_us:.1f}",
        ]
        for c in costs
    ]
    first = _table("messages|queues|put, us|get, us|query, us", lines)
    lines = [[o.what, f"{o.seconds:.2f} s", f"{o.memory / (1 << 20):.0f} MiB"] for o in openings]
    return f"{first}\n{_table('opening after a clean close|time|anonymous memory', lines)}"


def draw(rows: dict[str, Row], path: Path) -> None:
    """One bar a row: how many times faster, from the least to the greatest pair, and the target."""
    from matplotlib.figure import Figure

    shown = [row for row in reversed(rows.values()) if row.at_least is not None]
    figure = Figure(figsize=(9, 0.36 * len(shown) + 1.2), layout="constrained")
    axes = figure.subplots()
    for place, row in enumerate(shown):
        reached = row.verdict != "below"
        axes.barh(place, row.ratio, color="#2a78b5" if reached else "#c8553d", height=0.62)
        axes.plot([min(row.ratios), max(row.ratios)], [place, place], color="#1c1c1c", linewidth=1)
        axes.plot(row.at_least, place, marker="|", markersize=15, color="#1c1c1c")
        axes.text(max(row.ratios), place, f"  {row.ratio:.1f}", va="center", fontsize=8)
    axes.set_yticks(range(len(shown)), [row.title for row in shown], fontsize=8)
    axes.set_xscale("log")
    axes.axvline(1, color="#888888", linewidth=0.8)
    axes.set_xlabel("times Apache RocketMQ 5.5.0's store, same run; | is the target", fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})
