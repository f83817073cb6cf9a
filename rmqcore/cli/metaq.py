"""`rmqcore metaq`: look at, check, recover, serve, operate and migrate MetaQ stores.

Exit codes: 0 done and clean, 1 findings or a refused operation, 2 a wrong argument.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import json
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from rmqcore.cli.examples import NOT_HERE, example, has_examples
from rmqcore.cli.exit_codes import ExitCode
from rmqcore.cli.log_lines import write_log_lines
from rmqcore.errors import CorruptStoreError, RmqCoreError
from rmqcore.metaq import (
    MessageStore,
    MessageStoreManager,
    MetaConfig,
    MetaServer,
    SystemConfig,
    Verdict,
)
from rmqcore.metaq._message_set import scan_file
from rmqcore.metaq.manager import NOT_REPLAYED, transaction_journals
from rmqcore.metaq.message import MAX_READ_BUFFER_SIZE
from rmqcore.transfer.metaq import migrate as migrate_partitions
from rmqcore.transfer.metaq import partitions
from rmqcore.world import raise_limit

app = typer.Typer(no_args_is_help=True, help="MetaQ, the older store: open, serve, migrate.")

Folder = Annotated[Path, typer.Argument(help="data path: the folder of the partitions")]
Json = Annotated[bool, typer.Option("--json", help="print JSON")]
_OUT = Console(soft_wrap=True, highlight=False)


@contextlib.contextmanager
def _reported() -> Iterator[None]:
    """Turn the package's errors into one line and exit code 1."""
    try:
        yield
    except (RmqCoreError, OSError) as error:
        Console(stderr=True).print(f"[red]error:[/red] {error}", highlight=False)
        raise typer.Exit(1) from None


def _print(rows: list[dict[str, Any]], as_json: bool) -> None:
    """One table, or one JSON array."""
    if as_json:
        print(json.dumps(rows, default=str))
    elif rows:
        table = Table(*rows[0])
        for row in rows:
            table.add_row(*(str(value) for value in row.values()))
        _OUT.print(table)


def _name_journals(folder: Path) -> None:
    """Say on standard error what of a data path is not read."""
    for journal in transaction_journals(folder):
        print(f"warning: {NOT_REPLAYED % journal}", file=sys.stderr)


def _of_each(
    folder: Folder, row: Callable[[MessageStore], dict[str, Any]], as_json: bool, **opened: Any
) -> None:
    """Print a row of each partition; exit 1 when one is refused, which hides no other."""
    _name_journals(folder)
    rows: list[dict[str, Any]] = []
    found: list[tuple[str, int]] = []
    with _reported():
        found = partitions(folder)
    config = MetaConfig(SystemConfig(data_path=str(folder)))
    for topic, partition in found:
        with (
            contextlib.suppress(typer.Exit),
            _reported(),
            MessageStore(topic, partition, config, **opened) as store,
        ):
            rows.append(row(store))
    _print(rows, as_json)
    if len(rows) < len(found):
        raise typer.Exit(1)


@app.command()
def stat(folder: Folder, as_json: Json = False) -> None:
    """List partitions: offsets, segments, bytes, holes."""

    def row(store: MessageStore) -> dict[str, Any]:
        return {
            "topic": store.topic,
            "partition": store.partition,
            "min_offset": store.min_offset,
            "max_offset": store.max_offset,
            "segments": len(store.segments),
            "bytes": store.size_in_bytes,
            "holes": len(store.holes),
        }

    _of_each(folder, row, as_json, mode="r", repair=True)


