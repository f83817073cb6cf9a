"""The words of a part, given to the methods of a store that forward to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

_Store = TypeVar("_Store")


def in_the_words_of(*parts: type) -> Callable[[type[_Store]], type[_Store]]:
    """Let each method of a store that a part has, too, say what the part's says.

    So that `help` of a store tells arguments, results and errors, which stand where the work is
    done.
    """

    def worded(store: type[_Store]) -> type[_Store]:
        for name, method in vars(store).items():
            for part in parts:
                told = getattr(part, name, None)
                if callable(method) and not name.startswith("_") and told is not None:
                    method.__doc__ = told.__doc__
        return store

    return worded
