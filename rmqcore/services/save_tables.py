"""Saves the tables below ``config/`` every 5 seconds, when they have changed."""

from __future__ import annotations

import logging
from typing import Final

from rmqcore.files.config_tables import ConfigTable
from rmqcore.services.service import Service

#: Tables that have changed are saved this often, as in RocketMQ's broker.
SAVE_INTERVAL_S: Final = 5.0
_log = logging.getLogger("rmqcore")


class SaveTablesService(Service):
    """Writes each table that has changed every 5 seconds; one that cannot be is tried again.

    Source: RocketMQ broker/BrokerController.java, flushConsumerOffsetInterval.
    """

    def __init__(self, *tables: ConfigTable) -> None:
        super().__init__("SaveTablesService")
        self._tables = tables

    def run(self, now: float) -> float:
        """Write what has changed."""
        for table in self._tables:
            try:
                table.persist()
            except OSError:
                _log.exception("a table below config/ could not be written and is tried again")
        return SAVE_INTERVAL_S
