"""Outcomes that are values: put and get statuses, durability levels, offset boundaries.

Member names keep RocketMQ's spelling. None of the numbers reaches the disk.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Literal


class PutMessageStatus(IntEnum):
    """Outcome of a put. Source: RocketMQ common/message/PutMessageStatus.java."""

    PUT_OK = 0
    FLUSH_DISK_TIMEOUT = 1
    FLUSH_SLAVE_TIMEOUT = 2
    SLAVE_NOT_AVAILABLE = 3
    SERVICE_NOT_AVAILABLE = 4
    CREATE_MAPPED_FILE_FAILED = 5
    MESSAGE_ILLEGAL = 6
    PROPERTIES_SIZE_EXCEEDED = 7
    OS_PAGE_CACHE_BUSY = 8
    UNKNOWN_ERROR = 9
    IN_SYNC_REPLICAS_NOT_ENOUGH = 10
    PUT_TO_REMOTE_BROKER_FAIL = 11
    LMQ_CONSUME_QUEUE_NUM_EXCEEDED = 12
    WHEEL_TIMER_FLOW_CONTROL = 13
    WHEEL_TIMER_MSG_ILLEGAL = 14
    WHEEL_TIMER_NOT_ENABLE = 15


class GetMessageStatus(IntEnum):
    """Outcome of a get. Source: RocketMQ store/GetMessageStatus.java."""

    FOUND = 0
    NO_MATCHED_MESSAGE = 1
    MESSAGE_WAS_REMOVING = 2
    OFFSET_FOUND_NULL = 3
    OFFSET_OVERFLOW_BADLY = 4
    OFFSET_OVERFLOW_ONE = 5
    OFFSET_TOO_SMALL = 6
    NO_MATCHED_LOGIC_QUEUE = 7
    NO_MESSAGE_IN_QUEUE = 8
    OFFSET_RESET = 9


class Durability(StrEnum):
    """What a receipt promises: docs/durability.md."""

    MEMORY = "memory"
    PAGE_CACHE = "page_cache"
    DISK = "disk"
    REPLICATED = "replicated"


#: what a put may ask for by name
DurabilityName = Literal["replicated", "disk", "page_cache", "memory"]


class BoundaryType(StrEnum):
    """Which end of a run of equal store times an offset look-up answers with."""

    LOWER = "lower"
    UPPER = "upper"


#: a boundary by name
BoundaryName = Literal["lower", "upper"]
