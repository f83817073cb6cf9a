"""The last part of the demonstration: the store that it wrote, through the pipeline on Spark.

Runs as a command of its own, so that neither Java nor what it prints is in this process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from demo.steps import Step
from rmqcore.cli.exit_codes import ExitCode
from rmqcore.cli.notes import note

_MISSING = (ExitCode.USAGE, ExitCode.STORE)


def pipeline(store: Path, target: Path, html: Path | None) -> list[Step]:
    """Audit, rebuild, measure, export and query the store.

    Args:
        store: its directory; nobody has it open.
        target: where the Parquet files go.
        html: where the report with its picture goes; None for none.

    Returns:
        a step for each; none, and a line that says why, where Spark or Java is missing.
    """
    command = [sys.executable, "-m", "rmqcore", "spark", "pipeline", str(store), str(target)]
    command += ["--json", "--cores", "2"]
    command += [] if html is None else ["--html", str(html)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode in _MISSING:
        reason = done.stderr.strip().splitlines()[-1].removeprefix("rmqcore: ")
        note(f"the part on Spark was left out: {reason}")
        return []
    try:
        report = json.loads(done.stdout)
    except ValueError:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return [Step("spark", 0, 0, 0.0, lines[-1], ok=False)]
    return [
        Step(
            f"spark: {step['name']}",
            step["messages"],
            step["size"],
            step["seconds"],
            step["note"],
            step["ok"],
        )
        for step in report["steps"]
    ]
