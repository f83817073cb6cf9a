"""Values on the wire: arguments, results and errors of a store's calls as the body of a frame.

offset | size | field
0      | 4    | length of the text
4      | n    | the value as JSON
4 + n  | rest | every run of bytes in it, one after the other

In the JSON a number, a string, true, false and null are themselves; everything else is a list that
begins with its tag, so that no value of a user can be taken for another kind. A decoder makes only
what the tables below name: nothing that is received decides which code runs.
"""

from __future__ import annotations

import builtins
import dataclasses
import json
import numbers
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rmqcore import errors, status
from rmqcore._codec import decode_record
from rmqcore.config import BrokerRole, FlushDiskType, OnCorruption, StoreConfig
from rmqcore.errors import ArgumentError, RmqCoreError, StoreError
from rmqcore.files.config_tables import DataVersion, TopicConfig
from rmqcore.message import Lease, QueueLag, ReceivedMessage, Sql
from rmqcore.native.format._message import Message
from rmqcore.native.format._message_ext import MessageExt
from rmqcore.native.format._receipt import PutMessageResult
from rmqcore.native.format._wire_message import WireMessage
from rmqcore.native.read._get_result import GetMessageResult
from rmqcore.native.read._key_query import QueryMessageResult
from rmqcore.store.parts.general_reads import QueryExplanation
from rmqcore.store.parts.put_columns_result import PutColumnsResult, QueueSpan

if TYPE_CHECKING:
    from rmqcore.remoting.command import Buffer

_LENGTH_SIZE: Final = 4
_ENCODE: Final = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
_DECODE: Final = json.JSONDecoder().raw_decode
_NO_LIMIT: Final = 1 << 31
#: The formats of buffers whose elements are characters, or objects: their bytes mean nothing.
_NO_BYTES: Final = "uwO"

_ENUMS: Final = {
    kind.__name__: kind
    for kind in (
        status.PutMessageStatus,
        status.GetMessageStatus,
        status.Durability,
        status.BoundaryType,
        BrokerRole,
        FlushDiskType,
        OnCorruption,
    )
}
_RECORDS: Final = {
    kind.__name__: kind for kind in (TopicConfig, DataVersion, QueryExplanation, PutColumnsResult)
}
_STATUSES: Final = {int(each): each for each in status.PutMessageStatus}
_DURABILITIES: Final = {each.value: each for each in status.Durability}
_TUPLES: Final[dict[str, Any]] = {
    kind.__name__: kind for kind in (WireMessage, Lease, QueueLag, QueueSpan)
}
_ERRORS: Final[dict[str, type[BaseException]]] = {
    name: kind
    for module in (errors, builtins)
    for name, kind in vars(module).items()
    if isinstance(kind, type)
    and (issubclass(kind, RmqCoreError) if module is errors else issubclass(kind, Exception))
}

#: What a body that holds no value comes to; a signal handler may raise anything else meanwhile.
_WRONG: Final = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)


def pack(value: object) -> list[Buffer]:
    """A value as the buffers of a body; bytes in it are not copied.

    Raises:
        ArgumentError: it holds what no call of a store takes or gives.
    """
    parts: list[Buffer] = []
    text = _ENCODE(_plain(value, parts)).encode()
    return [len(text).to_bytes(_LENGTH_SIZE) + text, *parts]


def unpack(body: bytes) -> Any:
    """The value in a body; runs of bytes in it are parts of the body where that saves a copy.

    Raises:
        ValueError: the body holds no value.
    """
    size = int.from_bytes(body[:_LENGTH_SIZE])
    whole = memoryview(body)
    try:
        text = str(whole[_LENGTH_SIZE : _LENGTH_SIZE + size], "ascii")
        return _value(_plain_of(text), _ByteRuns(whole, _LENGTH_SIZE + size))
    except RmqCoreError:
        raise
    except _WRONG as error:
        raise ValueError(f"no value of a store's call: {error!r}") from error


def _plain_of(text: str) -> Any:
    plain, end = _DECODE(text)
    if end != len(text):
        raise ValueError(f"{len(text) - end} characters behind the value")
    return plain


class _ByteRuns:
    """The runs of bytes behind the text, handed out in order."""

    __slots__ = ("_at", "_whole")

    def __init__(self, whole: memoryview, at: int) -> None:
        self._whole = whole
        self._at = at

    def read(self, size: int) -> memoryview:
        begin, end = self._at, self._at + size
        if size < 0 or end > len(self._whole):
            raise ValueError(f"{size} bytes at {begin} of a body of {len(self._whole)}")
        self._at = end
        return self._whole[begin:end]


# ---- packing ------------------------------------------------------------------------------------


def _plain(value: object, parts: list[Buffer]) -> Any:
    kind = type(value)
    if kind in _AS_THEY_ARE:
        return value
    packer = _PACKERS.get(kind)
    if packer is not None:
        return packer(value, parts)
    name = kind.__name__
    if _ENUMS.get(name) is kind:
        return ["e", name, value.value]  # type: ignore[attr-defined]
    if _RECORDS.get(name) is kind:
        return ["o", name, _pairs(_fields(value), parts)]
    if _TUPLES.get(name) is kind:
        return ["n", name, *_each(value, parts)]  # type: ignore[arg-type]
    if isinstance(value, BaseException):
        return _error(value, parts)
    for base, packer in _BASES:
        if isinstance(value, base):
            return packer(value, parts)
    return _other(value, parts)


