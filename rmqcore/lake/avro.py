"""`AvroReader`: an Avro body as the value that a JSON body of the same content would be."""

from __future__ import annotations

import io
from typing import Any, Final

from rmqcore.errors import ConfigError, RmqCoreError

#: With these ends the reading of a body that is no datum of the schema.
BROKEN: Final = (EOFError, ValueError, LookupError, TypeError, OverflowError, RecursionError)
#: Avro's single-object encoding begins with these bytes, and goes on with 8 of its schema's
#: fingerprint; what begins otherwise is a bare datum.
_MARKER: Final = b"\xc3\x01"
_HEAD_SIZE: Final = 10


class AvroReader:
    """Reads bodies that one schema has written.

    Args:
        schema: a record, as JSON has it.

    Raises:
        RmqCoreError: fastavro is not installed.
        ConfigError: it is no schema of Avro's, or has arrays of what takes no bytes: a few bytes
            could hold any number of them.
    """

    def __init__(self, schema: dict[str, Any]) -> None:
        try:
            from fastavro import parse_schema, schemaless_reader  # noqa: PLC0415 - an extra
            from fastavro.schema import (  # noqa: PLC0415 - an extra
                SchemaParseException,
                UnknownType,
                fingerprint,
                to_parsing_canonical_form,
            )
        except ImportError:
            raise RmqCoreError("Avro bodies need fastavro: pip install 'rmqcore[avro]'") from None
        try:
            # times stay the numbers that they are, as in JSON
            self._schema = parse_schema(_plain(schema))
            canonical = to_parsing_canonical_form(schema)
        except (SchemaParseException, UnknownType, KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                "schema", schema.get("name"), f"a schema of Avro's: {error}"
            ) from None
        if _has_empty_items(schema):
            rule = "no array or map of what takes no bytes"
            raise ConfigError("schema", schema.get("name"), rule)
        code = bytes.fromhex(fingerprint(canonical, "CRC-64-AVRO"))
        self._head = _MARKER + code
        self._read = schemaless_reader

    def __call__(self, body: bytes) -> dict[str, Any]:
        """The fields of a body.

        Raises:
            ValueError: there are bytes behind it.
            EOFError, ...: one of `BROKEN`: it is no datum of the schema.
        """
        stream = io.BytesIO(body)
        if body.startswith(_MARKER) and body[:_HEAD_SIZE] == self._head:
            stream.seek(_HEAD_SIZE)
        found: dict[str, Any] = self._read(stream, self._schema, None)
        if stream.tell() != len(body):
            raise ValueError(f"{len(body) - stream.tell()} bytes are left behind it")
        return found


def _plain(told: Any) -> Any:
    """A schema without logical types."""
    if isinstance(told, dict):
        return {name: _plain(value) for name, value in told.items() if name != "logicalType"}
    return [_plain(each) for each in told] if isinstance(told, list) else told


def _has_empty_items(told: Any) -> bool:
    if isinstance(told, list):
        return any(map(_has_empty_items, told))
    if not isinstance(told, dict):
        return False
    items = told.get("items")
    if items is not None and not _has_bytes(items):
        return True
    return any(_has_empty_items(value) for value in told.values() if isinstance(value, dict | list))


def _has_bytes(told: Any) -> bool:
    if isinstance(told, dict):
        if told.get("type") == "record":
            fields = told.get("fields")
            return isinstance(fields, list) and any(_has_bytes(each) for each in fields)
        if told.get("type") == "fixed":
            return bool(told.get("size"))
        return _has_bytes(told.get("type"))
    return bool(told != "null")
