"""Messages that running brokers have: queues and their ranges, pulled whole and given as columns.

Never joins a group, and never opens a store: what a name server knows is asked once a call, and
ranges of queue offsets are pulled over connections of their own.

    access = Access(namesrv_addr="127.0.0.1:9876")
    with Cluster(access) as cluster:
        ranges = cluster.ranges(["Orders"])
    for one in ranges:
        for batch in read_range(access, one):
            print(batch.to_arrow().num_rows)

Floor: F6.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Unpack

from rmqcore.scan.cluster.access import Access, parse_namesrv_url
from rmqcore.scan.cluster.ranges import QueueRange
from rmqcore.scan.cluster.read import MessagesGoneError, TopicMadeAnewError, read_range
from rmqcore.scan.cluster.topology import Cluster

if TYPE_CHECKING:
    from rmqcore.scan.cluster.dataset import ClusterDataset
    from rmqcore.scan.selection import Selection

__all__ = [
    "Access",
    "Cluster",
    "MessagesGoneError",
    "QueueRange",
    "TopicMadeAnewError",
    "arrow_dataset",
    "parse_namesrv_url",
    "read_range",
]


def arrow_dataset(
    url: str,
    columns: Iterable[str] | None = None,
    *,
    plain_bodies: bool = False,
    **selection: Unpack[Selection],
) -> ClusterDataset:
    """The messages that a topic of a running cluster has now, as a ``pyarrow.dataset.Dataset``.

    DuckDB takes it by the variable's name. Needs pyarrow.

    Args:
        url: ``namesrv://host:port/topic``; see `parse_namesrv_url`.
        columns: names out of `rmqcore.scan.COLUMNS`; None for the usual ones.
        plain_bodies: decompress bodies that are stored compressed.
        **selection: only these messages; looked at after they were pulled.

    Raises:
        ArgumentError: the text names no topic.
        ValueError: an unknown column.
        NoRouteError: no broker has the topic.
        RemotingError: a name server or broker does not answer, or will not.
    """
    from rmqcore.scan.cluster.dataset import ClusterDataset  # noqa: PLC0415 - needs pyarrow

    access, topic = parse_namesrv_url(url)
    with Cluster(access) as cluster:
        ranges = cluster.ranges([topic])
    return ClusterDataset(access, ranges, columns, plain_bodies=plain_bodies, selection=selection)
