"""A store whose repair is unfinished: whoever opens it is told, and has to decide.

Half repaired, it may lack queues or an index that the repair has taken out, and what is put into it
can neither be repaired further nor undone.
"""

from __future__ import annotations

import logging

from rmqcore.config import OnCorruption
from rmqcore.errors import RepairUnfinishedError
from rmqcore.files.store_dir import StoreDir

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
