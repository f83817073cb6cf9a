"""Exit codes, and how an error becomes one line and one of them."""

from __future__ import annotations

import json
import os
import re
import shlex
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
import typer.core
from typer.core import TyperCommand, TyperGroup

from rmqcore.cli.complete import stores
from rmqcore.cli.exit_codes import ExitCode, FsckCode
from rmqcore.cli.near import near
from rmqcore.cli.notes import forget, note
from rmqcore.cli.parameters import accept_as_typed
from rmqcore.errors import (
    ConfigWarning,
    CorruptRecordError,
    CorruptStoreError,
    RmqCoreError,
    StoreError,
    StoreLockedError,
    StoreNotFoundError,
)

#: typer's own copy of click has another base class than click
_CLICK_ERROR: Any = next(
    base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException"
)


#: The advice behind every error of an address where nobody listens.
_NOBODY_THERE = "does a server run there? -n or NAMESRV_ADDR names another; rmqcore serve runs one"
#: The advice behind every error about damage.
HELP = "rmqcore doctor plan STORE says what is wrong, and what a repair saves"
_STORE = re.compile(r"\bSTORE\b")
_SETTING = re.compile(r'\b(on_corruption)="(\w+)"')


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
    # a command that calls nobody does without what calls
    remoting = sys.modules.get("rmqcore.remoting.errors")
    if remoting is not None and isinstance(error, remoting.RemotingError):
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
    found_none = isinstance(error, StoreNotFoundError)
    if found_none or not isinstance(error, OSError) or error.strerror is None:
        said = "; ".join([str(error), *getattr(error, "__notes__", ())])
        return " ".join(said.split())
    what = error.strerror or str(error)
    return f"{error.filename}: {what}" if error.filename else what


def as_followed(text: str, store: object) -> str:
    """What the library advises, in words that can be typed: commands on this store, options.

    Args:
        text: of an error or a finding; ``STORE`` in it becomes the store.
        store: as it was given; it is quoted for the shell.
    """
    text = text.replace('or read it with mode="r"', "or read it with rmqcore cat STORE")
    text = text.replace('mode="r"', "rmqcore cat STORE --skip-damaged")
    text = _SETTING.sub(r"-c \1=\2", text)
    return _STORE.sub(shlex.quote(str(store)).replace("\\", r"\\"), text)


def report(
    error: BaseException, *, as_json: bool, code: IntEnum | None = None, store: object = "STORE"
) -> IntEnum:
    """Write an error to standard error, as a line or as a JSON object; its exit code.

    Args:
        error: what ended the command.
        as_json: which of both.
        code: its exit code, where it is not that of `exit_code_of`.
        store: the store that the command was about.
    """
    code = exit_code_of(error) if code is None else code
    said = describe(error)
    if isinstance(error, CorruptStoreError) and "rmqcore " not in said:
        said += f"; {HELP}"
    remoting = sys.modules.get("rmqcore.remoting.errors")
    if remoting is not None and isinstance(error, remoting.RemotingConnectError):
        said += f"; {_NOBODY_THERE}"
    said = as_followed(said, store)
    if not as_json:
        note(f"rmqcore: error: {said}")
        return code
    facts: dict[str, Any] = {
        "error": type(error).__name__,
        "message": said,
        "exit_code": int(code),
    }
    for name in ("path", "phy_offset", "reason", "source", "line"):
        if hasattr(error, name):
            facts[name] = getattr(error, name)
    note(json.dumps(facts, default=str))
    return code


class _Group(TyperGroup):
    """A group whose options take what was typed."""

    def get_params(self, ctx: Any) -> Any:
        """Its options, that of the help, too."""
        return accept_as_typed(super().get_params(ctx))


class Application(_Group):
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
        """Run the command of the arguments and end the process with its exit code.

        Args:
            args: words behind the program's name; None for those of this process.
            prog_name: name of the program in its help; None for that of this process.
            complete_var: variable by which the shell asks for completions; None for click's own
                name.
            standalone_mode: False returns the exit code in place of ending the process.
            windows_expand_args: without effect here.
            extra: what click takes more.

        Raises:
            SystemExit: always, with the exit code, unless ``standalone_mode`` is False.
        """
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
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "rmqcore"
    code = getattr(context and context.command, "usage_code", error.exit_code)
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return int(code)
    said = " ".join(error.format_message().split())
    if as_json:
        facts = {"error": type(error).__name__, "message": said, "exit_code": int(code)}
        note(json.dumps(facts))
    else:
        note(f"rmqcore: error: {said} (see {path} --help)")
    return int(code)


class MissingWarning(UserWarning):
    """What a store had is missing, and a command goes on without it."""


class StoreCommand(TyperCommand):
    """A command whose errors become one line on standard error and an exit code."""

    code_of: Callable[[BaseException], IntEnum] = staticmethod(exit_code_of)

    def get_params(self, ctx: Any) -> Any:
        """Its arguments and options, that of the help, too."""
        return accept_as_typed(super().get_params(ctx))

    def invoke(self, ctx: Any) -> Any:
        """Run the command; never lets an expected error through as a traceback."""
        try:
            with warnings.catch_warnings():
                for category in (ConfigWarning, MissingWarning):
                    warnings.simplefilter("always", category)
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
            store = ctx.params.get("store") or "STORE"
            ctx.exit(report(error, as_json=as_json, code=self.code_of(error), store=store))
        except KeyboardInterrupt:
            note("rmqcore: interrupted")
            ctx.exit(ExitCode.INTERRUPTED)
        return answer


class DoctorCommand(StoreCommand):
    """A command with fsck's exit codes."""

    usage_code = FsckCode.USAGE
    code_of = staticmethod(fsck_code_of)


class DoctorGroup(_Group):
    """The doctor's commands; the directory of a store in a command's place is looked at."""

    usage_code = FsckCode.USAGE

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command of the arguments: `look` where the first one is a path.

        Args:
            ctx: click's.
            args: words from the command on, at least one.

        Raises:
            click.UsageError: it is neither a command nor a path; names the nearest.
        """
        first = args[0]
        if first not in self.commands and (os.sep in first or os.path.lexists(first)):
            args = ["look", *args]
        elif first not in self.commands and first[:1] != "-":
            ctx.fail(
                f"No such command {first!r}, and no directory of that name"
                f"{near(first, self.commands)}"
            )
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Its commands, and stores.

        Args:
            ctx: click's.
            incomplete: what was typed so far.
        """
        item = getattr(typer.core, "CompletionItem", None)
        paths = stores(incomplete) if item and incomplete[:1] != "-" else []
        return [*super().shell_complete(ctx, incomplete), *map(item or str, paths)]


def warn(message: object, *_: object, as_json: bool, **__: object) -> None:
    """Write a warning to standard error, as a line or as a JSON object.

    Args:
        message: what to say; `warnings.showwarning` calls this, too, with more that is not shown.
        as_json: write ``{"warning": ...}``.
    """
    line = json.dumps({"warning": str(message)}) if as_json else f"rmqcore: warning: {message}"
    note(line)
