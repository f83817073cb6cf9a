"""`RemotingCommand`: one request or answer, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from rmqcore.remoting.codes import (
    JSON_HEADER,
    ONEWAY_FLAG,
    RESPONSE_FLAG,
    VERSION,
    LanguageCode,
    ResponseCode,
)
from rmqcore.remoting.errors import RequestRefusedError

Buffer: TypeAlias = bytes | bytearray | memoryview

#: The longest 64-bit number has this many digits, its sign included.
_NUMBER_MAX = 20
#: Most numbers are small, and are looked up here instead of being parsed.
_SMALL_NUMBERS = {str(number): number for number in range(256)}


@dataclass(slots=True)
class RemotingCommand:
    """A request, or the answer to one.

    Attributes:
        code: `RequestCode` of a request, `ResponseCode` of an answer.
        ext_fields: the header's own fields; names and values as text. Empty when there are none.
        body: what follows the header; empty when nothing does.
        remark: the answer's words; None without.
        opaque: pairs an answer with its request; set by the sender.
        flag: bit 0 an answer, bit 1 a request that wants none.
        version: MQVersion ordinal of the sender.
        language: of the sender.
        serialize_type: how the header is, or was, written: 0 JSON, 1 binary.
        parts: more of the body, sent behind `body` without being copied; buffers of bytes that
            stay as they are until they are sent. Empty in what was received.
        answered: a request: an answer was sent.
    """

    code: int
    ext_fields: dict[str, str] = field(default_factory=dict)
    body: bytes = field(default=b"", repr=False)
    remark: str | None = None
    opaque: int = 0
    flag: int = 0
    version: int = VERSION
    language: LanguageCode = LanguageCode.PYTHON
    serialize_type: int = JSON_HEADER
    parts: Sequence[Buffer] = field(default=(), repr=False)
    answered: bool = field(default=False, repr=False, compare=False)

    @property
    def is_response(self) -> bool:
        """Tell whether this answers a request."""
        return bool(self.flag & RESPONSE_FLAG)

    @property
    def is_oneway(self) -> bool:
        """Tell whether the sender wants no answer."""
        return bool(self.flag & ONEWAY_FLAG)

    def text(self, name: str, default: str | None = None) -> str:
        """Return a field of the header.

        Args:
            name: of the field.
            default: when it is missing; None: it has to be there.

        Raises:
            RequestRefusedError: it is missing, and there is no default; answers with code 1, as
                RocketMQ does.
        """
        value = self.ext_fields.get(name, default)
        if value is None:
            raise _refused(f"the header field {name} is missing")
        return value

    def number(self, name: str, default: int | None = None, *, bits: int = 64) -> int:
        """Return a field of the header that is a whole number.

        Args:
            name: of the field.
            default: when it is missing.
            bits: of a number that is not too large; Java's int has 32.

        Raises:
            RequestRefusedError: it is missing without a default, or no such number.
        """
        text = self.ext_fields.get(name)
        if text is None and default is not None:
            return default
        text = self.text(name) if text is None else text
        small = _SMALL_NUMBERS.get(text)
        if small is not None:
            return small
        digits = text.removeprefix("-")
        if len(text) <= _NUMBER_MAX and digits.isascii() and digits.isdigit():
            value = int(text)
            if -1 << bits - 1 <= value < 1 << bits - 1:
                return value
        raise _refused(f"the header field {name} has to be a whole number of {bits} bits")

    def boolean(self, name: str, default: bool = False) -> bool:
        """Return a field of the header that is `true` in any case, or anything else for false.

        Args:
            name: of the field.
            default: when it is missing.

        Source: java.lang.Boolean, parseBoolean.
        """
        text = self.ext_fields.get(name)
        return default if text is None else text.lower() == "true"


def success(
    ext_fields: dict[str, str] | None = None, body: bytes = b"", remark: str | None = None
) -> RemotingCommand:
    """Make an answer with code 0; who sends it pairs it with its request.

    Args:
        ext_fields: fields of the header.
        body: what follows the header.
        remark: words for whoever reads a log; None for none.
    """
    return RemotingCommand(ResponseCode.SUCCESS, ext_fields or {}, body, remark)


def failure(code: int, remark: str) -> RemotingCommand:
    """Make an answer with another code and the words that say what to do.

    Args:
        code: a `ResponseCode` other than SUCCESS.
        remark: what is wrong, and what to do.
    """
    return RemotingCommand(code, {}, b"", remark)


def _refused(remark: str) -> RequestRefusedError:
    return RequestRefusedError(ResponseCode.SYSTEM_ERROR, remark)
