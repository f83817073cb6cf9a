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

from rmqcore.scan.cluster.access import Access, parse_namesrv_url
from rmqcore.scan.cluster.ranges import QueueRange
from rmqcore.scan.cluster.read import MessagesGoneError, read_range
from rmqcore.scan.cluster.topology import Cluster

__all__ = [
    "Access",
    "Cluster",
    "MessagesGoneError",
    "QueueRange",
    "parse_namesrv_url",
    "read_range",
]
