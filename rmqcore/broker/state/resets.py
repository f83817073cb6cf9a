"""`Resets`: where groups have to go on in queues, whatever their clients know."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Final, TypeAlias

from rmqcore.broker.state.budgets import OFFSETS_MAX
from rmqcore.files.config_file import ConfigFile
from rmqcore.java.json import format_compact_java_json, parse_java_json

_NAME: Final = "readersOfDeleted.json"

#: Group, topic and queue id.
ReadQueue: TypeAlias = tuple[str, str, int]


class Resets(dict[ReadQueue, int]):
    """Offsets that an administrator set, or with which a topic that was deleted begins again.

    Until a pull is from there the group is sent there, and commits nothing. Those of deleted topics
    are kept in ``config/readersOfDeleted.json``: clients outlive a broker. Used on the event loop,
    `keep` by any thread.

    Args:
        folder: the store's ``config`` folder.

    Raises:
        CorruptConfigFileError: what was kept cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._file = ConfigFile(folder / _NAME, _readers_in)
        self._kept = self._file.load() or []

    def bring_back(self, has_offset: Callable[[ReadQueue], bool]) -> None:
        """Go on with what was kept, but for groups that have consumed of the new topic."""
        self.update({key: 0 for key in self._kept if not has_offset(key)})

    def keep(self, more: Collection[ReadQueue]) -> None:
        """Write down that groups begin anew, before a topic is deleted.

        Raises:
            OSError: it cannot be written.
        """
        if not more:
            return
        table: dict[str, dict[str, list[int]]] = {}
        zeros = [key for key, offset in self.copy().items() if offset == 0]
        for group, topic, queue_id in dict.fromkeys((*zeros, *more)):
            table.setdefault(topic, {}).setdefault(group, []).append(queue_id)
        self._file.store(format_compact_java_json({"readers": table}))

    def begin_anew(self, readers: Iterable[ReadQueue]) -> None:
        """Send groups to the beginning of their queues."""
        self.update(dict.fromkeys(readers, 0))
        for key in list(self)[:-OFFSETS_MAX]:
            del self[key]


def _readers_in(text: str) -> list[ReadQueue]:
    """Read the file.

    Raises:
        ValueError: it is none.
    """
    try:
        return [
            (group, topic, int(queue_id))
            for topic, groups in (parse_java_json(text).get("readers") or {}).items()
            for group, queue_ids in groups.items()
            for queue_id in queue_ids
        ]
    except (AttributeError, TypeError) as error:
        raise ValueError("it does not say who has read deleted topics") from error
