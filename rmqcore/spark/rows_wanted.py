"""From options to a selection: which records become rows, as the native decoder takes it."""

from __future__ import annotations

from rmqcore.scan import HIDDEN, Selection
from rmqcore.scan.shown_topics import TopicSource
from rmqcore.spark.options import EARLIEST, LATEST, ReadOptions
from rmqcore.spark.topic_choice import TopicChoice

_OFFSET_MAX = _TIME_MAX = 2**63 - 1


def rows_wanted(
    options: ReadOptions,
    log: TopicSource,
    choice: TopicChoice,
    besides: TopicChoice | None = None,
    latest_phy_offset: int = 0,
) -> Selection:
    """The selection that options ask for.

    Args:
        options: of the reader.
        log: knows what is shown of each topic.
        choice: the topics and queues that are read.
        besides: those whose rows have been read before; None for none.
        latest_phy_offset: where "latest" of ``startingOffsets`` is, and from where on a topic that
            was made anew is not the one that its numbers are of; 0 for a batch.
    """
    services = options.include_uncommitted
    shown = log.shown_topics(choice.names or (), services=services)
    latest = _latest_queues(options)

    def rule(topic: str) -> tuple[int, dict[int, int]]:
        before = besides if besides is not None and topic in besides else None
        if topic not in choice or (before is not None and before.queues_of(topic) is None):
            return HIDDEN, {}
        first, begins = shown.rule(topic)
        queues = dict(begins)
        if choice.assigned is not None:
            queues = {
                queue_id: begins.get(queue_id, first) for queue_id in choice.queues_of(topic) or ()
            }
            first = HIDDEN
        for queue_id in latest.get(topic, ()):
            queues[queue_id] = max(queues.get(queue_id, first), latest_phy_offset)
        if before is not None:
            queues |= dict.fromkeys(before.queues_of(topic) or (), HIDDEN)
        return first, queues

    found: Selection = {"topic_rule": rule, "uncommitted": options.include_uncommitted}
    if choice.names is not None:
        found["topics"] = choice.names
    if choice.queue_ids is not None:
        found["queue_ids"] = choice.queue_ids
    if options.tags is not None:
        found["tags"] = options.tags
    offsets = _queue_offsets(options)
    for topic, queues in offsets.items() if latest_phy_offset else ():
        first, begins = shown.rule(topic)
        for queue_id in queues:
            if begins.get(queue_id, first) >= latest_phy_offset:
                queues[queue_id] = (0, _OFFSET_MAX)
    if offsets:
        found["queue_offsets"] = offsets
    if times := _queue_times(options):
        found["queue_times"] = times
    if options.starting_timestamp is not None:
        found["begin_ms"] = options.starting_timestamp
    if options.ending_timestamp is not None:
        found["end_ms"] = options.ending_timestamp - 1
    if options.starting_phy_offset is not None:
        found["begin_phy_offset"] = options.starting_phy_offset
    if options.ending_phy_offset is not None:
        found["end_phy_offset"] = options.ending_phy_offset
    return found


def _latest_queues(options: ReadOptions) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    if isinstance(options.starting_offsets, tuple):
        for topic, queue_id, offset in options.starting_offsets:
            if offset == LATEST:
                found.setdefault(topic, []).append(queue_id)
    return found


def _queue_offsets(options: ReadOptions) -> dict[str, dict[int, tuple[int, int]]]:
    found: dict[str, dict[int, tuple[int, int]]] = {}
    if isinstance(options.starting_offsets, tuple):
        for topic, queue_id, offset in options.starting_offsets:
            if offset not in (EARLIEST, LATEST):
                found.setdefault(topic, {})[queue_id] = (offset, _OFFSET_MAX)
    if isinstance(options.ending_offsets, tuple):
        for topic, queue_id, offset in options.ending_offsets:
            if offset != LATEST:
                first, _ = found.get(topic, {}).get(queue_id, (0, 0))
                found.setdefault(topic, {})[queue_id] = (first, offset)
    return found


def _queue_times(options: ReadOptions) -> dict[str, dict[int, tuple[int, int]]]:
    found: dict[str, dict[int, tuple[int, int]]] = {}
    for topic, queue_id, time_ms in options.starting_times or ():
        found.setdefault(topic, {})[queue_id] = (time_ms, _TIME_MAX)
    for topic, queue_id, time_ms in options.ending_times or ():
        first, _ = found.get(topic, {}).get(queue_id, (-_TIME_MAX, 0))
        found.setdefault(topic, {})[queue_id] = (first, time_ms - 1)
    return found
