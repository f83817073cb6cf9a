"""``rmqcore export`` and ``rmqcore import``: messages into files and back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from rmqcore.adapters.queuelib_files import import_queues
from rmqcore.adapters.task_queue_files import import_huey, import_kombu
from rmqcore.cli import complete
from rmqcore.cli.archive import StorageOptions, place_of, storage_options
from rmqcore.cli.options import (
    AsJson,
    ConfigFile,
    DamageCount,
    Settings,
    SkipDamaged,
    StorePath,
    configured,
    is_cluster,
    one_of,
    open_for_writing,
    say_what_is_missing,
)
from rmqcore.cli.output import print_json, size_text
from rmqcore.cli.progress import Bars
from rmqcore.config import StoreConfig
from rmqcore.errors import ArgumentError, CorruptRecordError
from rmqcore.files.config_tables import TopicConfigTable
from rmqcore.files.store_dir import StoreDir, subdirectories
from rmqcore.native.derive._dispatch import DispatchBatch
from rmqcore.scan.any_log import is_archive
from rmqcore.scan.log_walk import LogWalk
from rmqcore.scan.plan import plan
from rmqcore.transfer.export import ExportedPart, export_store
from rmqcore.transfer.import_files import ImportReport, exported_files
from rmqcore.transfer.import_once import import_once
from rmqcore.world import wall_clock_ms


class Format(StrEnum):
    """What an export writes."""

    JSONL = "jsonl"
    PARQUET = "parquet"
    DELTA = "delta"
    ICEBERG = "iceberg"


class Source(StrEnum):
    """What an import reads."""

    EXPORT = "export"
    QUEUELIB = "queuelib"
    KOMBU = "kombu"
    HUEY = "huey"


def export(
    store: StorePath,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="where the files go")],
    file_format: Annotated[
        Format,
        typer.Option("--format", help="each but jsonl needs an extra: [arrow], [delta], [iceberg]"),
    ] = Format.JSONL,
    topics: Annotated[
        list[str] | None,
        typer.Option("--topic", help="only this topic; repeatable", autocompletion=complete.topics),
    ] = None,
    uncommitted: Annotated[
        bool, typer.Option("--uncommitted", help="also prepared and rolled-back messages")
    ] = False,
    jobs: Annotated[int, typer.Option(min=1, help="processes that work side by side")] = 1,
    skip_damaged: SkipDamaged = False,
    above: Annotated[
        str | None,
        typer.Option("--archive", metavar="URL", help="of the store: also what was deleted there"),
    ] = None,
    options: StorageOptions = None,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Write the messages of a store, cold or live, to files; _manifest.json says which.

    STORE may be namesrv://host:port/topic, a topic of running brokers, or an archive's URL.
    """
    if is_cluster(
        store,
        topic=topics,
        uncommitted=uncommitted,
        jobs=jobs > 1,
        skip_damaged=skip_damaged,
        archive=above,
        config=config,
        settings=settings,
    ):
        from rmqcore.cli.cluster import export_url  # noqa: PLC0415 - needs asyncio

        parts = export_url(store, directory, file_format.value)
    else:
        parts = _export_store(
            store,
            directory,
            above,
            configured(config, settings),
            file_format=file_format.value,
            topics=topics or None,
            uncommitted=uncommitted,
            jobs=jobs,
            skip_damaged=skip_damaged,
            storage_options=storage_options(options),
        )
    _report(parts, directory, as_json=as_json)


def _report(parts: list[ExportedPart], directory: Path, *, as_json: bool) -> None:
    """Print what was written, and name what was passed over."""
    if as_json:
        print_json({"directory": str(directory), "parts": [asdict(part) for part in parts]})
    else:
        rows, size = sum(part.rows for part in parts), sum(part.bytes for part in parts)
        typer.echo(f"{rows:,} messages, {size_text(size)} in {len(parts)} files in {directory}")
    damage = DamageCount(as_json=as_json)
    for part in parts:
        for one in part.passed_over:
            path, phy_offset, reason = str(one["path"]), int(one["phy_offset"]), str(one["reason"])
            damage(CorruptRecordError(path, phy_offset, reason))
    damage.finish()


