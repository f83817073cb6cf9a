"""What a notebook shows of messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rmqcore.native.format._message_ext import MessageExt

_ROWS_SHOWN = 20
_BYTES_SHOWN = 60
_NAMES = ("topic", "queue_id", "queue_offset", "phy_offset", "tags", "keys")


def table_of(title: str, messages: Sequence[MessageExt]) -> str:
    """A table of the first of some messages.

    Args:
        title: what they are.
        messages: in their order.
    """
    from html import escape  # noqa: PLC0415 - its table of entities takes 0.5 MiB

    head = "".join(f"<th>{name}</th>" for name in (*_NAMES, "body"))
    rows = "".join(f"<tr>{_cells(message, escape)}</tr>" for message in messages[:_ROWS_SHOWN])
    more = len(messages) - _ROWS_SHOWN
    return (
        f"<p><b>{escape(title)}</b></p><table><thead><tr>{head}</tr></thead>"
        f"<tbody>{rows}</tbody></table>" + (f"<p>and {more} more</p>" if more > 0 else "")
    )


def _cells(message: MessageExt, escape: Callable[[str], str]) -> str:
    values = [getattr(message, name) for name in _NAMES]
    texts = [" ".join(one) if isinstance(one, tuple) else one for one in values]
    body = bytes(message.body_view[:_BYTES_SHOWN]).decode("utf-8", "replace")
    cells = ["" if text is None else str(text) for text in (*texts, body)]
    return "".join(f"<td>{escape(cell)}</td>" for cell in cells)
