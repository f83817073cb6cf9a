"""A broker: RocketMQ's clients produce to a store and consume from it over the network.

One file a group of requests, over the managers of topics, subscription groups and clients; all of
it runs on one event loop. Never touches a store's files: it puts, gets and queries as any caller.

Floor: F8.
"""

from rmqcore.broker.broker import Broker
from rmqcore.broker.settings import BrokerConfig

__all__ = ["Broker", "BrokerConfig"]
