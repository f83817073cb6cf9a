"""`Undecided`: which half messages nobody has decided, told by what is noted of them.

Half messages and notes are read once, in the order of their queues; kept are only those that are
undecided, and what is noted of such as are still to be read.
"""

from __future__ import annotations

from collections.abc import Iterable


class Undecided:
    """The half messages of a broker from where something was undecided when it was opened.

    Args:
        half_offset: queue offset of the first half message that may be undecided.
        note_offset: queue offset before which no note is of one from there on.

    Attributes:
        half_offset, note_offset: where the two queues are read on.
        later_notes: before this offset no note is of a half message that is still to be read.
    """

    def __init__(self, half_offset: int, note_offset: int) -> None:
        self.half_offset = half_offset
        self.note_offset = self.later_notes = note_offset
        #: half messages without a decision, by queue offset, ascending: the offset below which no
        #: note is about that one
        self._open: dict[int, int] = {}
        #: half messages that a note is about and that are not read yet
        self._early: set[int] = set()
        #: half messages whose producers are not asked any more, and of which none has decided
        self._given_up: set[int] = set()

    def __contains__(self, offset: int) -> bool:
        return offset in self._open

    def __len__(self) -> int:
        return len(self._open)

    def offsets(self) -> list[int]:
        """Those that are read and undecided, ascending."""
        return list(self._open)

    def add_note(self, named: Iterable[int], *, given_up: bool) -> None:
        """Take in a note.

        Args:
            named: queue offsets of the half messages that it is about.
            given_up: whether nobody has decided.
        """
        for offset in named:
            known = offset in self._early or not (offset in self._open or self._is_later(offset))
            if not given_up:
                self._given_up.discard(offset)
            elif not known:
                self._given_up.add(offset)
            if self._open.pop(offset, None) is None and self._is_later(offset):
                self._early.add(offset)

    def add_half(self, offset: int) -> None:
        """Take in that there is a half message, once; the next one is behind it."""
        if not self._is_later(offset):
            return
        if offset in self._early:
            self._early.discard(offset)
        else:
            self._open[offset] = self.later_notes
        self.half_offset = offset + 1

    def forget(self, offset: int) -> None:
        """Take in that a half message is gone from the log."""
        self._open.pop(offset, None)

    def is_ended(self, offset: int) -> bool:
        """Whether a producer has decided a half message; of those from `begin` on."""
        if offset in self._given_up:
            return False
        return offset in self._early if self._is_later(offset) else offset not in self._open

    def begin(self) -> tuple[int, int]:
        """Where the queues have to be read from to know all of this again: halves and notes.

        What was given up before is told by its notes from then on.
        """
        half_offset, note_offset = next(iter(self._open.items()), (self.half_offset, -1))
        self._given_up = {offset for offset in self._given_up if offset >= half_offset}
        return half_offset, self.later_notes if note_offset < 0 else note_offset

    def _is_later(self, offset: int) -> bool:
        return offset >= self.half_offset
