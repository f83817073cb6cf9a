"""The index of a cold store, derived from its log alone.

What is there stays untouched until the new files are complete and on disk; then the two directories
change places in one step.

Floor: F6; imports _dispatch, config, files.*, services.index_service, services.index_tags, scan.*.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from rmqcore._codec import decode_record
from rmqcore._dispatch import DispatchBatch
from rmqcore._message import MessageExt
from rmqcore.config import StoreConfig
from rmqcore.errors import CorruptIndexError
from rmqcore.files.mapped_file import OpenFiles
from rmqcore.scan.cold_store import RebuildReport, cold, fresh_beside, swap_in
from rmqcore.scan.digest import tree_digest
from rmqcore.scan.log_walk import Damage, LogWalk
from rmqcore.scan.plan import LogPlan
from rmqcore.services.index_service import IndexService
from rmqcore.services.index_tags import index_has_tags
from rmqcore.services.wall_clock import wall_clock_ms


def rebuild_index(
    store_path: str | os.PathLike[str],
    *,
    config: StoreConfig | str | Path | None = None,
    skip_damage: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> RebuildReport:
    """Derive every index file of a cold store from its log.

    Keeps the rule that wrote the existing index: RocketMQ 5.4 and later also index a message's
    tags. Files keep their names, which are the times of their creation; the digests do not count
    names. Entries of messages that the log no longer has are left out.

    Args:
        store_path: the store's directory; its lock is taken.
        config: settings of the store, as for `open_store`.
        skip_damage: pass over damaged records; their keys are lost.
        progress: called with (bytes of log done, bytes in all).

    Raises:
        StoreLockedError: the store is open for writing.
        CorruptRecordError: the log is damaged; nothing was changed.
        DiskFullError: no room; nothing was changed.
    """
    with cold(store_path, config) as log:
        return _rebuild(log, skip_damage, progress)


def index_rule(log: LogPlan) -> bool:
    """True when the index has, or is to have, an entry for a message's tags."""
    old = open_index(log, log.directory.index)
    old.load()
    try:
        return index_has_tags(old, lambda offset: _message_at(log, offset))
    except CorruptIndexError:
        return True
    finally:
        old.close()


def open_index(
    log: LogPlan,
    directory: Path,
    clock_ms: Callable[[], int] = wall_clock_ms,
    *,
    writable: bool = False,
) -> IndexService:
    """The index files in a directory, with the geometry of the store."""
    return IndexService(
        directory,
        log.config.max_hash_slot_num,
        log.config.max_index_num,
        OpenFiles(),
        clock_ms=clock_ms,
        writable=writable,
    )


def _message_at(log: LogPlan, phy_offset: int) -> MessageExt | None:
    record = log.record_at(phy_offset)
    return None if record is None else decode_record(record)


def _rebuild(
    log: LogPlan, skip_damage: bool, progress: Callable[[int, int], None] | None
) -> RebuildReport:
    directory = log.directory.index
    report = RebuildReport("index", digest_before=tree_digest(directory, names=False))
    fresh = fresh_beside(directory)
    batch = DispatchBatch(index_tags=index_rule(log))
    index = open_index(
        log, fresh, lambda: int(batch.key_timestamps[0]) if batch.key_count else 0, writable=True
    )
    damaged: list[Damage] = []
    try:
        for number, split in enumerate(splits := log.splits()):
            for _ in LogWalk(split, on_damage=damaged.append if skip_damage else None).run(
                batch.scan
            ):
                index.dispatch(batch)
                report.records += batch.record_count
                batch.clear()
            if progress is not None:
                progress(sum(s.size for s in splits[: number + 1]), sum(s.size for s in splits))
    finally:
        batch.clear()
        index.close()
    report.damaged = [(damage.phy_offset, damage.reason) for damage in damaged]
    report.files = _rename_as_before(fresh, directory)
    report.digest_after = tree_digest(fresh, names=False)
    if log.start:
        report.notes.append("entries of messages that the log no longer has were left out")
    swap_in(fresh, directory)
    return report


def _rename_as_before(fresh: Path, old: Path) -> int:
    """Give the new files the names of the old ones, in order; how many files there are."""
    names = (
        sorted(path.name for path in old.iterdir() if path.name.isdigit()) if old.is_dir() else []
    )
    paths = sorted(fresh.iterdir())
    moved = [path.rename(path.with_name(f".{path.name}")) for path in paths]
    last = ""
    for number, path in enumerate(moved):
        name = names[number] if number < len(names) else path.name[1:]
        if name <= last:
            name = f"{int(last) + 1:0{len(last)}d}"
        path.rename(path.with_name(name))
        last = name
    return len(moved)
