"""Checks the names and times in the options: what nothing in the store matches is reported.

What reads nothing is a warning; what would read more than was meant is an error.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress

import pyarrow as pa

from rmqcore._codec import decode_record
from rmqcore.errors import ConfigError, RmqCoreError, StoreError
from rmqcore.scan import AnyLog, JoinedLog, LogPlan, read, select
from rmqcore.spark.options import ReadOptions, unknown
from rmqcore.world import wall_clock_ms

_log = logging.getLogger(__name__)


def check_selection(options: ReadOptions, plans: Iterable[AnyLog]) -> None:
    """Compare what is asked for with the topics, queues and times that there are.

    Stores without consume queues are not compared.

    Args:
        options: of the reader.
        plans: of every store.

    Raises:
        ConfigError: offsets of a topic or queue that no store has: it would be read whole.
    """
    plans = list(plans)
    queues: dict[str, set[int]] = {}
    for plan in plans:
        for topic, ids in _queues(plan).items():
            queues.setdefault(topic, set()).update(ids)
    if queues:
        _check_offsets(options, queues)
        _check_names(options, queues)
        _check_times(options, plans)
        _check_queue_times(options, plans)


def check_ranges(options: ReadOptions, plans: Iterable[AnyLog]) -> None:
    """Tell that a range is asked for by offsets which is not there whole.

    Args:
        options: of the reader.
        plans: of every store.

    Raises:
        StoreError: with ``failOnDataLoss``.
    """
    for plan in plans:
        for text in (*_lost_places(options, plan), *_lost_queue_offsets(options, plan)):
            if options.fail_on_data_loss:
                raise StoreError(f"{text}; set failOnDataLoss=false to read what is there")
            _log.warning("%s (failOnDataLoss=false)", text)


def _lost_places(options: ReadOptions, plan: AnyLog) -> Iterator[str]:
    store = plan.place
    for name, offset, least in (
        ("startingPhyOffset", options.starting_phy_offset, 0),
        ("endingPhyOffset", options.ending_phy_offset, 1),
    ):
        if offset is not None and least <= offset < plan.start:
            yield (
                f"{store}: {name}={offset}, but the log begins at {plan.start}; what was before it "
                "has been deleted"
            )
        if offset is not None and offset > plan.end:
            yield f"{store}: {name}={offset}, but the log ends at {plan.end}"


def _lost_queue_offsets(options: ReadOptions, plan: AnyLog) -> Iterator[str]:
    # nothing is in front of number 0: a range that ends there lacks nothing
    for name, offsets, least in (
        ("startingOffsets", options.starting_offsets, 0),
        ("endingOffsets", options.ending_offsets, 1),
    ):
        for topic, queue_id, offset in offsets if isinstance(offsets, tuple) else ():
            found = plan.queue_range(topic, queue_id)
            if found is None:
                continue
            first, end = found
            where = f"{plan.place}: {name} of {topic}/{queue_id} is {offset}"
            if least <= offset < first:
                yield f"{where}, but it begins at {first}; what was before has been deleted"
            elif offset > end and offset > (end := _end_with_tail(plan, topic, queue_id, end)):
                yield f"{where}, but it ends at {end}"


def _end_with_tail(plan: AnyLog, topic: str, queue_id: int, end: int) -> int:
    """Where a queue ends with what its store's writer has not dispatched yet."""
    known = min(max(plan.known_end, plan.start), plan.end)
    found = (
        columns
        for tail in select(plan, {}, known, plan.end).splits()
        for columns in read(tail, ("queue_offset",), topics=(topic,), queue_ids=(queue_id,))
    )
    for columns in found:
        end = max(end, *(offset + 1 for offset in pa.record_batch(columns).column(0).to_pylist()))
    return end


