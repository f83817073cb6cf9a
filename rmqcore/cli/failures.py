"""Exit codes, and how an error becomes one line and one of them."""

from __future__ import annotations

import json
import os
import sys
import warnings
from enum import IntEnum
from functools import partial
from typing import Any

from typer.core import TyperCommand

from rmqcore.errors import (
    ConfigError,
    ConfigWarning,
    CorruptStoreError,
    MessageIllegalError,
    RmqCoreError,
    StoreLockedError,
    StoreNotFoundError,
)


class ExitCode(IntEnum):
    """What the exit code of every command says; docs/cli.md has the table."""

    DONE = 0
    FINDINGS = 1
    USAGE = 2
    STORE = 3
    DAMAGED = 4
    SYSTEM = 5
    INTERRUPTED = 130
    PIPE_CLOSED = 141


EXIT_CODES = (
    "Exit codes: 0 done; 1 done, and there are findings (or nothing was found); 2 wrong usage or "
    "input; 3 the store refuses (missing, locked, read-only); 4 damaged data; 5 the system refuses "
    "(disk, permission); 130 interrupted; 141 the reader closed the pipe."
)


class InputError(RmqCoreError, ValueError):
    """Input that a command was given breaks its format.

    Attributes:
        source: name of the input.
        line: 1-based number of the line.
        reason: what is wrong with it.
    """

    def __init__(self, source: str, line: int, reason: str) -> None:
        self.source = source
        self.line = line
        self.reason = reason
        super().__init__(f"{source}, line {line}: {reason}")


def exit_code_of(error: BaseException) -> ExitCode:
    """The exit code that an error ends a command with."""
    if isinstance(error, ConfigError | MessageIllegalError | InputError):
        return ExitCode.USAGE
    if isinstance(error, CorruptStoreError):
        return ExitCode.DAMAGED
    if isinstance(error, StoreNotFoundError | StoreLockedError):
        return ExitCode.STORE
    return ExitCode.SYSTEM if isinstance(error, OSError) else ExitCode.STORE


def describe(error: BaseException) -> str:
    """One line that says what went wrong, with path and offset where there are any."""
    if isinstance(error, StoreNotFoundError) or not isinstance(error, OSError):
        return " ".join(str(error).split())
    what = error.strerror or str(error)
    return f"{error.filename}: {what}" if error.filename else what


def report(error: BaseException, *, as_json: bool) -> ExitCode:
    """Write an error to standard error, as a line or as a JSON object; its exit code."""
    code = exit_code_of(error)
    if not as_json:
        sys.stderr.write(f"rmqcore: error: {describe(error)}\n")
        return code
    facts: dict[str, Any] = {
        "error": type(error).__name__,
        "message": describe(error),
        "exit_code": int(code),
    }
    for name in ("path", "phy_offset", "reason", "source", "line"):
        if hasattr(error, name):
            facts[name] = getattr(error, name)
    sys.stderr.write(json.dumps(facts, default=str) + "\n")
    return code


class StoreCommand(TyperCommand):
    """A command whose errors become one line on standard error and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; never lets an expected error through as a traceback."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("always", ConfigWarning)
                warnings.showwarning = partial(warn, as_json=bool(ctx.params.get("as_json")))
                answer = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            _forget_output()
            ctx.exit(ExitCode.PIPE_CLOSED)
        except (RmqCoreError, OSError) as error:
            ctx.exit(report(error, as_json=bool(ctx.params.get("as_json"))))
        except KeyboardInterrupt:
            sys.stderr.write("rmqcore: interrupted\n")
            ctx.exit(ExitCode.INTERRUPTED)
        return answer


def warn(message: object, *_: object, as_json: bool, **__: object) -> None:
    """Write a warning to standard error, as a line or as a JSON object."""
    line = json.dumps({"warning": str(message)}) if as_json else f"rmqcore: warning: {message}"
    sys.stderr.write(line + "\n")


def _forget_output() -> None:
    """Let the interpreter's last flush of a closed pipe go nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
