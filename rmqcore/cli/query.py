"""``rmqcore query``: where is message X, by key, time, id or physical offset."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from rmqcore import MessageExt, QueryExplanation, ReadOnlyMessageStore
from rmqcore.cli import complete
from rmqcore.cli.exit_codes import ExitCode
from rmqcore.cli.notes import note
from rmqcore.cli.options import (
    AsJson,
    ConfigFile,
    DamageCount,
    Settings,
    StorePath,
    check_queue,
    check_queues_are_there,
    open_for_reading,
)
from rmqcore.cli.output import (
    for_json,
    print_facts,
    print_json,
    print_table,
    printable,
    show,
    time_text,
)
from rmqcore.cli.times import parse_time
from rmqcore.errors import CorruptRecordError, CorruptStoreError
from rmqcore.message import decode_message_id
from rmqcore.status import BoundaryType


def query(
    store: StorePath,
    key: Annotated[str | None, typer.Option(help="a key, or a UNIQ_KEY")] = None,
    time: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="the queue offsets of a time"),
    ] = None,
    message_id: Annotated[
        str | None, typer.Option("--id", help="an offset message id, or a UNIQ_KEY")
    ] = None,
    offset: Annotated[int | None, typer.Option(help="a physical offset of the log")] = None,
    topic: Annotated[
        str | None,
        typer.Option(help="only this topic; all without it", autocompletion=complete.topics),
    ] = None,
    queue: Annotated[int | None, typer.Option(min=0, help="with --time: only this queue")] = None,
    boundary: Annotated[
        BoundaryType, typer.Option(help="with --time: first at or after, last at or before")
    ] = BoundaryType.LOWER,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="with --key: stored at or after")
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="with --key: stored at or before")
    ] = None,
    count: Annotated[int, typer.Option("-n", min=1, help="with --key: the newest so many")] = 64,
    explain: Annotated[bool, typer.Option(help="say what was looked at")] = False,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Find messages by one of --key, --time, --id and --offset; exit code 1 when there are none."""
    if sum(value is not None for value in (key, time, message_id, offset)) != 1:
        raise typer.BadParameter("give one of --key, --time, --id and --offset")
    with open_for_reading(store, config, settings) as opened:
        if offset is None:
            check_queues_are_there(opened)
        check_queue(opened, topic, queue if topic else None)
        finder = _Finder(opened, topic, count, parse_time(since) or 0, parse_time(until))
        if time is not None:
            damage = DamageCount(as_json=as_json)
            rows = _offsets_by_time(opened, topic, queue, parse_time(time) or 0, boundary, damage)
            _print_offsets(rows, as_json)
            damage.finish()
            raise typer.Exit(ExitCode.DONE if rows else ExitCode.FINDINGS)
        if key is not None:
            finder.by_key(key)
        elif message_id is not None:
            finder.by_id(message_id)
        elif offset is not None:
            finder.by_offset(offset)
        finder.print(as_json=as_json, explain=explain)
        finder.tell_damage(DamageCount(as_json=as_json))
    raise typer.Exit(ExitCode.DONE if finder.messages else ExitCode.FINDINGS)


class _Finder:
    """Messages that were found, and how.

    Attributes:
        messages: what was found, in the order of the log within each topic.
        steps: what was done, in words.
        explanations: of the key queries, one a topic.
    """

    def __init__(
        self,
        store: ReadOnlyMessageStore,
        topic: str | None,
        count: int,
        begin_ms: int,
        end_ms: int | None,
    ) -> None:
        self._store = store
        self._topic = topic
        self._count = count
        self._begin_ms = begin_ms
        self._end_ms = end_ms
        self.messages: list[MessageExt] = []
        self.steps: list[str] = []
        self.explanations: list[QueryExplanation] = []
        self.more = False

    def by_key(self, key: str) -> None:
        """Look a key up in one topic, or in each that the store has."""
        topics = [self._topic] if self._topic else sorted({t for t, _ in self._store.queues()})
        self.steps.append(f"key {key!r} in {len(topics)} topics")
        for topic in topics:
            result = self._store.query_message(
                topic,
                key,
                max_messages=self._count,
                begin_ms=self._begin_ms,
                end_ms=self._end_ms,
                explain=True,
            )
            self.messages += result.messages
            self.more = self.more or result.next_page is not None
            if result.explanation is not None:
                self.explanations.append(result.explanation)

    def by_id(self, message_id: str) -> None:
        """Look an id up: as an offset id first, then as the UNIQ_KEY that producers call an id."""
        try:
            host, phy_offset = decode_message_id(message_id)
        except ValueError:
            self.steps.append("no offset message id (32 or 56 hex digits), so a UNIQ_KEY")
            self.by_key(message_id)
            return
        self.steps.append(f"an offset id: physical offset {phy_offset} of the store at {host}")
        found = self._store.message_by_id(message_id)
        if found is not None and found.message_id == message_id.upper():
            self.messages.append(found)
            return
        if found is not None:
            self.steps.append(f"the record there has the id {found.message_id}")
        self.by_key(message_id)

    def by_offset(self, phy_offset: int) -> None:
        """Look at one physical offset."""
        low, high = self._store.min_phy_offset, self._store.max_phy_offset
        self.steps.append(f"the log has physical offsets {low} to {high}")
        found = self._store.message_at(phy_offset)
        if found is not None:
            self.messages.append(found)
        elif low <= phy_offset < high:
            self.steps.append("no record begins there")

    def tell_damage(self, count: DamageCount) -> None:
        """Name the records that cannot be read and may be among those that were looked for.

        Args:
            count: says them.

        Raises:
            typer.Exit: there are some.
        """
        damaged = {place: why for one in self.explanations for place, why in one.damaged}
        for phy_offset, reason in sorted(damaged.items()):
            file = self._store.log.queue.find(phy_offset)
            path = self._store.log.queue.directory if file is None else file.path
            count(CorruptRecordError(path, phy_offset, reason))
        count.finish()

    def print(self, *, as_json: bool, explain: bool) -> None:
        """Print what was found, and with ``explain`` how."""
        if as_json:
            answer: dict[str, Any] = {
                "messages": [for_json(message) for message in self.messages],
                "more": self.more,
            }
            if explain:
                answer["steps"] = self.steps
                answer["explanations"] = [_as_dict(item) for item in self.explanations]
            print_json(answer)
            return
        if explain:
            lines = [*self.steps, *(str(item) for item in self.explanations)]
            note("\n".join(lines))
        for message in self.messages:
            _print_found(message)
        if not self.messages:
            note("nothing found" + ("" if explain else "; --explain says why"))
        if self.more:
            note(f"older messages have it too: -n above {self._count} shows them")


