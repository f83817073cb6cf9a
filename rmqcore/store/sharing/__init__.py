"""One store for several processes, without a daemon: one of them owns it and serves the others.

Whoever gets the lock opens the store; who does not sends its calls to the owner, over a socket in
the store's directory and with the frames of `remoting`. Never keeps a state of its own. What that
promises stands in docs/sharing.md.

Floor: F7.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rmqcore.recovery.report import RecoveryProgress
    from rmqcore.store.opening import ConfigSource
    from rmqcore.store.sharing.shared_store import SharedStore


def open_shared(
    path: str | os.PathLike[str],
    *,
    config: ConfigSource = None,
    profile: str | None = None,
    create: bool = True,
    progress: Callable[[RecoveryProgress], None] | None = None,
    owner_timeout_ms: float = 10_000,
    **settings: Any,
) -> SharedStore:
    """Open a store that several processes use at the same time, each with this call.

    One process owns the store, the others are its clients; when it ends, another takes over. All of
    them may put and read by the same calls, from any thread, and after a fork.

    Args:
        path: the store's directory.
        config: as in `open_store`, and so are ``profile`` and ``settings``. Those of the owner
            hold, but for ``flush_disk_type="SYNC_FLUSH"``, which holds for the puts of who has set
            it; give all processes the same.
        profile: defaults of what is not given.
        create: False refuses a missing store.
        progress: called with `RecoveryProgress` while this process recovers the store.
        owner_timeout_ms: an owner that has answered nothing for so long hangs.
        **settings: single settings by name; they win over ``config``.

    Raises:
        ArgumentError: ``path`` is no path, or empty.
        ConfigError: as `open_store`, or no time.
        StoreLockedError: the store is open for writing in a process that does not share it.
        OwnerTimeoutError: the owner is stopped, or hangs.
        StoreError: gevent or eventlet has replaced this process's threads.
        StoreNotFoundError: no store there, with ``create=False``.
        CorruptStoreError: the log is damaged; nothing was changed.
        OSError: the system refused.
    """
    from rmqcore.store.sharing.opening import open_handle  # noqa: PLC0415 - loads asyncio

    return open_handle(
        path,
        config=config,
        profile=profile,
        create=create,
        progress=progress,
        owner_timeout_ms=owner_timeout_ms,
        settings=settings,
    )
