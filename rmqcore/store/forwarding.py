"""`forwards`: a method of a store that a part answers, with the part's arguments and words."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from operator import attrgetter
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., object])


def forwards(
    part: str, method: Callable[Concatenate[Any, P], T]
) -> Callable[Concatenate[Any, P], T]:
    """A method of a store that calls the one of the same name of a part.

    Arguments, results and errors stand where the work is done; `help` of a store tells them.

    Args:
        part: where the store has it: ``parts.writing``.
        method: the part's, as its class has it; of a coroutine function another one is made.
    """
    find, name = attrgetter(part), method.__name__

    def forward(self: Any, *args: Any, **settings: Any) -> Any:
        return getattr(find(self), name)(*args, **settings)

    async def forward_async(self: Any, *args: Any, **settings: Any) -> Any:
        return await getattr(find(self), name)(*args, **settings)

    made = forward_async if inspect.iscoroutinefunction(method) else forward
    documented: Any = wraps(method)(made)
    forwarding: Callable[Concatenate[Any, P], T] = documented
    return forwarding


def in_the_words_of(method: Callable[..., object]) -> Callable[[F], F]:
    """Let a method of a store that does more than forward say what a part's says."""

    def worded(own: F) -> F:
        own.__doc__ = method.__doc__
        return own

    return worded
