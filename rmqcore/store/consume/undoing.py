"""Calls that hand out leases: what an interrupt keeps from their callers is undone.

A signal handler may raise between any two bytecodes of such a call, behind what the journal has of
it. Each frame on the way to the caller is one that `undone_if_interrupted` has made; the innermost
says what is handed out, before it is.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any, Generic, ParamSpec, TypeAlias, TypeVar

from rmqcore.errors import RmqCoreError

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Undoing(Generic[T]):
    """What interrupted calls were given, until it is undone.

    Args:
        undo: undoes one; a second time it does nothing.
    """

    def __init__(self, undo: Callable[[T], object]) -> None:
        self._undo = undo
        self._left: list[T] = []
        #: adds one; native, so that no interrupt comes in between
        self.add = self._left.append

    def undo_all(self) -> None:
        """Undo what is left; where an interrupt ends that, a further call goes on."""
        while self._left:
            for each in self._left[:1]:
                self._undo(each)
                with suppress(ValueError):
                    self._left.remove(each)


#: where what is handed out is added, what it is, and what undoes it
_Given: TypeAlias = tuple[Callable[[Any], object], Any, Callable[[], object]]
_NOTHING: _Given | None = None


class _Thread(threading.local):
    """What a thread is handing out."""

    given = _NOTHING
    #: whether it is in a call that `undone_if_interrupted` has made
    inside = False


_thread = _Thread()


def hands_out(given: T, interrupted: Undoing[T], undo_all: Callable[[], object]) -> None:
    """Say what this thread's call is about to hand out.

    Args:
        given: what is undone when the call is interrupted; nothing while it is empty.
        interrupted: where it is added then.
        undo_all: makes a call of its `undo_all`.
    """
    if _thread.inside:
        _thread.given = interrupted.add, given, undo_all


def hands_out_nothing() -> None:
    """Say that this thread's call hands out nothing."""
    _thread.given = _NOTHING


def undone_if_interrupted(method: Callable[P, R]) -> Callable[P, R]:
    """A method whose caller is given what it returns, or nobody is given anything.

    What it had leased comes again at once when it ends with an exception; what is interrupted while
    it is undone, with the next lease.
    """

    @wraps(method)
    def call(*args: P.args, **settings: P.kwargs) -> R:
        # a signal handler's call, inside another, leaves what that hands out
        inside, before = _thread.inside, _thread.given
        _thread.inside, _thread.given = True, _NOTHING
        try:
            leased = method(*args, **settings)
            # no call behind it, in which an interrupt could come
            return leased  # noqa: RET504, TRY300
        except BaseException:
            if _thread.given is not None and _thread.given[1]:
                add, given, undo_all = _thread.given
                add(given)
                with suppress(RmqCoreError, OSError):
                    undo_all()
            raise
        finally:
            _thread.inside = inside
            if before is not None or not inside:
                _thread.given = before

    return call


# what the parent is handing out is its own
os.register_at_fork(after_in_child=hands_out_nothing)
