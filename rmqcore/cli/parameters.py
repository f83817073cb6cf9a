"""Values of a command line that mean what was typed: taken without a model of them.

The models of typer are pydantic's, which takes a third of the time in which a command starts. A
number that was typed is still theirs: they say what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any, Final

import typer

_KINDS: Final = (str, bool, int, float, Path)
_LISTS: Final = (list[str], list[Path])


def accept_as_typed(parameters: list[Any]) -> list[Any]:
    """Let parameters of the plain kinds take what needs no check as it is.

    A typer that builds no models, or builds them otherwise, goes on as it does.
    """
    for parameter in parameters:
        kind = getattr(getattr(parameter, "type_descriptor", None), "annotation", None)
        checked = getattr(parameter, "get_runtime_param", None)
        plain = kind in (*_KINDS, *_LISTS) or (isinstance(kind, type) and issubclass(kind, Enum))
        known = isinstance(getattr(checked, "__self__", None), _AsTyped)
        if plain and checked is not None and not known:
            parameter.get_runtime_param = _AsTyped(kind, checked).itself
    return parameters


class _AsTyped:
    """What a parameter makes of its value."""

    def __init__(self, kind: Any, checked: Callable[[], Any]) -> None:
        self._kind = kind
        self._checked = checked

    def itself(self) -> _AsTyped:
        """What a parameter asks for."""
        return self

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """The value of its kind.

        Raises:
            typer.BadParameter: it is none.
        """
        if param.multiple or param.nargs == -1:
            if not value:
                return ()
        elif param.nargs == 1:
            if value is None or type(value) is self._kind:
                return value
            if self._kind is Path and value == "":
                raise typer.BadParameter("empty; '.' is the current directory", ctx, param)
            if self._kind is Path and isinstance(value, str | Path):
                return Path(value)
        return self._checked().coerce(value, param=param, ctx=ctx)
