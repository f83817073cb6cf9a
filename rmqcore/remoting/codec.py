"""Frames: bytes into commands and back, with JSON and binary headers.

offset | size | field
0      | 4    | length of all that follows
4      | 1    | serialize type of the header: 0 JSON, 1 binary
5      | 3    | length of the header
8      | n    | header
8 + n  | rest | body

Every length is checked against the limits and against the bytes around it before it is used.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from rmqcore.remoting._json_header import read_json, write_json
from rmqcore.remoting.codes import BINARY_HEADER, JSON_HEADER, LanguageCode
from rmqcore.remoting.command import Buffer, RemotingCommand
from rmqcore.remoting.errors import FrameError, FrameTooLargeError

_PREFIX = struct.Struct(">iI")
_LENGTH = struct.Struct(">i")
#: code, language, version, opaque, flag
_BINARY = struct.Struct(">hbhii")
_KEY_LENGTH = struct.Struct(">h")

_REMARK_AT = _BINARY.size + _LENGTH.size

PREFIX_SIZE = _PREFIX.size
#: The bytes of a frame's length, which the length does not count.
LENGTH_SIZE = 4
#: The bytes between the length and the header, which the length counts.
TYPE_SIZE = 4
HEADER_SIZE_MAX = 2**24 - 1
#: So many bytes that were taken may be kept in front of others.
_TAKEN_MAX = 64 * 1024
INT16_MAX = 2**15 - 1
INT32_MAX = 2**31 - 1

_LANGUAGE_BY_NAME = {language.name: language for language in LanguageCode}
_LANGUAGE_BY_NUMBER = {int(language): language for language in LanguageCode}


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameLimits:
    """How much of a frame is taken, checked before anything is kept for it.

    Attributes:
        frame_size: bytes of a whole frame. Java: com.rocketmq.remoting.frameMaxLength, 16 MiB.
        header_size: bytes of its header; a message's properties, 32767 bytes, fit even where each
            is escaped. Java has no limit but the frame.
        field_count: header fields.
    """

    frame_size: int = 16 * 1024 * 1024
    header_size: int = 256 * 1024
    field_count: int = 512


DEFAULT_LIMITS = FrameLimits()
#: An answer's header may be longer: that to a batch names each of its messages.
ANSWER_LIMITS = FrameLimits(header_size=HEADER_SIZE_MAX)


class LaterAnswers(NamedTuple):
    """Answers that are made, and must not be sent yet.

    Attributes:
        size: bytes of their frames.
        frames: gives the frames when they may be sent.
    """

    size: int
    frames: Awaitable[bytes]


#: Answers the frames at a place of what was received, given the limits and the peer's address, up
#: to the first that is not for it; tells where that begins, and gives the frames of the answers, or
#: what gives them later.
DirectAnswers: TypeAlias = Callable[
    [Buffer, int, FrameLimits, str], tuple[int, bytes | LaterAnswers]
]


class FrameDecoder:
    """The receiving end of a connection: bytes in, commands out, one at a time.

    It keeps what has been received and not been taken: less than one frame and one chunk, when
    commands are taken until there is none. After a `FrameError` it is of no more use.
    """

    __slots__ = ("_at", "_buffer", "_limits")

    def __init__(self, limits: FrameLimits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._buffer: bytes | bytearray = b""
        self._at = 0

    @property
    def size(self) -> int:
        """Bytes that were received and not been taken."""
        return len(self._buffer) - self._at

    def feed(self, data: bytes) -> None:
        """Add what has been received."""
        if self._at == len(self._buffer):
            self._buffer, self._at = data, 0
            return
        if not isinstance(self._buffer, bytearray):
            self._buffer = bytearray(memoryview(self._buffer)[self._at :])
            self._at = 0
        elif self._at > len(self._buffer) // 2:
            del self._buffer[: self._at]
            self._at = 0
        self._buffer += data

    def next(self) -> RemotingCommand | None:
        """Take the next command; None until more has been received.

        Raises:
            FrameError: what was received is no frame, or above a limit.
            FrameTooLargeError: the header or the frame is above its limit.
        """
        buffer, at = self._buffer, self._at
        size = len(buffer) - at
        if size < PREFIX_SIZE:
            if size >= LENGTH_SIZE:
                self._check_length(_LENGTH.unpack_from(buffer, at)[0])
            return None
        length, word = _PREFIX.unpack_from(buffer, at)
        self._check_length(length)
        header_size = word & HEADER_SIZE_MAX
        if header_size > length - TYPE_SIZE:
            raise FrameError(f"a header of {header_size} bytes in a frame of {length}")
        if header_size > self._limits.header_size:
            raise FrameTooLargeError("a header", header_size, self._limits.header_size)
        if word >> 24 not in (JSON_HEADER, BINARY_HEADER):
            raise FrameError(f"serialize type {word >> 24}, 0 and 1 are known")
        end = at + LENGTH_SIZE + length
        if end > len(buffer):
            return None
        body_at = at + PREFIX_SIZE + header_size
        header_at, field_count = at + PREFIX_SIZE, self._limits.field_count
        command = None if word >> 24 else read_json(buffer, header_at, header_size, field_count)
        if command is None:
            read = _read_binary if word >> 24 else _read_any_json
            command = read(buffer[header_at:body_at], field_count)
        if body_at < end:
            whole = memoryview(buffer)
            command.body = bytes(whole[body_at:end])
            whole.release()
        self._take(end)
        return command

    def _take(self, end: int) -> None:
        """Let go of what was taken, once it is the larger part: `size` does not count it."""
        buffer = self._buffer
        if end == len(buffer):
            self._buffer, self._at = b"", 0
        elif end < _TAKEN_MAX or end <= len(buffer) // 2:
            self._at = end
        else:
            self._buffer, self._at = buffer[end:], 0

    def answer_directly(self, direct: DirectAnswers, peer: str) -> bytes | LaterAnswers:
        """Let frames be answered without becoming commands, as far as that goes.

        Args:
            direct: who answers.
            peer: the address of who has sent them.

        Returns:
            the frames of the answers, or what gives them later.
        """
        if self._at == len(self._buffer):
            return b""
        end, answers = direct(self._buffer, self._at, self._limits, peer)
        self._take(end)
        return answers

    def _check_length(self, length: int) -> None:
        if length < TYPE_SIZE:
            raise FrameError(f"a frame of {length} bytes")
        if length + LENGTH_SIZE > self._limits.frame_size:
            raise FrameTooLargeError("a frame", length + LENGTH_SIZE, self._limits.frame_size)


def encode_command(
    command: RemotingCommand,
    serialize_type: int = JSON_HEADER,
    limits: FrameLimits = DEFAULT_LIMITS,
) -> tuple[list[Buffer], int]:
    """Write a command as the buffers of one frame, none of its body copied.

    Args:
        command: with its opaque and flag.
        serialize_type: of the header; what a binary one cannot hold gets a JSON one.
        limits: the size of a frame.

    Returns:
        The buffers, and the bytes in all of them.

    Raises:
        FrameError: opaque or flag is beyond its 32 bits.
        FrameTooLargeError: the frame is above the limit, or a length does not fit its field.
    """
    if serialize_type == BINARY_HEADER and _fits_binary(command):
        header = _write_binary(command)
    else:
        serialize_type = JSON_HEADER
        header = write_json(command)
    if len(header) > HEADER_SIZE_MAX:
        raise FrameTooLargeError("a header", len(header), HEADER_SIZE_MAX)
    buffers: list[Buffer] = [b"", command.body] if command.body else [b""]
    buffers += command.parts
    length = TYPE_SIZE + len(header) + len(command.body) + sum(map(len, command.parts))
    if length + LENGTH_SIZE > limits.frame_size:
        raise FrameTooLargeError("a frame", length + LENGTH_SIZE, limits.frame_size)
    buffers[0] = _PREFIX.pack(length, serialize_type << 24 | len(header)) + header
    return buffers, length + LENGTH_SIZE


# ---- JSON headers -----------------------------------------------------------------------------


def _refuse_constant(constant: str) -> None:
    raise FrameError(f"{constant} in a JSON header")


#: not `decode`, which looks for white space with regular expressions
_parse = json.JSONDecoder(parse_constant=_refuse_constant).raw_decode


def _read_any_json(header: bytes | bytearray, field_count: int) -> RemotingCommand:
    """Read what `read_json` gives up at: other forms, and what is to be refused."""
    try:
        text = header.decode("utf-8").strip()
        members, end = _parse(text)
    except FrameError:
        raise
    except (ValueError, RecursionError) as error:
        raise FrameError("the header is not JSON") from error
    if type(members) is not dict or end != len(text):
        raise FrameError("the header is no JSON object")
    get = members.get
    fields = get("extFields")
    if fields is None:
        fields = {}
    elif type(fields) is not dict:
        raise FrameError("extFields is no JSON object")
    elif len(fields) > field_count:
        raise FrameTooLargeError("header fields: a number", len(fields), field_count)
    else:
        for value in fields.values():
            if type(value) is not str:
                fields = {name: _as_text(value) for name, value in fields.items()}
                fields = {name: value for name, value in fields.items() if value is not None}
                break
    remark = get("remark")
    if remark is not None and type(remark) is not str:
        raise FrameError("remark is no JSON string")
    return RemotingCommand(
        _int32(get("code", 0)),
        fields,
        b"",
        remark,
        _int32(get("opaque", 0)),
        _int32(get("flag", 0)),
        _int32(get("version", 0)),
        _language(get("language", "JAVA")),
        JSON_HEADER,
    )


def _int32(value: object) -> int:
    if type(value) is not int or not -INT32_MAX - 1 <= value <= INT32_MAX:
        raise FrameError("code, opaque, flag and version are numbers of 32 bits")
    return value


def _language(name: Any) -> LanguageCode:
    if type(name) is not str:
        raise FrameError("language is no JSON string")
    return _LANGUAGE_BY_NAME.get(name, LanguageCode.OTHER)


def _as_text(value: object) -> str | None:
    """A field's value as Java's `String.valueOf` has it; it may be a bare number."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    raise FrameError("a header field is neither text nor a number")


