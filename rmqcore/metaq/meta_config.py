"""MetaConfig: the broker's settings, their file, their changes, and its closed partitions.

Invariants:
    - A file is taken as a whole or not at all: after a failed `reload` everything is as before.
    - `topics` is replaced, never changed; a reader keeps what it looked at.
"""

from __future__ import annotations

import logging
import threading
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from rmqcore.errors import ConfigError
from rmqcore.metaq.cron import QuartzCron
from rmqcore.metaq.delete_policy import parse_delete_policy
from rmqcore.metaq.ini import parse_ini, read_text
from rmqcore.metaq.settings import SystemConfig, TopicConfig, ZkConfig, read_values, unknown_key

CONFIG_FILE_CHECKSUM = "configFileChecksum"
TOPICS = "topics"
TOPIC_CONFIG_MAP = "topicConfigMap"
UNFLUSH_INTERVAL = "unflushInterval"
EVENTS = (CONFIG_FILE_CHECKSUM, TOPICS, TOPIC_CONFIG_MAP, UNFLUSH_INTERVAL)

_LOG = logging.getLogger(__name__)
_TOPIC_SECTION = "topic="
_FILTER = "group."

Listener = Callable[[], object]


class MetaConfig:
    """What a broker is told, and who is told when it changes.

    Attributes:
        system: the ``[system]`` section.
        zookeeper: the ``[zookeeper]`` section, None when the file has none.
        topics: topic -> its section; names are patterns, ``*`` stands for anything.
        path: the file, None for one made in code.
        config_file_checksum: CRC-32 of the file (32 bits), 0 without a file.

    Differs: asking for an unknown topic does not put it into the map; a file that cannot be
    parsed raises, leaves everything as it was, and is tried again at the next reload; a file that
    was only touched is not reloaded.

    Source: MetaQ MetaConfig.java.
    """

    def __init__(
        self,
        system: SystemConfig | None = None,
        topics: Iterable[TopicConfig | str] = (),
        zookeeper: ZkConfig | None = None,
    ) -> None:
        self.system = system or SystemConfig()
        self.zookeeper = zookeeper
        self.path: Path | None = None
        self.config_file_checksum = 0
        self._modified_ns = -1
        self._listeners: dict[str, list[Listener]] = {event: [] for event in EVENTS}
        self._closed: dict[str, frozenset[int]] = {}
        self._lock = threading.Lock()
        made = (TopicConfig.of(t, self.system) if isinstance(t, str) else t for t in topics)
        self.topics: Mapping[str, TopicConfig] = {topic.topic: topic for topic in made}
        check_topics(self.system, self.topics)

    @classmethod
    def from_file(cls, path: str | Path) -> MetaConfig:
        """Read an ini file, UTF-8 or GBK.

        Raises:
            ConfigError: a wrong section, key or value; nothing is guessed.
            FileNotFoundError: there is no such file.
        """
        path = Path(path)
        config = cls.from_text(read_text(path))
        config.path = path
        config._modified_ns = path.stat().st_mtime_ns
        config.config_file_checksum = zlib.crc32(path.read_bytes())
        return config

    @classmethod
    def from_text(cls, text: str) -> MetaConfig:
        """Read the text of an ini file.

        Raises:
            ConfigError: a section, a key or a value is none.
        """
        sections = parse_ini(text)
        if "system" not in sections:
            raise ConfigError("[system]", "", "the file needs this section")
        system = SystemConfig(**read_values(SystemConfig, "system", sections["system"]))
        zookeeper = None
        if "zookeeper" in sections:
            zookeeper = ZkConfig(**read_values(ZkConfig, "zookeeper", sections["zookeeper"]))
        return cls(system, _parse_topics(sections, system).values(), zookeeper)

    def topic_config(self, topic: str) -> TopicConfig:
        """The section of a topic, or the defaults for one that has none."""
        return self.topics.get(topic) or TopicConfig.of(topic, self.system)

    def verify(self, *, zookeeper: bool = True) -> None:
        """Check what a broker needs before it starts.

        Args:
            zookeeper: ask for a ZooKeeper address too, as the original does.

        Raises:
            ConfigError: there is no topic, or no address.
        """
        if not self.topics:
            raise ConfigError("topic", "", "at least one [topic=NAME] section")
        if zookeeper and (self.zookeeper is None or not self.zookeeper.zk_connect):
            raise ConfigError("[zookeeper] zk.zkConnect", "", "an address is required")

    def add_property_change_listener(self, event: str, listener: Listener) -> None:
        """Call ``listener()`` at every event of a name; it reads what it needs here.

        Args:
            event: one of `EVENTS`.
            listener: called without arguments, in the thread that reloads.

        Raises:
            ConfigError: there is no such event.
        """
        if event not in self._listeners:
            raise ConfigError("event", event, f"one of {', '.join(EVENTS)}")
        self._listeners[event].append(listener)

    def remove_property_change_listener(self, listener: Listener) -> None:
        """Stop calling a listener, whatever it listened to."""
        for listeners in self._listeners.values():
            while listener in listeners:
                listeners.remove(listener)

    def set_config_file_checksum(self, checksum: int) -> None:
        """Set the checksum and tell its listeners."""
        self.config_file_checksum = checksum
        self._fire(CONFIG_FILE_CHECKSUM)

    def add_topic(self, topic: TopicConfig) -> None:
        """Add or replace one topic and tell the listeners."""
        check_topics(self.system, {topic.topic: topic})
        with self._lock:
            self.topics = {**self.topics, topic.topic: topic}
        self._fire(TOPICS)
        self._fire(TOPIC_CONFIG_MAP)

    def reload(self) -> bool:
        """Read the topic sections again if the file's bytes changed.

        System and zookeeper sections stay as they were at the start; topic defaults come from
        that system section.

        Returns:
            True when the file was parsed; the listeners have been called then.

        Raises:
            ConfigError: the file is wrong, or this configuration has no file; nothing changed.
        """
        if self.path is None:
            raise ConfigError("path", None, "this configuration was not read from a file")
        modified_ns = self.path.stat().st_mtime_ns
        if modified_ns == self._modified_ns:
            return False
        checksum = zlib.crc32(self.path.read_bytes())
        if checksum == self.config_file_checksum:
            self._modified_ns = modified_ns
            return False
        topics = _parse_topics(parse_ini(read_text(self.path)), self.system)
        check_topics(self.system, topics)
        with self._lock:
            changed = topics != self.topics
            self.topics = topics
            self._modified_ns = modified_ns
            self.config_file_checksum = checksum
        self._fire(CONFIG_FILE_CHECKSUM)
        if changed:
            self._fire(TOPICS)
            self._fire(TOPIC_CONFIG_MAP)
        self._fire(UNFLUSH_INTERVAL)
        return True

    def close_partitions(
        self, topic: str, start: int, end: int, *, existing: Iterable[int] = ()
    ) -> bool:
        """Refuse puts and gets of partitions ``start`` to ``end``, both included, until opened.

        Args:
            topic: a configured topic, or one that has partitions.
            start: the first partition.
            end: the last one; those that cannot be are passed over.
            existing: partitions that there are, whatever the configuration says now.

        Returns:
            False, and nothing is closed, for an unknown topic or a range that is none.
        """
        existing = frozenset(existing)
        if not (topic in self.topics or existing) or not 0 <= start <= end:
            return False
        last = min(end, self.topic_config(topic).num_partitions - 1)
        chosen = {*range(start, last + 1), *(p for p in existing if start <= p <= end)}
        with self._lock:
            closed = self._closed.get(topic, frozenset())
            self._closed = {**self._closed, topic: closed | chosen}
        return True

    def open_partitions(self, topic: str) -> frozenset[int]:
        """Open every closed partition of a topic; return which they were."""
        with self._lock:
            opened = self._closed.get(topic, frozenset())
            self._closed = {name: c for name, c in self._closed.items() if name != topic}
        return opened

    def is_closed_partition(self, topic: str, partition: int) -> bool:
        """Tell whether a partition is closed.

        Args:
            topic: name of the topic.
            partition: number of the partition in its topic.
        """
        return partition in self._closed.get(topic, ())

    def _fire(self, event: str) -> None:
        for listener in tuple(self._listeners[event]):
            listener()