def _as_dict(explanation: QueryExplanation) -> dict[str, Any]:
    return {
        "index_key": explanation.index_key,
        "key_hash": explanation.key_hash,
        "begin_ms": explanation.begin_ms,
        "end_ms": explanation.end_ms,
        "files": [
            {"name": name, "looked_into": inside, "chain_steps": steps, "candidates": found}
            for name, inside, steps, found in explanation.files
        ],
        "candidates": explanation.candidates,
        "dropped": _places(explanation.dropped),
        "damaged": _places(explanation.damaged),
    }


def _places(found: list[tuple[int, str]]) -> list[dict[str, Any]]:
    return [{"phy_offset": phy_offset, "reason": reason} for phy_offset, reason in found]


def _print_found(message: MessageExt) -> None:
    facts: dict[str, object] = {
        "queue": f"{message.topic}/{message.queue_id} at {message.queue_offset}",
        "physical offset": f"{message.phy_offset}, {message.store_size} bytes",
        "message id": message.message_id,
        "stored": f"{time_text(message.store_timestamp_ms)} by {message.store_host}",
        "born": f"{time_text(message.born_timestamp_ms)} at {message.born_host}",
        "body crc": f"{message.body_crc:#010x}, {'right' if message.check_crc() else 'WRONG'}",
    }
    facts |= {f"  {name}": value for name, value in sorted(message.properties.items())}
    print_facts(facts)
    body = printable(message.decompressed_body(), "\n\t")
    show(f"{body}\n")


def _offsets_by_time(
    store: ReadOnlyMessageStore,
    topic: str | None,
    queue: int | None,
    timestamp_ms: int,
    boundary: BoundaryType,
    damage: DamageCount,
) -> list[dict[str, Any]]:
    """A row for each queue; of a damaged message it has no time."""
    rows = []
    for name, number in store.queues():
        if topic in (None, name) and queue in (None, number):
            found = store.queue_offset_by_time(name, number, timestamp_ms, boundary=boundary)
            met: list[CorruptStoreError] = []
            messages = store.messages(
                name, number, start=found, stop=found + 1, on_damage=met.append
            )
            message = next(messages, None)
            places = [one.phy_offset for one in (message, *met) if one is not None]
            for error in met:
                damage(error)
            rows.append(
                {
                    "topic": name,
                    "queue_id": number,
                    "queue_offset": found,
                    "store_timestamp_ms": message.store_timestamp_ms if message else None,
                    "phy_offset": places[0] if places else None,
                }
            )
    return rows


def _print_offsets(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json(rows)
        return
    if not rows:
        note("nothing found: no such queue")
        return
    print_table(
        ["topic", "queue", "offset", "stored", "physical"],
        [
            (
                row["topic"],
                row["queue_id"],
                row["queue_offset"],
                _time_of(row),
                row["phy_offset"] if row["phy_offset"] is not None else "-",
            )
            for row in rows
        ],
        right=["queue", "offset", "physical"],
    )


def _time_of(row: dict[str, Any]) -> str:
    if row["store_timestamp_ms"] is not None:
        return time_text(row["store_timestamp_ms"])
    return "(end)" if row["phy_offset"] is None else "(damaged)"
