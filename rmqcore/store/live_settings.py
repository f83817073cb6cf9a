"""Settings that change while a store is open."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from rmqcore.config import DYNAMIC_SETTINGS, StoreConfig
from rmqcore.config.store_config import resolve
from rmqcore.services.flush_policy import FlushPolicy

if TYPE_CHECKING:
    from rmqcore.native.log._tail import LogTail
    from rmqcore.services.flush import (
        CommitRealTimeService,
        FlushConsumeQueueService,
        FlushRealTimeService,
    )
    from rmqcore.services.retention import RetentionService


class LiveSettings:
    """`change_settings` of a store that is open for writing; a part of `DefaultMessageStore`."""

    config: StoreConfig
    _tail: LogTail
    _flush_policy: FlushPolicy
    _disk_timeout_s: float
    _retention: RetentionService
    _timed: tuple[FlushRealTimeService | FlushConsumeQueueService | CommitRealTimeService, ...]

    def change_settings(self, **settings: Any) -> None:
        """Change settings at once: all that are given, or none.

        Those are retention's, the intervals of flushes and commits, ``sync_flush_timeout_ms`` and
        ``max_message_size``; every other needs the store to be opened again.

        Args:
            settings: by RocketMQ's names, or those of `StoreConfig`.

        Raises:
            ConfigError: one may not change while the store is open, or is not what it should be.

        Source: RocketMQ broker/processor/AdminBrokerProcessor.java, updateBrokerConfig.
        """
        resolved, ignored = resolve(settings)
        for name, value in (*ignored.items(), *resolved.items()):
            if name not in DYNAMIC_SETTINGS:
                rule = "a setting that can change while the store is open; open it again with this"
                raise self.config.refused(name, value, rule)
        config = dataclasses.replace(self.config, **resolved)
        self.config = self._retention.clean_log.config = config
        self._tail.max_message_size = config.effective_max_message_size
        self._flush_policy = FlushPolicy.of(config)
        self._disk_timeout_s = self._flush_policy.timeout_ms / 1000
        for service in self._timed:
            service.configure(config)
