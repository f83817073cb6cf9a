"""What can be set on a store: `StoreConfig`.

Owns the names, defaults and checks of every setting. It opens no store and knows no file sizes
of an existing one. Constants of the file formats are not settings. `rmqcore.config.broker_conf`
reads and writes files of settings.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Self

from rmqcore._codec import BLANK_SIZE
from rmqcore._index import index_file_size
from rmqcore.config.known_properties import known_properties
from rmqcore.config.setting import checked_value, parse_delay_levels, parse_delete_when, setting
from rmqcore.errors import ConfigError
from rmqcore.native.format._numbers import (
    BATCH_UNIT_SIZE,
    SMALLEST_RECORD_SIZE,
    UNIT_SIZE,
)

INT32_MAX: Final = 2**31 - 1
DEFAULT_MAX_MESSAGE_SIZE: Final = 4 * 1024 * 1024


class FlushDiskType(StrEnum):
    """When a put is answered: before or after its bytes are on disk."""

    ASYNC_FLUSH = "ASYNC_FLUSH"
    SYNC_FLUSH = "SYNC_FLUSH"


class BrokerRole(StrEnum):
    """What a store is in a pair of master and slave."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


class OnCorruption(StrEnum):
    """What opening a store does about damage in front of good records."""

    RAISE = "raise"
    SKIP = "skip"
    TRUNCATE = "truncate"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """Settings of one store. ``StoreConfig()`` has RocketMQ's defaults.

    - Values are checked one by one and against each other when the object is made.
    - ``explicit`` names what the caller set; a store refuses a contradiction between an explicit
      size and its own files, and quietly takes its files' sizes over defaults.
    - ``dataclasses.replace`` keeps ``explicit`` and adds what it changes.

    Source: RocketMQ store/config/MessageStoreConfig.java.
    """

    # Affects behaviour.

    #: which defaults hold for what is not set: "rocketmq" (1 GiB files) or "embedded" (64 MiB).
    profile: str = setting("rocketmq")
    #: bytes of a commit-log file; larger files roll less often and are deleted later.
    mapped_file_size_commit_log: int = setting(
        1 << 30, "mappedFileSizeCommitLog", least=256, most=INT32_MAX
    )
    #: bytes of a consume-queue file, rounded up to whole 20-byte units.
    mapped_file_size_consume_queue: int = setting(
        6_000_000, "mappedFileSizeConsumeQueue", least=1, most=INT32_MAX - 20
    )
    #: bytes of a batch consume-queue file, rounded up to whole 46-byte units.
    mapper_file_size_batch_consume_queue: int = setting(
        13_800_000, "mapperFileSizeBatchConsumeQueue", least=1, most=INT32_MAX - 46
    )
    #: hash slots of an index file; fewer slots make longer chains.
    max_hash_slot_num: int = setting(5_000_000, "maxHashSlotNum", least=1, most=INT32_MAX)
    #: entries of an index file; entry 0 is never used.
    max_index_num: int = setting(20_000_000, "maxIndexNum", least=2, most=INT32_MAX)
    #: whether keys are indexed at all; without it a query by key is refused, also one of who only
    #: reads the store, where messages have keys that are in no index.
    message_index_enable: bool = setting(True, "messageIndexEnable")
    #: bytes of the largest body; None: 4 MiB, or what fits into a log file. One that a file gave
    #: is clamped to what fits.
    max_message_size: int | None = setting(
        None, "maxMessageSize", kind=int, least=1, most=INT32_MAX, dynamic=True
    )
    #: SYNC_FLUSH answers a put when it is on disk, ASYNC_FLUSH when it is in the page cache.
    flush_disk_type: FlushDiskType = setting(  # noqa: RUF009 - it makes a dataclass field
        "ASYNC_FLUSH", "flushDiskType", kind=FlushDiskType
    )
    #: a SLAVE takes its log from its master and refuses puts.
    broker_role: BrokerRole = setting(  # noqa: RUF009 - it makes a dataclass field
        "ASYNC_MASTER", "brokerRole", kind=BrokerRole
    )
    #: milliseconds that a put under SYNC_FLUSH waits for the disk.
    sync_flush_timeout_ms: int = setting(5000, "syncFlushTimeout", least=1, dynamic=True)
    #: another place of the log than ``commitlog`` below the store; a relative one starts at the
    #: directory that the process is in now.
    store_path_commit_log: str | None = setting(None, "storePathCommitLog", kind=str)
    #: what opening does about damage in front of good records: "raise" an error, "skip" what is
    #: damaged (all that it walks over is then compared with its CRC, as ``open_check_bytes`` says),
    #: or "truncate" the log there, as RocketMQ does.
    on_corruption: OnCorruption = setting(  # noqa: RUF009 - it makes a dataclass field
        "raise", kind=OnCorruption
    )
    #: whether recovery checks the CRC of each body it walks over.
    check_crc_on_recover: bool = setting(True, "checkCRCOnRecover")
    #: each record ends in a property with the CRC of the whole record; costs 20 bytes a record.
    enabled_append_prop_crc: bool = setting(False, "enabledAppendPropCRC")
    #: recovery and reads refuse records without a right whole-record CRC; what is put has one.
    force_verify_prop_crc: bool = setting(False, "forceVerifyPropCRC")
    #: light message queues (``%LMQ%`` names) exist.
    enable_lmq: bool = setting(False, "enableLmq")
    #: one record is dispatched to every queue that its INNER_MULTI_DISPATCH property names.
    enable_multi_dispatch: bool = setting(False, "enableMultiDispatch")
    #: the delay of each level, first level first; units s, m, h, d.
    message_delay_level: str = setting(
        "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h", "messageDelayLevel"
    )
    #: whether messages with a delay level are delivered when they are due.
    deliver_delayed: bool = setting(False)
    #: milliseconds between two writes of ``delayOffset.json``; a crash repeats at most so much.
    flush_delay_offset_interval_ms: int = setting(10_000, "flushDelayOffsetInterval", least=1)
    #: whether old files are deleted; becomes True when any setting of retention is given.
    retention: bool = setting(False)
    #: hours that a log file is kept after it was last written.
    file_reserved_time_hours: int = setting(72, "fileReservedTime", least=0, dynamic=True)
    #: hours of the day in which old files are deleted, separated by ``;``, local time.
    delete_when: str = setting("04", "deleteWhen", dynamic=True)
    #: percent of the disk in use above which old files are deleted at any hour; 10 to 95 count.
    disk_max_used_space_ratio: int = setting(
        75, "diskMaxUsedSpaceRatio", least=0, most=100, dynamic=True
    )
    #: percent above which also young files are deleted; 30 to 85 count.
    disk_space_clean_forcibly_ratio: int = setting(
        85, "diskSpaceCleanForciblyRatio", least=0, most=100, dynamic=True
    )
    #: percent above which puts are refused; 35 to 90 count.
    disk_space_warning_level_ratio: int = setting(
        90, "diskSpaceWarningLevelRatio", least=0, most=100, dynamic=True
    )
    #: whether a nearly full disk may delete files that are still young.
    clean_file_forcibly_enable: bool = setting(True, "cleanFileForciblyEnable", dynamic=True)
    #: bytes of log to keep at most; the oldest files above it are deleted at any hour.
    retention_bytes: int | None = setting(None, kind=int, least=1, dynamic=True)
    #: delete only log files that an archive's manifest names (`rmqcore archive`), however full
    #: the disk is; one that was never archived keeps all of them.
    keep_unarchived: bool = setting(False, dynamic=True)
    #: the address written into records as the store's own.
    store_host: str = setting("127.0.0.1:10911")
    #: queue type ("SimpleCQ" or "BatchCQ") of topics that are not simple: pairs (topic, type).
    topic_queue_types: tuple[tuple[str, str], ...] = setting(())

    # Affects performance.

    #: milliseconds between two flushes of the log under ASYNC_FLUSH; what a power cut may take.
    flush_interval_commit_log_ms: int = setting(
        500, "flushIntervalCommitLog", least=1, dynamic=True
    )
    #: dirty 4 KiB pages below which a periodic flush of the log waits for more.
    flush_commit_log_least_pages: int = setting(
        4, "flushCommitLogLeastPages", least=0, dynamic=True
    )
    #: milliseconds after which the log is flushed however few its dirty pages.
    flush_commit_log_thorough_interval_ms: int = setting(
        10_000, "flushCommitLogThoroughInterval", least=1, dynamic=True
    )
    #: milliseconds between two commits of the transient pool.
    commit_interval_commit_log_ms: int = setting(
        200, "commitIntervalCommitLog", least=1, dynamic=True
    )
    #: milliseconds between two flushes of the consume queues.
    flush_interval_consume_queue_ms: int = setting(
        1000, "flushIntervalConsumeQueue", least=1, dynamic=True
    )
    #: new 4 KiB pages with which a consume queue waits for no later round of flushes.
    flush_consume_queue_least_pages: int = setting(
        2, "flushConsumeQueueLeastPages", least=0, dynamic=True
    )
    #: milliseconds after which all consume queues are flushed.
    flush_consume_queue_thorough_interval_ms: int = setting(
        60_000, "flushConsumeQueueThoroughInterval", least=1, dynamic=True
    )
    #: messages go to memory first and to the page cache in batches; a killed process loses some.
    transient_store_pool_enable: bool = setting(False, "transientStorePoolEnable")
    #: buffers of the transient pool, each as large as a log file.
    transient_store_pool_size: int = setting(5, "transientStorePoolSize", least=1)
    #: new log files are touched page by page before use; smooth puts for earlier disk work.
    warm_mapped_file_enable: bool = setting(False, "warmMapedFileEnable")
    #: pages touched between two flushes while a file is warmed under SYNC_FLUSH.
    flush_least_pages_when_warm_mapped_file: int = setting(
        4096, "flushLeastPagesWhenWarmMapedFile", least=1
    )
    #: milliseconds between two looks at what can be deleted.
    clean_resource_interval_ms: int = setting(10_000, "cleanResourceInterval", least=1)
    #: milliseconds between the deletion of two log files, to spare the disk.
    delete_commit_log_files_interval_ms: int = setting(
        100, "deleteCommitLogFilesInterval", least=0, dynamic=True
    )
    #: log files that one round deletes at most.
    delete_file_batch_max: int = setting(10, "deleteFileBatchMax", least=1, dynamic=True)
    #: log files created ahead of need.
    allocate_ahead: int = setting(2, least=0, most=64)
    #: files mapped at once; the least recently used are unmapped.
    max_mapped_files: int = setting(4096, least=8, most=65_000)
    #: bytes of the log's end that a clean open compares with consume queues and index.
    open_check_bytes: int = setting(1 << 30, least=0)
    #: bytes of log files that may be locked into memory; 0 locks none.
    lock_memory_bytes: int = setting(0, least=0)

    # How the object came to be.

    #: names that the caller set.
    explicit: frozenset[str] = field(default=frozenset(), compare=False)
    #: properties of RocketMQ that were given and have no meaning for a store, with their values;
    #: `to_broker_conf` gives them back.
    ignored: Mapping[str, object] = field(default_factory=dict, compare=False)
    #: where a file gave a setting: its name and ``broker.conf:12``.
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)
    _given: frozenset[str] = field(init=False, repr=False, compare=False)

    def __new__(cls, **settings: object) -> Self:
        """Note which names the caller gives; the generated constructor cannot tell."""
        self = object.__new__(cls)
        object.__setattr__(self, "_given", frozenset(settings))
        return self

    def __post_init__(self) -> None:
        if self.profile not in _PROFILES:
            raise ConfigError("profile", self.profile, f"one of {sorted(_PROFILES)}")
        for name, value in _PROFILES[self.profile].items():
            if name not in self._given:
                object.__setattr__(self, name, value)
        for name, item in SETTINGS.items():
            object.__setattr__(self, name, checked_value(item, getattr(self, name)))
        _check_one_path("store_path_commit_log", self.store_path_commit_log)
        if self.store_path_commit_log:
            log = str(Path(self.store_path_commit_log).absolute())
            object.__setattr__(self, "store_path_commit_log", log)
        object.__setattr__(self, "explicit", self._explicit_names())
        self._round_sizes()
        self._check_relations()

    @classmethod
    def embedded(cls, **settings: Any) -> Self:
        """The small profile: 64 MiB log files, small index, files warmed before use."""
        return cls(profile="embedded", **settings)

    @classmethod
    def from_properties(
        cls, properties: Mapping[str, object], *, profile: str = "rocketmq"
    ) -> Self:
        """Make a configuration from RocketMQ's names, or from names of this class.

        Args:
            properties: values as text or typed. Known properties without meaning for a store are
                collected in ``ignored``.
            profile: defaults of what is not given.

        Raises:
            ConfigError: an unknown name (with the nearest right one), a value of a wrong type or
                out of range, one setting given twice with two values, a contradiction.
        """
        settings, ignored = resolve(properties)
        return cls(**{"profile": profile, **settings}, ignored=ignored)

    def with_settings(self, settings: Mapping[str, object]) -> Self:
        """A copy with some settings changed and noted as explicit; names as `from_properties`."""
        resolved, ignored = resolve(settings)
        kept = {name: getattr(self, name) for name in self.explicit}
        return type(self)(
            **(kept | resolved),
            ignored={**self.ignored, **ignored},
            sources={name: at for name, at in self.sources.items() if name not in resolved},
        )

    def refused(self, name: str, value: object, rule: str) -> ConfigError:
        """The error that refuses a setting, with the file and line that gave it.

        Args:
            name: the setting's name in this class.
            value: what was refused.
            rule: what would be accepted.
        """
        return ConfigError(name, value, rule, self.sources.get(name))

    def check_for_writing(self) -> None:
        """Refuse what a store can be read with, but not written.

        Raises:
            ConfigError: ``enableConsumeQueueExt``: what is beside the queues is read only.
        """
        name = "enableConsumeQueueExt"
        if is_true(self.ignored.get(name)):
            raise self.refused(
                name,
                self.ignored[name],
                "rmqcore reads the consumequeue_ext files of such a broker and writes none; open "
                'with mode="r", or set it to false',
            )

    @property
    def effective_max_message_size(self) -> int:
        """Bytes of the largest body: ``max_message_size``, or 4 MiB clamped to a log file.

        One that a ``broker.conf`` gave is clamped, too: a broker has one for files of any size.
        """
        return min(self.max_message_size or DEFAULT_MAX_MESSAGE_SIZE, self.largest_body)

    @property
    def appends_prop_crc(self) -> bool:
        """Whether what is put ends in the CRC of its record: also where reads demand it."""
        return self.enabled_append_prop_crc or self.force_verify_prop_crc

    @property
    def delay_levels_ms(self) -> tuple[int, ...]:
        """Delay of each level in milliseconds; level 1 is element 0."""
        return parse_delay_levels(self.message_delay_level)

    @property
    def delete_hours(self) -> frozenset[int]:
        """Hours of the day, 0 to 23, in which old files are deleted."""
        return parse_delete_when(self.delete_when)

    @property
    def transient_store_pool_effective(self) -> bool:
        """Whether messages go through the transient pool: it is on, and this is no slave."""
        return self.transient_store_pool_enable and self.broker_role is not BrokerRole.SLAVE

    @property
    def numbers_light_queues(self) -> bool:
        """Whether a message gets a number in each light queue (LMQ) that it names."""
        return self.enable_lmq and self.enable_multi_dispatch

    @property
    def derives_light_queues(self) -> bool:
        """Whether a record stands in the light queues in which it has a number.

        A store that has light queues gives a number, and later settings may not say so: the record
        does, unless they say that there are none. RocketMQ without light queues also keeps one that
        a producer has sent along.
        """
        off = {"enable_lmq", "enable_multi_dispatch"} & self.explicit
        return self.numbers_light_queues or not off

    def queue_type(self, topic: str) -> str:
        """``"SimpleCQ"`` or ``"BatchCQ"``: how the topic's consume queues are stored."""
        return dict(self.topic_queue_types).get(topic, "SimpleCQ")

    @property
    def largest_body(self) -> int:
        """Bytes of the largest body that fits into a log file."""
        return self.mapped_file_size_commit_log - BLANK_SIZE - SMALLEST_RECORD_SIZE

    def _explicit_names(self) -> frozenset[str]:
        """What was given; after ``dataclasses.replace`` what was known plus what differs."""
        if "explicit" not in self._given:
            names = self._given & SETTINGS.keys()
        else:
            usual = _PROFILES[self.profile]
            changed = {
                name
                for name, setting in SETTINGS.items()
                if name not in ("profile", "retention")
                and getattr(self, name) != usual.get(name, setting.default)
            }
            names = self.explicit | changed
        if "retention" not in names and names & RETENTION_SETTINGS:
            object.__setattr__(self, "retention", True)
            names |= {"retention"}
        return names

    def _round_sizes(self) -> None:
        for name, unit in (
            ("mapped_file_size_consume_queue", UNIT_SIZE),
            ("mapper_file_size_batch_consume_queue", BATCH_UNIT_SIZE),
        ):
            object.__setattr__(self, name, -(-getattr(self, name) // unit) * unit)

    def _check_relations(self) -> None:
        if (
            self.max_message_size is not None
            and self.max_message_size > self.largest_body
            and "max_message_size" not in self.sources
        ):
            raise ConfigError(
                "max_message_size",
                self.max_message_size,
                f"at most {self.largest_body}, so that a record fits into a log file of "
                f"mapped_file_size_commit_log={self.mapped_file_size_commit_log} bytes",
            )
        index_size = index_file_size(self.max_hash_slot_num, self.max_index_num)
        if index_size > INT32_MAX:
            raise self.refused(
                "max_index_num",
                self.max_index_num,
                f"with max_hash_slot_num={self.max_hash_slot_num} an index file would take "
                f"{index_size} bytes; RocketMQ's positions end at {INT32_MAX}",
            )
        ratios = {"disk_space_clean_forcibly_ratio", "disk_space_warning_level_ratio"}
        if (
            ratios <= self.explicit
            and self.disk_space_clean_forcibly_ratio > self.disk_space_warning_level_ratio
        ):
            raise self.refused(
                "disk_space_clean_forcibly_ratio",
                self.disk_space_clean_forcibly_ratio,
                "at most disk_space_warning_level_ratio="
                f"{self.disk_space_warning_level_ratio}: deletion begins before puts are refused",
            )


_PROFILES: Final[dict[str, dict[str, object]]] = {
    "rocketmq": {},
    "embedded": {
        "mapped_file_size_commit_log": 64 << 20,
        "mapped_file_size_consume_queue": 6_000_000,
        "max_hash_slot_num": 100_000,
        "max_index_num": 400_000,
        "warm_mapped_file_enable": True,
    },
}

#: Every setting by its name here: how it is declared.
SETTINGS: Final = {item.name: item for item in dataclasses.fields(StoreConfig) if item.metadata}
_BY_JAVA_NAME: Final = {
    item.metadata["java"]: name for name, item in SETTINGS.items() if item.metadata["java"]
}

#: Settings that may change while the store is open.
DYNAMIC_SETTINGS: Final = frozenset(
    name for name, item in SETTINGS.items() if item.metadata["dynamic"]
)

#: Settings whose explicit presence switches retention on.
RETENTION_SETTINGS: Final = frozenset(
    {
        "file_reserved_time_hours",
        "delete_when",
        "disk_max_used_space_ratio",
        "disk_space_clean_forcibly_ratio",
        "disk_space_warning_level_ratio",
        "clean_file_forcibly_enable",
        "retention_bytes",
    }
)

#: Settings that a new store is made with, and that its files say from then on.
GEOMETRY: Final = (
    "mapped_file_size_commit_log",
    "mapped_file_size_consume_queue",
    "max_hash_slot_num",
    "max_index_num",
)


def is_known(name: str) -> bool:
    """Whether a setting of this class, or a property of RocketMQ, has this name."""
    return name in SETTINGS or name in _BY_JAVA_NAME or name in known_properties()


def resolve(properties: Mapping[str, object]) -> tuple[dict[str, Any], dict[str, object]]:
    """Translate names to those of `StoreConfig`; the second part has no meaning for a store.

    Raises:
        ConfigError: an unknown name, a wrong value, one setting twice with two values, or a
            property whose store cannot be opened.
    """
    settings: dict[str, Any] = {}
    ignored: dict[str, object] = {}
    for name, value in properties.items():
        if not is_known(name):
            raise ConfigError(name, value, f"no such setting{suggestion(name)}")
        resolve_one(name, properties, settings, ignored)
    return settings, ignored


def resolve_one(
    name: str,
    properties: Mapping[str, object],
    settings: dict[str, Any],
    ignored: dict[str, object],
) -> str | None:
    """Check one property, and file it under its name here or with those that mean nothing.

    Args:
        name: a known name.
        properties: all of them, RocketMQ's names or ours.
        settings: is given the checked value.
        ignored: is given the value as it is when it has no meaning for a store.

    Returns:
        the setting's name here, or None.

    Raises:
        ConfigError: the value is wrong, or this store cannot be opened at all.
    """
    value = properties[name]
    own = name if name in SETTINGS else _BY_JAVA_NAME.get(name)
    if own == "store_path_commit_log":
        _check_one_path(name, value)
        own = None if _usual_log(properties, value) else own
    if own is None:
        _check_supported(name, value)
        ignored[name] = value
        return None
    checked = checked_value(SETTINGS[own], value)
    if settings.setdefault(own, checked) != checked:
        raise ConfigError(name, value, f"contradicts {own}={settings[own]!r}: give it once")
    return own


def is_true(value: object) -> bool:
    """Whether RocketMQ takes a property's value for true."""
    return str(value).strip().lower() == "true"


def _check_supported(name: str, value: object) -> None:
    """Refuse a property that says: this store's files are of a kind that cannot be opened."""
    text = str(value or "").strip()
    if name == "enableDLegerCommitLog" and is_true(value):
        rule = "a DLedger log has records of its own around RocketMQ's and cannot be opened"
    elif name == "storeType" and "rocksdb" in text.lower():
        rule = "consume queues in RocksDB cannot be opened, only those of storeType=default"
    elif name == "readOnlyCommitLogStorePaths" and text:
        rule = "a commit log in several directories cannot be opened"
    else:
        return
    raise ConfigError(name, value, rule)


def _check_one_path(name: str, value: object) -> None:
    if value is not None and "," in str(value):
        raise ConfigError(
            name,
            value,
            "one directory; a commit log in several cannot be opened (RocketMQ "
            "separates them by commas, so that no path may hold one)",
        )


def _usual_log(properties: Mapping[str, object], log: object) -> bool:
    """Whether the log's place is the usual one below the store's own, wherever that was."""
    root = properties.get("storePathRootDir")
    return root is not None and Path(str(log)) == Path(str(root)) / "commitlog"


def suggestion(name: str) -> str:
    """The nearest right name, as the end of a sentence."""
    import difflib  # noqa: PLC0415 - for a mistake only

    right = {known.lower(): known for known in (*known_properties(), *SETTINGS)}
    near = difflib.get_close_matches(str(name).lower(), right, n=1, cutoff=0.4)
    return f"; did you mean {right[near[0]]}?" if near else ""
