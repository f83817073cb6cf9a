"""Any file of a store, field by field, with offsets and bytes; whatever state it is in."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rmqcore._codec import BLANK_SIZE, LAYOUT, check_record, decode_record, record_layout
from rmqcore._index import HEADER_SIZE, INDEX_ENTRY_SIZE, INDEX_SLOT_SIZE, index_file_size
from rmqcore.errors import ConfigError, CorruptRecordError, Naming
from rmqcore.files.consume_queue import FILLER
from rmqcore.files.log_walker import record_heads
from rmqcore.files.mapped_file import MappedFile, OpenFiles
from rmqcore.java.json import parse_java_json
from rmqcore.native.format._message_ext import MessageExt
from rmqcore.native.format._next_record import RECORD_HEAD_SIZE, head_says
from rmqcore.native.format._numbers import BATCH_UNIT_SIZE, CHECKPOINT_SIZE, UNIT_SIZE

KINDS = (
    "commitlog",
    "consumequeue",
    "batchconsumequeue",
    "consumequeue_ext",
    "index",
    "checkpoint",
    "json",
)
_READ_SIZE = 1 << 20
_HEX_MAX = 64
_NUMBERED = re.compile(r"\d{20}")
_EXT_UNIT_SIZE = sum(size for _, size in LAYOUT["consume_queue_ext_unit"].values())
_ENTRIES_A_SLOT = 4


@dataclass(frozen=True, slots=True)
class DumpField:
    """One field.

    Attributes:
        name: as in docs/format.
        at: position in the file, in bytes.
        raw: its bytes, of a long one the first.
        value: what they mean; numbers as int, text as str.
        size: bytes of the whole field.
    """

    name: str
    at: int
    raw: bytes
    value: Any
    size: int

    def as_dict(self) -> dict[str, Any]:
        """The field as plain values, for JSON."""
        value = self.value.hex() if isinstance(self.value, bytes) else self.value
        return {"name": self.name, "at": self.at, "hex": self.raw.hex(), "value": value}


@dataclass(frozen=True, slots=True)
class DumpItem:
    """One record, unit, slot, entry or document.

    Attributes:
        kind: "record", "blank", "zeros", "garbage", "unit", "filler", "header", "slot", "entry",
            "checkpoint", "json".
        at: position in the file, in bytes.
        size: bytes it takes.
        fields: its fields, in the order of the file.
        problem: what is wrong with it; empty when nothing is.
    """

    kind: str
    at: int
    size: int
    fields: list[DumpField] = field(default_factory=list)
    problem: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The item as plain values, for JSON."""
        return {
            "kind": self.kind,
            "at": self.at,
            "size": self.size,
            "problem": self.problem,
            "fields": [one.as_dict() for one in self.fields],
        }


def dump(
    path: str | os.PathLike[str],
    *,
    kind: str | None = None,
    start: int = 0,
    hash_slot_num: int | None = None,
) -> Iterator[DumpItem]:
    """Show a file, item by item.

    Args:
        path: the file.
        kind: one of `KINDS`; None tells it by the file's place and name.
        start: position in the file to begin at; of a log file, an item must begin there.
        hash_slot_num: slots of an index file; None tells them by the file's length, as it is with
            four entries a slot.

    Yields:
        every item; stretches of zeros, and of bytes that are nothing, are one item each.

    Raises:
        ConfigError: an unknown kind, or a file whose kind or geometry cannot be told.
        OSError: the file cannot be read.
    """
    path = Path(path)
    chosen = kind or kind_of(path)
    if chosen not in KINDS:
        raise ConfigError("kind", chosen, f"one of {', '.join(KINDS)}")
    with path.open("rb", buffering=0) as stream:
        source = _Source(stream.fileno(), path)
        if chosen == "commitlog":
            yield from _log(source, start)
        elif chosen == "index":
            yield from _index(source, start, hash_slot_num)
        elif chosen == "checkpoint":
            yield from _checkpoint(source)
        elif chosen == "json":
            yield _json(source)
        else:
            yield from _units(source, chosen, start)


