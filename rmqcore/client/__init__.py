"""A client for asyncio: produces to RocketMQ, consumes from it, and administers it.

Never opens a store: it speaks to any broker and name server of RocketMQ, ours included.
`rmqcore.client.blocking` has the same names without ``await``.

    async with Producer("127.0.0.1:9876", group="orders") as producer:
        result = await producer.send("Orders", b"one", tags="new", keys="o-1")

    async with Consumer("127.0.0.1:9876", "billing", {"Orders": "new || paid"}) as consumer:
        async for message in consumer:
            await consumer.ack(message)

Floor: beside, on remoting/, java/, `message`, `_codec` and the native format.
"""

from rmqcore.client.admin import Admin
from rmqcore.client.consumer import Consumer
from rmqcore.client.errors import (
    ClientClosedError,
    ClientForkedError,
    ClientMisusedError,
    GroupNotFoundError,
    NoRouteError,
)
from rmqcore.client.producer import Producer
from rmqcore.client.results import MessageQueue, SendResult, SendStatus, TransactionState
from rmqcore.message import ReceivedMessage, Sql
from rmqcore.remoting.acl import AclSigner

__all__ = [
    "AclSigner",
    "Admin",
    "ClientClosedError",
    "ClientForkedError",
    "ClientMisusedError",
    "Consumer",
    "GroupNotFoundError",
    "MessageQueue",
    "NoRouteError",
    "Producer",
    "ReceivedMessage",
    "SendResult",
    "SendStatus",
    "Sql",
    "TransactionState",
]