# ---- binary headers -----------------------------------------------------------------------------


def _fits_binary(command: RemotingCommand) -> bool:
    return -INT16_MAX <= command.code <= INT16_MAX and -INT16_MAX <= command.version <= INT16_MAX


def _read_binary(header: bytes | bytearray, field_count: int) -> RemotingCommand:
    try:
        code, language, version, opaque, flag = _BINARY.unpack_from(header)
        remark_size = _LENGTH.unpack_from(header, _BINARY.size)[0]
        fields_at = _REMARK_AT + remark_size + LENGTH_SIZE
        if remark_size < 0 or fields_at > len(header):
            raise FrameError(f"a remark of {remark_size} bytes in a header of {len(header)}")
        fields_size = _LENGTH.unpack_from(header, fields_at - LENGTH_SIZE)[0]
    except struct.error as error:
        raise FrameError(f"a binary header of {len(header)} bytes ends too early") from error
    if fields_size != len(header) - fields_at:
        raise FrameError(
            f"header fields of {fields_size} bytes where {len(header) - fields_at} are left"
        )
    try:
        remark = header[_REMARK_AT : _REMARK_AT + remark_size].decode("utf-8")
        fields = _read_fields(header, fields_at, field_count)
    except UnicodeDecodeError as error:
        raise FrameError("text in a header is not UTF-8") from error
    return RemotingCommand(
        code,
        fields,
        b"",
        remark or None,
        opaque,
        flag,
        version,
        _LANGUAGE_BY_NUMBER.get(language, LanguageCode.OTHER),
        BINARY_HEADER,
    )


