"""`Standing`: what fails at the moment and is tried again, in the log once."""

from __future__ import annotations

import logging

_log = logging.getLogger("rmqcore")


class Standing:
    """Failures that are tried again: a warning when one is new, and a line when it has passed.

    Threads: those of one thing that is tried are told one after the other.
    """

    def __init__(self) -> None:
        self._kinds: dict[str, set[object]] = {}

    def note(self, what: str, error: Exception) -> None:
        """Something has failed, and will be tried again.

        Args:
            what: that which was tried, one of a few.
            error: why; another file, or another record, is no news.
        """
        kind = type(error), getattr(error, "errno", None)
        told = self._kinds.setdefault(what, set())
        if kind not in told:
            _log.warning("%s: %s; it is tried again", what, error)
        told.add(kind)

    def end(self, what: str) -> None:
        """It went well."""
        if self._kinds.pop(what, None) is not None:
            _log.info("%s goes on", what)
