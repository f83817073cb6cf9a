"""The sizes of a store's files, also where some files have lost their length."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

from rmqcore.config import StoreConfig
from rmqcore.doctor.log_survey import survey_log
from rmqcore.doctor.lost_messages import lost_messages
from rmqcore.doctor.swapped_files import in_place
from rmqcore.errors import ConfigError
from rmqcore.files.mapped_file_queue import file_size_of, numbered_files
from rmqcore.files.store_dir import StoreDir
from rmqcore.recovery.geometry import fitted_config

_LOG_SIZE = "mapped_file_size_commit_log"
#: Which directory has the queues whose files have the size of a setting.
_QUEUE_SIZES = {
    "mapped_file_size_consume_queue": "consume_queue",
    "mapper_file_size_batch_consume_queue": "batch_consume_queue",
}
#: RocketMQ keeps positions in a file in 32 bits
_FILE_SIZE_MAX = (1 << 31) - 1


def lenient_config(config: StoreConfig, directory: StoreDir) -> StoreConfig:
    """The configuration with the sizes of the files, or where those are damaged, as it was given.

    Args:
        config: as it was given.
        directory: of the store.

    Raises:
        ConfigError: a size that was given is not that on which the files agree.
        CorruptStoreError: there are consume queues without a log.
    """
    try:
        return fitted_config(_without_strangers(config, directory), directory)
    except ConfigError as error:
        if _agree(_files_of(error.field, directory)):
            raise
    return _given(config, directory)


def _without_strangers(config: StoreConfig, directory: StoreDir) -> StoreConfig:
    """The configuration with the size of the log files that lie where their records say.

    One that was put there by hand, with a name of its own, has no say.
    """
    files = numbered_files(directory.commit_log)
    believed = in_place(files)
    if _LOG_SIZE in config.explicit or len(believed) == len(files):
        return config
    (common, _), *_ = Counter(size for _, _, size in believed).most_common(1)
    if common and not any((start - believed[0][0]) % common for start, _, _ in believed):
        return config.with_settings({_LOG_SIZE: common})
    return config


def _files_of(field: str, directory: StoreDir) -> list[list[tuple[int, Path, int]]]:
    """The files whose size a setting tells, those of each directory in order."""
    if field == _LOG_SIZE:
        return [numbered_files(directory.commit_log)]
    if field in _QUEUE_SIZES:
        root = getattr(directory, _QUEUE_SIZES[field])
        return [numbered_files(queue) for queue in sorted(root.glob("*/*"))]
    index = (path for path in directory.index.iterdir() if path.name.isdigit())
    return [[(0, path, path.stat().st_size)] for path in index]


def _agree(directories: list[list[tuple[int, Path, int]]]) -> bool:
    """True when the files agree on a size: one ends where the next begins, or two have it."""
    follow = any(
        before[0] + before[2] == after[0]
        for files in directories
        for before, after in pairwise(files)
    )
    lengths = Counter(size for files in directories for _, _, size in files if size)
    return follow or (len(directories) > 1 and max(lengths.values(), default=0) > 1)


def _given(config: StoreConfig, directory: StoreDir) -> StoreConfig:
    sizes: dict[str, object] = {}
    found = file_size_of(numbered_files(directory.commit_log))
    if found is not None and _LOG_SIZE not in config.explicit:
        sizes[_LOG_SIZE] = found
    for name in _QUEUE_SIZES:
        lengths = sorted(size for files in _files_of(name, directory) for _, _, size in files)
        if lengths and name not in config.explicit:
            sizes[name] = lengths[len(lengths) // 2]
    return config.with_settings(sizes)


def refuse_cut_log(config: StoreConfig, directory: StoreDir) -> None:
    """Refuse a log whose only file was cut short: consume queues lead to records behind its end.

    Where zeros follow its last record, or an end-of-file record ends with it, it has its length,
    and what queues lead to is another file's, or another store's.

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
    if len(beyond) > 1 and not _ends_as_made(files, config, directory):
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


def _ends_as_made(
    files: list[tuple[int, Path, int]], config: StoreConfig, directory: StoreDir
) -> bool:
    """Whether the only file of a log ends as one does from which nothing was cut off."""
    ((start, _, length),) = files
    if not length:
        return False
    (found,) = survey_log(
        directory.path,
        files,
        length,
        gap_min=0,
        verify_crc_property=config.force_verify_prop_crc,
    )
    return found.ends_in_blank or (found.end < start + length and found.used_behind == 0)
