"""When a timer message is due, as it says itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rmqcore.message import MessageExt

_SECOND_MS: Final = 1000
#: The properties by which a message asks to come at a time; the first that is there counts.
REQUESTS: Final = ("TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS")
#: The property of a record that waits: the second of the wheel that it belongs to.
SLOT: Final = "TIMER_OUT_MS"
#: The property of a marker: which message it recalls.
RECALLS: Final = "TIMER_DEL_UNIQKEY"
#: A text with more digits is taken for no number.
_NUMBER_MAX: Final = 19
#: A later time counts as this one, the last that the file of progress holds.
_LATEST_MS: Final = 2**63 - 1


def asked_time(properties: Mapping[str, str], now_ms: int) -> int | None:
    """When a message asks to be delivered, Unix time in milliseconds; None when it says nonsense.

    Args:
        properties: of the message; one of TIMER_DELAY_SEC, TIMER_DELAY_MS and TIMER_DELIVER_MS is
            there, and the first of them counts.
        now_ms: what delays count from.
    """
    name = next(name for name in REQUESTS if name in properties)
    text = properties[name]
    digits = text.removeprefix("-").removeprefix("+")
    if len(digits) > _NUMBER_MAX or not (digits.isascii() and digits.isdigit()):
        return None
    if name == "TIMER_DELIVER_MS":
        return int(text)
    return now_ms + int(text) * (_SECOND_MS if name == "TIMER_DELAY_SEC" else 1)


def slot_of(due_ms: int) -> int:
    """The second of the wheel, its start; a due time on the second belongs to the one before."""
    return (due_ms - 1) // _SECOND_MS * _SECOND_MS


def number_in(text: str) -> int | None:
    """The whole number that a property's text is; None where it is none."""
    if text.isascii() and text.isdigit() and len(text) <= _NUMBER_MAX:
        return int(text)
    return None


def due_of(record: MessageExt) -> int:
    """When a record of the timer topic is due: to the millisecond within its second.

    A marker comes before all that it may name.
    """
    slot_ms = number_in(record.properties.get(SLOT, "")) or 0
    if RECALLS in record.properties:
        return min(slot_ms, _LATEST_MS)
    asked_ms = None
    if any(name in record.properties for name in REQUESTS):
        asked_ms = asked_time(record.properties, record.store_timestamp_ms)
    if asked_ms is None:
        return min(slot_ms + _SECOND_MS, _LATEST_MS)
    return min(max(asked_ms, slot_ms + 1), slot_ms + _SECOND_MS, _LATEST_MS)
