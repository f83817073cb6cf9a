"""`TableFile`: writes a table of the broker, and tells who waits when it is written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from rmqcore.files.config_tables import ConfigTable
from rmqcore.remoting import RequestRefusedError, ResponseCode


class TableFile:
    """The file of a table, and which of the table's entries it may not have yet.

    Changes that come while it is written are written together. Used on the event loop.

    Args:
        table: what is written.
        save_soon: lets somebody call `save`.
    """

    def __init__(self, table: ConfigTable, save_soon: Callable[[], None]) -> None:
        self._table = table
        self._save_soon = save_soon
        #: how often each entry has changed that the file may not have
        self._unsaved: dict[str, int] = {}
        self._written = asyncio.Event()
        self._refused = False

    @property
    def path(self) -> Path:
        """The file."""
        return self._table.path

    def changed(self, name: str) -> None:
        """Note that an entry was put or removed."""
        self._unsaved[name] = self._unsaved.get(name, 0) + 1

    def is_saved(self, name: str) -> bool:
        """Tell whether a crash finds an entry as it is."""
        return name not in self._unsaved

    async def saved(self, name: str) -> bool:
        """Wait until an entry is in the file as it is; False when that cannot be written now."""
        if self._refused and name in self._unsaved:
            # who asks again need not wait for the next time
            self._save_soon()
        while name in self._unsaved:
            await self._written.wait()
            if self._refused:
                return False
        return True

    async def expect_saved(self, *names: str) -> None:
        """As `saved`, for several entries.

        Raises:
            RequestRefusedError: it cannot be written; answers with code 14.
        """
        for name in names:
            if not await self.saved(name):
                remark = f"{name} cannot be written to the disk now, and is tried again"
                raise RequestRefusedError(ResponseCode.SERVICE_NOT_AVAILABLE, remark)

    async def save(self) -> None:
        """Write the table if it has changed.

        Raises:
            OSError: it cannot be written.
        """
        if not self._unsaved and not self._table.changed:
            return
        taken, refused = dict(self._unsaved), True
        try:
            await asyncio.to_thread(self._table.persist)
            # what has changed once more meanwhile is not in the file yet
            for name in [name for name in taken if self._unsaved[name] == taken[name]]:
                del self._unsaved[name]
            refused = False
        finally:
            self._refused = refused
            written, self._written = self._written, asyncio.Event()
            written.set()
