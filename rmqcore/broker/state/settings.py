"""Settings of a broker under RocketMQ's own names; the store's are `rmqcore.config`'s."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from rmqcore.config.setting import checked_value, setting
from rmqcore.errors import ConfigError
from rmqcore.remoting.codes import MASTER_ID, PERM_READ, PERM_WRITE

_PERMISSION_MAX: Final = 15
_PORT_MAX: Final = 65_535
#: A setting with one of these words in its name is told to nobody: RocketMQ's own, its plug-ins'.
_SECRET: Final = re.compile(
    "secret|passw|credential|access_?key|token|authentication_?user|private_?key", re.IGNORECASE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """Settings of one broker. ``BrokerConfig()`` has RocketMQ's defaults.

    Source: RocketMQ common/BrokerConfig.java and remoting/netty/NettyServerConfig.java.
    """

    #: the cluster that the broker belongs to.
    broker_cluster_name: str = setting("DefaultCluster", "brokerClusterName")
    #: its name, shared by a master and its slaves.
    broker_name: str = setting("broker-a", "brokerName")
    #: 0 is the master, any other number one of its slaves.
    broker_id: int = setting(0, "brokerId", least=0)
    #: the address that clients connect to, as the name servers tell it.
    broker_ip1: str = setting("127.0.0.1", "brokerIP1")
    #: the address that slaves connect to; empty is ``broker_ip1``.
    broker_ip2: str = setting("", "brokerIP2")
    #: the address that the broker listens on; empty is ``broker_ip1``.
    bind_address: str = setting("", "bindAddress")
    #: its port; 0 takes any that is free.
    listen_port: int = setting(10911, "listenPort", least=0, most=_PORT_MAX)
    #: the port of replication; 0 is the port behind ``listen_port``.
    ha_listen_port: int = setting(0, "haListenPort", least=0, most=_PORT_MAX)
    #: addresses of the name servers, separated by ``;``.
    namesrv_addr: str = setting("", "namesrvAddr")
    #: bits of what clients may do: 4 read, 2 write.
    broker_permission: int = setting(
        PERM_READ | PERM_WRITE, "brokerPermission", least=0, most=_PERMISSION_MAX, dynamic=True
    )
    #: the most queues that a topic gets which is created by its first message.
    default_topic_queue_nums: int = setting(8, "defaultTopicQueueNums", least=1, dynamic=True)
    #: whether the first message of an unknown topic creates it.
    auto_create_topic_enable: bool = setting(True, "autoCreateTopicEnable", dynamic=True)
    #: whether the topic named as the cluster passes its queues on.
    cluster_topic_enable: bool = setting(True, "clusterTopicEnable")
    #: whether the topic named as the broker passes its queues on.
    broker_topic_enable: bool = setting(True, "brokerTopicEnable")
    #: whether the first heart-beat of an unknown consumer group creates it.
    auto_create_subscription_group: bool = setting(
        True, "autoCreateSubscriptionGroup", dynamic=True
    )
    #: whether there is a topic for traces.
    trace_topic_enable: bool = setting(False, "traceTopicEnable")
    #: the topic for traces.
    msg_trace_topic_name: str = setting("RMQ_SYS_TRACE_TOPIC", "msgTraceTopicName")
    #: whether a pull waits for the next message.
    long_polling_enable: bool = setting(True, "longPollingEnable", dynamic=True)
    #: milliseconds that a pull waits without long polling.
    short_polling_time_mills: int = setting(1000, "shortPollingTimeMills", least=1, dynamic=True)
    #: bytes of records that one pull gets; the first message always comes.
    max_transfer_bytes_on_message_in_memory: int = setting(
        256 * 1024, "maxTransferBytesOnMessageInMemory", least=1
    )
    #: whether a slave answers pulls, and a master sends readers that are far behind there.
    slave_read_enable: bool = setting(False, "slaveReadEnable", dynamic=True)
    #: percent of the machine's memory that a reader may be behind, before it is far behind.
    access_message_in_memory_max_ratio: int = setting(
        40, "accessMessageInMemoryMaxRatio", least=0, most=100, dynamic=True
    )
    #: whether consumers are told when their group changes.
    notify_consumer_ids_changed_enable: bool = setting(
        True, "notifyConsumerIdsChangedEnable", dynamic=True
    )
    #: whether half messages are refused.
    reject_transaction_message: bool = setting(False, "rejectTransactionMessage", dynamic=True)
    #: milliseconds after which a half message is asked for.
    transaction_time_out: int = setting(6000, "transactionTimeOut", least=1, dynamic=True)
    #: how often a half message is asked for.
    transaction_check_max: int = setting(15, "transactionCheckMax", least=1, dynamic=True)
    #: milliseconds between two rounds of asking.
    transaction_check_interval: int = setting(
        30_000, "transactionCheckInterval", least=1, dynamic=True
    )
    #: whether messages may ask for a time of delivery.
    timer_wheel_enable: bool = setting(True, "timerWheelEnable", dynamic=True)
    #: seconds that a time of delivery may be away.
    timer_max_delay_sec: int = setting(3 * 86_400, "timerMaxDelaySec", least=1, dynamic=True)
    #: whether senders may take timer messages back.
    recall_message_enable: bool = setting(False, "recallMessageEnable", dynamic=True)
    #: whether they may also while ``broker_permission`` lets nobody write.
    allow_recall_when_broker_not_writeable: bool = setting(
        True, "allowRecallWhenBrokerNotWriteable", dynamic=True
    )
    #: percent of the pops that look first at what comes again.
    pop_from_retry_probability: int = setting(
        20, "popFromRetryProbability", least=0, most=100, dynamic=True
    )
    #: the same for pops that go by priority.
    pop_from_retry_probability_for_priority: int = setting(
        0, "popFromRetryProbabilityForPriority", least=0, most=100, dynamic=True
    )
    #: whether messages of the highest number come first, else those of 0.
    priority_order_asc: bool = setting(True, "priorityOrderAsc", dynamic=True)
    #: whether what comes again of a queue has a queue of its own.
    use_separate_retry_queue: bool = setting(False, "useSeparateRetryQueue", dynamic=True)
    #: whether consumers may filter by SQL92 expressions.
    enable_property_filter: bool = setting(False, "enablePropertyFilter", dynamic=True)
    #: whether replies are stored, besides being passed on.
    store_reply_message_enable: bool = setting(True, "storeReplyMessageEnable", dynamic=True)
    #: the region that answers name.
    region_id: str = setting("DefaultRegion", "regionId")
    #: milliseconds between two registrations with the name servers; 10 to 60 seconds count.
    register_name_server_period: int = setting(30_000, "registerNameServerPeriod", least=1)
    #: milliseconds that a registration may take.
    register_broker_timeout_mills: int = setting(24_000, "registerBrokerTimeoutMills", least=1)
    #: milliseconds that a send may wait for the log before others are refused.
    os_page_cache_busy_time_out_mills: int = setting(
        1000, "osPageCacheBusyTimeOutMills", least=1, dynamic=True
    )
    #: how many light queues (``%LMQ%`` names) messages may name; those that there are go on.
    max_lmq_consume_queue_num: int = setting(20_000, "maxLmqConsumeQueueNum", least=0, dynamic=True)
    #: seconds without a byte after which a connection is closed.
    server_channel_max_idle_time_seconds: int = setting(
        120, "serverChannelMaxIdleTimeSeconds", least=1
    )
    #: milliseconds between two writes of the consumer offsets.
    flush_consumer_offset_interval: int = setting(5000, "flushConsumerOffsetInterval", least=1)

    @classmethod
    def from_properties(cls, properties: Mapping[str, object]) -> Self:
        """Take a broker's settings out of a ``broker.conf``; others are left to whom they concern.

        Args:
            properties: names of RocketMQ's, or the fields of this class; text or values.

        Raises:
            ConfigError: a value is not what its setting takes.
        """
        values: dict[str, Any] = {}
        for name, value in properties.items():
            own = name if name in _SETTINGS else _BY_JAVA_NAME.get(name)
            if own is not None:
                values[own] = checked_value(_SETTINGS[own], value)
        return cls(**values)

    def changed(self, properties: Mapping[str, str]) -> Self:
        """The settings after a change of those that may change while the broker runs.

        Raises:
            ConfigError: one of them may not, is none, or is not what it should be.
        """
        values: dict[str, Any] = {}
        for name, value in properties.items():
            own = broker_property(name)
            if own is None or not _SETTINGS[own].metadata["dynamic"]:
                raise ConfigError(name, value, "a setting that can change while the broker runs")
            values[own] = checked_value(_SETTINGS[own], value)
        return dataclasses.replace(self, **values)

    def as_properties(self) -> dict[str, str]:
        """All settings under RocketMQ's names, as text."""
        return {
            item.metadata["java"]: _as_text(getattr(self, name)) for name, item in _SETTINGS.items()
        }

    @property
    def name_servers(self) -> tuple[str, ...]:
        """The addresses of the name servers, one by one."""
        return tuple(part.strip() for part in self.namesrv_addr.split(";") if part.strip())

    @property
    def address(self) -> str:
        """The address that clients connect to."""
        return f"{self.broker_ip1}:{self.listen_port}"

    @property
    def is_slave(self) -> bool:
        """Whether this broker follows a master."""
        return self.broker_id != MASTER_ID

    @property
    def ha_address(self) -> str:
        """The address that slaves connect to."""
        port = self.ha_listen_port or self.listen_port + 1
        return f"{self.broker_ip2 or self.broker_ip1}:{port}"


def broker_property(name: str) -> str | None:
    """The field of `BrokerConfig` that a name of RocketMQ's, or of its own, means; None: none."""
    return name if name in _SETTINGS else _BY_JAVA_NAME.get(name)


def is_secret(name: str) -> bool:
    """Tell whether a setting is one that nobody is told."""
    return _SECRET.search(name) is not None


_SETTINGS: Final = {item.name: item for item in dataclasses.fields(BrokerConfig)}
_BY_JAVA_NAME: Final = {item.metadata["java"]: name for name, item in _SETTINGS.items()}


def _as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
