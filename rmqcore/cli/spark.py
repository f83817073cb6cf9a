"""``rmqcore spark ...``: the jobs over whole stores, on a Spark of this machine or of a cluster.

``spark-submit rmqcore/__main__.py spark audit STORE`` runs the same commands: the session is then
the one that it has made.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqcore.cli import check, rebuild
from rmqcore.cli.exit_codes import EXIT_CODES, ExitCode
from rmqcore.cli.failures import StoreCommand
from rmqcore.cli.options import AsJson, StorePath
from rmqcore.cli.output import print_json, print_table, show
from rmqcore.cli.times import parse_time
from rmqcore.scan import DEFAULT_COLUMNS
from rmqcore.spark.log_owner import finish_appends
from rmqcore.spark.plot import check_picture

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from rmqcore.spark.pipeline import PipelineReport

app = typer.Typer(
    help="Whole stores in Spark: rebuild, audit, export, find, measure.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
)

Cores = Annotated[str, typer.Option("--cores", help="threads of a Spark on this machine")]
Memory = Annotated[str, typer.Option("--memory", help="heap of a Spark on this machine")]
Config = Annotated[
    str | None, typer.Option("--config", metavar="FILE", help="settings from a broker.conf")
]
Topics = Annotated[list[str] | None, typer.Option("--topic", help="only this topic; repeatable")]
Since = Annotated[str | None, typer.Option("--since", metavar="TIME", help="stored at or after")]
Until = Annotated[str | None, typer.Option("--until", metavar="TIME", help="stored at or before")]
Out = Annotated[Path, typer.Argument(metavar="DIR", help="directory of the files to be written")]
SkipDamage = Annotated[bool, typer.Option("--skip-damage", help="pass over damaged records")]


@contextmanager
def _session(cores: str, memory: str) -> Iterator[tuple[Any, SparkSession]]:
    """`rmqcore.spark`, imported only now because it takes long, and a session."""
    jobs = import_module("rmqcore.spark")
    spark = jobs.local_session(cores=cores, memory=memory)
    try:
        yield jobs, spark
    finally:
        spark.stop()


def _window(since: str | None, until: str | None) -> dict[str, int]:
    times = {"begin_ms": parse_time(since), "end_ms": parse_time(until)}
    return {name: value for name, value in times.items() if value is not None}


@app.command("rebuild", cls=StoreCommand, epilog=EXIT_CODES)
def rebuild_store(
    store: StorePath,
    index: Annotated[bool, typer.Option("--index", help="the index")] = False,
    skip_damage: SkipDamage = False,
    config: Config = None,
    cores: Cores = "*",
    memory: Memory = "1g",
    as_json: AsJson = False,
) -> None:
    """Write the consume queues, or the index, of a cold store anew."""
    with _session(cores, memory) as (jobs, spark):
        job = jobs.rebuild_index if index else jobs.rebuild_consume_queues
        report = job(spark, store, config=config, skip_damage=skip_damage)
    rebuild.print_report(report, as_json)


@app.command("audit", cls=StoreCommand, epilog=EXIT_CODES)
def audit(
    store: StorePath,
    config: Config = None,
    cores: Cores = "*",
    memory: Memory = "1g",
    as_json: AsJson = False,
) -> None:
    """Check every record, and what is derived from the log; exit code 1 with findings."""
    with _session(cores, memory) as (jobs, spark):
        report = jobs.audit(spark, store, config=config)
    if as_json:
        print_json(report.as_dict())
    else:
        check.print_report(report)
    raise typer.Exit(ExitCode.DONE if report.clean else ExitCode.FINDINGS)


@app.command("export", cls=StoreCommand, epilog=EXIT_CODES)
def export(
    store: StorePath,
    out: Out,
    table_format: Annotated[
        str, typer.Option("--format", help="parquet, delta or iceberg")
    ] = "parquet",
    topics: Topics = None,
    config: Config = None,
    cores: Cores = "*",
    memory: Memory = "1g",
    as_json: AsJson = False,
) -> None:
    """Write the messages of a store as Parquet files, or as a Delta or Iceberg table."""
    with _session(cores, memory) as (jobs, spark):
        parts = jobs.export(
            spark, store, out, table_format=table_format, topics=topics, config=config
        )
    rows = sum(part.rows for part in parts)
    if as_json:
        print_json({"directory": str(out), "messages": rows, "files": len(parts)})
    else:
        show(f"{rows:,} messages in {len(parts)} files in {out}")


@app.command("compact", cls=StoreCommand, epilog=EXIT_CODES)
def compact(
    store: StorePath,
    out: Out,
    topics: Topics = None,
    cores: Cores = "*",
    memory: Memory = "1g",
    as_json: AsJson = False,
) -> None:
    """Write the latest message of each topic and key as Parquet files."""
    with _session(cores, memory) as (jobs, spark):
        jobs.compact(spark, store, topics=topics).write.parquet(str(out.absolute()))
        count = spark.read.parquet(str(out.absolute())).count()
    if as_json:
        print_json({"directory": str(out), "messages": count})
    else:
        show(f"{count:,} messages in {out}")


@app.command("trace", cls=StoreCommand, epilog=EXIT_CODES)
def trace(
    store: StorePath,
    key: Annotated[str | None, typer.Option(help="one of its keys")] = None,
    message_id: Annotated[str | None, typer.Option("--id", help="what the broker gave")] = None,
    unique_key: Annotated[str | None, typer.Option(help="what its producer gave")] = None,
    body: Annotated[str | None, typer.Option(help="a regular expression in its body")] = None,
    topics: Topics = None,
    since: Since = None,
    until: Until = None,
    cores: Cores = "*",
    memory: Memory = "1g",
    as_json: AsJson = False,
) -> None:
    """Find messages without an index; exit code 1 when there is none."""
    columns = [name for name in DEFAULT_COLUMNS if name != "body"]
    with _session(cores, memory) as (jobs, spark):
        frame = jobs.trace(
            spark,
            store,
            key=key,
            message_id=message_id,
            unique_key=unique_key,
            body=body,
            topics=topics,
            columns=columns,
            **_window(since, until),
        )
        rows = [row.asDict() for row in frame.orderBy("phy_offset").collect()]
    _print_rows(columns, rows, as_json)
    raise typer.Exit(ExitCode.DONE if rows else ExitCode.FINDINGS)


@app.command("traffic", cls=StoreCommand, epilog=EXIT_CODES)
def traffic(
    store: StorePath,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="draw it: a name in .html or .png")
    ] = None,
    hottest: Annotated[int, typer.Option(min=0, help="also so many keys of each topic")] = 0,
    topics: Topics = None,
    since: Since = None,
    until: Until = None,
    cores: Cores = "*",
    memory: Memory = "1g",
    as_json: AsJson = False,
) -> None:
    """Messages, bytes and latency by topic and minute."""
    if plot is not None:
        check_picture(plot)
    with _session(cores, memory) as (jobs, spark):
        frame = jobs.traffic(spark, store, topics=topics, **_window(since, until))
        rows = [row.asDict() for row in frame.collect()]
        keys = []
        if hottest:
            found = jobs.hottest_keys(spark, store, topics=topics, count=hottest)
            keys = [row.asDict() for row in found.orderBy("topic", "messages").collect()]
        if plot is not None:
            jobs.save_traffic(plot, f"{store.name}: traffic", rows)
    _print_rows(frame.columns, rows, as_json)
    if keys:
        _print_rows(list(keys[0]), keys, as_json)


@app.command("finish", cls=StoreCommand, epilog=EXIT_CODES)
def finish(
    store: StorePath,
    forget_days: Annotated[
        float | None,
        typer.Option(min=0, help="also forget the ids of jobs appended so many days ago"),
    ] = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Finish appends whose driver died inside its commit; runs without Spark."""
    finished = finish_appends(store, config=config, forget_days=forget_days)
    if as_json:
        print_json(finished)
        return
    for name, count in finished.items():
        show(f"{name}: {count:,} messages were missing, now appended")
    show(f"{len(finished)} appends were to be finished")


