from collections.abc import Iterable, Mapping
from typing import Any

from typing_extensions import Buffer, disjoint_base

from rmqcore.native.format._message import Message, MessageExt
from rmqcore.native.format._receipt import PutMessageResult
from rmqcore.native.log._commit_group import CommitGroup
from rmqcore.native.log._tail import LogTail
from rmqcore.status import Durability, DurabilityName

@disjoint_base
class MessagePutter:
    """Puts one message through a log tail.

    A subclass sets ``_tail``, ``_waits`` (True: receipts wait for the disk, or for slaves),
    ``_commits``, ``_disk_timeout_s``, ``_stats`` (which has ``put_took``, milliseconds) and
    ``_slaves`` (None where none are waited for). It has the methods

    - ``_put_generally``, which takes a message and its durability, whatever they are, and gives the
      receipt;
    - ``_settled``, which waits for all that the settings ask for and gives the receipt;
    - ``_not_waited_for``, which gives back the receipt of a put that does not wait;
    - ``_not_on_disk``, which takes a receipt and the error's text ("": out of time) and gives the
      receipt that says so;
    - ``_raised``, which gives back the receipt of a good put and raises what any other says.
    """

    _tail: LogTail
    _waits: bool
    _commits: CommitGroup
    _disk_timeout_s: float
    _stats: Any
    _slaves: Any
    def _on_disk(self, receipt: PutMessageResult) -> PutMessageResult: ...
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
