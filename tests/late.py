"""`--late NUMBER`: hold a test up where it must not matter how long something takes.

Threads and calls of executors begin late, and so do lines of the test itself: how late, and which,
is drawn from the number and the test's id. A test of the gate that is red then relies on luck, or
has found a defect.
"""

import hashlib
import random
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
#: The lanes of tests that are held up.
_LANES = {"engine", "process"}
#: Of threads and calls so many begin late.
_LATE = 0.4
#: So late they begin at most, in seconds.
_BEGIN_S = 0.3
#: A line of the test is late by so much at most, in seconds, and all of its lines by that.
_LINE_S, _LINES_S = 1.5, 2.25
#: Of a test's lines so many are late: of most none, of one near its begin, of the next anywhere.
_LINES = (0.0,) * 9 + (0.5, 0.1, 0.03)
#: Who waits, and lines that no test stands in.
_NOT_HELD_UP = {"conftest.py", "lanes.py", "late.py", "patience.py"}

# the guard of lanes watches the name in `time`
_sleep = time.sleep


class LatePlugin:
    """Holds tests up.

    Args:
        number: of which all is drawn.
    """

    def __init__(self, number):
        self._number = number
        self._draw = random.Random(number)
        self._active = False
        self._left_s = 0.0
        self._lines = 0.0
        threading.Thread.run = self._begins_late(threading.Thread.run)
        ThreadPoolExecutor.submit = self._calls_late(ThreadPoolExecutor.submit)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        """Hold up what the test and its fixtures begin."""
        self._draw.seed(hashlib.sha256(f"{self._number} {item.nodeid}".encode()).digest())
        self._active = any(mark.name in _LANES for mark in item.iter_markers())
        try:
            return (yield)
        finally:
            self._active = False

    @pytest.hookimpl(wrapper=True)
    def pytest_pyfunc_call(self):
        """Hold up lines of the test; of one that traces itself none."""
        self._left_s, self._lines = _LINES_S, self._draw.choice(_LINES)
        if not self._active or not self._lines or sys.gettrace():
            return (yield)
        sys.settrace(self._called)
        try:
            return (yield)
        finally:
            sys.settrace(None)

    def _begins_late(self, run):
        def late(thread):
            self._wait_a_while()
            return run(thread)

        return late

    def _calls_late(self, submit):
        def late(pool, call, /, *arguments, **named):
            def called(*arguments, **named):
                self._wait_a_while()
                return call(*arguments, **named)

            return submit(pool, called if self._active else call, *arguments, **named)

        return late

    def _wait_a_while(self):
        if self._active and self._draw.random() < _LATE:
            _sleep(self._draw.random() ** 2 * _BEGIN_S)

    def _called(self, frame, _event, _argument):
        return self._line if _is_held_up(frame.f_code.co_filename) else None

    def _line(self, _frame, event, _argument):
        if event == "line" and self._left_s > 0 and self._draw.random() < self._lines:
            late_s = self._draw.random() ** 2 * _LINE_S
            self._left_s -= late_s
            _sleep(late_s)
        return self._line


@cache
def _is_held_up(file):
    path = Path(file)
    return path.is_relative_to(TESTS) and path.name not in _NOT_HELD_UP
