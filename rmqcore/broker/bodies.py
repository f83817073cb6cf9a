"""JSON bodies of requests and answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from rmqcore.java.json import format_compact_java_json, parse_java_json
from rmqcore.remoting import RemotingCommand, RequestRefusedError, ResponseCode

#: a queue as the key of a map, which RocketMQ writes as an object
QueueKey: TypeAlias = tuple[tuple[str, object], ...]


def queue_key(broker_name: str, topic: str, queue_id: int) -> QueueKey:
    """The fields of RocketMQ's ``MessageQueue``, as a key."""
    return (("brokerName", broker_name), ("queueId", queue_id), ("topic", topic))


def java_body(value: object) -> bytes:
    """Encode a value as RocketMQ writes bodies: no blanks, None left out."""
    return format_compact_java_json(value).encode()


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
