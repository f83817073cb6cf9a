"""The public face of putting: `MessagePuts`, with the general path of a put and its receipts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack

from rmqcore._codec import decode_batch, encode_batch, shares_queue
from rmqcore.arguments import refuse_unknown
from rmqcore.config import BrokerRole, StoreConfig
from rmqcore.errors import (
    ArgumentError,
    ConfigError,
    DiskFullError,
    FlushTimeoutError,
    MessageIllegalError,
    PutMessageError,
    StoreNotWritableError,
)
from rmqcore.files.commit_log_writer import CommitLogWriter
from rmqcore.message import Message, MessageExt, PutMessageResult, copy_to
from rmqcore.native.base._lock import ReentrantLock
from rmqcore.native.format._numbers import SysFlag
from rmqcore.native.log._putter import MessagePutter
from rmqcore.native.log._tail import END_OF_FILE
from rmqcore.services.delay_schedule import park, requested_delay_level
from rmqcore.services.event_loop import running_loop
from rmqcore.services.flush import GroupCommitService
from rmqcore.services.flush_policy import FlushPolicy
from rmqcore.services.running_flags import RunningFlags
from rmqcore.services.store_stats import StoreStatsService
from rmqcore.status import Durability, DurabilityName, PutMessageStatus
from rmqcore.store.slave_waits import NoSlaves

if TYPE_CHECKING:
    from rmqcore.store.slave_waits import SlaveWaits, Waits

_BUFFERS = (bytes, bytearray, memoryview)
#: what a batch says for all its messages
_ENVELOPE: Final = (
    "queue_id",
    "sys_flag",
    "born_timestamp_ms",
    "born_host",
    "store_host",
    "reconsume_times",
)
_SLAVES_SAY: Final = {
    PutMessageStatus.SLAVE_NOT_AVAILABLE: (
        "stored here, but too few slaves are connected and near enough to wait for"
    ),
    PutMessageStatus.FLUSH_SLAVE_TIMEOUT: (
        "stored here, but too few slaves have acknowledged it in time"
    ),
}


class PutSettings(TypedDict, total=False):
    """What travels with a message, as in `Message`."""

    queue_id: int
    tags: str | None
    keys: str | Iterable[str] | None
    properties: Mapping[str, str] | None
    delay_level: int
    flag: int
    sys_flag: int
    born_timestamp_ms: int
    born_host: str | None
    store_host: str | None
    reconsume_times: int
    prepared_transaction_offset: int


class BatchSettings(TypedDict, total=False):
    """What holds for a whole batch, as in `MessagePuts.put_messages`."""

    topic: str | None
    queue_id: int
    sys_flag: int
    born_timestamp_ms: int
    born_host: str | None
    store_host: str | None
    reconsume_times: int


class MessagePuts(MessagePutter):
    """Puts into a store, each answered with a receipt that names its durability.

    A subclass sets the attributes below, and says in `_check_open` whether it is open.

    Attributes:
        unwaited_end: where the last record ends that was put without waiting for a disk that
            others wait for; reads wait for it before they look, so that they see it.
    """

    path: Path
    config: StoreConfig
    flags: RunningFlags
    _log_writer: CommitLogWriter
    unwaited_end: int
    _flush_policy: FlushPolicy
    _group_commit: GroupCommitService
    _stats: StoreStatsService
    _unwaited: ReentrantLock
    #: who tells how far the slaves are, whether or not puts wait for them by themselves
    _replicas: SlaveWaits | None

    def _check_open(self) -> None:
        raise NotImplementedError

    def _room_again(self) -> bool:
        """Try once more what a full disk has stopped; True when it went on."""
        raise NotImplementedError

    def why_not_writable(self) -> str | None:
        """Why puts are refused at this moment; None when they are not."""
        raise NotImplementedError

    # ---- the general path of one put: checked, appended, waited for

    def _put_generally(
        self, message: Message | MessageExt, durability: Durability | DurabilityName | None
    ) -> PutMessageResult:
        """Put any message: a delayed one, into a full file, with a durability of its own."""
        ready = self._checked(message)
        waits = self._waits_of(durability, wait_store_msg_ok=ready.wait_store_msg_ok)
        receipt = self._append(self._tail.put_message, ready)
        return self._waited_for(receipt, waits) if receipt.ok else receipt

    def put_messages(
        self,
        messages: Iterable[Message] | bytes,
        *,
        topic: str | None = None,
        queue_id: int = 0,
        sys_flag: int = 0,
        born_timestamp_ms: int = 0,
        born_host: str | None = None,
        store_host: str | None = None,
        reconsume_times: int = 0,
        durability: Durability | DurabilityName | None = None,
    ) -> PutMessageResult:
        """Store several messages of one queue back to back, all or none.

        Args:
            messages: `Message` objects of one topic and queue, or an encoded batch body, which
                needs ``topic``.
            topic: of an encoded batch body; `Message` objects name it themselves.
            queue_id: of an encoded batch body, or of `Message` objects that name queue 0.
            sys_flag: of the whole batch, as all that follows; what the single messages say is
                not looked at, as in RocketMQ.
            born_timestamp_ms: Unix time of the producer, 0 for the store time.
            born_host: ``address:port`` of the producer, None for 127.0.0.1:0.
            store_host: ``address:port`` of the broker, None as configured.
            reconsume_times: how often the messages were delivered before.
            durability: wait for "disk", or only for "page_cache"; None as configured.

        Returns:
            one receipt: offsets of the first, ids of all.

        Raises:
            MessageIllegalError: a limit, mixed queues, a transactional or delayed message.

        Source: RocketMQ store/DefaultMessageStore.java, putMessages.
        """
        waits = self._waits_of(durability)
        receipt = self._append_batch(
            messages,
            topic=topic,
            queue_id=queue_id,
            sys_flag=sys_flag,
            born_timestamp_ms=born_timestamp_ms,
            born_host=born_host,
            store_host=store_host,
            reconsume_times=reconsume_times,
        )
        return self._waited_for(receipt, waits) if receipt.ok else receipt

    def _append_batch(
        self,
        messages: Iterable[Message] | bytes,
        *,
        topic: str | None = None,
        queue_id: int = 0,
        sys_flag: int = 0,
        born_timestamp_ms: int = 0,
        born_host: str | None = None,
        store_host: str | None = None,
        reconsume_times: int = 0,
    ) -> PutMessageResult:
        """As `put_messages`, which has the same arguments; nothing is waited for."""
        if isinstance(messages, _BUFFERS):
            body: Any = messages
        else:
            body, topic, queue_id = encoded_batch(listed(messages), topic, queue_id)
        if topic is None:
            raise MessageIllegalError("an encoded batch body needs topic=")
        self._check_open()
        envelope = sys_flag, born_timestamp_ms, born_host, store_host, reconsume_times
        try:
            return self._append(self._tail.put_encoded, topic, body, queue_id, *envelope)
        except MessageIllegalError:
            alone = _alone_for_light_queues(bytes(body), topic)
            if alone is None:
                raise
        for name, value in zip(_ENVELOPE, (queue_id, *envelope), strict=True):
            setattr(alone, name, value)
        return self._append(self._tail.put_message, alone)

    def _checked(self, message: Message | MessageExt) -> Message:
        """What is stored for a message: itself, or what waits for its delivery.

        Raises:
            MessageIllegalError: this store would never deliver it.
        """
        self._check_open()
        if isinstance(message, MessageExt):
            message = as_message(message)
        elif not isinstance(message, Message):
            raise ArgumentError("message", message, "a Message, or a MessageExt to be copied")
        level = requested_delay_level(message)
        if level > 0:
            if not self.config.deliver_delayed:
                raise MessageIllegalError(
                    f"delay level {level}: this store was opened without deliver_delayed=True, so "
                    "the message would never be delivered"
                )
            return park(message, level, self.config.delay_levels_ms)
        return message

    def _append(self, put: Callable[..., Any], *what: object) -> PutMessageResult:
        """Append, rolling to the next file when the current one is full."""
        while True:
            full_at = self._log_writer.attached_offset
            answer = put(*what)
            if isinstance(answer, PutMessageResult):
                return answer
            if answer != END_OF_FILE:
                self._check_open()
                if self._room_again():
                    continue
                reason = self.why_not_writable() or "the store is being opened or closed"
                self._stats.put_failed()
                return PutMessageResult(PutMessageStatus.SERVICE_NOT_AVAILABLE, reason=reason)
            try:
                self._log_writer.roll(full_at)
            except DiskFullError as error:
                self._stats.put_failed()
                return PutMessageResult(
                    PutMessageStatus.CREATE_MAPPED_FILE_FAILED, reason=str(error)
                )
            except StoreNotWritableError as error:
                return PutMessageResult(PutMessageStatus.SERVICE_NOT_AVAILABLE, reason=error.reason)

    def _not_waited_for(self, receipt: PutMessageResult) -> PutMessageResult:
        """The receipt of a put that does not wait for the disk."""
        if self._flush_policy.waits_for_disk:
            with self._unwaited.within():
                end = receipt.phy_offset + receipt.store_size
                self.unwaited_end = max(self.unwaited_end, end)
            self._group_commit.flush_soon()
        return receipt

    # ---- what a put waits for

    def wait_for_slaves(self, slaves: SlaveWaits | None) -> None:
        """Let puts wait for slaves from now on, when their durability is "replicated".

        That is what a put into a SYNC_MASTER asks for that says nothing else.

        Args:
            slaves: who tells how far the slaves are; None: puts wait for none any more.
        """
        self._replicas = slaves
        self._slaves = slaves if self.config.broker_role is BrokerRole.SYNC_MASTER else None
        self._waits = self._flush_policy.waits_for_disk or self._slaves is not None

    def warn_without_slaves(self) -> None:
        """Let the first put into a SYNC_MASTER warn, as long as nobody tells how far slaves are."""
        if self.config.broker_role is BrokerRole.SYNC_MASTER and self._replicas is None:
            self._slaves = NoSlaves(partial(self.wait_for_slaves, None))
            self._waits = True

    def _waits_of(
        self, durability: Durability | DurabilityName | None, *, wait_store_msg_ok: bool = True
    ) -> Waits:
        """What a put waits for.

        Raises:
            ConfigError: it cannot be had here.
        """
        if durability is not None and durability == Durability.REPLICATED:
            if self._replicas is None:
                raise ConfigError(
                    "durability", durability, "not without slaves: no HAService runs on this store"
                )
            return (self._flush_policy.waits_for_disk, self._replicas)
        disk = self._flush_policy.put_waits(durability, wait_store_msg_ok)
        return (disk, self._slaves if durability is None and wait_store_msg_ok else None)

    def _waited_for(self, receipt: PutMessageResult, waits: Waits) -> PutMessageResult:
        """The receipt of what was appended, when it is where it is waited for."""
        disk, slaves = waits
        begun = None
        if slaves is not None:
            begun = slaves.begin(receipt.phy_offset + receipt.store_size)
        receipt = self._on_disk(receipt) if disk else self._not_waited_for(receipt)
        return receipt if begun is None else self._after_slaves(receipt, begun.status())

    async def _waited_for_async(self, receipt: PutMessageResult, waits: Waits) -> PutMessageResult:
        """As `_waited_for`, without blocking the event loop."""
        disk, slaves = waits
        begun = None
        if slaves is not None:
            begun = slaves.begin_async(receipt.phy_offset + receipt.store_size)
        if not disk:
            receipt = self._not_waited_for(receipt)
        else:
            end, failure = receipt.phy_offset + receipt.store_size, ""
            began = time.monotonic()
            try:
                done = await self._group_commit.wait_async(end, self._flush_policy.timeout_ms)
            except OSError as error:
                done, failure = False, str(error)
            if done:
                self._stats.put_took(1000 * (time.monotonic() - began))
                receipt = receipt.with_flush(receipt.status, Durability.DISK)
            else:
                receipt = self._not_on_disk(receipt, failure)
        return receipt if begun is None else self._after_slaves(receipt, await begun)

    def _settled(self, receipt: PutMessageResult) -> PutMessageResult:
        """As `_waited_for`, for what the settings ask for."""
        return self._waited_for(receipt, (self._flush_policy.waits_for_disk, self._slaves))

    @staticmethod
    def _after_slaves(receipt: PutMessageResult, status: PutMessageStatus) -> PutMessageResult:
        """The receipt when slaves were waited for; what they say counts more than the disk."""
        if status is not PutMessageStatus.PUT_OK:
            return receipt.with_flush(status, receipt.durability, _SLAVES_SAY[status])
        if not receipt.ok:
            return receipt
        return receipt.with_flush(status, Durability.REPLICATED)

    def _not_on_disk(self, receipt: PutMessageResult, failure: str) -> PutMessageResult:
        """The receipt after the disk has refused; with ``failure`` "" it did not answer in time."""
        reason = failure or f"the disk did not confirm within {self._flush_policy.timeout_ms} ms"
        status = PutMessageStatus.UNKNOWN_ERROR if failure else PutMessageStatus.FLUSH_DISK_TIMEOUT
        return receipt.with_flush(status, receipt.durability, reason)

    def _raised(self, receipt: PutMessageResult) -> PutMessageResult:
        """The receipt of a good put; any other becomes the exception that says what happened."""
        if receipt.ok:
            return receipt
        if receipt.status is PutMessageStatus.FLUSH_DISK_TIMEOUT:
            raise FlushTimeoutError(receipt.phy_offset, receipt.reason)
        if receipt.status is PutMessageStatus.SERVICE_NOT_AVAILABLE:
            if self.flags.disk_full:
                raise DiskFullError(self.path, receipt.reason)
            raise StoreNotWritableError(receipt.reason)
        if receipt.status is PutMessageStatus.CREATE_MAPPED_FILE_FAILED:
            raise DiskFullError("commit log", receipt.reason)
        raise PutMessageError(receipt.status, receipt.reason)

    # ---- putting without blocking the event loop

    async def put_async(
        self,
        topic: str,
        body: bytes | bytearray | memoryview,
        *,
        durability: Durability | DurabilityName | None = None,
        **settings: Unpack[PutSettings],
    ) -> PutMessageResult:
        """As `put`, with the same arguments, without blocking the event loop.

        One that is cancelled while it waits for the disk, or for the next log file, is stored all
        the same.
        """
        _check_names(settings, PutSettings)
        message = Message(topic, body, **settings)
        return self._raised(await self.put_message_async(message, durability=durability))

    async def put_message_async(
        self,
        message: Message | MessageExt,
        *,
        durability: Durability | DurabilityName | None = None,
    ) -> PutMessageResult:
        """As `put_message`, without blocking the event loop; of cancelling see `put_async`."""
        ready = self._checked(message)
        waits = self._waits_of(durability, wait_store_msg_ok=ready.wait_store_msg_ok)
        receipt = self._tail.put_message(ready)
        if not isinstance(receipt, PutMessageResult):
            call = partial(self._append, self._tail.put_message, ready)
            receipt = await running_loop().run_in_executor(None, call)
        return await self._waited_for_async(receipt, waits) if receipt.ok else receipt

    async def put_messages_async(
        self,
        messages: Iterable[Message] | bytes,
        *,
        durability: Durability | DurabilityName | None = None,
        **settings: Unpack[BatchSettings],
    ) -> PutMessageResult:
        """As `put_messages`, with the same arguments, without blocking the event loop.

        Of cancelling see `put_async`.
        """
        _check_names(settings, BatchSettings)
        waits = self._waits_of(durability)
        call = partial(self._append_batch, messages, **settings)
        receipt = await running_loop().run_in_executor(None, call)
        return await self._waited_for_async(receipt, waits) if receipt.ok else receipt


def _check_names(settings: Mapping[str, object], known: type) -> None:
    """Refuse names that a call does not have, with the nearest right one."""
    if unknown := settings.keys() - known.__annotations__.keys():
        refuse_unknown(unknown, known.__annotations__)


def as_message(stored: MessageExt) -> Message:
    """What would have to be put to store a copy of a stored message."""
    return copy_to(
        stored.topic,
        stored.queue_id,
        stored,
        stored.properties,
        prepared_transaction_offset=stored.prepared_transaction_offset,
    )


def _alone_for_light_queues(body: bytes, topic: str) -> Message | None:
    """The only message of a batch, when it names light queues: by itself it gets numbers there."""
    if b"INNER_MULTI_DISPATCH" not in body:
        return None
    messages = decode_batch(body, topic=topic)
    return messages[0] if len(messages) == 1 else None


def listed(messages: object) -> list[Message]:
    """The messages of a batch; refuses what is none."""
    rule = "several Message objects, or an encoded batch body"
    if not isinstance(messages, Iterable) or isinstance(messages, str | Message):
        raise ArgumentError("messages", messages, rule)
    listed = list(messages)
    for number, message in enumerate(listed):
        if not isinstance(message, Message):
            raise ArgumentError(f"messages[{number}]", message, "a Message")
    return listed


def encoded_batch(
    messages: list[Message], topic: str | None, queue_id: int
) -> tuple[bytes, str | None, int]:
    """A list of messages as a batch body, with the queue that they share."""
    if not messages:
        raise MessageIllegalError("a batch has one message or more")
    if not shares_queue(messages):
        _check_batch(messages)
    first = messages[0]
    if topic not in (None, first.topic):
        raise MessageIllegalError(f"topic={topic!r}, but the messages go to {first.topic!r}")
    return encode_batch(messages), first.topic, queue_id or first.queue_id


def _check_batch(messages: list[Message]) -> None:
    """Refuse what cannot be put as one batch, naming the message."""
    first = messages[0]
    for number, message in enumerate(messages):
        if (message.topic, message.queue_id) != (first.topic, first.queue_id):
            raise MessageIllegalError(
                f"message {number} of the batch goes to {message.topic}/{message.queue_id}, the "
                f"first to {first.topic}/{first.queue_id}; a batch has one queue"
            )
        if requested_delay_level(message) > 0 or message.sys_flag & SysFlag.TRANSACTION_MASK:
            raise MessageIllegalError(
                f"message {number} of the batch is delayed or transactional; put it by itself"
            )
