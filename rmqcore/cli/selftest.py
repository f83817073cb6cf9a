"""``rmqcore selftest``: what a store survives on this machine, tried out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rmqcore.cli.exit_codes import EXIT_CODES, ExitCode
from rmqcore.cli.failures import StoreCommand
from rmqcore.cli.options import AsJson
from rmqcore.cli.output import print_json, print_table, show
from rmqcore.cli.progress import Bars
from rmqcore.doctor import selftest
from rmqcore.doctor.selftest import SelfTestReport
from rmqcore.simulation import runner as simulation

app = typer.Typer(
    help="Damage stores of its own in every way, and see what is left; needs Linux.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
)

Seed = Annotated[int | None, typer.Option(min=0, help="gives the same random choices again")]
Jobs = Annotated[int, typer.Option(min=1, help="processes that work side by side")]


@app.command("crash", cls=StoreCommand, epilog=EXIT_CODES)
def crash(
    cuts: Annotated[int, typer.Option(min=0, help="power cuts, replayed")] = 1000,
    kills: Annotated[int, typer.Option(min=0, help="writers killed with SIGKILL")] = 200,
    mounted: Annotated[
        int, typer.Option(min=0, help="cuts of each mounted file system; needs root")
    ] = 12,
    seed: Seed = None,
    jobs: Jobs = 1,
    keep: Annotated[
        Path | None, typer.Option(metavar="DIR", help="keep stores that broke a promise there")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Cut the power of writers and kill others; nothing that was acknowledged may be lost.

    Exit code 0 when every promise held, 1 when one did not.
    """
    with Bars() as bars:
        report = selftest.crash(
            cuts=cuts,
            kills=kills,
            mounted=mounted,
            seed=seed,
            jobs=jobs,
            keep=keep,
            progress=bars.show,
        )
    _print(report, as_json)


@app.command("faults", cls=StoreCommand, epilog=EXIT_CODES)
def faults(
    most: Annotated[int, typer.Option("--max", min=1, help="cases of each kind")] = 200,
    seed: Seed = None,
    jobs: Jobs = 1,
    store: Annotated[
        Path | None, typer.Option(metavar="DIR", help="damage copies of this store, a few KB large")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Let each system call fail once, flip each byte, cut each file at each length.

    Exit code 0 when every promise held, 1 when one did not.
    """
    with Bars() as bars:
        report = selftest.faults(most=most, seed=seed, jobs=jobs, store=store, progress=bars.show)
    _print(report, as_json)


@app.command("simulate", cls=StoreCommand, epilog=EXIT_CODES)
def simulate(
    seeds: Annotated[int, typer.Option(min=1, help="clusters, each of its own seed")] = 100,
    minutes: Annotated[
        float, typer.Option(min=0.01, help="simulated, that load and faults last in each")
    ] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="the first one; the others follow it")] = 0,
    jobs: Jobs = 1,
    keep: Annotated[
        Path | None, typer.Option(metavar="DIR", help="keep plans that broke a promise there")
    ] = None,
    plan: Annotated[
        Path | None, typer.Option(metavar="FILE", help="run a plan that was kept, nothing else")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run whole clusters on simulated time, network and disks, and let all kinds of faults befall.

    Exit code 0 when every promise held, 1 when one did not.
    """
    with Bars() as bars:
        report = simulation.simulate(
            seeds=seeds,
            minutes=minutes,
            seed=seed,
            jobs=jobs,
            keep=keep,
            plan=plan,
            progress=bars.show,
        )
    if not as_json:
        hours = report.simulated_s / 3600
        show(f"{hours:.1f} simulated hours, {report.speed:.0f} in an hour of a processor")
    _print(report, as_json)


def _print(report: SelfTestReport, as_json: bool) -> None:
    if as_json:
        print_json(report.to_dict())
    else:
        columns = ("what", "cases", "acknowledged", "broken", "unprotected", "holds", "seconds")
        print_table(
            columns,
            (
                (
                    *(row.name, row.cases, row.acknowledged, row.failures, row.unprotected),
                    *(row.verdict, f"{row.elapsed_s:.1f}"),
                )
                for row in report.rows
            ),
            right=columns[1:],
        )
        for row in report.rows:
            for line in row.why():
                show(line)
        show(f"{report.verdict}; --seed {report.seed} repeats it")
    raise typer.Exit(ExitCode.DONE if report.clean else ExitCode.FINDINGS)
