"""Forked processes that say what they see, and that may die at any moment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rmqcore.doctor.selftest.workload import BrokenPromiseError
from rmqcore.world import sleep

#: what a child calls to say a line
Say = Callable[[str], None]
#: A line that begins so says which promise is broken.
BROKEN = "broken: "
#: A child that takes longer, in seconds, hangs and is killed.
_LIMIT_S = 120


def run_child(
    work: Callable[[Say], None], *, life_s: float | None = None, from_first_line: bool = False
) -> list[str]:
    """Fork, call ``work`` in the child, and return the lines that it said.

    An error that it raises, and an end that nobody wanted, is a line that begins with `BROKEN`.
    This process must have no other thread.

    Args:
        work: gets a function that says one line, which is kept whatever happens to the child.
        life_s: seconds after which the child is killed; None lets it come to its end.
        from_first_line: ``life_s`` begins with the first line that it says.
    """
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(out)
        _work(work, into)
    os.close(into)
    first = os.read(out, 1 << 16) if from_first_line else b""
    if life_s is not None:
        sleep(life_s)
        os.kill(child, signal.SIGKILL)
    with os.fdopen(out, "rb") as pipe:
        said = (first + pipe.read()).decode().splitlines()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code != 0 and (life_s is None or code != -signal.SIGKILL):
        said.append(f"{BROKEN}the process ended with {code} ({signal_name(code)})")
    return said


@contextmanager
def worker(
    module: str, words: str, environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[str]]:
    """Run a module of this package in a process of its own, and read what it prints.

    It imports what this process does, whatever lies in the working directory: a second copy of the
    package would be watched by nobody.

    Args:
        module: its full name.
        words: its only argument.
        environment: is added to this process's.
    """
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    with subprocess.Popen(  # noqa: S603 - this interpreter, and arguments of ours
        [sys.executable, "-P", "-m", module, words],
        env={**os.environ, **environment, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        except BaseException:
            process.terminate()
            raise


def signal_name(code: int) -> str:
    """The signal in an exit code below 0; ``exit code`` for another one."""
    return signal.Signals(-code).name if code < 0 else "exit code"


def broken(said: list[str]) -> str:
    """The first broken promise that a child has told of; empty for none."""
    return next((line.removeprefix(BROKEN) for line in said if line.startswith(BROKEN)), "")


def numbers(said: list[str]) -> list[int]:
    """The lines that are numbers: messages that were acknowledged."""
    return [int(line) for line in said if line.isdigit()]


def _work(work: Callable[[Say], None], into: int) -> None:
    """What the child does; never returns."""

    def say(line: str) -> None:
        os.write(into, line.replace("\n", " ").encode() + b"\n")

    signal.alarm(_LIMIT_S)
    try:
        work(say)
    except BaseException as error:  # noqa: BLE001 - told, and the process ends
        what = "" if isinstance(error, BrokenPromiseError) else f"{type(error).__name__}: "
        say(f"{BROKEN}{what}{error}")
    os._exit(0)
