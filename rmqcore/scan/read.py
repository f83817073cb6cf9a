"""Reading splits as record batches."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from rmqcore.config import StoreConfig
from rmqcore.errors import CorruptStoreError
from rmqcore.native.columns._arrow import ColumnBatch, ColumnBatches
from rmqcore.native.columns._columns import COLUMNS, ColumnDecoder
from rmqcore.native.format._next_record import ScanStatus
from rmqcore.scan.log_walk import Damage, LogWalk
from rmqcore.scan.plan import plan
from rmqcore.scan.split import Split

#: where a message lies and when it was stored: the cheapest useful columns
LIGHT_COLUMNS = (
    "topic",
    "queue_id",
    "queue_offset",
    "phy_offset",
    "store_size",
    "store_timestamp",
    "tags_code",
)
#: what most readers want of a message
DEFAULT_COLUMNS = (
    *LIGHT_COLUMNS[:-1],
    "born_timestamp",
    "keys",
    "tags",
    "unique_key",
    "body",
)
#: everything but the record's own bytes and the CRC verdict
FULL_COLUMNS = tuple(name for name in COLUMNS if name not in ("record", "crc_ok"))
DELAYS_MS = StoreConfig().delay_levels_ms


def read(
    split: Split,
    columns: Iterable[str] = DEFAULT_COLUMNS,
    *,
    topics: Iterable[str] | None = None,
    queue_ids: Iterable[int] | None = None,
    begin_ms: int | None = None,
    end_ms: int | None = None,
    uncommitted: bool = False,
    verify_crc: bool = False,
    plain_bodies: bool = False,
    batch_rows: int = 4096,
    batch_bytes: int = 16 << 20,
    delays_ms: tuple[int, ...] = DELAYS_MS,
    on_damage: Callable[[Damage], None] | None = None,
) -> ColumnBatches:
    """The messages of a split as a stream of record batches, in log order.

    Args:
        split: from `plan`.
        columns: names out of `rmqcore.scan.COLUMNS`; only these are decoded.
        topics: only messages of these.
        queue_ids: only messages of these.
        begin_ms: only messages stored at this time or later.
        end_ms: only messages stored at this time or earlier.
        uncommitted: also prepared and rolled-back transactional records, which are in no queue.
        verify_crc: refuse a body that contradicts its CRC; the column ``crc_ok`` only says so.
        plain_bodies: decompress bodies that are stored compressed.
        batch_rows: at most so many rows in a batch.
        batch_bytes: a batch is made of at most so many bytes of log.
        delays_ms: delay of level 1, 2, ..., for the tags code of delayed messages.
        on_damage: called for each damaged place, which is passed over; None raises there.

    Returns:
        a stream to iterate over, or to hand to anything that takes Arrow, as often as is wanted.

    Raises:
        ValueError: an unknown column.
        CorruptRecordError, CorruptStoreError: when the stream comes there; all rows before it are
            handed out.
        RecordsGoneError: when the stream comes there.
    """
    limits: dict[str, Any] = {}
    if begin_ms is not None:
        limits["begin_ms"] = begin_ms
    if end_ms is not None:
        limits["end_ms"] = end_ms
    names = tuple(columns)
    decoder = partial(
        ColumnDecoder,
        names,
        row_max=batch_rows,
        byte_max=batch_bytes,
        topics=None if topics is None else tuple(topics),
        queue_ids=None if queue_ids is None else tuple(queue_ids),
        uncommitted=uncommitted,
        verify_crc=verify_crc,
        plain_bodies=plain_bodies,
        delays_ms=delays_ms,
        **limits,
    )
    # what is wrong with the arguments is said now
    decoder()
    empty = ColumnDecoder(names, row_max=1).take()
    return ColumnBatches(empty, lambda: _batches(decoder(), LogWalk(split, on_damage=on_damage)))


def _batches(decoder: ColumnDecoder, walk: LogWalk) -> Iterator[ColumnBatch]:
    try:
        for status in walk.run(decoder.decode):
            if status is ScanStatus.CAPACITY:
                yield decoder.take()
    except CorruptStoreError:
        if decoder.row_count:
            yield decoder.take()
        raise
    if decoder.row_count:
        yield decoder.take()


def read_store(
    store_path: str | os.PathLike[str],
    columns: Iterable[str] = DEFAULT_COLUMNS,
    *,
    config: StoreConfig | str | None = None,
    **selection: Any,
) -> ColumnBatches:
    """The messages of a whole store, cold or live, as one stream of record batches.

    Args:
        store_path: the store's directory.
        columns: as for `read`.
        config: settings of the store, as for `open_store`.
        **selection: further arguments of `read`.

    Returns:
        as `read`; each reading has the messages that the store had when this was called.
    """
    names = tuple(columns)
    splits = plan(store_path, topics=selection.get("topics"), config=config)
    empty = ColumnDecoder(names, row_max=1).take()
    return ColumnBatches(
        empty, lambda: (batch for split in splits for batch in read(split, names, **selection))
    )
