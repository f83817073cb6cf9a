"""Lists in pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

PAGE: Final = 50
_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class Paged(Generic[_Item]):
    """One page of a list.

    Attributes:
        items: what is on it.
        total: how many there are in all.
        page, pages: which this is, from 1 on, and how many there are.
    """

    items: Sequence[_Item]
    total: int
    page: int
    pages: int


def paged(items: Sequence[_Item], page: int, size: int = PAGE) -> Paged[_Item]:
    """A page of a list, the last one where there are not so many.

    Args:
        items: all of them.
        page: which, from 1 on.
        size: how many are on a page.
    """
    pages = max(1, -(-len(items) // size))
    page = min(max(1, page), pages)
    return Paged(items[(page - 1) * size : page * size], len(items), page, pages)
