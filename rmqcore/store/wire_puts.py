"""Puts for a broker: appends messages as clients sent them, and waits for disk and slaves apart."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from rmqcore.errors import StoreNotWritableError
from rmqcore.native.base._lock import locks_held
from rmqcore.native.format._receipt import PutMessageResult
from rmqcore.services.event_loop import running_loop
from rmqcore.store.message_puts import MessagePuts

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from rmqcore.services.flush import LogFlusher


class WireMessage(NamedTuple):
    """A message, or an encoded batch of one queue, as a client sends it.

    Attributes:
        topic, queue_id: where it goes.
        body: as received.
        properties: as received: ``name U+0001 value U+0002``, again and again; malformed pairs are
            dropped. None for a batch, whose messages bring their own.
        flag, sys_flag: application flag; RocketMQ's system flags.
        born_timestamp_ms: Unix time of the producer.
        born_host: ``address:port`` of the producer.
        reconsume_times: how often it was delivered before.
    """

    topic: str
    queue_id: int
    body: Buffer
    properties: bytes | None
    flag: int
    sys_flag: int
    born_timestamp_ms: int
    born_host: str
    reconsume_times: int


class WirePuts(MessagePuts):
    """Appends that wait neither for disk or slaves nor, on the event loop, for the next log file.

    What is appended is stored as it is: nothing is delayed, and a half message is the caller's to
    make.
    """

    _flusher: LogFlusher

    def flush_log(self) -> None:
        """Write the log through to the disk, for a table that must not be written before it.

        `flush` is for callers that hold no lock; this is for one that holds the table's.

        Raises:
            OSError: the disk refused, now or before.
            StoreClosedError: the store is closed.
            StoreNotWritableError: the call comes from inside another call of this thread, and
                cannot wait.
        """
        self._check_open()
        if locks_held() > 1:
            raise StoreNotWritableError("the log cannot be flushed inside another call; later")
        self._flusher.flush()

    @property
    def waits(self) -> bool:
        """Tell whether a put is acknowledged when disk or slaves have it, and not before."""
        return self._waits

    def append_now(self, message: WireMessage) -> PutMessageResult | None:
        """Append a message, or a batch, if that needs no waiting.

        Returns:
            the receipt; None when the next log file has to be waited for, or the store takes no
            puts: `append_later` then.

        Raises:
            MessageIllegalError: it breaks a limit; nothing was stored.
        """
        answer = self._putting(message)()
        return answer if isinstance(answer, PutMessageResult) else None

    async def append_later(self, message: WireMessage) -> PutMessageResult:
        """As `append_now`, with whatever it takes off the event loop; always answers."""
        self._check_open()
        return await running_loop().run_in_executor(None, self._append, self._putting(message))

    async def confirmed(self, receipt: PutMessageResult) -> PutMessageResult:
        """Wait for disk and slaves, as the settings ask; the receipt says how that ended."""
        return await self._waited_for_async(receipt, self._waits_of(None))

    def not_waited_for(self, receipt: PutMessageResult) -> PutMessageResult:
        """The receipt of an append that waits for nothing; it is flushed soon."""
        return self._not_waited_for(receipt)

    def _putting(self, message: WireMessage) -> Callable[[], Any]:
        topic, queue_id, body, properties, flag, sys_flag, born_ms, born_host, times = message
        if properties is None:
            return partial(
                self._tail.put_encoded,
                topic,
                body,
                queue_id,
                sys_flag,
                born_ms,
                born_host,
                None,
                times,
            )
        return partial(
            self._tail.put,
            topic,
            body,
            queue_id,
            None,
            None,
            properties,
            flag,
            sys_flag,
            born_ms,
            born_host,
            None,
            times,
            0,
        )
