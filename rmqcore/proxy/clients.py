"""Telemetry, Heartbeat, NotifyClientTermination: which clients are here, and what they are told.

A client needs no settings here and is never turned away for want of them; its stream ends when it
or the server goes, not for what it says.

Source: RocketMQ proxy/grpc/v2/client/ClientActivity.java; common/GrpcClientSettingsManager.java.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from google.protobuf.message import DecodeError

from rmqcore.proxy.callers import Caller, ClientKey
from rmqcore.proxy.calls import Call
from rmqcore.proxy.cluster import HEART_BEAT_S, Cluster
from rmqcore.proxy.codes import OK, Code, RefusedError, status
from rmqcore.proxy.field_count import has_too_many_fields, shape_of
from rmqcore.proxy.grpc_status import CallFailedError, GrpcStatus
from rmqcore.proxy.incoming import BODY_SIZE_MAX
from rmqcore.proxy.messages import (
    ClientType,
    Settings,
    TelemetryCommand,
    V2Message,
    v2_class,
)
from rmqcore.proxy.names import group_name, topic_name
from rmqcore.proxy.outgoing import duration
from rmqcore.remoting.permissions import may_end_transaction

logger = logging.getLogger(__name__)

_HeartbeatResponse: Final = v2_class("HeartbeatResponse")
_TerminationResponse: Final = v2_class("NotifyClientTerminationResponse")

#: A client without a stream that has sent nothing for this long has gone.
GONE_AFTER_S: Final = 60.0
CLIENTS_MAX: Final = 50_000
#: When there are too many, one without a stream that has sent nothing for this long goes, too.
_FULL_S: Final = 1.0
_TOPICS_MAX: Final = 1024
#: Beyond so many topics that clients name together those that name the most are asked for no
#: transactions, until this part is left.
TOPICS_NAMED_MAX: Final = 100_000
_LEFT: Final = 7 / 8
#: So long for each topic nobody tells brokers anew of producers: some times what they take for it.
_PAUSE_S: Final = 50e-6
_PRODUCER_ATTEMPTS: Final = 3
_BACKOFF: Final = {"initial": duration(10), "max": duration(1000), "multiplier": 2.0}
_RETRY_S: Final = (
    1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200,
)  # fmt: skip
_RECEIVE_BATCH: Final = 32
_POLL_MS: Final = 20_000
_LITE_QUOTA: Final = 2000
_LITE_TOPIC_SIZE: Final = 64
_COMMAND: Final = shape_of(TelemetryCommand.DESCRIPTOR)
#: Whether a group is ordered is asked again so long after no broker has told, then after longer.
_ASKED_AGAIN_S: Final = 1.0
#: Who is refused with one of them may be served soon.
_FOR_NOW: Final = (Code.INTERNAL_SERVER_ERROR, Code.TOO_MANY_REQUESTS, Code.PROXY_TIMEOUT)
_PRODUCERS: Final = (ClientType.PRODUCER, ClientType.CLIENT_TYPE_UNSPECIFIED)


@dataclass(slots=True)
class GrpcClient:
    """One client.

    Attributes:
        caller: who it is, as it has said last.
        streams: its open Telemetry calls, the newest last.
        topics: that it sends to, by the brokers' names.
        seen_s: when it was last heard of, by a clock that only goes on.
    """

    caller: Caller
    streams: dict[Call, None] = field(default_factory=dict)
    topics: frozenset[str] = frozenset()
    seen_s: float = 0.0


class Clients:
    """The clients there are.

    Args:
        cluster: the brokers.
        gone: called with each client that has gone.
        monotonic_s: seconds of a clock that never steps back.
    """

    def __init__(
        self, cluster: Cluster, gone: Callable[[ClientKey], None], monotonic_s: Callable[[], float]
    ) -> None:
        self._cluster = cluster
        self._gone = gone
        self._monotonic_s = monotonic_s
        self._clients: dict[ClientKey, GrpcClient] = {}
        #: how many topics all of them name
        self._named = 0
        self._turn = 0
        #: until when nobody looks again for clients that may go, by a clock that only goes on
        self._full_until_s = 0.0
        self._told: asyncio.Event = asyncio.Event()

    def __len__(self) -> int:
        return len(self._clients)

    # ---- what clients call

    def heartbeat(self, call: Call, caller: Caller, request: V2Message) -> V2Message:
        """Note that a client is there.

        Args:
            call: of the client.
            caller: who it is.
            request: a ``HeartbeatRequest``; nothing in it counts.
        """
        self._seen(caller)
        return _HeartbeatResponse(status=OK)

    async def terminated(self, call: Call, caller: Caller, request: V2Message) -> V2Message:
        """Let a client go that ends.

        Args:
            call: of the client.
            caller: who it is.
            request: a ``NotifyClientTerminationRequest``; nothing in it counts.
        """
        if caller.client in self._clients:
            self._forget(caller.client)
        return _TerminationResponse(status=OK)

    async def telemetry(self, call: Call, caller: Caller) -> None:
        """Answer settings with settings, for as long as the client's stream lasts.

        Args:
            call: the client's stream of ``TelemetryCommand``.
            caller: who it is.

        Raises:
            CallFailedError: what came is no such message.
            RefusedError: its settings are refused.
        """
        client = self._seen(caller)
        client.streams[call] = None
        try:
            while (data := await call.receive()) is not None:
                await self._answer(call, caller, data)
                # nothing of it is kept while the next one is waited for
                del data
        finally:
            del client.streams[call]
            client.seen_s = self._monotonic_s()

    async def _answer(self, call: Call, caller: Caller, data: bytes) -> None:
        """Answer one message of a client's stream."""
        if has_too_many_fields(data, _COMMAND):
            reason = "a TelemetryCommand of too many fields"
            raise CallFailedError(GrpcStatus.RESOURCE_EXHAUSTED, reason)
        try:
            command = TelemetryCommand.FromString(data)
        except DecodeError as error:
            raise CallFailedError(
                GrpcStatus.INVALID_ARGUMENT, "the message is no TelemetryCommand"
            ) from error
        if command.HasField("settings"):
            answer = await self._full_settings(caller, command.settings)
            call.send(answer.SerializeToString())
            pause_s = _ASKED_AGAIN_S
            while not (answer.HasField("settings") or await self._goes_on(call, pause_s)):
                pause_s = min(2 * pause_s, HEART_BEAT_S)
                answer = await self._full_settings(caller, command.settings)
                if answer.HasField("settings"):
                    call.send(answer.SerializeToString())

    @staticmethod
    async def _goes_on(call: Call, pause_s: float) -> bool:
        """Wait some seconds; tells whether the client has gone meanwhile, or says more."""
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await call.gone()
        return call.closed or call.ended or bool(call.messages)

    def note(self, caller: Caller) -> None:
        """Note that a client is there, so that it is known when it goes.

        Raises:
            RefusedError: there are too many.
        """
        self._seen(caller)

    def _seen(self, caller: Caller) -> GrpcClient:
        client = self._clients.get(caller.client)
        if client is None:
            if len(self._clients) >= CLIENTS_MAX:
                self._make_room()
            client = self._clients[caller.client] = GrpcClient(caller)
        client.caller, client.seen_s = caller, self._monotonic_s()
        return client

    async def _full_settings(self, caller: Caller, asked: V2Message) -> V2Message:
        """The settings of a client, with what the server says.

        Without settings where no broker tells now whether the group of a push consumer is ordered:
        Java's and Node's read them whatever the status is, and consume as they say for good.
        """
        settings, said = Settings(), OK
        settings.CopyFrom(asked)
        if asked.client_type in _PRODUCERS and not asked.HasField("subscription"):
            self._note_topics(caller, asked)
            settings.backoff_policy.Clear()
            settings.backoff_policy.max_attempts = _PRODUCER_ATTEMPTS
            settings.backoff_policy.exponential_backoff.CopyFrom(
                v2_class("ExponentialBackoff")(**_BACKOFF)
            )
            settings.publishing.max_body_size = BODY_SIZE_MAX
            settings.publishing.validate_message_type = True
        else:
            said = await self._fill_consumer_settings(caller, settings)
            if said.code in _FOR_NOW and asked.client_type != ClientType.SIMPLE_CONSUMER:
                return TelemetryCommand(status=said)
        settings.metric.on = False
        return TelemetryCommand(status=said, settings=settings)

    async def _fill_consumer_settings(self, caller: Caller, settings: V2Message) -> V2Message:
        """Fill a consumer's settings; tells what is wrong with its group."""
        subscription, said = settings.subscription, OK
        attempts, ordered = len(_RETRY_S) - 1, False
        try:
            name = group_name(subscription.group)
            group = await self._cluster.group(name, caller, await self._read_from(settings))
        except RefusedError as error:
            said = status(error.code, error.reason)
        else:
            attempts, ordered = group.attempt_max, group.ordered
        settings.backoff_policy.Clear()
        settings.backoff_policy.max_attempts = attempts
        for seconds in _RETRY_S:
            settings.backoff_policy.customized_backoff.next.add(seconds=seconds)
        subscription.fifo = ordered
        subscription.receive_batch_size = _RECEIVE_BATCH
        subscription.long_polling_timeout.seconds = _POLL_MS // 1000
        subscription.lite_subscription_quota = _LITE_QUOTA
        subscription.max_lite_topic_size = _LITE_TOPIC_SIZE
        return said

    async def _read_from(self, settings: V2Message) -> Sequence[str]:
        """The brokers of the first topic that a consumer names; none where none are known.

        Raises:
            RefusedError: they are away now, and a push consumer asks, for which others do not tell.
        """
        try:
            for each in settings.subscription.subscriptions[:1]:
                view = await self._cluster.topic(topic_name(each.topic))
                return view.to_read if view is not None else ()
        except RefusedError as error:
            if error.code in _FOR_NOW and settings.client_type != ClientType.SIMPLE_CONSUMER:
                raise
            logger.info("where %s reads from is not known: %s", settings.subscription.group, error)
        return ()

    def _note_topics(self, caller: Caller, asked: V2Message) -> None:
        """Note what a producer sends to: it is asked for transactions of these topics."""
        names = set()
        for resource in asked.publishing.topics[:_TOPICS_MAX]:
            try:
                name = topic_name(resource)
            except RefusedError:
                continue
            if may_end_transaction(caller.account, name, name):
                names.add(name)
        client = self._clients.get(caller.client)
        if client is not None and client.topics != names:
            self._name(client, frozenset(names))
            self._told.set()
            if self._named > TOPICS_NAMED_MAX:
                self._unname_most()

    def _name(self, client: GrpcClient, topics: frozenset[str]) -> None:
        self._named += len(topics) - len(client.topics)
        client.topics = topics

    def _unname_most(self) -> None:
        """Forget what those clients send to that name the most."""
        for client in sorted(self._clients.values(), key=_topic_count, reverse=True):
            if self._named <= TOPICS_NAMED_MAX * _LEFT:
                break
            self._name(client, frozenset())

    # ---- what clients are told

    def streams_of(
        self, topic: str, may: Callable[[Caller], bool]
    ) -> Iterable[tuple[Call, Caller]]:
        """The streams of producers of a topic, each time beginning with the next one.

        Args:
            topic: that they send to.
            may: tells whether one may be told.
        """
        found = [
            (next(reversed(client.streams)), client.caller)
            for client in self._clients.values()
            if topic in client.topics and client.streams and may(client.caller)
        ]
        self._turn += 1
        first = self._turn % len(found) if found else 0
        return found[first:] + found[:first]

    async def run(self) -> None:
        """Tell brokers which producers are here, and let clients go that have gone."""
        while True:
            self._told.clear()
            self.forget_gone()
            topics = self._topics()
            await self._cluster.register_producers(topics)
            await asyncio.sleep(len(topics) * _PAUSE_S)
            try:
                async with asyncio.timeout(HEART_BEAT_S):
                    await self._told.wait()
            except TimeoutError:
                continue

    def _topics(self) -> list[str]:
        """What all producers send to; first what those name that name the fewest."""
        found = dict[str, None]()
        for client in sorted(self._clients.values(), key=_topic_count):
            found |= dict.fromkeys(sorted(client.topics))
        return list(found)

    def forget_gone(self, after_s: float = GONE_AFTER_S) -> None:
        """Let clients go that have no stream and were not heard of for some time.

        Args:
            after_s: for how long, seconds.
        """
        limit_s = self._monotonic_s() - after_s
        for key, client in list(self._clients.items()):
            if not client.streams and client.seen_s < limit_s:
                self._forget(key)

    def _make_room(self) -> None:
        """Let clients go that have no stream and are silent: whoever likes may make up many.

        Raises:
            RefusedError: there are none.
        """
        now_s = self._monotonic_s()
        if now_s >= self._full_until_s:
            self._full_until_s = now_s + _FULL_S
            self.forget_gone(_FULL_S)
        if len(self._clients) >= CLIENTS_MAX:
            raise RefusedError(Code.TOO_MANY_REQUESTS, f"{CLIENTS_MAX} clients are here")

    def _forget(self, key: ClientKey) -> None:
        self._name(self._clients.pop(key), frozenset())
        self._gone(key)


def _topic_count(client: GrpcClient) -> int:
    return len(client.topics)
