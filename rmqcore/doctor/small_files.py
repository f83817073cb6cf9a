"""What is wrong with the small files of a store: its tables and its checkpoint."""

from __future__ import annotations

from pathlib import Path

from rmqcore.doctor.verify_files import config_value
from rmqcore.errors import CorruptStoreError
from rmqcore.files.store_checkpoint import StoreCheckpoint
from rmqcore.files.store_dir import StoreDir
from rmqcore.native.format._numbers import CHECKPOINT_SIZE


def other_generation(path: Path) -> Path:
    """The backup of a file of ``config/``, or the file of a backup."""
    if path.name.endswith(".bak"):
        return path.with_name(path.name.removesuffix(".bak"))
    return path.with_name(path.name + ".bak")


def is_readable_json(path: Path) -> bool:
    """True when a file of ``config/`` is there and can be read."""
    try:
        config_value(path)
    except (ValueError, OSError):
        return False
    return True


def checkpoint_problem(directory: StoreDir, last_timestamp_ms: int) -> str:
    """What is wrong with the checkpoint; empty for nothing.

    Args:
        directory: of the store.
        last_timestamp_ms: store time of the log's last record.
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
    times = (
        checkpoint.physic_msg_timestamp_ms,
        checkpoint.logics_msg_timestamp_ms,
        checkpoint.index_msg_timestamp_ms,
    )
    if last_timestamp_ms and max(times) > last_timestamp_ms:
        return f"its times go up to {max(times)}, the last record's is {last_timestamp_ms}"
    return ""
