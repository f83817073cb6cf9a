"""`Consuming`: the part that waits for messages, and hands them out for a time."""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, Unpack

from rmqcore.arguments import text, texts_of, whole_number
from rmqcore.files.config_tables import check_topic_name
from rmqcore.message import RETRY_PREFIX, Lease, QueueLag, ReceivedMessage
from rmqcore.services.event_loop import in_thread, one_turn
from rmqcore.store.consume.arrivals import Arrivals, AsyncSleeper, Deadline, Sleeper
from rmqcore.store.consume.holders import is_gone
from rmqcore.store.consume.interrupt_safe_lock import InterruptSafeLock
from rmqcore.store.consume.undoing import hands_out, hands_out_nothing

if TYPE_CHECKING:
    from rmqcore.files.store_dir import StoreDir
    from rmqcore.message import GetMessageResult, LeaseSettings, MessageExt
    from rmqcore.services.arrival import ArrivalListener
    from rmqcore.store.consume.lease_request import LeaseRequest
    from rmqcore.store.consume.lease_table import LeasedStore
    from rmqcore.store.consume.leases import Leases
    from rmqcore.store.parts.handle import Handle
    from rmqcore.store.parts.level import Level

    class FollowedStore(LeasedStore, Protocol):
        """The store as who follows its queues sees it, too."""

        def made_anew_at(self, topic: str) -> int:
            """Physical offset at which a topic was deleted last; 0 for never."""


_log = logging.getLogger("rmqcore")


