"""`Managers`: a broker's state at run time: topics, groups, clients, locks, transactions."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rmqcore.broker.pop.acks import PopAcks
from rmqcore.broker.pop.checkpoints import Checkpoints
from rmqcore.broker.pop.hold import PopHold
from rmqcore.broker.pop.order import PopOrder
from rmqcore.broker.pop.receipts import retry_topic_of
from rmqcore.broker.pull.hold import PullHold
from rmqcore.broker.send.transactions import Transactions
from rmqcore.broker.state.client_requests import ConsumerNotices, QueueLocks
from rmqcore.broker.state.clients import Consumers, Producers
from rmqcore.broker.state.groups import Groups
from rmqcore.broker.state.offsets import Offsets
from rmqcore.broker.state.passed_over import PassedOver
from rmqcore.broker.state.rates import Rates
from rmqcore.broker.state.request_modes import RequestModes
from rmqcore.broker.state.settings import BrokerConfig
from rmqcore.broker.state.topics import Topics
from rmqcore.broker.state.traffic import Traffic
from rmqcore.broker.timer.timer import TimerMessages
from rmqcore.errors import DiskFullError, StoreClosedError, StoreError, StoreNotWritableError
from rmqcore.files.group_table import SubscriptionGroupTable
from rmqcore.files.request_mode_table import MessageRequestModeTable
from rmqcore.files.timer_check import TIMER_TOPIC
from rmqcore.remoting import Connection
from rmqcore.store.message_store import DefaultMessageStore
from rmqcore.world import wall_clock_ms


@dataclass(slots=True)
class Managers:
    """The managers of one broker; requests take those that they need.

    Attributes:
        store: where the messages are.
        folder: its ``config`` folder.
        config: the settings at this moment.
        ha_status: what request 907 tells.
    """

    store: DefaultMessageStore
    folder: Path
    config: Callable[[], BrokerConfig]
    topics: Topics
    groups: Groups
    modes: RequestModes
    consumers: Consumers = field(default_factory=lambda: Consumers(ConsumerNotices()))
    producers: Producers = field(default_factory=Producers)
    locks: QueueLocks = field(default_factory=QueueLocks)
    hold: PullHold = field(default_factory=PullHold)
    traffic: Traffic = field(default_factory=Traffic)
    passed_over: PassedOver = field(default_factory=PassedOver)
    pop_hold: PopHold = field(default_factory=PopHold)
    ha_status: Callable[[], Mapping[str, Any]] = dict
    checkpoints: Checkpoints = field(init=False)
    pop_order: PopOrder = field(init=False)
    pop_acks: PopAcks = field(init=False)
    offsets: Offsets = field(init=False)
    rates: Rates = field(init=False)
    transactions: Transactions = field(init=False)
    timer: TimerMessages = field(init=False)

    def __post_init__(self) -> None:
        """Make the managers that need others."""
        self.rates = Rates(self.traffic, self.config().broker_cluster_name)
        self.offsets = Offsets(self.store, self.topics, self.groups)
        self.transactions = Transactions(
            self.store, self.config, self.topics, self.producers, self.arrived, self.passed_over
        )
        self.timer = TimerMessages(
            self.store, self.config, self.folder, self._timer_arrived, self.passed_over
        )
        self.checkpoints = Checkpoints(self.store, self.config, self.passed_over)
        self.store.consumer_offsets.ahead = self._flush_log
        self.pop_order = PopOrder(self.folder)
        self.pop_acks = PopAcks(
            self.store,
            self.config,
            self.topics,
            self.offsets,
            self.checkpoints,
            self.pop_order,
            self.pop_hold,
            self.arrived,
            self.passed_over,
        )

    @classmethod
    def of(
        cls,
        store: DefaultMessageStore,
        folder: Path,
        config: Callable[[], BrokerConfig],
        *,
        topics_changed: Callable[[], None],
        groups_changed: Callable[[], None],
    ) -> Managers:
        """The managers over a store.

        Args:
            store: where the messages are.
            folder: its ``config`` folder.
            config: the settings at this moment.
            topics_changed: called after each change of a topic.
            groups_changed: called after each change of a group, or of how it gets a topic.

        Raises:
            CorruptConfigFileError: the groups or the modes cannot be read.
        """
        groups = SubscriptionGroupTable(folder, clock=wall_clock_ms)
        modes = MessageRequestModeTable(folder, clock=wall_clock_ms)
        return cls(
            store,
            folder,
            config,
            Topics(store.topics, config, topics_changed),
            Groups(groups, config, groups_changed),
            RequestModes(modes, groups_changed),
        )

    def arrived(self, topic: str, queue_id: int) -> None:
        """Tell who waits for messages that a queue has some."""
        self.hold.arrived(topic, queue_id)
        self.pop_hold.arrived(topic, queue_id)
        if topic == TIMER_TOPIC:
            self.timer.wake()

    def _timer_arrived(self, topic: str, queue_id: int) -> None:
        """As `arrived`; checkpoints of a broker of RocketMQ come out of the timer, too."""
        if topic == self.checkpoints.topic:
            self.checkpoints.read_back(queue_id)
        self.arrived(topic, queue_id)

    def arrived_in(self, queues: Iterable[tuple[str, int]]) -> None:
        """As `arrived`, for several queues."""
        for topic, queue_id in queues:
            self.arrived(topic, queue_id)

    def _flush_log(self) -> None:
        """Write what the consumer offsets rely on through to the disk, before they are written.

        An offset passes over a message when another record stands for it: the checkpoint of a pop,
        the copy in a retry topic or a dead letter, the message of a transaction that is decided.

        Raises:
            OSError: it cannot be written.
        """
        try:
            self.store.flush_log()
        except DiskFullError:
            raise
        except (StoreClosedError, StoreNotWritableError):
            return  # the store writes them itself: it closes, and has flushed, or deletes a topic
        except StoreError as error:
            raise OSError(errno.EIO, str(error)) from error

    @asynccontextmanager
    async def deleting(self, topic: str) -> AsyncIterator[list[str]]:
        """Forget what is known of a topic's messages; the context in which it is deleted.

        No pop hands any of them out meanwhile: a receipt must not name a message of the topic that
        has the name next.

        Returns:
            the topics that go with it: those of its messages that POP hands out again.

        Raises:
            StoreError, OSError: it cannot be stored.
        """
        pairs = self.store.consumer_offsets.pairs()
        others, retries = set[str](), set[str]()
        for name, group in pairs:
            again = retry_topic_of(group, name)
            if again != name:
                (retries if name == topic else others).add(again)
        along = [name for name in retries - others if self.topics.get(name) is not None]
        names = {topic, *along}
        self.topics.leaving |= names
        try:
            for name in names:
                self.offsets.forget_topic(name)
                self.pop_order.forget_topic(name)
                self.checkpoints.forget_topic(name)
            await asyncio.to_thread(self.pop_order.persist)
            yield along
        finally:
            self.topics.leaving -= names

    def follow_deletion(self, topic: str, phy_offset: int) -> bool:
        """Delete on a slave what its master has deleted of a topic, and forget what is known of it.

        Returns:
            False when the slave's log does not reach there yet.

        Raises:
            OSError, StoreError: as of the store's `follow_deletion`.
        """
        if not self.store.followed_log.follow_deletion(topic, phy_offset):
            return False
        self.offsets.forget_topic(topic)
        self.pop_order.forget_topic(topic)
        return True

    def release(self) -> None:
        """Answer all requests that wait for messages: the broker is about to stop."""
        self.hold.release()
        self.pop_hold.release()

    def finish(self) -> None:
        """Keep what is reached; the last call, before the store is closed.

        Raises:
            OSError, StoreError: it cannot be written.
        """
        self.timer.finish()
        self.checkpoints.commit()
        self.pop_order.persist()
        self.store.flush()

    def forget(self, connection: Connection) -> None:
        """Let go of a connection that was closed: its clients, and its requests that wait."""
        self.consumers.forget(connection)
        self.producers.forget(connection)
        self.hold.forget(connection)
        self.pop_hold.forget(connection)
