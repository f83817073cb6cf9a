"""What a selection costs beside reading all: ``bench/selection.py``, or ``--size 256m``.

One process, one thread, files in the page cache; a ratio is that of processor time in one round,
and the median of the rounds counts. Bytes of log are counted, not estimated.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from rmqcore import Message, open_store
from rmqcore.native.columns._columns import ColumnDecoder
from rmqcore.scan import DEFAULT_COLUMNS, SelectedLog, open_log, read, read_store, shown
from rmqcore.scan.queue_walk import QueueWalk
from rmqcore.scan.selection import RowFilter, Selection

DOCUMENT = Path(__file__).parent.parent / "docs" / "benchmarks.md"
_BEGIN, _END = "<!-- figures: written by bench/selection.py -->", "<!-- end of selections -->"
_FULL_SIZE, _ROUNDS = 1 << 30, 5
_BATCH, _TOPICS, _QUEUES = 64, 10, 4
_HOUR_MS, _FIRST_MS = 3_600_000, 1_700_000_000_000
_KEYS = 20_000


def write(path: Path, size: int) -> int:
    """A store of ten topics in batches, stored over an hour; how many messages it has."""
    count = size // 420 // _BATCH * _BATCH
    with open_store(path, mapped_file_size_commit_log=256 << 20) as store:
        for start in range(0, count, _BATCH):
            # the store's clock, so that an hour passes in seconds
            store.parts.files.tail.fixed_time_ms = _FIRST_MS + start * _HOUR_MS // count
            run = start // _BATCH
            store.put_messages(
                [
                    Message(
                        f"Topic{run % _TOPICS}",
                        b"%0256d" % number,
                        queue_id=run // _TOPICS % _QUEUES,
                        tags=f"Tag{number % 3}",
                        keys=[f"key-{number}"],
                    )
                    for number in range(start, start + _BATCH)
                ]
            )
    return count


def bytes_read(path: Path, selection: Selection) -> int:
    """Bytes of log that are read for a selection."""
    log = open_log(path)
    wanted = shown(log, selection)
    size = 0
    for split in SelectedLog(log, wanted).splits():
        if split.units is None:
            size += split.size
            continue
        chosen = RowFilter(**wanted)
        decoder = ColumnDecoder(["phy_offset"], row_max=1 << 16, rows=chosen)
        walk = QueueWalk(split, chosen)
        for _ in walk.run(decoder):
            decoder.take()
        size += walk.bytes_read
    return size


def rows_of(path: Path, **selection: object) -> int:
    """Read a selection with the default columns; how many rows there are."""
    return sum(len(batch) for batch in read_store(path, **selection))


def by_mask(path: Path, tag: str) -> int:
    """One tag, chosen by a mask over all columns."""
    rows = 0
    for split in open_log(path).splits():
        for columns in read(split, DEFAULT_COLUMNS):
            batch = pa.record_batch(columns)
            rows += batch.filter(pc.equal(batch.column("tags"), tag)).num_rows
    return rows


def timed(work: Callable[[], int]) -> tuple[float, int]:
    """(processor seconds, what it answered)."""
    start = time.process_time()
    found = work()
    return time.process_time() - start, found


def figures(path: Path, count: int, rounds: int) -> list[tuple[str, str, str, str]]:
    """(what, figure, target, whether it is reached)."""
    end = open_log(path).end
    last = _FIRST_MS + _HOUR_MS * 9 // 10
    drawn = random.Random(1)
    keys = {
        topic: [
            f"key-{(number * _TOPICS + topic) * _BATCH + drawn.randrange(_BATCH)}"
            for number in drawn.choices(range(count // _BATCH // _TOPICS), k=_KEYS // _TOPICS)
        ]
        for topic in range(_TOPICS)
    }
    seconds: dict[str, list[float]] = {}
    with open_store(path, mode="a") as store:

        def one_by_one() -> int:
            return sum(len(store.query_message(f"Topic{t}", key)) for t in keys for key in keys[t])

        def together() -> int:
            return sum(len(one) for t in keys for one in store.query_many(f"Topic{t}", keys[t]))

        paths: dict[str, tuple[Callable[[], int], int]] = {
            "all": (lambda: rows_of(path), count),
            "tag": (lambda: rows_of(path, tags=["Tag1"]), count // 3),
            "mask": (lambda: by_mask(path, "Tag1"), count // 3),
            "topic": (lambda: rows_of(path, topics=["Topic3"]), count // _TOPICS),
            "time": (lambda: rows_of(path, begin_ms=last), count // 10),
            "query": (one_by_one, _KEYS),
            "queries": (together, _KEYS),
        }
        for number in range(rounds + 1):
            for name, (work, wanted) in paths.items():
                taken, found = timed(work)
                if abs(found - wanted) > max(2, count // 5000):
                    raise SystemExit(f"{name}: {found} rows, {wanted} were expected")
                if number:
                    seconds.setdefault(name, []).append(taken)

    def ratio(one: str, other: str) -> float:
        return statistics.median(a / b for a, b in zip(seconds[one], seconds[other], strict=True))

    topic_share = bytes_read(path, {"topics": ["Topic3"]}) / end
    time_share = bytes_read(path, {"begin_ms": last}) / end
    rows = [
        ("one of three tags, processor time of reading all", ratio("tag", "all"), 1.0),
        ("the same by a mask over Arrow columns", ratio("mask", "all"), None),
        ("one of ten topics, bytes of the log", topic_share, 0.15),
        ("one of ten topics, processor time of reading all", ratio("topic", "all"), None),
        ("the last tenth of the time, bytes of the log", time_share, 0.12),
        ("the last tenth of the time, processor time of reading all", ratio("time", "all"), None),
        ("a query of many keys, processor time of single queries", ratio("queries", "query"), None),
    ]
    return [
        (
            what,
            f"{figure:.2f}",
            "" if most is None else f"at most {most:g}",
            "" if most is None else "reached" if figure <= most else "**above**",
        )
        for what, figure, most in rows
    ]


def main() -> None:
    """Measure, print, and after a full run write the table into docs/benchmarks.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="1g")
    parser.add_argument("--rounds", type=int, default=_ROUNDS)
    given = parser.parse_args()
    size = int(given.size[:-1]) << {"m": 20, "g": 30}[given.size[-1]]
    folder = Path(tempfile.mkdtemp(prefix="selection-"))
    try:
        count = write(folder / "store", size)
        rows = figures(folder / "store", count, given.rounds)
    finally:
        shutil.rmtree(folder)
    table = "\n".join(
        [
            f"{count:,} messages with bodies of 256 bytes in ten topics, {given.rounds} rounds.",
            "",
            "| a selection | ratio, median | wanted | |",
            "|---|---:|---|---|",
            *(f"| {' | '.join(row)} |" for row in rows),
        ]
    )
    print(table)
    if size >= _FULL_SIZE and given.rounds >= _ROUNDS:
        text = DOCUMENT.read_text("utf-8")
        head, _, rest = text.partition(_BEGIN)
        _, _, tail = rest.partition(_END)
        DOCUMENT.write_text(f"{head}{_BEGIN}\n\n{table}\n\n{_END}{tail}", "utf-8")


if __name__ == "__main__":
    main()
