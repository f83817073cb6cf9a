"""Small curves as inline SVG, drawn here: no script, and no style in the page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from markupsafe import Markup

_WIDTH: Final = 240
_HEIGHT: Final = 48


def sparkline(values: Sequence[float], words: str) -> Markup:
    """A curve over values of equal distance, the newest on the right.

    Args:
        values: 0 or more; fewer than two make an empty picture.
        words: what it shows, for who does not see it.
    """
    most = max(values, default=0) or 1
    step = _WIDTH / max(1, len(values) - 1)
    points = " ".join(
        f"{number * step:.1f},{_HEIGHT - 2 - value / most * (_HEIGHT - 6):.1f}"
        for number, value in enumerate(values)
    )
    lines = Markup("")
    if len(values) > 1:
        lines = Markup(
            '<polygon class="area" points="0,{h} {p} {w},{h}"/>'
            '<polyline class="line" points="{p}"/>'
        ).format(h=_HEIGHT, w=_WIDTH, p=points)
    return Markup(
        '<svg class="spark" viewBox="0 0 {w} {h}" preserveAspectRatio="none" role="img" '
        'aria-label="{words}">{lines}</svg>'
    ).format(w=_WIDTH, h=_HEIGHT, words=words, lines=lines)
