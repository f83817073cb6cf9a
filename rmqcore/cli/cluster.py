"""``rmqcore cat`` and ``rmqcore export`` of a topic of a running cluster: ``namesrv://...``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from rmqcore import MessageExt
from rmqcore.errors import ArgumentError
from rmqcore.scan.cluster import Cluster, QueueRange, parse_namesrv_url
from rmqcore.scan.cluster.read import messages_of
from rmqcore.transfer.export import ExportedPart
from rmqcore.transfer.export_cluster import export_topic


def cluster_messages(
    url: Path, queue: int | None, start: int | None, stop: int | None
) -> Iterator[MessageExt]:
    """The messages of a topic, queue after queue.

    Args:
        url: names cluster and topic.
        queue: id of the queues; None for all.
        start: queue offset of the first message; None for the earliest.
        stop: queue offset behind the last one; None for what there is now.

    Raises:
        ArgumentError: no such queue.
        RemotingError: a name server or broker does not answer, or will not.
    """
    access, topic = parse_namesrv_url(url)
    with Cluster(access) as cluster:
        ranges = cluster.ranges([topic])
    if queue is not None and queue not in {one.queue.queue_id for one in ranges}:
        there = ", ".join(sorted({str(one.queue.queue_id) for one in ranges}))
        raise ArgumentError("queue", queue, f"one of {there}")
    for one in ranges:
        if queue in (None, one.queue.queue_id):
            yield from messages_of(access, _cut(one, start, stop))


def _cut(one: QueueRange, start: int | None, stop: int | None) -> QueueRange:
    first = one.first if start is None else max(one.first, start)
    return replace(one, first=first, stop=one.stop if stop is None else min(one.stop, stop))


def export_url(url: Path, directory: Path, file_format: str) -> list[ExportedPart]:
    """Write the messages of a topic to files; see `export_topic`.

    Args:
        url: ``namesrv://host:port/topic``.
        directory: where the files go.
        file_format: as that of `export_topic`.
    """
    access, topic = parse_namesrv_url(url)
    return export_topic(access, topic, directory, file_format=file_format)
