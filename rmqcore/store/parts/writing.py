"""`Writing`: the part that puts; the general path of a put, batches, coroutines, clients' messages.

The fast path of a single put is native (`native/log/_putter.pyx`) and comes here when it is not
enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Unpack

from rmqcore.arguments import refuse_unknown
from rmqcore.errors import (
    ArgumentError,
    DiskFullError,
    FlushTimeoutError,
    MessageIllegalError,
    PutMessageError,
    StoreNotFoundError,
    StoreNotWritableError,
    is_refusal,
)
from rmqcore.message import BatchSettings, Message, MessageExt, PutMessageResult, PutSettings
from rmqcore.native.log._putter import MessagePutter
from rmqcore.native.log._tail import END_OF_FILE
from rmqcore.services.delay_schedule import as_put
from rmqcore.services.event_loop import in_thread
from rmqcore.status import Durability, DurabilityName, PutMessageStatus
from rmqcore.store.parts.batches import alone_for_light_queues, as_message, encoded_batch, listed

if TYPE_CHECKING:
    from rmqcore.files.commit_log_writer import CommitLogWriter
    from rmqcore.native.format._wire_message import WireMessage
    from rmqcore.store.parts.confirmation import Confirmation, PutWait
    from rmqcore.store.parts.handle import Handle
    from rmqcore.store.parts.health import Health
    from rmqcore.store.parts.level import Level
    from rmqcore.store.parts.settings import Settings

_BUFFERS = (bytes, bytearray, memoryview)


class Writing:
    """Puts into a store, each answered with a receipt that names its durability.

    Args:
        handle: says whether the store is open.
        settings: of the store.
        writer: of the log, which is appended to.
        confirmation: what receipts wait for.
        health: says why puts are refused.
        level: finds room again for what was put.
        failed: called for each put that stored nothing.
    """

    def __init__(
        self,
        handle: Handle,
        settings: Settings,
        writer: CommitLogWriter,
        confirmation: Confirmation,
        health: Health,
        level: Level,
        failed: Callable[[], object],
    ) -> None:
        self._handle = handle
        self._settings = settings
        self._writer = writer
        self._tail = writer.tail
        self._confirmation = confirmation
        self._health = health
        self._level = level
        self._failed = failed
        self._putter = MessagePutter(writer.tail, confirmation, self)

    def put_message(
        self,
        message: Message | MessageExt,
        *,
        durability: Durability | DurabilityName | None = None,
    ) -> PutMessageResult:
        """As `MessageStore.put_message`, for other parts."""
        return self._putter.put_message(message, durability=durability)

    # ---- the general path of one put: checked, appended, waited for

    def put_generally(
        self, message: Message | MessageExt, durability: Durability | DurabilityName | None
    ) -> PutMessageResult:
        """Put any message: a delayed one, into a full file, with a durability of its own.

        Args:
            message: as it is; nothing of it is changed.
            durability: what the receipt waits for; None leaves it to the settings and the message.

        Raises:
            MessageIllegalError: it is no message that can be stored.
            ConfigError: that durability cannot be had here.
            StoreClosedError: the store is closed.
        """
        ready = self._checked(message)
        put_wait = self._confirmation.put_wait(
            durability, wait_store_msg_ok=ready.wait_store_msg_ok
        )
        return self._confirmed(put_wait, self.append, self._tail.put_message, ready)

    def _confirmed(
        self, put_wait: PutWait, append: Callable[..., PutMessageResult], *what: object
    ) -> PutMessageResult:
        """Append, and wait; what an interrupt in between leaves in the log is seen by reads."""
        try:
            receipt = append(*what)
            return self._confirmation.confirmed(receipt, put_wait) if receipt.ok else receipt
        except BaseException:
            self._confirmation.left_unwaited(self._tail.max_offset)
            raise

    def put_messages(
        self,
        messages: Iterable[Message] | bytes,
        *,
        durability: Durability | DurabilityName | None = None,
        **settings: Unpack[BatchSettings],
    ) -> PutMessageResult:
        """Store several messages of one queue back to back, all or none.

        Args:
            messages: `Message` objects of one topic and queue, or an encoded batch body, which
                needs ``topic``.
            durability: wait for "disk", or only for "page_cache"; None as configured.
            settings: those below.
            topic: of an encoded batch body; `Message` objects name it themselves.
            queue_id: of an encoded batch body, or of `Message` objects that name queue 0.
            sys_flag: of the whole batch, as all that follows; what the single messages say is
                not looked at, as in RocketMQ.
            born_timestamp_ms: Unix time of the producer, 0 for the store time.
            born_host: ``address:port`` of the producer, None for 127.0.0.1:0.
            store_host: ``address:port`` of the broker, None as configured.
            reconsume_times: how often the messages were delivered before.

        Returns:
            one receipt: offsets of the first, ids of all.

        Raises:
            MessageIllegalError: a limit, mixed queues, a transactional or delayed message.

        Source: RocketMQ store/DefaultMessageStore.java, putMessages.
        """
        put_wait = self._confirmation.put_wait(durability)
        return self._confirmed(put_wait, self._append_batch, messages, settings)

    def _append_batch(
        self, messages: Iterable[Message] | bytes, settings: BatchSettings
    ) -> PutMessageResult:
        """As `put_messages`; nothing is waited for."""
        _check_names(settings, BatchSettings)
        shared: dict[str, Any] = {**settings}
        topic, queue_id = shared.pop("topic", None), shared.pop("queue_id", 0)
        if isinstance(messages, _BUFFERS):
            body: Any = messages
        else:
            body, topic, queue_id = encoded_batch(listed(messages), topic, queue_id)
        if topic is None:
            raise MessageIllegalError("an encoded batch body needs topic=")
        self._handle.check_open()
        batch = Message(topic, body, queue_id=queue_id, **shared)
        try:
            return self.append(self._tail.put_encoded, batch)
        except MessageIllegalError:
            alone = alone_for_light_queues(batch)
            if alone is None:
                raise
        return self.append(self._tail.put_message, alone)

    def _checked(self, message: Message | MessageExt) -> Message:
        """What is stored for a message: itself, or what waits for its delivery.

        Raises:
            MessageIllegalError: this store would never deliver it.
        """
        self._handle.check_open()
        if isinstance(message, MessageExt):
            message = as_message(message)
        elif not isinstance(message, Message):
            raise ArgumentError("message", message, "a Message, or a MessageExt to be copied")
        return as_put(message, self._settings.config)

    def append(self, put: Callable[..., Any], *what: object) -> PutMessageResult:
        """Append, rolling to the next file when the current one is full.

        Args:
            put: a method of the log's tail; answers with a receipt, or that the file is full.
            what: its arguments.

        Returns:
            the receipt; its status says when nothing was appended, and why.

        Raises:
            StoreClosedError: the store is closed.
        """
        while True:
            full_at = self._writer.attached_offset
            answer = put(*what)
            if isinstance(answer, PutMessageResult):
                return answer
            if answer != END_OF_FILE:
                self._handle.check_open()
                if self._room_again():
                    continue
                reason = self._health.why_not_writable() or "the store is being opened or closed"
                self._failed()
                return PutMessageResult(PutMessageStatus.SERVICE_NOT_AVAILABLE, reason=reason)
            try:
                self._writer.roll(full_at)
            except DiskFullError as error:
                self._failed()
                reason = f"{error.path}: {error.reason}"
                return PutMessageResult(PutMessageStatus.CREATE_MAPPED_FILE_FAILED, reason=reason)
            except (StoreNotWritableError, StoreNotFoundError) as error:
                return PutMessageResult(PutMessageStatus.SERVICE_NOT_AVAILABLE, reason=str(error))
            except OSError as error:
                if not is_refusal(error):
                    raise
                self._failed()
                reason = f"the next log file cannot be made: {error}"
                return PutMessageResult(PutMessageStatus.SERVICE_NOT_AVAILABLE, reason=reason)

    def _room_again(self) -> bool:
        """Try once more what a full disk has stopped; True when it went on."""
        if not self._health.no_room_to_dispatch:
            return False
        self._level.catch_up_all()
        return not self._health.no_room_to_dispatch

    # ---- receipts

    @property
    def waits(self) -> bool:
        """Tell whether a put is acknowledged when disk or slaves have it, and not before."""
        return self._confirmation.waits

    def confirmed_now(self, receipt: PutMessageResult) -> PutMessageResult:
        """Wait for all that the settings ask for; the receipt says how that ended."""
        return self._confirmation.confirmed(receipt, self._confirmation.usual)

    def not_waited_for(self, receipt: PutMessageResult) -> PutMessageResult:
        """The receipt of an append that waits for nothing; it is flushed soon."""
        return self._confirmation.not_waited_for(receipt)

    async def confirmed(self, receipt: PutMessageResult) -> PutMessageResult:
        """Wait for disk and slaves, as the settings ask; the receipt says how that ended."""
        return await self._confirmation.confirmed_async(receipt, self._confirmation.put_wait(None))

    def raised(self, receipt: PutMessageResult) -> PutMessageResult:
        """The receipt of a good put; any other becomes the exception that says what happened.

        Raises:
            FlushTimeoutError: it is in the log, and the disk did not confirm it in time.
            DiskFullError: there is no room.
            StoreNotWritableError: the store takes no puts now; the text says why.
            PutMessageError: anything else; has the status.
        """
        if receipt.ok:
            return receipt
        if receipt.status is PutMessageStatus.FLUSH_DISK_TIMEOUT:
            raise FlushTimeoutError(receipt.phy_offset, receipt.reason)
        if receipt.status is PutMessageStatus.SERVICE_NOT_AVAILABLE:
            if self._health.flags.disk_full:
                raise DiskFullError(self._handle.path, receipt.reason)
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
        """As `MessagePutter.put`, without blocking the event loop.

        One that is cancelled while it waits for the disk, or for the next log file, is stored all
        the same.

        Args:
            topic: see `MessagePutter.put`.
            body: see `MessagePutter.put`.
            durability: see `MessagePutter.put`.
            settings: the other arguments of `put`, by name.
        """
        _check_names(settings, PutSettings)
        message = Message(topic, body, **settings)
        return self.raised(await self.put_message_async(message, durability=durability))

    async def put_message_async(
        self,
        message: Message | MessageExt,
        *,
        durability: Durability | DurabilityName | None = None,
    ) -> PutMessageResult:
        """As `MessagePutter.put_message`, without blocking the event loop.

        One that is cancelled is stored all the same, as with `put_async`.
        """
        ready = self._checked(message)
        put_wait = self._confirmation.put_wait(
            durability, wait_store_msg_ok=ready.wait_store_msg_ok
        )
        receipt = self._tail.put_message(ready)
        if not isinstance(receipt, PutMessageResult):
            receipt = await self._append_aside(self.append, self._tail.put_message, ready)
        return (
            await self._confirmation.confirmed_async(receipt, put_wait) if receipt.ok else receipt
        )

    async def put_messages_async(
        self,
        messages: Iterable[Message] | bytes,
        *,
        durability: Durability | DurabilityName | None = None,
        **settings: Unpack[BatchSettings],
    ) -> PutMessageResult:
        """As `put_messages`, without blocking the event loop.

        Of cancelling see `put_async`.

        Args:
            messages: see `put_messages`.
            durability: see `put_messages`.
            settings: the other arguments of `put_messages`, by name.
        """
        put_wait = self._confirmation.put_wait(durability)
        receipt = await self._append_aside(self._append_batch, messages, settings)
        return (
            await self._confirmation.confirmed_async(receipt, put_wait) if receipt.ok else receipt
        )

    async def _append_aside(
        self, append: Callable[..., PutMessageResult], *what: object
    ) -> PutMessageResult:
        """Append in a thread; a coroutine that is cancelled, at any moment, waits for no flush."""

        def append_and_flush_soon() -> PutMessageResult:
            receipt = append(*what)
            self._confirmation.flush_soon()
            return receipt

        return await in_thread(append_and_flush_soon)

    # ---- messages as clients sent them: stored as they are, nothing is delayed

    async def append_later(self, message: WireMessage) -> PutMessageResult:
        """As `append_now`, with whatever it takes off the event loop; always answers."""
        self._handle.check_open()
        return await self._append_aside(self.append, self._putter.append_wire, message)


def _check_names(settings: Mapping[str, object], known: type) -> None:
    """Refuse names that a call does not have, with the nearest right one."""
    if unknown := settings.keys() - known.__annotations__.keys():
        refuse_unknown(unknown, known.__annotations__)
