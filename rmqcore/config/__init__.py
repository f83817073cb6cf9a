"""Settings: what they are, how they are checked, and RocketMQ's names for them.

Never opens a store's files; `rmqcore.recovery.geometry` compares sizes with existing files.

Floor: F2.
"""

from rmqcore.config.broker_conf import load_config, parse_broker_conf, to_broker_conf
from rmqcore.config.store_config import (
    DYNAMIC_SETTINGS,
    RETENTION_SETTINGS,
    BrokerRole,
    FlushDiskType,
    OnCorruption,
    StoreConfig,
)

__all__ = [
    "DYNAMIC_SETTINGS",
    "RETENTION_SETTINGS",
    "BrokerRole",
    "FlushDiskType",
    "OnCorruption",
    "StoreConfig",
    "load_config",
    "parse_broker_conf",
    "to_broker_conf",
]
