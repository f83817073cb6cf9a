"""`Resync`: a life in which a broker's store gets the log of another master, as an operator would.

Source: `rmqcore ha resync --yes`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from rmqcore.config import StoreConfig, load_config
from rmqcore.files.store_dir import StoreDir
from rmqcore.ha.resync import cut, find_divergence
from rmqcore.services.runner import Runner
from rmqcore.simulation.plan import FILE_SIZES
from rmqcore.store.message_store import DefaultMessageStore


class Resync:
    """Cuts a log where it is not its new master's; the master has to run.

    Attributes:
        store: what it has open at this moment; None when nothing.
    """

    def __init__(self, path: Path, master: str, runner: Runner) -> None:
        """Prepare; `start` does it.

        Args:
            path: the store's directory.
            master: the replication port of the new master, ``host:port``.
            runner: of the services of the store while it is open.
        """
        self.store: DefaultMessageStore | None = None
        self._path = path
        self._master = master
        self._runner = runner

    async def start(self) -> None:
        """Compare and cut; the next life follows the new master.

        Raises:
            OSError: the master cannot be reached.
        """
        config = load_config(FILE_SIZES, broker_role="SLAVE")
        self.store = await asyncio.to_thread(self._open, config)
        try:
            found = await find_divergence(self.store.followed_log, self._master)
        finally:
            await self.stop()
        if not found.in_order:
            await asyncio.to_thread(cut, StoreDir(self._path), found)
            short = config.with_settings({"on_corruption": "truncate"})
            self.store = await asyncio.to_thread(self._open, short)
            await self.stop()

    async def stop(self) -> None:
        """Close what it has open."""
        store, self.store = self.store, None
        if store is not None:
            await asyncio.to_thread(store.close)

    def _open(self, config: StoreConfig) -> DefaultMessageStore:
        return DefaultMessageStore(self._path, config, runner=self._runner)
