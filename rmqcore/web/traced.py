"""The way of a message through clients, as they tell it in RocketMQ's trace topic.

Source: RocketMQ client/trace/TraceDataEncoder.java, TraceConstants.java.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Final

from rmqcore.message import MessageExt
from rmqcore.web.shown import plain_body
from rmqcore.web.source import Source

TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
_MESSAGES_MAX: Final = 64
#: A client tells at most 128,000 bytes in one message; what is longer is read up to here.
_BODY_MAX: Final = 1 << 20
#: A page shows this many points at most.
_POINTS_MAX: Final = 1000
_FIELDS: Final = "\x01"
_CONTEXTS: Final = "\x02"


@dataclass(frozen=True, slots=True)
class TracePoint:
    """One thing that a client tells of a message.

    Attributes:
        time_ms: when, by the client's clock; -1 where it is not told.
        what: in words.
        group: whose client it was.
        host: where that ran.
        took_ms: how long it took; None where it is not told.
        ok: whether it went well; None where it is not told.
    """

    time_ms: int
    what: str
    group: str
    host: str
    took_ms: int | None = None
    ok: bool | None = None


def trace_points(source: Source, message: MessageExt) -> list[TracePoint]:
    """What clients tell of a message, the earliest first; nothing where nobody traces.

    Any client may tell as much as it likes; of more points than a page shows those told first.

    Args:
        source: where the trace topic is.
        message: found by its unique key in the bodies of the trace topic.
    """
    key = message.unique_key
    if not key or TRACE_TOPIC not in source.queues():
        return []
    found = source.store.query_message(TRACE_TOPIC, key, max_messages=_MESSAGES_MAX)
    points = (point for told in found.messages for point in read_trace(told, key))
    return sorted(itertools.islice(points, _POINTS_MAX), key=lambda each: each.time_ms)


def read_trace(told: MessageExt, key: str) -> list[TracePoint]:
    """The points of one message of the trace topic that are about a message with a unique key.

    What is no trace is passed over: any client may send to the topic.

    Args:
        told: a message of the trace topic.
        key: unique key of the message that is asked for.
    """
    host, begun, points = told.born_host, dict[str, TracePoint](), list[TracePoint]()
    body, _ = plain_body(told, _BODY_MAX)
    for context in body[:_BODY_MAX].decode("utf-8", "replace").split(_CONTEXTS):
        fields = context.split(_FIELDS)
        kind, count = fields[0], len(fields)
        if kind == "Pub" and count > 12 and fields[5] == key:
            ok, took_ms = fields[min(13, count - 1)] == "true", _number(fields[10])
            points.append(TracePoint(_time(fields[1]), "sent", fields[3], host, took_ms, ok))
        elif kind == "SubBefore" and count > 6 and fields[5] == key:
            what = f"received, try {(_number(fields[6]) or 0) + 1}"
            begun[fields[4]] = TracePoint(_time(fields[1]), what, fields[3], host)
            points.append(begun[fields[4]])
        elif kind == "SubAfter" and count > 4 and fields[2] == key:
            points.append(_consumed(fields, host, begun.get(fields[1])))
        elif kind == "EndTransaction" and count > 11 and fields[5] == key:
            what = f"transaction: {fields[11]}"
            points.append(TracePoint(_time(fields[1]), what, fields[3], host))
    return points


def _consumed(fields: list[str], host: str, before: TracePoint | None) -> TracePoint:
    """The end of a consumption; old clients do not tell when it was."""
    took_ms, time_ms = _number(fields[3]), -1
    if len(fields) > 7:
        time_ms = _time(fields[7])
    elif before is not None:
        time_ms = before.time_ms + (took_ms or 0)
    group = "" if before is None else before.group
    return TracePoint(time_ms, "consumed", group, host, took_ms, fields[4] == "true")


def _time(text: str) -> int:
    found = _number(text)
    return -1 if found is None else found


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None