def _read_fields(header: bytes | bytearray, at: int, field_count: int) -> dict[str, str]:
    """Read names and values to the end of the header.

    Lengths count as unsigned: a negative one, like any that is too long, leads beyond the end,
    which the last comparison sees.
    """
    fields: dict[str, str] = {}
    end = len(header)
    while at < end:
        if len(fields) >= field_count:
            raise FrameTooLargeError("header fields: a number", len(fields) + 1, field_count)
        name_at = at + 2
        value_at = name_at + int.from_bytes(header[at:name_at]) + 4
        name = header[name_at : value_at - 4]
        at = value_at + int.from_bytes(header[value_at - 4 : value_at])
        fields[name.decode("utf-8")] = header[value_at:at].decode("utf-8")
    if at != end:
        raise FrameError("the header fields do not end with the header")
    return fields


def _write_binary(command: RemotingCommand) -> bytes:
    remark = (command.remark or "").encode("utf-8", "replace")
    entries = []
    for name, value in command.ext_fields.items():
        key, text = name.encode("utf-8", "replace"), value.encode("utf-8", "replace")
        if len(key) > INT16_MAX:
            raise FrameTooLargeError("a header field's name", len(key), INT16_MAX)
        entries += [_KEY_LENGTH.pack(len(key)), key, _LENGTH.pack(len(text)), text]
    fields = b"".join(entries)
    try:
        head = _BINARY.pack(
            command.code, command.language, command.version, command.opaque, command.flag
        )
    except struct.error as error:
        raise FrameError("opaque and flag are numbers of 32 bits") from error
    return b"".join([head, _LENGTH.pack(len(remark)), remark, _LENGTH.pack(len(fields)), fields])
