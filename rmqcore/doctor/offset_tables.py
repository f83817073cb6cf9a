"""The files in ``config/``, and the offsets of consumers, delay levels and timer messages there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from rmqcore.doctor.log_survey import QueueKey
from rmqcore.errors import CorruptConfigFileError
from rmqcore.files.config_tables import ConfigTable, TopicConfigTable
from rmqcore.files.consume_queue import SCHEDULE_TOPIC
from rmqcore.files.consumer_offset_table import ConsumerOffsetTable
from rmqcore.files.delay_offset_table import DelayOffsetTable
from rmqcore.files.group_table import SubscriptionGroupTable
from rmqcore.files.request_mode_table import MessageRequestModeTable
from rmqcore.files.store_dir import StoreDir
from rmqcore.files.timer_check import NAME as TIMER_CHECK_NAME
from rmqcore.files.timer_check import TIMER_TOPIC, TimerCheck
from rmqcore.files.zeros import read_small
from rmqcore.java.json import format_java_json, parse_java_json

CONSUMER_OFFSETS_NAME = "consumerOffset.json"
DELAY_OFFSETS_NAME = "delayOffset.json"
#: each table by the name of its file
TABLES: dict[str, type[ConfigTable]] = {
    kind.file_name: kind
    for kind in (
        TopicConfigTable,
        ConsumerOffsetTable,
        DelayOffsetTable,
        SubscriptionGroupTable,
        MessageRequestModeTable,
    )
}


def table_of(path: Path) -> dict[str, Any] | None:
    """The content of a file of offsets, or of its backup; None when neither can be read."""
    for generation in (path, path.with_name(path.name + ".bak")):
        try:
            text = read_small(generation).decode()
            TABLES[path.name].check(text)
        except (ValueError, OSError):
            continue
        content: dict[str, Any] = parse_java_json(text)
        return content
    return None


def entries_of(
    name: str, content: dict[str, Any]
) -> Iterator[tuple[dict[str, Any], str, str, QueueKey | None]]:
    """Each offset of a file: (its mapping, its key there, whose it is, its queue).

    The queue is None where the key is no number. A key of delayOffset.json is a level, and its
    queue one less.

    Args:
        name: of the file.
        content: what it holds, as JSON was read.
    """
    table = content.get("offsetTable")
    if not isinstance(table, dict):
        return
    if name == DELAY_OFFSETS_NAME:
        for level in table:
            queue = int(level) - 1 if level.isdigit() else -1
            key = (SCHEDULE_TOPIC, queue) if queue >= 0 else None
            yield table, level, f"delay level {level}", key
        return
    for owner, queues in table.items():
        topic = owner.partition("@")[0]
        for number in queues if isinstance(queues, dict) else ():
            yield queues, number, owner, (topic, int(number)) if number.isdigit() else None


def offsets_ahead(directory: StoreDir, end_of: Callable[[QueueKey], int | None]) -> list[Path]:
    """The files that have an offset behind the end of its queue, or a negative one.

    Args:
        directory: of the store.
        end_of: where a queue ends; None where nothing is known.
    """
    names = (CONSUMER_OFFSETS_NAME, DELAY_OFFSETS_NAME, TIMER_CHECK_NAME)
    paths = [directory.config / name for name in names]
    return [path for path in paths if set_back(path, end_of) is not None]


def set_back(path: Path, end_of: Callable[[QueueKey], int | None]) -> bytes | None:
    """A file with each offset that is behind the end of its queue set to that end.

    Negative offsets are taken out.

    Args:
        path: of the file.
        end_of: where a queue ends; None where nothing is known.

    Returns:
        the file's bytes; None when nothing is to be changed, or it cannot be read.
    """
    if path.name == TIMER_CHECK_NAME:
        end = end_of((TIMER_TOPIC, 0))
        with suppress(CorruptConfigFileError):
            return None if end is None else TimerCheck(path.parent).set_back(end)
        return None
    content = table_of(path)
    if content is None or not _set_back(path.name, content, end_of):
        return None
    return format_java_json(content).encode(errors="replace")


def _set_back(name: str, content: dict[str, Any], end_of: Callable[[QueueKey], int | None]) -> int:
    """How many offsets of a table were changed."""
    changed = 0
    for table, key, _, queue in list(entries_of(name, content)):
        offset, end = table[key], None if queue is None else end_of(queue)
        if offset < 0:
            del table[key]
            changed += 1
        elif end is not None and offset > end:
            table[key] = end
            changed += 1
    return changed
