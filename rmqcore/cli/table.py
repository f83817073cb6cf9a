"""``rmqcore table``: a Delta or Iceberg table that follows a topic."""

from __future__ import annotations

import signal
import threading
from dataclasses import asdict
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from rmqcore.cli.archive import StorageOptions, storage_options
from rmqcore.cli.notes import note
from rmqcore.cli.options import AsJson, configured, is_cluster, say_what_is_missing
from rmqcore.cli.output import print_json
from rmqcore.cli.times import parse_duration
from rmqcore.lake import Bodies, Round, TableFollower


class TableFormat(StrEnum):
    """Formats of tables."""

    DELTA = "delta"
    ICEBERG = "iceberg"


class Body(StrEnum):
    """What becomes of a body."""

    BYTES = "bytes"
    TEXT = "text"
    JSON = "json"
    AVRO = "avro"


Source = Annotated[
    str,
    typer.Argument(metavar="SOURCE", help="the store's directory, or namesrv://host:port/topic"),
]
Table = Annotated[
    str,
    typer.Argument(
        metavar="TABLE",
        help="the table's directory, for delta also its URL; of a catalog namespace.table",
    ),
]
CatalogName = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="that has an Iceberg table: one PyIceberg is told of"),
]
CatalogOptions = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="a property of the catalog; repeatable"),
]


def table(
    source: Source,
    directory: Table,
    topic: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="which; not with a URL, which names it")
    ] = None,
    table_format: Annotated[
        TableFormat, typer.Option("--format", help="delta or iceberg; each needs its extra")
    ] = TableFormat.DELTA,
    every: Annotated[
        str, typer.Option(metavar="TIME", help="a message is a row after that at the latest")
    ] = "60s",
    once: Annotated[bool, typer.Option("--once", help="catch up, and end")] = False,
    body: Annotated[
        Body, typer.Option(help="bytes as they are, UTF-8 text, or columns of --schema")
    ] = Body.BYTES,
    schema: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help='{"name": "type", ...} of JSON bodies, or an Avro record'
        ),
    ] = None,
    catalog: CatalogName = None,
    catalog_option: CatalogOptions = None,
    allow_loss: Annotated[
        bool, typer.Option("--allow-loss", help="go on behind what retention has deleted")
    ] = False,
    options: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Keep a Delta or Iceberg table up to date with a topic, until Ctrl-C.

    How far it is stands in the table's own commits: killed anywhere, run it again, and each message
    is a row once. Bodies that do not fit go to a second table, TABLE~dlq, with the reason.
    """
    if schema is not None and body is Body.TEXT:
        raise typer.BadParameter("--schema names columns of JSON bodies; write --body json")
    kind = Body.AVRO if body is Body.AVRO else Body.JSON
    bodies = Bodies(body.value) if schema is None else Bodies.of_schema(schema, kind.value)
    every_s = parse_duration(every)
    if not every_s:
        raise typer.BadParameter(f"--every {every} is no time; write 1s or more")
    follower = TableFollower(
        source,
        directory,
        topic=topic,
        table_format=table_format.value,
        bodies=bodies,
        storage_options=storage_options(options) or None,
        catalog=_catalog(catalog, catalog_option),
        allow_loss=allow_loss,
    )
    if not is_cluster(Path(source)):
        # what is damaged, the first round says
        say_what_is_missing(Path(source), configured(None, None))
    show = partial(_show, as_json=as_json)
    if once:
        while (done := follower.run_once()).behind:
            show(done)
        show(done, even_none=True)
        return
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    follower.run(every_s, ended, show, lambda error: note(f"rmqcore: {error}; again in {every}"))


def _catalog(name: str | None, properties: list[str] | None) -> dict[str, str] | None:
    if name is None and not properties:
        return None
    return ({} if name is None else {"name": name}) | storage_options(properties)


def _show(done: Round, *, as_json: bool, even_none: bool = False) -> None:
    if as_json:
        print_json(asdict(done))
    elif done.rows or done.refused or done.compacted or even_none:
        others = f", {done.refused:,} that do not fit" if done.refused else ""
        merged = f"; {done.compacted} small files made one" if done.compacted else ""
        typer.echo(f"{done.rows:,} rows{others}, {done.behind:,} behind{merged}")
