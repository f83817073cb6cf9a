"""Who appends what tasks have staged: this process, or the one that has the store open.

An append is known by its name and number, so whoever repeats it, with this owner or the next, adds
what is missing and nothing twice.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, cast

from rmqcore.config import StoreConfig, load_config
from rmqcore.errors import StoreError, StoreLockedError
from rmqcore.files.store_dir import StoreDir, make_directory
from rmqcore.recovery.geometry import fitted_config
from rmqcore.store.append_ledger import ANONYMOUS, Ledger, appending, staging_root
from rmqcore.store.sharing.channel import ChannelLostError
from rmqcore.store.sharing.staged_calls import call_owner, owner_config
from rmqcore.store.sharing.staged_files_in import listed
from rmqcore.store.staged_appends import is_under_way
from rmqcore.store.staged_files import StagedFile
from rmqcore.world import monotonic_s, sleep

_LOCK_POLL_S = 0.1


def check_free(store_path: str, *, repeatable: bool) -> None:
    """Refuse early when nobody would append what is staged, or rows might be appended twice.

    Args:
        store_path: the store's directory.
        repeatable: the append can be told from others, so that run again it appends nothing.

    Raises:
        StoreLockedError: the store is open in a process that takes no staged records.
        StoreError: an append without a job id died in its commit, and this one may be the same.
    """
    root = staging_root(store_path)
    under_way = is_under_way(root)
    directory = StoreDir(store_path)
    if directory.is_locked() and not under_way and owner_config(store_path) is None:
        # raises while the owner is alive; the lock of one that has just ended is free
        directory.lock()
        directory.unlock()
    for ledger in () if repeatable or under_way else appending(root):
        if ledger.name.startswith(ANONYMOUS):
            raise StoreError(
                f"{store_path}: the append {ledger.name} did not come to the end of its commit; a "
                f"part is in the log. `rmqcore spark finish {store_path}` appends the rest; do "
                "not run that job again then. With the option jobId a job is simply run again"
            )


def config_of(store_path: str, config: str | None) -> StoreConfig:
    """The settings that records are made for: the running owner's, or those of the files.

    Args:
        store_path: the store's directory.
        config: settings of the store, as for `open_store`.
    """
    running = owner_config(store_path)
    if running is not None:
        return running
    loaded = load_config(config)
    return fitted_config(loaded, StoreDir(store_path, loaded.store_path_commit_log))


def append_staged(
    store_path: str,
    config: StoreConfig | str | None,
    name: str,
    number: int,
    files: list[StagedFile],
    *,
    lock_timeout_s: float = 0,
) -> int:
    """Append staged files to the log, in their order, unless it has been done.

    Args:
        store_path: the store's directory; the store is made when missing.
        config: settings of the store, as for `open_store`.
        name: of the series that the append belongs to.
        number: of the append in its series; later ones have larger numbers.
        files: what to append.
        lock_timeout_s: how long to wait for another writer's end.

    Returns:
        messages appended by this call.

    Raises:
        StoreLockedError: another process has the store, and takes no staged records; nothing was
            appended.
        StoreError: the store refuses; the same call goes on where this one ended.
    """
    make_directory(staging_root(store_path))
    args = name, number, listed(store_path, files)
    return cast("int", _called(store_path, config, lock_timeout_s, "append_staged", *args))


def finish_appends(
    store_path: str | os.PathLike[str],
    *,
    config: StoreConfig | str | Path | None = None,
    forget_days: float | None = None,
) -> dict[str, int]:
    """Finish every append that died inside its commit.

    Args:
        store_path: the store's directory.
        config: settings of the store, as for `open_store`.
        forget_days: also forget the ids of jobs that were appended this many days ago: such a job
            would be appended again. None keeps them all.

    Returns:
        for each append that was finished its name, and how many messages were missing.

    Raises:
        StoreNotFoundError: no store is there.
        StoreLockedError: another process has the store, and takes no staged records; nothing was
            appended.
        StoreError: the staged rows are gone.
    """
    StoreDir(store_path, load_config(config).store_path_commit_log).require()
    found = _called(store_path, config, 0, "finish_staged", forget_days)
    return cast("dict[str, int]", found)


def _called(
    store_path: str | os.PathLike[str],
    config: StoreConfig | str | Path | None,
    lock_timeout_s: float,
    method: str,
    *args: Any,
) -> Any:
    """Make a call of whoever has the store, until one owner has come to its end."""
    deadline = monotonic_s() + lock_timeout_s
    while True:
        try:
            return call_owner(store_path, config, method, *args)
        except ChannelLostError:
            # its next owner, or this process, finds in the ledger how far it came
            pass
        except StoreLockedError:
            if monotonic_s() >= deadline:
                raise
        sleep(_LOCK_POLL_S)


def forget_attempts(folder: Path) -> None:
    """Remove what tasks have staged that were tried again, or ran twice; their job is appended."""
    shutil.rmtree(folder, ignore_errors=True)


def abort_staged(store_path: str, name: str, folder: Path) -> None:
    """Remove what a failed job has staged, unless the ledger has decided that it is appended.

    An owner that does not answer any more may be appending it: then all stays, for a week.

    Args:
        store_path: directory of the store.
        name: of the series of appends; see `append_staged`.
        folder: with what the job's tasks have staged.

    Raises:
        StoreError: the ledger cannot be read.
    """
    root = staging_root(store_path)
    if not is_under_way(root) and not Ledger(root, name).is_appending:
        shutil.rmtree(folder, ignore_errors=True)
