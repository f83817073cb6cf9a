"""The process that runs seeds, whose system calls are watched: ``python -m`` this.

It writes a JSON object a line: what each run was. A plan that broke a promise is kept.
"""

from __future__ import annotations

import gc
import json
import logging
import sys
from pathlib import Path
from typing import Any

from rmqcore.simulation.disk import is_watched
from rmqcore.simulation.plan import Plan, draw
from rmqcore.simulation.report import Report
from rmqcore.simulation.run import run


def main() -> None:
    """Run the seeds that the only argument names as JSON."""
    task = json.loads(sys.argv[1])
    logging.disable(logging.CRITICAL)
    # nothing of this process is a run's garbage
    gc.freeze()
    for seed in range(task["first"], task["first"] + task["count"]):
        plan = draw(seed, task["minutes"], power_cuts=is_watched())
        _report(seed, plan, run(plan), task.get("keep"))
    if task.get("plan"):
        plan = Plan.from_json(Path(task["plan"]).read_text("utf-8"))
        _report(plan.seed, plan, run(plan), None)


def _report(seed: int | str, plan: Plan, report: Report, keep: str | None) -> None:
    kept = ""
    if report.broken and keep is not None:
        path = Path(keep) / f"plan-{seed}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(plan.to_json(), "utf-8")
        kept = str(path)
    told: dict[str, Any] = {
        "seed": seed,
        "broken": [str(each) for each in report.broken],
        "kept": kept,
        "trace": report.trace,
        "events": report.events,
        "for_s": report.for_s,
        "took_s": report.took_s,
        "counts": report.counts,
    }
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
