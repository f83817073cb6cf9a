"""What is wrong with the small files of a store: its tables and its checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from rmqcore.doctor.verify_files import config_value, newest_store_ms
from rmqcore.errors import CorruptStoreError, is_bad_sector
from rmqcore.files.store_checkpoint import StoreCheckpoint
from rmqcore.files.store_dir import StoreDir
from rmqcore.native.format._numbers import CHECKPOINT_SIZE
from rmqcore.scan.plan import LogPlan

#: what is gone with a file of ``config/`` that has no readable generation
TOLD_BY: Final = {
    "consumerOffset.json": "how far each group has come (groups begin as new ones do)",
    "delayOffset.json": "which delayed messages were delivered",
    "storeMark.json": "where log and queues ended (fewer losses are noticed)",
    "subscriptionGroup.json": "the groups' settings",
    "topics.json": "the topics' settings",
}


def other_generation(path: Path) -> Path:
    """The backup of a file of ``config/``, or the file of a backup."""
    if path.name.endswith(".bak"):
        return path.with_name(path.name.removesuffix(".bak"))
    return path.with_name(path.name + ".bak")


def is_readable_json(path: Path) -> bool:
    """True when a file of ``config/`` is there and can be read.

    Raises:
        OSError: the disk refuses to give it: that is no damage which a repair could mend.
    """
    try:
        config_value(path)
    except ValueError:
        return False
    except OSError as error:
        if is_bad_sector(error):
            raise
        return False
    return True


def checkpoint_problem(directory: StoreDir, log: LogPlan | None) -> str:
    """What is wrong with the checkpoint; empty for nothing.

    Args:
        directory: of the store.
        log: whose records its times are compared with; None when a writer goes on with it.
    """
    checkpoint = StoreCheckpoint(directory.checkpoint)
    try:
        found = checkpoint.load()
    except CorruptStoreError as error:
        return error.reason
    if not found:
        return ""
    if directory.checkpoint.stat().st_size != CHECKPOINT_SIZE:
        return f"it has {directory.checkpoint.stat().st_size} bytes, not {CHECKPOINT_SIZE}"
    latest = max(checkpoint.times_ms)
    newest = 0 if log is None else newest_store_ms(log, latest)
    if newest and latest > newest:
        return f"its times go up to {latest}, the newest record's is {newest}"
    return ""
