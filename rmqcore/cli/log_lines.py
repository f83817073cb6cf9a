"""How a server writes its log on standard error."""

from __future__ import annotations

import logging
from types import TracebackType

from rmqcore.cli.output import printable

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_INDENT = "    "


class LogLines(logging.Formatter):
    """One line a record, and those of its traceback indented: no client makes up a record.

    What clients name, such as a broker, may have line ends and codes for a terminal in it.
    """

    def __init__(self) -> None:
        super().__init__(_FORMAT)

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line of a record, in which everything can be seen."""
        return printable(super().formatMessage(record).encode("utf-8", "backslashreplace"))

    def formatException(
        self,
        ei: tuple[type[BaseException], BaseException, TracebackType | None]
        | tuple[None, None, None],
    ) -> str:
        """The lines of a traceback."""
        lines = super().formatException(ei).split("\n")
        shown = (printable(line.encode("utf-8", "backslashreplace")) for line in lines)
        return "\n".join(_INDENT + line for line in shown)


def write_log_lines() -> None:
    """Write warnings, and what is worse, to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(LogLines())
    logging.basicConfig(handlers=[handler])
