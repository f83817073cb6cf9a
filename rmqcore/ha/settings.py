"""Settings of replication under RocketMQ's own names; role and file sizes are the store's."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from rmqcore.config.setting import checked_value, setting
from rmqcore.config.store_config import is_true
from rmqcore.errors import ConfigError

#: RocketMQ 4.9's name of a setting that 5.x has renamed
_OLD_NAMES: Final = {"haSlaveFallbehindMax": "haMaxGapNotInSync"}


@dataclass(frozen=True, slots=True, kw_only=True)
class HAConfig:
    """Settings of replication. ``HAConfig()`` has RocketMQ's defaults.

    Source: RocketMQ store/config/MessageStoreConfig.java.
    Differs: ``inSyncReplicas`` is 2: a SYNC_MASTER waits for one slave, as that of 4.9 does. The 1
        of RocketMQ 5 acknowledges without any. A frame carries up to 256 KiB, not 32: a slave that
        catches up does so faster.
    """

    #: address of the master's replication port; empty asks the name servers.
    ha_master_address: str = setting("", "haMasterAddress")
    #: milliseconds without a word after which either side says that it is there.
    ha_send_heartbeat_interval: int = setting(5000, "haSendHeartbeatInterval", least=1)
    #: milliseconds without a word after which either side closes the connection.
    ha_housekeeping_interval: int = setting(20_000, "haHousekeepingInterval", least=1)
    #: bytes of log that a frame carries at most; a slave's buffer takes 4 MiB.
    ha_transfer_batch_size: int = setting(
        256 * 1024, "haTransferBatchSize", least=1, most=4 * 1024 * 1024 - 12
    )
    #: bytes that a slave may lack and still be counted on. 4.9: haSlaveFallbehindMax.
    ha_max_gap_not_in_sync: int = setting(256 * 1024 * 1024, "haMaxGapNotInSync", least=1)
    #: copies, the master's among them, that a put into a SYNC_MASTER waits for.
    in_sync_replicas: int = setting(2, "inSyncReplicas", least=1)
    #: milliseconds that a put into a SYNC_MASTER waits for its slaves.
    slave_timeout: int = setting(3000, "slaveTimeout", least=1)
    #: whether the bytes a second are bounded that a master sends to one slave.
    ha_flow_control_enable: bool = setting(False, "haFlowControlEnable")
    #: at most this many bytes a second, where that is on.
    max_ha_transfer_byte_in_second: int = setting(
        100 * 1024 * 1024, "maxHaTransferByteInSecond", least=1
    )
    #: milliseconds after which a slave that was refused or lost its master tries again.
    ha_retry_interval: int = setting(5000, least=1)

    @classmethod
    def from_properties(cls, properties: Mapping[str, object]) -> Self:
        """Take what concerns replication out of a ``broker.conf``; the rest is others'.

        Raises:
            ConfigError: a value is not what its setting takes, or one is given twice; a controller
                is to choose the master, which there is none here to do.
        """
        controlled = properties.get("enableControllerMode")
        if is_true(controlled):
            rule = "false: no controller chooses the master here, brokerRole and brokerId say it"
            raise ConfigError("enableControllerMode", controlled, rule)
        values: dict[str, Any] = {}
        for given, value in properties.items():
            name = _OLD_NAMES.get(given, given)
            own = name if name in _SETTINGS else _BY_JAVA_NAME.get(name)
            if own is None:
                continue
            checked = checked_value(_SETTINGS[own], value)
            if values.setdefault(own, checked) != checked:
                raise ConfigError(given, value, f"contradicts {own}={values[own]!r}: give it once")
        return cls(**values)


_SETTINGS: Final = {item.name: item for item in dataclasses.fields(HAConfig)}
_BY_JAVA_NAME: Final = {
    item.metadata["java"]: name for name, item in _SETTINGS.items() if item.metadata["java"]
}