def kind_of(path: Path) -> str:
    """The kind of a file, by its place and name.

    Raises:
        ConfigError: neither tells.
    """
    if path.name == "checkpoint":
        return "checkpoint"
    if ".json" in path.name:
        return "json"
    parents = [parent.name for parent in path.absolute().parents]
    if _NUMBERED.fullmatch(path.name):
        for number, name in enumerate(("commitlog", "consumequeue", "batchconsumequeue")):
            if parents[0] == name or (number and name in parents[:3]):
                return name
        if "consumequeue_ext" in parents[:3]:
            return "consumequeue_ext"
    if parents[0] == "index" and path.name.isdigit():
        return "index"
    raise ConfigError("kind", None, f"{path}: say which kind of file it is: {', '.join(KINDS)}")


class _Source:
    """Reads a file at positions; what is behind its end is not there."""

    def __init__(self, fd: int, path: Path) -> None:
        self._fd = fd
        self.path = path
        self.size = os.fstat(fd).st_size
        self.file = MappedFile(path, self.size, self.base_offset, OpenFiles(), writable=False)

    def read(self, at: int, size: int) -> bytes:
        with Naming(self.path):
            return os.pread(self._fd, max(0, min(size, self.size - at)), at)

    @property
    def base_offset(self) -> int:
        """Offset of the first byte, from the name."""
        return int(self.path.name) if _NUMBERED.fullmatch(self.path.name) else 0


def _number(name: str, data: bytes, at: int, size: int, base: int) -> DumpField:
    raw = data[at : at + size]
    return DumpField(name, base + at, raw, int.from_bytes(raw, "big", signed=True), size)


def _bytes(name: str, data: bytes, at: int, size: int, base: int, value: Any) -> DumpField:
    return DumpField(name, base + at, data[at : at + min(size, _HEX_MAX)], value, size)


# ---- commit log


def _log(source: _Source, at: int) -> Iterator[DumpItem]:
    while at < source.size:
        head = source.read(at, RECORD_HEAD_SIZE)
        if not head.strip(b"\0"):
            stop = _end_of_zeros(source, at)
            yield DumpItem("zeros", at, stop - at)
            at = stop
            continue
        item = _record(source, at, head_says(head)[0])
        if item is None:
            stop = next(record_heads(source.file, at + 1), source.size)
            raw = source.read(at, _HEX_MAX)
            found = DumpField("bytes", at, raw, raw, stop - at)
            yield DumpItem("garbage", at, stop - at, [found], "no record begins here")
            at = stop
            continue
        yield item
        at += item.size


def _record(source: _Source, at: int, size: int) -> DumpItem | None:
    """The record or the end-of-file record at a position; None when neither is there."""
    if not BLANK_SIZE <= size <= source.size - at:
        return None
    data = source.read(at, size)
    problem = ""
    try:
        length = check_record(data, verify_crc=False)
        if length < 0:
            return DumpItem("blank", at, -length, _fields("blank", data, at))
        check_record(data)
    except CorruptRecordError as error:
        problem = error.reason
        if "CRC" not in problem:
            return None
    message = decode_record(data, check_crc=False)
    if message.phy_offset != source.base_offset + at:
        problem = f"the record says that it lies at {message.phy_offset}"
    return DumpItem("record", at, size, _record_fields(message, data, at), problem)


def _record_fields(message: MessageExt, data: bytes, base: int) -> list[DumpField]:
    texts: dict[str, Any] = {
        "born_host": message.born_host,
        "store_host": message.store_host,
        "body": message.body[:_HEX_MAX],
        "topic": message.topic,
        "properties": message.properties,
    }
    return [
        _bytes(name, data, at, size, base, texts[name])
        if name in texts
        else _number(name, data, at, size, base)
        for name, (at, size) in record_layout(data).items()
    ]


def _end_of_zeros(source: _Source, at: int) -> int:
    """The first word that is not zero, from ``at`` on, or the file's end."""
    while at < source.size:
        data = source.read(at, _READ_SIZE)
        if not data:
            break
        rest = data.lstrip(b"\0")
        if rest:
            return at + len(data) - len(rest)
        at += len(data)
    return source.size


# ---- consume queues


