"""``rmqcore put``: lines, JSON objects or whole files into a topic."""

from __future__ import annotations

import base64
import binascii
import errno
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from enum import StrEnum
from itertools import cycle
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from rmqcore import Durability, Message, MessageStore, PutMessageResult
from rmqcore.cli import complete
from rmqcore.cli.failures import InputError
from rmqcore.cli.notes import note
from rmqcore.cli.options import AsJson, ConfigFile, Settings, StorePath, open_with_others
from rmqcore.cli.output import print_json, size_text
from rmqcore.cli.progress import Bars
from rmqcore.errors import MessageIllegalError, PutMessageError
from rmqcore.world import monotonic_s

_SHOW_EVERY = 4096
_STANDARD_INPUT = Path("-")
_NO_FILE = "no such file; a message's text comes from standard input: echo TEXT | rmqcore put ..."
_FIELDS: dict[str, type] = {
    "keys": list,
    "tags": str,
    "properties": dict,
    "queue_id": int,
    "flag": int,
    "sys_flag": int,
    "delay_level": int,
    "born_timestamp_ms": int,
    "born_host": str,
    "reconsume_times": int,
}


class Kind(StrEnum):
    """What one message is made of."""

    LINES = "lines"
    JSONL = "jsonl"
    FILES = "files"


class Wait(StrEnum):
    """What a put waits for."""

    DISK = "disk"
    PAGE_CACHE = "page_cache"


class Input:
    """Messages out of files or standard input; knows where it is, for error messages.

    Attributes:
        name, line: the input that is being read, and how many of its lines have been read.
        read_bytes, total_bytes: how far it is; the total is None for standard input.
    """

    def __init__(
        self, paths: list[Path], kind: Kind, queue_ids: Iterator[int], fields: dict[str, Any]
    ) -> None:
        self._paths = paths or [_STANDARD_INPUT]
        self._kind = kind
        self._queue_ids = queue_ids
        self._fields = fields
        self.name = "standard input"
        self.line = 0
        self.read_bytes = 0
        for path in self._paths:
            if path != _STANDARD_INPUT and not path.exists():
                raise FileNotFoundError(errno.ENOENT, _NO_FILE, str(path))
        self.total_bytes = (
            None
            if _STANDARD_INPUT in self._paths
            else sum(path.stat().st_size for path in self._paths)
        )

    def messages(self, topic: str) -> Iterator[Message]:
        """Every message, in the order of the input.

        Raises:
            InputError: a line of JSON is no message.
            OSError: a file cannot be read.
        """
        with ExitStack() as opened:
            for path in self._paths:
                plain = path == _STANDARD_INPUT
                self.name, self.line = "standard input" if plain else str(path), 0
                stream = sys.stdin.buffer if plain else opened.enter_context(path.open("rb"))
                yield from self._of_stream(topic, stream)
                opened.close()

    def _of_stream(self, topic: str, stream: BinaryIO) -> Iterator[Message]:
        if self._kind is Kind.FILES:
            body = stream.read()
            self.read_bytes += len(body)
            yield Message(topic, body, queue_id=next(self._queue_ids), **self._fields)
            return
        for line in stream:
            self.line += 1
            self.read_bytes += len(line)
            text = line.removesuffix(b"\n").removesuffix(b"\r")
            if self._kind is Kind.LINES:
                yield Message(topic, text, queue_id=next(self._queue_ids), **self._fields)
            elif text.strip():
                yield Message(topic, **(self._fields | self._parsed(text)))

    def _parsed(self, text: bytes) -> dict[str, Any]:
        """The fields of one line of JSON."""
        try:
            given = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(self.name, self.line, f"no JSON: {error}") from None
        if not isinstance(given, dict):
            raise InputError(self.name, self.line, "not a JSON object")
        fields: dict[str, Any] = {"body": self._body(given)}
        if "queue_id" not in given:
            fields["queue_id"] = next(self._queue_ids)
        if isinstance(given.get("keys"), str):
            given["keys"] = [given["keys"]]
        for name, value in given.items():
            kind = _FIELDS.get(name)
            if kind is None:
                known = ", ".join(["body", "body_base64", *_FIELDS])
                raise InputError(self.name, self.line, f"{name!r} is none of {known}")
            if value is None:
                continue
            if not isinstance(value, kind) or isinstance(value, bool):
                raise InputError(self.name, self.line, f"{name}={value!r} is no {kind.__name__}")
            fields[name] = tuple(value) if isinstance(value, list) else value
        return fields

    def _body(self, given: dict[str, Any]) -> bytes:
        plain, encoded = given.pop("body", None), given.pop("body_base64", None)
        if (plain is None) == (encoded is None):
            raise InputError(self.name, self.line, "give either body or body_base64")
        try:
            if plain is None:
                return base64.b64decode(encoded, validate=True)
            return str(plain).encode() if isinstance(plain, str) else json.dumps(plain).encode()
        except (TypeError, ValueError, binascii.Error) as error:
            raise InputError(self.name, self.line, f"the body: {error}") from None

    @property
    def place(self) -> str:
        """Where the input is, for messages."""
        return f"{self.name}, line {self.line}" if self.line else self.name


