"""From a filter of an Arrow dataset to a selection that holds at least its rows.

Arrow shows an expression as text only. What of it is understood for sure narrows what is decoded;
the rest narrows nothing, and the whole filter is applied to the rows all the same.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from rmqcore.scan.selection import Selection

_MILLISECOND = dt.timedelta(milliseconds=1)
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_TOKEN = re.compile(
    r"""\s*(?:
        (?P<text>"(?:[^"\\]|\\.)*")
      | (?P<time>-?\d+-\d\d-\d\d[ ]\d\d:\d\d:\d\d(?:\.\d+)?Z?)
      | (?P<number>-?\d+)(?![\w.:])
      | (?P<word>[A-Za-z_]\w*)
      | (?P<sign>==|!=|>=|<=|[<>()\[\]{},=:?+*/.-])
    )""",
    re.VERBOSE,
)
#: The columns whose lists of values are read from a predicate's text: no value of theirs has a
#: quote or a new line in it, and what has one is none of theirs.
_LISTED = ("topic", "queue_id", "phy_offset")
_TURNED = {"==": "==", "<": ">", ">": "<", "<=": ">=", ">=": "<="}


class _UnknownError(Exception):
    """A part of an expression that is not understood."""


@dataclass(frozen=True, slots=True)
class _Bounds:
    """What one part of a filter says: values of each column, and ranges (both ends included)."""

    values: dict[str, frozenset[Any]] = field(default_factory=dict)
    least: dict[str, Any] = field(default_factory=dict)
    most: dict[str, Any] = field(default_factory=dict)

    def both(self, other: _Bounds) -> _Bounds:
        """What holds where both hold."""
        values = dict(self.values)
        for name, found in other.values.items():
            values[name] = values[name] & found if name in values else found
        return _Bounds(
            values, _joined(self.least, other.least, max), _joined(self.most, other.most, min)
        )

    def either(self, other: _Bounds) -> _Bounds:
        """The bounds of a row that fulfils one of two predicates."""
        return _Bounds(
            {
                name: self.values[name] | other.values[name]
                for name in self.values & other.values.keys()
            },
            {
                name: min(self.least[name], other.least[name])
                for name in self.least & other.least.keys()
            },
            {
                name: max(self.most[name], other.most[name])
                for name in self.most & other.most.keys()
            },
        )


def _joined(
    one: dict[str, Any], other: dict[str, Any], choose: Callable[..., Any]
) -> dict[str, Any]:
    both = {name: choose(one[name], other[name]) for name in one.keys() & other.keys()}
    return {**one, **other, **both}


def pushed_down(expression: object) -> Selection:
    """A selection that has every row for which an Arrow expression holds, perhaps more.

    Args:
        expression: of ``pyarrow.compute``; None for none.
    """
    if expression is None:
        return {}
    try:
        return _selection_of(_Reader(str(expression)).whole())
    except (_UnknownError, TypeError):
        return {}


def columns_in(expression: object, columns: tuple[str, ...]) -> set[str]:
    """The columns that an Arrow expression may look at, perhaps more.

    Args:
        expression: a filter of ``pyarrow.compute``; its text is searched for names.
        columns: names that count.
    """
    words = set(re.findall(r"\w+", str(expression)))
    if "FieldPath" in words:
        # a column by its number among all
        return set(columns)
    return {name for name in columns if name in words}


class _Reader:
    """Reads ``(a and b)``, ``(a or b)`` and comparisons of a column with a constant.

    Anything else in an ``and`` says nothing; in an ``or`` it lets the whole say nothing.
    """

    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, str]] = []
        at = 0
        while at < len(text.rstrip()):
            match = _TOKEN.match(text, at)
            if match is None or match.lastgroup is None:
                raise _UnknownError
            self._tokens.append((match.lastgroup, match[match.lastgroup]))
            at = match.end()
        self._at = 0

    def whole(self) -> _Bounds:
        """What all of the text says."""
        found = self._part()
        if self._at != len(self._tokens):
            raise _UnknownError
        return found

    def _part(self) -> _Bounds:
        start = self._at
        found = None
        if self._next() == ("sign", "("):
            found = self._group()
        elif self._next() == ("word", "is_in"):
            found = self._is_in()
        if found is not None:
            return found
        self._at = start
        self._pass_over()
        return _Bounds()

    def _group(self) -> _Bounds | None:
        """What stands between parentheses; None for what is not understood."""
        self._at += 1
        start = self._at
        comparison = self._comparison()
        if comparison is not None:
            return comparison
        self._at = start
        one = self._part()
        word = self._next()
        if word not in (("word", "and"), ("word", "or")):
            return None
        self._at += 1
        other = self._part()
        if self._next() != ("sign", ")"):
            return None
        self._at += 1
        return one.both(other) if word[1] == "and" else one.either(other)

    def _comparison(self) -> _Bounds | None:
        parts = self._tokens[self._at : self._at + 4]
        if len(parts) < 4 or parts[3] != ("sign", ")") or parts[1][1] not in _TURNED:
            return None
        (kind, left), (_, sign), (other_kind, right), _ = parts
        if kind != "word":
            kind, left, sign, other_kind, right = other_kind, right, _TURNED[sign], kind, left
        if kind != "word" or other_kind == "word":
            return None
        value = _constant(other_kind, right)
        self._at += 4
        if sign == "==":
            return _Bounds({left: _meanings(value)}, {left: value}, {left: value})
        # a bound that is not included is still a bound
        return _Bounds(least={left: value}) if ">" in sign else _Bounds(most={left: value})

    def _is_in(self) -> _Bounds | None:
        """``is_in(column, {value_set=string:[ "a", "b" ], null_matching_behavior=MATCH})``."""
        texts = [text for _, text in self._tokens[self._at : self._at + 9]]
        if len(texts) < 9 or [texts[1], *texts[3:6], texts[6]] != ["(", ",", "{", "value_set", "="]:
            return None
        if texts[2] not in _LISTED or "binary" in texts[7] or texts[8] != ":":
            return None
        self._at += 9
        if self._next() != ("sign", "["):
            return None
        values = []
        while self._next()[1] in ("[", ","):
            self._at += 1
            values.append(_constant(*self._next()))
            self._at += 1
        # Arrow shows a quote in a listed text as it is: such a list has another end
        end = " ".join(text for _, text in self._tokens[self._at : self._at + 7])
        if not re.fullmatch(r"\] , null_matching_behavior = \w+ } \)", end):
            return None
        self._at += 7
        return _Bounds(
            {texts[2]: frozenset(values)}, {texts[2]: min(values)}, {texts[2]: max(values)}
        )

    def _pass_over(self, depth: int = 0) -> None:
        """Go behind a part that is not understood: up to what joins it to the next, or ends it."""
        while self._at < len(self._tokens):
            kind, text = self._tokens[self._at]
            if depth == 0 and (text in (")", ",") or (kind == "word" and text in ("and", "or"))):
                return
            depth += (text in "([{" and kind == "sign") - (text in ")]}" and kind == "sign")
            self._at += 1

    def _next(self) -> tuple[str, str]:
        return self._tokens[self._at] if self._at < len(self._tokens) else ("", "")


def _constant(kind: str, text: str) -> Any:
    if kind == "text":
        plain = text[1:-1]
        if "\\" in plain and not re.fullmatch(r'(?:[^\\]|\\["\\])*', plain):
            raise _UnknownError
        return re.sub(r"\\(.)", r"\1", plain)
    if kind == "number":
        return int(text)
    if kind == "time" and text.endswith("Z"):
        whole, _, part = text[:-1].partition(".")
        try:
            found = dt.datetime.fromisoformat(f"{whole}+00:00")
        except ValueError:
            raise _UnknownError from None
        return found + dt.timedelta(microseconds=int(part.ljust(6, "0")[:6]))
    raise _UnknownError


def _meanings(value: Any) -> frozenset[Any]:
    """A constant; and the text of bytes, which Arrow shows as text of hexadecimal digits."""
    if isinstance(value, str) and re.fullmatch(r"(?:[0-9A-F]{2})+", value):
        with suppress(UnicodeDecodeError):
            return frozenset((value, bytes.fromhex(value).decode()))
    return frozenset((value,))


def _selection_of(bounds: _Bounds) -> Selection:
    found: Selection = {}
    for column, name in (("topic", "topics"), ("tags", "tags"), ("unique_key", "unique_keys")):
        if column in bounds.values:
            values = bounds.values[column]
            if _are_texts(values):
                found[name] = tuple(sorted(values))  # type: ignore[literal-required]
    if _all_ints(bounds.values.get("queue_id")):
        ids = bounds.values["queue_id"]
        found["queue_ids"] = tuple(sorted(one for one in ids if -(2**31) <= one < 2**31))
    keys = bounds.values.get("keys")
    if keys and _are_texts(keys) and all(key.split(" ")[0] for key in keys):
        found["keys"] = tuple(sorted({key.split(" ")[0] for key in keys}))
    low, high = bounds.least.get("phy_offset"), bounds.most.get("phy_offset")
    if isinstance(low, int):
        found["begin_phy_offset"] = max(-(2**63), min(low, 2**63 - 1))
    if isinstance(high, int):
        found["end_phy_offset"] = max(-(2**63), min(high + 1, 2**63 - 1))
    first, last = bounds.least.get("store_timestamp"), bounds.most.get("store_timestamp")
    if isinstance(first, dt.datetime):
        found["begin_ms"] = (first - _EPOCH) // _MILLISECOND
    if isinstance(last, dt.datetime):
        found["end_ms"] = (last - _EPOCH) // _MILLISECOND
    return found


def _are_texts(values: frozenset[Any]) -> bool:
    """Whether values are texts, and their bytes those of the messages.

    U+FFFD stands for bytes that are no UTF-8.
    """
    return all(isinstance(value, str) and "\ufffd" not in value for value in values)


def _all_ints(values: frozenset[Any] | None) -> bool:
    return values is not None and all(isinstance(value, int) for value in values)
