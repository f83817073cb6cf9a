"""JSON bodies of answers, and of requests to others."""

from __future__ import annotations

from typing import TypeAlias

from rmqcore.java.json import format_compact_java_json

#: A queue is the key of a map in RocketMQ's bodies, written as an object.
QueueKey: TypeAlias = tuple[tuple[str, object], ...]


def queue_key(broker_name: str, topic: str, queue_id: int) -> QueueKey:
    """The fields of RocketMQ's ``MessageQueue``, as a key.

    Args:
        broker_name: of the broker that has the queue.
        topic: by name.
        queue_id: of the queue.
    """
    return (("brokerName", broker_name), ("queueId", queue_id), ("topic", topic))


def java_body(value: object) -> bytes:
    """Encode a value as RocketMQ writes bodies: no blanks, no None, ? for half a character."""
    return format_compact_java_json(value).encode(errors="replace")
