"""Child processes that die by themselves: forked, so that hundreds of them take seconds."""

import importlib
import itertools
import os
import select
import signal
import traceback
from contextlib import suppress


def die():
    """Be killed at once, as by ``kill -9``."""
    os.kill(os.getpid(), signal.SIGKILL)


def run_child(work, timeout_s=60):
    """Fork, and call `work(acknowledge)` in the child, which ends without any cleaning up.

    Returns:
        (exit code, negative for a signal; the numbers that the child acknowledged).
    """
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        with suppress(BaseException):
            os.close(out)
            try:
                work(lambda number: os.write(into, b"%d\n" % number))
                code = 0
            except BaseException:  # noqa: BLE001 - told, and the child ends
                traceback.print_exc()
        os._exit(code)
    os.close(into)
    said = b""
    while True:
        ready, _, _ = select.select([out], [], [], timeout_s)
        if not ready:
            os.kill(child, signal.SIGKILL)
        data = os.read(out, 1 << 16)
        said += data
        if not data:
            break
    os.close(out)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), [int(line) for line in said.split()]


def die_at(failpoint, moment, visits):
    """Die before, after or (of a write) in the middle of the Nth call of a method of the engine."""
    module, kind, method = failpoint.rsplit(".", 2)
    owner = getattr(importlib.import_module(f"rmqcore.{module}"), kind)
    original = getattr(owner, method)
    left = itertools.count(visits, -1)

    def dying(self, *arguments, **named):
        last = next(left) <= 1
        if last and moment == "before":
            die()
        if last and moment == "middle" and method == "write":
            position, data = arguments
            original(self, position, memoryview(data)[: len(data) // 2 + 1], **named)
            die()
        answer = original(self, *arguments, **named)
        if last:
            die()
        return answer

    setattr(owner, method, dying)