def _check_offsets(options: ReadOptions, queues: dict[str, set[int]]) -> None:
    for name, offsets in (
        ("startingOffsets", options.starting_offsets),
        ("endingOffsets", options.ending_offsets),
    ):
        for topic, queue_id, offset in offsets if isinstance(offsets, tuple) else ():
            if topic not in queues:
                raise unknown(f"{name}: topic", topic, queues)
            if queue_id not in queues[topic] and offset > 0:  # a queue may be empty still
                there = ", ".join(map(str, sorted(queues[topic]))) or "none yet"
                raise ConfigError(f"{name}: queue of {topic}", queue_id, f"there are {there}")


def _check_names(options: ReadOptions, queues: dict[str, set[int]]) -> None:
    chosen = set(queues)
    assigned = None if options.assign is None else dict(options.assign)
    topics = options.topics if assigned is None else assigned
    if topics is not None:
        chosen &= set(topics)
        for topic in sorted(set(topics) - chosen):
            _log.warning("nothing matches %s", unknown("topic", topic, queues))
    for topic, ids in assigned.items() if assigned is not None else ():
        for queue_id in sorted(set(ids) - queues.get(topic, set(ids))):
            _log.warning("nothing matches assign: %s has no queue %d", topic, queue_id)
    if options.topic_pattern is not None:
        chosen = {topic for topic in queues if re.fullmatch(options.topic_pattern, topic)}
        if not chosen:
            _log.warning(
                "nothing matches subscribePattern=%r, which has to match the whole name of a "
                "topic; there are %s",
                options.topic_pattern,
                ", ".join(sorted(queues)),
            )
    there = {queue_id for topic in chosen for queue_id in queues[topic]}
    if options.queue_ids is not None and there and there.isdisjoint(options.queue_ids):
        _log.warning(
            "nothing matches queueIds=%s; there are %s",
            ",".join(map(str, options.queue_ids)),
            ", ".join(map(str, sorted(there))),
        )


def _check_times(options: ReadOptions, plans: list[AnyLog]) -> None:
    start, end = options.starting_timestamp, options.ending_timestamp
    if start is not None and end is not None and start >= end:
        raise ConfigError("endingTimestamp", end, f"expected a time behind {start}")
    if start is not None and start > wall_clock_ms():
        _log.warning("nothing matches startingTimestamp=%d yet: it lies in the future", start)
    first = [found for plan in plans if (found := _first_stored_ms(plan)) is not None]
    if end is not None and first and end <= min(first):
        _log.warning(
            "nothing matches endingTimestamp=%d: the first message was stored at %d",
            end,
            min(first),
        )


def _check_queue_times(options: ReadOptions, plans: list[AnyLog]) -> None:
    """Kafka's rule: a time behind which a queue has nothing is an error, unless told otherwise."""
    if options.starting_times_strategy == "latest":
        return
    for topic, queue_id, time_ms in options.starting_times or ():
        last = [plan.last_of_queue(topic, queue_id) for plan in plans]
        has_tail = any(plan.known_end < plan.end for plan in plans)
        if not has_tail and all(one is None or one.store_timestamp_ms < time_ms for one in last):
            raise ConfigError(
                f"startingOffsetsByTimestamp of {topic}/{queue_id}",
                time_ms,
                "nothing was stored then or later; startingOffsetsByTimestampStrategy=latest "
                "waits for what comes",
            )


def _first_stored_ms(plan: AnyLog) -> int | None:
    record = plan.record_at(plan.start)
    with suppress(RmqCoreError):
        return None if record is None else decode_record(record).store_timestamp_ms
    return None


def _queues(plan: AnyLog) -> dict[str, set[int]]:
    """Topics of a store, those without messages too, and the queues of each."""
    found = plan.queues()
    live = plan.live if isinstance(plan, JoinedLog) else plan
    if found and isinstance(live, LogPlan):
        with suppress(OSError, ValueError, AttributeError):
            text = (live.directory.path / "config" / "topics.json").read_text("utf-8")
            for topic in json.loads(text).get("topicConfigTable", {}):
                found.setdefault(topic, set())
    return found
