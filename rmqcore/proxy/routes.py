"""QueryRoute: a topic's queues, each with the place where the client finds it.

That is always the proxy, under the address that the client itself calls it by.

Source: RocketMQ proxy/grpc/v2/route/RouteActivity.java.
"""

from __future__ import annotations

from typing import Final

from rmqcore.proxy.callers import Caller
from rmqcore.proxy.calls import Call
from rmqcore.proxy.cluster import BrokerQueues, Cluster, TopicView
from rmqcore.proxy.codes import OK, Code, RefusedError
from rmqcore.proxy.messages import MessageQueue, Permission, V2Message, v2_class
from rmqcore.proxy.names import copied_name, topic_name

_Response: Final = v2_class("QueryRouteResponse")
#: Each queue of an answer has the endpoints that its client has named, of so many bytes.
_ENDPOINTS_MAX: Final = 1024


class RouteCalls:
    """Tells routes.

    Args:
        cluster: the brokers.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def query(self, call: Call, caller: Caller, request: V2Message) -> V2Message:
        """Answer with a topic's queues, also for a topic that its first use will make.

        Args:
            call: of the client.
            caller: who it is.
            request: a ``QueryRouteRequest``: topic, and the endpoints that answers name.

        Raises:
            RefusedError: there is no such topic, and none is made, or the endpoints are too long.
        """
        name = topic_name(request.topic)
        named, endpoints = copied_name(request.topic), checked_endpoints(request.endpoints)
        view = await self._cluster.topic(name)
        if view is None:
            view = await self._cluster.topic_to_be(name)
        if view is None:
            raise RefusedError(Code.TOPIC_NOT_FOUND, f"there is no topic {name}")
        queues = [
            queue_message(named, view, broker, queue_id, endpoints)
            for broker in view.brokers
            for queue_id in range(max(broker.readable, broker.writable))
        ]
        return _Response(status=OK, message_queues=queues)


def checked_endpoints(endpoints: V2Message) -> V2Message:
    """Where a client finds the proxy, as it says, which is told it again with each queue.

    Args:
        endpoints: RocketMQ's ``Endpoints``.

    Raises:
        RefusedError: they have too many bytes.
    """
    size = endpoints.ByteSize()
    if size > _ENDPOINTS_MAX:
        reason = f"endpoints of {size} bytes, {_ENDPOINTS_MAX} at most"
        raise RefusedError(Code.BAD_REQUEST, reason)
    return endpoints


def queue_message(
    topic: V2Message, view: TopicView, broker: BrokerQueues, queue_id: int, endpoints: V2Message
) -> V2Message:
    """One queue as clients get it; -1 stands for any queue of the broker.

    Args:
        topic: RocketMQ's ``Resource``, as the client has named it.
        view: of the topic.
        broker: one of it.
        queue_id: of the broker.
        endpoints: where the client finds the broker: RocketMQ's ``Endpoints``, the proxy's own.
    """
    readable, writable = queue_id < broker.readable, queue_id < broker.writable
    if readable and writable:
        permission = Permission.READ_WRITE
    else:
        permission = Permission.READ if readable else Permission.WRITE
    return MessageQueue(
        topic=topic,
        id=queue_id,
        permission=permission,
        broker={"name": broker.broker_name, "id": 0, "endpoints": endpoints},
        accept_message_types=view.accepts,
    )
