"""``rmqcore export`` and ``rmqcore import``: messages into files and back."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from rmqcore.cli.options import (
    AsJson,
    ConfigFile,
    DamageCount,
    Settings,
    SkipDamaged,
    StorePath,
    check_topics,
    configured,
    open_for_writing,
)
from rmqcore.cli.output import print_json, size_text
from rmqcore.cli.progress import Bars
from rmqcore.files.store_dir import StoreDir
from rmqcore.transfer.export import export_store
from rmqcore.transfer.import_files import exported_files, import_files
from rmqcore.transfer.import_record import ImportRecord


class Format(StrEnum):
    """What an export writes."""

    JSONL = "jsonl"
    PARQUET = "parquet"
    DELTA = "delta"
    ICEBERG = "iceberg"


def export(
    store: StorePath,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="where the files go")],
    file_format: Annotated[
        Format,
        typer.Option(
            "--format", help=r"each but jsonl needs an extra: \[arrow], \[delta], \[iceberg]"
        ),
    ] = Format.JSONL,
    topics: Annotated[
        list[str] | None, typer.Option("--topic", help="only this topic; repeatable")
    ] = None,
    uncommitted: Annotated[
        bool, typer.Option("--uncommitted", help="also prepared and rolled-back messages")
    ] = False,
    jobs: Annotated[int, typer.Option(min=1, help="processes that work side by side")] = 1,
    skip_damaged: SkipDamaged = False,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Write the messages of a store, cold or live, to files; _manifest.json says which."""
    loaded = configured(config, settings)
    if StoreDir(store, loaded.store_path_commit_log).exists():
        check_topics(store, topics)
    with Bars() as bars:
        parts = export_store(
            store,
            directory,
            file_format=file_format.value,
            topics=topics or None,
            uncommitted=uncommitted,
            config=loaded,
            jobs=jobs,
            skip_damaged=skip_damaged,
            progress=lambda done, total: bars.show("export", done, total),
        )
    if as_json:
        print_json({"directory": str(directory), "parts": [asdict(part) for part in parts]})
    else:
        rows, size = sum(part.rows for part in parts), sum(part.bytes for part in parts)
        typer.echo(f"{rows:,} messages, {size_text(size)} in {len(parts)} files in {directory}")
    damage = DamageCount(as_json=as_json)
    damage.places = sum(part.damaged for part in parts)
    damage.finish()


def import_(
    store: StorePath,
    source: Annotated[
        Path, typer.Argument(metavar="SOURCE", help="the directory of an export, or one file of it")
    ],
    again: Annotated[
        bool, typer.Option("--again", help="also what has been imported into this store before")
    ] = False,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Put exported messages into a store, with their topics, queues, keys and properties.

    Offsets and store times are the new store's. The store is created when it is missing.
    """
    paths = exported_files(source)
    with Bars() as bars, open_for_writing(store, config, settings, bars) as opened:
        record = ImportRecord(store)
        digests = record.begin(paths, again=again)
        report = import_files(
            opened, source, progress=lambda done, total: bars.show("import", done, total)
        )
        opened.flush()
        record.finish(digests)
    if as_json:
        print_json(asdict(report))
        return
    typer.echo(
        f"{report.messages:,} messages, {size_text(report.body_bytes)} out of {report.files} files"
    )
