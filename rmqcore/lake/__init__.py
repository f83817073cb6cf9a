"""Tables that follow a topic: Delta and Iceberg tables whose commits say how far they are.

What a commit holds and how far its queues were read is one fact, so a follower that is killed
anywhere goes on where the table is, and each message is a row once. Never commits an offset of a
consumer group, and never changes what it reads.

    from rmqcore.lake import TableFollower
    with TableFollower("STORE", "orders", topic="Orders", table_format="delta") as follower:
        print(follower.run_once())

Floor: F7.
"""

from rmqcore.lake.batch_table import BatchTable
from rmqcore.lake.bodies import Bodies
from rmqcore.lake.follower import Round, TableFollower

__all__ = ["BatchTable", "Bodies", "Round", "TableFollower"]