def _other(value: object, parts: list[Buffer]) -> Any:
    """What stands for a number, for bytes or for a list.

    Bytes of what is not `bytes` stay another kind, as the owner takes them or not.
    """
    number = _number(value)
    if number is not None:
        return number
    with suppress(TypeError, ValueError):
        view = memoryview(value)  # type: ignore[arg-type]
        # `tolist` of text gives a list of characters
        if view.format[-1] not in _NO_BYTES:
            parts.append(view.cast("B"))
            return ["v", view.nbytes]
    if isinstance(value, Iterable):
        return _list(value, parts)
    rule = "what can be handed to the process that owns the store"
    raise ArgumentError("argument", value, rule)


def _number(value: Any) -> int | float | None:
    """What stands for a number, such as an enum or one of numpy, as that; None for all else."""
    with suppress(TypeError):
        return operator.index(value)
    return float(value) if isinstance(value, numbers.Real) else None


_AS_THEY_ARE: Final = frozenset((str, int, float, bool, type(None)))


def _bytes(value: bytes, parts: list[Buffer]) -> list[Any]:
    parts.append(value)
    return ["b", len(value)]


def _pairs(value: Mapping[Any, Any], parts: list[Buffer]) -> list[Any]:
    pairs: list[Any] = ["d"]
    for key, each in value.items():
        name = key if type(key) is str else _plain(key, parts)
        pairs.append([name, each if type(each) in _AS_THEY_ARE else _plain(each, parts)])
    return pairs


def _list(value: Iterable[Any], parts: list[Buffer]) -> list[Any]:
    return ["l", *_each(value, parts)]


def _each(value: Iterable[Any], parts: list[Buffer]) -> list[Any]:
    return [each if type(each) in _AS_THEY_ARE else _plain(each, parts) for each in value]


def _fields(value: Any) -> dict[str, object]:
    return {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}


def _config(value: StoreConfig, parts: list[Buffer]) -> list[Any]:
    named = value.explicit | {"profile"}
    settings = {name: getattr(value, name) for name in named}
    return ["c", _plain(settings, parts), _plain(dict(value.ignored), parts)]


def _receipt(value: PutMessageResult, parts: list[Buffer]) -> list[Any]:
    reduced: Any = value.__reduce__()
    fields = reduced[1][0]
    host, durability = fields["store_host"], fields["durability"]
    return [
        "r",
        int(fields["status"]),
        fields["phy_offset"],
        fields["queue_offset"],
        fields["store_size"],
        fields["store_timestamp_ms"],
        fields["message_count"],
        None if durability is None else str.__str__(durability),
        fields["reason"],
        None if host is None else host.hex(),
        fields.get("phy_offsets"),
    ]


def _stored(value: MessageExt, parts: list[Buffer]) -> list[Any]:
    record = value.record
    parts.append(record)
    return ["x", len(record)]


def _got(value: GetMessageResult, parts: list[Buffer]) -> list[Any]:
    slices = value.slices()
    parts += slices
    return [
        "g",
        int(value.status),
        value.next_queue_offset,
        value.min_queue_offset,
        value.max_queue_offset,
        [len(each) for each in slices],
        value.expected,
    ]


def _queried(value: QueryMessageResult, parts: list[Buffer]) -> list[Any]:
    found = [_stored(each, parts) for each in value.messages]
    return ["q", found, value.next_page, _plain(value.explanation, parts)]


def _received(value: ReceivedMessage, parts: list[Buffer]) -> list[Any]:
    return [
        "R",
        _stored(value.stored, parts),
        value.broker_name,
        _plain(value.place, parts),
        value.reconsume_times,
    ]


def _error(value: BaseException, parts: list[Buffer]) -> list[Any]:
    """An error by its name, with what it knows; one of an unknown kind becomes a `StoreError`."""
    kind = type(value)
    if _ERRORS.get(kind.__name__) is not kind:
        value = StoreError(f"{kind.__name__}: {value}")
        kind = StoreError
    args: Sequence[object] = value.args
    if isinstance(value, OSError) and value.filename is not None:
        args = (value.errno, value.strerror, str(value.filename))
    facts = {name: _simple(fact) for name, fact in vars(value).items()}
    told = [_simple(each) for each in args]
    return ["E", kind.__name__, _plain(told, parts), _plain(facts, parts)]


def _simple(fact: object) -> object:
    """A fact of an error, as text when no other process could have it."""
    try:
        pack(fact)
    except ArgumentError:
        return str(fact)
    return fact