@app.command()
def verify(folder: Folder, as_json: Json = False) -> None:
    """Check every record of every segment; exit 1 and name each finding. Changes nothing."""
    findings: list[dict[str, Any]] = []
    messages = 0
    _name_journals(folder)

    def note(path: Path, offset: int, finding: str) -> None:
        findings.append({"path": path, "offset": offset, "finding": finding})

    with _reported():
        for topic, partition in partitions(folder):
            config = MetaConfig(SystemConfig(data_path=str(folder)))
            try:
                MessageStore(topic, partition, config, mode="r").close()
                store = MessageStore(topic, partition, config, mode="r", repair=True)
            except CorruptStoreError as error:
                note(error.path, error.phy_offset, error.reason)
                continue
            with store:
                for hole in store.holes:
                    note(store.path, hole.start, f"no segment up to {hole.stop}")
                for segment in store.segments:
                    file = segment.messages.file
                    size = file.size()
                    end, count, code = scan_file(file.fd, 0, size)
                    messages += count
                    if end < size:
                        note(file.path, segment.start + end, Verdict(code).sentence)
    if as_json:
        print(json.dumps({"messages": messages, "findings": findings}, default=str))
    else:
        _print(findings, as_json=False)
        _OUT.print(f"{messages} messages, {len(findings)} findings")
    raise typer.Exit(1 if findings else 0)


@app.command()
def recover(
    folder: Folder,
    repair: Annotated[
        bool,
        typer.Option(help="cut damage below the high-water mark too; the bytes are kept beside"),
    ] = False,
    as_json: Json = False,
) -> None:
    """Open every partition for writing once: cut torn tails, report what was done."""

    def row(store: MessageStore) -> dict[str, Any]:
        done = store.recovery
        return {
            "partition": f"{store.topic}-{store.partition}",
            "max_offset": store.max_offset,
            "messages": done.message_count if done else 0,
            "truncated": done.truncated if done else 0,
            "saved": done.saved if done else None,
            "holes": len(store.holes),
        }

    _of_each(folder, row, as_json, repair=repair)


@app.command()
def cat(
    folder: Folder,
    topic: Annotated[str, typer.Argument(help="of the partition")],
    partition: Annotated[int, typer.Argument(help="its number")] = 0,
    start: Annotated[int | None, typer.Option(help="offset of a message")] = None,
    count: Annotated[int, typer.Option("-n", help="messages at most")] = 2**31,
    as_json: Json = False,
) -> None:
    """Print messages of one partition; exit 1 when a message has a malformed attribute."""
    malformed = False
    with _reported():
        config = MetaConfig(SystemConfig(data_path=str(folder)))
        with MessageStore(topic, partition, config, mode="r") as store:
            found = store.messages(start, keep_malformed=True)
            for message in itertools.islice(found, count):
                if message.malformed:
                    malformed = True
                    text = f"{message.offset}: no attribute where the flag promises one"
                    print(text, file=sys.stderr)
                if as_json:
                    row = dataclasses.asdict(message)
                    row["data"] = message.data.decode("utf-8", "backslashreplace")
                    print(json.dumps(row))
                else:
                    sys.stdout.buffer.write(message.data + b"\n")
    raise typer.Exit(1 if malformed else 0)


@app.command()
def config(ini: Annotated[Path, typer.Argument(help="server.ini")], as_json: Json = False) -> None:
    """Check an ini file and print every setting with its value."""
    with _reported():
        loaded = MetaConfig.from_file(ini)
        loaded.verify(zookeeper=False)
    sections: dict[str, Any] = {"system": dataclasses.asdict(loaded.system)}
    if loaded.zookeeper is not None:
        sections["zookeeper"] = dataclasses.asdict(loaded.zookeeper)
    sections |= {f"topic={t}": dataclasses.asdict(c) for t, c in loaded.topics.items()}
    if as_json:
        print(json.dumps(sections))
        return
    rows = [
        {"section": name, "setting": key, "value": value}
        for name, values in sections.items()
        for key, value in values.items()
    ]
    _print(rows, as_json=False)


