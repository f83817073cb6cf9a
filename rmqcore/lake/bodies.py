"""`Bodies`: what becomes of a body in a table: bytes, text, or columns of its JSON or Avro."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.compute as pc

from rmqcore.errors import ConfigError
from rmqcore.lake.avro import BROKEN, AvroReader
from rmqcore.lake.sources import ERROR

KINDS: Final = ("bytes", "text", "json", "avro")

#: By name in a schema, the type of a column; Avro's names are among them.
_TYPES: Final[dict[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "timestamp-millis": pa.timestamp("us", tz="UTC"),
    "json": pa.string(),
}
_SMALLEST: Final = {"int": -(1 << 31), "long": -(1 << 63)}
#: The years 1 to 9999, in Unix milliseconds: other times no reader shows.
FIRST_MS: Final = -62_135_596_800_000
LAST_MS: Final = 253_402_300_799_999
_TAKEN: Final = frozenset(
    {"topic", "broker", "queue_id", "queue_offset", "store_timestamp", "born_timestamp", "day"}
    | {"keys", "tags", "unique_key", "properties", "body", ERROR}
)


@dataclass(frozen=True, slots=True)
class Field:
    """A column that JSON or Avro bodies have.

    Attributes:
        name: of the column, and of the key in the body.
        kind: a name out of ``boolean int long float double string timestamp-millis json``.
        required: whether a body without it, or with null, does not fit.
    """

    name: str
    kind: str
    required: bool = False

    @property
    def column(self) -> pa.Field:
        """As pyarrow has it; a column may always be empty, as rows may be older than it."""
        return pa.field(self.name, _TYPES[self.kind])


@dataclass(frozen=True, slots=True)
class Bodies:
    """How bodies become columns.

    Attributes:
        kind: one out of `KINDS`.
        fields: of JSON and Avro bodies, in the order of their columns.
        record: the schema that Avro bodies were written with; None for others.
    """

    kind: str = "bytes"
    fields: tuple[Field, ...] = ()
    record: dict[str, Any] | None = field(default=None, repr=False)
    _parse: Callable[[bytes], Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError("body", self.kind, f"one of {', '.join(KINDS)}")
        if (self.kind in ("json", "avro")) != bool(self.fields):
            raise ConfigError(
                "schema", None, "JSON and Avro bodies need a schema, others have none"
            )
        if (self.kind == "avro") != (self.record is not None):
            raise ConfigError("schema", None, "Avro bodies need the record that has written them")
        parse = _parsed_json if self.record is None else AvroReader(self.record)
        object.__setattr__(self, "_parse", parse)

    @classmethod
    def of_schema(cls, path: Path, kind: str = "json") -> Self:
        """JSON or Avro bodies whose columns a file names.

        Args:
            path: of an object ``{"name": "type", ...}``, where ``type!`` is one that has to be
                there, or of an Avro schema: a record of plain types and unions with null.
            kind: ``json`` or ``avro``; the latter needs an Avro schema.

        Raises:
            ConfigError: the file is neither.
            RmqCoreError: for Avro bodies the extra is missing.
        """
        try:
            told = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError("schema", str(path), str(error)) from error
        if not isinstance(told, dict):
            raise ConfigError(
                "schema", str(path), "an object of names and types, or an Avro record"
            )
        is_record = told.get("type") == "record" and isinstance(told.get("fields"), list)
        if kind == "avro" and not is_record:
            raise ConfigError("schema", str(path), "an Avro record, as its producers write it")
        if is_record:
            fields = tuple(_avro_field(each) for each in told["fields"])
        else:
            fields = tuple(_named_field(name, kind) for name, kind in told.items())
        names = [field.name for field in fields]
        # tables tell no case of columns
        lower = [name.lower() for name in names]
        for name in names:
            if name.lower() in _TAKEN or lower.count(name.lower()) > 1:
                raise ConfigError("schema", name, "a name that no other column has")
        return cls(kind, fields, told if kind == "avro" else None)

    def columns(self) -> list[pa.Field]:
        """The columns that stand for a body."""
        if self.fields:
            return [field.column for field in self.fields]
        return [pa.field("body", pa.string() if self.kind == "text" else pa.binary())]

    def apply(self, table: pa.Table) -> tuple[pa.Table, pa.Table]:
        """Rows whose bodies fit, with their columns; and those that do not, with the reason.

        Args:
            table: with the column ``body``, binary; where `ERROR` says why, it does not fit.
        """
        if ERROR in table.column_names:
            is_plain = pc.is_null(table.column(ERROR))
            good, rest = self.apply(table.filter(is_plain).drop_columns([ERROR]))
            return good, pa.concat_tables([table.filter(pc.invert(is_plain)), rest])
        if self.kind == "bytes":
            return table, _refused(table, [None] * table.num_rows)
        told: list[Any] = []
        errors: list[str | None] = []
        for body in table.column("body"):
            value, error = self._one(body.as_buffer().to_pybytes() if body.is_valid else b"")
            told.append(value)
            errors.append(error)
        fits = pc.is_null(pa.array(errors, pa.string()))
        good, rest = table.filter(fits), _refused(table, errors)
        values = [value for value, error in zip(told, errors, strict=True) if error is None]
        good = good.drop_columns(["body"])
        if self.kind == "text":
            return good.append_column("body", pa.array(values, pa.string())), rest
        for one in self.fields:
            column = pa.array([value.get(one.name) for value in values], one.column.type)
            good = good.append_column(one.column, column)
        return good, rest

    def _one(self, body: bytes) -> tuple[Any, str | None]:
        try:
            if self.kind == "text":
                return body.decode("utf-8"), None
            value = self._parse(body)
        except UnicodeDecodeError as error:
            return None, f"no UTF-8: {error.reason} at byte {error.start}"
        except BROKEN as error:
            kind = "JSON" if self.record is None else "datum of the Avro schema"
            return None, f"no {kind}: {error}"
        if not isinstance(value, dict):
            return None, "no JSON object"
        found = {}
        for one in self.fields:
            given = value.get(one.name)
            if given is None:
                if one.required:
                    return None, f"{one.name} is missing"
                continue
            try:
                told = given if self.record else _finite(given)
                found[one.name] = _CONVERTERS[one.kind](told)
            except (TypeError, ValueError, OverflowError, RecursionError) as error:
                return None, f"{one.name} is no {one.kind}: {error}"
        return found, None


def refused_schema(columns: pa.Schema) -> pa.Schema:
    """The columns of rows that do not fit: as they come, and why."""
    return columns.append(pa.field(ERROR, pa.string()))


def _refused(table: pa.Table, errors: list[str | None]) -> pa.Table:
    why = pa.array(errors, pa.string())
    return table.append_column(pa.field(ERROR, pa.string()), why).filter(pc.is_valid(why))


# ---- schemas


def _named_field(name: str, kind: object) -> Field:
    if not isinstance(kind, str) or kind.rstrip("!") not in _TYPES:
        raise ConfigError("schema", name, f"one of {', '.join(_TYPES)}, with ! where it has to be")
    return Field(name, kind.rstrip("!"), kind.endswith("!"))


def _avro_field(told: object) -> Field:
    if not isinstance(told, dict) or not isinstance(told.get("name"), str):
        raise ConfigError("schema", told, "a field of an Avro record has a name and a type")
    kinds = told.get("type")
    listed = kinds if isinstance(kinds, list) else [kinds]
    others = [kind for kind in listed if kind != "null"]
    kind = _avro_kind(others[0]) if len(others) == 1 else "json"
    return Field(told["name"], kind, len(others) == len(listed) and "default" not in told)


def _avro_kind(told: object) -> str:
    """The type of a column; what has parts of its own stays JSON."""
    if isinstance(told, dict):
        logical = told.get("logicalType")
        return str(logical) if logical in _TYPES else _avro_kind(told.get("type"))
    return told if isinstance(told, str) and told in _TYPES else "json"


# ---- values


def _boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(type(value).__name__)
    return value


def _whole(kind: str) -> Callable[[object], int]:
    least = _SMALLEST[kind]

    def converted(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(type(value).__name__)
        if not least <= value <= -least - 1:
            raise OverflowError(str(value))
        return value

    return converted


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(type(value).__name__)
    return float(value)


def _single(value: object) -> float:
    found = _number(value)
    # raises for what four bytes have as infinity
    struct.pack("<f", found)
    return found


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(type(value).__name__)
    value.encode("utf-8")
    return value


def _moment(value: object) -> int:
    whole = _whole("long")(value)
    if not FIRST_MS <= whole <= LAST_MS:
        raise OverflowError(str(whole))
    return whole * 1000


def _json(value: object) -> str:
    return _text(
        json.dumps(
            value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_latin
        )
    )


def _latin(value: object) -> str:
    """Bytes as Avro's own JSON has them."""
    if isinstance(value, bytes):
        return value.decode("latin-1")
    raise TypeError(type(value).__name__)


def _parsed_json(body: bytes) -> Any:
    return json.loads(body.decode("utf-8"), parse_constant=_no_constant)


def _no_constant(name: str) -> None:
    raise ValueError(name)


def _finite(value: object) -> object:
    """A value of JSON, but for a number such as 1e999, which Python reads as infinity."""
    if isinstance(value, float) and math.isinf(value):
        raise OverflowError("too large")
    return value


_CONVERTERS: Final[dict[str, Callable[[Any], Any]]] = {
    "boolean": _boolean,
    "int": _whole("int"),
    "long": _whole("long"),
    "float": _single,
    "double": _number,
    "string": _text,
    "timestamp-millis": _moment,
    "json": _json,
}
