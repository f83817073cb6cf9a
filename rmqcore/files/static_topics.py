"""``config/topicQueueMapping.json``: RocketMQ's static topics, whose queues have other numbers.

Offsets and queue ids that clients know of one are not those of its queues here.

Source: RocketMQ broker/topic/TopicQueueMappingManager.java.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from rmqcore.files.config_file import ConfigFile
from rmqcore.files.config_tables import mapping
from rmqcore.java.json import format_java_json, parse_java_json

_NAME: Final = "topicQueueMapping.json"
#: Members of the file, and of what a master tells its slaves of topics.
_DETAILS: Final = "topicQueueMappingDetailMap"
_VERSION: Final = "dataVersion"
_VERSION_TOLD: Final = "mappingDataVersion"


class StaticTopics:
    """The static topics of a store.

    Attributes:
        names: of the topics.

    Threads: one caller at a time changes it; any may read.
    Durability: disk when `forget` or `adopt` returns.

    Args:
        folder: the store's ``config`` folder.
        check_there: raises when it is another store's.

    Raises:
        CorruptConfigFileError: the file and its backup can both not be read.
    """

    def __init__(self, folder: Path, check_there: Callable[[], object] = bool) -> None:
        self._file = ConfigFile(folder / _NAME, _content_of, check_there)
        self._content = self._file.load() or {}
        self.names = frozenset(_details_in(self._content))

    def is_one(self, topic: str) -> bool:
        """Tell whether a topic is one of them."""
        return topic in self.names

    def forget(self, topic: str) -> None:
        """Let a topic be none of them, which was deleted; one that is none is nothing to do.

        Raises:
            OSError: it cannot be written; it still is one.
        """
        if topic in self.names:
            details = _details_in(self._content)
            self._store({name: each for name, each in details.items() if name != topic}, {})

    def told(self) -> dict[str, object]:
        """What slaves have to know of them, as members of an object: see `adopt`."""
        version = {_VERSION_TOLD: self._content[_VERSION]} if _VERSION in self._content else {}
        return {_DETAILS: _details_in(self._content), **version}

    def adopt(self, text: str) -> None:
        """Take over, on a slave, those of its master; one that does not tell changes nothing.

        Args:
            text: an object with the members of `told`, and others.

        Raises:
            ValueError: they are wrong; nothing has changed.
            OSError: it cannot be written.
        """
        if f'"{_DETAILS}"' not in text:
            return
        told = mapping("what the master tells of topics", parse_java_json(text))
        details = _details_in(told)
        if details != _details_in(self._content):
            version = told.get(_VERSION_TOLD)
            self._store(details, {} if version is None else {_VERSION: version})

    def _store(self, details: dict[str, object], more: dict[str, object]) -> None:
        content = {**self._content, **more, _DETAILS: details}
        self._file.store(format_java_json(content))
        self._content, self.names = content, frozenset(details)


def _details_in(content: Mapping[str, object]) -> dict[str, object]:
    """How the queues of each are mapped, by topic.

    Raises:
        ValueError: it is no object.
    """
    return dict(mapping(_DETAILS, content.get(_DETAILS) or {}))


def _content_of(text: str) -> dict[str, object]:
    content = dict(mapping(_NAME, parse_java_json(text)))
    _details_in(content)
    return content
