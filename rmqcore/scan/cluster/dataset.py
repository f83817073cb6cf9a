"""Topics of a running cluster as a dataset of pyarrow: columns reach the decoder, ranges are parts.

What takes a ``pyarrow.dataset.Dataset`` takes this, as a `rmqcore.scan.dataset.StoreDataset`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

import pyarrow.compute as pc

from rmqcore.scan.cluster.access import Access
from rmqcore.scan.cluster.ranges import QueueRange, cut_ranges
from rmqcore.scan.cluster.read import read_range
from rmqcore.scan.dataset import ScannedDataset
from rmqcore.scan.predicates import pushed_down
from rmqcore.scan.read import DEFAULT_COLUMNS
from rmqcore.scan.selection import Selection, reusable

#: A fragment has this many messages.
_PIECE_COUNT = 1_000_000


class ClusterDataset(ScannedDataset):
    """Messages of ranges of queues; pulled anew by each scan.

    Args:
        access: how the cluster is reached.
        ranges: what is read.
        columns: names out of `rmqcore.scan.COLUMNS`; None for the usual ones.
        plain_bodies: decompress bodies that are stored compressed.
        selection: which messages; see `rmqcore.scan.Selection`.
    """

    def __init__(
        self,
        access: Access,
        ranges: Iterable[QueueRange],
        columns: Iterable[str] | None = None,
        *,
        plain_bodies: bool = False,
        selection: Selection | None = None,
    ) -> None:
        self._access = access
        self._ranges = tuple(ranges)
        self._columns = DEFAULT_COLUMNS if columns is None else tuple(columns)
        self._plain_bodies = plain_bodies
        self._selection = reusable(selection or {})
        self._filter: pc.Expression | None = None
        # what is wrong with the columns is said now
        self.schema  # noqa: B018

    def __reduce__(self) -> tuple[Any, ...]:
        given = (self._access, self._ranges, self._columns, self._plain_bodies, self._selection)
        return _again, (*given, self._filter)

    def _parts(self, selection: Selection) -> Iterator[tuple[Any, Selection]]:
        wanted = self._with(selection)
        topics, queue_ids = wanted.pop("topics", None), wanted.pop("queue_ids", None)
        for piece in cut_ranges(self._ranges, _PIECE_COUNT):
            of_topic = topics is None or piece.queue.topic in topics
            if of_topic and (queue_ids is None or piece.queue.queue_id in queue_ids):
                yield piece, wanted

    def _with(self, pushed: Selection) -> Selection:
        """What was chosen from the beginning, and what a filter narrows it to."""
        found: dict[str, Any] = dict(self._selection)
        # what else it narrows, the filter itself does
        for name in ("topics", "queue_ids", "tags"):
            if name in pushed and name not in found:
                found[name] = cast("dict[str, Any]", pushed)[name]
        return cast("Selection", found)

    def _read(
        self, split: Any, names: tuple[str, ...], batch_rows: int, selection: Selection
    ) -> Any:
        return read_range(
            self._access,
            split,
            names,
            batch_rows=batch_rows,
            plain_bodies=self._plain_bodies,
            verify_crc="body" in names or "record" in names,
            **selection,
        )

    def get_fragments(self, filter: pc.Expression | None = None) -> Iterator[ClusterDataset]:
        """The parts that can be read beside each other.

        Args:
            filter: leave out parts that have no row for it.
        """
        for piece, _ in self._parts(pushed_down(self._both(filter))):
            given = (self._columns, self._plain_bodies, self._selection, self._filter)
            yield _again(self._access, (piece,), *given)

    def __repr__(self) -> str:
        count = sum(one.count for one in self._ranges)
        return f"ClusterDataset({count} messages of {len(self._ranges)} queues)"


def _again(
    access: Access,
    ranges: tuple[QueueRange, ...],
    columns: tuple[str, ...],
    plain_bodies: bool,
    selection: Selection,
    filter: pc.Expression | None,
) -> Any:
    """A dataset as it was, in another process perhaps."""
    found = ClusterDataset(access, ranges, columns, plain_bodies=plain_bodies, selection=selection)
    found._filter = filter
    return found
