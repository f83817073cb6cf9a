"""Transactions: half messages, their decision, and asking producers that did not decide.

A half message waits in ``RMQ_SYS_TRANS_HALF_TOPIC``. A decision copies it to its topic, or does
not, and notes its queue offset in ``RMQ_SYS_TRANS_OP_HALF_TOPIC``. What is decided is known from
those two queues alone, so it survives every crash. A copy that was stored and not noted, for want
of room or because of a kill, is asked for once more: it is found then, and noted, not stored again.

Source: RocketMQ broker/transaction/queue/TransactionalMessageServiceImpl.java,
TransactionalMessageBridge.java, broker/processor/EndTransactionProcessor.java.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from rmqcore._codec import encode_record
from rmqcore.broker.send.given_back import is_kept
from rmqcore.broker.send.undecided import Undecided
from rmqcore.broker.state.broker_state import BrokerState
from rmqcore.broker.state.masters_only import masters_only
from rmqcore.broker.state.passed_over import TRANSACTION
from rmqcore.broker.state.queued import is_queued
from rmqcore.broker.state.settings import BrokerConfig
from rmqcore.broker.timer.timer import timer_property_of
from rmqcore.errors import CorruptStoreError, MessageIllegalError, PutMessageError, StoreError
from rmqcore.files.consume_queue import UNIT
from rmqcore.files.service_topics import (
    CHECK_MAX_TIME_TOPIC,
    HALF_TOPIC,
    OP_HALF_TOPIC,
    TRANSACTION_GROUP,
)
from rmqcore.message import Message, MessageExt, PutMessageResult, copy_to, without_light_queues
from rmqcore.native.format._numbers import SysFlag
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
from rmqcore.remoting.errors import RemotingClosedError
from rmqcore.remoting.serves import serves

logger = logging.getLogger(__name__)

_BATCH: Final = 128
_HOUR_MS: Final = 3_600_000
#: A text with more digits is taken neither for seconds nor for an offset.
_DIGITS_MAX: Final = 18
#: A note has this property when nobody has decided and nobody is asked any more.
_GIVEN_UP: Final = "RMQCORE_GIVEN_UP"


class Transactions:
    """Half messages, what producers decide of them, and the rounds of checks.

    Args:
        state: the broker's.
    """

    def __init__(self, state: BrokerState) -> None:
        self._store, self._config = state.store, state.config
        self._topics, self._producers = state.topics, state.producers
        self._arrived, self._passed_over = state.arrived, state.passed_over
        self._standing = state.standing
        self._checks: dict[int, int] = {}
        self._clock_ms = state.world.clock_ms
        self._undecided = Undecided(0, 0)
        #: half offsets that are decided, or being so, and whose notes are not read yet
        self._ended: set[int] = set()
        #: by half offset, what is set when a decision that is being stored is, or has failed
        self._deciding: dict[int, asyncio.Event] = {}
        #: half offsets whose copies are stored, and not noted
        self._committed: set[int] = set()
        #: where the half messages ended before this broker could commit any
        self._first_end = 0
        #: of the last decision that was noted
        self._last_note: PutMessageResult | None = None

    def load(self) -> None:
        """Read which half messages are decided, so that none of them is ended twice."""
        self._undecided = Undecided(self._offset(HALF_TOPIC), self._offset(OP_HALF_TOPIC))
        self._first_end = self._store.max_queue_offset(HALF_TOPIC, 0)
        while self._add_notes(self._read(OP_HALF_TOPIC, self._undecided.note_offset)):
            pass

    @staticmethod
    def half_message(message: Message) -> Message:
        """What is stored for a message whose transaction is not decided.

        A delay level is left out, as RocketMQ's clients do: the half message itself would wait.

        Raises:
            RequestRefusedError: it asks for a time, code 13.
        """
        timed_by = timer_property_of(message)
        if timed_by is not None:
            remark = (
                f"a message of a transaction cannot be a timer message, too ({timed_by}): it comes "
                f"when it is committed; send it without {timed_by}"
            )
            raise RequestRefusedError(ResponseCode.MESSAGE_ILLEGAL, remark)
        kept = dict(message.properties or {})
        kept.pop("DELAY", None)
        kept["REAL_TOPIC"] = message.topic
        kept["REAL_QID"] = str(message.queue_id)
        if "UNIQ_KEY" in kept:
            kept["__transactionId__"] = kept["UNIQ_KEY"]
        return copy_to(
            HALF_TOPIC,
            0,
            message,
            kept,
            sys_flag=message.sys_flag & ~SysFlag.TRANSACTION_MASK,
            store_host=message.store_host,
            wait_store_msg_ok=message.wait_store_msg_ok,
        )

    # ---- request 37: a producer decides

    @serves(RequestCode.END_TRANSACTION, needs=needs.end_transaction)
    @masters_only(ResponseCode.SLAVE_NOT_AVAILABLE)
    async def end(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """A producer decides."""
        decision = request.number("commitOrRollback")
        if decision not in (SysFlag.TRANSACTION_COMMIT, SysFlag.TRANSACTION_ROLLBACK):
            return success()
        phy_offset = request.number("commitLogOffset")
        queue_offset = request.number("tranStateTableOffset")
        half = self._half_at(phy_offset)
        if half is None:
            remark = "Find prepared transaction message failed"
            return failure(ResponseCode.SYSTEM_ERROR, remark)
        if half.properties.get("PGROUP") != request.text("producerGroup"):
            remark = "The producer group wrong"
            return failure(ResponseCode.SYSTEM_ERROR, remark)
        try:
            is_there = half.queue_offset == queue_offset and is_queued(self._store, half)
        except CorruptStoreError as error:
            logger.warning("half message %d is held back: %s", half.queue_offset, error)
            remark = "it is held back: decide it again after the broker's next start"
            return failure(ResponseCode.SERVICE_NOT_AVAILABLE, remark)
        if not is_there:
            remark = "The transaction state table offset wrong"
            return failure(ResponseCode.SYSTEM_ERROR, remark)
        named, key = request.text("transactionId", ""), half.unique_key
        if named and key and named not in (key, half.message_id):
            # a power cut took that one, and this has its place; clients that name none are believed
            return failure(ResponseCode.SYSTEM_ERROR, "The transaction is another's")
        while (deciding := self._deciding.get(half.queue_offset)) is not None:
            # what is answered is kept, and that one may fail
            await deciding.wait()
        if half.queue_offset in self._ended:
            return await self._kept()
        if half.queue_offset >= self._offset(HALF_TOPIC):
            if self._undecided.is_ended(half.queue_offset):
                return await self._kept()
        else:
            notes = self._notes_of(half.queue_offset)
            if not notes:
                remark = "The transaction is no longer asked for, and how it ended is not known"
                return failure(ResponseCode.SYSTEM_ERROR, remark)
            if not all(_GIVEN_UP in note.properties for note in notes):
                return success()
        self._ended.add(half.queue_offset)
        self._deciding[half.queue_offset] = asyncio.Event()
        noted = False
        try:
            if decision == SysFlag.TRANSACTION_COMMIT and not self._is_committed(half):
                await self._commit(half)
                self._committed.add(half.queue_offset)
            self._last_note = await self._note(half.queue_offset)
            self._committed.discard(half.queue_offset)
            noted = True
        except (MessageIllegalError, StoreError) as error:
            logger.warning("a transaction cannot be ended: %s", error)
            return failure(ResponseCode.SERVICE_NOT_AVAILABLE, "service not available now")
        finally:
            if not noted:
                self._ended.discard(half.queue_offset)
            self._deciding.pop(half.queue_offset).set()
        self._checks.pop(half.queue_offset, None)
        return await self._kept()

    async def _kept(self) -> RemotingCommand:
        """The answer to a decision, once disk and slaves have it as they have a send.

        Who has it may be gone when nobody knows the decision any more.
        """
        if self._last_note is None or not self._store.waits:
            return success()
        note = await self._store.confirmed(self._last_note)
        if is_kept(note.status):
            return success()
        return failure(ResponseCode.FLUSH_DISK_TIMEOUT, "it is noted, and not on the disk yet")

    def _half_at(self, phy_offset: int) -> MessageExt | None:
        try:
            found = self._store.message_at(phy_offset) if phy_offset >= 0 else None
        except CorruptStoreError:
            return None
        return found if found is not None and found.topic == HALF_TOPIC else None

    def _notes_of(self, half_offset: int) -> list[MessageExt]:
        """What was noted of a half message that the checks have gone beyond."""
        notes = self._store.query_message(OP_HALF_TOPIC, str(half_offset)).messages
        return [note for note in notes if half_offset in _named(note)]

    def _is_committed(self, half: MessageExt) -> bool:
        """Tell whether a commit has stored the message, which no note says.

        The index knows copies of before this broker's start, by their unique key.
        """
        if half.queue_offset in self._committed:
            return True
        if half.queue_offset >= self._first_end or not half.unique_key:
            return False
        topic, _ = _real_place(half)
        try:
            found = self._store.query_message(topic, half.unique_key).messages
        except StoreError as error:
            logger.warning("whether a transaction was committed cannot be looked up: %s", error)
            return False
        return any(
            copy.prepared_transaction_offset == half.phy_offset
            and copy.sys_flag & SysFlag.TRANSACTION_MASK == SysFlag.TRANSACTION_COMMIT
            for copy in found
        )

    async def _commit(self, half: MessageExt) -> None:
        """Store the message for its consumers; its properties stay as they are."""
        topic, queue_id = _real_place(half)
        queue_id = self._topics.queue_at_delivery(self._topics.get(topic), queue_id)
        message = copy_to(
            topic,
            queue_id,
            half,
            half.properties,
            sys_flag=half.sys_flag & ~SysFlag.TRANSACTION_MASK | SysFlag.TRANSACTION_COMMIT,
            prepared_transaction_offset=half.phy_offset,
            wait_store_msg_ok=False,
        )
        try:
            receipt = await self._store.put_message_async(message)
        except MessageIllegalError as error:
            alone = without_light_queues(message, error)
            receipt = await self._store.put_message_async(alone)
        if not receipt.ok:
            raise PutMessageError(receipt.status, receipt.reason)
        self._arrived(topic, queue_id)

    async def _note(self, half_offset: int, *, given_up: bool = False) -> PutMessageResult:
        """Note that a half message is decided, or given up: then its producer still may decide.

        It lies behind the message that a decision has stored.
        """
        note = Message(
            OP_HALF_TOPIC,
            b"%d" % half_offset,
            tags="d",
            keys=(str(half_offset),),
            properties={_GIVEN_UP: "true"} if given_up else None,
            wait_store_msg_ok=False,
        )
        receipt = await self._store.put_message_async(note)
        if not receipt.ok:
            raise PutMessageError(receipt.status, receipt.reason)
        return receipt

    # ---- asking

    async def run(self) -> None:
        """Ask, round after round, for what is not decided."""
        while True:
            await asyncio.sleep(self._config().transaction_check_interval / 1000)
            try:
                await self.check()
                self._standing.end("asking for undecided transactions")
            except (StoreError, OSError) as error:
                self._standing.note("asking for undecided transactions", error)

    async def check(self) -> int:
        """One round: ask the producers of half messages that are old enough.

        Returns:
            how many were asked for.
        """
        now_ms, asked = self._clock_ms(), 0
        # in this order: what is noted before is of half messages that are read now
        later_notes = self._store.max_queue_offset(OP_HALF_TOPIC, 0)
        end = self._store.max_queue_offset(HALF_TOPIC, 0)
        await self._read_on(end)
        self._undecided.later_notes = later_notes
        for offset in self._undecided.offsets():
            if offset in self._undecided and offset not in self._ended:
                half = await asyncio.to_thread(self._undecided_half, offset)
                if half is None:
                    if not self._passed_over.holds(HALF_TOPIC, 0, offset):
                        self._undecided.forget(offset)
                elif offset not in self._ended:
                    asked += await self._ask_or_give_up(half, now_ms)
        self._advance()
        return asked

    async def _read_on(self, end: int) -> None:
        """Take in what was noted, and then the half messages up to an offset."""
        undecided = self._undecided
        while self._add_notes(
            await asyncio.to_thread(self._read, OP_HALF_TOPIC, undecided.note_offset)
        ):
            pass
        while (begin := undecided.half_offset) < end:
            halves, following = await asyncio.to_thread(self._read, HALF_TOPIC, begin)
            for half in halves:
                undecided.add_half(half.queue_offset)
            if self._passed_over.holds(HALF_TOPIC, 0, undecided.half_offset):
                undecided.add_half(undecided.half_offset)
            if following <= begin and not halves:
                break
            undecided.half_offset = max(undecided.half_offset, following)

    def _add_notes(self, read: tuple[list[MessageExt], int]) -> bool:
        """Take in some notes, and where they go on; whether there may be more."""
        notes, following = read
        for note in notes:
            given_up, named = _GIVEN_UP in note.properties, _named(note)
            self._undecided.add_note(named, given_up=given_up)
            if not given_up:
                self._ended.difference_update(named)
        more = following > self._undecided.note_offset
        self._undecided.note_offset = max(self._undecided.note_offset, following)
        return more

    def _undecided_half(self, offset: int) -> MessageExt | None:
        """The half message at an offset of its queue; None when it is gone, damaged or held."""
        halves, _ = self._read(HALF_TOPIC, offset, 1)
        return halves[0] if halves and halves[0].queue_offset == offset else None

    def _read(self, topic: str, offset: int, count: int = _BATCH) -> tuple[list[MessageExt], int]:
        """Messages of one of the two queues, and where it goes on."""
        return self._passed_over.read(TRANSACTION, topic, 0, offset, count)

    def _offset(self, topic: str) -> int:
        stored = self._store.consumer_offsets.get(topic, TRANSACTION_GROUP, 0)
        return max(self._store.min_queue_offset(topic, 0), stored or 0)

    def pending_from(self) -> int | None:
        """Physical offset of the oldest half message that may be undecided; None without one.

        Retention keeps the log from there on. Any thread.
        """
        units = self._store.read_units(HALF_TOPIC, 0, self._offset(HALF_TOPIC), 1)
        for phy_offset, _, _ in UNIT.iter_unpack(units):
            return int(phy_offset)
        return None

    def _advance(self) -> None:
        """Let the next opening begin where something is undecided."""
        offsets, (half_offset, note_offset) = self._store.consumer_offsets, self._undecided.begin()
        offsets.commit(HALF_TOPIC, TRANSACTION_GROUP, 0, half_offset)
        offsets.commit(OP_HALF_TOPIC, TRANSACTION_GROUP, 0, note_offset)
        self._checks = {o: count for o, count in self._checks.items() if o in self._undecided}

    async def _ask_or_give_up(self, half: MessageExt, now_ms: int) -> bool:
        """As `_ask`; what cannot be asked for is kept for an operator, or else passed over."""
        guard = self._passed_over.guard(TRANSACTION, f"half message {half.queue_offset}")
        with guard:
            return await self._ask(half, now_ms)
        with guard:
            await self._give_up(half)
            return False
        await self._note_given_up(half.queue_offset)
        return False

    async def _ask(self, half: MessageExt, now_ms: int) -> bool:
        """Ask for one half message, if it is time; whether it was asked for.

        How long it has been kept counts only where there is nobody to ask, and by the time at which
        it was stored: its producer's clock may be days behind, and this one's may be put forward.
        """
        config = self._config()
        group, (topic, _) = half.properties.get("PGROUP", ""), _real_place(half)
        producer = self._producers.any_of(group, topic)
        asked_before = self._checks.get(half.queue_offset, 0)
        reserved_ms = self._store.config.file_reserved_time_hours * _HOUR_MS
        too_old = producer is None and now_ms - half.store_timestamp_ms > reserved_ms
        if asked_before >= config.transaction_check_max or too_old:
            await self._give_up(half)
            return False
        age_ms = now_ms - half.born_timestamp_ms
        # the log is kept for as long as it may be asked for
        most_ms = max(reserved_ms, config.transaction_time_out)
        immune_ms = min(_immunity_ms(half, config), most_ms)
        if producer is None or 0 <= age_ms <= immune_ms:
            return False
        try:
            producer.notify(self._question(half))
        except RemotingClosedError:
            return False
        self._checks[half.queue_offset] = asked_before + 1
        return True

    def _question(self, half: MessageExt) -> RemotingCommand:
        """The message under its real topic, and where its half lies."""
        topic, queue_id = _real_place(half)
        unique_key = half.unique_key or ""
        record = encode_record(
            copy_to(topic, queue_id, half, half.properties, store_host=half.store_host),
            queue_offset=half.queue_offset,
            phy_offset=half.phy_offset,
            store_timestamp_ms=half.store_timestamp_ms,
        )
        fields = {
            "commitLogOffset": str(half.phy_offset),
            "tranStateTableOffset": str(half.queue_offset),
            "msgId": unique_key,
            "transactionId": unique_key,
            "offsetMsgId": half.message_id,
            "topic": HALF_TOPIC,
            "bname": self._config().broker_name,
        }
        return RemotingCommand(RequestCode.CHECK_TRANSACTION_STATE, fields, record)

    async def _give_up(self, half: MessageExt) -> None:
        """Keep a message that nobody decides where an operator finds it.

        One that is committed is noted, for which there was no time, or no room.
        """
        if self._is_committed(half):
            self._last_note = await self._note(half.queue_offset)
            self._committed.discard(half.queue_offset)
            self._undecided.add_note([half.queue_offset], given_up=False)
            return
        self._topics.for_group(CHECK_MAX_TIME_TOPIC)
        copy = copy_to(
            CHECK_MAX_TIME_TOPIC,
            0,
            half,
            half.properties,
            store_host=half.store_host,
            wait_store_msg_ok=False,
        )
        receipt = await self._store.put_message_async(copy)
        await self._topics.file.saved(CHECK_MAX_TIME_TOPIC)
        if not receipt.ok:
            raise PutMessageError(receipt.status, receipt.reason)
        await self._note_given_up(half.queue_offset)

    async def _note_given_up(self, half_offset: int) -> None:
        await self._note(half_offset, given_up=True)
        self._undecided.add_note([half_offset], given_up=True)

    # ---- request 323: an operator has them asked again

    @serves(RequestCode.RESUME_CHECK_HALF_MESSAGE, needs=needs.ADMIN)
    @masters_only(ResponseCode.SYSTEM_ERROR)
    async def resume(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Put back a half message that was given up: it is asked for as if it were new."""
        remark = f"Put message back to {HALF_TOPIC} failed."
        kept = self._given_up(request.text("msgId", ""))
        if kept is None:
            where = f" No message of {CHECK_MAX_TIME_TOPIC} has this id."
            return failure(ResponseCode.SYSTEM_ERROR, remark + where)
        half = copy_to(
            HALF_TOPIC,
            0,
            kept,
            {**kept.properties, "TRANSACTION_CHECK_TIMES": "0"},
            store_host=kept.store_host,
            wait_store_msg_ok=False,
        )
        try:
            receipt = await self._store.put_message_async(half)
        except (MessageIllegalError, StoreError) as error:
            logger.warning("a half message cannot be put back: %s", error)
            return failure(ResponseCode.SYSTEM_ERROR, remark)
        return success() if receipt.ok else failure(ResponseCode.SYSTEM_ERROR, remark)

    def _given_up(self, message_id: str) -> MessageExt | None:
        try:
            found = self._store.message_by_id(message_id)
        except CorruptStoreError:
            return None
        return found if found is not None and found.topic == CHECK_MAX_TIME_TOPIC else None


def _immunity_ms(half: MessageExt, config: BrokerConfig) -> int:
    """For how long after its birth a message is not asked for."""
    seconds = _whole(half.properties.get("CHECK_IMMUNITY_TIME_IN_SECONDS", ""))
    return config.transaction_time_out if seconds is None else seconds * 1000


def _whole(text: str) -> int | None:
    """A number that a record says; None when it is none."""
    if text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX:
        return int(text)
    return None


def _named(note: MessageExt) -> list[int]:
    """The offsets of the half messages that a note is about."""
    parts = note.body.decode("ascii", "replace").split(",")
    return [number for part in parts if (number := _whole(part.strip())) is not None]


def _real_place(half: MessageExt) -> tuple[str, int]:
    properties = half.properties
    return properties.get("REAL_TOPIC", ""), _whole(properties.get("REAL_QID", "")) or 0
