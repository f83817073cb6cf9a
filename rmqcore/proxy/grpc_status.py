"""gRPC's own status: what ends a call that could not be handled at all.

RocketMQ's codes, see `codes`, are inside the answers; a call that has one ends with `OK` here.

Source: https://grpc.github.io/grpc/core/md_doc_statuscodes.html
"""

from __future__ import annotations

from enum import IntEnum


class GrpcStatus(IntEnum):
    """Those that the server ends calls with."""

    OK = 0
    CANCELLED = 1
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class CallFailedError(Exception):
    """Ends a call with a status and a sentence instead of an answer.

    Attributes:
        status: gRPC's.
        reason: for the caller to read.
    """

    def __init__(self, status: GrpcStatus, reason: str) -> None:
        self.status = status
        self.reason = reason
        super().__init__(f"{status.name}: {reason}")
