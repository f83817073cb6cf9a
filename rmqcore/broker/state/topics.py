"""The topics of a broker: those there are at its start, and those that clients create."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Final

from rmqcore.broker.state.budgets import (
    NAME_SIZE_MAX,
    TOPICS_CREATED_MAX,
    TOPICS_MAX,
    BudgetExceededError,
)
from rmqcore.broker.state.settings import BrokerConfig
from rmqcore.broker.state.table_file import TableFile
from rmqcore.broker.state.topic_attributes import is_compacted
from rmqcore.chance import randrange
from rmqcore.errors import MessageIllegalError, StoreError
from rmqcore.files.config_tables import TopicConfig, TopicConfigTable, check_topic_name
from rmqcore.files.consume_queue import SCHEDULE_TOPIC
from rmqcore.files.service_topics import (
    CHECK_MAX_TIME_TOPIC,
    HALF_TOPIC,
    OP_HALF_TOPIC,
    REVIVE_PREFIX,
    SYSTEM_PREFIX,
    TABLE_PREFIX,
)
from rmqcore.files.timer_check import TIMER_TOPIC
from rmqcore.message import DEAD_LETTER_PREFIX, RETRY_PREFIX
from rmqcore.remoting import RequestRefusedError, ResponseCode
from rmqcore.remoting.codes import PERM_INHERIT, PERM_READ, PERM_WRITE

AUTO_CREATE_TOPIC: Final = "TBW102"
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC: Final = "OFFSET_MOVED_EVENT"
_NOT_FOR_CLIENTS: Final = frozenset(
    {
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
    }
)
#: A topic with more queues is refused.
QUEUES_MAX: Final = 65_536
_SCHEDULE_QUEUES: Final = 18
_BENCHMARK_QUEUES: Final = 1024
_CLUSTER_QUEUES: Final = 16
_REVIVE_QUEUES: Final = 8


def queue_ids(count: int) -> range:
    """Those of a topic's queues; another broker's table may name any number of these."""
    return range(min(count, QUEUES_MAX))


class Topics:
    """Which topics there are, and the creation of those that there are not.

    Source: RocketMQ broker/topic/TopicConfigManager.java, common/topic/TopicValidator.java.
    """

    def __init__(
        self,
        table: TopicConfigTable,
        config: Callable[[], BrokerConfig],
        on_change: Callable[[], None],
        is_static: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """Create the topics that every broker has.

        Args:
            table: the store's topics.
            config: the broker's settings at this moment.
            on_change: called after each change, to write the table and to tell the name servers.
            is_static: tells of a topic of RocketMQ's that is not served, see `StaticTopics`.
        """
        self.table = table
        self._is_static = is_static
        self._config = config
        self._on_change = on_change
        #: topics that are being deleted
        self.being_deleted: set[str] = set()
        #: called with the name of a topic that there is from now on
        self.on_made: Callable[[str], None] = lambda _: None
        self.system_topics = frozenset(self._create_system_topics())
        #: a topic that this file does not have when the store is opened counts as deleted by
        #: RocketMQ, and its messages go with it: a send is answered when it is written
        self.file = TableFile(table, on_change)

    def get(self, topic: str) -> TopicConfig | None:
        """The configuration of a topic, None when there is none."""
        return self.table.get(topic)

    def expect(self, topic: str) -> TopicConfig:
        """The configuration of a topic.

        Raises:
            RequestRefusedError: there is none; answers with code 17.
        """
        found = self.table.get(topic)
        if found is None:
            raise _unknown(topic)
        return found

    def expect_served(self, topic: str) -> TopicConfig:
        """The configuration of a topic whose queues are those that clients know.

        Raises:
            RequestRefusedError: there is none, code 17; or RocketMQ maps its queues, code 16.
        """
        self._check_served(topic)
        return self.expect(topic)

    def _check_served(self, topic: str) -> None:
        if self._is_static(topic):
            remark = f"topic[{topic}] is a static one of RocketMQ's, which is not supported here"
            raise RequestRefusedError(ResponseCode.NO_PERMISSION, remark)

    def is_system(self, topic: str) -> bool:
        """Tell whether the broker itself owns a topic."""
        return topic in self.system_topics or topic.startswith(SYSTEM_PREFIX)

    def is_own(self, topic: str) -> bool:
        """Tell whether broker or store believe what a topic holds: nobody else may write it."""
        if topic == self._config().msg_trace_topic_name:
            return False
        return topic in _NOT_FOR_CLIENTS or topic.startswith((SYSTEM_PREFIX, TABLE_PREFIX))

    def put(self, topic: TopicConfig) -> None:
        """Create or replace a topic.

        Raises:
            RequestRefusedError: its name is no topic's; answers with code 29.
            BudgetExceededError: it is new, and there are too many.
        """
        if len(self.table) >= TOPICS_MAX and self.table.get(topic.topic_name) is None:
            raise BudgetExceededError("topics", TOPICS_MAX)
        self._put(topic)

    def _put(self, topic: TopicConfig) -> None:
        is_new = self.table.get(topic.topic_name) is None
        try:
            self.table.put(topic)
        except MessageIllegalError as error:
            raise RequestRefusedError(ResponseCode.INVALID_PARAMETER, str(error)) from error
        if is_new:
            self.on_made(topic.topic_name)
        self.file.changed(topic.topic_name)
        self._on_change()

    def removed(self) -> None:
        """Tell the name servers that the store has one topic less."""
        self._on_change()

    def check_sendable(self, topic: str) -> None:
        """Refuse what no client may send to.

        Raises:
            RequestRefusedError: with code 16 a topic of the broker's own, a static one, or one that
                RocketMQ compacts: retention would delete the last message of a key; with 29 no
                topic's name, with 14 one that is being deleted: a message would be left in a queue
                of no topic.

        Source: TopicValidator, isNotAllowedSendTopic; that names six topics, and none of
        ``rmq_sys_``.
        """
        if self.is_own(topic):
            remark = f"Sending message to topic[{topic}] is forbidden."
            raise RequestRefusedError(ResponseCode.NO_PERMISSION, remark)
        wrong = _name_error(topic)
        if wrong is not None:
            raise RequestRefusedError(ResponseCode.INVALID_PARAMETER, wrong)
        self._check_stays(topic)

    def _check_stays(self, topic: str) -> None:
        """Refuse a topic whose messages would go with it, or before their time.

        Raises:
            RequestRefusedError: it is being deleted, code 14, or RocketMQ compacts it, or maps its
                queues, code 16.
        """
        self._check_served(topic)
        found = self.table.get(topic)
        if found is not None and is_compacted(found.attributes):
            remark = f"topic[{topic}] has cleanup.policy=COMPACTION, which is not supported here"
            raise RequestRefusedError(ResponseCode.NO_PERMISSION, remark)
        if topic in self.being_deleted:
            remark = f"topic {topic} is being deleted"
            raise RequestRefusedError(ResponseCode.SERVICE_NOT_AVAILABLE, remark)

    def for_send(self, topic: str, template: str, queue_count: int) -> TopicConfig:
        """The topic of a message, created if it may be.

        Args:
            topic: the message's topic.
            template: the topic whose settings a new one takes; clients say ``TBW102``.
            queue_count: queues that the client wants for a new one.

        Raises:
            RequestRefusedError: there is no such topic, and it is not created; code 17.
            BudgetExceededError: it would be created, and there are too many.

        Source: TopicConfigManager, createTopicInSendMessageMethod.
        """
        found = self.table.get(topic)
        if found is not None:
            return found
        self.check_sendable(topic)
        self.expect_room(topic)
        origin = self.table.get(template)
        allowed = template != AUTO_CREATE_TOPIC or self._config().auto_create_topic_enable
        if origin is not None and allowed and origin.perm & PERM_INHERIT:
            count = max(0, min(queue_count, origin.write_queue_nums))
            created = TopicConfig(
                topic_name=topic,
                read_queue_nums=count,
                write_queue_nums=count,
                perm=origin.perm & ~PERM_INHERIT,
                topic_filter_type=origin.topic_filter_type,
            )
        elif topic.startswith(RETRY_PREFIX):
            created = TopicConfig(topic_name=topic, read_queue_nums=1, write_queue_nums=1)
        else:
            raise _unknown(topic)
        self.put(created)
        return created

    def expect_room(self, topic: str) -> None:
        """Refuse what would create one topic more than clients may.

        Raises:
            BudgetExceededError: it is so, and the topic is not there.
        """
        if len(self.table) >= TOPICS_CREATED_MAX and self.table.get(topic) is None:
            raise BudgetExceededError("topics to create one more", TOPICS_CREATED_MAX)

    def for_group(self, topic: str, queue_count: int = 1) -> TopicConfig:
        """The retry or dead-letter topic of a group, created when it is missing.

        However many there are: a message waits for it.

        Args:
            topic: its name, with ``%RETRY%`` or ``%DLQ%`` in front.
            queue_count: queues that it gets when it is made.
        """
        found = self.table.get(topic)
        if found is None:
            found = TopicConfig(
                topic_name=topic,
                read_queue_nums=queue_count,
                write_queue_nums=queue_count,
                perm=PERM_READ | PERM_WRITE,
            )
            self._put(found)
        return found

    def for_given_back(self, topic: str, queue_count: int = 1) -> TopicConfig:
        """As `for_group`, for a message that a consumer gives back.

        Raises:
            RequestRefusedError: the topic is being deleted: the message would be left in a queue
                of no topic; code 14.
        """
        self._check_stays(topic)
        return self.for_group(topic, queue_count)

    def for_copy(self, topic: str, queue_count: int = 1) -> TopicConfig:
        """As `for_group`, for a message that the broker itself is to put there.

        Raises:
            StoreError: the topic is being deleted; the message waits.
        """
        if topic in self.being_deleted:
            raise StoreError(f"topic {topic} is being deleted")
        return self.for_group(topic, queue_count)

    def know_again(self, queues: Iterable[tuple[str, int]]) -> None:
        """Have the topics of groups whose messages are there; before anything is served.

        The message that makes such a topic is in the log before the table is written: a power cut
        in between leaves queues that nobody would read.

        Args:
            queues: (topic, queue id) of every queue of the store.
        """
        counts: dict[str, int] = {}
        for topic, queue_id in queues:
            read = topic.startswith(RETRY_PREFIX)
            if read or (topic.startswith(DEAD_LETTER_PREFIX) and self.table.get(topic) is None):
                counts[topic] = max(counts.get(topic, 0), queue_id + 1)
        self._know(counts)

    def know_of_log(self, queues: Iterable[tuple[str, int]]) -> None:
        """Have topics and queues that came with a master's log alone, see `unknown_topics`.

        Nothing that is sent to one is answered before the file has it.

        Args:
            queues: (topic, queue id) of what they need; a new topic has as many as usual at least,
                and one that is there gets them to read.
        """
        usual, counts = self._config().default_topic_queue_nums, dict[str, int]()
        for topic, queue_id in queues:
            has_one = topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX, TABLE_PREFIX))
            least = 1 if has_one or self.table.get(topic) is not None else usual
            # no consumer reads as many queues as a stray number would ask for
            needed = queue_id + 1 if queue_id < QUEUES_MAX else least
            counts[topic] = max(counts.get(topic, least), needed)
        self._know(counts)
        for topic in counts:
            self.file.changed(topic)

    def _know(self, counts: Mapping[str, int]) -> None:
        for topic, count in counts.items():
            found = self.table.get(topic)
            if found is None:
                known = TopicConfig(topic_name=topic, read_queue_nums=count, write_queue_nums=count)
            elif found.read_queue_nums < count:
                known = replace(found, read_queue_nums=count)
            else:
                continue
            with suppress(MessageIllegalError):
                self.table.put(known)

    async def for_staged(self, queues: Iterable[tuple[str, int]]) -> None:
        """Have the topics and queues to read of records that are about to be appended.

        Args:
            queues: (topic, queue id) of all of them.

        Raises:
            RequestRefusedError: a topic is being deleted, RocketMQ compacts it, or it cannot be
                written now.
            BudgetExceededError: there are too many topics.
        """
        counts: dict[str, int] = {}
        for topic, queue_id in queues:
            counts[topic] = max(counts.get(topic, 0), queue_id + 1)
        for topic, count in counts.items():
            self._check_stays(topic)
            found = self.table.get(topic)
            if found is None:
                made = TopicConfig(topic_name=topic, read_queue_nums=count, write_queue_nums=count)
                self.put(made)
            elif found.read_queue_nums < count:
                self.put(replace(found, read_queue_nums=count))
        await self.file.expect_saved(*counts)

    @staticmethod
    def queue_for_send(topic: TopicConfig, queue_id: int) -> int:
        """The queue that a message goes to; a negative number is any of `queues_for_send`.

        Args:
            topic: the topic.
            queue_id: as the request says.

        Raises:
            RequestRefusedError: the topic has no such queue; code 29.
        """
        if queue_id >= max(topic.write_queue_nums, topic.read_queue_nums):
            remark = (
                f"request queueId[{queue_id}] is illegal: topic {topic.topic_name} has "
                f"{topic.write_queue_nums} queues to write and {topic.read_queue_nums} to read"
            )
            raise RequestRefusedError(ResponseCode.INVALID_PARAMETER, remark)
        if queue_id >= 0:
            return queue_id
        return randrange(Topics.queues_for_send(topic))

    @staticmethod
    def queues_for_send(topic: TopicConfig) -> int:
        """Among how many queues the broker chooses one for a message: those that consumers read.

        Where no queue is read it is those that are written.

        Args:
            topic: the topic.
        """
        write, read = topic.write_queue_nums, topic.read_queue_nums
        return max(1, write if read < 1 else min(write, read))

    @staticmethod
    def queue_at_delivery(topic: TopicConfig | None, queue_id: int) -> int:
        """The queue that a message comes to that was put off: one that consumers read.

        The topic may have fewer queues to read since it was sent.

        Args:
            topic: None for one that is not there.
            queue_id: as it was sent.

        Returns:
            ``queue_id`` where it is read, where no queue is, and in topics of the broker's own.
        """
        if topic is None or topic.topic_name.startswith(SYSTEM_PREFIX):
            return queue_id
        count = topic.read_queue_nums
        return queue_id if queue_id < count or count < 1 else queue_id % count

    def _create_system_topics(self) -> list[str]:
        config = self._config()
        both = PERM_READ | PERM_WRITE
        inherit = both | PERM_INHERIT
        cluster_permission = inherit if config.cluster_topic_enable else PERM_INHERIT
        broker_permission = inherit if config.broker_topic_enable else PERM_INHERIT
        cluster = config.broker_cluster_name
        wanted = [
            (SELF_TEST_TOPIC, 1, both),
            ("BenchmarkTest", _BENCHMARK_QUEUES, both),
            (cluster, _CLUSTER_QUEUES, cluster_permission),
            (config.broker_name, 1, broker_permission),
            (OFFSET_MOVED_TOPIC, 1, both),
            (SCHEDULE_TOPIC, _SCHEDULE_QUEUES, both),
            (f"{cluster}_REPLY_TOPIC", 1, both),
            (HALF_TOPIC, 1, both),
            (OP_HALF_TOPIC, 1, both),
            (f"{REVIVE_PREFIX}{cluster}", _REVIVE_QUEUES, both),
            (f"rmq_sys_SYNC_BROKER_MEMBER_{config.broker_name}", 1, PERM_INHERIT),
            (TIMER_TOPIC, 1, both),
        ]
        if config.auto_create_topic_enable:
            wanted.insert(1, (AUTO_CREATE_TOPIC, config.default_topic_queue_nums, inherit))
        if config.trace_topic_enable:
            wanted.append((config.msg_trace_topic_name, 1, both))
        for name, queues, permission in wanted:
            created = TopicConfig(
                topic_name=name,
                read_queue_nums=queues,
                write_queue_nums=queues,
                perm=permission,
            )
            found = self.table.get(name)
            if found is None:
                self.table.put(created)
            elif found.perm & PERM_INHERIT != permission & PERM_INHERIT:
                self.table.put(replace(found, perm=permission))
        return [name for name, _, _ in wanted] + [AUTO_CREATE_TOPIC, CHECK_MAX_TIME_TOPIC]


def _name_error(topic: str) -> str | None:
    """What is wrong with a topic's name; None when nothing is."""
    # a longer one is none: it is not kept
    return _checked_name(topic) if len(topic) <= NAME_SIZE_MAX else _check_name(topic)


def _check_name(topic: str) -> str | None:
    try:
        check_topic_name(topic)
    except MessageIllegalError as error:
        return str(error)
    return None


_checked_name = lru_cache(maxsize=4096)(_check_name)


def _unknown(topic: str) -> RequestRefusedError:
    remark = f"topic[{topic}] not exist, apply first please!"
    return RequestRefusedError(ResponseCode.TOPIC_NOT_EXIST, remark)