def _parse_topics(
    sections: Mapping[str, Mapping[str, str]], system: SystemConfig
) -> dict[str, TopicConfig]:
    """Read every ``[topic=NAME]`` section, in the order of the names.

    Any other section is passed over with a warning.

    Differs: the original passes over a misspelt ``[topci=NAME]`` too, in silence.

    Args:
        sections: text by key, by the name of the section.
        system: gives what a topic does not say itself.

    Raises:
        ConfigError: an unknown key, a wrong value, or a section that must have meant a topic.
    """
    topics = {}
    for name, values in sections.items():
        if name in {"system", "zookeeper", "slave"}:
            continue
        if not name.startswith(_TOPIC_SECTION):
            if "=" in name:  # most likely a topic, misspelt
                raise unknown_key("", name, "", {"topic=NAME": 0})
            _LOG.warning("section [%s] is passed over: no section of MetaQ has this name", name)
            continue
        own = {key: text for key, text in values.items() if not key.startswith(_FILTER)}
        filters = {
            key.removeprefix(_FILTER): text.strip()
            for key, text in values.items()
            if key.startswith(_FILTER) and text.strip()
        }
        topic = name.removeprefix(_TOPIC_SECTION).strip()
        settings = read_values(TopicConfig, name, own, required=False)
        topics[topic] = TopicConfig.of(topic, system, filters=filters, **settings)
    return dict(sorted(topics.items()))


def check_topics(system: SystemConfig, topics: Mapping[str, TopicConfig]) -> None:
    """Refuse delete policies and schedules that cannot be used, before anything relies on them.

    Args:
        system: its own policy and schedule hold for topics without one.
        topics: by name.

    Raises:
        ConfigError: a policy or a schedule is none.
    """
    configs: list[SystemConfig | TopicConfig] = [system, *topics.values()]
    for config in configs:
        parse_delete_policy(config.delete_policy)
        QuartzCron(config.delete_when)
