"""Offsets: what groups have consumed, and where queues begin and end.

Source: RocketMQ broker/processor/ConsumerManageProcessor.java, AdminBrokerProcessor.java.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from typing import Final

from rmqcore.broker.state.budgets import OFFSETS_MAX, BudgetExceededError
from rmqcore.broker.state.groups import TOOLS_GROUP, Groups
from rmqcore.broker.state.queued import places_of
from rmqcore.broker.state.resets import Resets
from rmqcore.broker.state.topics import Topics, queue_ids
from rmqcore.errors import MessageIllegalError
from rmqcore.files.readers_of_lost import ReadQueue
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
from rmqcore.remoting.serves import serves
from rmqcore.store.protocol import MessageStore

logger = logging.getLogger(__name__)

#: A new group reads a queue from its first message when that is within this many bytes of the log's
#: end, whatever it asked for.
_YOUNG_BYTES: Final = 1 << 30
#: All offsets are counted anew after this many new ones.
_COUNTED_EVERY: Final = 1024
#: All offsets are counted no sooner than after this when there was no room.
_FULL_S: Final = 1.0
#: Of a group each of whose clients reads all, those that come later have read nothing of what was
#: lost: they have been started since.
ALL_CAME_S: Final = 600.0
#: Of so many clients of a group it is known up to where they were given a queue, the last ones.
_CLIENTS_MAX: Final = 16
_NOT_FOUND: Final = "Not found, do not set to zero, maybe this group boot first"


class Offsets:
    """Requests about offsets, over the store's own table."""

    def __init__(
        self,
        store: MessageStore,
        topics: Topics,
        groups: Groups,
        resets: Resets,
        monotonic_s: Callable[[], float],
    ) -> None:
        self._monotonic_s = monotonic_s
        self._store = store
        self._topics = topics
        self._groups = groups
        self.resets = resets
        #: how many offsets there were when they were counted, and have come since at most
        self._counted, self._uncounted = 0, _COUNTED_EVERY
        #: until when nobody counts again whether there is room, by the monotonic clock
        self._full_until_s = 0.0
        #: when this broker took over a log that may have been longer, likewise
        self._took_over_s: float | None = None
        #: when topics were deleted, likewise; those that matter
        self._deleted_s: dict[str, float] = {}
        #: up to where clients, by address, were given queues of these topics since they were made
        #: anew
        self._given: dict[ReadQueue, dict[str, int]] = {}

    def ends_at(self, log_end: int) -> Callable[[str, int], int]:
        """Where queues ended, by topic and queue id, when the log did.

        Args:
            log_end: physical offset where the log ended when the store was opened; delayed messages
                may lie behind it already.
        """
        store, behind, seen = self._store, dict[tuple[str, int], int](), log_end

        def end_of(topic: str, queue_id: int) -> int:
            nonlocal seen
            # first, so that the log has all that is counted here
            most, stop = store.max_queue_offset(topic, queue_id), store.max_phy_offset
            if seen < stop:
                # what is damaged is nobody's to read
                for message in store.messages(start=seen, stop=stop, on_damage=lambda _: None):
                    for queue, queue_offset in places_of(message):
                        behind.setdefault(queue, queue_offset)
                seen = stop
            return min(most, behind.get((topic, queue_id), most))

        return end_of

    def bring_back(
        self,
        end_of: Callable[[str, int], int],
        former_end_of: Callable[[str, int], int] | None = None,
        *,
        may_be_shorter: bool,
    ) -> None:
        """Set offsets beyond the end of their queue to that end; before anything is served.

        A power cut takes records that were read and not on the disk yet, and a slave that becomes
        the master may lack the last ones of its master's. Their numbers are given to the next
        messages, which the group would pass over; so would its clients, who know where they were.

        Args:
            end_of: see `ends_at`.
            former_end_of: the same for the end that was found first behind what may be lost: others
                may have put messages there since, which a group has consumed that is behind it.
                None: nobody has.
            may_be_shorter: whether the log may have been longer when the groups read it; it may
                also where a broker has not ended in order before the store was opened last.
        """
        table, resets = self._store.consumer_offsets, self.resets
        former_end_of = former_end_of or end_of
        resets.bring_back(lambda key: table.get(key[1], key[0], key[2]))
        read = [
            (topic, group, queue_id, offset)
            for topic, group in table.pairs()
            for queue_id, offset in table.queues(topic, group).items()
        ]
        queues = {(topic, queue_id) for topic, _, queue_id, _ in read}
        ends = {queue: end_of(*queue) for queue in queues}
        former = {queue: former_end_of(*queue) for queue in queues}
        may_be_shorter |= resets.was_serving is True
        resets.begin()
        if may_be_shorter:
            self._took_over_s = self._monotonic_s()
            of_groups = dict[ReadQueue, int]()
            for topic, group, queue_id, offset in read:
                key, end = (group, topic, queue_id), former[topic, queue_id]
                of_groups[key] = end if offset <= end else ends[topic, queue_id]
                # the master before may not have known of it, and told that of groups without offset
                told = resets.unknown_groups.pending_end(key)
                if told is not None and offset <= told:
                    of_groups[key] = min(told, of_groups[key])
            of_all = {queue: former_end_of(*queue) for queue in self._queues()}
            resets.take_over(of_groups, of_all)
        try:
            resets.persist_ends()
        except OSError:
            # on a full disk consumers have to go on, so that something can be deleted
            logger.exception("where queues end cannot be written, and is tried again")
        for topic, group, queue_id, offset in read:
            end = ends[topic, queue_id]
            if offset > end:
                logger.warning(
                    "%s, queue %d: the offset of %s was %d, and is set to the end, %d",
                    *(topic, queue_id, group, offset, end),
                )
                table.advance(topic, group, queue_id, end)

    def _queues(self) -> set[tuple[str, int]]:
        """All queues that have messages, or may get some; by topic and queue id."""
        queues = set(self._store.queues())
        for topic in self._topics.table:
            most = max(topic.read_queue_nums, topic.write_queue_nums)
            queues.update((topic.topic_name, queue_id) for queue_id in queue_ids(most))
        return queues

    def may_move(self, key: ReadQueue) -> bool:
        """Tell whether a group may have to go on elsewhere than where it pulls from.

        Args:
            key: group, topic and queue id.
        """
        return key in self.resets or self._is_unknown(key) or self._is_anew(key[1])

    def _is_anew(self, topic: str) -> bool:
        """Tell whether a topic of that name was deleted so lately that clients may not know it."""
        since_s = self._deleted_s.get(topic)
        return since_s is not None and self._monotonic_s() < since_s + ALL_CAME_S

    def note_given(self, key: ReadQueue, client: Connection, offset: int) -> None:
        """Note up to where a client is given a queue whose topic may have been deleted lately.

        Args:
            key: group, topic and queue id.
            client: that pulls.
            offset: of the next message, which it is not given yet.
        """
        if not self._is_anew(key[1]):
            return
        given = self._given.get(key)
        if given is None and len(self._given) < OFFSETS_MAX:
            given = self._given[key] = {}
        if given is not None:
            given[client.remote_address] = max(offset, given.pop(client.remote_address, 0))
            while len(given) > _CLIENTS_MAX:
                del given[next(iter(given))]

    def is_ahead(self, key: ReadQueue, client: Connection, offset: int) -> bool:
        """Tell whether a client's offset is of the topic before: it was not given what is there.

        One that was cut off counts a queue as its own that another client of its group has now.

        Args:
            key: group, topic and queue id.
            client: of the group.
            offset: that it pulls from, or commits.
        """
        given = self._given.get(key) if self._is_anew(key[1]) else None
        if not given or offset <= given.get(client.remote_address, 0):
            return False
        group, topic, queue_id = key
        committed = self._store.consumer_offsets.get(topic, group, queue_id)
        return offset > (min(given.values()) if committed is None else committed)

    def _is_unknown(self, key: ReadQueue) -> bool:
        """Tell whether a group has no offset, and may have read what is lost."""
        if not self.resets.unknown_groups.is_pending(key):
            return False
        group, topic, queue_id = key
        known = self._store.consumer_offsets.get(topic, group, queue_id) is not None
        # tools look at messages under a name that all of them have
        return not known and group != TOOLS_GROUP

    def moved_to(
        self,
        key: ReadQueue,
        offset: int,
        client: Connection | None = None,
        consumed: int | None = None,
        *,
        reads_all: bool = False,
    ) -> int | None:
        """Where a group has to go on that pulls from an offset; None: there.

        Args:
            key: group, topic and queue id.
            offset: queue offset that a pull asks for.
            client: that pulls; None: not known.
            consumed: what it says itself that it has consumed up to; None: it does not say.
            reads_all: whether it reads all of the queue, as others of its group do.
        """
        if self._is_unknown(key):
            since_s = self._deleted_s.get(key[1], self._took_over_s)
            if reads_all and client is not None and since_s is not None:
                if self._monotonic_s() < since_s + ALL_CAME_S:
                    return self.resets.unknown_groups.end_for(key, client, offset)
                self.resets.settle(key, has_offset=False)
                return None
            self.resets.note_came(key, client, offset)
        group, topic, queue_id = key
        committed = self._store.consumer_offsets.get(topic, group, queue_id)
        if key not in self.resets:
            if reads_all or client is None or not self.is_ahead(key, client, offset):
                return None
            return min(self._given[key].values()) if committed is None else committed
        return self.resets.moved_to(key, offset, consumed if committed is None else committed)

    def forget_topic(self, topic: str) -> None:
        """Forget what an administrator has set for a topic that is deleted."""
        self.resets.forget_topic(topic)

    def begin_anew(
        self,
        readers: Iterable[ReadQueue],
        queues: Collection[tuple[str, int]],
        begins: Callable[[tuple[str, int]], bool],
    ) -> None:
        """Send all groups to the beginning of queues of a topic, once that was deleted or was not.

        Args:
            readers: see `Resets.begin_anew`.
            queues: of one topic, by topic and queue id.
            begins: tells which queue begins anew.
        """
        self.resets.begin_anew(readers, queues, begins)
        now_s, store = self._monotonic_s(), self._store
        for topic in {topic for topic, _ in queues}:
            # behind the others, so that the one that was deleted first stands first
            self._deleted_s.pop(topic, None)
            self._deleted_s[topic] = now_s
            while self._deleted_s[oldest := next(iter(self._deleted_s))] + ALL_CAME_S < now_s:
                del self._deleted_s[oldest]
        anew = self._deleted_s.keys() - {topic for topic, _ in queues}
        self._given = {key: at for key, at in self._given.items() if key[1] in anew}
        self.resets.unknown_groups.bound(lambda key: store.max_queue_offset(*key[1:]) == 0)

    def forget_group(self, group: str, *, is_here: bool) -> None:
        """Forget what a group has consumed, and where it would be sent.

        Args:
            group: by name.
            is_here: whether its clients are connected: they go on where they are, so that those who
                are to begin anew with a topic still are.
        """
        resets, table = self.resets, self._store.consumer_offsets
        read = [
            (group, topic, queue_id)
            for topic, name in table.pairs()
            if name == group
            for queue_id in table.queues(topic, group)
        ]
        for key in [key for key in (*resets, *resets.ends) if key[0] == group]:
            begins = is_here and resets.get(key) == 0
            resets.forget(key)
            if begins:
                resets[key] = 0
            else:
                read.append(key)
        table.remove(group=group)
        # one of its name begins where it wants
        for key in read:
            resets.settle(key, has_offset=False)

    @serves(RequestCode.QUERY_CONSUMER_OFFSET, needs=needs.settle)
    def query(self, client: Connection, request: RemotingCommand) -> RemotingCommand:
        """The next offset that a group wants of a queue.

        Args:
            client: who asks, and begins where it wants when it is told that there is none.
            request: header of 14.
        """
        group, topic = request.text("consumerGroup"), request.text("topic")
        queue_id = request.number("queueId", bits=32)
        stored = self._store.consumer_offsets.get(topic, group, queue_id)
        if stored is not None:
            return success({"offset": str(stored)})
        self.resets.unknown_groups.note_asked(client, (group, topic, queue_id))
        if not request.boolean("setZeroIfNotFound", True):
            return failure(ResponseCode.QUERY_NOT_FOUND, _NOT_FOUND)
        if self.is_young(topic, queue_id):
            return success({"offset": "0"})
        return failure(ResponseCode.QUERY_NOT_FOUND, _NOT_FOUND)

    def is_young(self, topic: str, queue_id: int) -> bool:
        """Tell whether a new group reads a queue from its first message, whatever it asked for.

        So it does where there is none yet: who asks for the end next would miss what came between.

        Args:
            topic: of the queue; one that is unknown is young.
            queue_id: of the queue.

        Raises:
            StoreError: the first message cannot be read.
        """
        if self._store.min_queue_offset(topic, queue_id) > 0:
            return False
        first = self._store.get_message(topic, queue_id, 0, max_messages=1).messages
        if not first:
            return self._store.max_queue_offset(topic, queue_id) == 0
        return self._store.max_phy_offset - first[0].phy_offset < _YOUNG_BYTES

    @serves(RequestCode.UPDATE_CONSUMER_OFFSET, needs=needs.settle)
    def update(self, client: Connection, request: RemotingCommand) -> RemotingCommand:
        """A group has consumed a queue up to an offset.

        Args:
            client: of the group.
            request: header of 15.
        """
        group, topic = request.text("consumerGroup"), request.text("topic")
        queue_id, offset = request.number("queueId", bits=32), request.number("commitOffset")
        self._groups.expect_for_client(group)
        config, end = (
            self._topics.expect_served(topic),
            self._store.max_queue_offset(topic, queue_id),
        )
        if queue_id >= max(config.read_queue_nums, config.write_queue_nums) and end == 0:
            return failure(ResponseCode.INVALID_PARAMETER, f"topic {topic} has no queue {queue_id}")
        key = group, topic, queue_id
        if self._is_unknown(key):
            self.resets.note_came(key, client, offset)
            # what it has consumed behind that end it has consumed of what is lost
            offset = min(offset, self.resets.ends.get(key, offset))
        if not self.resets.accepts(key, offset):
            return success(remark="Offset has been previously reset")
        if offset > end:
            return success(remark=f"beyond the end of the queue, {end}, and passed over")
        if self.is_ahead(key, client, offset):
            return success(remark="beyond what the client was given, and passed over")
        self.commit(group, topic, queue_id, offset)
        return success()

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set the next offset that a group wants.

        Args:
            group: by name: letters, digits, %, |, _ and -; it need not exist.
            topic: of the queue: letters, digits, %, |, _ and -; it need not exist.
            queue_id: of the queue; 0 to 2^31 - 1.
            offset: queue offset of the first message that it has not consumed.

        Raises:
            RequestRefusedError: it is no offset; answers with code 29.
            BudgetExceededError: the group has none of the queue, and there are too many.
        """
        self.expect_room(topic, group, queue_id)
        try:
            self._store.consumer_offsets.commit(topic, group, queue_id, offset)
        except (ValueError, MessageIllegalError) as error:
            raise RequestRefusedError(ResponseCode.INVALID_PARAMETER, str(error)) from error
        self.resets.settle((group, topic, queue_id), has_offset=True)

    def expect_room(self, topic: str, group: str, queue_id: int) -> None:
        """Refuse one offset more than are kept.

        Args:
            topic: of the queue.
            group: by name.
            queue_id: of the queue.

        Raises:
            BudgetExceededError: it is so; the group has none of this queue.
        """
        table = self._store.consumer_offsets
        if table.get(topic, group, queue_id) is not None:
            return
        full, now_s = self._counted + self._uncounted >= OFFSETS_MAX, self._monotonic_s()
        if self._uncounted >= _COUNTED_EVERY or (full and now_s >= self._full_until_s):
            self._counted, self._uncounted = table.offset_count(), 0
            full = self._counted >= OFFSETS_MAX
            self._full_until_s = now_s + _FULL_S if full else 0.0
        if full:
            raise BudgetExceededError("offsets of groups", OFFSETS_MAX)
        self._uncounted += 1

    @serves(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, needs=needs.read_topic)
    def search(self, client: Connection, request: RemotingCommand) -> RemotingCommand:
        """The offset that belongs to a store time.

        Args:
            client: who asks, and may begin there.
            request: header of 29.
        """
        topic, queue_id = request.text("topic"), request.number("queueId", bits=32)
        boundary = request.text("boundaryType", "LOWER").lower()
        offset = self._store.queue_offset_by_time(
            topic,
            queue_id,
            request.number("timestamp"),
            boundary="upper" if boundary == "upper" else "lower",
        )
        self.resets.unknown_groups.note_told(client, topic, queue_id, offset)
        return success({"offset": str(offset)})

    @serves(RequestCode.GET_MAX_OFFSET, needs=needs.read_topic)
    def max_offset(self, client: Connection, request: RemotingCommand) -> RemotingCommand:
        """The offset that the next message of a queue gets.

        Args:
            client: who asks, and may begin there.
            request: header of 30.
        """
        topic, queue_id = request.text("topic"), request.number("queueId", bits=32)
        offset = self._store.max_queue_offset(topic, queue_id)
        self.resets.unknown_groups.note_told(client, topic, queue_id, offset)
        return success({"offset": str(offset)})

    @serves(RequestCode.GET_MIN_OFFSET, needs=needs.read_topic)
    def min_offset(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """The offset of the oldest message of a queue."""
        offset = self._store.min_queue_offset(
            request.text("topic"), request.number("queueId", bits=32)
        )
        return success({"offset": str(offset)})

    @serves(RequestCode.GET_EARLIEST_MSG_STORETIME, needs=needs.read_topic)
    def earliest_time(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """When the oldest message of a queue was stored; -1 for none."""
        topic, queue_id = request.text("topic"), request.number("queueId", bits=32)
        least = self._store.min_queue_offset(topic, queue_id)
        first = self._store.get_message(topic, queue_id, least, max_messages=1).messages
        return success({"timestamp": str(first[0].store_timestamp_ms if first else -1)})
