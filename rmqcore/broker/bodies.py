"""JSON bodies as RocketMQ writes and reads them: compact, with bare integer and object keys."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rmqcore.java.json import parse_java_json
from rmqcore.remoting import RemotingCommand, RequestRefusedError, ResponseCode


class QueueKey(tuple[str, str, int]):
    """(broker name, topic, queue id) as the key of an object: RocketMQ's ``MessageQueue``."""

    __slots__ = ()

    def to_java(self) -> dict[str, object]:
        """The fields of ``MessageQueue``."""
        broker_name, topic, queue_id = self
        return {"brokerName": broker_name, "queueId": queue_id, "topic": topic}


def java_body(value: object) -> bytes:
    """Encode a value: no blanks, integer and `QueueKey` keys as they are, None left out."""
    return _format(value).encode()


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


def _format(value: object) -> str:
    if isinstance(value, Mapping):
        parts = (f"{_key(k)}:{_format(v)}" for k, v in value.items() if v is not None)
        return "{" + ",".join(parts) + "}"
    if isinstance(value, QueueKey):
        return _format(value.to_java())
    if isinstance(value, list | tuple | set | frozenset):
        return "[" + ",".join(map(_format, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def _key(key: object) -> str:
    if isinstance(key, QueueKey):
        return _format(key.to_java())
    return str(key) if isinstance(key, int) else json.dumps(str(key), ensure_ascii=False)
