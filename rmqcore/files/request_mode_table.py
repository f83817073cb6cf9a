"""`MessageRequestModeTable`: which groups pull a topic, and which pop it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from rmqcore.files.config_tables import ConfigTable, mapping
from rmqcore.java.json import format_java_json

PULL: Final = "PULL"
POP: Final = "POP"

_MAP: Final = "messageRequestModeMap"
_SHARE: Final = "popShareQueueNum"

_Modes = dict[str, dict[str, dict[str, Any]]]


class MessageRequestModeTable(ConfigTable):
    """``messageRequestMode.json``: by topic and group; without a version, as in RocketMQ.

    Source: RocketMQ broker/loadbalance/MessageRequestModeManager.java.
    """

    file_name = "messageRequestMode.json"

    def __init__(self, directory: Path, *, clock: Callable[[], int]) -> None:
        """See `ConfigTable`."""
        self._modes: _Modes = {}
        super().__init__(directory, clock=clock)

    def get(self, topic: str, group: str) -> tuple[str, int]:
        """How a group gets a topic, and with how many others a client shares its queues.

        Args:
            topic: by name; one of which nothing was set is pulled.
            group: by name; one of which nothing was set pulls.

        Returns:
            ``PULL`` or ``POP``; how many others, -1 where nothing was set.
        """
        fields = self._modes.get(topic, {}).get(group, {})
        return str(fields.get("mode", PULL)), int(fields.get(_SHARE, -1))

    def has(self, topic: str, group: str) -> bool:
        """Tell whether anything was set for a group and a topic.

        Args:
            topic: by name; it need not exist.
            group: by name; it need not exist.
        """
        return group in self._modes.get(topic, {})

    def __len__(self) -> int:
        return sum(map(len, self._modes.values()))

    def put(self, topic: str, group: str, mode: str, share: int) -> None:
        """Set how a group gets a topic.

        Args:
            topic: which.
            group: which.
            mode: `PULL` or `POP`.
            share: with how many others a client that pops shares its queues; 0 for all.
        """
        fields = {"consumerGroup": group, "mode": mode, _SHARE: share, "topic": topic}
        with self._lock.within():
            self._modes.setdefault(topic, {})[group] = fields
            self._changed = True

    def to_text(self) -> str:
        """The file's content, and that of an answer to request 402."""
        return format_java_json({**self._other, **self._encode()})

    @staticmethod
    def _decode(content: dict[str, object]) -> _Modes:
        found: _Modes = {}
        for topic, groups in mapping(_MAP, content.pop(_MAP, None)).items():
            for group, fields in mapping(topic, groups).items():
                entry = dict(mapping(f"{topic}, {group}", fields))
                if type(entry.get(_SHARE, 0)) is not int:
                    raise ValueError(f"{topic}, {group}: {_SHARE}={entry[_SHARE]!r} is no number")
                found.setdefault(topic, {})[group] = entry
        return found

    def _install(self, table: _Modes) -> None:
        self._modes = table

    def _followed_by(self, told: _Modes, keep: Callable[[str], bool]) -> _Modes:
        kept = {
            topic: {group: fields for group, fields in groups.items() if keep(group)}
            for topic, groups in self._modes.items()
        }
        return {
            topic: {**kept.get(topic, {}), **told.get(topic, {})}
            for topic in sorted(kept.keys() | told.keys())
            if kept.get(topic) or topic in told
        }

    def _with(self, told: _Modes) -> _Modes:
        return self._modes | {
            topic: {**self._modes.get(topic, {}), **groups} for topic, groups in told.items()
        }

    def _encode(self) -> dict[str, object]:
        with self._lock.within():
            return {_MAP: {topic: dict(groups) for topic, groups in self._modes.items()}}
