"""The name that somebody may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def near(wrong: str, names: Iterable[str]) -> str:
    """The question that ends an error of an unknown name; empty when none is like it.

    Args:
        wrong: as it was typed.
        names: all that would be accepted.
    """
    found = difflib.get_close_matches(wrong, list(names), n=1)
    return f"; did you mean {found[0]}?" if found else ""
