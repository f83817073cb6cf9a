"""Administration of topics: created, deleted, listed, measured.

Source: RocketMQ broker/processor/AdminBrokerProcessor.java.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Final

from rmqcore.broker.admin.stored_time import stored_ms
from rmqcore.broker.state.bodies import QueueKey, java_body, queue_key
from rmqcore.broker.state.broker_state import BrokerState
from rmqcore.broker.state.topic_attributes import QUEUE_TYPE, changed, parse_changes
from rmqcore.broker.state.topics import QUEUES_MAX, queue_ids
from rmqcore.errors import MessageIllegalError
from rmqcore.files.config_tables import TopicConfig
from rmqcore.remoting import (
    Connection,
    RemotingCommand,
    RequestCode,
    RequestRefusedError,
    ResponseCode,
    failure,
    needs,
    success,
)
from rmqcore.remoting.errors import expect_written
from rmqcore.remoting.json_body import LIST_SIZE_MAX, objects_in, read_object
from rmqcore.remoting.serves import serves

_PLAIN: Final = "SimpleCQ"
_FILTER_TYPES: Final = ("SINGLE_TAG", "MULTI_TAG")


class AdminTopics:
    """Creates, changes, deletes and lists topics, and measures them."""

    def __init__(
        self,
        state: BrokerState,
        register: Callable[[Sequence[TopicConfig]], Awaitable[None]],
        deleting: Callable[[str], AbstractAsyncContextManager[Sequence[str]]],
        leave_deletion: Callable[[], bool],
    ) -> None:
        """Prepare to answer.

        Args:
            state: the broker's.
            register: has all name servers know some topics, when it returns.
            deleting: the context in which a topic is deleted; gives the topics that go with it.
            leave_deletion: of a slave: see `Replication.leave_deletion`; False on a master.
        """
        self._store, self._config = state.store, state.config
        self._topics, self._consumers = state.topics, state.consumers
        self._rates, self._static_topics = state.rates, state.static_topics
        self._register = register
        self._deleting = deleting
        self._leave_deletion = leave_deletion

    @serves(RequestCode.UPDATE_AND_CREATE_TOPIC, needs=needs.ADMIN)
    async def update(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Create a topic, or change it; the name servers know it when this is answered."""
        name = request.text("topic")
        old = self._topics.get(name)
        read = request.number("readQueueNums", old.read_queue_nums if old else 8)
        write = request.number("writeQueueNums", old.write_queue_nums if old else 8)
        topic = TopicConfig(
            topic_name=name,
            read_queue_nums=read,
            write_queue_nums=write,
            perm=request.number("perm", 6),
            topic_filter_type=request.text("topicFilterType", "SINGLE_TAG"),
            topic_sys_flag=request.number("topicSysFlag", 0),
            order=request.boolean("order"),
            attributes=changed(
                old.attributes if old else None, parse_changes(request.text("attributes", ""))
            ),
        )
        self._check(topic)
        self._topics.put(topic)
        await self._topics.file.expect_saved(name)
        await self._register([topic])
        return success()

    @serves(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, needs=needs.ADMIN)
    async def update_several(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """As 17, for the topics in the body; nothing is changed when one of them is wrong.

        Raises:
            RequestRefusedError: a topic is none that can be made; nothing has changed.
        """
        entries = objects_in(read_object(request, LIST_SIZE_MAX), "topicConfigList")
        try:
            wanted = [TopicConfig.from_java(str(e.get("topicName", "")), e) for e in entries]
        except ValueError as error:
            raise RequestRefusedError(ResponseCode.INVALID_PARAMETER, str(error)) from error
        wanted = [self._with_attributes(topic) for topic in wanted]
        for topic in wanted:
            self._check(topic)
        for topic in wanted:
            self._topics.put(topic)
        await self._topics.file.expect_saved(*(topic.topic_name for topic in wanted))
        await self._register(wanted)
        return success()

    def _with_attributes(self, topic: TopicConfig) -> TopicConfig:
        """What a topic of a list is to be: its attributes are changes."""
        old = self._topics.get(topic.topic_name)
        attributes = changed(old.attributes if old else None, topic.attributes)
        return replace(topic, attributes=attributes)

    @serves(RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC, needs=needs.ADMIN)
    def refuse_static(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Refused with code 3, and nothing is created; what goes to those of RocketMQ's with 16."""
        remark = (
            f"static topics are not supported, and {request.text('topic', '')[:255]} was not "
            f"created: request type {request.code} needs a broker of RocketMQ"
        )
        return failure(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)

    def _check(self, topic: TopicConfig) -> None:
        name = topic.topic_name
        if self._topics.is_system(name) or self._topics.is_own(name):
            remark = f"The topic[{name}] is conflict with system topic."
            raise RequestRefusedError(ResponseCode.INVALID_PARAMETER, remark)
        for count in (topic.read_queue_nums, topic.write_queue_nums):
            if not 0 <= count <= QUEUES_MAX:
                remark = f"topic {name}: {count} queues; 0 to {QUEUES_MAX} are possible"
                raise RequestRefusedError(ResponseCode.INVALID_PARAMETER, remark)
        if not 0 <= topic.perm <= 15:
            remark = f"topic {name}: perm {topic.perm} is no sum of 1, 2, 4 and 8"
            raise RequestRefusedError(ResponseCode.INVALID_PARAMETER, remark)
        if topic.topic_filter_type not in _FILTER_TYPES:
            remark = f"topic {name}: topicFilterType has to be one of {', '.join(_FILTER_TYPES)}"
            raise RequestRefusedError(ResponseCode.INVALID_PARAMETER, remark)
        old = self._topics.get(name)
        if _queue_type(topic) != (_queue_type(old) if old else _PLAIN):
            remark = f"topic {name}: queue.type cannot be changed, nor be BatchCQ; leave it out"
            raise RequestRefusedError(ResponseCode.INVALID_PARAMETER, remark)

    @serves(RequestCode.DELETE_TOPIC_IN_BROKER, needs=needs.ADMIN)
    async def delete(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Delete a topic with its queues, and what groups have consumed of it.

        Raises:
            RequestRefusedError: it is a system's topic, or its name is none; or the disk has no
                room to write it down.
        """
        name = request.text("topic")
        if self._topics.is_system(name):
            remark = f"The topic[{name}] is conflict with system topic."
            raise RequestRefusedError(ResponseCode.INVALID_PARAMETER, remark)
        if self._leave_deletion():
            return success(remark="this broker is a slave: it deletes what its master has deleted")
        try:
            with expect_written(f"the deletion of {name}"):
                async with self._deleting(name) as along:
                    delete = self._store.parts.topics.delete_together
                    await asyncio.to_thread(delete, (name, *along))
                await asyncio.to_thread(self._static_topics.forget, name)
        except MessageIllegalError as error:
            raise RequestRefusedError(ResponseCode.INVALID_PARAMETER, str(error)) from error
        self._topics.removed()
        return success()

    @serves(RequestCode.GET_ALL_TOPIC_CONFIG, needs=needs.ADMIN)
    def list_all(self, _: Connection, __: RemotingCommand) -> RemotingCommand:
        """Every topic; for slaves which are static, and in `deletedTopics` which were deleted."""
        table = self._topics.table
        topics = {topic.topic_name: topic.to_java() for topic in table}
        body = {
            "dataVersion": table.data_version.to_java(),
            "deletedTopics": dict(self._store.followed_log.deletions()),
            "topicConfigTable": topics,
            **table.told_begin(),
            **self._static_topics.told(),
        }
        return success({"totalTopicNum": str(len(topics))}, java_body(body))

    @serves(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, needs=needs.ADMIN)
    def list_system(self, _: Connection, __: RemotingCommand) -> RemotingCommand:
        """The topics of the broker's own."""
        return success(body=java_body({"topicList": sorted(self._topics.system_topics)}))

    @serves(RequestCode.GET_TOPIC_CONFIG, needs=needs.ADMIN)
    def get(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """One topic."""
        return success(body=java_body(self._topics.expect(request.text("topic")).to_java()))

    @serves(RequestCode.GET_TOPIC_STATS_INFO, needs=needs.ADMIN)
    def stats(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Where each queue of a topic begins and ends, and when it was last written."""
        topic = self._topics.expect(request.text("topic"))
        table = {}
        for queue_id in queue_ids(max(topic.read_queue_nums, topic.write_queue_nums)):
            least = self._store.min_queue_offset(topic.topic_name, queue_id)
            most = self._store.max_queue_offset(topic.topic_name, queue_id)
            table[self._key(topic.topic_name, queue_id)] = {
                "lastUpdateTimestamp": stored_ms(
                    self._store, topic.topic_name, queue_id, most - 1, 0
                ),
                "maxOffset": most,
                "minOffset": least,
            }
        put_tps = self._rates.put_tps(topic.topic_name)
        return success(body=java_body({"offsetTable": table, "topicPutTps": put_tps}))

    @serves(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, needs=needs.ADMIN)
    def consumed_by(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """The groups that consume a topic, or have."""
        topic = request.text("topic")
        groups = set(self._consumers.subscribed_to(topic))
        groups |= {g for t, g in self._store.consumer_offsets.pairs() if t == topic}
        return success(body=java_body({"groupList": sorted(groups)}))

    @serves(RequestCode.QUERY_CONSUME_TIME_SPAN, needs=needs.ADMIN)
    def time_span(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """The store times of each queue's ends, and of what a group consumed last."""
        topic = self._topics.expect(request.text("topic"))
        group, name, spans = request.text("group"), topic.topic_name, []
        for queue_id in queue_ids(topic.write_queue_nums):
            least = self._store.min_queue_offset(name, queue_id)
            most = self._store.max_queue_offset(name, queue_id)
            oldest = stored_ms(self._store, name, queue_id, least, -1)
            newest = stored_ms(self._store, name, queue_id, most - 1, -1)
            consumed = self._store.consumer_offsets.get(name, group, queue_id)
            last = oldest
            if consumed is not None and consumed > 0:
                last = stored_ms(self._store, name, queue_id, consumed - 1, oldest)
            spans.append(
                {
                    "consumeTimeStamp": last,
                    "delayTime": max(0, newest - last) if (consumed or 0) < most else 0,
                    "maxTimeStamp": newest,
                    "messageQueue": dict(self._key(name, queue_id)),
                    "minTimeStamp": oldest,
                }
            )
        return success(body=java_body({"consumeTimeSpanSet": spans}))

    def _key(self, topic: str, queue_id: int) -> QueueKey:
        return queue_key(self._config().broker_name, topic, queue_id)


def _queue_type(topic: TopicConfig) -> str:
    return topic.attributes.get(QUEUE_TYPE, _PLAIN)
