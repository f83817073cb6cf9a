"""``rmqcore stat``: what a store holds, how big it is, how far dispatch is behind."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from rmqcore import MessageExt, ReadOnlyMessageStore
from rmqcore.cli.exit_codes import ExitCode
from rmqcore.cli.failures import as_followed, warn
from rmqcore.cli.options import (
    AsJson,
    ConfigFile,
    Settings,
    StorePath,
    check_queues_are_there,
    open_for_reading,
)
from rmqcore.cli.output import print_facts, print_json, print_table, show, size_text, time_text
from rmqcore.errors import CorruptConsumeQueueError
from rmqcore.files.store_dir import StoreDir
from rmqcore.native.format._numbers import SysFlag

_PARTS = ("consumequeue", "batchconsumequeue", "consumequeue_ext", "index", "config")


def stat(
    store: StorePath,
    queues: Annotated[bool, typer.Option("--queues", help="one row a queue")] = False,
    trace: Annotated[
        bool, typer.Option("--trace", help="the store's last 200 events, newest last")
    ] = False,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Say what a store holds: topics, queues, sizes, dispatch lag, times, broker.conf lines."""
    lost: CorruptConsumeQueueError | None = None
    with open_for_reading(store, config, settings) as opened:
        try:
            check_queues_are_there(opened)
        except CorruptConsumeQueueError as error:
            lost = error
        rows = queue_rows(opened)
        facts = store_facts(opened) | {"ignored_settings": list(opened.config.ignored)}
        broker_conf = opened.broker_conf()
        events = trace_rows(opened) if trace else []
    if as_json:
        print_json(
            facts
            | ({"trace": events} if trace else {})
            | {
                "topics": topic_rows(rows),
                "queues": rows,
                "broker_conf": dict(
                    line.split("=", 1) for line in broker_conf.splitlines() if "=" in line
                ),
            }
        )
    else:
        _print_facts(facts)
        show()
        if trace:
            _print_trace(events)
        else:
            _print_rows(rows if queues else topic_rows(rows))
            show("broker.conf lines with which RocketMQ opens this store", style="bold")
            show(broker_conf.rstrip("\n"), style="dim")
    if lost is not None:
        warn(as_followed(str(lost), store), as_json=as_json)
        raise typer.Exit(ExitCode.FINDINGS)


def store_facts(store: ReadOnlyMessageStore) -> dict[str, Any]:
    """State, bounds, times and sizes of a store, under the names of ``--json``."""
    low, high = store.min_phy_offset, store.max_phy_offset
    ends = _first_and_last(store)
    directory = StoreDir(store.path, store.config.store_path_commit_log)
    return {
        "path": str(store.path.resolve()),
        "state": _state(directory),
        "min_phy_offset": low,
        "max_phy_offset": high,
        "log_files": len(store.log.queue.files),
        "dispatch_behind_bytes": _dispatch_behind_bytes(store, low, high),
        "first_store_timestamp_ms": ends[0].store_timestamp_ms if ends[0] else None,
        "last_store_timestamp_ms": ends[1].store_timestamp_ms if ends[1] else None,
        "index_files": len(store.index.files),
        "index_entries": sum(max(file.entry_count, 0) for file in store.index.files),
        "bytes": {"commitlog": _size_below(directory.commit_log)}
        | {name: _size_below(store.path / name) for name in _PARTS},
    }


def _dispatch_behind_bytes(store: ReadOnlyMessageStore, low: int, high: int) -> int:
    """Bytes of log from the first record on that its queue lacks.

    Prepared and rolled-back records belong to no queue.
    """
    for message in store.messages(start=max(low, store.consume_queues.end_phy_offset()), stop=high):
        if message.sys_flag & SysFlag.TRANSACTION_MASK in (0, SysFlag.TRANSACTION_COMMIT):
            return high - message.phy_offset
    return 0


def _state(directory: StoreDir) -> str:
    """Whether somebody has the store open for writing, and how the last one left it."""
    if directory.is_locked():
        return "open for writing"
    if directory.was_aborted:
        return "not closed by its last writer; the next one recovers"
    return "closed"


