"""Lines on standard error: what is said beside the answer, or why there is none.

Nobody has to read them: when their reader has gone, the command goes on, and its exit code is what
it would have been.
"""

from __future__ import annotations

import os
import sys
from typing import TextIO


def note(line: object) -> None:
    """Write one line to standard error, if anybody reads it."""
    try:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
    except BrokenPipeError:
        forget(sys.stderr)


def forget(stream: TextIO) -> None:
    """Let what is still written to a closed pipe go nowhere, the interpreter's last flush, too."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
