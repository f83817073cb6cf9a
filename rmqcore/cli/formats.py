"""Messages printed as a caller's format says, in kcat's words."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import partial
from typing import Final

import typer

from rmqcore.cli.output import print_message
from rmqcore.message import MessageExt

_TOKEN: Final = re.compile(r"%(.)|\\(n|r|t|\\|x[0-9a-fA-F]{2})|([%\\])", re.DOTALL)
_ESCAPES: Final = {"n": b"\n", "r": b"\r", "t": b"\t", "\\": b"\\"}


def _keys(message: MessageExt) -> bytes:
    return ",".join(message.keys).encode("utf-8", "replace")


def _properties(message: MessageExt) -> bytes:
    pairs = (f"{name}={value}" for name, value in message.properties.items())
    return ",".join(pairs).encode("utf-8", "replace")


_FIELDS: Final[dict[str, Callable[[MessageExt], bytes]]] = {
    "s": MessageExt.decompressed_body,
    "S": lambda message: b"%d" % len(message.decompressed_body()),
    "k": _keys,
    "K": lambda message: b"%d" % len(_keys(message)),
    "t": lambda message: message.topic.encode(),
    "p": lambda message: b"%d" % message.queue_id,
    "o": lambda message: b"%d" % message.queue_offset,
    "T": lambda message: b"%d" % message.store_timestamp_ms,
    "h": _properties,
    "g": lambda message: (message.tags or "").encode("utf-8", "replace"),
    "P": lambda message: b"%d" % message.phy_offset,
    "i": lambda message: message.message_id.encode(),
    "%": lambda _: b"%",
}
FORMAT_HELP: Final = (
    "print each message so: %s body, %S its bytes, %k keys, %K their bytes, %t topic, %p queue, "
    "%o queue offset, %P physical offset, %T store time in ms, %g tags, %h properties, "
    r"%i message id, %%, \n \r \t \xNN"
)


def parse_format(text: str) -> Callable[[MessageExt], None]:
    """What prints a message as a format says.

    Raises:
        typer.BadParameter: a letter behind % or a backslash means nothing.
    """
    parts: list[bytes | Callable[[MessageExt], bytes]] = []
    at = 0
    for token in _TOKEN.finditer(text):
        parts.append(text[at : token.start()].encode())
        at = token.end()
        field, escape, _ = token.groups()
        if escape is not None:
            parts.append(_ESCAPES.get(escape) or bytes.fromhex(escape[1:]))
        elif field in _FIELDS:
            parts.append(_FIELDS[field])
        else:
            known = ", ".join(f"%{letter}" for letter in _FIELDS)
            raise typer.BadParameter(
                f"{token[0]!r} means nothing; {known}, \\n, \\r, \\t, \\\\ and \\xNN do",
                param_hint="--format",
            )
    parts.append(text[at:].encode())

    def write(message: MessageExt) -> None:
        sys.stdout.flush()
        sys.stdout.buffer.writelines(
            part if isinstance(part, bytes) else part(message) for part in parts
        )

    return write


def printer(
    message_format: str | None, *, as_json: bool, long: bool
) -> Callable[[MessageExt], None]:
    """What prints a message as the options say.

    Args:
        message_format: of ``--format``; None for the two below.
        as_json: a line of JSON for each message.
        long: a line of text with time, queue, offsets, tags and keys in front of each body.

    Raises:
        typer.BadParameter: the format is none.
    """
    if message_format is not None:
        return parse_format(message_format)
    return partial(print_message, as_json=as_json, long=long)
