"""`SendSpans` and `ProcessSpans`: what a producer and a consumer tell OpenTelemetry.

Loaded by `tracing`, when somebody asks for traces. The context of a trace travels in a message's
properties, as the program's propagator writes it: ``traceparent`` and ``tracestate`` unless it is
set up otherwise.

Source: OpenTelemetry's semantic conventions for messaging, and those for RocketMQ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer, TracerProvider

from rmqcore.client.outgoing import Outgoing
from rmqcore.client.results import SendResult
from rmqcore.message import ReceivedMessage
from rmqcore.version import __version__

_Attributes = dict[str, str | int | tuple[str, ...]]
#: More digits than any number has that RocketMQ writes; a foreign producer may write more.
_DIGITS_MAX: Final = 18


def tracer_of(provider: TracerProvider | None) -> Tracer:
    """The client's tracer of a provider, or of the program's own."""
    return trace.get_tracer("rmqcore.client", __version__, provider)


class SendSpans:
    """The spans ``send TOPIC`` of a producer, one a request."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    @contextmanager
    def sending(self, message: Outgoing, client_id: str) -> Iterator[Span]:
        """Begin a span, let the message carry its context, and end it.

        Args:
            message: what is sent.
            client_id: the producer's name.
        """
        attributes = _attributes("send", message.topic, client_id, message.properties)
        attributes["messaging.message.body.size"] = len(message.body)
        if message.is_batch:
            attributes["messaging.batch.message_count"] = message.unique_id.count(",") + 1
        else:
            attributes["messaging.message.id"] = message.unique_id
        given = _span_in(message.properties)
        with self._tracer.start_as_current_span(
            f"send {message.topic}",
            kind=SpanKind.PRODUCER,
            attributes=attributes,
            links=[] if given is None else [Link(given.get_span_context())],
        ) as span:
            context: dict[str, str] = {}
            propagate.inject(context)
            message.carry(context)
            try:
                yield span
            except Exception as error:
                span.set_attribute("error.type", type(error).__qualname__)
                raise

    @staticmethod
    def sent(span: Span, result: SendResult) -> None:
        """Note where the message is.

        Args:
            span: of the send.
            result: what the broker has answered.
        """
        span.set_attribute("messaging.destination.partition.id", str(result.queue_id))


@dataclass(slots=True)
class _Work:
    """A message that is handed out and not settled, and its span."""

    message: ReceivedMessage
    span: Span
    has_failed: bool = False


class ProcessSpans:
    """The spans ``process TOPIC`` of a consumer: each from handing a message out to settling it."""

    def __init__(self, tracer: Tracer, group: str, mode: str) -> None:
        """Begin with none.

        Args:
            tracer: what makes them.
            group: of the consumer.
            mode: ``clustering`` or ``broadcasting``.
        """
        self._tracer = tracer
        self._group = group
        self._mode = mode
        #: by the identity of the message, which is kept here meanwhile
        self._work: dict[int, _Work] = {}

    def begin(self, message: ReceivedMessage, client_id: str) -> None:
        """A message is handed out: its span is the child of the one that it was sent in.

        Args:
            message: the message.
            client_id: the consumer's name.
        """
        attributes = _attributes("process", message.topic, client_id, message.properties)
        attributes |= {
            "messaging.consumer.group.name": self._group,
            "messaging.destination.partition.id": str(message.queue_id),
            "messaging.message.body.size": len(message.body_view),
            "messaging.message.id": message.message_id,
            "messaging.rocketmq.consumption_model": self._mode,
        }
        here = trace.get_current_span().get_span_context()
        sent = _span_in(message.properties)
        span = self._tracer.start_span(
            f"process {message.topic}",
            context=None if sent is None else propagate.extract(message.properties),
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=[Link(here)] if sent is not None and here.is_valid else [],
        )
        self._work[id(message)] = _Work(message, span)

    @contextmanager
    def current(self, message: ReceivedMessage) -> Iterator[None]:
        """Let other spans be children of a message's meanwhile, and an exception belong to it."""
        work = self._work.get(id(message))
        if work is None:
            yield
            return
        with trace.use_span(work.span):
            try:
                yield
            except Exception as error:
                work.has_failed = True
                work.span.set_attribute("error.type", type(error).__qualname__)
                raise

    def end(self, message: ReceivedMessage, *, is_given_back: bool = False) -> None:
        """A message is settled.

        Args:
            message: the message; one whose span has ended is passed over.
            is_given_back: it was not done with, and comes again.
        """
        work = self._work.pop(id(message), None)
        if work is None:
            return
        if is_given_back and not work.has_failed:
            work.span.set_attribute("error.type", "nack")
            work.span.set_status(Status(StatusCode.ERROR, "given back"))
        work.span.end()

    def close(self) -> None:
        """The consumer ends: what was not settled comes again elsewhere."""
        while self._work:
            _, work = self._work.popitem()
            work.span.add_event("not settled")
            work.span.end()


def _span_in(properties: Mapping[str, str]) -> Span | None:
    """The span that properties name; None where they name none."""
    span = trace.get_current_span(propagate.extract(properties, Context()))
    return span if span.get_span_context().is_valid else None


def _attributes(
    operation: str, topic: str, client_id: str, properties: Mapping[str, str]
) -> _Attributes:
    found: _Attributes = {
        "messaging.system": "rocketmq",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": topic,
        "messaging.client.id": client_id,
        "messaging.rocketmq.message.type": "normal",
    }
    prefix = "messaging.rocketmq.message."
    if tag := properties.get("TAGS"):
        found[f"{prefix}tag"] = tag
    if keys := properties.get("KEYS", "").split():
        found[f"{prefix}keys"] = tuple(keys)
    if group := properties.get("__SHARDINGKEY"):
        found |= {f"{prefix}type": "fifo", f"{prefix}group": group}
    for name, attribute in (
        ("DELAY", "delay_time_level"),
        ("TIMER_DELIVER_MS", "delivery_timestamp"),
    ):
        value = properties.get(name, "")
        if value.isascii() and value.isdecimal() and len(value) <= _DIGITS_MAX:
            found |= {f"{prefix}type": "delay", f"{prefix}{attribute}": int(value)}
    if properties.get("TRAN_MSG") == "true":
        found[f"{prefix}type"] = "transaction"
    return found
