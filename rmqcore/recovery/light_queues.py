"""Whether records stand in the light queues (LMQ) in which they have numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmqcore.files.consume_queue import LIGHT_QUEUE_PREFIX
from rmqcore.files.store_dir import subdirectories

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rmqcore.config import StoreConfig
    from rmqcore.files.store_dir import StoreDir
    from rmqcore.files.store_mark import QueueKey


def derives_light_queues(
    config: StoreConfig, directory: StoreDir, marked: Iterable[QueueKey] = ()
) -> bool:
    """True unless the settings say that there are no light queues, and there is none.

    Where there is one, what was put into it must be found again, whatever the settings say now:
    its files may be lost, or be behind the log.

    Args:
        config: the settings.
        directory: of the store.
        marked: queues that the store had.
    """
    if config.derives_light_queues:
        return True
    topics = (*subdirectories(directory.consume_queue), *(topic for topic, _ in marked))
    return any(topic.startswith(LIGHT_QUEUE_PREFIX) for topic in topics)
