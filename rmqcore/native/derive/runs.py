"""Runs of queue offsets: where they begin again with 0, the topic was deleted and made again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmqcore.native.format._numbers import UNIT_SIZE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rmqcore.native.derive._dispatch import Stretch


def begins_anew(stretch: Stretch, later: Sequence[Stretch]) -> bool:
    """True when a stretch with number 0 is the beginning of a run, and no number that has rotted.

    Args:
        stretch: units of a queue that has others before them.
        later: the stretches behind it in the same batch. One of the same queue has not number 1,
            or it would be in the same stretch: then a record that is alone is out of order.
    """
    alone = len(stretch.units) == UNIT_SIZE
    return not alone or not any(
        other.topic == stretch.topic and other.queue_id == stretch.queue_id for other in later
    )
