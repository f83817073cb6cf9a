"""High availability: a slave follows its master's log, byte for byte, over RocketMQ's own protocol.

`HAService` is the master's side, `HAClient` the slave's; either speaks with a broker of RocketMQ as
well as with ours. Only the log travels: queues and index are derived from it on each side, topics
and offsets are fetched by the broker (`rmqcore.broker.replication.slave_synchronize`). Never knows
a topic or a broker.

Floor: F8.
"""

from rmqcore.ha.client import HAClient
from rmqcore.ha.errors import HAError
from rmqcore.ha.service import HAService
from rmqcore.ha.settings import HAConfig

__all__ = ["HAClient", "HAConfig", "HAError", "HAService"]
