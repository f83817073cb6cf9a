"""Traces of clients in OpenTelemetry: `instrument` turns them on; without it nothing is loaded.

Needs the extra ``[otel]``. A single client is traced by its argument ``tracer_provider``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rmqcore.errors import ArgumentError, RmqCoreError

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer, TracerProvider

    from rmqcore.client.spans import ProcessSpans, SendSpans

#: The tracer of the clients that have no ``tracer_provider``; empty while they are not traced.
_FOR_ALL: Final[list[Tracer]] = []


def instrument(tracer_provider: TracerProvider | None = None) -> None:
    """Trace all clients that are opened from now on, also those of other libraries.

    Args:
        tracer_provider: where spans go; None for the program's own, also one that it sets later.

    Raises:
        ArgumentError: it is no provider of tracers.
        RmqCoreError: OpenTelemetry is not installed.
    """
    _FOR_ALL[:] = [_tracer(tracer_provider)]


def uninstrument() -> None:
    """Let clients that are opened from now on be traced only by their ``tracer_provider``."""
    _FOR_ALL.clear()


def send_spans(tracer_provider: TracerProvider | None) -> SendSpans | None:
    """The spans of a producer; None where it is not traced.

    Raises:
        ArgumentError, RmqCoreError: see `instrument`.
    """
    if tracer_provider is None and not _FOR_ALL:
        return None
    tracer = _FOR_ALL[0] if tracer_provider is None else _tracer(tracer_provider)
    from rmqcore.client.spans import SendSpans  # noqa: PLC0415 - for who traces only

    return SendSpans(tracer)


def process_spans(
    tracer_provider: TracerProvider | None, group: str, mode: str
) -> ProcessSpans | None:
    """The spans of a consumer; None where it is not traced.

    Args:
        tracer_provider: the argument of the consumer.
        group: its group.
        mode: ``clustering`` or ``broadcasting``.

    Raises:
        ArgumentError, RmqCoreError: see `instrument`.
    """
    if tracer_provider is None and not _FOR_ALL:
        return None
    tracer = _FOR_ALL[0] if tracer_provider is None else _tracer(tracer_provider)
    from rmqcore.client.spans import ProcessSpans  # noqa: PLC0415 - for who traces only

    return ProcessSpans(tracer, group, mode)


def _tracer(tracer_provider: TracerProvider | None) -> Tracer:
    if tracer_provider is not None and not callable(getattr(tracer_provider, "get_tracer", None)):
        raise ArgumentError("tracer_provider", tracer_provider, "a TracerProvider, or None")
    try:
        from rmqcore.client.spans import tracer_of  # noqa: PLC0415 - for who traces only
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "opentelemetry":
            raise
        raise RmqCoreError("traces need OpenTelemetry: pip install 'rmqcore[otel]'") from None
    return tracer_of(tracer_provider)
