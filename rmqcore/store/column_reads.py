"""`ColumnReads`: what a store gives as columns, whether it is open for writing or read only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Unpack

from rmqcore.errors import CorruptStoreError
from rmqcore.store.closed_by_with import ClosedByWith

if TYPE_CHECKING:
    from pathlib import Path

    import polars

    from rmqcore.config import StoreConfig
    from rmqcore.scan.dataset import StoreDataset
    from rmqcore.scan.log_walk import Damage
    from rmqcore.scan.selection import Selection
    from rmqcore.store.parts.reading import Reading
    from rmqcore.store.protocol import MessageStore

#: A notebook shows this many topics.
_ROWS_SHOWN = 50


class ColumnReads(ClosedByWith):
    """Datasets and lazy frames of a store, and what a notebook shows of it.

    A subclass sets ``path`` and ``config``.

    Args:
        reading: answers reads.
    """

    path: Path

    def __init__(self, reading: Reading) -> None:
        self._reading = reading

    @property
    def config(self) -> StoreConfig:
        """Settings of the store."""
        raise NotImplementedError

    @property
    def _counted(self) -> Reading | MessageStore:
        """What says how much the store has."""
        return self._reading

    def arrow_dataset(
        self,
        columns: Iterable[str] | None = None,
        *,
        plain_bodies: bool = False,
        archive: str | None = None,
        storage_options: Mapping[str, str] | None = None,
        on_damage: Callable[[Damage], None] | None = None,
        **selection: Unpack[Selection],
    ) -> StoreDataset:
        """The messages there are now as a ``pyarrow.dataset.Dataset``; needs pyarrow.

        A scan of it decodes only the columns and records that its projection and filter ask for.
        DuckDB takes it by the variable's name.

        Args:
            columns: names out of `rmqcore.scan.COLUMNS`; None for the usual ones.
            plain_bodies: decompress bodies that are stored compressed.
            archive: of this store: what retention has deleted is read from there.
            storage_options: of the archive; see `rmqcore.scan.open_any_log`.
            on_damage: called for each damaged place, which is passed over; None raises there.
            **selection: only these messages; see `rmqcore.scan.Selection`.

        Raises:
            ValueError: an unknown column.
            StoreClosedError: the store is closed.
            ArchiveError: no archive is there, or it does not reach up to the store.
            ObjectStoreError: the archive cannot be read.
        """
        from rmqcore.scan.dataset import StoreDataset  # noqa: PLC0415 - needs pyarrow

        # refuses a closed store, and looks which files there are
        self._counted.max_phy_offset  # noqa: B018
        return StoreDataset(
            self.path,
            columns,
            config=self.config,
            plain_bodies=plain_bodies,
            selection=selection,
            archive=archive,
            storage_options=storage_options,
            on_damage=on_damage,
        )

    def scan_polars(
        self,
        columns: Iterable[str] | None = None,
        *,
        plain_bodies: bool = False,
        archive: str | None = None,
        storage_options: Mapping[str, str] | None = None,
        on_damage: Callable[[Damage], None] | None = None,
        **selection: Unpack[Selection],
    ) -> polars.LazyFrame:
        """The messages there are now as a lazy frame of Polars; needs polars and pyarrow.

        Arguments and errors as those of `arrow_dataset`.
        """
        from rmqcore.scan.polars_source import lazy_frame  # noqa: PLC0415 - needs polars

        dataset = self.arrow_dataset(
            columns,
            plain_bodies=plain_bodies,
            archive=archive,
            storage_options=storage_options,
            on_damage=on_damage,
            **selection,
        )
        return lazy_frame(dataset)

    def _repr_html_(self) -> str:
        """What a notebook shows: the topics, with their queues and messages."""
        from html import escape  # noqa: PLC0415 - its table of entities takes 0.5 MiB

        rows: dict[str, list[int]] = {}
        unreadable: dict[str, list[int]] = {}
        reading = self._counted
        for topic, queue_id in reading.queues():
            counts = rows.setdefault(topic, [])
            try:
                end = reading.max_queue_offset(topic, queue_id)
                counts.append(end - reading.min_queue_offset(topic, queue_id))
            except CorruptStoreError:
                counts.append(0)
                unreadable.setdefault(topic, []).append(queue_id)
        lines = [
            f"<tr><td>{escape(topic)}</td><td>{len(counts)}</td>"
            f"<td>{sum(counts):,}{_and_unreadable(unreadable.get(topic, []))}</td></tr>"
            for topic, counts in list(rows.items())[:_ROWS_SHOWN]
        ]
        more = len(rows) - len(lines)
        return (
            f"<p><b>{type(self).__name__}</b> {escape(str(self.path))}</p>"
            "<table><thead><tr><th>topic</th><th>queues</th><th>messages</th></tr></thead>"
            f"<tbody>{''.join(lines)}</tbody></table>" + (f"<p>and {more} more</p>" if more else "")
        )


def _and_unreadable(queue_ids: list[int]) -> str:
    """What is said of a topic's queues that cannot be read, behind its messages."""
    return f" and queue {', '.join(map(str, queue_ids))}, which cannot be read" if queue_ids else ""
