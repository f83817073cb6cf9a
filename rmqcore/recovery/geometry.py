"""File sizes of an existing store, taken from its files and compared with the configuration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from rmqcore._index import HEADER_SIZE, INDEX_ENTRY_SIZE, INDEX_SLOT_SIZE, index_file_size
from rmqcore.config import OnCorruption, StoreConfig
from rmqcore.errors import ConfigError, CorruptStoreError, Naming, is_bad_sector
from rmqcore.files.mapped_file_queue import file_size_of, numbered_files
from rmqcore.files.store_dir import StoreDir
from rmqcore.files.zeros import read_up_to

_QUEUES_LOOKED_AT = 64
_ENTRIES_A_SLOT = 4
_SLOTS_CHECKED = 4096
_CHAINS_CHECKED = 64
_FIRST_BYTES = 4096


def fitted_config(
    config: StoreConfig,
    directory: StoreDir,
    *,
    past_bad_sectors: bool = False,
    index: bool = True,
) -> StoreConfig:
    """The configuration with the sizes that the store's files have.

    Args:
        config: sizes that are not explicit give way to those of the files.
        directory: where the store's files lie.
        past_bad_sectors: an index file that the disk refuses to give says nothing. Only for who
            reads.
        index: also its geometry; who looks into no index needs none.

    Raises:
        ConfigError: an explicit size contradicts the files, or the index's geometry can neither
            be told from its length nor was given. The message says both sides.
        CorruptStoreError: the files have sizes that no configuration has, or there are consume
            queues without a log.
    """
    sizes: dict[str, object] = {}
    log_files = numbered_files(directory.commit_log)
    if not log_files and config.on_corruption is not OnCorruption.TRUNCATE:
        _refuse_lost_log(directory)
    _note_file_size(config, sizes, "mapped_file_size_commit_log", [log_files])
    for field, root in (
        ("mapped_file_size_consume_queue", directory.consume_queue),
        ("mapper_file_size_batch_consume_queue", directory.batch_consume_queue),
    ):
        _note_file_size(config, sizes, field, list(_some_queues(root)))
    if index:
        sizes |= _index_geometry(config, directory.index, past_bad_sectors)
    changed = {name: value for name, value in sizes.items() if getattr(config, name) != value}
    try:
        return config.with_settings(changed) if changed else config
    except ConfigError as error:
        if error.field not in changed:
            # what was given does not go with the files
            raise
        reason = f"its files have sizes that no store's have: {error}"
        raise CorruptStoreError(directory.path, -1, reason) from error


def is_of_index(error: ConfigError) -> bool:
    """True where `fitted_config` has refused the geometry of the index, and nothing else."""
    return error.field.startswith("max_hash_slot_num")


def _refuse_lost_log(directory: StoreDir) -> None:
    """Refuse a store whose consume queues have units, but whose log has no file.

    An opening would delete all that is derived, a rebuild too.

    Raises:
        CorruptStoreError: it is one.
    """
    for root in (directory.consume_queue, directory.batch_consume_queue):
        for files in _some_queues(root):
            with files[0][1].open("rb") as stream:
                used = stream.read(_FIRST_BYTES).strip(b"\0")
            if used:
                raise CorruptStoreError(
                    directory.commit_log,
                    -1,
                    f"no log file is here, but {files[0][1].parent} has messages. Set "
                    "store_path_commit_log (storePathCommitLog) to the directory where the log "
                    'is, or open with on_corruption="truncate" to go on without a log',
                )


def _note_file_size(
    config: StoreConfig,
    sizes: dict[str, object],
    field: str,
    directories: list[list[tuple[int, Path, int]]],
) -> None:
    """Note the size that most files have; of two that as many have, the larger: files are cut."""
    votes: Counter[int] = Counter()
    for files in directories:
        if (size := file_size_of(files)) is not None:
            votes[size] += len(files)
    if not votes:
        return
    found = max(votes, key=lambda size: (votes[size], size))
    wanted = getattr(config, field)
    if field not in config.explicit:
        sizes[field] = found
        return
    lengths = {size for files in directories for _, _, size in files}
    if found != wanted and wanted not in lengths:
        raise config.refused(
            field,
            wanted,
            f"the store's files have {found} bytes ({directories[0][0][1].parent}); "
            "leave the setting out, or open the store that it belongs to",
        )


def _some_queues(root: Path) -> Iterator[list[tuple[int, Path, int]]]:
    """The files of some queues below a directory of topics."""
    looked = 0
    if not root.is_dir():
        return
    for topic in root.iterdir():
        for directory in topic.iterdir() if topic.is_dir() else ():
            files = numbered_files(directory)
            if files:
                yield files
                looked += 1
            if looked >= _QUEUES_LOOKED_AT:
                return


def _index_geometry(
    config: StoreConfig, directory: Path, past_bad_sectors: bool
) -> dict[str, object]:
    if not directory.is_dir():
        return {}
    lengths = Counter(
        length
        for path in directory.iterdir()
        if path.name.isascii() and path.name.isdigit() and path.is_file()
        # a power cut may leave the name of a new file without its length
        if (length := path.stat().st_size)
    )
    if not lengths:
        return {}
    most = max(lengths.values())
    likely = sorted((one for one, count in lengths.items() if count == most), reverse=True)
    slots, entries = config.max_hash_slot_num, config.max_index_num
    if index_file_size(slots, entries) in likely:
        return {}
    if {"max_hash_slot_num", "max_index_num"} <= config.explicit:
        raise ConfigError(
            "max_hash_slot_num, max_index_num",
            (slots, entries),
            f"they make index files of {index_file_size(slots, entries)} bytes; those in "
            f"{directory} have {likely[0]}",
        )
    for length in likely:
        told = _geometry_of(length, config, directory, past_bad_sectors)
        if told is not None:
            slots, entries = told
            return {"max_hash_slot_num": slots, "max_index_num": entries}
    raise _unknown_geometry(directory, likely[0])


def _geometry_of(
    length: int, config: StoreConfig, directory: Path, past_bad_sectors: bool
) -> tuple[int, int] | None:
    """Slots and entries of files of a length, by what was given and by their chains."""
    slots, entries = config.max_hash_slot_num, config.max_index_num
    rest = length - HEADER_SIZE
    if "max_hash_slot_num" in config.explicit:
        entries = (rest - INDEX_SLOT_SIZE * slots) // INDEX_ENTRY_SIZE
    elif "max_index_num" in config.explicit:
        slots = (rest - INDEX_ENTRY_SIZE * entries) // INDEX_SLOT_SIZE
    else:
        slots = rest // (INDEX_SLOT_SIZE + INDEX_ENTRY_SIZE * _ENTRIES_A_SLOT)
        entries = _ENTRIES_A_SLOT * slots
    if slots < 1 or entries < 2 or index_file_size(slots, entries) != length:
        return None
    fitting = unfitting = 0
    for path in directory.iterdir():
        if path.name.isdigit() and path.is_file() and path.stat().st_size == length:
            try:
                good, bad = _chains_that_fit(path, slots, entries)
            except OSError as error:
                if not (past_bad_sectors and is_bad_sector(error)):
                    raise
                continue
            fitting, unfitting = fitting + good, unfitting + bad
    # a slot may have rotted; by chance next to none fits
    return None if unfitting > fitting else (slots, entries)


def _unknown_geometry(directory: Path, length: int) -> ConfigError:
    return ConfigError(
        "max_hash_slot_num, max_index_num",
        None,
        f"the geometry of the index files in {directory} ({length} bytes) cannot be told from "
        "their length; give both, as maxHashSlotNum and maxIndexNum of the broker that wrote them, "
        "or, when they were cut short, see what rmqcore doctor plan STORE says",
    )


def _chains_that_fit(path: Path, slots: int, entries: int) -> tuple[int, int]:
    """How many of some used slots lead to an entry whose hash belongs to them, and how many not."""
    with path.open("rb", buffering=0) as stream, Naming(path):
        fd = stream.fileno()
        head = read_up_to(fd, 0, HEADER_SIZE + INDEX_SLOT_SIZE * min(slots, _SLOTS_CHECKED))
        good = bad = 0
        for slot in range(min(slots, _SLOTS_CHECKED)):
            at = HEADER_SIZE + INDEX_SLOT_SIZE * slot
            number = int.from_bytes(head[at : at + INDEX_SLOT_SIZE], "big")
            if not number:
                continue
            entry_at = HEADER_SIZE + INDEX_SLOT_SIZE * slots + INDEX_ENTRY_SIZE * number
            entry_hash = int.from_bytes(read_up_to(fd, entry_at, 4), "big")
            fits = number < entries and entry_hash % slots == slot
            good, bad = good + fits, bad + (not fits)
            if good + bad >= _CHAINS_CHECKED:
                break
    return good, bad
