"""`Producer`: sends messages."""

from __future__ import annotations

import inspect
import itertools
import logging
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Self, TypeAlias

from rmqcore._codec import decode_message_id
from rmqcore.arguments import whole_number
from rmqcore.client.errors import BadAnswerError, NoRouteError
from rmqcore.client.instance import DEFAULT_TIMEOUT_MS, ClientInstance, RequestDeadline, refusal
from rmqcore.client.names import PRODUCERS_MAX, check_name, check_time
from rmqcore.client.outgoing import Outgoing, batch_of, outgoing, reply_to
from rmqcore.client.received import decode_messages
from rmqcore.client.replies import Replies
from rmqcore.client.results import MessageQueue, SendResult, SendStatus, TransactionState
from rmqcore.client.route import TopicRoute
from rmqcore.client.tracing import send_spans
from rmqcore.errors import ArgumentError, CorruptRecordError, MessageIllegalError, RmqCoreError
from rmqcore.message import Message, ReceivedMessage
from rmqcore.remoting import (
    AclSigner,
    Connection,
    Processor,
    RemotingCommand,
    RemotingConnectError,
    RemotingError,
    RequestCode,
    RequestRefusedError,
    ResponseCode,
)
from rmqcore.world import REAL, World

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

logger = logging.getLogger(__name__)

_STORED = frozenset(int(status) for status in SendStatus)
#: After these answers another broker is tried. Source: DefaultMQProducer, retryResponseCodes.
_TRY_ELSEWHERE = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.NO_PERMISSION,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.GO_AWAY,
    }
)
#: a mapping, or pairs, of names and values
Properties: TypeAlias = Mapping[str, str] | Iterable[tuple[str, str]]
State: TypeAlias = TransactionState | None
#: Says what became of a transaction; a plain function or a coroutine function. None: unknown.
TransactionCheck: TypeAlias = Callable[[ReceivedMessage], State | Awaitable[State]]
#: Does the work of a transaction once its message is stored, and says what became of it.
Transaction: TypeAlias = Callable[[SendResult], State | Awaitable[State]]


