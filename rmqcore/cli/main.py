"""The entry point ``rmqcore``: runs the application, or names the missing extra."""

from __future__ import annotations

import os
import sys
import traceback
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from rmqcore.cli.exit_codes import ExitCode
from rmqcore.cli.notes import note
from rmqcore.version import __version__


def run() -> None:
    """Run the command line; ends the process with its exit code."""
    if sys.argv[1:] == ["--version"]:
        # asked for by scripts, again and again
        sys.stdout.write(f"{__version__}\n")
        sys.exit(ExitCode.DONE)
    missing = [name for name in ("typer", "rich") if find_spec(name) is None]
    if missing:
        note(f"rmqcore: the command line needs {' and '.join(missing)}: pip install 'rmqcore[cli]'")
        sys.exit(ExitCode.USAGE)
    try:
        import_module("rmqcore.cli.app").main()
    except KeyboardInterrupt:
        # Ctrl-C came before a command began; a command handles its own
        note("rmqcore: interrupted")
        sys.exit(ExitCode.INTERRUPTED)
    except Exception as error:  # noqa: BLE001 - one line, and no code that means something else
        _report_defect(error)
        sys.exit(ExitCode.DEFECT)


def _report_defect(error: Exception) -> None:
    """Print an unexpected error and its place in one line, or, where asked for, its traceback."""
    if os.environ.get("RMQCORE_TRACEBACK"):
        note("".join(traceback.format_exception(error)).rstrip())
        return
    *_, at = traceback.extract_tb(error.__traceback__)
    said = " ".join(f"{type(error).__name__}: {error}".split())
    note(
        f"rmqcore: error: a defect of rmqcore: {said} ({Path(at.filename).name}:{at.lineno}); "
        "please report it, with what RMQCORE_TRACEBACK=1 shows"
    )
