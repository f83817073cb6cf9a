"""``rmqcore rebuild cq`` and ``rebuild index``: a cold store's, from its log alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rmqcore.cli.exit_codes import EXIT_CODES
from rmqcore.cli.failures import StoreCommand
from rmqcore.cli.options import AsJson, ConfigFile, Settings, StorePath, configured
from rmqcore.cli.output import print_facts, print_json
from rmqcore.cli.progress import Bars
from rmqcore.rebuild.cold_store import RebuildReport
from rmqcore.rebuild.consume_queues import rebuild_consume_queues
from rmqcore.rebuild.index_files import rebuild_index

if TYPE_CHECKING:
    from rmqcore.config import StoreConfig

app = typer.Typer(
    help="Write consume queues or index of a cold store anew, from its log alone.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
)

Jobs = Annotated[int, typer.Option(min=1, help="processes that work side by side")]
SkipDamage = Annotated[
    bool,
    typer.Option(
        "--skip-damaged", "--skip-damage", help="pass over damaged records instead of giving up"
    ),
]


@app.command("cq", cls=StoreCommand, epilog=EXIT_CODES)
def consume_queues(
    store: StorePath,
    jobs: Jobs = 1,
    skip_damage: SkipDamage = False,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Write every consume queue anew; the old files stay until the new ones are on the disk."""
    _rebuild(
        rebuild_consume_queues, store, configured(config, settings), jobs, skip_damage, as_json
    )


@app.command("index", cls=StoreCommand, epilog=EXIT_CODES)
def index(
    store: StorePath,
    jobs: Jobs = 1,
    skip_damage: SkipDamage = False,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Write every index file anew, by the rule that wrote the old ones."""
    _rebuild(rebuild_index, store, configured(config, settings), jobs, skip_damage, as_json)


def _rebuild(
    rebuild: Callable[..., RebuildReport],
    store: Path,
    config: StoreConfig,
    jobs: int,
    skip_damage: bool,
    as_json: bool,
) -> None:
    with Bars() as bars:
        report = rebuild(
            store,
            config=config,
            jobs=jobs,
            skip_damage=skip_damage,
            progress=lambda done, total: bars.show("rebuild", done, total),
        )
    print_report(report, as_json)


def print_report(report: RebuildReport, as_json: bool) -> None:
    """Print what a rebuild did.

    Args:
        report: of consume queues or the index.
        as_json: print JSON for machines.
    """
    if as_json:
        print_json(report.as_dict())
        return
    facts: dict[str, object] = {
        "rebuilt": f"{report.kind}: {report.records:,} records, {report.files:,} files",
        "before": report.digest_before,
        "after": report.digest_after,
        "SHA-256": "the same, byte for byte" if report.identical else "the files have changed",
    }
    facts |= {f"note {number}": note for number, note in enumerate(report.notes, 1)}
    facts |= {f"damage at {offset}": reason for offset, reason in report.damaged}
    print_facts(facts)
