"""Takes a repair back: every file is byte for byte what it was before."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rmqcore.config import StoreConfig, load_config
from rmqcore.doctor.journal import Journal
from rmqcore.doctor.plan import DoctorProgress
from rmqcore.files.store_dir import StoreDir, room_at


@dataclass(frozen=True, slots=True)
class UndoReport:
    """What an undo did.

    Attributes:
        path: the store's directory.
        changes: how many changes were taken back; 0 when no repair was noted.
        resumed: it went on with an undo that was interrupted.
    """

    path: Path
    changes: int = 0
    resumed: bool = False

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values, for JSON."""
        return {"path": str(self.path), "changes": self.changes, "resumed": self.resumed}


def undo(
    store_path: str | os.PathLike[str],
    *,
    config: StoreConfig | str | Path | None = None,
    progress: DoctorProgress | None = None,
) -> UndoReport:
    """Bring back what was there before the last repair, also before one that was interrupted.

    Args:
        store_path: the store's directory; its lock is taken.
        config: settings of the store, as for `open_store`; where the log lies is in the journal.
        progress: called with ("undo", changes done, changes in all).

    Raises:
        StoreNotFoundError: neither a store nor a journal of a repair is there.
        StoreLockedError: the store is open for writing.
        StoreError: the store was written to since the repair, or since it was interrupted.
        DiskFullError: no room. Run it again when there is.
    """
    loaded = load_config(config)
    directory = StoreDir(store_path, loaded.store_path_commit_log)
    journal = Journal.latest(directory)
    if journal is None:
        directory.require()
        Journal.clean_up(directory)
        return UndoReport(directory.path)
    directory = StoreDir(store_path, str(journal.commit_log))
    journal = Journal(directory, journal.root)
    directory.lock()
    try:
        resumed = journal.undoing
        journal.refuse_changed()
        tell = None if progress is None else partial(progress, "undo")
        with room_at(directory.path):
            changes = journal.undo(tell)
    finally:
        directory.unlock()
    return UndoReport(directory.path, changes, resumed)
