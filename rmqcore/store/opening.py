"""`open_store`: opens a store directory for writing or for reading."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from rmqcore.config import StoreConfig, load_config
from rmqcore.errors import ConfigError
from rmqcore.files.store_dir import StoreDir
from rmqcore.recovery.report import RecoveryProgress
from rmqcore.store.read_only_store import ReadOnlyMessageStore

if TYPE_CHECKING:
    from rmqcore.store.message_store import DefaultMessageStore

ConfigSource = StoreConfig | Mapping[str, object] | str | Path | None


@overload
def open_store(
    path: str | os.PathLike[str],
    *,
    mode: Literal["a"] = "a",
    config: ConfigSource = None,
    profile: str | None = None,
    create: bool = True,
    progress: Callable[[RecoveryProgress], None] | None = None,
    **settings: Any,
) -> DefaultMessageStore: ...


@overload
def open_store(
    path: str | os.PathLike[str],
    *,
    mode: Literal["r"],
    config: ConfigSource = None,
    profile: str | None = None,
    create: bool = True,
    progress: Callable[[RecoveryProgress], None] | None = None,
    **settings: Any,
) -> ReadOnlyMessageStore: ...


def open_store(
    path: str | os.PathLike[str],
    *,
    mode: Literal["a", "r"] = "a",
    config: ConfigSource = None,
    profile: str | None = None,
    create: bool = True,
    progress: Callable[[RecoveryProgress], None] | None = None,
    **settings: Any,
) -> DefaultMessageStore | ReadOnlyMessageStore:
    """Open the RocketMQ message store in a directory.

    Args:
        path: the store's directory.
        mode: "a" creates a missing store, takes the lock and recovers; "r" reads a store, live or
            not, without a lock and without writing anything.
        config: a `StoreConfig`, the path of a ``broker.conf``, a mapping of settings, or None.
        profile: "embedded" (64 MiB log files, a small index) or "rocketmq" (RocketMQ's sizes) for
            a new store; an existing store's own sizes win.
        create: False refuses a missing store also in mode "a".
        progress: called with `RecoveryProgress` while a store is being recovered.
        settings: single settings by name, RocketMQ's or rmqcore's; they win over ``config``.

    Warns:
        ConfigWarning: at the first put into a SYNC_MASTER on which no `rmqcore.ha.HAService` runs.

    Raises:
        ArgumentError: ``path`` is no path, or empty.
        ConfigError: an unknown or contradictory setting, or one that contradicts the files.
        StoreLockedError: the store is open for writing elsewhere.
        StoreError: gevent or eventlet has replaced this process's threads, in mode "a".
        RepairUnfinishedError: a repair of the store is unfinished, in mode "a" and unless
            ``on_corruption`` says to go on.
        StoreNotFoundError: no store there, in mode "r" or with ``create=False``.
        CorruptStoreError: the log is damaged; nothing was changed.
        OSError: the system refused.
    """
    if mode not in ("a", "r"):
        raise ConfigError("mode", mode, '"a" to write, "r" to read')
    loaded = load_config(config, profile=profile, **settings)
    if mode == "r":
        return ReadOnlyMessageStore(path, loaded)
    if not create:
        StoreDir(path, loaded.store_path_commit_log).require()
    # who only reads does without what writes
    from rmqcore.store.message_store import DefaultMessageStore  # noqa: PLC0415

    store = DefaultMessageStore(path, loaded, progress=progress)
    store.warn_without_slaves()
    return store
