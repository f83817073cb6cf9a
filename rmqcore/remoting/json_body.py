"""JSON bodies of requests: the object that a client sent, and the lists in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rmqcore.java.json import parse_java_json
from rmqcore.remoting.codes import ResponseCode
from rmqcore.remoting.command import RemotingCommand
from rmqcore.remoting.errors import RequestRefusedError


def read_object(request: RemotingCommand) -> dict[str, Any]:
    """The JSON object in a request's body; an empty body is an empty object.

    Raises:
        RequestRefusedError: it is none; answers with code 1.
    """
    if not request.body:
        return {}
    try:
        value = parse_java_json(bytes(request.body).decode())
    except (UnicodeDecodeError, ValueError) as error:
        raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, "the body is no JSON") from error
    if not isinstance(value, dict):
        raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, "the body is no JSON object")
    return value


def objects_in(body: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """The objects of a list in a body; what is none is passed over."""
    entries = body.get(name) or []
    if not isinstance(entries, list):
        return []
    return [entry for entry in entries if isinstance(entry, dict)]