@app.command("pipeline", cls=StoreCommand, epilog=EXIT_CODES)
def pipeline(
    store: StorePath,
    out: Out,
    html: Annotated[Path | None, typer.Option(help="write the report with a picture")] = None,
    cores: Cores = "*",
    memory: Memory = "1g",
    as_json: AsJson = False,
) -> None:
    """Audit, rebuild, measure, export and query a cold store; every step has to agree."""
    with _session(cores, memory) as (jobs, spark):
        report = jobs.run_pipeline(spark, store, out)
    if html is not None:
        html.write_text(report.as_html(), "utf-8")
    if as_json:
        print_json(report.as_dict())
    else:
        _print_pipeline(report)
    raise typer.Exit(ExitCode.DONE if report.ok else ExitCode.FINDINGS)


def _print_pipeline(report: PipelineReport) -> None:
    rows = [
        (s.name, s.messages, f"{s.size / 1e6:,.1f}", f"{s.seconds:.2f}", s.note, s.ok)
        for s in report.steps
    ]
    print_table(("step", "messages", "MB", "seconds", "found", "ok"), rows, right=("messages",))
    if report.topics:
        print_table(tuple(report.topics[0]), [tuple(row.values()) for row in report.topics])


def _print_rows(columns: list[str], rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        for row in rows:
            print_json(row)
    else:
        print_table(columns, [tuple(row.values()) for row in rows])
