"""`KeptViews`: what both kinds of `Cluster` know of topics and groups, and for how long."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence

from rmqcore.proxy.callers import Caller
from rmqcore.proxy.cluster import (
    TEMPLATE_TOPIC,
    BrokerQueues,
    GroupView,
    TopicView,
    check_may_consume,
    check_may_use,
    json_object,
    made_after,
    message_type_of,
    new_topic_fields,
    queues_of,
)
from rmqcore.proxy.codes import Code, RefusedError, expect_success
from rmqcore.proxy.messages import MessageType
from rmqcore.proxy.name_cache import NameCache
from rmqcore.remoting import RemotingCommand, RequestCode, ResponseCode
from rmqcore.world import World

logger = logging.getLogger(__name__)


class KeptViews:
    """The half of a `Cluster` that looks topics and groups up, once for some seconds.

    Args:
        topic_s: how long a topic counts, seconds.
        group_s: how long a group counts, seconds.
        world: whose clock tells.
    """

    def __init__(self, topic_s: float, group_s: float, world: World) -> None:
        self._topics: NameCache[TopicView] = NameCache(topic_s, world.monotonic_s)
        self._groups: NameCache[GroupView] = NameCache(group_s, world.monotonic_s)
        self._asked: Callable[[str, RemotingCommand], None] | None = None
        #: by name, topics that are being made: of two who ask the first says what it takes
        self._making: dict[str, asyncio.Task[TopicView | None]] = {}

    def on_question(self, asked: Callable[[str, RemotingCommand], None]) -> None:
        """See `Cluster`."""
        self._asked = asked

    def known_topic(self, name: str) -> TopicView | None:
        """See `Cluster`."""
        return self._topics.get(name)

    def known_group(self, name: str, broker_name: str) -> GroupView | None:
        """See `Cluster.known_group`."""
        return self._groups.get(f"{broker_name} {name}")

    async def topic(self, name: str) -> TopicView | None:
        """See `Cluster`."""
        known = self.known_topic(name)
        return known if known is not None else await self._look_up(name)

    async def topic_to_be(self, name: str) -> TopicView | None:
        """See `Cluster`."""
        return made_after(await self.topic(TEMPLATE_TOPIC), name)

    async def group(self, name: str, caller: Caller, broker_names: Sequence[str]) -> GroupView:
        """See `Cluster.group`."""
        check_may_consume(name, caller)
        key = " ".join([*broker_names, name])
        known = self._groups.get(key)
        if known is not None:
            return known
        try:
            view = await self._group_of(name, broker_names)
        except RefusedError as error:
            last = self._groups.last(key)
            if error.code is Code.CONSUMER_GROUP_NOT_FOUND:
                raise
            if last is None:
                last = await self._ordered_elsewhere(name, broker_names)
            if last is None:
                raise
            logger.warning("group %s is taken to be as it was: %s", name, error)
            view = last
        return self._groups.put(key, view)

    async def make_topic(
        self, name: str, kind: MessageType | None, caller: Caller
    ) -> TopicView | None:
        """See `Cluster.make_topic`."""
        check_may_use(name, kind, caller)
        made = self.known_topic(name)
        if made is not None:
            return made
        making = self._making.get(name)
        if making is None:
            making = asyncio.get_running_loop().create_task(self._made(name, kind))
            self._making[name] = making
            making.add_done_callback(lambda _: self._making.pop(name))
        # who asks may go, and others wait for the same, be it that it fails
        return await asyncio.shield(making)

    async def _made(self, name: str, kind: MessageType | None) -> TopicView | None:
        """A topic as the brokers have it that do; made on all where none has.

        A name server that was just started knows no topics of brokers that have many: what they
        have stays as it is, for with fewer queues the messages in the others would be hidden.
        """
        to_be = await self.topic_to_be(name)
        if to_be is None:
            return None
        makers = {broker.broker_name for broker in to_be.brokers}
        had = await asyncio.gather(
            *(self._had_by(broker, name) for broker in to_be.brokers),
            *(self._had_elsewhere(each, name) for each in self._seen() if each not in makers),
        )
        found = [each for each in had if each is not None]
        message_type = next((said for _, said in found if said), "")
        brokers = tuple(queues for queues, _ in found)
        if not brokers:
            brokers, message_type = to_be.brokers, kind.name if kind is not None else ""
            for each in brokers:
                fields = new_topic_fields(name, kind, each.write_count)
                code = RequestCode.UPDATE_AND_CREATE_TOPIC
                expect_success(await self._ask_as_own(each.broker_name, code, fields))
        return self._topics.put(name, TopicView(name, message_type, brokers))

    async def _had_by(self, broker: BrokerQueues, name: str) -> tuple[BrokerQueues, str] | None:
        """The queues of a topic on a broker, and what it takes; None where the broker has none."""
        where = broker.broker_name
        had = await self._ask_as_own(where, RequestCode.GET_TOPIC_CONFIG, {"topic": name})
        if had.code == ResponseCode.SUCCESS:
            config = json_object(had.body)
            return queues_of(where, config), message_type_of(config)
        if had.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            # of RocketMQ 4; how many queues there are the name servers say later
            had = await self._ask_as_own(where, RequestCode.GET_TOPIC_STATS_INFO, {"topic": name})
            if had.code == ResponseCode.SUCCESS:
                return broker, ""
        if had.code != ResponseCode.TOPIC_NOT_EXIST:
            expect_success(had)
        return None

    async def _had_elsewhere(self, where: str, name: str) -> tuple[BrokerQueues, str] | None:
        """As `_had_by`, of a broker on which none would be made, and which may have gone."""
        try:
            had = await self._ask_as_own(where, RequestCode.GET_TOPIC_CONFIG, {"topic": name})
            config = json_object(expect_success(had).body)
        except RefusedError:
            return None
        return queues_of(where, config), message_type_of(config)

    # ---- what a kind of cluster does by itself

    def _seen(self) -> Collection[str]:
        """The names of the brokers that were seen, also of those that have gone."""
        raise NotImplementedError

    async def _ask_as_own(
        self, broker_name: str, code: int, fields: dict[str, str]
    ) -> RemotingCommand:
        """Ask a broker in the proxy's own name.

        Raises:
            RefusedError: it does not answer.
        """
        raise NotImplementedError

    async def _look_up(self, name: str) -> TopicView | None:
        """A topic as brokers know it now, which is kept; None when there is none."""
        raise NotImplementedError

    async def _group_of(self, name: str, broker_names: Sequence[str]) -> GroupView:
        """A group as these brokers know it now; any where none is named.

        Raises:
            RefusedError: none of them tells.
        """
        raise NotImplementedError

    async def _ordered_elsewhere(self, name: str, but: Sequence[str]) -> GroupView | None:
        """A group that is ordered as brokers but some know it; None where none says that it is.

        That it is not may be said by one that makes a group of whatever it is asked for.
        """
        raise NotImplementedError
