"""A topic's attributes: which there are, and how a request changes them.

Source: TopicAttributes, AttributeParser, AttributeUtil.alterCurrentAttributes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from rmqcore.remoting import RequestRefusedError, ResponseCode

QUEUE_TYPE: Final = "queue.type"
_CLEANUP: Final = "cleanup.policy"
_COMPACTED: Final = "COMPACTION"
_INT64_MAX: Final = 2**63 - 1
_DIGITS_MAX: Final = 19
_EXPIRATION_MAX: Final = 30 * 24 * 60
_MESSAGE_TYPES: Final = (
    "UNSPECIFIED",
    "NORMAL",
    "FIFO",
    "DELAY",
    "TRANSACTION",
    "PRIORITY",
    "LITE",
    "MIXED",
)


def _one_of(*values: str) -> Callable[[str], str | None]:
    def check(value: str) -> str | None:
        return None if value in values else f"one of {', '.join(values)}"

    return check


def _up_to(most: int) -> Callable[[str], str | None]:
    def check(value: str) -> str | None:
        digits = value.removeprefix("-")
        right = digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS_MAX
        return None if right and -1 <= int(value) <= most else f"a number from -1 to {most}"

    return check


#: Each check returns what a value would have to be, or None when it is that.
_CHECKS: Final[Mapping[str, Callable[[str], str | None]]] = {
    QUEUE_TYPE: _one_of("BatchCQ", "SimpleCQ"),
    _CLEANUP: _one_of("DELETE"),
    "message.type": _one_of(*_MESSAGE_TYPES),
    "reserve.time": _up_to(_INT64_MAX),
    "lite.topic.expiration": _up_to(_EXPIRATION_MAX),
}
#: These attributes have a default, and cannot be changed once the topic is there.
_UNCHANGEABLE: Final = {QUEUE_TYPE: "SimpleCQ", _CLEANUP: "DELETE"}


def is_compacted(attributes: Mapping[str, str]) -> bool:
    """Tell whether RocketMQ keeps the last message of each key of a topic, beside the log."""
    return attributes.get(_CLEANUP) == _COMPACTED


def parse_changes(text: str) -> dict[str, str]:
    """Read changes such as ``+message.type=FIFO,-reserve.time``, by their names with the sign.

    Raises:
        RequestRefusedError: they are not written so; answers with code 1.
    """
    changes: dict[str, str] = {}
    for change in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = change.partition("=")
        if len(name) < 2 or name[0] != ("+" if equals else "-"):
            raise _refused(f"attribute {change[:80]!r}: write +name=value or -name")
        if name in changes:
            raise _refused(f"attribute {name[:80]!r} is named twice")
        changes[name] = value
    return changes


def changed(old: Mapping[str, str] | None, changes: Mapping[str, str]) -> dict[str, str]:
    """The attributes of a topic after changes.

    Args:
        old: those that it has; None creates the topic.
        changes: by name: ``+name`` sets, ``-name`` takes away. A bare name sets, too, and needs not
            be known: it stands so in a list of topics that was told.

    Raises:
        RequestRefusedError: there is no such attribute, it cannot have this value, or it cannot be
            changed; answers with code 1.
    """
    attributes = dict(old or {})
    for key, value in changes.items():
        sign, name = (key[0], key[1:]) if key[:1] in ("+", "-") else ("", key)
        check, taken = _CHECKS.get(name), sign == "-"
        if check is None and sign:
            raise _refused(f"attribute {name[:80]!r} is not known; there are {', '.join(_CHECKS)}")
        if taken and name not in attributes:
            raise _refused(f"attribute {name}: the topic has not got it")
        if not isinstance(value, str):
            raise _refused(f"attribute {name[:80]!r}: its value is no text")
        rule = None if check is None or taken else check(value)
        if rule is not None:
            raise _refused(f"attribute {name}={value[:80]}: expected {rule}")
        fixed = None if old is None else _UNCHANGEABLE.get(name)
        if fixed is not None and (taken or attributes.get(name, fixed) != value):
            raise _refused(f"attribute {name} cannot be changed")
        if taken:
            del attributes[name]
        else:
            attributes[name] = value
    return attributes


def _refused(remark: str) -> RequestRefusedError:
    return RequestRefusedError(ResponseCode.SYSTEM_ERROR, remark)
