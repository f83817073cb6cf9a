"""`RequestModes`: whether a group pulls a topic or pops it."""

from __future__ import annotations

from collections.abc import Callable

from rmqcore.broker.state.budgets import PAIRS_MAX, BudgetExceededError, check_name
from rmqcore.broker.state.table_file import TableFile
from rmqcore.files.request_mode_table import MessageRequestModeTable


class RequestModes:
    """The modes that an administrator has set, and their file.

    Args:
        table: the store's.
        on_change: called after each change, to write the table.
    """

    def __init__(self, table: MessageRequestModeTable, on_change: Callable[[], None]) -> None:
        self.table = table
        self.file = TableFile(table, on_change)
        self._on_change = on_change

    async def put(self, topic: str, group: str, mode: str, share: int) -> None:
        """Set how a group gets a topic; it is in the file when this returns.

        Args:
            topic: by name; it need not exist.
            group: by name; it need not exist.
            mode: ``PULL`` or ``POP``.
            share: with how many others a client shares its queues when it pops.

        Raises:
            RequestRefusedError: it cannot be written; answers with code 14.
            BudgetExceededError: it is new, and there are too many.
            RequestRefusedError: a name is too long; answers with code 1.
        """
        check_name("a topic's name", topic)
        check_name("a group's name", group)
        if len(self.table) >= PAIRS_MAX and not self.table.has(topic, group):
            raise BudgetExceededError("modes of groups", PAIRS_MAX)
        self.table.put(topic, group, mode, share)
        self.file.changed(topic)
        self._on_change()
        await self.file.expect_saved(topic)
