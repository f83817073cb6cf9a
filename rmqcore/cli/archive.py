"""``rmqcore archive`` and ``rmqcore restore``: sealed log files to object storage, and back."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Never

import typer

from rmqcore.cli.exit_codes import ExitCode
from rmqcore.cli.options import (
    AsJson,
    ConfigFile,
    Settings,
    StorePath,
    configured,
    parse_settings,
)
from rmqcore.cli.output import print_json, size_text
from rmqcore.cli.progress import Bars
from rmqcore.cli.times import parse_duration
from rmqcore.files.objects.errors import ObjectAccessError, ObjectStoreError, StoreUnsettledError
from rmqcore.transfer.archive import Archiver, ArchiveReport, restore, verify_archive
from rmqcore.world import sleep

ArchiveUrl = Annotated[
    str, typer.Argument(metavar="URL", help="s3://, gs:// or abfs://bucket/prefix, or a directory")
]
StorageOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--storage-option",
        metavar="NAME=VALUE",
        help="credentials or endpoint, where the environment does not tell them; repeatable",
    ),
]


def storage_options(pairs: list[str] | None) -> dict[str, str]:
    """The options of ``--storage-option``."""
    return {name: str(value) for name, value in parse_settings(pairs).items()}


def place_of(store: Path) -> str:
    """The URL that was given for a store's directory, as `Path` has left it, or the directory."""
    text = re.sub(r"^file:/(?!/)", "file:///", str(store))
    return re.sub(r"^([A-Za-z][A-Za-z0-9+.-]+):/(?!/)", r"\1://", text)


def verify_place(
    place: str, options: list[str] | None, *, crc: bool, jobs: int, as_json: bool
) -> Never:
    """Verify an archive, print what was found, and end the command.

    Args:
        place: URL of the archive.
        options: ``NAME=VALUE`` of ``--storage``; None for none.
        crc: also compare bodies with their CRCs.
        jobs: processes that read side by side.
        as_json: print JSON for machines.

    Raises:
        typer.Exit: always: 0 when it is clean, else 1.
        ObjectStoreError: it cannot be read.
    """
    with Bars() as bars:
        report = verify_archive(
            place,
            storage_options=storage_options(options),
            check_crc=crc,
            jobs=jobs,
            progress=lambda done, total: bars.show("check archive", done, total),
        )
    if as_json:
        print_json(report.as_dict())
    else:
        for finding in report.findings:
            typer.echo(finding)
        verdict = "clean" if report.clean else "NOT clean"
        typer.echo(
            f"{report.url}: physical offsets {report.start} to {report.end}, "
            f"{report.records:,} records in {report.files} files: {verdict}"
        )
    raise typer.Exit(ExitCode.DONE if report.clean else ExitCode.FINDINGS)


def archive(
    store: StorePath,
    url: ArchiveUrl,
    follow: Annotated[
        bool, typer.Option("--follow", help="go on with each file that is sealed, until Ctrl-C")
    ] = False,
    every: Annotated[
        str, typer.Option(metavar="TIME", help="with --follow, how often to look")
    ] = "10s",
    options: StorageOptions = None,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Bring the sealed log files of a store, cold or live, to object storage; changes none.

    A file counts when the manifest that names it is written; killed anywhere, run it again.
    """
    pause_s = parse_duration(every) or 10.0
    archiver = Archiver(
        store, url, config=configured(config, settings), storage_options=storage_options(options)
    )
    while True:
        try:
            with Bars() as bars:
                report = archiver.run_once(lambda done, total: bars.show("archive", done, total))
            if report.files or not follow:
                _print(report, as_json)
        except ObjectAccessError:
            raise
        except (ObjectStoreError, StoreUnsettledError) as error:
            if not follow:
                raise
            typer.echo(f"rmqcore: {error}; tries again in {every}", err=True)
        if not follow:
            return
        sleep(pause_s)


def _print(report: ArchiveReport, as_json: bool) -> None:
    if as_json:
        print_json(asdict(report))
        return
    typer.echo(
        f"{len(report.files)} files, {size_text(report.bytes)} archived; {report.url} has the "
        f"physical offsets {report.start} to {report.end}, the log ends at {report.log_end}"
    )


def restore_(
    url: ArchiveUrl,
    store: StorePath,
    jobs: Annotated[int, typer.Option(min=1, help="processes that derive queues and index")] = 1,
    options: StorageOptions = None,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Write the store that an archive has: its log byte for byte, queues and index from it.

    STORE has to be empty, or not there; killed anywhere, run it again.
    """
    with Bars() as bars:
        report = restore(
            url,
            store,
            config=configured(config, settings),
            storage_options=storage_options(options),
            jobs=jobs,
            progress=lambda done, total: bars.show("restore", done, total),
        )
    if as_json:
        print_json(asdict(report))
        return
    typer.echo(
        f"{report.records:,} messages, {size_text(report.bytes)} in {report.files} files: {store} "
        f"has the physical offsets {report.start} to {report.end}"
    )
