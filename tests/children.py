"""Other processes of a test: one that dies by itself, one that is told to end, a new interpreter.

The first two are forked, so that hundreds of them take seconds. Whoever says nothing for a
minute is killed, and the test fails.
"""

import importlib
import io
import itertools
import os
import pickle
import select
import signal
import subprocess
import sys
import time
import traceback
import tracemalloc
import warnings
from contextlib import contextmanager, suppress
from pathlib import Path

from patience import TIMEOUT_S, give_up


def die(*_):
    """Be killed at once, as by ``kill -9``."""
    os.kill(os.getpid(), signal.SIGKILL)


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


def descriptors_of(*paths):
    """This process's descriptors of files."""
    found = []
    for fd in list(Path("/proc/self/fd").iterdir()):
        # one was of this listing
        with suppress(FileNotFoundError):
            if fd.readlink() in paths:
                found.append(int(fd.name))
    return found


@contextmanager
def copies_of(*paths):
    """Copies of this process's descriptors of files, as a child has them that was just forked."""
    copies = [os.dup(fd) for fd in descriptors_of(*paths)]
    assert len(copies) == len(paths)
    try:
        yield
    finally:
        for copy in copies:
            os.close(copy)


def run_child(work, life_s=None):
    """Fork, and call `work(tell)` in the child, which ends without any cleaning up.

    Args:
        work: what the child does; what it tells is pickled.
        life_s: seconds from its first word after which the child is killed.

    Returns:
        (exit code, negative for a signal, 1 for an exception; a list of what the child told).
    """
    out, into = os.pipe()
    child = _fork()
    if child == 0:
        os.close(out)
        _end_after(lambda: work(lambda told: os.write(into, pickle.dumps(told))))
    os.close(into)
    said = b""
    while more := _heard(out, child):
        said += more
        if life_s is not None:
            time.sleep(life_s)
            os.kill(child, signal.SIGKILL)
            life_s = None
    os.close(out)
    told, pickled = [], io.BytesIO(said)
    # a word that was cut off by a kill has not been told
    with suppress(EOFError, pickle.UnpicklingError):
        while True:
            told.append(pickle.load(pickled))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), told


def in_child(call):
    """Return what a call gives in a forked child, which ends with it."""
    code, told = run_child(lambda tell: tell(call()))
    assert code == 0, f"the child ended with {code}"
    (answer,) = told
    return answer


def peak_memory(call):
    """Return the bytes at most that Python has for a call, in a process without other threads."""

    def traced():
        tracemalloc.start()
        call()
        return tracemalloc.get_traced_memory()[1]

    return in_child(traced)


class Forked:
    """A forked process that is at work, until it is told to end, or killed.

    Args:
        work: calls its argument when it is ready, which returns when the process is to end.
    """

    def __init__(self, work):
        ready, said = os.pipe()
        told, self._tell = os.pipe()
        self.pid = _fork()
        if self.pid == 0:
            os.close(ready)
            os.close(self._tell)
            _end_after(lambda: work(lambda: os.write(said, b"!") and os.read(told, 1)))
        os.close(said)
        os.close(told)
        self._gone = False
        is_ready = _heard(ready, self.pid)
        os.close(ready)
        if not is_ready:
            raise AssertionError(f"the child ended with {self._wait()}")

    def kill(self):
        """End it as a power cut of its own would."""
        if not self._gone:
            os.kill(self.pid, signal.SIGKILL)
            self._wait()

    def end(self):
        """Let it go on to its end; returns its exit code."""
        os.write(self._tell, b"!")
        return self._wait()

    def _wait(self):
        self._gone = True
        os.close(self._tell)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()


class Program:
    """An interpreter that runs a program, says lines, and is sent lines.

    Args:
        command: what follows `python`; ``-c`` and code, or a file, and arguments.
        settings: as of `subprocess.Popen`.
    """

    def __init__(self, *command, **settings):
        self.process = subprocess.Popen(
            [sys.executable, *map(str, command)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            **settings,
        )
        self.pid = self.process.pid
        self._said = b""

    def line(self):
        """Wait for its next line; nothing when it has ended, whatever it had begun to say."""
        while b"\n" not in self._said:
            more = _heard(self.process.stdout, self.pid)
            if not more:
                return ""
            self._said += more
        line, _, self._said = self._said.partition(b"\n")
        return line.decode()

    def lines(self):
        """Wait for each of its lines, to its end."""
        while line := self.line():
            yield line

    def say(self, line):
        """Send it a line."""
        self.process.stdin.write(f"{line}\n".encode())

    def signal(self, number):
        """Send it a signal."""
        self.process.send_signal(number)

    def kill(self):
        """End it as a power cut of its own would."""
        self.process.kill()
        self.process.wait()

    def end(self):
        """Close its input, upon which it is to end; returns its exit code."""
        self.process.stdin.close()
        code = self.process.wait(TIMEOUT_S)
        self.process.stdout.close()
        return code

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
        self.process.stdin.close()
        self.process.stdout.close()


def _fork():
    with warnings.catch_warnings():
        # that this process has threads is known
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _end_after(work):
    """Do what a forked child is there for, and end it; an exception is printed."""
    code = 1
    try:
        work()
        code = 0
    except BaseException:  # noqa: BLE001 - told, and the child ends
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _heard(pipe, child):
    """Return what a child says next, nothing when it has ended."""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    if not poll.poll(TIMEOUT_S * 1000):
        os.kill(child, signal.SIGKILL)
        give_up(f"a word of the child process {child}")
    return os.read(pipe if isinstance(pipe, int) else pipe.fileno(), 1 << 16)
