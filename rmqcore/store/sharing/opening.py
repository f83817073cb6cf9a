"""`open_handle`: what `open_shared` does, with all that a shared store needs loaded."""

from __future__ import annotations

import os
import queue
import select
import selectors
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from rmqcore.arguments import directory_path
from rmqcore.config import load_config
from rmqcore.errors import ConfigError, StoreError
from rmqcore.files.store_dir import StoreDir, make_directory
from rmqcore.services.runner import refuse_greenlets
from rmqcore.store.sharing.shared_handle import Progress
from rmqcore.store.sharing.shared_store import SharedMessageStore, SharedStore
from rmqcore.world import REAL, World

if TYPE_CHECKING:
    from rmqcore.store.opening import ConfigSource

#: A day: an owner that has answered nothing for so long does not come back.
_TIMEOUT_MS_MAX: Final = 86_400_000


def open_handle(
    path: str | os.PathLike[str],
    *,
    config: ConfigSource,
    profile: str | None,
    create: bool,
    progress: Progress | None,
    owner_timeout_ms: float,
    settings: Mapping[str, Any],
    world: World = REAL,
) -> SharedStore:
    """Open a handle of a shared store: what `rmqcore.open_shared` does, which says what it raises.

    Args:
        path: see `rmqcore.open_shared`.
        config: see `rmqcore.open_shared`.
        profile: see `rmqcore.open_shared`.
        create: see `rmqcore.open_shared`.
        progress: see `rmqcore.open_shared`.
        owner_timeout_ms: see `rmqcore.open_shared`.
        settings: see `rmqcore.open_shared`.
        world: its clocks, and those of the store where this process owns it.
    """
    refuse_greenlets(path)
    _refuse_green_waits(path)
    _check_timeout(owner_timeout_ms)
    loaded = load_config(config, profile=profile, **settings)
    loaded.check_for_writing()
    whole = directory_path("path", path).absolute()
    if create:
        make_directory(whole)
    else:
        StoreDir(whole, loaded.store_path_commit_log).require()
    opened = SharedMessageStore(whole, loaded, progress, owner_timeout_ms, world)
    return cast("SharedStore", opened)


def _refuse_green_waits(path: str | os.PathLike[str]) -> None:
    """Refuse where a library has replaced what an event loop waits by, and left threads alone.

    Its own wait lets greenlets of one thread go on; in the thread of an owner there is none.
    """
    for place, waits in (
        ("select", select.select),
        ("selectors", selectors.DefaultSelector),
        ("queue", queue.SimpleQueue),
    ):
        maker = waits.__module__.partition(".")[0]
        if maker.removeprefix("_") != place:
            raise StoreError(
                f"{os.fspath(path)}: {maker} has replaced the module {place}, by which processes "
                "that share a store wait for each other; do not patch the standard library"
            )


def _check_timeout(owner_timeout_ms: object) -> None:
    """Refuse what no time is, or one that never ends: NaN is no time."""
    is_number = isinstance(owner_timeout_ms, int | float) and not isinstance(owner_timeout_ms, bool)
    if not (is_number and 0 < cast("float", owner_timeout_ms) <= _TIMEOUT_MS_MAX):
        raise ConfigError(
            "owner_timeout_ms",
            owner_timeout_ms,
            f"milliseconds, above 0 and up to {_TIMEOUT_MS_MAX}",
        )
