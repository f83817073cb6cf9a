"""A signal handler that raises at each place of a call where one can, one place after the other.

CPython runs signal handlers behind a call, at a function's begin and at a loop's jump back; a trace
function raises there what a handler would. Only code of the package counts, in the calling thread.
"""

from __future__ import annotations

import dis
import gc
import sys
from collections.abc import Callable, Collection, Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import rmqcore

_PACKAGE = str(Path(rmqcore.__file__).parent)
#: instructions behind which handlers run
_CHECKED = {"CALL", "CALL_KW", "CALL_FUNCTION_EX", "JUMP_BACKWARD", "RESUME"}


class Interrupted(KeyboardInterrupt):
    """What the handler raises."""


@cache
def _places(code: CodeType) -> frozenset[int]:
    """Offsets of the instructions in front of which handlers run."""
    found, before = set(), ""
    for instruction in dis.get_instructions(code):
        if before in _CHECKED:
            found.add(instruction.offset)
        before = instruction.opname
    return frozenset(found)


class Interrupt:
    """Calls a handler at the n-th place of a call.

    Args:
        number: of the place, from 1 on.
        handler: what comes there; it raises `Interrupted` by default.
        files: only places in these count, by name; all by default.

    Attributes:
        at: file and line of the place; empty when the call has no so many.
    """

    def __init__(
        self,
        number: int,
        handler: Callable[[], object] | None = None,
        files: Collection[str] = (),
    ) -> None:
        self.left = number
        self.at = ""
        self._handler = handler
        self._files = files

    def during(self, call: Callable[[], Any]) -> Any:
        """Make the call; `Interrupted` ends here.

        No garbage is collected meanwhile: a finalizer would take the interrupt in the call's place,
        and CPython 3.11 would call a trace function that is gone, where one ends the tracing while
        the frame is made that is to be traced.
        """
        before, collects = sys.gettrace(), gc.isenabled()
        gc.disable()
        sys.settrace(self._entered)
        try:
            return call()
        except Interrupted:
            return None
        finally:
            sys.settrace(before)
            if collects:
                gc.enable()

    def _entered(self, frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        name = frame.f_code.co_filename
        if event != "call" or not name.startswith(_PACKAGE):
            return None
        if self._files and Path(name).name not in self._files:
            return None
        frame.f_trace = self._step  # Python 3.14 tells of opcodes only a frame that has it already
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._step

    def _step(self, frame: FrameType, event: str, _: object) -> Callable[..., Any]:
        if event == "opcode" and frame.f_lasti in _places(frame.f_code):
            self.left -= 1
            if self.left == 0:
                sys.settrace(None)
                self.at = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                if self._handler is None:
                    raise Interrupted(self.at)
                self._handler()
        return self._step


def each_interrupt(step: int = 1, files: Collection[str] = ()) -> Iterator[Interrupt]:
    """An interrupt at each ``step``-th place, until a call has no such place any more."""
    number = 1
    while True:
        interrupt = Interrupt(number, files=files)
        yield interrupt
        if not interrupt.at:
            return
        number += step
