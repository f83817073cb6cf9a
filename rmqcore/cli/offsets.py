"""``rmqcore offsets``: how far consumer groups are, and how much they lag behind."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any

import typer

from rmqcore import ReadOnlyMessageStore
from rmqcore.cli import complete
from rmqcore.cli.exit_codes import ExitCode
from rmqcore.cli.near import near
from rmqcore.cli.options import AsJson, ConfigFile, Settings, StorePath, open_for_reading
from rmqcore.cli.output import print_json, print_table, show
from rmqcore.errors import CorruptConsumeQueueError
from rmqcore.files.consumer_offset_table import ConsumerOffsetTable
from rmqcore.files.store_dir import StoreDir
from rmqcore.world import wall_clock_ms

_NUMBERS = ("queue id", "queue offset", "min queue offset", "max queue offset", "lag")


def offsets(
    store: StorePath,
    group: Annotated[
        str | None,
        typer.Argument(
            metavar="GROUP",
            help="one consumer group; all without it",
            autocompletion=complete.groups,
        ),
    ] = None,
    topic: Annotated[
        str | None, typer.Option(help="only this topic", autocompletion=complete.topics)
    ] = None,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """List the consumer offsets of a store and the messages between them and the queues' ends.

    Exit code 1 when there are none.
    """
    with open_for_reading(store, config, settings) as opened:
        table = ConsumerOffsetTable(StoreDir(opened.path).config, clock=wall_clock_ms)
        known = table.pairs()
        rows = _rows(opened, table, group, topic)
    if as_json:
        print_json(rows)
    elif rows:
        columns = [name.replace("_", " ") for name in rows[0]]
        texts = [["-" if value is None else value for value in row.values()] for row in rows]
        print_table(columns, texts, right=_NUMBERS)
    else:
        show(f"no consumer offsets{_asked_for(known, group, topic)}")
    raise typer.Exit(ExitCode.DONE if rows else ExitCode.FINDINGS)


def _rows(
    store: ReadOnlyMessageStore, table: ConsumerOffsetTable, group: str | None, topic: str | None
) -> list[dict[str, Any]]:
    return [
        _row(store, name, of, queue_id, offset)
        for of, name in sorted(table.pairs(), key=lambda pair: (pair[1], pair[0]))
        if group in (None, name) and topic in (None, of)
        for queue_id, offset in sorted(table.queues(of, name).items())
    ]


def _row(
    store: ReadOnlyMessageStore, group: str, topic: str, queue_id: int, offset: int
) -> dict[str, Any]:
    low: int | None = None
    high: int | None = None
    # what is unreadable is told as a warning
    with suppress(CorruptConsumeQueueError):
        low, high = store.min_queue_offset(topic, queue_id), store.max_queue_offset(topic, queue_id)
    return {
        "group": group,
        "topic": topic,
        "queue_id": queue_id,
        "queue_offset": offset,
        "min_queue_offset": low,
        "max_queue_offset": high,
        "lag": None if low is None or high is None else max(0, high - max(offset, low)),
    }


def _asked_for(known: list[tuple[str, str]], group: str | None, topic: str | None) -> str:
    """Of which group and topic there are none, and the name that may have been meant."""
    topics, groups = zip(*known, strict=True) if known else ((), ())
    asked = [(group, groups), (topic, topics)]
    said = " and ".join(name for name, _ in asked if name)
    unknown = [near(name, names) for name, names in asked if name and name not in names]
    return (f" of {said}" if said else "") + next(filter(None, unknown), "")
