"""`SharedBound`: what all connections keep together of one kind, and its bound."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

#: Beyond the bound connections give up what they keep until this part of it is left, so that the
#: next bytes do not begin that again.
_LEFT: Final = 7 / 8


class SharedBound:
    """Used from one event loop.

    Beyond the bound the connections that keep the most give it up, so that who keeps little loses
    nothing for what others keep.
    """

    def __init__(self, size_max: int) -> None:
        """Make one that nothing is kept of.

        Args:
            size_max: bytes of all connections together.
        """
        self._size_max = size_max
        self._size = 0
        #: those that keep something; a connection whose handshake fails is never told of its end
        self._shares: set[Share] = set()
        self._planned = False

    @property
    def size(self) -> int:
        """Bytes that all connections keep."""
        return self._size

    def share(
        self, give_up: Callable[[], None], recount: Callable[[], None] | None = None
    ) -> Share:
        """Open a connection's share.

        Args:
            give_up: called, in a turn of the loop of its own, when the connection is one of those
                that keep too much; it has to count down what it gives up.
            recount: called before that, to note what is kept no more; None: that is noted at once.
        """
        return Share(self._count, give_up, recount or _nothing)

    def _count(self, share: Share, size: int) -> None:
        self._size += size
        (self._shares.add if share.size else self._shares.discard)(share)
        if self._size > self._size_max and not self._planned:
            self._planned = True
            # not in the middle of what the connection does with them
            asyncio.get_running_loop().call_soon(self._give_up)

    def _give_up(self) -> None:
        self._planned = False
        if self._size <= self._size_max:
            return
        for share in list(self._shares):
            share.recount()
        for share in sorted(self._shares, key=lambda each: each.size, reverse=True):
            if self._size <= self._size_max * _LEFT:
                break
            share.give_up()


class Total:
    """What all connections have together of one kind; who adds to it looks at it before.

    Attributes:
        size: bytes.
    """

    def __init__(self) -> None:
        self.size = 0


class Share:
    """What one connection keeps.

    Attributes:
        size: bytes.
        give_up: ends what is kept.
        recount: notes what is kept no more.
    """

    def __init__(
        self,
        count: Callable[[Share, int], None],
        give_up: Callable[[], None],
        recount: Callable[[], None],
    ) -> None:
        """Open it: see `SharedBound.share`."""
        self.size = 0
        self.give_up, self.recount = give_up, recount
        self._count = count

    def add(self, size: int) -> None:
        """Note bytes that are kept, below 0 bytes that are not any more."""
        self.size += size
        self._count(self, size)

    def set(self, size: int) -> None:
        """Note how many bytes are kept now."""
        if size != self.size:
            self.add(size - self.size)

    def close(self) -> None:
        """Keep nothing any more: the connection is gone, and what it notes counts for nobody."""
        self.add(-self.size)
        self._count, self.give_up, self.recount = _count_for_nobody, _nothing, _nothing


def _count_for_nobody(_share: Share, _size: int) -> None:
    pass


def _nothing() -> None:
    pass
