"""A name server: brokers register with it, clients ask it where a topic's queues are.

    server = NameServer("127.0.0.1", 0, NamesrvConfig(order_message_enable=True))
    await server.start()
    print(server.port)
    await server.stop()

Brokers and clients of Apache RocketMQ 4.9 and 5.x use it as they use Java's. It keeps routes in
memory, as Java's does: brokers fill it again within 30 s of a start. Never knows a store.

Floor: beside, on remoting/, java/, errors, and how a small file is replaced and a setting checked.
"""

from rmqcore.namesrv.namesrv_config import NamesrvConfig
from rmqcore.namesrv.server import NameServer

__all__ = ["NameServer", "NamesrvConfig"]
