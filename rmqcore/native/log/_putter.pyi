from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from typing_extensions import Buffer, disjoint_base

from rmqcore.native.format._message import Message, MessageExt
from rmqcore.native.format._receipt import PutMessageResult
from rmqcore.native.format._wire_message import WireMessage
from rmqcore.native.log._commit_group import CommitGroup
from rmqcore.native.log._tail import LogTail
from rmqcore.status import Durability, DurabilityName

class _GeneralPath(Protocol):
    """What `MessagePutter` leaves to Python."""

    def put_generally(
        self, message: Message | MessageExt, durability: Durability | DurabilityName | None
    ) -> PutMessageResult: ...
    def confirmed_now(self, receipt: PutMessageResult) -> PutMessageResult: ...
    def not_waited_for(self, receipt: PutMessageResult) -> PutMessageResult: ...
    def raised(self, receipt: PutMessageResult) -> PutMessageResult: ...

@disjoint_base
class DiskWait:
    """What the receipt of a put waits for that asks for nothing itself, and the wait for the disk.

    Args:
        group: where callers wait for a flush.
        took: called with how long each good wait took, milliseconds.
        disk: whether the settings let puts wait for the disk.
        timeout_ms: how long a put waits for the disk.

    Attributes:
        timeout_ms: as given; may be set.
        slaves: who tells how far the slaves are that are waited for; None where none are.
        waits: whether anything is waited for.
    """

    timeout_ms: float
    def __init__(
        self,
        group: CommitGroup,
        took: Callable[[float], object],
        *,
        disk: bool,
        timeout_ms: float,
    ) -> None: ...
    @property
    def disk(self) -> bool: ...
    @property
    def waits(self) -> bool: ...
    @property
    def slaves(self) -> Any: ...
    def wait_for(self, slaves: Any) -> None:
        """Let puts wait for slaves from now on; None for none."""
    def on_disk(self, receipt: PutMessageResult) -> PutMessageResult:
        """Wait for the disk; the receipt, which says how that ended."""
    def not_on_disk(self, receipt: PutMessageResult, failure: str) -> PutMessageResult:
        """The receipt after the disk has refused; with ``failure`` "" it did not answer in time."""

@disjoint_base
class MessagePutter:
    """Puts one message through a log tail.

    Args:
        tail: the end of the log.
        confirmation: what receipts wait for.
        general: the general path. It has ``put_generally``, which takes a message and its
            durability, whatever they are, and gives the receipt; ``confirmed_now``, which waits for
            all that the settings ask for, ``not_waited_for``, for a put that does not wait, and
            ``raised``, which raises what a receipt that is not good says: each takes a receipt and
            gives one.
    """

    def __init__(self, tail: LogTail, confirmation: DiskWait, general: _GeneralPath) -> None: ...
    def put(
        self,
        topic: str,
        body: Buffer,
        *,
        queue_id: int = 0,
        tags: str | None = None,
        keys: str | Iterable[str] | None = (),
        properties: Mapping[str, str] | None = None,
        delay_level: int = 0,
        flag: int = 0,
        sys_flag: int = 0,
        born_timestamp_ms: int = 0,
        born_host: str | None = None,
        store_host: str | None = None,
        reconsume_times: int = 0,
        prepared_transaction_offset: int = 0,
        durability: Durability | DurabilityName | None = None,
    ) -> PutMessageResult:
        """Store one message.

        Args:
            topic: 1 to 255 characters of letters, digits, ``%``, ``|``, ``_`` and ``-``.
            body: bytes, at most ``max_message_size``.
            queue_id: queue of the topic, 0 or more.
            tags: filter tag.
            keys: look-up keys; a str is one key.
            properties: further pairs of str.
            delay_level: deliver later; needs ``deliver_delayed``.
            flag, sys_flag: application flag; RocketMQ's system flags.
            born_timestamp_ms: 0 for the time of the put.
            born_host, store_host: ``address:port``; None for the store's own.
            reconsume_times, prepared_transaction_offset: stored as given.
            durability: wait for "disk", or only for "page_cache"; None as configured.

        Returns:
            the receipt, always with status PUT_OK.

        Raises:
            MessageIllegalError: the message breaks a limit; nothing was stored. ArgumentError, a
                kind of it, names an argument of a wrong type or range.
            StoreNotWritableError: the store takes no puts; the message says why.
            DiskFullError: no room for the next log file.
            FlushTimeoutError: stored, but not confirmed on disk in time.
            StoreClosedError: the store is closed.

        Durability: as the receipt says.
        Source: RocketMQ store/DefaultMessageStore.java, putMessage.
        """
    def put_message(
        self,
        message: Message | MessageExt,
        *,
        durability: Durability | DurabilityName | None = None,
    ) -> PutMessageResult:
        """Store one `Message`, or a copy of a `MessageExt`.

        Args:
            message: what to store; it is left as it is.
            durability: wait for "disk", or only for "page_cache"; None as configured.

        Returns:
            the receipt; its status says what went wrong when it was not the caller's mistake.

        Raises:
            MessageIllegalError: the message breaks a limit; nothing was stored.
            StoreClosedError: the store is closed.

        Durability: as the receipt says.
        Source: RocketMQ store/DefaultMessageStore.java, putMessage.
        """
    def append_wire(self, message: WireMessage) -> PutMessageResult | int:
        """Append a client's message, or a batch, as it is; answers as `put_message` of the tail."""
    def append_now(self, message: WireMessage) -> PutMessageResult | None:
        """Append a client's message, or a batch, if that needs no waiting.

        What is appended is stored as it is: nothing is delayed, and a half message is the caller's
        to make.

        Returns:
            the receipt; None when the next log file has to be waited for, or the store takes no
            puts: `append_later` then.

        Raises:
            MessageIllegalError: it breaks a limit; nothing was stored.
        """