def _units(source: _Source, kind: str, start: int) -> Iterator[DumpItem]:
    name, size = {
        "consumequeue": ("consume_queue_unit", UNIT_SIZE),
        "batchconsumequeue": ("batch_consume_queue_unit", BATCH_UNIT_SIZE),
        "consumequeue_ext": ("consume_queue_ext_unit", _EXT_UNIT_SIZE),
    }[kind]
    at = start - start % size if kind != "consumequeue_ext" else start
    while at < source.size:
        data = source.read(at, size)
        if len(data) < size:
            yield DumpItem("garbage", at, len(data), [], "the file ends inside a unit")
            return
        if not data.strip(b"\0"):
            stop = _end_of_zeros(source, at)
            stop -= (stop - at) % size if kind != "consumequeue_ext" else 0
            yield DumpItem("zeros", at, stop - at)
            at = stop
            continue
        fields = [_number(one, data, *place, at) for one, place in LAYOUT[name].items()]
        length = size
        problem = ""
        if kind == "consumequeue_ext":
            length = fields[0].value
            if not size <= length <= source.size - at:
                problem, length = "the unit's size is none; the file ends here", source.size - at
        elif fields[1].value <= 0 or fields[0].value < 0:
            problem = "no record has such a place"
        yield DumpItem("filler" if data == FILLER else "unit", at, length, fields, problem)
        at += length


# ---- index


def _index(source: _Source, start: int, slots: int | None) -> Iterator[DumpItem]:
    if slots is None:
        slots = (source.size - HEADER_SIZE) // (
            INDEX_SLOT_SIZE + INDEX_ENTRY_SIZE * _ENTRIES_A_SLOT
        )
        if index_file_size(slots, _ENTRIES_A_SLOT * slots) != source.size or slots < 1:
            raise ConfigError(
                "max_hash_slot_num",
                None,
                f"{source.path}: give it, {source.size} bytes do not tell",
            )
    data = source.read(0, HEADER_SIZE)
    header = _fields("index_header", data, 0)
    count = {one.name: one.value for one in header}["index_count"]
    room = (source.size - HEADER_SIZE - INDEX_SLOT_SIZE * slots) // INDEX_ENTRY_SIZE
    problem = f"there is room for {room} entries" if count > room else ""
    if start < HEADER_SIZE:
        yield DumpItem("header", 0, HEADER_SIZE, header, problem)
    parts: tuple[tuple[str, int, int, int, Callable[[bytes], bool]], ...] = (
        ("slot", HEADER_SIZE, slots, INDEX_SLOT_SIZE, any),
        (
            "entry",
            HEADER_SIZE + INDEX_SLOT_SIZE * slots,
            min(max(count, 0), room),
            INDEX_ENTRY_SIZE,
            lambda _: True,
        ),
    )
    for kind, base, items, size, shown in parts:
        for number in range(1 if kind == "entry" else 0, items):
            at = base + number * size
            item = source.read(at, size) if at >= start else b""
            if len(item) == size and shown(item):
                name = "index_slot" if kind == "slot" else "index_entry"
                fields = [DumpField("number", at, b"", number, 0), *_fields(name, item, at)]
                yield DumpItem(kind, at, size, fields)


def _fields(name: str, data: bytes, base: int) -> list[DumpField]:
    return [_number(one, data, *place, base) for one, place in LAYOUT[name].items()]


# ---- the others


def _checkpoint(source: _Source) -> Iterator[DumpItem]:
    data = source.read(0, CHECKPOINT_SIZE)
    problem = ""
    if source.size != CHECKPOINT_SIZE:
        problem = f"{source.size} bytes, a checkpoint has {CHECKPOINT_SIZE}"
    yield DumpItem("checkpoint", 0, source.size, _fields("checkpoint", data, 0), problem)


def _json(source: _Source) -> DumpItem:
    data = source.read(0, source.size)
    try:
        value, problem = parse_java_json(data.decode("utf-8")), ""
    except ValueError as error:
        value, problem = data[:_HEX_MAX], f"it cannot be read: {error}"
    return DumpItem(
        "json", 0, len(data), [DumpField("document", 0, data[:_HEX_MAX], value, len(data))], problem
    )
