"""`Changes`: messages that a changed time has brought into another checkpoint."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rmqcore.broker.pop.receipts import CheckpointKey


class Changes:
    """By which checkpoints a message is known whose time was changed, and one of them counts.

    No record closes it yet in those that it was in before. Of the one that it is in it is the only
    message.
    """

    def __init__(self) -> None:
        #: by a checkpoint that a message was in, and its offset, the one that it is in
        self._to: dict[tuple[CheckpointKey, int], CheckpointKey] = {}
        #: by that one, the former ones: place of each in its revive queue, whether a record says it
        self._formers: dict[CheckpointKey, dict[CheckpointKey, tuple[int, bool]]] = {}
        #: of how many messages a checkpoint is a former one
        self._counts: Counter[CheckpointKey] = Counter()

    def is_former(self, key: CheckpointKey) -> bool:
        """Whether a message was in a checkpoint, so that its record has to be read at a start."""
        return key in self._counts

    def add(self, key: CheckpointKey, offset: int, to: CheckpointKey, place: int) -> None:
        """Take in that a message is in another checkpoint, and no record says it.

        Args:
            key: of the checkpoint that it was in.
            offset: of the message.
            to: of the checkpoint that it is in.
            place: queue offset of the former checkpoint's record.
        """
        formers = {**self._formers.pop(key, {}), key: (place, False)}
        self._to.update({(former, offset): to for former in formers})
        self._formers.setdefault(to, {}).update(formers)
        self._counts[key] += 1

    def find(self, key: CheckpointKey, offset: int) -> CheckpointKey:
        """The checkpoint that a message is in.

        Args:
            key: of one that it is in, or was.
            offset: of the message.
        """
        return self._to.get((key, offset), key)

    def not_noted(self, key: CheckpointKey) -> list[CheckpointKey]:
        """The former checkpoints of a message that no record closes it in."""
        return [former for former, (_, noted) in self._formers.get(key, {}).items() if not noted]

    def note(self, key: CheckpointKey, former: CheckpointKey) -> None:
        """Take in that a record closes a message in a former checkpoint.

        Args:
            key: of the checkpoint that it is in.
            former: of the one that it was in.
        """
        self._formers[key][former] = self._formers[key][former][0], True

    def end(self, key: CheckpointKey, offset: int) -> dict[CheckpointKey, int]:
        """Forget a message that is done with; the places of checkpoints that are former no more.

        Args:
            key: of the checkpoint that it was in.
            offset: of the message.
        """
        free = {}
        for former, (place, _) in self._formers.pop(key, {}).items():
            del self._to[former, offset]
            self._counts[former] -= 1
            if not self._counts[former]:
                del self._counts[former]
                free[former] = place
        return free
