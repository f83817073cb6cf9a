"""`BrokerState`: what all parts of one broker share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from rmqcore.broker.state.clients import Consumers, Producers
from rmqcore.broker.state.consumer_notices import ConsumerNotices
from rmqcore.broker.state.groups import Groups
from rmqcore.broker.state.offsets import Offsets
from rmqcore.broker.state.passed_over import PassedOver
from rmqcore.broker.state.queue_locks import QueueLocks
from rmqcore.broker.state.rates import Rates
from rmqcore.broker.state.request_modes import RequestModes
from rmqcore.broker.state.resets import Resets
from rmqcore.broker.state.settings import BrokerConfig
from rmqcore.broker.state.topics import Topics
from rmqcore.broker.state.traffic import Traffic
from rmqcore.files.group_table import SubscriptionGroupTable
from rmqcore.files.request_mode_table import MessageRequestModeTable
from rmqcore.files.static_topics import StaticTopics
from rmqcore.services.standing import Standing
from rmqcore.store.message_store import DefaultMessageStore
from rmqcore.world import World

#: Hears that a queue, named by topic and queue id, has messages; called on the event loop.
Arrived: TypeAlias = Callable[[str, int], None]


class BrokerState:
    """The store, the settings and what is known of topics, groups and clients.

    A part takes this, and besides it only what it alone needs.

    Attributes:
        store: where the messages are.
        folder: its ``config`` folder.
        config: gives the settings at this moment.
        topics, groups, modes: the tables, with their files.
        static_topics: topics of RocketMQ's that are not served.
        offsets: what groups have consumed.
        consumers, producers: who is connected.
        locks: which client of a group consumes a queue in order.
        traffic, rates: what came and went.
        passed_over: records that no service could handle.
        standing: what fails at the moment and is tried again.
        ha_status: gives what request 907 tells.
    """

    def __init__(
        self,
        store: DefaultMessageStore,
        folder: Path,
        config: Callable[[], BrokerConfig],
        *,
        topics_changed: Callable[[], None],
        groups_changed: Callable[[], None],
        world: World,
    ) -> None:
        """Read the tables.

        Args:
            store: where the messages are.
            folder: its ``config`` folder.
            config: gives the settings at this moment.
            topics_changed: called after each change of a topic.
            groups_changed: called after each change of a group, or of how it gets a topic.
            world: its clocks.

        Raises:
            CorruptConfigFileError: the groups or the modes cannot be read.
        """
        self.store = store
        self.folder = folder
        self.config = config
        self.world = world
        #: raises when another store is where this one was
        self.check_there = there = store.parts.files.directory.check_there
        groups = SubscriptionGroupTable(folder, clock=world.clock_ms)
        modes = MessageRequestModeTable(folder, clock=world.clock_ms)
        groups.check_there = modes.check_there = there
        self.static_topics = StaticTopics(folder, there)
        self.topics = Topics(store.topics, config, topics_changed, self.static_topics.is_one)
        self.groups = Groups(groups, config, groups_changed)
        self.modes = RequestModes(modes, groups_changed)
        resets, monotonic_s = Resets(folder, there), world.monotonic_s
        self.offsets = Offsets(store, self.topics, self.groups, resets, monotonic_s)
        self.consumers = Consumers(ConsumerNotices())
        self.producers = Producers()
        self.locks = QueueLocks(monotonic_s)
        self.traffic = Traffic()
        self.rates = Rates(self.traffic, config().broker_cluster_name, world)
        self.passed_over = PassedOver(store)
        self.standing = Standing()
        self.ha_status: Callable[[], Mapping[str, Any]] = dict
        self._listeners: tuple[Arrived, ...] = ()
        #: by topic, who hears of that one only
        self._listeners_of: dict[str, Arrived] = {}

    def on_arrival(self, listener: Arrived, topic: str | None = None) -> None:
        """Have somebody called when a queue has messages: of any topic, or of one.

        Args:
            listener: called with topic and queue id, on the event loop.
            topic: one, which has no other listener of its own; None for all.
        """
        if topic is None:
            self._listeners += (listener,)
        else:
            self._listeners_of[topic] = listener

    def arrived(self, topic: str, queue_id: int) -> None:
        """Tell who waits for messages that a queue has some; on the event loop.

        Args:
            topic: of the queue; listeners to it alone are called last.
            queue_id: of the queue.
        """
        for listener in self._listeners:
            listener(topic, queue_id)
        if topic in self._listeners_of:
            self._listeners_of[topic](topic, queue_id)
