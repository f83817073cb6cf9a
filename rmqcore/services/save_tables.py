"""Saves the tables below ``config/`` every 5 seconds, when they have changed."""

from __future__ import annotations

from typing import Final

from rmqcore.errors import do_each
from rmqcore.files.config_tables import ConfigTable
from rmqcore.services.service import Service

#: Tables that have changed are saved this often, as in RocketMQ's broker.
SAVE_INTERVAL_S: Final = 5.0


class SaveTablesService(Service):
    """Writes each table that has changed every 5 seconds.

    Source: RocketMQ broker/BrokerController.java, flushConsumerOffsetInterval.
    """

    tries_again = True

    def __init__(self, *tables: ConfigTable) -> None:
        super().__init__("SaveTablesService")
        self._tables = tables

    def run(self, now: float) -> float:
        """Write what has changed.

        Raises:
            OSError: a table cannot be written; the others are.
        """
        do_each(table.persist for table in self._tables)
        return SAVE_INTERVAL_S
