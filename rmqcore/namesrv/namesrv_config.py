"""What can be set on a name server, under RocketMQ's own names."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

from rmqcore.config.setting import checked_value, setting
from rmqcore.errors import ConfigError
from rmqcore.java.properties import format_property, parse_properties, read_properties

_PORT_MAX = 65535
#: Settings of RocketMQ that have no effect here: threads, Netty, and where Java keeps its files.
_WITHOUT_EFFECT = frozenset(
    {
        "clientRequestThreadPoolNums",
        "clientRequestThreadPoolQueueCapacity",
        "configBlackList",
        "configStorePath",
        "defaultThreadPoolNums",
        "defaultThreadPoolQueueCapacity",
        "enableShutdownGracefully",
        "productEnvName",
        "rocketmqHome",
        "serverAsyncSemaphoreValue",
        "serverCallbackExecutorThreads",
        "serverNettyWorkerGroupEnable",
        "serverOnewaySemaphoreValue",
        "serverPooledByteBufAllocatorEnable",
        "serverSelectorThreads",
        "serverSocketBacklog",
        "serverSocketRcvBufSize",
        "serverSocketSndBufSize",
        "serverWorkerThreads",
        "shutdownWaitTimeSeconds",
        "unRegisterBrokerQueueCapacity",
        "useEpollNativeSelector",
        "writeBufferHighWaterMark",
        "writeBufferLowWaterMark",
    }
)
#: Settings of RocketMQ for what is not served here; they may only be false.
_ONLY_FALSE = frozenset({"clusterTest", "enableControllerInNamesrv"})


@dataclass(frozen=True, slots=True, kw_only=True)
class NamesrvConfig:
    """Settings of a name server; those marked dynamic may be changed by a request.

    Source: NamesrvConfig, NettyServerConfig.
    """

    #: address to listen on; Java listens on all
    bind_address: str = setting("127.0.0.1", "bindAddress")
    #: 0 for any that is free
    listen_port: int = setting(9876, "listenPort", least=0, most=_PORT_MAX)
    #: seconds without a byte after which a connection is closed
    server_channel_max_idle_time_s: int = setting(120, "serverChannelMaxIdleTimeSeconds", least=1)
    #: the file that keeps the key-value configuration; empty keeps it in memory
    kv_config_path: str = setting("", "kvConfigPath")
    #: milliseconds between two looks for brokers that have become silent
    scan_not_active_broker_interval_ms: int = setting(5000, "scanNotActiveBrokerInterval", least=1)
    #: whether routes name the order configuration of their topic
    order_message_enable: bool = setting(False, "orderMessageEnable", dynamic=True)
    #: whether a broker that registers is told the order configuration
    return_order_topic_config_to_broker: bool = setting(
        True, "returnOrderTopicConfigToBroker", dynamic=True
    )
    #: whether the lowest slave of a broker without master is shown in its place
    support_acting_master: bool = setting(False, "supportActingMaster", dynamic=True)
    #: whether the brokers of a group are told that its lowest id has changed
    notify_min_broker_id_changed: bool = setting(False, "notifyMinBrokerIdChanged", dynamic=True)
    #: whether a topic that a registration does not name any more loses its route
    delete_topic_with_broker_registration: bool = setting(
        False, "deleteTopicWithBrokerRegistration", dynamic=True
    )
    #: whether the list of all topics is given out
    enable_all_topic_list: bool = setting(True, "enableAllTopicList", dynamic=True)
    #: whether the other lists of topics are given out
    enable_topic_list: bool = setting(True, "enableTopicList", dynamic=True)
    #: whether routes are refused for a while after the start
    need_wait_for_service: bool = setting(False, "needWaitForService", dynamic=True)
    #: seconds of that while
    wait_for_service_s: int = setting(45, "waitSecondsForService", least=0, dynamic=True)

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, checked_value(field, getattr(self, field.name)))

    @classmethod
    def from_properties(cls, properties: Mapping[str, object]) -> Self:
        """Make the settings that RocketMQ's names stand for.

        Raises:
            ConfigError: a name is unknown, or a value is wrong.
        """
        fields = _by_java_name()
        values: dict[str, object] = {}
        for name, value in properties.items():
            if name in fields:
                values[fields[name].name] = value
            elif name in _ONLY_FALSE and str(value).strip().lower() != "false":
                raise ConfigError(name, value, "false: it is not served")
            elif name not in _WITHOUT_EFFECT | _ONLY_FALSE:
                raise ConfigError(name, value, "a property of RocketMQ's name server")
        return cls(**values)  # type: ignore[arg-type] # checked one by one

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a properties file, as `mqnamesrv -c` does.

        Raises:
            ConfigError: a name is unknown, or a value is wrong.
            OSError: the file cannot be read.
        """
        return cls.from_properties(parse_properties(read_properties(Path(path))))

    def changed(self, properties: Mapping[str, str]) -> Self:
        """Apply what a request asks to change: all of it, or nothing.

        Raises:
            ConfigError: a name is not among the dynamic ones, or a value is wrong.
        """
        fields = _by_java_name()
        dynamic = {name for name, field in fields.items() if field.metadata["dynamic"]}
        for name, value in properties.items():
            if name not in dynamic:
                raise ConfigError(name, value, f"one of {', '.join(sorted(dynamic))}")
        changes: dict[str, Any] = {fields[name].name: properties[name] for name in properties}
        return dataclasses.replace(self, **changes)

    def to_properties(self) -> str:
        """The settings as text of a properties file, without paths: it may go to anybody."""
        lines = []
        for name, field in _by_java_name().items():
            value = getattr(self, field.name)
            if name != "kvConfigPath":
                text = str(value).lower() if isinstance(value, bool) else str(value)
                lines.append(format_property(name, text))
        return "\n".join(lines) + "\n"


@cache
def _by_java_name() -> dict[str, dataclasses.Field[Any]]:
    return {field.metadata["java"]: field for field in dataclasses.fields(NamesrvConfig)}
