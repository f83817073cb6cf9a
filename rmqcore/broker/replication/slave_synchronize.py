"""What a slave fetches from its master besides the log: topics, groups, offsets, modes, timers.

Source: RocketMQ broker/slave/SlaveSynchronize.java.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from rmqcore.broker.state.resets import RESETS_TOLD, Resets
from rmqcore.broker.state.topics_of_log import has_queue
from rmqcore.config import BrokerRole
from rmqcore.errors import StoreError
from rmqcore.files.config_tables import ConfigTable, TopicConfigTable
from rmqcore.files.consume_queue import SCHEDULE_TOPIC
from rmqcore.files.consumer_offset_table import ConsumerOffsetTable
from rmqcore.files.delay_offset_table import DelayOffsetTable
from rmqcore.files.deleted_topics import deletions_told
from rmqcore.files.group_table import SubscriptionGroupTable
from rmqcore.files.service_topics import HALF_TOPIC, TRANSACTION_GROUP
from rmqcore.files.timer_check import TIMER_TOPIC, TimerCheck, TimerProgress, progress_told
from rmqcore.ha.client import LogRange
from rmqcore.ha.frames import OFFSET_MAX
from rmqcore.java.json import parse_java_json
from rmqcore.remoting import (
    RemotingClient,
    RemotingCommand,
    RemotingError,
    RequestCode,
    ResponseCode,
)
from rmqcore.remoting.errors import shortened
from rmqcore.services.delay_schedule import queue_id_of_level
from rmqcore.services.event_loop import to_the_end
from rmqcore.services.standing import Standing

logger = logging.getLogger(__name__)

_PERIOD_S: Final = 10.0
#: A question that was not answered is asked again after this; so is one about a topic that has come
#: with the log and is not known.
_RETRY_S: Final = 1.0
#: A slave without a master to ask looks for one this often.
_POLL_S: Final = 0.1
#: The progress of a master is not taken over when the log has not come that far within this time.
_CATCH_UP_S: Final = 1.0
_TIMEOUT_MS: Final = 3000
#: Delay levels up to this one are looked at whether the master has told of them or not.
_LEVELS_MIN: Final = 18
#: So are those below the last one that it has told of, up to this one.
_LEVELS_MAX: Final = 1024
_RANGE: Final = RequestCode.GET_BROKER_RUNTIME_INFO
#: A longer answer to that is none: a broker's has some 10 KiB, and it is read on the loop.
_RANGE_SIZE_MAX: Final = 64 << 10
#: A master of a release before 5 knows no such table: it is taken for an empty one.
_EMPTY_TABLES: Final = {RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: '{"messageRequestModeMap":{}}'}


class SlaveSynchronize:
    """Asks the master every 10 seconds; what cannot be had is had the next time.

    It asks sooner when the log brings a topic, or a queue, that is not known: without it nobody
    could read it here once the master is gone.

    - Nothing is taken over but from the master whose log this one is: as long as the connection
      that the log comes over has compared both, and the log of whoever answers is no shorter.
    - Each table is taken over as the master has it; of the offsets, those that the master has. One
      that is empty, or begun anew, takes nothing away; nor is a topic that has messages, or a group
      that has offsets, gone with a table that does not know it.
    - How far delay levels, timer messages and groups are decides which messages come when this
      store has to be the master's: it is taken over when the log has what the master has delivered,
      and the copies of what groups have given back, popped or committed.
    - A topic that was deleted is deleted here, too, as far as the master's log went then; a master
      of RocketMQ does not tell, and the numbers of the new topic do.
    """

    def __init__(
        self,
        client: RemotingClient,
        master: Callable[[], str],
        topics: TopicConfigTable,
        offsets: ConsumerOffsetTable,
        groups: SubscriptionGroupTable,
        modes: ConfigTable,
        folder: Path,
        *,
        agrees: Callable[[], bool],
        witness: Callable[[], tuple[int, bytes] | None],
        log_end: Callable[[], int],
        queue_end: Callable[[str, int], int],
        flush: Callable[[], object],
        follow_deletion: Callable[[str, int], bool],
        has_messages: Callable[[str, int], bool],
        topics_changed: Callable[[], None],
        statics_told: Callable[[str], object] = lambda _: None,
        resets: Resets,
        clock_ms: Callable[[], int],
    ) -> None:
        """Prepare to ask.

        Args:
            client: sends the requests.
            master: gives the master's address at this moment; empty: not known.
            topics: the slave's own topics.
            offsets: what groups have consumed.
            groups: the groups.
            modes: which of them pop which topics.
            folder: its ``config`` folder.
            agrees: tells whether the slave's log is known to be that master's at this moment.
            witness: gives the place and bytes of the slave's last record where it takes that to
                know whether a master's log is this one; None where its address says so.
            log_end: gives the end of the slave's log at this moment.
            queue_end: gives the end of a queue of the slave's, by topic and queue id.
            flush: brings the log to the disk.
            follow_deletion: deletes what a topic has below a physical offset; False when the log
                does not reach there yet.
            has_messages: tells whether a topic has messages here that can be read, behind a
                physical offset.
            topics_changed: called when topics, groups or modes are others than before.
            statics_told: takes over which topics are static of what a master tells of topics.
            resets: where groups have to go on.
            clock_ms: Unix time in milliseconds.
        """
        self._client = client
        self._master = master
        self._tables: Mapping[RequestCode, ConfigTable] = {
            RequestCode.GET_ALL_TOPIC_CONFIG: topics,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: groups,
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: modes,
        }
        self._offsets = offsets
        self._groups = groups
        self._delays = DelayOffsetTable(
            folder,
            clock=clock_ms,
            end_of=lambda level: queue_end(SCHEDULE_TOPIC, queue_id_of_level(level)),
        )
        self._delays.check_there = topics.check_there
        self._timer_check = TimerCheck(folder, topics.check_there)
        self._clock_ms = clock_ms
        self._first_pending: int | None = 0
        #: whether who was asked last for its log's range is a slave itself
        self._of_a_slave = False
        self._agrees = agrees
        self._witness = witness
        #: whether the master that was asked last has another log than the one that comes
        self.is_other = False
        self._log_end, self._queue_end = log_end, queue_end
        self._flush, self._follow_deletion = flush, follow_deletion
        self._has_messages, self._statics_told = has_messages, statics_told
        self._topics_changed, self._resets = topics_changed, resets
        self._failures: dict[RequestCode, str] = {}
        self._standing = Standing()
        #: of these, the ones to which the last answer was none
        self._unanswered: set[RequestCode] = set()
        self._topics = topics
        #: whether the master tells what it has deleted; None where its topics have not come yet
        self.tells_deletions: bool | None = None
        self._wanted = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._set_back()

    def _set_back(self) -> None:
        """Let nothing count as delivered that this log has not got; before the master's comes."""
        for level, offset in self._delays.levels().items():
            self._delays.commit(
                level, min(offset, self._queue_end(SCHEDULE_TOPIC, queue_id_of_level(level)))
            )
        try:
            self._delays.persist()
            reached = self._timer_check.keep_up_to(
                self._queue_end(TIMER_TOPIC, 0), self._clock_ms()
            )
            if reached is not None:
                self._first_pending = reached.first_pending
        except OSError:
            logger.exception("how far deliveries are cannot be set back to the log's end")

    def arrived(self, queues: Sequence[tuple[str, int]]) -> None:
        """Look whether messages that have come are of known topics and queues; any thread."""
        loop = self._loop
        if loop is not None and not all(has_queue(self._topics, *queue) for queue in queues):
            with suppress(RuntimeError):
                # the loop may have ended
                loop.call_soon_threadsafe(self._wanted.set)

    def ask_soon(self) -> None:
        """Ask the master before it is time; on the event loop."""
        self._wanted.set()

    def pending(self) -> list[tuple[str, int, int]]:
        """The first message of each queue that the master has not done with, as far as is known.

        Delayed and timer messages that it has to deliver, and half messages that are undecided.

        Until a master has told it, that is its first message. Any thread.

        Returns:
            topic, queue id and queue offset; there may be no such message.
        """
        levels = self._delays.levels()
        most = min(_LEVELS_MAX, max([_LEVELS_MIN, *levels]))
        found = [
            (SCHEDULE_TOPIC, queue_id_of_level(level), levels.get(level, 0))
            for level in sorted({*range(1, most + 1), *levels})
        ]
        half = self._offsets.get(HALF_TOPIC, TRANSACTION_GROUP, 0) or 0
        found.append((HALF_TOPIC, 0, half))
        first = self._first_pending
        return found if first is None else [*found, (TIMER_TOPIC, 0, first)]

    def problem(self) -> str | None:
        """Why tables do not come; None when they do."""
        for code, reason in self._failures.items():
            return (
                f"{code.name} was not had: {reason}. Master and slave need the same accounts, one "
                "of them an operator's, and the same use of TLS"
            )
        return None

    async def run(self) -> None:
        """Ask until the task is cancelled."""
        self._loop = asyncio.get_running_loop()
        while True:
            while not (self._master() and self._agrees()):
                await asyncio.sleep(_POLL_S)
            had = await self.synchronize()
            await asyncio.sleep(_RETRY_S)
            if had:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_PERIOD_S - _RETRY_S):
                        await self._wanted.wait()
            self._wanted.clear()

    async def synchronize(self) -> bool:
        """Ask for everything once; whether all of it came."""
        address = self._master()
        if not address:
            return False
        # before the question: what comes meanwhile may be more than the master had
        end = self._log_end()
        log = await self._log_range(address)
        in_order = log is not None and end <= log.max_offset and not self._of_a_slave
        done = [in_order]
        for code, table in self._tables.items():
            text = await self._ask(address, code)
            if text is None or not in_order:
                done.append(False)
            elif table is self._topics:
                done.append(await self._adopt_topics(address, text))
            else:
                groups = {group for _, group in self._offsets.pairs()}
                if code == RequestCode.GET_ALL_MESSAGE_REQUEST_MODE:
                    # it has no version that tells of a loss; its groups' table, which came before
                    # it, has
                    groups.update(self._groups.names())
                keep = groups.__contains__
                done.append(await self._adopt(address, code, table, text, keep))
        if in_order:
            done.append(await self._follow_progress(address))
        if log is None:
            self._failed(_RANGE, address, "it does not say where its log ends")
        elif self._of_a_slave:
            # who was the master before has tables, and deletions, that the new one does not know
            self._failed(_RANGE, address, "it is a slave itself")
        else:
            self._failures.pop(_RANGE, None)
        return all(done)

    async def _ask(self, address: str, code: RequestCode) -> str | None:
        """A table as the master has it; None when it was not had."""
        text = None
        try:
            answer = await self._client.invoke(address, RemotingCommand(code), _TIMEOUT_MS)
            if answer.code == ResponseCode.SUCCESS:
                text = bytes(answer.body).decode()
            elif answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                text = _EMPTY_TABLES.get(code)
            reason = f"code {answer.code}: {answer.remark}"
        except (RemotingError, ValueError) as error:
            reason = str(error)
        if text is None:
            self._unanswered.add(code)
            self._failed(code, address, reason)
        elif code in self._unanswered:
            # whether it is a table is said when it is taken over, which the log may put off
            self._unanswered.remove(code)
            self._failures.pop(code, None)
        return text

    async def _adopt(
        self,
        address: str,
        code: RequestCode,
        table: ConfigTable,
        text: str,
        keep: Callable[[str], bool] = lambda _: False,
        counts: Callable[[], bool] = lambda: True,
    ) -> bool:
        """Put a table in the place of the one that is here; whether it is one.

        A large one takes seconds: the loop goes on meanwhile.
        """

        def is_known() -> bool:
            # else the connection has gone since: nobody knows whose answer this is
            return self._agrees() and counts()

        try:
            changed = await to_the_end(asyncio.to_thread(table.adopt, text, keep, is_known))
        except ValueError as error:
            return self._failed(code, address, str(error))
        if changed:
            self._topics_changed()
        if not self._agrees():
            return False
        self._failures.pop(code, None)
        return True

    async def _adopt_topics(self, address: str, text: str) -> bool:
        """Take the topics over, and delete what the master has deleted; whether all of that is.

        One that tells what it has deleted, and not that it has deleted the messages that a topic
        has here, has lost its table.
        """
        code = RequestCode.GET_ALL_TOPIC_CONFIG
        try:
            told = await to_the_end(asyncio.to_thread(deletions_told, text))
        except ValueError as error:
            return self._failed(code, address, str(error))
        self.tells_deletions = told is not None

        def keep(topic: str) -> bool:
            return told is not None and self._has_messages(topic, told.get(topic, 0))

        followed = await self._adopt(address, code, self._topics, text, keep)
        try:
            if followed:
                await to_the_end(asyncio.to_thread(self._statics_told, text))
            for topic, phy_offset in (told or {}).items() if followed else ():
                work = asyncio.to_thread(self._follow_deletion, topic, phy_offset)
                followed &= await to_the_end(work)
        except (OSError, StoreError) as error:
            self._standing.note("deleting what the master has deleted", error)
            return False
        except ValueError as error:
            return self._failed(code, address, str(error))
        self._standing.end("deleting what the master has deleted")
        return followed

    async def _follow_progress(self, address: str) -> bool:
        """Keep how far the master's groups, delay levels and timer are, once all of it is here.

        Returns:
            whether groups and delay levels were had; a master without a timer says nothing of it.
        """
        forgotten = self._offsets.forgotten
        codes = RequestCode.GET_ALL_CONSUMER_OFFSET, RequestCode.GET_ALL_DELAY_OFFSET
        groups, delays = [await self._ask(address, code) for code in codes]
        timer = await self._timer_of(address)
        had = groups is not None and delays is not None
        if (groups, delays, timer) == (None, None, None):
            return False

        def counts() -> bool:
            # else a queue has begun anew meanwhile, and the answer may be of the one before
            return forgotten == self._offsets.forgotten

        # at once: where groups go on relies on nothing that is still to come
        if groups is not None:
            had &= await self._adopt_resets(address, groups, counts)
        if not await self._has_all():
            return had
        if not self._agrees():
            return False
        for code, table, text in zip(
            codes, (self._offsets, self._delays), (groups, delays), strict=True
        ):
            had &= text is not None and await self._adopt(address, code, table, text, counts=counts)
        if not counts():
            return False
        try:
            await to_the_end(asyncio.to_thread(self._keep, timer))
            self._standing.end("keeping how far the master's deliveries are")
        except (OSError, StoreError) as error:
            self._standing.note("keeping how far the master's deliveries are", error)
        return had

    async def _adopt_resets(self, address: str, text: str, counts: Callable[[], bool]) -> bool:
        """Take over where groups have to go on, which comes with their offsets; whether it does."""
        try:
            # a large table is read once more only where it has a member that counts here
            told = any(f'"{name}"' in text for name in RESETS_TOLD)
            content = await to_the_end(asyncio.to_thread(parse_java_json, text)) if told else {}
            if self._agrees() and counts():
                self._resets.adopt(content)
        except ValueError as error:
            return self._failed(RequestCode.GET_ALL_CONSUMER_OFFSET, address, str(error))
        return True

    async def _timer_of(self, address: str) -> tuple[TimerProgress, bool] | None:
        """How far the master's timer messages are, see `progress_told`; None without a timer."""
        try:
            command = RemotingCommand(RequestCode.GET_TIMER_CHECK_POINT)
            answer = await self._client.invoke(address, command, _TIMEOUT_MS)
            if answer.code == ResponseCode.SUCCESS:
                return progress_told(bytes(answer.body))
        except (RemotingError, ValueError) as error:
            logger.info("master %s: how far its timer is was not had: %s", address, error)
        return None

    async def _has_all(self) -> bool:
        """Wait a moment for the log to come to where the master's is now; whether it did."""
        log = await self.log_range()
        if log is None:
            return False
        with suppress(TimeoutError):
            async with asyncio.timeout(_CATCH_UP_S):
                while self._log_end() < log.max_offset:
                    await asyncio.sleep(_POLL_S)
        return self._log_end() >= log.max_offset

    def _keep(self, answer: tuple[TimerProgress, bool] | None) -> None:
        """Write how far deliveries are, behind the log that has what was delivered."""
        self._resets.persist_told()
        timer = None
        if answer is not None:
            timer = answer[0].up_to(self._queue_end(TIMER_TOPIC, 0))
        told = None if self._timer_check.load() == timer else timer
        if told is not None or self._delays.changed:
            self._flush()
        self._delays.persist()
        if told is not None:
            self._timer_check.store(told, self._clock_ms())
        if answer is not None and timer is not None:
            self._first_pending = timer.first_pending if answer[1] else None

    def _failed(self, code: RequestCode, address: str, reason: str) -> bool:
        """Log why a table did not come, once for each reason."""
        reason = shortened(reason)
        if self._failures.get(code) != reason:
            self._failures[code] = reason
            logger.warning("master %s: %s was not had: %s", address, code.name, reason)
        return False

    async def log_range(self) -> LogRange | None:
        """Where the master's log begins and ends; None when it does not say, or has another one."""
        address = self._master()
        return await self._log_range(address) if address else None

    async def _log_range(self, address: str) -> LogRange | None:
        command = RemotingCommand(_RANGE)
        try:
            self.is_other = not await self._has_witness(address)
            if self.is_other:
                return None
            answer = await self._client.invoke(address, command, _TIMEOUT_MS)
            if answer.code != ResponseCode.SUCCESS or len(answer.body) > _RANGE_SIZE_MAX:
                return None
            table = parse_java_json(bytes(answer.body).decode())["table"]
            self._of_a_slave = table.get("brokerRole") == BrokerRole.SLAVE.value
            return _range_in(table)
        except (RemotingError, ValueError, TypeError, KeyError, AttributeError) as error:
            logger.info("master %s: does not say where its log is: %s", address, error)
            return None

    async def _has_witness(self, address: str) -> bool:
        """Whether a master has the slave's last record, where that has to be asked.

        Raises:
            RemotingError: it does not answer.
        """
        witness = self._witness()
        if witness is None:
            return True
        phy_offset, record = witness
        command = RemotingCommand(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(phy_offset)})
        answer = await self._client.invoke(address, command, _TIMEOUT_MS)
        return answer.code == ResponseCode.SUCCESS and bytes(answer.body) == record


def _range_in(table: Mapping[str, Any]) -> LogRange:
    """Where the log begins and ends that the table of an answer to request 28 tells of.

    Raises:
        ValueError, TypeError, KeyError: no log is there.
    """
    told = LogRange(int(table["commitLogMinOffset"]), int(table["commitLogMaxOffset"]))
    # -1 is RocketMQ's smallest offset of an empty log
    if not -1 <= told.min_offset <= told.max_offset < OFFSET_MAX:
        raise ValueError(f"{told} is where no log is")
    return told
