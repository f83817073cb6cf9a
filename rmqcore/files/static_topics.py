"""``config/topicQueueMapping.json``: RocketMQ's static topics, whose queues have other numbers.

Offsets and queue ids that clients know of one are not those of its queues here.

Source: RocketMQ broker/topic/TopicQueueMappingManager.java.
"""

from __future__ import annotations

from pathlib import Path

from rmqcore.files.config_file import ConfigFile
from rmqcore.files.config_tables import mapping
from rmqcore.java.json import parse_java_json

_NAME = "topicQueueMapping.json"
_DETAILS = "topicQueueMappingDetailMap"


def static_topics(folder: Path) -> frozenset[str]:
    """The static topics of a store, by name.

    Args:
        folder: its ``config`` folder.

    Raises:
        CorruptConfigFileError: the file and its backup can both not be read.
    """
    return ConfigFile(folder / _NAME, _names_in).load() or frozenset()


def _names_in(text: str) -> frozenset[str]:
    content = mapping(_NAME, parse_java_json(text))
    return frozenset(mapping(_DETAILS, content.get(_DETAILS) or {}))
