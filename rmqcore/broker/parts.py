"""`BrokerParts`: a broker's state, and what waits, is handed out and is put off over it."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from rmqcore.broker.pop.acks import PopAcks
from rmqcore.broker.pop.checkpoints import Checkpoints
from rmqcore.broker.pop.order import PopOrder
from rmqcore.broker.pop.receipts import retry_topic_of
from rmqcore.broker.pop.waiting import WaitingPops
from rmqcore.broker.pull.waiting import WaitingPulls
from rmqcore.broker.send.transactions import Transactions
from rmqcore.broker.state.broker_state import BrokerState
from rmqcore.broker.state.offsets import ALL_CAME_S
from rmqcore.broker.state.settings import BrokerConfig
from rmqcore.broker.state.topic_attributes import is_compacted
from rmqcore.broker.state.topics import queue_ids
from rmqcore.broker.state.topics_of_log import lost_topics, unknown_topics
from rmqcore.broker.timer.timer import TimerMessages
from rmqcore.errors import DiskFullError, StoreClosedError, StoreError, StoreNotWritableError
from rmqcore.files.readers_of_lost import ReadQueue
from rmqcore.files.timer_check import TIMER_TOPIC
from rmqcore.remoting import Connection
from rmqcore.store.message_store import DefaultMessageStore
from rmqcore.world import World

logger = logging.getLogger(__name__)

#: So many names stand in one line of the log.
_NAMED_MAX = 20


class BrokerParts(BrokerState):
    """The state of one broker, and the parts that go on over it, made in order.

    Attributes:
        waiting_pulls, waiting_pops: the requests that wait for messages.
        checkpoints, pop_order: what POP has handed out, in no order and in order.
        pop_acks: acknowledges, and hands out again.
        transactions: half messages.
        timer: messages for later.
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
        """Make them; see `BrokerState`."""
        super().__init__(
            store,
            folder,
            config,
            topics_changed=topics_changed,
            groups_changed=groups_changed,
            world=world,
        )
        #: whether a broker of RocketMQ has served the store since one of ours did
        self._others_served = False
        self.waiting_pulls = WaitingPulls()
        self.waiting_pops = WaitingPops()
        self.transactions = Transactions(self)
        self.timer = TimerMessages(self, self._timer_arrived)
        self.checkpoints = Checkpoints(self)
        self.pop_order = PopOrder(folder, self.world.clock_ms, self.check_there)
        self.pop_acks = PopAcks(self, self.waiting_pops, self.checkpoints, self.pop_order)
        self.on_arrival(self.waiting_pulls.arrived)
        self.on_arrival(self.waiting_pops.arrived)
        self.on_arrival(self.timer.arrived, TIMER_TOPIC)
        store.consumer_offsets.ahead = self._flush_log
        self.topics.on_made = self._topic_made

    def _timer_arrived(self, topic: str, queue_id: int) -> None:
        """As `arrived`; checkpoints of a broker of RocketMQ come out of the timer, too."""
        self.checkpoints.arrived(topic, queue_id)
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

    def _begin_queues(self, topic: str, queue_ids: Collection[int]) -> None:
        """Send groups to the beginning of queues of a deleted topic, until the master tells where.

        Raises:
            OSError: it cannot be written.
        """
        self.offsets.resets.begin_queues(topic, queue_ids)
        self.offsets.resets.persist_told()

    def _write_followed(self) -> None:
        """As `_flush_log`, on a slave: offsets that are gone rely on where groups begin, too.

        Raises:
            OSError: it cannot be written.
        """
        self.offsets.resets.persist_told()
        self._flush_log()

    def load(self) -> None:
        """Read what the parts go on from; what a slave goes on from is its master's.

        Raises:
            OSError, StoreError: it cannot be read, or what has changed cannot be written.
        """
        self.timer.expect_file()
        if self.config().is_slave:
            self._follow()
        else:
            self._lead()
        self.checkpoints.load()
        self.pop_order.forget_done(self.store.consumer_offsets.get)
        self.transactions.load()

    def _follow(self) -> None:
        # before the log comes: it has topics that the table does not have yet
        self.store.topics.follow()
        self.store.topics.persist()
        # what it had handed out as a master may have been of another log
        self.pop_order.bring_back(lambda *_: 0)
        self.follow_from(self.store.max_phy_offset)
        self.store.followed_log.on_begin_anew(self._begin_queues)
        self.store.consumer_offsets.ahead = self._write_followed

    def follow_from(self, log_end: int) -> None:
        """Keep where a slave's log ends before a master's goes on behind it; any thread.

        Args:
            log_end: physical offset.

        Raises:
            OSError: it cannot be written.
        """
        resets = self.offsets.resets
        found = resets.found_end
        if found is not None and found < log_end and self._is_long_ago(found):
            # nobody comes any more who has read beyond it; but beyond this one, maybe
            resets.found_end = None
        resets.follow(log_end)
        resets.persist_ends()

    def _lead(self) -> None:
        store, resets = self.store, self.offsets.resets
        self.topics.know_again(store.queues())
        report = store.recovery_report
        # a slave that becomes the master, or a crash, may have lost what groups have read
        tables = store.topics, store.consumer_offsets, self.groups.table
        # any of them may have been lost since
        promoted = resets.was_serving is None and any(table.follows for table in tables)
        lacks_some = promoted or not store.topics.is_whole
        unknown = unknown_topics(store) if lacks_some else lost_topics(store)
        self.topics.know_of_log(unknown)
        self._tell_of_topics({topic for topic, _ in unknown})
        offsets = store.consumer_offsets
        offsets.take_over_lmq()
        # a broker has led with one table, and not with the other; RocketMQ keeps all entries
        if store.topics.begun_ms is not None and offsets.begun_ms is None and not offsets.pairs():
            words = "%s is lost: nobody knows what groups had consumed; they begin as new ones"
            logger.warning(words, offsets.path)
        # one of RocketMQ writes the table without what ours has in it, and notes no deletion
        is_ours = store.topics.begun_ms is not None
        self._others_served = not (promoted or is_ours or resets.was_serving is None)
        if promoted:
            # who is killed before looks for them once more
            resets.ahead = store.topics.persist
        for table in tables:
            table.lead()
        end, before = report.end_offset, resets.log_end
        # others may have read what was fetched since, and what was cut off
        may_be_shorter = promoted or before not in (None, end) or not report.clean_shutdown
        end_of = former_end_of = self.offsets.ends_at(end)
        found = resets.found_end
        if promoted and found is not None and found < end and self._is_long_ago(found):
            found = before
        if found is not None and 0 <= found < end:
            former_end_of = self.offsets.ends_at(max(found, store.min_phy_offset))
        was_cut = before is not None and not 0 <= before <= end
        deleted = resets.deleted_by_others(store.followed_log.deletions())
        for topic in deleted:
            self.offsets.forget_topic(topic)
            self.pop_order.forget_topic(topic)
        # first: that it was cut is known until the offsets are brought back
        self.pop_order.bring_back((lambda *_: 0) if was_cut else former_end_of)
        self.offsets.bring_back(end_of, former_end_of, may_be_shorter=may_be_shorter)
        for topic in deleted:
            self.offsets.begin_anew((), self._queues_of(topic), lambda _: True)
        if self._others_served and before is not None and not was_cut:
            self.offsets.begin_anew((), self._begun_behind(before), lambda _: True)
        resets.know_deletions(store.followed_log.deletions())

    def _begun_behind(self, log_end: int) -> list[tuple[str, int]]:
        """The queues whose first message lies behind an offset: of new topics, or made anew."""
        whole = [queue for queue in self.store.queues() if self.store.min_queue_offset(*queue) == 0]
        return [
            queue
            for queue in whole
            for first in self.store.messages(*queue, stop=1, on_damage=lambda _: None)
            if first.phy_offset >= log_end
        ]

    def _is_long_ago(self, phy_offset: int) -> bool:
        """Whether all that had read what a slave's log lacked there have come to its master."""
        log = self.store.followed_log
        start = max(phy_offset, self.store.min_phy_offset)
        first = next(iter(self.store.messages(start=start, on_damage=lambda _: None)), None)
        last_ms = log.store_time_at((log.last_record() or (0, b""))[0])
        if first is None or last_ms is None:
            return True
        return last_ms - first.store_timestamp_ms > 1000 * ALL_CAME_S

    def _tell_of_topics(self, unknown: Collection[str]) -> None:
        table = self.store.topics
        if names := sorted(unknown):
            words = "%d topics have messages and were not in %s; they are from now on: %s"
            logger.warning(words, len(names), table.path, ", ".join(names[:_NAMED_MAX]))
        if names := [each.topic_name for each in table if is_compacted(each.attributes)]:
            words = "%d topics have cleanup.policy=COMPACTION, %s: %s"
            what = "take nothing here, and what compaction/ has of them cannot be read"
            logger.warning(words, len(names), what, ", ".join(names[:_NAMED_MAX]))
        if names := sorted(self.static_topics.names):
            words = "%d topics are static ones of RocketMQ's, which are not served here: %s"
            logger.warning(words, len(names), ", ".join(names[:_NAMED_MAX]))

    def pending_from(self) -> int | None:
        """Physical offset of the oldest message that waits; None without one. Any thread.

        It waits for its time, or for what its producer decides.
        """
        found = self.timer.pending_from(), self.transactions.pending_from()
        return min((at for at in found if at is not None), default=None)

    def persist_progress(self) -> None:
        """Write how far groups have come, as far as the disk takes it."""
        resets, offsets = self.offsets.resets, self.store.consumer_offsets
        tables = {
            "writing what POP has in order": self.pop_order.persist,
            "writing offsets of groups": offsets.persist,
            "writing where groups begin": resets.persist_told,
        }
        for what, write in tables.items():
            try:
                write()
                self.standing.end(what)
            except OSError as error:
                self.standing.note(what, error)

    @asynccontextmanager
    async def deleting(self, topic: str) -> AsyncIterator[list[str]]:
        """The context in which a topic is deleted; what is known of its messages is forgotten then.

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
        self.topics.being_deleted |= names
        queues = [queue for queue in self.store.queues() if queue[0] in names]
        readers, deleted = self._readers(topic), False
        try:
            # first: what the disk refuses of all this has forgotten nothing
            await asyncio.to_thread(self.offsets.resets.keep, readers)
            yield along
            deleted = True
        finally:
            left = {queue[0] for queue in queues if self.store.max_queue_offset(*queue) > 0}
            for name in names:
                if deleted or name not in left:
                    self.offsets.forget_topic(name)
                    self.pop_order.forget_topic(name)
                    self.checkpoints.forget_topic(name)
                    self.passed_over.forget_topic(name)
            # their clients would go on behind what comes next, and commit that
            self.offsets.begin_anew(
                readers,
                [queue for queue in queues if queue[0] == topic],
                lambda queue: deleted or self.store.max_queue_offset(*queue) == 0,
            )
            for queue_id in {queue_id for _, _, queue_id in readers} | {one[1] for one in queues}:
                self.waiting_pulls.arrived(topic, queue_id)
            self.topics.being_deleted -= names
            self.offsets.resets.know_deletions(self.store.followed_log.deletions())
            # else it is written, or tried again, with the offsets; a kill may come before
            with suppress(OSError):
                await asyncio.to_thread(self.pop_order.persist)
                await asyncio.to_thread(self.offsets.resets.persist_ends)

    def _readers(self, topic: str) -> list[ReadQueue]:
        """The groups that read a topic, or have, by queue.

        But for those whose clients each read all: that one goes on says nothing of the others.
        """
        groups = {group for name, group in self.store.consumer_offsets.pairs() if name == topic}
        groups.update(self.consumers.subscribed_to(topic))
        connected = self.consumers.groups
        groups -= {name for name in groups & connected.keys() if connected[name].broadcasting}
        found = {(group, *queue) for group in groups for queue in self._queues_of(topic)}
        # those of the topic before it have not come again yet
        return sorted(found | {key for key in self.offsets.resets if key[1] == topic})

    def _queues_of(self, topic: str) -> list[tuple[str, int]]:
        known = self.topics.get(topic)
        most = 0 if known is None else max(known.read_queue_nums, known.write_queue_nums)
        # what was due later came to a topic that was deleted, and makes queues without making it
        filled = {queue_id for name, queue_id in self.store.queues() if name == topic}
        return [(topic, queue_id) for queue_id in sorted({*queue_ids(most), *filled})]

    def _topic_made(self, topic: str) -> None:
        """Let groups begin with a topic in the place of one that was deleted, whoever did it."""
        if self._others_served or self.store.followed_log.deletions().get(topic, 0) > 0:
            self.offsets.begin_anew((), self._queues_of(topic), lambda _: True)

    async def forget_group(self, group: str) -> None:
        """Forget what a group has consumed, and what it has still in order; on the disk, too.

        Raises:
            OSError: it cannot be written.
        """
        is_here = self.consumers.find(group) is not None
        self.offsets.forget_group(group, is_here=is_here)
        self.pop_order.forget_group(group)
        await asyncio.to_thread(self.pop_order.persist)
        await asyncio.to_thread(self.store.consumer_offsets.persist)

    def follow_deletion(self, topic: str, phy_offset: int) -> bool:
        """Delete on a slave what its master has deleted of a topic, and forget what is known of it.

        Args:
            topic: by name; one that is not here is nothing to do.
            phy_offset: below which the master has deleted its records.

        Returns:
            False when the slave's log does not reach there yet.

        Raises:
            OSError, StoreError: as of the store's `follow_deletion`.
        """
        log = self.store.followed_log
        known = log.deleted_below(topic)
        try:
            return log.follow_deletion(topic, phy_offset)
        finally:
            if log.deleted_below(topic) != known:
                self.pop_order.forget_topic(topic)

    def release(self) -> None:
        """Answer all requests that wait for messages: the broker is about to stop."""
        self.waiting_pulls.release()
        self.waiting_pops.release()

    def finish(self) -> None:
        """Keep what is reached; the last call, before the store is closed.

        Raises:
            OSError, StoreError: it cannot be written.
        """
        self.timer.finish()
        self.checkpoints.commit()
        self.pop_order.persist()
        # what is delivered behind the end that is noted is another's for the next start
        self.store.parts.upkeep.stop_callers()
        self.store.flush()
        self.offsets.resets.end(self.store.max_phy_offset)
        self.offsets.resets.persist_told()

    def forget(self, connection: Connection) -> None:
        """Let go of a connection that was closed: its clients, and its requests that wait."""
        self.consumers.forget(connection)
        self.producers.forget(connection)
        self.waiting_pulls.forget(connection)
        self.waiting_pops.forget(connection)
