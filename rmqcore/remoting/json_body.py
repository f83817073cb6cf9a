"""JSON bodies of requests: the object that a client sent, and the lists in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rmqcore.java.json import parse_json
from rmqcore.remoting.codes import ResponseCode
from rmqcore.remoting.command import RemotingCommand
from rmqcore.remoting.errors import RequestRefusedError

#: A larger body of a client is refused: it is read on the event loop, while others wait.
BODY_SIZE_MAX: Final = 1 << 20
#: A list with more entries in such a body is refused.
ENTRIES_MAX: Final = 16_384
#: Acknowledgements of so many checkpoints come in one request at most.
ACKS_MAX: Final = 4096
#: An administrator's list of topics or groups may have this many bytes, some 10,000 names.
LIST_SIZE_MAX: Final = 4 << 20


def read_object(request: RemotingCommand, size_max: int = BODY_SIZE_MAX) -> dict[str, Any]:
    """The JSON object in a request's body; an empty body is an empty object.

    Standard JSON: none of the bodies that clients send has keys that fastjson would not quote.

    Args:
        request: with its body.
        size_max: bytes.

    Raises:
        RequestRefusedError: it is none, or has more than ``size_max`` bytes; answers with code 1.
    """
    if not request.body:
        return {}
    if len(request.body) > size_max:
        remark = f"a body of {len(request.body)} bytes: {size_max} at most"
        raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, remark)
    try:
        value = parse_json(bytes(request.body).decode())
    except (UnicodeDecodeError, ValueError) as error:
        raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, "the body is no JSON") from error
    if not isinstance(value, dict):
        raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, "the body is no JSON object")
    return value


def objects_in(
    body: Mapping[str, Any], name: str, count_max: int = ENTRIES_MAX
) -> list[Mapping[str, Any]]:
    """The objects of a list in a body; what is none is passed over.

    Args:
        body: from `read_object`.
        name: of the list; one that is missing, or none, is empty.
        count_max: entries at most.

    Raises:
        RequestRefusedError: there are more than ``count_max``; answers with code 1.
    """
    entries = body.get(name) or []
    if not isinstance(entries, list):
        return []
    if len(entries) > count_max:
        remark = f"{len(entries)} entries of {name}: {count_max} at most"
        raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, remark)
    return [entry for entry in entries if isinstance(entry, dict)]