@app.command()
def serve(
    ini: Annotated[Path, typer.Argument(help="server.ini")],
    host: Annotated[str, typer.Option(help="address to listen on")] = "127.0.0.1",
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="instead of serverPort")
    ] = None,
    admin: Annotated[Path | None, typer.Option(help="Unix socket for operators")] = None,
    fast_boot: Annotated[bool, typer.Option(help="do not read what is known to be whole")] = False,
    max_message_size: Annotated[
        int, typer.Option(help="bytes of one put; readers of MetaQ take no more than its default")
    ] = MAX_READ_BUFFER_SIZE,
) -> None:
    """Serve the text protocol until SIGTERM or Ctrl-C; SIGHUP reloads the topics."""

    async def run() -> None:
        write_log_lines()
        loaded = MetaConfig.from_file(ini)
        loaded.verify(zookeeper=False)
        loop = asyncio.get_running_loop()
        done = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, done.set)

        def reload() -> None:
            with contextlib.suppress(typer.Exit), _reported():
                loaded.reload()

        loop.add_signal_handler(signal.SIGHUP, reload)
        with MessageStoreManager(loaded, fast_boot=fast_boot) as manager:
            server = MetaServer(
                manager,
                host=host,
                port=port,
                admin_socket=admin,
                max_message_size=max_message_size,
            )
            where = await server.start()
            _OUT.print(f"serving {len(manager.all_topics())} topics on {where[0]}:{where[1]}")
            await done.wait()
            await server.stop()

    raise_limit()
    with _reported():
        asyncio.run(run())


@app.command()
def admin(
    socket_path: Annotated[Path, typer.Argument(help="the server's admin socket")],
    words: Annotated[
        list[str],
        typer.Argument(help="reload | close TOPIC FIRST LAST | open TOPIC | delete | flush"),
    ],
    as_json: Json = False,
) -> None:
    """Operate a running server; exit 1 when it refuses."""
    with _reported(), socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(socket_path))
        connection.sendall(" ".join(words).encode() + b"\n")
        with connection.makefile(encoding="utf-8") as answer:
            text = answer.read().strip()
    print(json.dumps({"answer": text}) if as_json else text)
    raise typer.Exit(1 if text.startswith("error") else 0)


@app.command()
def migrate(
    folder: Folder,
    store: Annotated[Path, typer.Argument(help="RocketMQ store, created when missing")],
    as_json: Json = False,
) -> None:
    """Move partitions into topics and queues of a RocketMQ store; goes on where it stopped."""
    _name_journals(folder)
    with _reported(), Progress(console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, Any] = {}

        def progress(name: str, done: int, size: int) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=size)
            bars.update(tasks[name], completed=done)

        reports = migrate_partitions(folder, store, progress=progress)
    _print([dataclasses.asdict(report) for report in reports], as_json)
    for report in reports:
        for offset in report.too_large:
            name = f"{report.topic}-{report.partition}"
            print(f"warning: {name}: the message at {offset} is too large", file=sys.stderr)
    raise typer.Exit(1 if any(report.too_large for report in reports) else 0)


@app.command()
def demo(
    folder: Annotated[
        Path | None, typer.Argument(help="an empty folder; else a temporary one")
    ] = None,
    messages: Annotated[int, typer.Option(help="messages before the kill")] = 200_000,
    as_json: Json = False,
) -> None:
    """Write real text, kill the writer, recover, serve, migrate; print what happened.

    In a clone of the repository only.
    """
    if not has_examples():
        typer.echo(f"rmqcore: {NOT_HERE}", err=True)
        raise typer.Exit(ExitCode.USAGE)
    with _reported(), tempfile.TemporaryDirectory(prefix="rmqcore-metaq-") as temporary:
        place = folder or Path(temporary)
        say = (lambda _: None) if as_json else _OUT.print
        result = example("metaq_demo").run_demo(place, messages=messages, say=say)
    if as_json:
        print(json.dumps(dataclasses.asdict(result), default=str))
    raise typer.Exit(0 if result.found_by_id and not result.lost else 1)
