"""Exit codes, and how an error becomes one line and one of them."""

from __future__ import annotations

import json
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from functools import partial
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from rmqcore.cli.notes import forget, note
from rmqcore.errors import (
    ConfigWarning,
    CorruptRecordError,
    CorruptStoreError,
    RmqCoreError,
    StoreError,
    StoreLockedError,
    StoreNotFoundError,
)
from rmqcore.remoting.errors import RemotingError


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


class FsckCode(IntEnum):
    """What the exit code of the doctor's commands says: fsck's, for those who script it."""

    CLEAN = 0
    CORRECTED = 1
    UNCORRECTED = 4
    OPERATIONAL = 8
    USAGE = 16


#: typer's own copy of click has another base class than click
_CLICK_ERROR: Any = next(
    base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException"
)
EXIT_CODES = (
    "Exit codes: 0 done; 1 done, and there are findings (or nothing was found); 2 wrong usage or "
    "input; 3 the store, or a broker, refuses (missing, locked, read-only); 4 damaged data; 5 the "
    "system refuses (disk, permission, network); 130 interrupted; 141 the reader closed the pipe."
)


FSCK_CODES = (
    "Exit codes are those of fsck: 0 nothing is wrong; 1 what was wrong is corrected; 4 errors are "
    "left as they are (explain: not found; diff: not the same); 8 it could not be done (missing, "
    "locked, disk, permission); 16 wrong usage; 130 interrupted."
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
    if isinstance(error, RemotingError):
        return ExitCode.SYSTEM if isinstance(error, OSError) else ExitCode.STORE
    if isinstance(error, RmqCoreError) and not isinstance(error, StoreError):
        return ExitCode.USAGE
    if isinstance(error, CorruptStoreError):
        return ExitCode.DAMAGED
    if isinstance(error, StoreNotFoundError | StoreLockedError):
        return ExitCode.STORE
    return ExitCode.SYSTEM if isinstance(error, OSError) else ExitCode.STORE


def fsck_code_of(error: BaseException) -> FsckCode:
    """The exit code that an error ends a command of the doctor with."""
    code = exit_code_of(error)
    if code is ExitCode.USAGE:
        return FsckCode.USAGE
    return FsckCode.UNCORRECTED if code is ExitCode.DAMAGED else FsckCode.OPERATIONAL


def describe(error: BaseException) -> str:
    """One line that says what went wrong, with path and offset where there are any."""
    if isinstance(error, StoreNotFoundError) or not isinstance(error, OSError):
        said = "; ".join([str(error), *getattr(error, "__notes__", ())])
        return " ".join(said.split())
    what = error.strerror or str(error)
    return f"{error.filename}: {what}" if error.filename else what


def report(error: BaseException, *, as_json: bool, code: IntEnum | None = None) -> IntEnum:
    """Write an error to standard error, as a line or as a JSON object; its exit code."""
    code = exit_code_of(error) if code is None else code
    if not as_json:
        note(f"rmqcore: error: {describe(error)}")
        return code
    facts: dict[str, Any] = {
        "error": type(error).__name__,
        "message": describe(error),
        "exit_code": int(code),
    }
    for name in ("path", "phy_offset", "reason", "source", "line"):
        if hasattr(error, name):
            facts[name] = getattr(error, name)
    note(json.dumps(facts, default=str))
    return code


class Application(TyperGroup):
    """The command with all its commands: wrong usage is one line on standard error, too.

    SIGTERM ends it as Ctrl-C does: what was begun is closed in order.
    """

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command of the arguments and end the process with its exit code."""
        words = sys.argv[1:] if args is None else list(args)
        try:
            with _sigterm_as_interrupt():
                code = super().main(
                    words, prog_name, complete_var, False, windows_expand_args, **extra
                )
        except typer.Abort:
            note("rmqcore: interrupted")
            code = ExitCode.INTERRUPTED
        except _CLICK_ERROR as error:
            code = _report_usage(error, as_json="--json" in words)
        except SystemExit as ended:
            # click ends so for a closed pipe, and also behind a help page
            if not isinstance(ended.__context__, BrokenPipeError):
                raise
            forget(sys.stdout)
            code = ExitCode.PIPE_CLOSED
        if not standalone_mode:
            return code
        sys.exit(code if isinstance(code, int) else ExitCode.DONE)


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """Take a SIGTERM for a Ctrl-C, unless somebody has decided about it already."""
    ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    )
    if ours:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _report_usage(error: Any, *, as_json: bool) -> int:
    """Write what is wrong with the arguments to standard error; the exit code."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return int(error.exit_code)
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "rmqcore"
    code = getattr(context and context.command, "usage_code", error.exit_code)
    said = " ".join(error.format_message().split())
    if as_json:
        facts = {"error": type(error).__name__, "message": said, "exit_code": int(code)}
        note(json.dumps(facts))
    else:
        note(f"rmqcore: error: {said} (see {path} --help)")
    return int(code)


class StoreCommand(TyperCommand):
    """A command whose errors become one line on standard error and an exit code."""

    code_of: Callable[[BaseException], IntEnum] = staticmethod(exit_code_of)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; never lets an expected error through as a traceback."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("always", ConfigWarning)
                warnings.showwarning = partial(warn, as_json=bool(ctx.params.get("as_json")))
                answer = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            forget(sys.stdout)
            ctx.exit(ExitCode.PIPE_CLOSED)
        except (RmqCoreError, OSError) as error:
            if isinstance(error, CorruptRecordError) and "skip_damaged" in ctx.params:
                error.add_note("--skip-damaged goes on behind it")
            as_json = bool(ctx.params.get("as_json"))
            ctx.exit(report(error, as_json=as_json, code=self.code_of(error)))
        except KeyboardInterrupt:
            note("rmqcore: interrupted")
            ctx.exit(ExitCode.INTERRUPTED)
        return answer


class DoctorCommand(StoreCommand):
    """A command with fsck's exit codes."""

    usage_code = FsckCode.USAGE
    code_of = staticmethod(fsck_code_of)


def warn(message: object, *_: object, as_json: bool, **__: object) -> None:
    """Write a warning to standard error, as a line or as a JSON object."""
    line = json.dumps({"warning": str(message)}) if as_json else f"rmqcore: warning: {message}"
    note(line)