def _export_store(
    store: Path, directory: Path, above: str | None, config: StoreConfig, **settings: Any
) -> list[ExportedPart]:
    place = place_of(store)
    is_all_here = above is None and not is_archive(place)
    if is_all_here and StoreDir(store, config.store_path_commit_log).exists():
        _check_topics(store, settings["topics"], config)
        # without queues, or with damaged ones, the log is exported all the same
        say_what_is_missing(store, config)
    with Bars() as bars:
        return export_store(
            place,
            directory,
            config=config,
            archive=above,
            progress=lambda done, total: bars.show("export", done, total),
            **settings,
        )


def import_(
    store: StorePath,
    source: Annotated[
        Path, typer.Argument(metavar="SOURCE", help="the directory of an export, or one file of it")
    ],
    kind: Annotated[
        Source,
        typer.Option("--from", help="queuelib, kombu, huey: SOURCE is its directory or file"),
    ] = Source.EXPORT,
    sqlite_fifo: Annotated[
        bool, typer.Option("--sqlite-fifo", help="queuelib's SQLite queues are no stacks")
    ] = False,
    name: Annotated[
        str, typer.Option("--name", help="of the huey whose directory SOURCE is")
    ] = "huey",
    again: Annotated[
        bool, typer.Option("--again", help="also what has been imported into this store before")
    ] = False,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Put exported messages into a store, with their topics, queues, keys and properties.

    Offsets and store times are the new store's. The store is created when it is missing.
    With --from queuelib, kombu or huey, STORE is the directory of that adapter.
    """
    if kind is Source.EXPORT:
        report = _import_export(store, source, again, config, settings)
    else:
        with Bars() as bars:
            imports: dict[Source, Callable[..., ImportReport]] = {
                Source.QUEUELIB: partial(import_queues, sqlite_lifo=not sqlite_fifo),
                Source.KOMBU: import_kombu,
                Source.HUEY: partial(import_huey, name=name),
            }
            report = imports[kind](
                store,
                source,
                again=again,
                progress=lambda done, total: bars.show("import", done, total),
            )
    if as_json:
        print_json(asdict(report))
        return
    typer.echo(
        f"{report.messages:,} messages, {size_text(report.body_bytes)} out of {report.files} files"
        + (f"; {report.already:,} were there already" if report.already else "")
    )


def _import_export(
    store: Path, source: Path, again: bool, config: Path | None, settings: list[str] | None
) -> ImportReport:
    exported_files(source)  # nothing to import makes no store
    with Bars() as bars, open_for_writing(store, config, settings, bars) as opened:
        return import_once(
            opened,
            source,
            again=again,
            progress=lambda done, total: bars.show("import", done, total),
        )


def _check_topics(store: Path, topics: list[str] | None, config: StoreConfig) -> None:
    """Refuse topics of which a store has neither queues nor settings nor messages.

    Raises:
        ArgumentError: one is not there; names the nearest.
    """
    directory = StoreDir(store)
    table = TopicConfigTable(directory.config, clock=wall_clock_ms)
    queues = {
        *subdirectories(directory.consume_queue),
        *subdirectories(directory.batch_consume_queue),
    }
    wanted = set(topics or ())
    names = {*queues, *(known.topic_name for known in table)}
    if not queues and not wanted <= names:
        # the queues are lost, so the log is asked for topics
        names |= _topics_in_log(store, wanted - names, config)
    for topic in sorted(wanted - names):
        raise ArgumentError("topic", topic, one_of("topic", topic, sorted(names)))


def _topics_in_log(store: Path, wanted: set[str], config: StoreConfig) -> set[str]:
    """Topics that the records of the log name, until all that are wanted were met."""
    batch = DispatchBatch(keys=False)
    names: set[str] = set()
    for split in plan(store, config=config):
        for _ in LogWalk(split, on_damage=lambda _: None).run(batch.scan):
            names |= {stretch.topic for stretch in batch.stretches()}
            batch.clear()
            if wanted <= names:
                return names
    return names
