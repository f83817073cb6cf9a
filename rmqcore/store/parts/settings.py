"""The settings of an open store: those that may change meanwhile, and what they mean for puts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from rmqcore.config import DYNAMIC_SETTINGS, BrokerRole, StoreConfig
from rmqcore.config.store_config import resolve
from rmqcore.services.flush_policy import FlushPolicy


class Settings:
    """The settings that a store was opened with, and their changes since.

    Attributes:
        config: all settings, as they are now.
        policy: when a put returns, and how its bytes get to the disk.
        is_slave: whether the store follows a master's log, and takes no puts.
    """

    def __init__(self, config: StoreConfig) -> None:
        self.config = config
        self.policy = FlushPolicy.of(config)
        self.is_slave = config.broker_role is BrokerRole.SLAVE

    def change(self, settings: Mapping[str, Any]) -> StoreConfig:
        """Change some settings: all that are given, or none.

        Args:
            settings: by RocketMQ's names, or those of `StoreConfig`.

        Returns:
            all settings as they are now.

        Raises:
            ConfigError: one may not change while the store is open, or is not what it should be.
        """
        resolved, ignored = resolve(settings)
        for name, value in (*ignored.items(), *resolved.items()):
            if name not in DYNAMIC_SETTINGS:
                rule = "a setting that can change while the store is open; open it again with this"
                raise self.config.refused(name, value, rule)
        self.config = dataclasses.replace(self.config, **resolved)
        self.policy = FlushPolicy.of(self.config)
        return self.config
