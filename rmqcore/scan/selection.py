"""What of a log is asked for, by the names that every reader of whole stores takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypedDict, cast

from rmqcore.native.columns._row_filter import HIDDEN, RowFilter

__all__ = ["HIDDEN", "SELECTION_NAMES", "RowFilter", "Selection", "TopicRule", "reusable"]

#: called with a topic: (physical offset from which on its records are rows, the same by queue id
#: where it is another); `HIDDEN` for none
TopicRule = Callable[[str], tuple[int, dict[int, int]]]


class Selection(TypedDict, total=False):
    """Messages are chosen that satisfy all that is given; a list may be None, for all.

    Attributes:
        topics: of one of these.
        queue_ids: of a queue with one of these ids.
        begin_ms, end_ms: stored at or between these times, Unix milliseconds.
        begin_phy_offset, end_phy_offset: beginning at or behind the one, and before the other.
        tags: with one of these as the tag.
        keys: with one of these among their keys, or as the unique key.
        unique_keys: with one of these as the unique key.
        queue_offsets: by topic and queue id, (first, end): of these queues only what has such a
            queue offset, the end not included.
        queue_times: by topic and queue id, (begin, end): of these queues only what was stored at or
            between these times.
        uncommitted: also prepared and rolled-back transactional records, which are in no queue.
        topic_rule: which records of a topic are messages at all.
    """

    topics: Iterable[str] | None
    queue_ids: Iterable[int] | None
    begin_ms: int
    end_ms: int
    begin_phy_offset: int
    end_phy_offset: int
    tags: Iterable[str] | None
    keys: Iterable[str] | None
    unique_keys: Iterable[str] | None
    queue_offsets: Mapping[str, dict[int, tuple[int, int]]]
    queue_times: Mapping[str, dict[int, tuple[int, int]]]
    uncommitted: bool
    topic_rule: TopicRule


SELECTION_NAMES = frozenset(Selection.__annotations__)


def reusable(selection: Selection) -> Selection:
    """The same selection, good to be used more than once; None stands for what is not given."""
    found: dict[str, Any] = {}
    for name, value in selection.items():
        if name in _LISTS and value is not None:
            found[name] = tuple(cast("Iterable[Any]", value))
        elif value is not None:
            found[name] = value
    return cast("Selection", found)


_LISTS = ("topics", "queue_ids", "tags", "keys", "unique_keys")