class Consuming:
    """`wait`, `lease` and what belongs to them.

    A store that nobody consumes from by leases has no state of them and no file.

    Args:
        handle: says whether the store is open.
        store: what is leased and followed.
        directory: of the store.
        level: catches up with what has been put.
        listen: hears of messages that have come, see `MessageArrival.listen`.
        clock_ms: Unix time in milliseconds.
        monotonic_s: seconds of a clock that is never put back.
    """

    def __init__(
        self,
        handle: Handle,
        store: FollowedStore,
        directory: StoreDir,
        level: Level,
        listen: Callable[[ArrivalListener], object],
        clock_ms: Callable[[], int],
        monotonic_s: Callable[[], float],
    ) -> None:
        self._handle = handle
        self._store = store
        self._directory = directory
        self._level = level
        self._clock_ms = clock_ms
        self._monotonic_s = monotonic_s
        self._arrivals = Arrivals(listen)
        self._making_leases = InterruptSafeLock()
        self._leases: Leases | None = None

    @property
    def has_leases(self) -> bool:
        """Whether messages of the store have been leased, in this opening or an earlier one."""
        return self._leases is not None

    # ---- opening and closing

    def begin(self) -> None:
        """Know what an earlier opening has leased; nothing is read where nobody did."""
        self._set_offsets_back()
        self._store.consumer_offsets.on_set = self._follow_set
        if self._directory.consumer_leases.exists():
            self._made_leases()

    def stop(self) -> None:
        """Lease and take back nothing more."""
        if self._leases is not None:
            self._leases.stop()

    def wake_all(self) -> None:
        """Wake all who wait: the store is closed."""
        self._arrivals.wake_all()

    def close(self) -> None:
        """Write all down, behind what groups have consumed.

        Raises:
            OSError: it could not be written; the journal has it all the same.
        """
        if self._leases is not None:
            self._leases.close()

    def abandon(self) -> None:
        """Let the file go."""
        if self._leases is not None:
            self._leases.abandon()

    def _set_offsets_back(self) -> None:
        """Let no group begin behind the end of a queue: it would pass over what is put next.

        A power cut, or a tail that was cut off, takes messages from the log, and leaves that they
        have been consumed.
        """
        ahead = [
            (topic, group, queue_id, end)
            for topic, group in self._store.consumer_offsets.pairs()
            for queue_id, offset in self._store.consumer_offsets.queues(topic, group).items()
            if offset > (end := self._store.max_queue_offset(topic, queue_id))
        ]
        for topic, group, queue_id, end in ahead:
            self._store.consumer_offsets.advance(topic, group, queue_id, end)
            _log.warning("%s has lost what %s had consumed of %s", self._handle.path, group, topic)
        if ahead:
            try:
                self._store.consumer_offsets.persist()
            except OSError as error:
                _log.warning("%s: consumer offsets are written later: %s", self._handle.path, error)

    def _made_leases(self) -> Leases:
        if self._leases is None:
            self._handle.check_open()
            with self._making_leases.within():
                self._making_leases.refuse_interrupt()
                if self._leases is None:
                    from rmqcore.store.consume.leases import Leases  # noqa: PLC0415 - heavy

                    self._leases = Leases(
                        self._store,
                        self._directory,
                        self._clock_ms,
                        self._monotonic_s,
                        self._arrivals,
                        self._level.catch_up_all,
                    )
        return self._leases

    def _follow_set(self, topic: str | None, group: str | None, queue_id: int | None) -> None:
        if self._leases is not None:
            self._leases.follow_set(topic, group, queue_id)

    def forget_topic(self, topic: str) -> None:
        """Forget what groups have leased of a topic."""
        if self._leases is not None:
            self._leases.forget_topic(topic)

    # ---- waiting

    def wait(self, topic: str, queue_id: int, offset: int, timeout_ms: float | None = None) -> bool:
        """Wait until a queue has a message with an offset.

        Args:
            topic: topic of the queue, which need not exist yet.
            queue_id: number of the queue in its topic.
            offset: number of the message.
            timeout_ms: for how long, milliseconds; None without end.

        Returns:
            False when the message had not come by then.

        Raises:
            StoreClosedError: the store is closed, or was closed meanwhile.
        """
        sleeper, deadline = Sleeper(), Deadline(timeout_ms, self._monotonic_s)
        with self._arrivals.waking(sleeper, (text("topic", topic),)):
            while self._store.max_queue_offset(topic, queue_id) <= offset:
                left_s = deadline.left_s
                if left_s == 0:
                    return False
                sleeper.sleep(left_s)
        return True

    async def wait_async(
        self, topic: str, queue_id: int, offset: int, timeout_ms: float | None = None
    ) -> bool:
        """As `wait`, without blocking the event loop."""
        sleeper, deadline = AsyncSleeper(), Deadline(timeout_ms, self._monotonic_s)
        with self._arrivals.waking(sleeper, (text("topic", topic),)):
            while self._store.max_queue_offset(topic, queue_id) <= offset:
                left_s = deadline.left_s
                if left_s == 0:
                    return False
                await sleeper.sleep(left_s)
        return True

    async def follow(
        self, topic: str, queue_id: int, start: int | None = None
    ) -> AsyncIterator[MessageExt]:
        """Every message of a queue, and those that come: ``async for`` without end.

        When the topic is deleted and made anew, it goes on with the first message of that.

        Args:
            topic: topic of the queue, which need not exist yet.
            queue_id: number of the queue in its topic.
            start: number of the first message wanted; None for the oldest there is.

        Raises:
            CorruptRecordError: the iteration came to a damaged record.
            StoreClosedError: the store was closed.
        """
        offset, begun = start, None
        while True:
            result, begun = await self.followed(topic, queue_id, offset, begun)
            for message in result.messages:
                if message.phy_offset >= begun:
                    yield message
            offset = result.next_queue_offset

    async def followed(
        self, topic: str, queue_id: int, offset: int | None, begun: int | None
    ) -> tuple[GetMessageResult, int]:
        """The next messages of a queue that is followed, as soon as there are some.

        Args:
            topic: see `follow`.
            queue_id: see `follow`.
            offset: number of the first one; None for the oldest there is.
            begun: what was returned before; None at first.

        Returns:
            the result of a get, and the physical offset below which messages are of a topic that
            was deleted: those count no more.
        """
        topic = text("topic", topic)
        sleeper = AsyncSleeper()
        with self._arrivals.waking(sleeper, (topic,)):
            while True:
                begins_at = self._store.made_anew_at(topic)
                if offset is None or (begun is not None and begins_at > begun):
                    offset = self._store.min_queue_offset(topic, queue_id)
                begun = begins_at
                if whole_number("start", offset) < self._store.max_queue_offset(topic, queue_id):
                    return self._store.get_message(topic, queue_id, offset), begun
                await sleeper.sleep(math.inf)

    # ---- leases

    def lease(
        self,
        group: str,
        subscriptions: Mapping[str, str],
        **settings: Unpack[LeaseSettings],
    ) -> list[ReceivedMessage]:
        """See `MessageStore.lease`."""
        return self.lease_once(group, subscriptions, **settings)

    def lease_once(
        self,
        group: str,
        subscriptions: Mapping[str, str],
        *,
        call: str = "",
        timeout_ms: float | None = 0,
        **settings: Any,
    ) -> list[ReceivedMessage]:
        """As `lease`, for a caller that asks the next owner when this one ends before it answers.

        Args:
            group: see `lease`.
            subscriptions: see `lease`.
            call: a name that no other call has. What a call of this name was handed out counts as
                never handed out.
            timeout_ms: see `lease`.
            settings: the others of `lease`.
        """
        leases = self._made_leases()
        request = leases.request(group, subscriptions, call=call, **settings)
        found = self._lease_now(leases, request)
        if found or timeout_ms == 0:
            return found
        sleeper, deadline = Sleeper(request.holder), Deadline(timeout_ms, self._monotonic_s)
        with self._arrivals.waking(sleeper, (RETRY_PREFIX + group, *request.topics)):
            while not (found := self._lease_now(leases, request)):
                left_s = deadline.left_s
                if left_s == 0 or sleeper.ended:
                    break
                sleeper.sleep(self._until_due(leases, left_s))
        return found

    def _lease_now(self, leases: Leases, request: LeaseRequest) -> list[ReceivedMessage]:
        """What there is, however many messages have to be passed over for it."""
        while True:
            taken = leases.taking(request)
            hands_out(taken.leased, leases.interrupted, leases.undo_interrupted)
            leases.hand_out(taken)
            # there may be other messages behind the dead letters
            goes_on = bool(taken.dead) and leases.bury(taken)
            if not taken.found:
                hands_out_nothing()
            if taken.found or (taken.looks > 0 and not goes_on):
                return taken.found

    async def _lease_now_async(
        self, leases: Leases, request: LeaseRequest
    ) -> list[ReceivedMessage]:
        """As `_lease_now`; others have their turn meanwhile, and dead letters go by themselves."""
        while True:
            taken = leases.taking(request)
            leases.hand_out(taken)
            burying = None
            if taken.dead:
                burying = in_thread(partial(leases.bury, taken))
            if taken.found:
                # from here on nothing is awaited: a caller that is cancelled has been given
                # nothing
                return taken.found
            goes_on = burying is not None and await burying
            if taken.looks > 0 and not goes_on:
                return []
            await one_turn()

    def undo_lease(self, call: str, holder: str) -> None:
        """Let count as never handed out what a call was given whose caller has stopped waiting.

        Args:
            call: see `lease_once`.
            holder: who was to have it.
        """
        if self._leases is not None:
            self._leases.undo_lease(call, holder)

    def keep_leases(self, holders: Iterable[str]) -> None:
        """Let holders of this process go on holding when the store is closed.

        They use the store through another handle, and have what they hold of its next owner.
        """
        if self._leases is not None:
            self._leases.keep(holders)

    def release_ended(
        self, known: Iterable[str], has_ended: Callable[[str], bool] = is_gone
    ) -> int:
        """Let all come again at once that processes have leased which have ended.

        Args:
            known: holders of whose end the caller is told.
            has_ended: tells whether the process of a holder has.

        Returns:
            how many holders in other processes are left besides.
        """
        return 0 if self._leases is None else self._leases.release_ended(known, has_ended)

    async def lease_async(
        self,
        group: str,
        subscriptions: Mapping[str, str],
        **settings: Unpack[LeaseSettings],
    ) -> list[ReceivedMessage]:
        """As `lease`, without blocking the event loop while there is none."""
        return await self.lease_async_once(group, subscriptions, **settings)

    async def lease_async_once(
        self,
        group: str,
        subscriptions: Mapping[str, str],
        *,
        call: str = "",
        timeout_ms: float | None = 0,
        **settings: Any,
    ) -> list[ReceivedMessage]:
        """As `lease_once`, without blocking the event loop while there is none."""
        leases = self._made_leases()
        request = leases.request(group, subscriptions, call=call, **settings)
        found = await self._lease_now_async(leases, request)
        if found or timeout_ms == 0:
            return found
        sleeper, deadline = AsyncSleeper(request.holder), Deadline(timeout_ms, self._monotonic_s)
        with self._arrivals.waking(sleeper, (RETRY_PREFIX + group, *request.topics)):
            while not (found := await self._lease_now_async(leases, request)):
                left_s = deadline.left_s
                if left_s == 0 or sleeper.ended:
                    break
                await sleeper.sleep(self._until_due(leases, left_s))
        return found

    def _until_due(self, leases: Leases, left_s: float) -> float:
        """Seconds until something comes again, at most this many."""
        due_ms = leases.next_due_ms()
        due_s = math.inf if due_ms is None else (due_ms - self._clock_ms()) / 1000
        return min(left_s, max(0.0, due_s))

    def acknowledge(self, group: str, leases: Iterable[Lease]) -> int:
        """Be done with messages: the group gets them no more.

        Args:
            group: whose they are.
            leases: the ``place`` of each; one whose time is over counts as long as nobody else
                has acknowledged its message.

        Returns:
            how many were not acknowledged before.

        Raises:
            DiskFullError: there is no room to write it down; nothing is acknowledged.

        Durability: page_cache when it returns: a kill of the process does not undo it.
        Source: RocketMQ broker/processor/AckMessageProcessor.java.
        """
        return self._made_leases().acknowledge(text("group", group), leases)

    def change_lease(self, group: str, leases: Iterable[Lease], lease_ms: int) -> int:
        """Let leases end some milliseconds from now.

        Args:
            group: whose leases they are.
            leases: the ``place`` of each message.
            lease_ms: milliseconds from now until its message may come again.

        Returns:
            how many there are still; the others are over, and nothing becomes of them.

        Raises:
            DiskFullError: there is no room to write it down; the leases are as before.

        Source: RocketMQ broker/processor/ChangeInvisibleTimeProcessor.java.
        """
        return self._made_leases().change(text("group", group), leases, lease_ms)

    def give_back(
        self,
        group: str,
        leases: Iterable[Lease],
        *,
        delay_ms: int | None = None,
        max_reconsume_times: int = 16,
    ) -> int:
        """Let messages come again later; a message that came too often becomes a dead letter.

        Args:
            group: whose they are.
            leases: the ``place`` of each.
            delay_ms: when they come, milliseconds from now, each in its place in its queue; 0 is at
                once. None lets each try wait longer than the one before, as RocketMQ does: in a
                store that delivers delayed messages, through the group's retry topic.
            max_reconsume_times: how often a message comes again before it goes to the group's
                dead-letter topic.

        Returns:
            how many leases there were still; the others are over, and nothing becomes of them.

        Raises:
            PutMessageError: the copy in the retry or dead-letter topic could not be put; the
                message comes again by itself.
            DiskFullError: there is no room.

        Source: RocketMQ broker/processor/AbstractSendMessageProcessor.java, consumerSendMsgBack.
        """
        return self._made_leases().give_back(
            text("group", group), leases, delay_ms, max_reconsume_times
        )

    def release_leases(self, holder: str) -> int:
        """Let all come again at once that somebody has leased and not settled, in every group.

        A `lease` of his that waits ends without messages.

        Returns:
            how many messages.
        """
        holder = text("holder", holder)
        if self._leases is None:
            self._handle.check_open()
            return 0
        return self._leases.release(holder)

    def lag(self, group: str, topics: Iterable[str]) -> list[QueueLag]:
        """What a group has not acknowledged yet, by queue.

        Args:
            group: the consumers that share the messages.
            topics: topics that it consumes, or one by its name; the group's retry topic is added.

        Returns:
            one `QueueLag` for each queue of these topics that exists.

        Raises:
            StoreClosedError: the store is closed.
        """
        return self._made_leases().lag(text("group", group), texts_of("topics", topics))

    def ready(self, group: str, topic: str) -> list[tuple[int, int, int]]:
        """Which messages of a topic can be handed out now, whatever an expression says of them.

        Args:
            group: the consumers that share the messages.
            topic: of the messages.

        Returns:
            queue id, queue offset of the first message and queue offset behind the last one, of
            each stretch of a queue that nobody has and that is not acknowledged; in the order of
            queue ids and offsets.

        Raises:
            StoreClosedError: the store is closed.
        """
        return self._made_leases().ready(text("group", group), text("topic", topic))

    def purge(self, group: str, topic: str) -> int:
        """Be done with all messages of a topic that are ready; those that are leased stay.

        Args:
            group: the consumers that share the messages.
            topic: topic whose messages the group does not want.

        Returns:
            how many.

        Raises:
            DiskFullError: there is no room to write it down; nothing is acknowledged.
        """
        group = text("group", group)
        check_topic_name(group, "group")
        return self._made_leases().purge(group, topic)