def _first_and_last(store: ReadOnlyMessageStore) -> tuple[MessageExt | None, MessageExt | None]:
    first = store.message_at(store.min_phy_offset)
    last: MessageExt | None = None
    for queue in store.consume_queues:
        unit = queue.unit_at(queue.max_offset - 1)
        if unit is not None and (last is None or unit[0] > last.phy_offset):
            last = store.message_at(unit[0]) or last
    return first, last or first


def _size_below(folder: Path) -> dict[str, int]:
    """Length and space on disk of all files below a folder, in bytes."""
    stats = [path.stat() for path in folder.rglob("*") if path.is_file()]
    return {
        "files": len(stats),
        "length": sum(each.st_size for each in stats),
        "on_disk": sum(each.st_blocks * 512 for each in stats),
    }


def queue_rows(store: ReadOnlyMessageStore) -> list[dict[str, Any]]:
    """Every queue with its bounds."""
    store.refresh()
    return [
        {
            "topic": queue.topic,
            "queue_id": queue.queue_id,
            "min_queue_offset": queue.min_offset,
            "max_queue_offset": queue.max_offset,
            "messages": queue.max_offset - queue.min_offset,
        }
        for queue in sorted(store.consume_queues, key=lambda each: (each.topic, each.queue_id))
    ]


def topic_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The topics of `queue_rows`, with their sums."""
    topics: dict[str, dict[str, Any]] = {}
    for row in rows:
        topic = topics.setdefault(row["topic"], {"topic": row["topic"], "queues": 0, "messages": 0})
        topic["queues"] += 1
        topic["messages"] += row["messages"]
    return list(topics.values())


def trace_rows(store: ReadOnlyMessageStore) -> list[dict[str, Any]]:
    """The rows of the store's trace; None for what was not known yet."""
    return [
        {name: None if value == -1 else value for name, value in asdict(row).items()}
        for row in store.trace()
    ]


def _print_trace(rows: list[dict[str, Any]]) -> None:
    if not rows:
        show("no trace: nobody but RocketMQ has written here, or config/ takes no file\n")
        return
    numbers = ("log_end", "flushed", "dispatched", "count")
    columns = ("time", "thread", "event", *numbers, "words")
    shown = (row | {"time": time_text(row["time_ms"])} for row in rows)
    print_table(
        [name.replace("_", " ") for name in columns],
        [["-" if row[name] is None else row[name] for name in columns] for row in shown],
        right=[name.replace("_", " ") for name in numbers],
    )


def _print_facts(facts: dict[str, Any]) -> None:
    first, last = facts["first_store_timestamp_ms"], facts["last_store_timestamp_ms"]
    held = facts["max_phy_offset"] - facts["min_phy_offset"]
    print_facts(
        {
            "store": facts["path"],
            "state": facts["state"],
            "log": f"{size_text(held)} in {facts['log_files']} files, physical offsets "
            f"{facts['min_phy_offset']} to {facts['max_phy_offset']}",
            "stored": "nothing yet" if last is None else f"{time_text(first)} to {time_text(last)}",
            "dispatch": f"{size_text(facts['dispatch_behind_bytes'])} behind",
            "index": f"{facts['index_entries']:,} entries in {facts['index_files']} files",
            "on disk": ", ".join(
                f"{name} {size_text(size['on_disk'])}"
                for name, size in facts["bytes"].items()
                if size["on_disk"]
            ),
        }
    )
    if facts["ignored_settings"]:
        show(f"without meaning for a store: {', '.join(facts['ignored_settings'])}", style="dim")


def _print_rows(rows: list[dict[str, Any]]) -> None:
    if not rows:
        show("no queues\n")
        return
    columns = list(rows[0])
    print_table(
        [name.replace("_", " ") for name in columns],
        [row.values() for row in rows],
        right=[name.replace("_", " ") for name in columns if name != "topic"],
    )
