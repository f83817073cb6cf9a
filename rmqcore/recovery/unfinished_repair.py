"""A store whose repair or restoration is unfinished: whoever opens it is told, and has to decide.

Half repaired, it may lack queues or an index that the repair has taken out, and what is put into it
can neither be repaired further nor undone.
"""

from __future__ import annotations

import logging

from rmqcore.config import OnCorruption
from rmqcore.errors import RepairUnfinishedError, StoreError
from rmqcore.files.store_dir import RESTORE_MARK, StoreDir

_log = logging.getLogger("rmqcore")


def report_unfinished_repair(directory: StoreDir, policy: OnCorruption | None) -> list[str]:
    """Say that a repair is unfinished: to the log, and as findings of a recovery.

    Args:
        directory: of the store.
        policy: what is done about damage; None for a store that is only read.

    Raises:
        RepairUnfinishedError: one is, and the policy is to raise.
    """
    journal = directory.unfinished_repair()
    if journal is None or (directory.is_locked() and not directory.is_ours):
        # whoever has the lock either goes on with the repair or has been warned
        return []
    if policy is OnCorruption.RAISE:
        raise RepairUnfinishedError(directory.path, journal)
    finding = f"a repair of the store, or its undo, is unfinished: {journal}"
    _log.warning("%s", finding)
    return [finding]


def refuse_unfinished_restore(directory: StoreDir) -> None:
    """Refuse a store that has only a part of its log yet: what was put would have others' places.

    Raises:
        StoreError: a restoration was begun and is not finished.
    """
    url = directory.unfinished_restore()
    if url is not None:
        raise StoreError(
            f"{directory.path}: it is being restored from {url}, or that was interrupted; nothing "
            f"was changed; rmqcore restore {url} {directory.path} goes on with it. To use what has "
            f"come so far, remove {directory.path / RESTORE_MARK}; it cannot go on then"
        )