_PACKERS: Final[dict[type, Callable[[Any, list[Buffer]], Any]]] = {
    bytes: _bytes,
    dict: _pairs,
    list: _list,
    tuple: lambda value, parts: ["t", *_each(value, parts)],
    Message: lambda value, parts: ["m", _pairs(value.to_dict(), parts)],
    MessageExt: _stored,
    PutMessageResult: _receipt,
    GetMessageResult: _got,
    QueryMessageResult: _queried,
    ReceivedMessage: _received,
    Sql: lambda value, _: ["s", str.__str__(value)],
    StoreConfig: _config,
}
#: An instance of a subclass is packed as the first of these that it is.
_BASES: Final[tuple[tuple[type, Callable[[Any, list[Buffer]], Any]], ...]] = (
    (str, lambda value, _: str.__str__(value)),
    (bytes, lambda value, parts: _bytes(bytes(memoryview(value)), parts)),
    (Path, lambda value, _: ["p", str(value)]),
    (Mapping, _pairs),
    (Message, _PACKERS[Message]),
)


# ---- unpacking ----------------------------------------------------------------------------------


def _value(plain: Any, runs: _ByteRuns) -> Any:
    if type(plain) is not list:
        return plain
    return _UNPACKERS[plain[0]](plain, runs)


def _values(plain: list[Any], runs: _ByteRuns) -> list[Any]:
    """The values behind a tag."""
    return [_value(each, runs) if type(each) is list else each for each in plain[1:]]


def _dict_again(plain: list[Any], runs: _ByteRuns) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for key, each in plain[1:]:
        name = key if type(key) is str else _value(key, runs)
        found[name] = _value(each, runs) if type(each) is list else each
    return found


def _receipt_again(plain: list[Any], _: _ByteRuns) -> PutMessageResult:
    _, state, phy, queue, size, stored_ms, count, durability, reason, host, offsets = plain
    return PutMessageResult(
        _STATUSES[state],
        phy_offset=phy,
        queue_offset=queue,
        store_size=size,
        store_timestamp_ms=stored_ms,
        message_count=count,
        durability=None if durability is None else _DURABILITIES[durability],
        reason=reason,
        store_host=None if host is None else bytes.fromhex(host),
        phy_offsets=offsets,
    )


def _stored_again(plain: list[Any], runs: _ByteRuns) -> MessageExt:
    return decode_record(runs.read(plain[1]), check_crc=False)


def _got_again(plain: list[Any], runs: _ByteRuns) -> GetMessageResult:
    _, state, following, least, end, sizes, expected = plain
    result = GetMessageResult(status.GetMessageStatus(state), following, least, end)
    for size in sizes:
        record = runs.read(size)
        phy_offset = decode_record(record, check_crc=False).phy_offset
        unit = phy_offset.to_bytes(8) + size.to_bytes(4) + bytes(8)
        taken, _ = result.collect(record, size, None, phy_offset, unit, 0, _NO_LIMIT, 1 << 62)
        if taken != 1:
            raise ValueError(f"no record of {size} bytes")
    if expected is not None:
        result.expect(*expected)
    return result


def _queried_again(plain: list[Any], runs: _ByteRuns) -> QueryMessageResult:
    found = [_stored_again(each, runs) for each in plain[1]]
    return QueryMessageResult(found, plain[2], _value(plain[3], runs))


def _received_again(plain: list[Any], runs: _ByteRuns) -> ReceivedMessage:
    stored = _stored_again(plain[1], runs)
    message = ReceivedMessage(stored, plain[2], _value(plain[3], runs))
    message.reconsume_times = plain[4]
    return message


def _error_again(plain: list[Any], runs: _ByteRuns) -> BaseException:
    kind = _ERRORS[plain[1]]
    args, facts = _value(plain[2], runs), _value(plain[3], runs)
    if issubclass(kind, OSError):
        # of the system's own kinds the first sets what they know, of ours the second
        error: BaseException = kind.__new__(kind, *args)
        OSError.__init__(error, *args)
    else:
        error = kind.__new__(kind)
        error.args = tuple(args)
    error.__dict__.update(facts)
    return error


def _config_again(plain: list[Any], runs: _ByteRuns) -> StoreConfig:
    return StoreConfig(**_value(plain[1], runs), ignored=_value(plain[2], runs))


_UNPACKERS: Final[dict[str, Callable[[list[Any], _ByteRuns], Any]]] = {
    "b": lambda plain, runs: bytes(runs.read(plain[1])),
    "v": lambda plain, runs: runs.read(plain[1]),
    "d": _dict_again,
    "l": _values,
    "t": lambda plain, runs: tuple(_values(plain, runs)),
    "e": lambda plain, _: _ENUMS[plain[1]](plain[2]),
    "o": lambda plain, runs: _RECORDS[plain[1]](**_value(plain[2], runs)),
    "n": lambda plain, runs: _TUPLES[plain[1]](*(_value(each, runs) for each in plain[2:])),
    "p": lambda plain, _: Path(plain[1]),
    "m": lambda plain, runs: Message(**_value(plain[1], runs)),
    "x": _stored_again,
    "r": _receipt_again,
    "g": _got_again,
    "q": _queried_again,
    "R": _received_again,
    "s": lambda plain, _: Sql(plain[1]),
    "E": _error_again,
    "c": _config_again,
}
