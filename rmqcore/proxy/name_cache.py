"""`NameCache`: answers of brokers that are not asked for again at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, Generic, TypeVar

_KEPT_MAX: Final = 10_000

_Value = TypeVar("_Value")


class NameCache(Generic[_Value]):
    """Values by name, each for some seconds; names are a client's, so at most 10,000 of them.

    Args:
        seconds: how long a value counts.
        monotonic_s: seconds of a clock that never steps back.
    """

    def __init__(self, seconds: float, monotonic_s: Callable[[], float]) -> None:
        self._seconds = seconds
        self._monotonic_s = monotonic_s
        self._values: dict[str, tuple[float, _Value]] = {}

    def get(self, name: str) -> _Value | None:
        """A value that still counts; None when there is none."""
        kept = self._values.get(name)
        return kept[1] if kept is not None and kept[0] > self._monotonic_s() else None

    def last(self, name: str) -> _Value | None:
        """A value whether it still counts or not; None when there is none."""
        kept = self._values.get(name)
        return kept[1] if kept is not None else None

    def put(self, name: str, value: _Value) -> _Value:
        """Keep a value from now on; returns it. One too many takes the place of all.

        Args:
            name: by which `get` finds it.
            value: counts for as many seconds as all of them.
        """
        if len(self._values) >= _KEPT_MAX:
            self._values.clear()
        self._values[name] = self._monotonic_s() + self._seconds, value
        return value

    def forget(self, name: str) -> None:
        """Keep nothing of a name."""
        self._values.pop(name, None)

    def outdate_all(self, where: Callable[[_Value], bool]) -> None:
        """Let no value count any more that a function is true of; `last` has it still."""
        for name, (_, value) in self._values.items():
            if where(value):
                self._values[name] = -math.inf, value
