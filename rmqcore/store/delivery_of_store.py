"""Wires delayed delivery to a store: the part of the store that the service may use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from rmqcore.config import StoreConfig
from rmqcore.derived.consume_queue_store import ConsumeQueueStore
from rmqcore.files.consume_queue import SCHEDULE_TOPIC
from rmqcore.files.delay_offset_table import DelayOffsetTable
from rmqcore.services.delay_schedule import (
    DelayStore,
    DeliverDelayedMessageService,
    ScheduleMessageService,
)


class DeliveringStore(DelayStore, Protocol):
    """A store that delivers parked messages."""

    config: StoreConfig
    consume_queues: ConsumeQueueStore


def delivery_of(
    store: DeliveringStore,
    directory: Path,
    clock_ms: Callable[[], int],
) -> DeliverDelayedMessageService:
    """The service that delivers a store's parked messages; it is not started yet.

    Args:
        store: whose messages are delivered, and where they are put.
        directory: its ``config`` folder.
        clock_ms: Unix time in milliseconds.
    """
    offsets = DelayOffsetTable(directory, clock=clock_ms)
    offsets.discard_unfinished()
    schedule = ScheduleMessageService(
        store,
        offsets,
        store.config.delay_levels_ms,
        flush_interval_ms=store.config.flush_delay_offset_interval_ms,
        parked_queue_ids=[
            queue.queue_id for queue in store.consume_queues if queue.topic == SCHEDULE_TOPIC
        ],
    )
    return DeliverDelayedMessageService(schedule, clock=clock_ms)
