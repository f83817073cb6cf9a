"""Measure rmqcore beside Apache RocketMQ's store and the Python peers: `make bench-peers`.

Refuses with the reason when something is missing. A part that could not be measured is named with
the reason, the others are printed, and nothing is written.
"""

from __future__ import annotations

import argparse
import importlib
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import backends
import comparison
import limits
import neighbours
import report
from growth import Growth
from workers import Refusal, prepare_java

_GIB = 1 << 30


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="three minutes; nothing is written")
    parser.add_argument(
        "--only", default="", metavar="PART,...", help="some parts of the comparison"
    )
    parser.add_argument("--directory", default=None, help="the disk to measure (default: /tmp's)")
    return parser.parse_args()


def _check(directory: Path, *, quick: bool) -> None:
    """Refuse what would end half way."""
    needed = (6 if quick else 24) * _GIB
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise Refusal(f"{directory} has {free / _GIB:.1f} GiB free, {needed // _GIB} are needed")
    for name, extra in (("matplotlib", "bench"), ("pyarrow", "arrow")):
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise Refusal(f"{name} is missing; the extra is [{extra}]") from error
    neighbours.check()
    prepare_java()


def _measure(directory: Path, options: argparse.Namespace, say: Callable[[str], None]):
    machine = limits.machine()
    quick = options.quick
    run = comparison.Comparison(directory, comparison.QUICK if quick else comparison.FULL, say)
    rows = run.run(options.only)
    peers, queues, costs, openings = [], [], [], []
    if not options.only:
        pairs, part = (1, 10) if quick else (3, 1)
        try:
            peers = neighbours.measure(directory, say, pairs=pairs, part=part)
        except Refusal as reason:
            run.refused["neighbours"] = str(reason)
        try:
            queues = backends.measure(directory, say, pairs=pairs, part=part)
        except Refusal as reason:
            run.refused["backends"] = str(reason)
        try:
            costs, openings = Growth(directory, say, quick=quick).run()
        except Refusal as reason:
            run.refused["growth"] = str(reason)
    machine["load after the run"] = limits.machine()["load before the run"]
    found = report.Report(machine, run.limits, rows, run.latencies, peers, queues, costs, openings)
    return found, run.refused


def main() -> int:
    """Run, print, and write the document when everything was measured in full."""
    options = _arguments()
    began = time.monotonic()

    def say(what: str) -> None:
        print(f"{time.monotonic() - began:6.0f} s  {what}", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="bench-peers-", dir=options.directory) as name:
        try:
            _check(Path(name), quick=options.quick)
            found, refused = _measure(Path(name), options, say)
        except Refusal as reason:
            print(f"bench-peers: no result: {reason}", file=sys.stderr)
            return 1
    print(found.tables())
    for part, reason in refused.items():
        print(f"bench-peers: {part}: no result: {reason}", file=sys.stderr)
    if refused:
        return 1
    if not (options.quick or options.only):
        found.write()
        say(f"written: {report.DOCUMENT.name}, {report.PICTURE.name}, {report.HISTORY.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
