"""The tables of a shared store, topics and consumer offsets: each call is one of the handle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from rmqcore.store.sharing.calls import CALLS

Call = Callable[[str, tuple[Any, ...], dict[str, Any]], Any]


class SharedTable:
    """Has the methods of a table that `CALLS` names.

    Args:
        name: attribute of the store that the table is.
        call: makes a call of the store.
    """

    def __init__(self, name: str, call: Call) -> None:
        self._name = name
        self._call = call

    def __getattr__(self, method: str) -> Callable[..., Any]:
        whole = f"{self._name}.{method}"
        if whole not in CALLS:
            raise AttributeError(f"{whole} is no call of a shared store")
        return partial(self._forward, whole)

    def _forward(self, whole: str, /, *args: Any, **settings: Any) -> Any:
        return self._call(whole, args, settings)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._call(f"{self._name}.__iter__", (), {}))

    def __len__(self) -> int:
        return int(self._call(f"{self._name}.__len__", (), {}))
