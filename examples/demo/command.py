"""``rmqcore demo``: the steps, one after the other, and one table."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from demo.corpus import Corpus
from demo.pipeline import pipeline
from demo.steps import STEPS, Demo, Step
from rmqcore.cli.exit_codes import ExitCode
from rmqcore.cli.options import AsJson, ConfigFile, Settings, configured
from rmqcore.cli.output import print_facts, print_json, print_table, show, styled
from rmqcore.cli.progress import Bars


def demo(
    size_mb: Annotated[float, typer.Option("--size", min=0.01, help="megabytes of text")] = 32,
    keep: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="leave the store here; a temporary directory without it"),
    ] = None,
    spark: Annotated[
        bool, typer.Option("--spark/--no-spark", help="also run the pipeline on Spark")
    ] = True,
    report: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="write the pipeline's report, an HTML page with a plot"),
    ] = None,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Put real text, read it back in every way, kill a writer, recover; compare every byte.

    The text is what the machine has: licences, word lists, package documentation, Python's own
    library. The exit code says the verdict.
    """
    if keep is not None and keep.exists() and any(keep.iterdir()):
        raise typer.BadParameter(f"{keep} is not empty", param_hint="--keep")
    with tempfile.TemporaryDirectory(prefix="rmqcore-demo-") as temporary, Bars() as bars:
        path = keep or Path(temporary) / "store"
        corpus = Corpus(int(size_mb * 1e6))
        steps = _run(Demo(path, configured(config, settings), corpus, bars))
        if spark and all(step.ok for step in steps):
            bars.show("the pipeline on Spark", 0, None)
            steps += pipeline(path, Path(temporary) / "export", report)
    ok = all(step.ok for step in steps)
    if as_json:
        print_json(
            {
                "verdict": "ok" if ok else "failed",
                "store": str(keep) if keep else None,
                "steps": [step.as_dict() for step in steps],
            }
        )
    else:
        _print(steps, ok, keep)
    raise typer.Exit(ExitCode.DONE if ok else ExitCode.FINDINGS)


def _run(demo: Demo) -> list[Step]:
    steps: list[Step] = []
    try:
        for step in STEPS:
            steps.append(step(demo))
            if not steps[-1].ok:
                break
    finally:
        demo.close()
    return steps


def _print(steps: list[Step], ok: bool, keep: Path | None) -> None:
    rows = []
    for step in steps:
        fields = step.as_dict()
        rows.append(
            (
                step.name,
                f"{step.messages:,}" if step.messages else "",
                f"{step.size / 1e6:,.1f}" if step.size else "",
                f"{step.seconds:.3f}",
                f"{fields['messages_per_s']:,}" if step.messages else "",
                f"{fields['mb_per_s']:,.1f}" if step.size else "",
                "ok" if step.ok else "FAILED",
            )
        )
    columns = ["step", "messages", "MB", "seconds", "messages/s", "MB/s", ""]
    print_table(columns, rows, right=columns[1:6], styles={"ok": "good", "FAILED": "bad"})
    print_facts({step.name: step.note for step in steps})
    verdict = (
        f"{styled('OK', 'good')}: everything is as it was put" if ok else styled("FAILED", "bad")
    )
    show(f"\nverdict: {verdict}")
    if keep:
        show(f"the store is in {keep}; look around: rmqcore stat {keep}")
