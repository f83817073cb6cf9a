"""The entry point ``rmqcore``: runs the application, or names the missing extra."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec

_USAGE_ERROR = 2
_INTERRUPTED = 130


def run() -> None:
    """Run the command line; ends the process with its exit code."""
    missing = [name for name in ("typer", "rich") if find_spec(name) is None]
    if missing:
        sys.stderr.write(
            f"rmqcore: the command line needs {' and '.join(missing)}: pip install 'rmqcore[cli]'\n"
        )
        sys.exit(_USAGE_ERROR)
    try:
        import_module("rmqcore.cli.app").main()
    except KeyboardInterrupt:
        # Ctrl-C came before a command began; a command handles its own
        sys.stderr.write("rmqcore: interrupted\n")
        sys.exit(_INTERRUPTED)