class Producer:
    """Sends messages to the brokers of a topic, in turns.

    Used from one event loop, by any number of tasks.

    Source: DefaultMQProducer, TransactionMQProducer.

    Attributes:
        group: the producers that can finish each other's transactions.
    """

    def __init__(
        self,
        namesrv_addr: str | Sequence[str],
        *,
        group: str = "rmqcore-producer",
        retries: int = 2,
        timeout_ms: float = DEFAULT_TIMEOUT_MS,
        compress_above: int | None = 4096,
        check_transaction: TransactionCheck | None = None,
        acl: AclSigner | None = None,
        tls: ssl.SSLContext | None = None,
        tracer_provider: TracerProvider | None = None,
        world: World = REAL,
    ) -> None:
        """Prepare a producer; ``async with`` opens it.

        Args:
            namesrv_addr: name servers: `host:port`, with ``;`` between several.
            group: name of the group.
            retries: how often a send that failed is tried on another queue.
            timeout_ms: for one send with all its tries.
            compress_above: bodies of so many bytes and more are compressed (zlib); None: none.
            check_transaction: says, when a broker asks, what became of a transaction.
            acl: signs the requests.
            tls: trust for TLS; None connects without.
            tracer_provider: OpenTelemetry's, for a span a send; None for what
                `tracing.instrument` says, without which there are none.
            world: the clock by which messages are born; time-outs are the event loop's.

        Raises:
            ArgumentError: an address is not host:port, the group no name that brokers accept, or
                another argument not what it should be.
        """
        check_name("group", group, PRODUCERS_MAX)
        if check_transaction is not None and not callable(check_transaction):
            raise ArgumentError("check_transaction", check_transaction, "a function of a message")
        if compress_above is not None:
            compress_above = whole_number("compress_above", compress_above, 0)
        self.group = group
        self._retries = whole_number("retries", retries, 0)
        self._compress_above = compress_above
        self._check_transaction = check_transaction
        self._spans = send_spans(tracer_provider)
        self._instance = ClientInstance(
            "producer",
            namesrv_addr,
            acl=acl,
            tls=tls,
            timeout_ms=timeout_ms,
            beat=self._beat,
            world=world,
        )
        self._replies = Replies()
        self._turn = itertools.count()
        #: by topic: a route, and the queues that it gave
        self._to_write: dict[str, tuple[TopicRoute, list[MessageQueue]]] = {}

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Open the producer; ``async with`` does it."""
        processors: dict[int, Processor] = {
            RequestCode.CHECK_TRANSACTION_STATE: self._check,
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: self._replies.deliver,
        }
        await self._instance.start(processors)

    async def close(self) -> None:
        """Tell the brokers good-bye and close the connections."""
        await self._instance.close({"producerGroup": self.group})

    @property
    def client_id(self) -> str:
        """The name under which brokers know this producer."""
        return self._instance.client_id

    # ---- sending ----------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        body: bytes,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] | None = (),
        properties: Properties | None = None,
        queue_id: int | None = None,
        delay_level: int = 0,
        deliver_at_ms: int | None = None,
    ) -> SendResult:
        """Send one message and wait until a broker has it.

        Args:
            topic: where to; a new one is created if the brokers allow it.
            body: 1 byte to 4 MiB.
            tags: the filter tag.
            keys: look-up keys; one str is one key.
            properties: further names and values, a mapping or pairs.
            queue_id: the queue, of the first broker that has it; None: the queues take turns.
            delay_level: 0, or the number of a level of ``messageDelayLevel``.
            deliver_at_ms: Unix time to deliver it at, for brokers with a timer wheel.

        Raises:
            MessageIllegalError: the message breaks a limit, or, as an ArgumentError, an argument is
                of another type; nothing was sent.
            NoRouteError: no broker has the topic.
            RequestRefusedError: the broker refuses it.
            RemotingError: no answer; the message may be stored or not.
        """
        message = self._outgoing(topic, body, tags, keys, properties, delay_level, deliver_at_ms)
        return await self._send(message, queue_id)

    async def send_oneway(
        self,
        topic: str,
        body: bytes,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] | None = (),
        properties: Properties | None = None,
        queue_id: int | None = None,
        delay_level: int = 0,
        deliver_at_ms: int | None = None,
    ) -> None:
        """Send one message without waiting for an answer; it may be lost.

        Args:
            topic: where to.
            body: 1 byte to 4 MiB.
            tags: the filter tag.
            keys: look-up keys.
            properties: further names and values.
            queue_id: see `send`.
            delay_level: see `send`.
            deliver_at_ms: see `send`.

        Raises:
            MessageIllegalError, NoRouteError, RemotingError: nothing was sent.
        """
        message = self._outgoing(topic, body, tags, keys, properties, delay_level, deliver_at_ms)
        if self._spans is None:
            await self._send_oneway(message, queue_id)
            return
        with self._spans.sending(message, self.client_id):
            await self._send_oneway(message, queue_id)

    async def _send_oneway(self, message: Outgoing, queue_id: int | None) -> None:
        topic = message.topic
        queue = self._choose(topic, await self._queues(topic), queue_id, frozenset())
        fields = message.fields(self.group, queue.queue_id, self._instance.world.clock_ms())
        address = self._instance.address_of(queue.broker_name)
        await self._instance.invoke_oneway(address, message.code, fields, message.body)
        self._instance.meet(address)

    async def send_batch(
        self, topic: str, messages: Iterable[bytes | Message], *, queue_id: int | None = None
    ) -> SendResult:
        """Send several messages to one queue, as one request; all are stored, or none.

        Args:
            topic: of all of them.
            messages: bodies, or messages with tags, keys and properties; 4 MiB together.
            queue_id: see `send`.

        Returns:
            SendResult: ``message_id`` and ``offset_message_id`` name all, ``queue_offset`` is the
            first one's.

        Raises:
            MessageIllegalError: there are none, one breaks a limit, is delayed, or is of another
                topic; nothing was sent.
            NoRouteError, RequestRefusedError, RemotingError: see `send`.
        """
        return await self._send(batch_of(topic, messages, self._instance.ids), queue_id)

    async def send_columns(
        self,
        table: object,
        *,
        topic: str | None = None,
        unique_prefix: str | None = None,
        on_batch: Callable[[SendResult, int], None] | None = None,
    ) -> list[SendResult]:
        """Send every row of a table as a message, in batches, one after the other.

        Args:
            table: a table, a batch or a stream of pyarrow, pandas, Polars or DuckDB; docs/arrow.md
                lists the columns. What the producer says by itself (``sys_flag``,
                ``born_timestamp``, ``born_host``, ``reconsume_times``) cannot be in it.
            topic: of rows without one.
            unique_prefix: 16 upper-case hexadecimal digits, with which the unique key of a row
                without one begins; the number of the row follows. A table that is sent again with
                the same prefix has the same keys. None: a new one.
            on_batch: called with the result of each batch and its number of rows, which are not
                kept then.

        Returns:
            the result of each batch, as of `send_batch`; none with ``on_batch``. Rows with a
            ``queue_id`` go to that queue, others to any.

        Raises:
            RowIllegalError: a row is no message; nothing of its batch of the table was sent.
            ArgumentError: the table, or a column of it, is none that can be sent.
            NoRouteError, RequestRefusedError, RemotingError: see `send`; a note says how many rows
                had been sent.
        """
        from rmqcore.client.table_batches import TableBatches  # noqa: PLC0415 - for tables only

        results: list[SendResult] = []
        sent_count = 0
        try:
            for batch, queue_id, row_count in TableBatches(table, topic, unique_prefix):
                result = await self._send(batch, queue_id)
                sent_count += row_count
                if on_batch is None:
                    results.append(result)
                else:
                    on_batch(result, row_count)
        except RmqCoreError as error:
            error.add_note(f"{sent_count} rows of the table had been sent")
            raise
        return results

    async def send_in_transaction(
        self,
        topic: str,
        body: bytes,
        transaction: Transaction,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] | None = (),
        properties: Properties | None = None,
    ) -> SendResult:
        """Send a message that consumers get when a transaction commits.

        Args:
            topic: where to.
            body: 1 byte to 4 MiB.
            transaction: called once the broker has the message: does the work and says what became
                of it. What it raises goes to the caller, and the broker asks
                ``check_transaction`` later.
            tags: the filter tag.
            keys: look-up keys.
            properties: further names and values.

        Raises:
            MessageIllegalError, NoRouteError, RequestRefusedError, RemotingError: see `send`; the
                transaction has not begun.
        """
        message = self._outgoing(topic, body, tags, keys, properties, 0, None)
        if not callable(transaction):
            raise ArgumentError("transaction", transaction, "a function of the result of the send")
        message.prepare_transaction(self.group)
        await self._queues(topic)
        await self._instance.meet_new_brokers()
        result = await self._send(message, None)
        state = TransactionState.UNKNOWN
        try:
            if result.status is SendStatus.SEND_OK:
                said = transaction(result)
                state = _state(await said if inspect.isawaitable(said) else said)
            else:
                state = TransactionState.ROLLBACK
        finally:
            await self._end_transaction(result, state)
        return message.result_of(result, state)

    async def request(
        self,
        topic: str,
        body: bytes,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] | None = (),
        properties: Properties | None = None,
        timeout_ms: float | None = None,
    ) -> ReceivedMessage:
        """Send a message and wait for a consumer's reply, see `reply`.

        Args:
            topic: where to.
            body: 1 byte to 4 MiB.
            tags: the filter tag.
            keys: look-up keys.
            properties: further names and values.
            timeout_ms: for sending, working and replying; None for the producer's own.

        Raises:
            RemotingTimeoutError: nobody has replied in time.
            MessageIllegalError, NoRouteError, RequestRefusedError, RemotingError: see `send`.
        """
        within_ms = self._instance.timeout_ms if timeout_ms is None else timeout_ms
        deadline = RequestDeadline(check_time("timeout_ms", within_ms))
        message = self._outgoing(topic, body, tags, keys, properties, 0, None)
        with self._replies.expect(message, self.client_id, deadline.timeout_ms) as reply:
            await self._queues(topic)
            await self._instance.meet_new_brokers()
            await self._send(message, None, deadline)
            return await reply.wait(topic, deadline)

    async def reply(self, message: ReceivedMessage, body: bytes) -> SendResult:
        """Answer a message that was sent by `request`.

        Args:
            message: what was asked.
            body: the answer.

        Raises:
            MessageIllegalError: the message asks for no reply, or the body is empty or too large.
            NoRouteError, RequestRefusedError, RemotingError: see `send`; refused when the one who
                asks is gone.
        """
        return await self._send(reply_to(message, body, self._instance.ids), None)

    # ---- how ------------------------------------------------------------------------------

    def _outgoing(
        self,
        topic: str,
        body: bytes,
        tags: str | None,
        keys: str | Iterable[str] | None,
        properties: Properties | None,
        delay_level: int,
        deliver_at_ms: int | None,
    ) -> Outgoing:
        return outgoing(
            topic,
            body,
            tags=tags,
            keys=keys,
            properties=properties,
            delay_level=delay_level,
            deliver_at_ms=deliver_at_ms,
            unique_id=self._instance.ids.make(),
            compress_above=self._compress_above,
        )

    async def _queues(self, topic: str) -> list[MessageQueue]:
        route = self._instance.routes.get(topic)
        kept, queues = self._to_write.get(topic, (None, []))
        if route is not None and route is not kept:
            queues = route.to_write(topic)
        if not queues:
            route = await self._instance.update_route(topic, create=True)
            queues = route.to_write(topic) if route else []
        if route is not None:
            self._to_write[topic] = route, queues
        if not queues:
            raise NoRouteError(
                topic, "no broker has this topic; create it, or let brokers do (TBW102)"
            )
        return queues

    def _choose(
        self,
        topic: str,
        queues: list[MessageQueue],
        queue_id: int | None,
        avoided: frozenset[str] | set[str],
    ) -> MessageQueue:
        if queue_id is not None:
            number = whole_number("queue_id", queue_id)
            for queue in queues:
                if queue.queue_id == number:
                    return queue
            raise MessageIllegalError(f"topic {topic} has no queue {queue_id} to write")
        better = [queue for queue in queues if queue.broker_name not in avoided]
        candidates = better or queues
        return candidates[next(self._turn) % len(candidates)]

    async def _send(
        self, message: Outgoing, queue_id: int | None, deadline: RequestDeadline | None = None
    ) -> SendResult:
        deadline = deadline or RequestDeadline(self._instance.timeout_ms)
        if self._spans is None:
            return await self._try(message, queue_id, deadline)
        with self._spans.sending(message, self.client_id) as span:
            result = await self._try(message, queue_id, deadline)
            self._spans.sent(span, result)
            return result

    async def _try(
        self, message: Outgoing, queue_id: int | None, deadline: RequestDeadline
    ) -> SendResult:
        """Send until a broker has it, or no try is left. Source: sendDefaultImpl."""
        avoided: set[str] = set()
        tries = 1 if queue_id is not None else 1 + self._retries
        while True:
            tries -= 1
            queue = self._choose(
                message.topic, await self._queues(message.topic), queue_id, avoided
            )
            try:
                return await self._send_to(queue, message, deadline)
            except RequestRefusedError as error:
                again = error.code in _TRY_ELSEWHERE
                if not again or tries <= 0:
                    raise
            except RemotingConnectError:
                if tries <= 0:
                    await self._refresh(message.topic)
                    raise
            except RemotingError:
                if tries <= 0 or deadline.rest_ms <= 0:
                    raise
            avoided.add(queue.broker_name)
            await self._refresh(message.topic)
            deadline.check(queue.broker_name, message.code)

    async def _refresh(self, topic: str) -> None:
        try:
            await self._instance.update_route(topic, create=True)
        except RemotingError as error:
            logger.warning("the route of %s: %s", topic, error)

    async def _send_to(
        self, queue: MessageQueue, message: Outgoing, deadline: RequestDeadline
    ) -> SendResult:
        address = self._instance.address_of(queue.broker_name)
        answer = await self._instance.invoke(
            address,
            message.code,
            message.fields(self.group, queue.queue_id, self._instance.world.clock_ms()),
            message.body,
            deadline.rest_ms,
        )
        self._instance.meet(address)
        if answer.code not in _STORED:
            raise refusal(answer, address)
        try:
            return SendResult(
                message.unique_id,
                message.topic,
                queue.broker_name,
                answer.number("queueId"),
                answer.number("queueOffset"),
                answer.text("msgId"),
                SendStatus(answer.code),
            )
        except RequestRefusedError as error:
            raise BadAnswerError(address, error.remark) from error

    # ---- transactions -----------------------------------------------------------------------

    async def _end_transaction(self, result: SendResult, state: TransactionState) -> None:
        address = self._instance.address_of(result.broker_name)
        try:
            _, phy_offset = decode_message_id(result.offset_message_id)
        except ValueError as error:
            raise BadAnswerError(address, f"msgId={result.offset_message_id!r}") from error
        fields = {
            "topic": result.topic,
            "producerGroup": self.group,
            "tranStateTableOffset": str(result.queue_offset),
            "commitLogOffset": str(phy_offset),
            "commitOrRollback": str(int(state)),
            "fromTransactionCheck": "false",
            "msgId": result.message_id,
            "transactionId": result.message_id,
            "bname": result.broker_name,
        }
        await self._instance.invoke_oneway(address, RequestCode.END_TRANSACTION, fields)

    async def _check(self, connection: Connection, request: RemotingCommand) -> None:
        """39: a broker asks what became of a transaction."""
        if self._check_transaction is None:
            logger.warning("%s asks about a transaction; give check_transaction", connection)
            return
        try:
            stored = decode_messages(request.body)
        except CorruptRecordError as error:
            logger.warning("%r: what it asks about is no message: %s", connection, error)
            return
        if not stored:
            return
        message = ReceivedMessage(stored[0], request.text("bname", ""))
        said = self._check_transaction(message)
        state = _state(await said if inspect.isawaitable(said) else said)
        fields = {
            "topic": message.topic,
            "producerGroup": self.group,
            "tranStateTableOffset": str(request.number("tranStateTableOffset")),
            "commitLogOffset": str(request.number("commitLogOffset")),
            "commitOrRollback": str(int(state)),
            "fromTransactionCheck": "true",
            "msgId": message.message_id,
            "transactionId": request.text("transactionId", message.message_id),
        }
        connection.notify(RemotingCommand(RequestCode.END_TRANSACTION, fields))

    def _beat(self) -> Mapping[str, object]:
        return {
            "consumerDataSet": [],
            "heartbeatFingerprint": 0,
            "producerDataSet": [{"groupName": self.group}],
            "withoutSub": False,
        }


def _state(said: object) -> TransactionState:
    """What a transaction has said.

    Raises:
        ArgumentError: nothing that is known; the broker asks again.
    """
    if said is None:
        return TransactionState.UNKNOWN
    if not isinstance(said, TransactionState):
        raise ArgumentError("transaction", said, "a TransactionState, or None")
    return said