def put(
    store: StorePath,
    topic: Annotated[
        str,
        typer.Argument(metavar="TOPIC", help="topic to put into", autocompletion=complete.topics),
    ],
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE", help="input; - or none is standard input"),
    ] = None,
    kind: Annotated[
        Kind, typer.Option("--as", help="a message is: a line, a JSON object a line, a whole file")
    ] = Kind.LINES,
    queues: Annotated[int, typer.Option(min=1, help="spread over queues 0 to N - 1, in turn")] = 1,
    queue: Annotated[int | None, typer.Option(min=0, help="put all into this queue")] = None,
    tags: Annotated[str | None, typer.Option(help="tag of every message")] = None,
    keys: Annotated[
        list[str] | None, typer.Option("--key", help="key of every message; repeatable")
    ] = None,
    durability: Annotated[
        Wait | None, typer.Option(help="wait for this before the next put; else as configured")
    ] = None,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Put messages into a topic; the store is created when it is missing.

    Processes that have the store open by rmqcore.open_shared go on meanwhile.

    With --as jsonl a line is {"body": "...", "keys": [...], "tags": "...", "properties": {...},
    "queue_id": 0, ...}; body_base64 takes the place of body for bytes that are no text.
    """
    queue_ids = cycle([queue] if queue is not None else range(queues))
    source = Input(paths or [], kind, queue_ids, {"tags": tags, "keys": tuple(keys or ())})
    wanted = Durability(durability.value) if durability else None
    with Bars() as bars, open_with_others(store, config, settings, bars) as opened:
        began = monotonic_s()
        done = _put_all(opened, source, topic, wanted, bars)
        opened.flush()
        elapsed = monotonic_s() - began
    _print_receipt(done | {"topic": topic, "elapsed_s": round(elapsed, 6)}, as_json)


def _put_one(
    store: MessageStore, message: Message, durability: Durability | None
) -> PutMessageResult:
    """Put one message; anything but success is an error."""
    receipt = store.put_message(message, durability=durability)
    if not receipt.ok:
        raise PutMessageError(receipt.status, receipt.reason)
    return receipt


def _put_all(
    store: MessageStore,
    source: Input,
    topic: str,
    durability: Durability | None,
    bars: Bars,
) -> dict[str, Any]:
    """Put what the source has; says on standard error how far it came when it does not end."""
    count = size = 0
    first = last = -1
    level: str | None = None
    try:
        for message in source.messages(topic):
            receipt = _put_one(store, message, durability)
            first = receipt.phy_offset if count == 0 else first
            last, level = receipt.phy_offset, receipt.durability
            count += 1
            size += len(message.body)
            if count % _SHOW_EVERY == 0:
                bars.show("put", source.read_bytes, source.total_bytes)
    except MessageIllegalError as error:
        raise MessageIllegalError(f"{source.place}: {error.reason}; {count} put before") from None
    except BaseException:
        note(f"rmqcore: {count:,} messages were put before")
        raise
    return {
        "messages": count,
        "body_bytes": size,
        "first_phy_offset": first,
        "last_phy_offset": last,
        "durability": level,
    }


def _print_receipt(done: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(done)
        return
    text = f"{done['messages']:,} messages, {size_text(done['body_bytes'])} into {done['topic']}"
    if done["messages"]:
        text += (
            f" in {done['elapsed_s']:.2f} s, the first at physical offset "
            f"{done['first_phy_offset']}, the last at {done['last_phy_offset']}; flushed, so all "
            "of it is on disk"
        )
    typer.echo(text)
