"""`Http2Settings`: the bounds of gRPC's connections."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Http2Settings:
    """The bounds of a connection, and of all together.

    Attributes:
        stream_max: calls at a time.
        call_total_max: the same of all connections of a service together; beyond it those that
            have the most are closed.
        header_size_max: bytes of a call's headers.
        message_size_max: bytes of one message that is received.
        unfinished_size_max: bytes of all messages of the connection that are not whole yet; the
            call that goes beyond is refused.
        unfinished_total_max: the same of all connections of a service together; beyond it those
            that keep the most lose their calls.
        worked_size_max: bytes of messages that are worked on; beyond it large ones are refused.
        worked_total_max: the same of all connections of a service together.
        queued_size_max: bytes of answers that the peer's windows keep here, above which new calls
            are refused.
        queued_total_max: the same of all connections of a service together; beyond it those that
            keep the most are closed, and what they were given comes again as the group allows.
        write_high_size: bytes that wait in the socket's buffer, from which on nothing is read.
        idle_timeout_s: without a byte from the peer it is closed; 0 for never.
        request_timeout_s: for a call's one message to become whole.
    """

    stream_max: int = 1024
    call_total_max: int = 100_000
    header_size_max: int = 16 * 1024
    message_size_max: int = 8 * 1024 * 1024
    unfinished_size_max: int = 64 * 1024 * 1024
    unfinished_total_max: int = 256 * 1024 * 1024
    worked_size_max: int = 64 * 1024 * 1024
    worked_total_max: int = 256 * 1024 * 1024
    queued_size_max: int = 32 * 1024 * 1024
    queued_total_max: int = 256 * 1024 * 1024
    write_high_size: int = 1024 * 1024
    idle_timeout_s: float = 120.0
    request_timeout_s: float = 30.0
    window_size: int = 1024 * 1024
    connection_window_size: int = 16 * 1024 * 1024
    frame_size: int = 64 * 1024
