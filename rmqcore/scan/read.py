"""Reading splits as record batches."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Unpack, cast

from rmqcore.config import StoreConfig
from rmqcore.errors import CorruptRecordError, CorruptStoreError
from rmqcore.native.columns._arrow import ColumnBatch, ColumnBatches
from rmqcore.native.columns._columns import COLUMNS, ColumnDecoder
from rmqcore.native.format._next_record import ScanStatus
from rmqcore.scan.any_log import open_any_log, select
from rmqcore.scan.log_walk import Damage, LogWalk
from rmqcore.scan.lost_records import say_what_is_lost
from rmqcore.scan.queue_walk import QueueWalk
from rmqcore.scan.selection import SELECTION_NAMES, RowFilter, Selection, reusable
from rmqcore.scan.shown_topics import shown
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
OnDamage = Callable[[Damage], None]


def read(
    split: Split,
    columns: Iterable[str] = DEFAULT_COLUMNS,
    *,
    verify_crc: bool = False,
    plain_bodies: bool = False,
    batch_rows: int = 4096,
    batch_bytes: int = 16 << 20,
    delays_ms: tuple[int, ...] = DELAYS_MS,
    on_damage: OnDamage | None = None,
    **selection: Unpack[Selection],
) -> ColumnBatches:
    """The messages of a split as a stream of record batches, in log order.

    Args:
        split: from `plan`, or from what `select` gives for the same selection.
        columns: names out of `rmqcore.scan.COLUMNS`; only these are decoded.
        verify_crc: refuse a body that contradicts its CRC; the column ``crc_ok`` only says so.
        plain_bodies: decompress bodies that are stored compressed.
        batch_rows: at most this many rows in a batch.
        batch_bytes: a batch is made of at most this many bytes of log.
        delays_ms: delay of level 1, 2, ..., for the tags code of delayed messages.
        on_damage: called for each damaged place, which is passed over, and for each body that is to
            be decompressed and is not what it says; None raises there.
        **selection: only these messages: see `Selection`.

    Returns:
        a stream to iterate over, or to hand to anything that takes Arrow, as often as is wanted.

    Raises:
        ValueError: an unknown column.
        TypeError: an unknown name in the selection.
        CorruptRecordError, CorruptStoreError: when the stream comes there; all rows before it are
            handed out.
        RecordsGoneError: when the stream comes there.
    """
    names = tuple(columns)
    wanted = reusable(selection)

    def begin() -> tuple[ColumnDecoder, RowFilter]:
        chosen = RowFilter(**wanted)
        decoder = ColumnDecoder(
            names,
            row_max=batch_rows,
            byte_max=batch_bytes,
            rows=chosen,
            verify_crc=verify_crc,
            plain_bodies=plain_bodies,
            delays_ms=delays_ms,
        )
        return decoder, chosen

    # raises now what is wrong with the arguments
    begin()
    empty = ColumnDecoder(names, row_max=1).take()

    def batches_of(part: Split, told: OnDamage | None) -> Iterator[ColumnBatch]:
        decoder, chosen = begin()
        if part.units is None:
            walk = LogWalk(part, on_damage=told).run(decoder.decode)
        else:
            walk = QueueWalk(part, chosen, on_damage=told).run(decoder)
        return _batches(decoder, walk)

    def batches() -> Iterator[ColumnBatch]:
        if not plain_bodies or on_damage is None:
            return batches_of(split, on_damage)
        return _past_bad_bodies(split, batches_of, on_damage)

    return ColumnBatches(empty, batches)


def _past_bad_bodies(
    split: Split,
    batches_of: Callable[[Split, OnDamage | None], Iterator[ColumnBatch]],
    on_damage: OnDamage,
) -> Iterator[ColumnBatch]:
    """The batches of a split without the rows whose bodies do not decompress, which are told.

    A batch with such a row is none at all, so what is in front of the row is decoded again.
    """
    refusals: list[BaseException] = []

    def told(damage: Damage) -> None:
        try:
            on_damage(damage)
        except BaseException as refusal:
            refusals.append(refusal)
            raise

    rest: Split | None = split
    try:
        while rest is not None:
            rest = yield from _up_to_bad_body(rest, batches_of, told, refusals)
    finally:
        # their tracebacks lead here
        refusals.clear()


def _up_to_bad_body(
    split: Split,
    batches_of: Callable[[Split, OnDamage | None], Iterator[ColumnBatch]],
    on_damage: OnDamage,
    refusals: list[BaseException],
) -> Generator[ColumnBatch, None, Split | None]:
    """The batches in front of the first such row; what is left of the split then.

    Args:
        split: what is read.
        batches_of: gives the batches of a part of it, and tells damage.
        on_damage: hears of each such row, and of other damage.
        refusals: what it has raised, which ends the reading.
    """
    count = 0
    try:
        for batch in batches_of(split, on_damage):
            yield batch
            count += 1
    except CorruptRecordError as error:
        if error in refusals:
            raise
        found = error
    else:
        return None
    at = found.phy_offset
    yield from islice(batches_of(split.part(split.start, at), _not_told), count, None)
    rest = split.part(at, split.end)
    columns = "phy_offset", "store_size"
    sizes = read(rest, columns, batch_rows=1, uncommitted=True, on_damage=_not_told)
    first = next(iter(sizes), None)
    if first is None or first.numbers("phy_offset")[0] != at:
        if at == split.start:
            raise found
        # it is gone meanwhile, which the walk tells
        return rest
    end = at + int(first.numbers("store_size")[0])
    try:
        # by itself: it may only have been too much for the batch
        yield from batches_of(split.part(at, end), on_damage)
    except CorruptRecordError as error:
        if error in refusals:
            raise
        path = f"{split.commit_log}/{split.file_start(at):020d}"
        on_damage(Damage(path, at, end, found.reason))
    return split.part(end, split.end)


def _not_told(_: Damage) -> None:
    """What is read once more was told before."""


def _batches(decoder: ColumnDecoder, walk: Iterator[ScanStatus]) -> Iterator[ColumnBatch]:
    try:
        for status in walk:
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
    archive: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    **settings: Any,
) -> ColumnBatches:
    """The messages of a whole store, cold or live, or of an archive, as one stream of batches.

    Of what was deleted with its topic, and of a broker's own topics that are not named, there are
    none.

    Args:
        store_path: the store's directory; or an archive, by its URL or its directory.
        columns: as for `read`.
        config: settings of the store, as for `open_store`.
        archive: of the store, as for `open_any_log`.
        storage_options: of the archive, as for `open_any_log`.
        **settings: further arguments of `read`, the selection among them.

    Returns:
        as `read`; each reading has the messages that the store had when this was called.
    """
    names = tuple(columns)
    log = open_any_log(store_path, config=config, archive=archive, storage_options=storage_options)
    say_what_is_lost(log)
    wanted = {name: value for name, value in settings.items() if name in SELECTION_NAMES}
    others = {name: value for name, value in settings.items() if name not in SELECTION_NAMES}
    selection = shown(log, reusable(cast("Selection", wanted)))
    splits = select(log, selection).splits()
    empty = ColumnDecoder(names, row_max=1).take()
    return ColumnBatches(
        empty,
        lambda: (batch for split in splits for batch in read(split, names, **others, **selection)),
    )
