r"""MetaQ's text protocol: one line of words a command, then the bytes that the line announces.

    put <topic> <partition> <size> <flag> [<checksum>] [<transaction>] <opaque>\r\n<data>
    get <topic> <group> <partition> <offset> <max size> <opaque>\r\n
    offset <topic> <group> <partition> <offset> <opaque>\r\n
    stats [<item>] [<opaque>]\r\n        version [<opaque>]\r\n        quit\r\n
    transaction <key> <session> <type> [<timeout>] [<qualifier>] <opaque>\r\n
    sync <topic> <partition> <size> <flag> <message id> [<checksum>] <opaque>\r\n<data>
    result <code> <size> <opaque>\r\n<text>        value <size> <opaque>\r\n<records>

Knows lines and nothing of stores.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum

from rmqcore.errors import RmqCoreError

NO_OPAQUE = 2**31 - 1
NO_CHECKSUM = -1
RANDOM_PARTITION = -1
MAX_LINE_SIZE = 8192

_NUMBER = re.compile(r"-?\d{1,19}", re.ASCII)
_INT = (-(2**31), 2**31 - 1)
_LONG = (-(2**63), 2**63 - 1)


class ResultCode(IntEnum):
    """Result codes on the wire. Source: MetaQ HttpStatus.java."""

    SUCCESS = 200
    MOVED = 301
    BAD_REQUEST = 400
    FORBIDDEN = 403
    NOT_FOUND = 404
    INTERNAL_SERVER_ERROR = 500
    SERVICE_UNAVAILABLE = 503


class ProtocolError(RmqCoreError, ValueError):
    """A line is no command; the connection ends, as nobody knows where the next one begins.

    Attributes:
        reason: what is wrong with it.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


@dataclass(frozen=True, slots=True)
class Put:
    """Store ``size`` bytes that follow the line. Source: MetaQ PutCommand.java."""

    topic: str
    partition: int
    size: int
    flag: int
    checksum: int
    transaction: str | None
    opaque: int


@dataclass(frozen=True, slots=True)
class Get:
    """Ask for records. Source: MetaQ GetCommand.java."""

    topic: str
    group: str
    partition: int
    offset: int
    max_size: int
    opaque: int


@dataclass(frozen=True, slots=True)
class Offset:
    """Ask for the nearest offset. Source: MetaQ OffsetCommand.java."""

    topic: str
    group: str
    partition: int
    offset: int
    opaque: int


@dataclass(frozen=True, slots=True)
class Stats:
    """Ask for statistics. Source: MetaQ StatsCommand.java."""

    item: str
    opaque: int


@dataclass(frozen=True, slots=True)
class Version:
    """Ask for the version, also as a heartbeat. Source: MetaQ VersionCommand.java."""

    opaque: int


@dataclass(frozen=True, slots=True)
class Quit:
    """End the connection. Source: MetaQ QuitCommand.java."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """A step of a transaction. Source: MetaQ TransactionCommand.java."""

    kind: str
    opaque: int


@dataclass(frozen=True, slots=True)
class Sync:
    """A master's copy of ``size`` bytes that follow the line. Source: MetaQ SyncCommand.java."""

    size: int
    opaque: int


Command = Put | Get | Offset | Stats | Version | Quit | Transaction | Sync


def parse_command(line: bytes) -> Command:
    """Read one line, without its end.

    Raises:
        ProtocolError: an unknown command, a wrong number of words, or a word that is no number.
    """
    try:
        words = line.decode("utf-8").split(" ")
    except UnicodeDecodeError:
        raise ProtocolError("the line is no UTF-8") from None
    match words:
        case ["put", topic, partition, size, flag, *rest]:
            return _put(topic, partition, size, flag, rest)
        case ["get", topic, group, partition, offset, max_size, opaque]:
            return Get(topic, group, _int(partition), _long(offset), _int(max_size), _int(opaque))
        case ["offset", topic, group, partition, offset, opaque]:
            return Offset(topic, group, _int(partition), _long(offset), _int(opaque))
        case ["stats"]:
            return Stats("", NO_OPAQUE)
        case ["stats", item]:
            return Stats(item, NO_OPAQUE)
        case ["stats", item, opaque]:
            return Stats(item, _int(opaque))
        case ["version"]:
            return Version(NO_OPAQUE)
        case ["version", opaque]:
            return Version(_int(opaque))
        case ["quit"]:
            return Quit()
        case ["transaction", _, _, kind, *rest, opaque] if len(rest) <= 2:
            return Transaction(kind, _int(opaque))
        case ["sync", _, _, size, _, _, *rest, opaque] if len(rest) <= 1:
            return Sync(_size(size), _int(opaque))
        case _:
            raise ProtocolError(f"no such command: {words[0][:20]!r} with {len(words) - 1} words")


def format_put(command: Put) -> bytes:
    """Write the line of a put, its end included; the data follows."""
    words: list[object] = [command.topic, command.partition, command.size, command.flag]
    words.append(command.checksum)
    if command.transaction is not None:
        words.append(command.transaction)
    return _line("put", *words, command.opaque)


def format_get(command: Get) -> bytes:
    """Write the line of a get."""
    return _line(
        "get",
        command.topic,
        command.group,
        command.partition,
        command.offset,
        command.max_size,
        command.opaque,
    )


def format_offset(command: Offset) -> bytes:
    """Write the line of an offset query."""
    return _line(
        "offset",
        command.topic,
        command.group,
        command.partition,
        command.offset,
        command.opaque,
    )


def format_result(code: ResultCode, text: str, opaque: int) -> bytes:
    """Write a whole result: line and text. Source: MetaQ BooleanCommand.java.

    Args:
        code: of the answer.
        text: its content; empty for none.
        opaque: number by which the client knows its answer.
    """
    content = text.encode()
    return _line("result", int(code), len(content), opaque) + content


def _line(*words: object) -> bytes:
    return " ".join(str(word) for word in words).encode() + b"\r\n"


def _put(topic: str, partition: str, size: str, flag: str, rest: list[str]) -> Put:
    checksum = NO_CHECKSUM
    transaction: str | None = None
    match rest:
        case [opaque]:
            pass
        case [slot, opaque]:
            if _NUMBER.fullmatch(slot):
                checksum = _int(slot)
            else:
                transaction = slot
        case [slot, key, opaque]:
            checksum, transaction = _int(slot), key
        case _:
            raise ProtocolError(f"a put has 5 to 7 words, not {4 + len(rest)}")
    where = topic, _int(partition), _size(size), _int(flag)
    return Put(*where, checksum, transaction, _int(opaque))


def _size(word: str) -> int:
    return _number(word, 0, _INT[1])


def _int(word: str) -> int:
    return _number(word, *_INT)


def _long(word: str) -> int:
    return _number(word, *_LONG)


def _number(word: str, low: int, high: int) -> int:
    if not _NUMBER.fullmatch(word) or not low <= int(word) <= high:
        raise ProtocolError(f"{word[:20]!r} is no number from {low} to {high}")
    return int(word)
