"""A broker: RocketMQ's clients produce to a store and consume from it over the network.

One file a group of requests, over one `BrokerState` of topics, subscription groups and clients; all
of it runs on one event loop. Never touches a store's log, queues or index: it puts, gets and
queries as any caller. Tables of its own lie in the store's ``config/``.

Floor: F8.
"""

from rmqcore.broker.broker import Broker
from rmqcore.broker.state.settings import BrokerConfig

__all__ = ["Broker", "BrokerConfig"]
