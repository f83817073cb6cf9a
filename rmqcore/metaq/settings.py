"""The values of MetaQ's ini file: system, zookeeper and topic sections as plain data.

Every key of the original is here under its own name in words, a unit suffix where it has one.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from rmqcore.errors import ConfigError
from rmqcore.metaq.ini import evaluate_bool, evaluate_int

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
_CPUS = os.cpu_count() or 1


def _number(
    key: str, default: int, *, low: int = 0, high: int = INT_MAX, required: bool = False
) -> Any:
    metadata = {"key": key, "required": required, "low": low, "high": high}
    return field(default=default, metadata=metadata)


def _switch(key: str, default: bool) -> Any:
    return field(default=default, metadata={"key": key})


def _text(key: str, default: str) -> Any:
    return field(default=default, metadata={"key": key})


def _text_from(key: str, factory: Callable[[], str]) -> Any:
    return field(default_factory=factory, metadata={"key": key})


def _local_ip() -> str:
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"


def _home_meta() -> str:
    return str(Path("~/meta").expanduser())


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemConfig:
    """``[system]``. Source: MetaQ MetaConfig.java."""

    #: number of this broker, part of every message id
    broker_id: int = _number("brokerId", 0, high=1023, required=True)
    #: partitions of a topic that says nothing else
    num_partitions: int = _number("numPartitions", 1, low=1, required=True)
    #: appends that may be unflushed; 0 or less: every append waits for the disk, in groups
    unflush_threshold: int = _number("unflushThreshold", 1000, low=-INT_MAX - 1, required=True)
    #: longest time between an append and its flush
    unflush_interval_ms: int = _number("unflushInterval", 10_000, low=-INT_MAX - 1, required=True)
    #: a segment that reaches this size is closed and the next one begun
    max_segment_size: int = _number("maxSegmentSize", 1 << 30, low=1, required=True)
    #: bytes of one reply to a get
    max_transfer_size: int = _number("maxTransferSize", 1 << 20, low=1, required=True)
    #: port of the text protocol
    server_port: int = _number("serverPort", 8123, high=65535)
    #: known, without meaning here
    dashboard_http_port: int = _number("dashboardHttpPort", 8120, high=65535)
    #: name that the original publishes
    host_name: str = _text_from("hostName", _local_ip)
    #: folder of the partitions
    data_path: str = _text_from("dataPath", _home_meta)
    #: folder of the transaction log; empty: data_path
    data_log_path: str = _text("dataLogPath", "")
    #: known, without meaning here
    get_process_thread_count: int = _number("getProcessThreadCount", 10 * _CPUS, low=1)
    #: known, without meaning here
    put_process_thread_count: int = _number("putProcessThreadCount", 10 * _CPUS, low=1)
    #: what becomes of old segments: `parse_delete_policy`
    delete_policy: str = _text("deletePolicy", "delete,168")
    #: when old segments are looked for: a Quartz cron expression
    delete_when: str = _text("deleteWhen", "0 0 6,18 * * ?")
    #: known, without meaning here: one thread runs every schedule
    quartz_thread_count: int = _number("quartzThreadCount", 5, low=1)
    #: transaction log checkpoints that are kept
    max_checkpoints: int = _number("maxCheckpoints", 3, low=1)
    #: time between two of them
    checkpoint_interval_ms: int = _number("checkpointInterval", 3_600_000, high=LONG_MAX)
    #: open transactions at most
    max_tx_timeout_timer_capacity: int = _number("maxTxTimeoutTimerCapacity", 30_000)
    #: longest life of a transaction
    max_tx_timeout_s: int = _number("maxTxTimeoutInSeconds", 60)
    #: transaction log: 0 the system decides, 1 each commit, 2 each second
    flush_tx_log_at_commit: int = _number("flushTxLogAtCommit", 1, high=2)
    #: take puts
    accept_publish: bool = _switch("acceptPublish", True)
    #: answer gets
    accept_subscribe: bool = _switch("acceptSubscribe", True)
    #: count puts and gets topic by topic
    stat: bool = _switch("stat", False)
    #: tell a consumer beyond the end where the end is
    update_consumer_offsets: bool = _switch("updateConsumerOffsets", False)
    #: open partitions in several threads
    load_message_stores_in_parallel: bool = _switch("loadMessageStoresInParallel", False)
    #: known, without meaning here: Java classes of consumer filters
    app_class_path: str = _text("appClassPath", "")

    def __post_init__(self) -> None:
        check_ranges(self)
        if not self.data_log_path:
            object.__setattr__(self, "data_log_path", self.data_path)
        _settle_paths(self, "data_path", "data_log_path")


@dataclass(frozen=True, slots=True, kw_only=True)
class ZkConfig:
    """``[zookeeper]``: where clients look for brokers. Source: MetaQ ZkUtils.java."""

    zk_connect: str = _text("zk.zkConnect", "")
    zk_session_timeout_ms: int = _number("zk.zkSessionTimeoutMs", 30_000)
    zk_connection_timeout_ms: int = _number("zk.zkConnectionTimeoutMs", 30_000)
    zk_sync_time_ms: int = _number("zk.zkSyncTimeMs", 5_000)
    zk_enable: bool = _switch("zk.zkEnable", True)
    zk_root: str = _text("zk.zkRoot", "/meta")

    def __post_init__(self) -> None:
        check_ranges(self)

    @property
    def discovery(self) -> bool:
        """Whether a server registers itself."""
        return bool(self.zk_connect) and self.zk_enable


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """``[topic=NAME]``; defaults are those of the system section. Source: MetaQ TopicConfig.java.

    Attributes:
        topic: the name; ``*`` in it stands for anything.
        filters: consumer group -> Java filter class, kept and never run.
    """

    topic: str
    num_partitions: int = _number("numPartitions", 1, low=1)
    unflush_threshold: int = _number("unflushThreshold", 1000, low=-INT_MAX - 1)
    unflush_interval_ms: int = _number("unflushInterval", 10_000, low=-INT_MAX - 1)
    data_path: str = _text_from("dataPath", _home_meta)
    delete_policy: str = _text("deletePolicy", "delete,168")
    delete_when: str = _text("deleteWhen", "0 0 6,18 * * ?")
    accept_publish: bool = _switch("acceptPublish", True)
    accept_subscribe: bool = _switch("acceptSubscribe", True)
    stat: bool = _switch("stat", False)
    filters: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_ranges(self)
        _settle_paths(self, "data_path")

    @classmethod
    def of(cls, topic: str, system: SystemConfig, **own: Any) -> TopicConfig:
        """Fill what a topic does not say itself from the system section.

        Args:
            topic: name of the topic.
            system: the section from which the rest is inherited.
            own: what the topic says itself, by field name.
        """
        names = {f.name for f in fields(cls) if "key" in f.metadata}
        inherited = {name: getattr(system, name) for name in names}
        return cls(topic=topic, **{**inherited, **own})


def _settle_paths(config: SystemConfig | TopicConfig, *names: str) -> None:
    """Have paths name the same place after the process has changed its directory."""
    for name in names:
        whole = Path(getattr(config, name)).expanduser().absolute()
        object.__setattr__(config, name, str(whole))


def check_ranges(config: SystemConfig | ZkConfig | TopicConfig) -> None:
    """Refuse numbers outside their range.

    Raises:
        ConfigError: names key, value and range.
    """
    for setting in fields(config):
        if "low" in setting.metadata:
            value = getattr(config, setting.name)
            low, high = setting.metadata["low"], setting.metadata["high"]
            if not low <= value <= high:
                raise ConfigError(setting.metadata["key"], value, f"from {low} to {high}")


def keys_of(config: type[Any]) -> dict[str, dataclasses.Field[Any]]:
    """Every key of a section with its field."""
    return {f.metadata["key"]: f for f in fields(config) if "key" in f.metadata}


def read_values(
    config: type[Any], section: str, values: Mapping[str, str], *, required: bool = True
) -> dict[str, Any]:
    """Turn the texts of one section into the arguments of its class; blank means not set.

    Args:
        config: dataclass of the section, whose fields are declared with their keys.
        section: its name, for errors.
        values: text by key.
        required: False lets keys be missing that must be there.

    Returns:
        values by the names of the class's fields.

    Raises:
        ConfigError: an unknown key (with the nearest right one), a wrong value, or a required
            key that is missing or blank.
    """
    known = keys_of(config)
    result: dict[str, Any] = {}
    for key, text in values.items():
        if key not in known:
            raise unknown_key(section, key, text, known)
        if text.strip():
            result[known[key].name] = _value(known[key], key, text.strip())
    for key, setting in known.items():
        if required and setting.metadata.get("required") and setting.name not in result:
            raise ConfigError(f"[{section}] {key}", values.get(key, ""), "a value is required")
    return result


def unknown_key(section: str, key: str, text: str, known: Mapping[str, Any]) -> ConfigError:
    """The error for a key that does not exist, with the nearest that does.

    Args:
        section: its name; empty for a section that is unknown itself.
        key: that is wrong.
        text: its value.
        known: right keys; at least one.

    Returns:
        it is not raised here.
    """
    nearest = difflib.get_close_matches(key, known, n=1, cutoff=0.0)
    return ConfigError(f"[{section}] {key}", text, f"no such key; did you mean {nearest[0]!r}?")


def _value(setting: dataclasses.Field[Any], key: str, text: str) -> Any:
    if "low" in setting.metadata:
        return evaluate_int(key, text, setting.metadata["low"], setting.metadata["high"])
    if setting.default is not MISSING and isinstance(setting.default, bool):
        return evaluate_bool(key, text)
    return text
