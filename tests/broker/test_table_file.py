"""Who waits for an entry of a broker's table is told when the file has it, or cannot have it."""

import asyncio
import errno
import threading

import pytest
from patience import TIMEOUT_S, until_async

from rmqcore.broker.state.table_file import TableFile

pytestmark = pytest.mark.engine


def test_what_changes_while_its_table_is_written_is_waited_for_once_more():
    class Table:
        def __init__(self):
            self.value, self.written, self.begun = 1, 0, threading.Event()
            self.goes_on = threading.Event()

        def persist(self):
            taken = self.value
            self.begun.set()
            assert self.goes_on.wait(TIMEOUT_S)
            self.written = taken

    async def scenario():
        table = Table()
        file = TableFile(table, lambda: None)
        file.changed("T")
        saving = asyncio.create_task(file.save())
        assert await asyncio.to_thread(table.begun.wait, TIMEOUT_S)
        table.value = 2
        file.changed("T")
        waiting = asyncio.create_task(file.saved("T"))
        table.goes_on.set()
        await saving
        assert (table.written, file.is_saved("T")) == (1, False)
        await file.save()
        assert (await waiting, table.written, file.is_saved("T")) == (True, 2, True)

    asyncio.run(scenario())


def test_who_asks_for_what_the_disk_has_refused_has_it_tried_again():
    class Table:
        changed, full = True, True

        def persist(self):
            if self.full:
                raise OSError(errno.ENOSPC, "full")

    async def scenario():
        table, asked = Table(), []
        file = TableFile(table, lambda: asked.append("save"))
        file.changed("T")
        with pytest.raises(OSError, match="full"):
            await file.save()
        assert not asked
        waiting = asyncio.create_task(file.saved("T"))
        await until_async(lambda: asked == ["save"], "somebody is asked to save")
        table.full = False
        await file.save()
        assert await waiting

    asyncio.run(scenario())
