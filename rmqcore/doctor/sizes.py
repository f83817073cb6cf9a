"""The sizes of a store's files, also where some files have lost their length."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from rmqcore.config import StoreConfig
from rmqcore.doctor.lost_messages import lost_messages
from rmqcore.errors import ConfigError
from rmqcore.files.mapped_file_queue import file_size_of, numbered_files
from rmqcore.files.store_dir import StoreDir
from rmqcore.recovery.geometry import fitted_config

_LOG_SIZE = "mapped_file_size_commit_log"
#: RocketMQ keeps positions in a file in 32 bits
_FILE_SIZE_MAX = (1 << 31) - 1


def lenient_config(config: StoreConfig, directory: StoreDir) -> StoreConfig:
    """The configuration with the sizes of the files, or where those are damaged, as it was given.

    Raises:
        ConfigError: the size that was given is not that of the log.
        CorruptStoreError: there are consume queues without a log.
    """
    try:
        return fitted_config(config, directory)
    except ConfigError:
        if _follow_each_other(numbered_files(directory.commit_log)):
            raise
    return _given(config, directory)


def _follow_each_other(files: list[tuple[int, Path, int]]) -> bool:
    """True when a log file ends where the next begins: its length is that of all."""
    return any(before[0] + before[2] == after[0] for before, after in pairwise(files))


def _given(config: StoreConfig, directory: StoreDir) -> StoreConfig:
    sizes: dict[str, object] = {}
    found = file_size_of(numbered_files(directory.commit_log))
    if found is not None and _LOG_SIZE not in config.explicit:
        sizes[_LOG_SIZE] = found
    for name, root in (
        ("mapped_file_size_consume_queue", directory.consume_queue),
        ("mapper_file_size_batch_consume_queue", directory.batch_consume_queue),
    ):
        files = [file for queue in sorted(root.glob("*/*")) for file in numbered_files(queue)]
        lengths = sorted(size for _, _, size in files)
        if lengths and name not in config.explicit:
            sizes[name] = lengths[len(lengths) // 2]
    return config.with_settings(sizes)


def refuse_cut_log(config: StoreConfig, directory: StoreDir) -> None:
    """Refuse a log whose only file ends before the records that consume queues lead to.

    Args:
        config: with the sizes of the files.
        directory: of the store.

    Raises:
        ConfigError: it does.
    """
    files = numbered_files(directory.commit_log)
    if len(files) != 1:
        return
    start, path, length = files[0]
    beyond = lost_messages(
        directory,
        config.mapped_file_size_consume_queue,
        [(start + length, start + _FILE_SIZE_MAX)],
        {},
    )
    if len(beyond) > 1:
        furthest = max(one.phy_offset + one.size for one in beyond) - start
        usual = (
            (StoreConfig.embedded().mapped_file_size_commit_log, "what rmqcore makes"),
            (StoreConfig().mapped_file_size_commit_log, "RocketMQ's default"),
        )
        sizes = [f"{size} is {whose}" for size, whose in usual if size >= furthest]
        rule = (
            f"the only log file, {path}, has {length} bytes, but queues lead to {len(beyond)} "
            f"messages behind them: it was cut short. Give the size that it had, as in "
            f"-c mappedFileSizeCommitLog={1 << (furthest - 1).bit_length()}; "
            f"it is at least {furthest}"
        )
        raise ConfigError(_LOG_SIZE, length, "; ".join([rule, *sizes]))
