"""`Service`: every RPC of `apache.rocketmq.v2.MessagingService`, over a cluster.

Source: RocketMQ proxy/grpc/v2/GrpcMessagingApplication.java.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Final

from google.protobuf.message import DecodeError

from rmqcore.errors import CorruptRecordError
from rmqcore.proxy.callers import Caller, Callers, ClientKey
from rmqcore.proxy.calls import Answer, Call, Method, Methods
from rmqcore.proxy.clients import Clients
from rmqcore.proxy.cluster import Cluster
from rmqcore.proxy.codes import Code, RefusedError, status
from rmqcore.proxy.consuming import ConsumerCalls
from rmqcore.proxy.field_count import has_too_many_fields, shape_of
from rmqcore.proxy.grpc_status import CallFailedError, GrpcStatus
from rmqcore.proxy.http2 import Http2Connection
from rmqcore.proxy.http2_settings import Http2Settings
from rmqcore.proxy.messages import SERVICE, TelemetryCommand, V2Message, v2_class
from rmqcore.proxy.offsets import OffsetCalls
from rmqcore.proxy.outgoing import outgoing
from rmqcore.proxy.popped import messages_of
from rmqcore.proxy.producing import ProducerCalls
from rmqcore.proxy.renewal import Renewals
from rmqcore.proxy.routes import RouteCalls
from rmqcore.proxy.settling import SettlingCalls
from rmqcore.proxy.transaction_id import TransactionId
from rmqcore.remoting import Account, RemotingCommand, RequestRefusedError
from rmqcore.remoting.background import restarted
from rmqcore.remoting.first_bytes import OtherProtocol
from rmqcore.remoting.permissions import may_end_transaction
from rmqcore.remoting.shared_bound import SharedBound, Total
from rmqcore.world import REAL, World

logger = logging.getLogger(__name__)

#: Makes the answer to a request; None where it was sent.
Handler = Callable[[Call, Caller, V2Message], V2Message | Awaitable[V2Message | None] | None]
#: These wait for messages, and keep of their request names and an expression, which are bounded.
_KEEPS_NOTHING: Final = ("ReceiveMessage", "PullMessage")


class Service:
    """The service; used from one event loop.

    Args:
        cluster: the brokers.
        accounts: who is served, by access key; None serves everybody.
        settings: the bounds of its connections.
        world: its clocks.
    """

    def __init__(
        self,
        cluster: Cluster,
        accounts: Mapping[str, Account] | None = None,
        settings: Http2Settings | None = None,
        *,
        world: World = REAL,
    ) -> None:
        clock_ms = world.clock_ms
        self._callers = Callers(accounts, clock_ms)
        self._settings = settings or Http2Settings()
        self._open_calls = SharedBound(self._settings.call_total_max)
        self._unfinished = SharedBound(self._settings.unfinished_total_max)
        self._unread = SharedBound(self._settings.queued_total_max)
        self._worked = Total()
        self.renewals = Renewals(cluster, world)
        self.clients = Clients(cluster, self._client_has_gone, world.monotonic_s)
        settling = SettlingCalls(cluster, self.renewals)
        self._consuming = ConsumerCalls(
            cluster, self.renewals, settling, self.clients.note, clock_ms
        )
        self._tasks: list[asyncio.Task[None]] = []
        self.methods: Methods = self._methods(
            RouteCalls(cluster),
            ProducerCalls(cluster, clock_ms, world.monotonic_s),
            self._consuming,
            settling,
            OffsetCalls(cluster),
        )
        cluster.on_question(self._asked)

    def _methods(
        self,
        routes: RouteCalls,
        producing: ProducerCalls,
        consuming: ConsumerCalls,
        settling: SettlingCalls,
        offsets: OffsetCalls,
    ) -> dict[bytes, Method]:
        """Every RPC by its path."""
        handlers: dict[str, Handler] = {
            "QueryRoute": routes.query,
            "Heartbeat": self.clients.heartbeat,
            "SendMessage": producing.send,
            "QueryAssignment": consuming.assignment,
            "ReceiveMessage": consuming.receive,
            "AckMessage": settling.acknowledge,
            "ForwardMessageToDeadLetterQueue": settling.bury,
            "PullMessage": offsets.pull,
            "UpdateOffset": offsets.update,
            "GetOffset": offsets.get,
            "QueryOffset": offsets.query,
            "EndTransaction": producing.end,
            "NotifyClientTermination": self.clients.terminated,
            "ChangeInvisibleDuration": settling.change,
            "RecallMessage": producing.recall,
            "SyncLiteSubscription": _refuse_lite,
        }
        found = {
            f"/{SERVICE}/{name}".encode(): Method(
                self._method(name, handler), keeps=name not in _KEEPS_NOTHING
            )
            for name, handler in handlers.items()
        }
        send = f"/{SERVICE}/SendMessage".encode()
        found[send] = replace(found[send], size_max=self._settings.message_size_max)
        found[f"/{SERVICE}/Telemetry".encode()] = Method(self._telemetry, streams_in=True)
        return found

    def _method(
        self, name: str, handler: Handler
    ) -> Callable[[Call, bytes], Answer | Awaitable[Answer]]:
        """What a connection calls for an RPC: bytes in, bytes out."""
        request_class, response_class = v2_class(f"{name}Request"), v2_class(f"{name}Response")
        shape = shape_of(request_class.DESCRIPTOR)

        def refused(error: RefusedError) -> bytes:
            said = response_class(status=status(error.code, error.reason))
            return bytes(said.SerializeToString())

        async def finish(answer: Awaitable[V2Message | None]) -> Answer:
            try:
                done = await answer
            except RefusedError as error:
                return refused(error)
            except RequestRefusedError as error:
                return refused(RefusedError(Code.INTERNAL_SERVER_ERROR, error.remark))
            return None if done is None else bytes(done.SerializeToString())

        def handle(call: Call, data: bytes) -> Answer | Awaitable[Answer]:
            try:
                caller = self._callers.of(call)
                if has_too_many_fields(data, shape):
                    reason = f"a {name}Request of too many fields"
                    raise CallFailedError(GrpcStatus.RESOURCE_EXHAUSTED, reason)
                answer = handler(call, caller, request_class.FromString(data))
            except RefusedError as error:
                return refused(error)
            except DecodeError as error:
                reason = f"the message is no {name}Request"
                raise CallFailedError(GrpcStatus.INVALID_ARGUMENT, reason) from error
            except RequestRefusedError as error:
                return refused(RefusedError(Code.INTERNAL_SERVER_ERROR, error.remark))
            if answer is None:
                return None
            if inspect.isawaitable(answer):
                return finish(answer)
            return bytes(answer.SerializeToString())

        return handle

    async def _telemetry(self, call: Call, _: bytes) -> Answer:
        try:
            await self.clients.telemetry(call, self._callers.of(call))
        except RefusedError as error:
            said = TelemetryCommand(status=status(error.code, error.reason))
            return bytes(said.SerializeToString())
        return None

    # ---- what brokers ask

    def _asked(self, broker_name: str, request: RemotingCommand) -> None:
        """Pass on that a broker asks how a transaction has ended (39)."""
        try:
            half = messages_of([request.body])[0]
            where = TransactionId(
                broker_name,
                request.number("commitLogOffset"),
                request.number("tranStateTableOffset"),
            )
        except (CorruptRecordError, RequestRefusedError, IndexError) as error:
            logger.warning("broker %s asks for no transaction: %s", broker_name, error)
            return

        def may(caller: Caller) -> bool:
            return may_end_transaction(caller.account, half.topic, half.topic)

        for call, caller in self.clients.streams_of(half.topic, may):
            prefix = f"{caller.namespace}%" if caller.namespace else ""
            topic = {
                "resource_namespace": caller.namespace,
                "name": half.topic.removeprefix(prefix),
            }
            command = TelemetryCommand(
                recover_orphaned_transaction_command={
                    "message": outgoing(half, topic),
                    "transaction_id": str(where),
                }
            )
            call.send(command.SerializeToString())
            return

    def _client_has_gone(self, client: ClientKey) -> None:
        self.renewals.work_on(self.renewals.give_back(client))

    # ---- as a server

    def new_connection(
        self, on_close: Callable[[OtherProtocol], None] | None = None
    ) -> Http2Connection:
        """The protocol of a connection that begins as HTTP/2 does."""
        return Http2Connection(
            self.methods,
            self._settings,
            self._open_calls,
            self._unfinished,
            self._unread,
            self._worked,
            on_close,
        )

    async def start(self) -> None:
        """Begin what goes on in the background."""
        loop = asyncio.get_running_loop()
        work = (self.clients.run, self.renewals.run)
        self._tasks = [loop.create_task(restarted(each)) for each in work]

    def release(self) -> None:
        """Answer those who wait for messages: the server is about to stop."""
        self._consuming.stop()

    async def stop(self, timeout_s: float = 1.0) -> None:
        """End what goes on in the background.

        Args:
            timeout_s: for what is being given back, seconds.
        """
        self.release()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self.renewals.finish(timeout_s)


async def _refuse_lite(call: Call, caller: Caller, request: V2Message) -> V2Message:
    raise RefusedError(Code.UNSUPPORTED, "lite topics are not served")
